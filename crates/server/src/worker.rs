//! A worker: one thread with its reactor and its connections; it reads, plans, executes and replies.
//!
//! One turn of its loop:
//!
//! ```text
//!   wait ─▶ mail ─▶ put-off connections ┐
//!                 ─▶ readable ones: read, plan ┴─▶ batch full or nobody left ─▶ run ─▶ send ─▶ expiry slice
//! ```
//!
//! Every loop of a turn is bounded: connections by the reactor, requests a connection by the planner,
//! plans a batch by [`PLANS_A_BATCH`], expiry by time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_reactor::{AlternateStack, Event, Output, Reactor, Received, Registered, Sent, Socket, unix_ms};

use crate::commands::context::{After, background_job};
use crate::config::id;
use crate::dispatch::admit::must_log_in;
use crate::dispatch::batch::{self, Connections};
use crate::dispatch::effects::release;
use crate::dispatch::execute::Thread;
use crate::dispatch::plan::{Planner, Plans, Rest};
use crate::keyspace::{Seat, expiry};
use crate::net::client::{Buffers, Client, Flags};
use crate::net::connection::{Connection, State};
use crate::observe::metrics::{Counter, Maximum};
use crate::state::{Blocked, ClientVisitor, Message, Server, WorkerId};
use waits::{ClientWait, Waits};

mod waits;

/// What a client that has to log in first may leave unexecuted, bytes.
const STRANGER_QUERY_BYTES: usize = 1 << 20;
/// Output of one turn up to which the hard limit does not matter, as it is about to be sent.
const FREE_OUTPUT_BYTES: usize = 16 * 1024;
/// Connections handled in one turn.
const CONNECTIONS_A_TURN: usize = 128;
/// Plans that run together; more would push each other out of the cache before they run.
const PLANS_A_BATCH: usize = 128;
/// Room made for each receive, bytes.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Most room made at once for a large argument, bytes.
const RECEIVE_LARGE_BYTES: usize = 1 << 20;
/// Buffers kept for reuse; larger ones are given back to the allocator.
const POOLED_BUFFERS: usize = 64;
/// A pooled buffer is at most this large, bytes.
const POOLED_BYTES: usize = 256 * 1024;
/// How long one slice of expiry may take beside waiting clients.
const EXPIRY_SLICE: Duration = Duration::from_micros(500);

/// A worker's connections.
#[derive(Default)]
struct Clients {
    slots: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    by_id: HashMap<u64, usize>,
    afters: Vec<(usize, After)>,
}

impl Clients {
    fn add(&mut self, connection: Box<Connection>) -> usize {
        let id = connection.client.id;
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[token] = Some(connection);
        self.by_id.insert(id, token);
        token
    }

    fn remove(&mut self, token: usize) -> Option<Box<Connection>> {
        let connection = self.slots.get_mut(token)?.take()?;
        self.by_id.remove(&connection.client.id);
        self.free.push(token);
        Some(connection)
    }

    fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl Connections for Clients {
    #[inline]
    fn connection(&mut self, token: usize) -> Option<&mut Connection> {
        self.slots.get_mut(token)?.as_deref_mut()
    }

    fn after(&mut self, token: usize, after: After) {
        // Parked at once: the plans behind it in this batch must not run.
        if let Some(connection) = self.connection(token) {
            connection.state = State::Parked(0);
        }
        self.afters.push((token, after));
    }
}

/// One worker.
pub struct Worker {
    id: WorkerId,
    thread: Thread,
    seat: Seat,
    reactor: Reactor,
    clients: Clients,
    waits: Waits,
    plans: Plans,
    /// Connections with work for the next turn.
    again: Vec<usize>,
    buffers: Vec<Vec<u8>>,
    events: Vec<Event>,
    mail: Vec<Message>,
    expiring: bool,
    stopping: Option<Duration>,
    next_sweep_ms: u64,
    /// Whether some connection may have more output in flight than the soft limit allows for long.
    any_over_soft_limit: bool,
}

impl Worker {
    /// A worker that is ready to run on the calling thread.
    ///
    /// # Errors
    /// When the reactor cannot be made or no seat is left.
    pub fn new(server: Arc<Server>, id: WorkerId) -> std::io::Result<Self> {
        let reactor = Reactor::new()?;
        let seat = server
            .keyspace
            .slots
            .join()
            .ok_or_else(|| std::io::Error::other("no seat is left at the keyspace"))?;
        let link = &server.workers[id];
        if link.waker.set(reactor.waker()).is_err() {
            return Err(std::io::Error::other("this worker runs already"));
        }
        Ok(Worker {
            id,
            thread: Thread::new(server, seat.index()),
            seat,
            reactor,
            clients: Clients::default(),
            waits: Waits::default(),
            plans: Plans::default(),
            again: Vec::new(),
            buffers: Vec::new(),
            events: Vec::new(),
            mail: Vec::new(),
            expiring: false,
            stopping: None,
            next_sweep_ms: 0,
            any_over_soft_limit: false,
        })
    }

    /// Runs until [`Message::Stop`].
    ///
    /// # Panics
    /// When the system does not let it wait: a worker that went away would take its clients with it.
    pub fn run(mut self) {
        // Without a stack of its own, a crash on this thread is reported without the backtrace.
        let _stack = AlternateStack::install();
        let patience = loop {
            self.wait(self.timeout());
            let start = Instant::now();
            self.turn();
            let busy_ns = start.elapsed().as_nanos() as u64;
            let metrics = &self.thread.server.metrics;
            metrics.add(self.thread.seat, Counter::BusyNs, busy_ns);
            metrics.raise(Maximum::LongestTurnNs, busy_ns);
            if let Some(patience) = self.stopping {
                break patience;
            }
        };
        self.finish_sending(Instant::now() + patience);
        let tokens: Vec<usize> = (0..self.clients.slots.len()).collect();
        for token in tokens {
            self.close(token);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.events.clear();
        if let Err(error) = self.reactor.wait(timeout, &mut self.events, CONNECTIONS_A_TURN) {
            panic!("worker {}: waiting for events failed: {error}", self.id);
        }
    }

    /// Lets clients take the replies that are on their way, until `deadline`. Nothing more is read.
    fn finish_sending(&mut self, deadline: Instant) {
        loop {
            let waiting = (0..self.clients.slots.len()).any(|token| self.reactor.in_flight(token) > 0);
            let left = deadline.saturating_duration_since(Instant::now());
            if !waiting || left.is_zero() {
                return;
            }
            self.wait(Some(left));
            for event in std::mem::take(&mut self.events) {
                match event {
                    Event::Readable(token) => self.reactor.pause(token),
                    Event::SendFailed(token) | Event::Closed(token) => self.close(token),
                    Event::Writable(_) | Event::Accepted(..) | Event::AcceptFailed(..) => {}
                }
            }
        }
    }

    fn server(&self) -> &Arc<Server> {
        &self.thread.server
    }

    /// How long the worker may sleep: not at all with work left, else until the next thing it must do itself.
    fn timeout(&self) -> Option<Duration> {
        let paused = self.expiring && self.server().pause.holds_writes(unix_ms());
        if !self.again.is_empty() || (self.expiring && !paused) {
            return Some(Duration::ZERO);
        }
        if !self.server().workers[self.id].mailbox.is_empty_hint() {
            return Some(Duration::ZERO);
        }
        let sweep = self.sweeps().then_some(self.next_sweep_ms);
        let next_ms = [self.waits.next_due_ms(), sweep].into_iter().flatten().min();
        let until_next = next_ms.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(unix_ms()).clamp(1, 1000)));
        [self.waits.pause(), until_next].into_iter().flatten().min()
    }

    fn turn(&mut self) {
        self.begin_turn();
        self.read_mail();
        let put_off = std::mem::take(&mut self.again);
        for token in put_off {
            self.plan(token);
            self.run_if_full();
        }
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Readable(token) => {
                    self.receive(token);
                    self.run_if_full();
                }
                Event::Writable(token) => self.sent(token),
                Event::Closed(token) => self.close(token),
                Event::SendFailed(token) => self.close(token),
                // Workers have no listeners.
                Event::Accepted(..) | Event::AcceptFailed(..) => {}
            }
        }
        self.events = events;
        self.run_batch();
        self.end_due_waits();
        self.housekeeping();
        self.catch_up();
    }

    fn begin_turn(&mut self) {
        self.thread.begin(unix_ms());
    }

    // ---- mail -------------------------------------------------------------------------------------

    fn read_mail(&mut self) {
        if self.server().workers[self.id].mailbox.is_empty_hint() {
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        self.thread.server.workers[self.id]
            .mailbox
            .drain(&mut mail, CONNECTIONS_A_TURN);
        for message in mail.drain(..) {
            self.handle(message);
        }
        self.mail = mail;
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Connect(socket) => self.connect(socket),
            Message::Adopt(connection, wait) => self.adopt(connection, wait),
            Message::Shed { to, keep } => self.shed(to, keep),
            Message::Reply { client, ticket, bytes } => self.unpark(client, ticket, &bytes),
            Message::Ran {
                client,
                ticket,
                output,
                after,
            } => self.unpark_ran(client, ticket, output, after),
            Message::Served(waiter) => self.deliver(&waiter),
            Message::Serve(unserved) => self.withhold(unserved, None),
            Message::Question(question) => {
                let part = (question.ask)(self);
                let server = self.server().clone();
                question.answer(&server, part);
                self.close_killed();
            }
            Message::ExpireDue => self.expiring = true,
            Message::Unpaused => self.resume_paused(),
            Message::Stop { patience } => self.stopping = Some(patience),
        }
    }

    fn connect(&mut self, socket: Socket) {
        let server = self.server().clone();
        let id = server.next_client_id.fetch_add(1, Ordering::Relaxed);
        let mut client = Client::new(id, self.thread.now_ms, self.id);
        client.authenticated = server.config.text(id::REQUIREPASS).is_empty();
        client.address = socket.peer_name();
        client.local_address = socket.local_name();
        client.fd = socket.fd();
        if matches!(socket, Socket::Unix(_)) {
            client.flags.put(Flags::UNIX_SOCKET, true);
        }
        let connection = Box::new(Connection::new(client));
        let unsent = Default::default();
        self.install(connection, Registered { socket, unsent });
    }

    fn install(&mut self, connection: Box<Connection>, registered: Registered) {
        let token = self.clients.add(connection);
        if let Err(error) = self.reactor.adopt(token, registered) {
            crate::observe::log::warning!("cannot watch a connection: {error}");
            self.forget(token);
        }
    }

    fn adopt(&mut self, mut connection: Box<Connection>, wait: Option<Box<Blocked>>) {
        let Some(registered) = connection.in_transit.take() else {
            return;
        };
        connection.client.worker = self.id;
        let id = connection.client.id;
        self.install(connection, registered);
        if let Some(token) = self.clients.by_id.get(&id).copied() {
            self.again.push(token);
            if let Some(blocked) = wait {
                self.begin_wait(token, ClientWait::Keys(blocked));
            }
        } else if let Some(blocked) = wait {
            self.abandon_waiter(blocked.waiter);
        }
    }

    /// Gives connections that are between requests, or wait for keys, to another worker.
    fn shed(&mut self, to: WorkerId, keep: usize) {
        let mut surplus = self.clients.len().saturating_sub(keep);
        for token in 0..self.clients.slots.len() {
            if surplus == 0 {
                return;
            }
            let waits = &self.waits;
            let movable = self.clients.connection(token).is_some_and(|connection| {
                let idle = connection.state == State::Ready || waits.is_for_keys(connection.client.id);
                idle && !connection.in_batch && connection.output.is_empty()
            });
            if !movable {
                continue;
            }
            let Some(registered) = self.reactor.deregister(token) else {
                continue;
            };
            let Some(mut connection) = self.clients.remove(token) else {
                continue;
            };
            self.again.retain(|other| *other != token);
            connection.in_transit = Some(registered);
            connection.receive_paused = false;
            self.mail_connection(to, connection);
            surplus -= 1;
        }
    }

    // ---- input ------------------------------------------------------------------------------------

    fn receive(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if connection.in_batch {
            // Its plans point into the input: run them first.
            self.run_batch();
            return self.receive(token);
        }
        if !matches!(connection.state, State::Ready | State::Deferred) {
            connection.receive_paused = true;
            self.reactor.pause(token);
            return;
        }
        if connection.input.capacity() == 0
            && let Some(buffer) = self.buffers.pop()
        {
            connection.input = buffer;
        }
        let room = connection.wanted.clamp(RECEIVE_BYTES, RECEIVE_LARGE_BYTES);
        let count = match self.reactor.receive(token, &mut connection.input, room) {
            Ok(Received::Bytes { count, .. }) => count,
            Ok(Received::WouldBlock) => return,
            Ok(Received::Closed) | Err(_) => return self.close(token),
        };
        connection.client.net_input_bytes += count as u64;
        connection.client.last_interaction_ms = self.thread.now_ms;
        let pending = connection.pending();
        let over_limit = pending > self.thread.tunables.query_buffer_limit
            || (pending > STRANGER_QUERY_BYTES && must_log_in(&self.thread.server, &connection.client));
        let metrics = &self.thread.server.metrics;
        metrics.add(self.thread.seat, Counter::NetInputBytes, count as u64);
        metrics.add(self.thread.seat, Counter::Reads, 1);
        if over_limit {
            metrics.add(self.thread.seat, Counter::QueryBufferDisconnections, 1);
            let line = connection.client.describe(self.thread.now_ms, connection.buffers(0));
            crate::observe::log::warning!(
                "Closing client that reached max query buffer length: {}",
                String::from_utf8_lossy(&line)
            );
            return self.close(token);
        }
        self.plan(token);
    }

    fn plan(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if connection.in_batch {
            return;
        }
        if connection.state == State::Deferred {
            connection.state = State::Ready;
        }
        if connection.state != State::Ready || connection.client.flags.has(Flags::CLOSE_AFTER_REPLY) {
            return;
        }
        let planner = Planner {
            keyspace: &self.thread.server.keyspace,
            max_bulk_len: self.thread.tunables.max_bulk_len,
            prefetch: self.thread.tunables.prefetch_depth > 1,
            commands: crate::commands::registry(),
        };
        let rest = planner.plan(token, connection, &mut self.plans);
        if connection.in_batch
            && connection.output.bytes.capacity() == 0
            && let Some(buffer) = self.buffers.pop()
        {
            connection.output.bytes = buffer;
        }
        connection.has_more = rest == Rest::More;
        connection.wanted = match rest {
            Rest::Partial(wanted) => wanted,
            Rest::Nothing | Rest::More => 0,
        };
        if !connection.in_batch {
            // Nothing complete yet, or only empty requests.
            self.settle_input(token);
        }
    }

    fn run_if_full(&mut self) {
        if self.plans.list.len() >= PLANS_A_BATCH {
            self.run_batch();
        }
    }

    fn run_batch(&mut self) {
        if self.plans.list.is_empty() {
            return;
        }
        let executed = self.plans.list.len() as u64;
        batch::run(&mut self.thread, &mut self.seat, &mut self.plans, &mut self.clients);
        self.server().workers[self.id]
            .executed
            .fetch_add(executed, Ordering::Relaxed);
        let tokens = std::mem::take(&mut self.plans.tokens);
        for (token, after) in std::mem::take(&mut self.clients.afters) {
            self.start_after(token, after);
        }
        for token in &tokens {
            self.finish(*token);
        }
        self.plans.clear();
        self.plans.tokens = tokens;
        self.plans.tokens.clear();
        self.deliver_here();
        self.delete_found_expired();
    }

    fn delete_found_expired(&mut self) {
        if self.thread.effects.expired.is_empty() {
            return;
        }
        if self.server().pause.holds_writes(self.thread.now_ms) {
            // Nothing changes in a pause. They are found again afterwards.
            self.thread.effects.expired.clear();
            return;
        }
        let thread = &mut self.thread;
        expiry::delete_found(
            &thread.server.keyspace,
            &mut self.seat,
            thread.now_ms,
            &mut thread.effects,
        );
        release(&mut thread.effects, &thread.server);
        thread.keep_ready();
    }

    /// Ends a connection's part of a batch: forgets executed bytes, sends replies, plans its next turn.
    fn finish(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.in_batch = false;
        let waits = connection.state == State::Deferred || (connection.state == State::Ready && connection.has_more);
        if waits {
            self.again.push(token);
        }
        self.settle_input(token);
        self.flush(token);
    }

    /// Gives an emptied input buffer back.
    fn settle_input(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.discard_consumed();
        if connection.input.is_empty() {
            let buffer = std::mem::take(&mut connection.input);
            self.recycle(buffer);
        }
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && buffer.capacity() <= POOLED_BYTES && self.buffers.len() < POOLED_BUFFERS {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    // ---- output -----------------------------------------------------------------------------------

    fn flush(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let closing = connection.client.flags;
        if closing.has(Flags::CLOSE_ASAP) {
            return self.close(token);
        }
        let length = connection.output.len();
        let limit_bytes = self.thread.tunables.output_limit.hard_bytes;
        // Spliced values cost no memory of their own.
        let copied = connection.output.bytes.len();
        if limit_bytes > 0 && copied > FREE_OUTPUT_BYTES && copied as u64 > limit_bytes {
            return self.close_for_output(token, length);
        }
        if length > 0 {
            connection.client.largest_output = connection.client.largest_output.max(length);
            connection.client.last_interaction_ms = self.thread.now_ms;
            let sent = self.reactor.send(token, &mut connection.output);
            connection.client.net_output_bytes += length as u64;
            let buffer = std::mem::take(&mut connection.output.bytes);
            let metrics = &self.thread.server.metrics;
            metrics.add(self.thread.seat, Counter::NetOutputBytes, length as u64);
            metrics.add(self.thread.seat, Counter::Writes, 1);
            self.recycle(buffer);
            match sent {
                Ok(Sent::Done) => self.note_all_sent(token),
                Ok(Sent::InFlight(bytes)) => return self.check_output_limit(token, bytes),
                Err(_) => return self.close(token),
            }
        }
        let done = self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.closes_after_output());
        if done && self.reactor.in_flight(token) == 0 {
            self.close(token);
        }
    }

    fn note_all_sent(&mut self, token: usize) {
        if let Some(connection) = self.clients.connection(token) {
            connection.over_soft_limit_since_ms = 0;
        }
    }

    /// An output that was left in flight has been sent.
    fn sent(&mut self, token: usize) {
        self.note_all_sent(token);
        let closing = self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.closes_after_output());
        if closing {
            self.close(token);
        }
    }

    fn check_output_limit(&mut self, token: usize, in_flight: usize) {
        let now_ms = self.thread.now_ms;
        let limits = self.thread.tunables.output_limit;
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let hard = limits.hard_bytes > 0 && in_flight as u64 > limits.hard_bytes;
        let above_soft = limits.soft_bytes > 0 && in_flight as u64 > limits.soft_bytes;
        if !above_soft {
            connection.over_soft_limit_since_ms = 0;
        } else if connection.over_soft_limit_since_ms == 0 {
            connection.over_soft_limit_since_ms = now_ms;
        }
        self.any_over_soft_limit |= above_soft;
        let above_ms = now_ms.saturating_sub(connection.over_soft_limit_since_ms);
        let soft = above_soft && above_ms > limits.soft_seconds.max(0) as u64 * 1000;
        if hard || soft {
            self.close_for_output(token, in_flight);
        }
    }

    fn close_for_output(&mut self, token: usize, in_flight: usize) {
        if let Some(connection) = self.clients.connection(token) {
            let line = connection
                .client
                .describe(self.thread.now_ms, connection.buffers(in_flight));
            crate::observe::log::warning!(
                "Client {} closed for overcoming of output buffer limits.",
                String::from_utf8_lossy(&line)
            );
        }
        let metrics = &self.thread.server.metrics;
        metrics.add(self.thread.seat, Counter::OutputBufferDisconnections, 1);
        self.close(token);
    }

    /// Looks again at those above the soft limit: they may stay there without a further reply.
    fn check_soft_limits(&mut self) {
        self.any_over_soft_limit = false;
        for token in 0..self.clients.slots.len() {
            let over = self
                .clients
                .connection(token)
                .is_some_and(|connection| connection.over_soft_limit_since_ms > 0);
            if over {
                self.check_output_limit(token, self.reactor.in_flight(token));
            }
        }
    }

    // ---- waiting ----------------------------------------------------------------------------------

    fn start_after(&mut self, token: usize, after: After) {
        let server = self.server().clone();
        let ticket = server.ticket();
        let worker = self.id;
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.state = State::Parked(ticket);
        let asker = (worker, connection.client.id, ticket);
        match after {
            After::Nothing | After::Defer | After::Leave | After::AsWriter => connection.state = State::Deferred,
            After::Ask(make) => server.ask_all(make(asker)),
            After::Background(work) => {
                server.metrics.add(self.thread.seat, Counter::BackgroundCommands, 1);
                if server.background.send(background_job(work, asker)).is_err() {
                    connection.client.flags.put(Flags::CLOSE_ASAP, true);
                }
            }
            After::Detached(command) => {
                server.metrics.add(self.thread.seat, Counter::BackgroundCommands, 1);
                if server.background.send(command(asker)).is_err() {
                    connection.client.flags.put(Flags::CLOSE_ASAP, true);
                }
            }
            After::ReplyAt(at_ms, bytes) => self.begin_wait(token, ClientWait::Time { at_ms, ticket, bytes }),
            After::Block(blocked) => {
                connection.state = State::Parked(blocked.waiter.ticket);
                self.begin_wait(token, ClientWait::Keys(blocked));
            }
            After::Serve(unserved, reply) => {
                let client = connection.client.id;
                self.withhold(unserved, Some((client, ticket, reply)));
            }
        }
    }

    /// A parked connection got its reply and goes on.
    fn unpark(&mut self, client: u64, ticket: u64, bytes: &[u8]) {
        if let Some(token) = self.parked(client, ticket) {
            self.go_on(token, |output| output.bytes.extend_from_slice(bytes));
        }
    }

    /// A command that left this worker has run; its connection goes on, or waits for what the command wants.
    fn unpark_ran(&mut self, client: u64, ticket: u64, mut reply: Output, after: After) {
        let Some(token) = self.parked(client, ticket) else {
            return self.start_after_gone(after);
        };
        match after {
            After::Nothing => self.go_on(token, |output| output.append(&mut reply)),
            other => self.start_after(token, other),
        }
    }

    /// What others are owed of a command whose client is gone.
    fn start_after_gone(&mut self, after: After) {
        match after {
            After::Serve(unserved, _) => self.withhold(unserved, None),
            After::Block(blocked) => self.abandon_waiter(blocked.waiter),
            _ => {}
        }
    }

    /// The connection of a client, if it is parked under this ticket.
    fn parked(&mut self, client: u64, ticket: u64) -> Option<usize> {
        let token = self.clients.by_id.get(&client).copied()?;
        let connection = self.clients.connection(token)?;
        (connection.state == State::Parked(ticket)).then_some(token)
    }

    fn go_on(&mut self, token: usize, reply: impl FnOnce(&mut Output)) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.state = State::Ready;
        connection.client.flags.put(Flags::BLOCKED, false);
        connection.client.commands += 1;
        let before = connection.output.mark();
        reply(&mut connection.output);
        connection.settle_reply(before);
        self.wake(token);
        self.flush(token);
    }

    /// Lets a connection go on after it waited.
    fn wake(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let resume = std::mem::take(&mut connection.receive_paused);
        if connection.pending() > 0 {
            self.again.push(token);
        }
        if resume {
            self.reactor.resume(token);
        }
    }

    fn resume_paused(&mut self) {
        for token in 0..self.clients.slots.len() {
            let Some(connection) = self.clients.connection(token) else {
                continue;
            };
            if connection.state == State::Paused {
                connection.state = State::Ready;
                connection.client.flags.put(Flags::BLOCKED, false);
                self.wake(token);
            }
        }
    }

    // ---- the rest ---------------------------------------------------------------------------------

    fn housekeeping(&mut self) {
        if self.expiring && !self.thread.server.pause.holds_writes(self.thread.now_ms) {
            self.expire_slice();
        }
        if self.sweeps() && self.thread.now_ms >= self.next_sweep_ms {
            self.next_sweep_ms = self.thread.now_ms + 1000;
            if self.thread.tunables.timeout_s > 0 {
                self.close_idle();
            }
            if self.any_over_soft_limit {
                self.check_soft_limits();
            }
        }
    }

    /// Whether connections are to be looked at now and then.
    fn sweeps(&self) -> bool {
        (self.thread.tunables.timeout_s > 0 && self.clients.len() > 0) || self.any_over_soft_limit
    }

    fn expire_slice(&mut self) {
        let thread = &mut self.thread;
        let server = thread.server.clone();
        let start = Instant::now();
        self.expiring = expiry::run_slice(
            &server.keyspace,
            &mut self.seat,
            &server.due_slots,
            thread.now_ms,
            EXPIRY_SLICE,
            &mut thread.effects,
        );
        release(&mut thread.effects, &server);
        thread.keep_ready();
        crate::dispatch::effects::count(&mut thread.effects, &server, thread.seat);
        let elapsed = start.elapsed();
        server
            .metrics
            .add(thread.seat, Counter::ExpiryNs, elapsed.as_nanos() as u64);
        if elapsed.as_nanos() as u64 >= thread.tunables.latency_event_ns {
            let spike_ms = elapsed.as_millis() as u64;
            server
                .observed
                .latency
                .add("expire-cycle", thread.now_ms / 1000, spike_ms);
        }
    }

    fn close_idle(&mut self) {
        let limit_ms = self.thread.tunables.timeout_s * 1000;
        let now_ms = self.thread.now_ms;
        for token in 0..self.clients.slots.len() {
            let idle = self.clients.connection(token).is_some_and(|connection| {
                !matches!(connection.state, State::Parked(_) | State::Paused)
                    && now_ms.saturating_sub(connection.client.last_interaction_ms) > limit_ms
            });
            if idle {
                self.close(token);
            }
        }
    }

    fn close_killed(&mut self) {
        for token in 0..self.clients.slots.len() {
            let killed = self
                .clients
                .connection(token)
                .is_some_and(|connection| connection.client.flags.has(Flags::CLOSE_ASAP));
            if killed {
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: usize) {
        if self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.in_batch)
        {
            // Its plans are still in the batch: they are skipped, and the batch's end closes it.
            if let Some(connection) = self.clients.connection(token) {
                connection.client.flags.put(Flags::CLOSE_ASAP, true);
            }
            return;
        }
        if let Some(registered) = self.reactor.deregister(token) {
            drop(registered);
        }
        self.forget(token);
    }

    fn forget(&mut self, token: usize) {
        if let Some(connection) = self.clients.remove(token) {
            self.abandon(connection.client.id);
            self.again.retain(|other| *other != token);
            let server = self.server();
            server.connections.fetch_sub(1, Ordering::Relaxed);
            server.workers[self.id].connections.fetch_sub(1, Ordering::Relaxed);
            drop(connection);
        }
    }
}

impl ClientVisitor for Worker {
    fn each(&mut self, visit: &mut dyn FnMut(&mut Client, Buffers)) {
        for token in 0..self.clients.slots.len() {
            let in_flight = self.reactor.in_flight(token);
            if let Some(connection) = self.clients.connection(token) {
                let buffers = connection.buffers(in_flight);
                visit(&mut connection.client, buffers);
            }
        }
    }

    fn unblock(&mut self, id: u64, with_error: bool) -> bool {
        self.give_up(id, with_error)
    }
}
