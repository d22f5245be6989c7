//! The server's shared state: what every thread may reach, and the messages between threads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use weft_reactor::{Output, Socket, Waker};
use weft_sync::Mailbox;

use crate::commands::context::After;
use crate::config::Config;
use crate::keyspace::lazyfree::LazyFree;
use crate::keyspace::{Keyspace, Seat};
use crate::net::client::{Buffers, Client};
use crate::net::connection::Connection;
use crate::observe::errors::ErrorCounts;
use crate::observe::lock;
use crate::observe::metrics::Metrics;

/// Index of a worker.
pub type WorkerId = usize;

/// What is sent to a worker.
pub enum Message {
    /// A socket that was accepted and placed here.
    Connect(Socket),
    /// A connection that moves here with everything it has.
    Adopt(Box<Connection>),
    /// Give up connections until `keep` are left; they go to `to`.
    Shed {
        /// Who takes them.
        to: WorkerId,
        /// How many stay.
        keep: usize,
    },
    /// The reply of a command that ran elsewhere.
    Reply {
        /// The client that waits.
        client: u64,
        /// What it waits for.
        ticket: u64,
        /// Its reply.
        bytes: Vec<u8>,
    },
    /// The reply of a command that ran on a background thread.
    Ran {
        /// The client that waits.
        client: u64,
        /// What it waits for.
        ticket: u64,
        /// Its reply.
        output: Output,
        /// What is left to be done before the client goes on.
        after: After,
    },
    /// A question about this worker's clients.
    Question(Arc<Question>),
    /// Slots with due keys are queued.
    ExpireDue,
    /// Clients that were paused may go on.
    Unpaused,
    /// Stop: send what can be sent and end the thread.
    Stop,
}

/// How a worker is reached.
pub struct WorkerLink {
    /// Its messages.
    pub mailbox: Mailbox<Message>,
    /// Wakes its reactor.
    pub waker: OnceLock<Waker>,
    /// Connections it has.
    pub connections: AtomicUsize,
    /// Requests executed, for tuning.
    pub executed: AtomicU64,
}

impl WorkerLink {
    /// Sends a message and wakes the worker if it sleeps.
    pub fn send(&self, message: Message) {
        if self.mailbox.push(message)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }
}

/// One worker's part of an answer.
pub type Part = Vec<u8>;

/// A question to all workers: each runs `ask` over its clients; the last one completes it.
pub struct Question {
    /// Runs on each worker; returns that worker's part.
    pub ask: Box<dyn Fn(&mut dyn ClientVisitor) -> Part + Send + Sync>,
    /// Makes the reply of the parts.
    pub combine: Box<dyn Fn(Vec<Part>) -> Vec<u8> + Send + Sync>,
    /// Parts so far.
    pub parts: Mutex<Vec<Part>>,
    /// Workers that have not answered.
    pub missing: AtomicUsize,
    /// Who asked: worker, client, ticket.
    pub asker: (WorkerId, u64, u64),
}

/// Walks the clients of one worker.
pub trait ClientVisitor {
    /// Calls `visit` for each client with its buffer figures.
    fn each(&mut self, visit: &mut dyn FnMut(&mut Client, Buffers));
    /// Ends a client's wait; whether it was waiting.
    fn unblock(&mut self, id: u64, with_error: bool) -> bool;
}

/// Which commands CLIENT PAUSE holds back, and until when.
#[derive(Default)]
pub struct Pause {
    /// Milliseconds since the epoch; 0 when not paused.
    pub until_ms: AtomicU64,
    /// Whether reads wait too.
    pub all: AtomicBool,
}

impl Pause {
    /// Whether a command waits at `now_ms`.
    #[inline]
    pub fn holds(&self, now_ms: u64, writes: bool) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms != 0 && now_ms < until_ms && (writes || self.all.load(Ordering::Relaxed))
    }
}

/// Work for the background threads: it gets a seat of its own.
pub type Job = Box<dyn FnOnce(&Arc<Server>, &mut Seat) + Send>;

/// How the process shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Finish replies, close, remove pid file and sockets.
    Orderly,
    /// The same without waiting for anything.
    Now,
}

/// What the whole process shares.
pub struct Server {
    /// Parameters.
    pub config: Config,
    /// Data.
    pub keyspace: Keyspace,
    /// Workers.
    pub workers: Vec<WorkerLink>,
    /// Counters.
    pub metrics: Metrics,
    /// Error replies by code.
    pub errors: ErrorCounts,
    /// Frees in the background.
    pub lazyfree: LazyFree,
    /// Takes long commands.
    pub background: mpsc::Sender<Job>,
    /// Pause of clients.
    pub pause: Pause,
    /// `DEBUG SET-ACTIVE-EXPIRE`.
    pub active_expire: AtomicBool,
    /// Next client id.
    pub next_client_id: AtomicU64,
    /// Next ticket of a parked connection.
    pub next_ticket: AtomicU64,
    /// Connections in all.
    pub connections: AtomicUsize,
    /// Slots with due keys, in the order they were found.
    pub due_slots: Mutex<Vec<u16>>,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// When the process started.
    pub started: Instant,
    /// The same, seconds since the epoch.
    pub started_unix_s: u64,
    /// Asks the coordinator to end the process.
    pub shutdown: OnceLock<Shutdown>,
    /// Wakes the coordinator.
    pub coordinator: OnceLock<Waker>,
    /// Bytes allocated, sampled by the coordinator.
    pub used_memory: AtomicU64,
    /// Peak of the same.
    pub peak_memory: AtomicU64,
    /// Workers that take connections at the moment.
    pub active_workers: AtomicUsize,
    /// Changes of the number of active workers.
    pub tunings: AtomicU64,
}

impl Server {
    /// Asks for the end of the process; the first request counts.
    pub fn request_shutdown(&self, how: Shutdown) {
        if self.shutdown.set(how).is_ok()
            && let Some(waker) = self.coordinator.get()
        {
            waker.wake();
        }
    }

    /// A ticket for a connection that parks.
    pub fn ticket(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks all workers; the reply reaches the asker as [`Message::Reply`].
    pub fn ask_all(&self, question: Question) {
        let question = Arc::new(question);
        question.missing.store(self.workers.len(), Ordering::Release);
        for worker in &self.workers {
            worker.send(Message::Question(question.clone()));
        }
    }
}

impl Question {
    /// Adds a worker's part; the last part completes the reply and mails it.
    pub fn answer(&self, server: &Server, part: Part) {
        let parts = {
            let mut parts = lock(&self.parts);
            parts.push(part);
            if self.missing.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            std::mem::take(&mut *parts)
        };
        let (worker, client, ticket) = self.asker;
        server.workers[worker].send(Message::Reply {
            client,
            ticket,
            bytes: (self.combine)(parts),
        });
    }
}
