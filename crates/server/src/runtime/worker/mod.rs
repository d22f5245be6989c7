//! A worker: one thread with its reactor and its connections; it reads, plans, executes and replies.
//!
//! One turn of its loop:
//!
//! ```text
//!   wait ─▶ mail ─▶ connections that were put off ┐
//!                 ─▶ readable ones: read, plan    ┴─▶ batch full or none left ─▶ mail ─▶ run
//!        ─▶ send the replies of all batches ─▶ expiry slice
//! ```
//!
//! Every loop of a turn is bounded: connections by the reactor, requests per connection by the planner, plans per batch
//! by [`MAX_PLANS_PER_BATCH`], expiry by time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::{unix_ms, unix_us};
use weft_base::{ClientId, ParkId, ThreadIndex};
use weft_reactor::{AlternateStack, Event, Reactor};

use crate::commands::context::NextStep;
use crate::dispatch::batch::{self, BatchConnections};
use crate::dispatch::effects::free_removed_values;
use crate::dispatch::home_events::HomeEvents;
use crate::dispatch::memory_limit;
use crate::dispatch::modules::home::{self, HomeClients};
use crate::dispatch::plan::Plans;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::{Seat, expiry};
use crate::net::client::{BufferFigures, Client};
use crate::net::connection::{Connection, ConnectionState};
use crate::net::kill_mark::KillMark;
use crate::notify::messages::NotificationSender;
use crate::notify::pubsub::Recipient;
use crate::observability::metrics::{Counter, Maximum};
use crate::state::{ClientVisitor, HOME_WORKER, HomeJob, Message, SentQuery, Server, WorkerAnswer};
use parking::{AbandonedParts, Departure, PartialReplies};
use pending_sends::PendingSends;
use waits::{ClientWait, Waits};
use weft_modules::module::home_commands;
use weft_modules::module::server_events::{self, EventKind, ServerEvent};
use weft_modules::module::timers;
use weft_modules::session::lending::LentJob;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_scripting::Requester;

mod client_eviction;
mod deliveries;
mod demotion;
mod departing_slots;
mod described_clients;
mod housekeeping;
mod input;
mod mailbox;
mod meanwhile;
mod module_waits;
mod moving;
mod output;
mod parking;
mod pending_sends;
mod tls;
mod waits;

/// The maximum number of connections handled in one turn.
const MAX_CONNECTIONS_PER_TURN: usize = if cfg!(feature = "simulated") { 2 } else { 128 };
/// The maximum number of plans that run together; more would evict each other from the cache before they run.
const MAX_PLANS_PER_BATCH: usize = if cfg!(feature = "simulated") { 4 } else { 128 };

/// The number of turns with only refused leases after which a worker sleeps between attempts.
const REFUSED_TURNS_BEFORE_SLEEP: u32 = 2;
/// The first of those sleeps; they double up to the longest.
const MIN_SLEEP: Duration = Duration::from_micros(10);
/// The longest of those sleeps.
const MAX_SLEEP: Duration = Duration::from_micros(320);
/// The number of failed attempts to lease a request's slots after which its connection is checked only once per
/// millisecond.
const FAILURES_BEFORE_DELAY: u32 = 64;

/// The interval at which a worker checks if a script that a CLIENT KILL waits for counts as busy.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A worker's connections.
#[derive(Default)]
struct ClientTable {
    slots: Vec<Option<Box<Connection>>>,
    free_tokens: Vec<usize>,
    /// Tokens of connections that were removed in this turn. They are reused from the next turn on, because events of
    /// this turn may still belong to the removed connections.
    tokens_freed_this_turn: Vec<usize>,
    by_id: HashMap<ClientId, usize>,
    next_steps: Vec<(usize, NextStep)>,
    /// Connections with output that is not a reply.
    tokens_with_messages: Vec<usize>,
    /// Scratch space for the recipients of a message.
    recipients: Vec<Recipient>,
}

impl ClientTable {
    fn add(&mut self, connection: Box<Connection>) -> usize {
        let id = connection.client.id;
        let token = self.free_tokens.pop().unwrap_or_else(|| {
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
        self.tokens_freed_this_turn.push(token);
        Some(connection)
    }

    /// Ends a turn, all of whose events have been handled.
    fn end_turn(&mut self) {
        self.free_tokens.append(&mut self.tokens_freed_this_turn);
    }

    fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl BatchConnections for ClientTable {
    #[inline]
    fn connection(&mut self, token: usize) -> Option<&mut Connection> {
        self.slots.get_mut(token)?.as_deref_mut()
    }

    fn start_next_step(&mut self, token: usize, after: NextStep) {
        // Parked immediately: its later plans in this batch must not run.
        if let Some(connection) = self.connection(token) {
            connection.state = ConnectionState::Parked(ParkId::NONE);
            // A later command of this batch may serve the client.
            if let NextStep::Block(blocked) = &after {
                connection.waiter = Some(blocked.waiter.clone());
            }
        }
        self.next_steps.push((token, after));
    }

    fn notify(&mut self, thread: &mut ThreadState) {
        self.send_notifications(thread);
    }
}

impl HomeClients for ClientTable {
    fn client(&mut self, client: ClientId) -> Option<&mut Client> {
        let token = self.by_id.get(&client).copied()?;
        Some(&mut self.connection(token)?.client)
    }
}

/// What the home worker uses to serve its other connections while code of a module runs.
struct Spare {
    thread: ThreadState,
    seat: Seat,
}

/// One worker.
pub struct Worker {
    id: ThreadIndex,
    thread: ThreadState,
    seat: Seat,
    reactor: Reactor,
    clients: ClientTable,
    waits: Waits,
    /// Transactions whose replies are not complete yet, by client.
    partial_replies: HashMap<ClientId, PartialReplies>,
    /// The remaining parts of transactions whose clients have disconnected, by the park id of the current part.
    abandoned_parts: HashMap<ParkId, AbandonedParts>,
    /// What other threads have asked the home worker to run in exclusive mode.
    home_jobs: VecDeque<HomeJob>,
    /// `true` if one of them calls the functions of the timers that are due.
    has_timer_job: bool,
    /// Jobs of threads that wait for them, each with the session of its thread.
    lent_jobs: Vec<LentJob>,
    /// The name under which it waits for exclusive mode for them.
    home_requester: Requester,
    /// What the home worker uses to serve its other connections while code of a module runs.
    spare: Option<Box<Spare>>,
    /// `true` while that is in use, or ready for it.
    is_in_meanwhile: bool,
    /// Events of connections with requests in a batch during which the others were served.
    postponed_events: Vec<Event>,
    /// The connections with requests in the batch that waits for the end of a nested turn.
    suspended_tokens: Vec<usize>,
    /// The departures of connections that first send withheld output, by client.
    departures: BTreeMap<ClientId, Departure>,
    plans: Plans,
    /// Connections with work for the next turn.
    ready_tokens: Vec<usize>,
    /// `true` if a command has completed in this turn.
    has_progress: bool,
    /// The number of consecutive turns in which commands were put off and none completed.
    refused_turns: u32,
    /// Connections that were put off so often that they are delayed: a script may hold the slots that they need.
    delayed_tokens: Vec<usize>,
    /// The time of their last check, in milliseconds since the Unix epoch.
    delayed_checked_ms: u64,
    buffers: Vec<Vec<u8>>,
    /// The bytes of those buffers.
    pooled_bytes: usize,
    /// The number of these bytes that was published last.
    published_pooled_bytes: usize,
    events: Vec<Event>,
    mail: Vec<Message>,
    is_expiring: bool,
    /// `true` if modules know that this worker, the home worker, is about to wait for events.
    has_announced_sleep: bool,
    /// A worker to which this one has sent, by itself, more mail than it can read at the moment.
    overloaded_worker: Option<ThreadIndex>,
    grace_period: Option<Duration>,
    next_sweep_ms: u64,
    /// The time of the next random moves of connections, in milliseconds since the Unix epoch.
    next_random_move_ms: u64,
    /// `true` if a connection may exceed the soft output limit.
    has_clients_over_soft_limit: bool,
    /// `true` if a connection may have an input buffer with much unused space.
    has_unused_input: bool,
    /// Replies that wait for the end of the turn.
    pending_sends: PendingSends,
    /// Connections whose output waits until the log has passed their writes, or until it is certain that these are not
    /// lost.
    withheld_tokens: Vec<usize>,
    /// `true` if the allocator's count must be read at the end of this turn.
    should_sample_memory: bool,
    /// `true` if the tracking table holds more keys than its limit.
    has_excess_tracked_keys: bool,
    /// `true` if this worker allocates from an arena of its own.
    has_own_arena: bool,
    /// Handshakes that were advanced in this turn.
    handshake_count: u64,
    /// Answers to queries that wait for commands of killed clients.
    delayed_answers: Vec<DelayedAnswer>,
}

impl Worker {
    /// Creates a worker that is ready to run on the calling thread.
    ///
    /// # Errors
    /// When the reactor cannot be created or no thread index is free.
    pub fn new(server: Arc<Server>, id: ThreadIndex) -> std::io::Result<Self> {
        let reactor = Reactor::new()?;
        let seat = server
            .keyspace
            .slots
            .join()
            .ok_or_else(|| std::io::Error::other("the keyspace has no free thread index"))?;
        assert_eq!(
            seat.index(),
            id.get(),
            "workers join the keyspace first, in their order"
        );
        let link = server.worker(id);
        if link.waker.set(reactor.waker()).is_err() {
            return Err(std::io::Error::other("this worker runs already"));
        }
        let home_requester = server.scripting.running.new_requester();
        Ok(Worker {
            id,
            thread: ThreadState::new(server, ThreadIndex::new(seat.index())),
            seat,
            reactor,
            clients: ClientTable::default(),
            waits: Waits::default(),
            partial_replies: HashMap::new(),
            abandoned_parts: HashMap::new(),
            home_jobs: VecDeque::new(),
            has_timer_job: false,
            lent_jobs: Vec::new(),
            spare: None,
            is_in_meanwhile: false,
            postponed_events: Vec::new(),
            suspended_tokens: Vec::new(),
            home_requester,
            departures: BTreeMap::new(),
            plans: Plans::default(),
            ready_tokens: Vec::new(),
            has_progress: false,
            refused_turns: 0,
            delayed_tokens: Vec::new(),
            delayed_checked_ms: 0,
            buffers: Vec::new(),
            pooled_bytes: 0,
            published_pooled_bytes: 0,
            events: Vec::new(),
            mail: Vec::new(),
            is_expiring: false,
            has_announced_sleep: false,
            overloaded_worker: None,
            grace_period: None,
            next_sweep_ms: 0,
            next_random_move_ms: 0,
            has_clients_over_soft_limit: false,
            has_unused_input: false,
            pending_sends: PendingSends::new(),
            withheld_tokens: Vec::new(),
            should_sample_memory: false,
            has_excess_tracked_keys: false,
            has_own_arena: false,
            handshake_count: 0,
            delayed_answers: Vec::new(),
        })
    }

    /// Runs until [`Message::Stop`].
    ///
    /// # Panics
    /// When the system does not let it wait: a worker that ended would take its clients with it.
    pub fn run(mut self) {
        // Without a separate stack, a crash on this thread is reported without the backtrace.
        let _stack = AlternateStack::install();
        if !cfg!(feature = "simulated")
            && let Ok(schedstat) = File::open("/proc/thread-self/schedstat")
        {
            // Each worker runs once.
            let _ = self.thread.server.worker(self.id).schedstat.set(schedstat);
        }
        if self.id == HOME_WORKER {
            weft_modules::session::registry::become_home_thread();
        }
        let patience = loop {
            self.sleep_if_all_refused();
            self.announce_sleep();
            self.wait_for_events(self.next_timeout());
            self.announce_end_of_sleep();
            let start = Instant::now();
            let server = &self.thread.server;
            let began_ns = start.duration_since(server.lifecycle.started).as_nanos() as u64;
            server
                .worker(self.id)
                .turn_started_ns
                .store(began_ns, Ordering::Relaxed);
            self.pending_sends.since = start;
            self.run_turn();
            let busy_ns = start.elapsed().as_nanos() as u64;
            let server = &self.thread.server;
            server.worker(self.id).turn_started_ns.store(0, Ordering::Relaxed);
            let metrics = &server.stats.metrics;
            metrics.add(self.thread.thread_index, Counter::Turns, 1);
            metrics.add(self.thread.thread_index, Counter::BusyNs, busy_ns);
            metrics.raise(Maximum::LongestTurnNs, busy_ns);
            if let Some(patience) = self.grace_period {
                break patience;
            }
        };
        self.server().worker(self.id).note_end();
        self.finish_sending(Instant::now() + patience);
        let tokens: Vec<usize> = (0..self.clients.slots.len()).collect();
        for token in tokens {
            self.close(token);
        }
    }

    /// Lets modules know that the home worker is about to wait for events.
    fn announce_sleep(&mut self) {
        if self.id == HOME_WORKER && server_events::is_subscribed(EventKind::EventLoop) && self.home_jobs.is_empty() {
            self.has_announced_sleep = true;
            self.push_event_loop_event(false);
            self.run_home_jobs();
        }
    }

    /// Lets modules know that the home worker has waited, if they know that it was about to.
    fn announce_end_of_sleep(&mut self) {
        if std::mem::take(&mut self.has_announced_sleep) {
            self.push_event_loop_event(true);
        }
    }

    fn push_event_loop_event(&mut self, has_slept: bool) {
        let event = ServerEvent::EventLoop { has_slept };
        self.home_jobs.push_back(Box::new(move |home| {
            home.with_session(&mut |session| server_events::deliver(session, &event));
        }));
    }

    /// Sleeps for a moment if all remaining work waits for leases: the thread that holds them may need this core.
    fn sleep_if_all_refused(&mut self) {
        if self.has_progress || self.ready_tokens.is_empty() {
            self.refused_turns = 0;
            return;
        }
        self.refused_turns += 1;
        if let Some(sleep) = sleep_time(self.refused_turns) {
            weft_os::thread::sleep(sleep);
        }
    }

    fn wait_for_events(&mut self, timeout: Option<Duration>) {
        self.events.clear();
        if let Err(error) = self.reactor.wait(timeout, &mut self.events, MAX_CONNECTIONS_PER_TURN) {
            panic!("worker {}: waiting for events failed: {error}", self.id);
        }
    }

    /// Sends the outputs in flight until `deadline`. Nothing more is read.
    fn finish_sending(&mut self, deadline: Instant) {
        loop {
            let waiting = (0..self.clients.slots.len()).any(|token| self.in_flight_bytes(token) > 0);
            let left = deadline.saturating_duration_since(Instant::now());
            if !waiting || left.is_zero() {
                return;
            }
            self.wait_for_events(Some(left));
            for event in std::mem::take(&mut self.events) {
                match event {
                    Event::Readable(token) => self.reactor.pause(token),
                    Event::SendFailed(token) => self.close(token),
                    // The client may still read.
                    Event::Closed(_) => {}
                    Event::Writable(token) => {
                        self.continue_encrypting(token);
                    }
                    Event::Accepted(..) | Event::AcceptFailed(..) => {}
                }
            }
        }
    }

    fn server(&self) -> &Arc<Server> {
        &self.thread.server
    }

    /// Returns `true` if active expiry has to wait: data is loaded, writes are paused, a module gives way to clients in
    /// the middle of a command, or a worker has too much mail, perhaps about keys that expire.
    fn must_expiry_wait(&self, now_ms: u64) -> bool {
        let server = self.server();
        let is_full = |worker: ThreadIndex| server.worker(worker).is_mailbox_full();
        server.persistence.dumps.is_loading.load(Ordering::Relaxed)
            || server.clients.pause.are_writes_paused(now_ms)
            || server.is_module_giving_way()
            || self.overloaded_worker.is_some_and(is_full)
    }

    /// Returns the time that the worker may sleep: zero with work left, otherwise until its next task is due.
    fn next_timeout(&self) -> Option<Duration> {
        let paused = self.is_expiring && self.must_expiry_wait(unix_ms());
        if !self.ready_tokens.is_empty()
            || !self.postponed_events.is_empty()
            || (self.is_expiring && !paused)
            || self.has_excess_tracked_keys
            || self.thread.memory_limit.is_evicting
        {
            return Some(Duration::ZERO);
        }
        if !self.server().worker(self.id).mailbox.is_empty_hint() {
            return Some(Duration::ZERO);
        }
        let sweep = self.must_sweep().then_some(self.next_sweep_ms);
        let next_ms = [self.waits.next_due_ms(), sweep, self.next_random_move_ms()];
        let next_ms = next_ms.into_iter().flatten().min();
        let until_next = next_ms.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(unix_ms()).clamp(1, 1000)));
        // The end of the command that it waits for is mailed, and a script becomes overdue without mail.
        let delayed = (!self.delayed_answers.is_empty()).then_some(OVERDUE_CHECK_INTERVAL);
        let must_look_again = !self.thread.effects.removed_watches.is_empty()
            || !self.delayed_tokens.is_empty()
            || !self.home_jobs.is_empty()
            || (self.is_expiring && self.overloaded_worker.is_some());
        let look_again = must_look_again.then_some(Duration::from_millis(1));
        [
            self.waits.retry_pause(),
            look_again,
            until_next,
            delayed,
            self.module_timer_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the time until a timer of a module is due, on the home worker. There is none while a job for those that
    /// are due waits with the other jobs.
    fn module_timer_timeout(&self) -> Option<Duration> {
        let runs_timers = self.server().is_home(self.id) && !self.has_timer_job;
        let due_us = timers::next_due_us().filter(|_| runs_timers)?;
        Some(Duration::from_micros(due_us.saturating_sub(unix_us())))
    }

    fn run_turn(&mut self) {
        self.begin_turn();
        self.read_mail();
        self.run_home_jobs();
        if !self.delayed_answers.is_empty() {
            self.send_delayed_answers();
        }
        if !self.delayed_tokens.is_empty() && self.thread.now_ms != self.delayed_checked_ms {
            self.delayed_checked_ms = self.thread.now_ms;
            self.ready_tokens.append(&mut self.delayed_tokens);
        }
        let put_off = std::mem::take(&mut self.ready_tokens);
        for token in put_off {
            self.plan_requests(token);
            self.run_if_full();
        }
        let mut events = std::mem::take(&mut self.events);
        events.append(&mut self.postponed_events);
        for event in events.drain(..) {
            match event {
                Event::Readable(token) => {
                    self.receive(token);
                    self.run_if_full();
                }
                Event::Writable(token) => self.handle_write_completion(token),
                Event::Closed(token) => self.handle_half_close(token),
                Event::SendFailed(token) => self.handle_broken_connection(token),
                // Workers have no listeners.
                Event::Accepted(..) | Event::AcceptFailed(..) => {}
            }
        }
        self.events = events;
        self.run_batch();
        self.send_pending();
        self.clients.end_turn();
        self.end_due_waits();
        self.evict_clients();
        self.run_housekeeping();
        self.retry_unserved();
        self.finish_deliveries();
        self.publish_pooled_bytes();
        memory_limit::end_message_period(&mut self.thread);
        self.publish_wait_count();
        memory_limit::publish_balance(&mut self.thread);
        if std::mem::take(&mut self.should_sample_memory) {
            self.thread.server.memory.calibrate_unless_freeing();
            self.thread.server.request_eviction();
        }
        self.move_random_connections();
    }

    fn begin_turn(&mut self) {
        self.has_progress = false;
        self.handshake_count = 0;
        self.thread.begin_batch(unix_ms());
    }

    fn run_if_full(&mut self) {
        if self.plans.plans.len() >= MAX_PLANS_PER_BATCH {
            self.run_batch();
            self.send_pending_if_due();
        }
    }

    fn run_batch(&mut self) {
        if self.plans.plans.is_empty() {
            return;
        }
        self.send_pending_before_gate();
        self.catch_up_with_others();
        if self.thread.tunables.max_memory != 0 && !self.clients.tokens_with_messages.is_empty() {
            // Sent before the commands, which would evict keys for them.
            self.send_pending();
            self.finish_deliveries();
        }
        let executed = self.plans.plans.len() as u64;
        self.run_plans();
        self.server().stats.activities.end(self.thread.thread_index);
        self.server()
            .worker(self.id)
            .executed_commands
            .fetch_add(executed, Ordering::Relaxed);
        self.deliver_notifications();
        let tokens = std::mem::take(&mut self.plans.tokens);
        for (token, after) in std::mem::take(&mut self.clients.next_steps) {
            self.start_next_step(token, after);
        }
        for token in &tokens {
            self.finish_connection(*token);
        }
        self.plans.clear();
        self.plans.tokens = tokens;
        self.plans.tokens.clear();
        self.deliver_local_replies();
        self.delete_found_expired();
    }

    /// Returns `true` if a command of the planned batch may run in exclusive mode. One of a module that is declared to
    /// run elsewhere does, while modules have a part in all commands or get keyspace events at home.
    fn may_need_exclusive_mode(&self) -> bool {
        self.plans.may_need_exclusive_mode
            || (self.plans.has_module_commands
                && (home_commands::are_required() || HomeEvents::current().include_some()))
    }

    /// Runs the plans. If code of modules may run among them in exclusive mode, the worker keeps what it needs to serve
    /// its other connections meanwhile ([`meanwhile`]).
    fn run_plans(&mut self) {
        if !self.may_need_exclusive_mode() || !self.begin_meanwhile() {
            return batch::run_plans(&mut self.thread, &mut self.seat, &mut self.plans, &mut self.clients);
        }
        self.run_plans_with_meanwhile();
    }

    /// Takes the time and reads the mail again, after the requests of a batch were received. What another worker had
    /// replied when a client sent its request then comes before that request: a key that has expired there has expired
    /// here, and the messages sent with that reply are in front of this one.
    fn catch_up_with_others(&mut self) {
        self.thread.begin_batch(unix_ms());
        self.read_mail_sent_before_now();
    }

    fn delete_found_expired(&mut self) {
        if self.thread.effects.expired.is_empty() {
            return;
        }
        if self.thread.home_events.include_changes() {
            return self.thread.leave_expired_to_home();
        }
        if self.seat.gate_is_closing() {
            self.send_pending();
        }
        let thread = &mut self.thread;
        // Nothing may change during a pause, or on a replica. The remaining keys are found again later.
        expiry::delete_keys_found_expired(
            &thread.server.keyspace,
            &mut self.seat,
            thread.now_ms,
            &|| thread.server.may_delete_expired(thread.now_ms),
            &mut thread.effects,
            &mut |effects| {
                NotificationSender::new(&thread.server, effects, thread.thread_index).send_recorded_effects(None)
            },
        );
        free_removed_values(&mut thread.effects, &thread.server);
        thread.effects.log_writer.wake();
        thread.collect_ready_keys();
    }

    /// Runs what other threads have asked the home worker to run.
    fn run_home_jobs(&mut self) {
        if self.module_timer_timeout() == Some(Duration::ZERO) {
            self.has_timer_job = true;
            self.home_jobs.push_front(Box::new(|home| home.run_due_timers()));
        }
        if self.home_jobs.is_empty() {
            return;
        }
        self.send_pending_before_gate();
        // A command of a client that has caused jobs comes after them, so all those that are there run.
        let mut left = self.home_jobs.len();
        while left > 0 {
            let has_run = home::run_jobs(
                &mut self.thread,
                &mut self.seat,
                &mut self.home_jobs,
                &mut self.clients,
                self.home_requester,
            );
            // The timers are the first job.
            self.has_timer_job &= !has_run;
            left = match has_run {
                true => left.saturating_sub(home::MAX_JOBS_AT_ONCE).min(self.home_jobs.len()),
                false => 0,
            };
        }
        self.server().stats.activities.end(self.thread.thread_index);
        self.deliver_notifications();
        self.deliver_module_waits();
        self.deliver_local_replies();
        self.delete_found_expired();
    }

    /// Ends a connection's part of a batch: discards executed bytes, notes its replies, plans its next turn.
    fn finish_connection(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.is_in_batch = false;
        self.has_progress |= connection.consumed != connection.consumed_before_batch;
        let waits = connection.state == ConnectionState::Deferred
            || (connection.state == ConnectionState::Ready && connection.has_more_requests);
        let patient = connection.lease_failures > FAILURES_BEFORE_DELAY || connection.full_mailbox.is_some();
        if waits && patient {
            self.delayed_tokens.push(token);
        } else if waits {
            self.ready_tokens.push(token);
        }
        self.release_input_buffer(token);
        self.describe_client_if_changed(token);
        if let Some(connection) = self.clients.connection(token) {
            self.pending_sends.add(token, connection.output.bytes.len());
        }
    }
}

/// Returns the time to sleep after this number of turns in which all leases were refused.
fn sleep_time(refused_turns: u32) -> Option<Duration> {
    let doublings = refused_turns.checked_sub(REFUSED_TURNS_BEFORE_SLEEP)?;
    Some((MIN_SLEEP * 2u32.pow(doublings.min(10))).min(MAX_SLEEP))
}

/// The part of a worker in the answer to a query, which waits for commands of clients that the query has killed.
struct DelayedAnswer {
    query: Arc<SentQuery>,
    part: WorkerAnswer,
    commands: Vec<Arc<KillMark>>,
}

impl ClientVisitor for Worker {
    fn visit_clients(&mut self, visit: &mut dyn FnMut(&mut Client, BufferFigures)) {
        for token in 0..self.clients.slots.len() {
            if let Some(buffers) = self.buffer_figures(token)
                && let Some(connection) = self.clients.connection(token)
            {
                visit(&mut connection.client, buffers);
            }
        }
    }

    fn unblock_client(&mut self, id: ClientId, with_error: bool) -> bool {
        let can_be_unblocked = self.waits.client_wait(id).is_some_and(ClientWait::can_be_unblocked);
        can_be_unblocked && self.end_wait_without_event(id, with_error)
    }
}

#[cfg(test)]
mod tests;
