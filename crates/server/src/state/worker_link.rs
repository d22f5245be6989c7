//! The connection of other threads to a worker: its mailbox, and what they see of it.

use std::fs::File;
use std::time::Duration;

use weft_os::sync::OnceLock;
use weft_reactor::Waker;
use weft_sync::Mailbox;

use super::Message;
use crate::keyspace::effects::ClientNotification;
use weft_os::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The connection of other threads to a worker.
pub struct WorkerLink {
    /// The worker's messages.
    pub mailbox: Mailbox<Message>,
    /// Wakes its reactor.
    pub waker: OnceLock<Waker>,
    /// The open `schedstat` of its thread, for tuning.
    pub schedstat: OnceLock<File>,
    /// The number of its connections.
    pub connections: AtomicUsize,
    /// The number of executed requests, for tuning.
    pub executed_commands: AtomicU64,
    /// What the delivery of the notifications in the mailbox takes, see [`ClientNotification::delivery_bytes`].
    delivery_bytes: AtomicUsize,
    /// The number of its clients that wait for keys, for replicas, for the disk or for a point in time.
    pub waiting_clients: AtomicUsize,
    /// The start of the worker's turn, in nanoseconds since the server started; 0 while it waits for events.
    pub turn_started_ns: AtomicU64,
    /// `true` while the mailbox has a request to count the memory of the clients again.
    is_recount_requested: AtomicBool,
    /// `true` once the worker reads no more mail.
    has_ended: AtomicBool,
}

/// The time after which a worker whose turn has not ended counts as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// The number of messages above which a mailbox counts as full.
const FULL_MAILBOX_MESSAGES: usize = if cfg!(feature = "simulated") { 8 } else { 8192 };
/// The number of bytes to deliver above which a mailbox counts as full.
const FULL_MAILBOX_BYTES: usize = 64 << 20;

impl WorkerLink {
    /// Returns the link of a worker that does not run yet.
    pub fn new() -> Self {
        WorkerLink {
            mailbox: Mailbox::new(),
            waker: OnceLock::new(),
            schedstat: OnceLock::new(),
            connections: AtomicUsize::new(0),
            executed_commands: AtomicU64::new(0),
            delivery_bytes: AtomicUsize::new(0),
            waiting_clients: AtomicUsize::new(0),
            turn_started_ns: AtomicU64::new(0),
            is_recount_requested: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Returns `true` once the worker reads no more mail.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Records that the worker reads no more mail.
    pub fn note_end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Returns `true` if the worker's turn takes so long that its clients get no service. `now_ns` is the time since
    /// the server started.
    pub fn is_stalled(&self, now_ns: u64) -> bool {
        match self.turn_started_ns.load(Ordering::Relaxed) {
            0 => false,
            started_ns => now_ns.saturating_sub(started_ns) > STALLED_AFTER.as_nanos() as u64,
        }
    }

    /// Makes the worker count the memory of its clients again. One request waits at a time: each of them takes a pass
    /// over all connections of the worker.
    pub fn request_client_recount(&self) {
        if !self.is_recount_requested.swap(true, Ordering::AcqRel) {
            self.send(Message::RecountClients);
        }
    }

    /// Ends the wait of the request. What changes from now on needs another one.
    pub fn begin_client_recount(&self) {
        self.is_recount_requested.store(false, Ordering::Release);
    }

    /// Adds a notification to the mail. Returns `true` if the worker must be woken, which the sender does once its
    /// leases have ended.
    #[must_use = "the worker sleeps on if it is not woken"]
    pub fn post_notification(&self, notice: ClientNotification) -> bool {
        let delivery_bytes = notice.delivery_bytes();
        if delivery_bytes > 0 {
            self.delivery_bytes.fetch_add(delivery_bytes, Ordering::Relaxed);
        }
        self.mailbox.push(Message::Notify(notice))
    }

    /// Adds a notification to the mail and wakes the worker if it sleeps. The caller holds no lease.
    pub fn send_notification(&self, notice: ClientNotification) {
        if self.post_notification(notice) {
            self.wake();
        }
    }

    /// Records that the worker has taken a notification from its mail.
    pub fn note_received(&self, notice: &ClientNotification) {
        let delivery_bytes = notice.delivery_bytes();
        if delivery_bytes > 0 {
            self.delivery_bytes.fetch_sub(delivery_bytes, Ordering::Relaxed);
        }
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Returns `true` if the mailbox holds more than the worker can read at the moment.
    pub fn is_mailbox_full(&self) -> bool {
        self.mailbox.len() > FULL_MAILBOX_MESSAGES || self.delivery_bytes.load(Ordering::Relaxed) > FULL_MAILBOX_BYTES
    }

    /// Sends a message and wakes the worker if it sleeps.
    pub fn send(&self, message: Message) {
        if self.mailbox.push(message) {
            self.wake();
        }
    }
}
