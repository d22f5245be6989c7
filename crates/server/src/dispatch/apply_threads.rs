//! Threads that apply the stream of a primary together with the thread of the link.
//!
//! ```text
//!   link's thread:  plan round 1 | enter, lend, plan round 2, run parts, wait, backlog, leave | enter, lend, …
//!   apply threads:               |        └─▶ run parts ──────────────────┘                   |        └─▶ …
//! ```
//!
//! 1. A *round* is a piece of the stream whose commands each write the keys of one slot ([`may_run_in_round`]). A round
//!    is divided into parts by slot, and a part is run by one thread in the order of the stream. The next round begins
//!    when all parts have run. So every slot sees its commands in the order of the stream.
//! 2. Every other command is a barrier: the link's thread runs it after all earlier ones and before all later ones.
//! 3. A part belongs to no thread: a thread that is free takes the next one, the link's thread too. So a round is over
//!    even if no apply thread gets a core meanwhile.
//! 4. A round runs within one passage of the gate, that of the link's thread, which lends it to the apply threads
//!    ([`PassageLoan`]). They never wait at the gate. So the bytes of the round go into the backlog before another
//!    thread can have exclusive mode, and no apply thread sleeps behind a closer that waits for the link's thread.
//! 5. A thread that is refused a lease tries again and runs no other command of the part first. It waits for holders of
//!    leases only, which are inside the gate as well. It waits for pinned values as long as no thread closes the gate,
//!    and copies them then, because the thread that unpins them may sleep at the gate.
//! 6. What ends a passage (another role, another primary) happens in exclusive mode, so it comes before a round or
//!    after it. A pause of clients that begins during a round does not concern it, since the one of a shutdown begins
//!    outside exclusive mode. A round that must not begin is planned again later, by the caller.
//! 7. At most two rounds are in memory: the one that runs and the one that is planned. Requests that are long are
//!    barriers, so a round is short.
//! 8. A thread that panics ends its part. The link's thread passes the panic on when the round is over.
//! 9. A part may wait for as long as a script runs. The link's thread then goes on to call `while_waiting`, which shows
//!    the primary that this replica lives.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, LogSequence, ThreadIndex};
use weft_command_table::registry::Command;
use weft_config::{Config, id};
use weft_os::sync::{Condvar, Mutex};
use weft_os::thread::{Builder, JoinHandle};
use weft_sync::PassageLoan;

use crate::commands::context::{Binding, NextStep};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{GatePassage, Seat, Slot, SlotHeader};
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::{NotificationSender, wake_workers};
use crate::observability::metrics::Counter;
use crate::observability::{log, memory};
use crate::state::{Message, Server};
use weft_os::atomic::Ordering;

use super::batch::{self, BatchConnections};
use super::plan::{CommandPlan, Plans, RequestKind};
use super::replay_threads::is_local;
use super::replies::first_error;
use super::thread::ThreadState;

/// The first pause after a refusal; it doubles up to [`MAX_RETRY_PAUSE`].
pub(super) const MIN_RETRY_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause after a refusal.
pub(super) const MAX_RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The maximum number of threads that apply a stream, unless the configuration says otherwise. The link's thread cannot
/// plan for more.
const MAX_THREADS: usize = 4;
/// The number of parts of a round for each thread. With more of them the threads end at about the same time.
const PARTS_PER_THREAD: usize = 4;
/// The length in bytes of a request that is too long for a round.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// The number of commands from which it is worth waking the apply threads for a round.
const MIN_COMMANDS_TO_WAKE: usize = if cfg!(feature = "simulated") { 2 } else { 128 };
/// The interval at which the link's thread calls `while_waiting` while apply threads run their parts.
const WAIT_INTERVAL: Duration = Duration::from_millis(100);
/// The capacity in bytes of a part above which its memory is freed after the round.
const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Returns the number of threads that apply the stream of a primary, the link's thread included.
pub fn count(config: &Config, workers: usize) -> usize {
    let configured = config.unsigned(id::REPLICA_APPLY_THREADS) as usize;
    if configured > 0 {
        return configured;
    }
    let cores = match cfg!(feature = "simulated") {
        true => MAX_THREADS,
        false => weft_os::thread::available_parallelism().map_or(1, usize::from),
    };
    workers.min(cores).clamp(1, MAX_THREADS)
}

/// Returns `true` if a command outside transactions may run in a round: it writes the keys of one slot, and nothing
/// else that it does depends on other commands.
pub(super) fn may_run_in_round(
    plan: &CommandPlan,
    command: &Command<Binding>,
    binding: Binding,
    keys: &[PlannedKey],
) -> bool {
    // MIGRATE waits for another server.
    is_local(command, binding, keys) && plan.end - plan.start <= MAX_REQUEST_BYTES && command.full_name != "migrate"
}

/// Returns the database that a request selects, if it is a valid SELECT.
pub(super) fn selected_db(server: &Server, plan: &CommandPlan, plans: &Plans, input: &[u8]) -> Option<DbIndex> {
    let RequestKind::Command(command, _) = plan.kind else {
        return None;
    };
    if command.full_name != "select" {
        return None;
    }
    let number = weft_resp::number::parse_i64(plan.args_of(&plans.ranges, input).argument(1))?;
    DbIndex::parse(number, server.config.databases())
}

/// Commands of a round on some of its slots, in the order of the stream.
#[derive(Default)]
pub(super) struct StreamPart {
    /// The requests.
    bytes: Vec<u8>,
    /// The plans. The token of each is the database of its command.
    plans: Plans,
}

impl StreamPart {
    /// Adds the command with this index among `plans`, whose requests lie in `input`.
    pub fn push(&mut self, db: DbIndex, input: &[u8], plans: &Plans, index: usize) {
        let plan = &plans.plans[index];
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&input[plan.start..plan.end]);
        let own = &mut self.plans;
        let (first_range, first_key) = (own.ranges.len() as u32, own.keys.len() as u32);
        own.ranges.extend_from_slice(plan.ranges_of(&plans.ranges));
        own.keys.extend_from_slice(&plans.keys[plan.key_range()]);
        let first_probe = index.checked_sub(1).map_or(0, |before| plans.plans[before].probes_end);
        own.probes
            .extend_from_slice(&plans.probes[first_probe as usize..plan.probes_end as usize]);
        own.plans.push(CommandPlan {
            token: db.get(),
            start,
            end: self.bytes.len(),
            args: first_range..own.ranges.len() as u32,
            keys: first_key..own.keys.len() as u32,
            probes_end: own.probes.len() as u32,
            kind: plan.kind,
        });
    }

    /// Removes all commands.
    pub fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > MAX_KEPT_BYTES {
            self.bytes = Vec::new();
        }
        self.plans.clear();
    }
}

/// Runs parts on behalf of the primary.
pub(super) struct PartRunner {
    connection: Connection,
}

/// The only connection of a part.
struct PartConnection<'a> {
    connection: &'a mut Connection,
    server: &'a Arc<Server>,
}

impl BatchConnections for PartConnection<'_> {
    fn connection(&mut self, token: usize) -> Option<&mut Connection> {
        self.connection.client.db = DbIndex::new(token);
        Some(self.connection)
    }

    fn start_next_step(&mut self, _: usize, after: NextStep) {
        match after {
            NextStep::AwaitServing(withheld) => {
                send_unserved(self.server, withheld.0);
            }
            NextStep::Background(_) => unreachable!("a command on one slot does no work without its leases"),
            // No client receives the reply.
            _ => {}
        }
    }

    fn notify(&mut self, thread: &mut ThreadState) {
        // The threads that apply a stream have no clients of their own, so everything is sent by mail.
        wake_workers(&thread.server, &mut thread.effects);
    }
}

impl PartRunner {
    /// Creates a runner on behalf of `client`, which represents the primary.
    pub fn new(client: Client) -> Self {
        PartRunner {
            connection: Connection::new(client),
        }
    }

    /// Runs the commands of a part and empties it. Calls `while_waiting` again and again while the part waits for a
    /// lease. Returns the number of commands that have ended, or `None` if the rest will never get its leases, because
    /// the process is about to end.
    fn run(
        &mut self,
        thread: &mut ThreadState,
        pass: &GatePassage<'_>,
        part: &mut StreamPart,
        now_ms: u64,
        while_waiting: &mut dyn FnMut(),
    ) -> Option<u64> {
        thread.begin_batch(now_ms);
        // The primary limits the memory, not this server.
        thread.tunables.max_memory = 0;
        thread.is_in_round = true;
        let server = thread.server.clone();
        let connection = &mut self.connection;
        connection.client.login.refresh(&server.acl);
        std::mem::swap(&mut connection.input, &mut part.bytes);
        for key in &part.plans.keys {
            // The planner has fetched these lines for another core.
            pass.domain().prefetch(key.slot.index());
        }
        connection.consumed = 0;
        connection.planned_to = connection.input.len();
        let mut pause = MIN_RETRY_PAUSE;
        let is_complete = loop {
            let before = connection.consumed;
            let first = part.plans.plans.partition_point(|plan| plan.start < before);
            let mut only = PartConnection {
                connection,
                server: &server,
            };
            batch::run_plans_within(thread, pass, &mut part.plans, first, &mut only);
            if connection.consumed == connection.input.len() {
                break true;
            }
            assert!(
                !connection.client.flags.intersects(ClientFlags::CLOSING),
                "a command on one slot does not close the link"
            );
            connection.state = ConnectionState::Ready;
            if server.scripting.running.has_unfinished_unit() {
                // A stopped script keeps its leases. The end of the process may wait for the gate.
                break false;
            }
            if connection.consumed > before {
                pause = MIN_RETRY_PAUSE;
            }
            weft_os::thread::sleep(pause);
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
            thread.now_ms = unix_ms();
            while_waiting();
        };
        finish_batch(thread, connection);
        thread.is_in_round = false;
        std::mem::swap(&mut connection.input, &mut part.bytes);
        (connection.consumed, connection.planned_to) = (0, 0);
        part.clear();
        let commands = std::mem::take(&mut connection.client.commands);
        is_complete.then_some(commands)
    }
}

/// Creates the state of a thread that runs commands of a primary.
pub(super) fn replicated_thread(server: &Arc<Server>, thread_index: ThreadIndex) -> ThreadState {
    let mut thread = ThreadState::new(server.clone(), thread_index);
    (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
    thread
}

/// Hands keys that are ready, and whose waiting clients could not be served, to a worker.
pub(super) fn send_unserved(server: &Server, unserved: crate::state::UnservedKeys) {
    server.worker(ThreadIndex::FIRST).send(Message::ServeWaiters(unserved));
}

/// Completes a batch of commands of a primary after their leases have ended.
pub(super) fn finish_batch(thread: &mut ThreadState, connection: &mut Connection) {
    let server = thread.server.clone();
    // A client that is served now may cause others to ask for what has changed.
    NotificationSender::new(&server, &mut thread.effects, thread.thread_index).send_broadcasts();
    // Includes keys whose waiters could not be served immediately.
    thread.collect_ready_keys();
    for unserved in thread.unserved.drain(..) {
        send_unserved(&server, unserved);
    }
    wake_workers(&server, &mut thread.effects);
    thread.effects.outbox.clear();
    thread.effects.expired.clear();
    // A command that has written its error by itself is the last one of the batch, as far as is known.
    let failed = thread.failed_command.take().unwrap_or(connection.client.last_command);
    if let Some(error) = first_error(&connection.output.bytes) {
        server.replication.unexpected_errors.fetch_add(1, Ordering::Relaxed);
        log::warning!(
            "== CRITICAL == This replica is sending an error to its primary: '{}' after processing the command '{}'",
            String::from_utf8_lossy(error),
            failed
        );
        let is_copy = server.config.boolean(id::REPLICA_READ_ONLY);
        assert!(
            !is_copy || server.config.choice(id::PROPAGATION_ERROR_BEHAVIOR) == "ignore",
            "This replica panicked sending an error to its primary after processing the command '{}'",
            failed
        );
    }
    connection.output.clear();
}

/// What the threads share.
struct Pool {
    server: Arc<Server>,
    loan: PassageLoan<SlotHeader, Slot>,
    round: Mutex<RoundState>,
    /// There are parts to run, or the stream has ended.
    has_parts: Condvar,
    /// The last part that an apply thread ran is over.
    is_idle: Condvar,
}

/// The state of the current round.
#[derive(Default)]
struct RoundState {
    now_ms: u64,
    /// The parts that no thread has taken.
    waiting: Vec<StreamPart>,
    /// The number of parts that apply threads run.
    running: usize,
    /// The empty parts.
    finished: Vec<StreamPart>,
    figures: RoundFigures,
    /// The first panic of an apply thread.
    panic: Option<Box<dyn Any + Send>>,
    is_closed: bool,
}

/// What is known of a round that has run.
#[derive(Clone, Copy, Default)]
pub(super) struct RoundFigures {
    /// The number of commands that have ended.
    pub commands: u64,
    /// The last position in the propagation log that one of the threads has taken.
    pub last_sequence: LogSequence,
    /// A worker to which one of the threads has sent more mail than it can read at the moment.
    pub overloaded_worker: Option<ThreadIndex>,
    /// `true` if some commands have not run, and never will: the process is about to end.
    pub is_incomplete: bool,
}

impl RoundState {
    /// Records the end of a part: the number of commands that have ended, or `None` if some never will.
    fn end_part(&mut self, part: StreamPart, commands: Option<u64>, thread: &mut ThreadState) {
        self.finished.push(part);
        let figures = &mut self.figures;
        figures.commands += commands.unwrap_or(0);
        figures.is_incomplete |= commands.is_none();
        thread.effects.set_full_mailbox_aside();
        figures.overloaded_worker = thread.effects.overloaded_worker.take().or(figures.overloaded_worker);
        figures.last_sequence = figures.last_sequence.max(thread.effects.log_writer.last_sequence());
    }
}

/// Waits at the end of a round for the apply threads, also if the link's thread panics.
struct RoundEnd<'p>(&'p Pool);

impl Drop for RoundEnd<'_> {
    fn drop(&mut self) {
        let mut round = self.0.round.lock();
        round.waiting.clear();
        while round.running > 0 {
            self.0.is_idle.wait(&mut round);
        }
    }
}

/// The apply threads of a link. Dropping it ends them.
pub(super) struct ApplyThreads {
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl ApplyThreads {
    /// Starts threads so that `count` of them apply the stream, with the calling thread. There are fewer if the system
    /// refuses a thread, or no seat is left at the keyspace. `client` creates a client that represents the primary.
    pub fn start(server: &Arc<Server>, count: usize, client: impl Fn() -> Client) -> Self {
        let pool = Arc::new(Pool {
            server: server.clone(),
            loan: PassageLoan::new(&server.keyspace.slots),
            round: Mutex::new(RoundState::default()),
            has_parts: Condvar::new(),
            is_idle: Condvar::new(),
        });
        let start = |index: usize| {
            let seat = server.keyspace.slots.join()?;
            let (pool, runner) = (pool.clone(), PartRunner::new(client()));
            Builder::new()
                .name(format!("weft-apply-{index}"))
                .spawn(move || run_thread(&pool, seat, runner))
                .ok()
        };
        let threads = (1..count).map_while(start).collect();
        ApplyThreads { pool, threads }
    }

    /// The number of parts into which a round is divided; 0 if no thread was started.
    pub fn part_count(&self) -> usize {
        match self.threads.len() {
            0 => 0,
            started => (started + 1) * PARTS_PER_THREAD,
        }
    }

    /// Runs the `commands` commands in `parts` in the passage `pass`, on this and the other threads, and empties the
    /// parts. The calling thread calls `meanwhile` before it runs parts itself, and `while_waiting` again and again
    /// while it waits for a lease or for the other threads. That function must not wait.
    ///
    /// # Panics
    /// With the panic of an apply thread, if there was one.
    pub fn run_round(
        &self,
        pass: &GatePassage<'_>,
        (parts, commands): (&mut Vec<StreamPart>, usize),
        (thread, runner): (&mut ThreadState, &mut PartRunner),
        meanwhile: impl FnOnce(),
        while_waiting: &mut dyn FnMut(),
    ) -> RoundFigures {
        let pool = &*self.pool;
        let now_ms = thread.now_ms;
        pass.lend(&pool.loan, || {
            let mut round = pool.round.lock();
            round.now_ms = now_ms;
            let (filled, empty): (Vec<_>, Vec<_>) = parts.drain(..).partition(|part| !part.bytes.is_empty());
            (round.waiting, round.finished) = (filled, empty);
            round.figures = RoundFigures::default();
            drop(round);
            let end = RoundEnd(pool);
            if commands >= MIN_COMMANDS_TO_WAKE {
                pool.has_parts.notify_all();
            }
            meanwhile();
            loop {
                let next = pool.round.lock().waiting.pop();
                let Some(mut part) = next else {
                    break;
                };
                let ended = runner.run(thread, pass, &mut part, now_ms, while_waiting);
                pool.round.lock().end_part(part, ended, thread);
            }
            pool.wait_for_apply_threads(while_waiting);
            drop(end);
        });
        let mut round = pool.round.lock();
        parts.append(&mut round.finished);
        if let Some(panic) = round.panic.take() {
            drop(round);
            resume_unwind(panic);
        }
        round.figures
    }
}

impl Drop for ApplyThreads {
    fn drop(&mut self) {
        self.pool.round.lock().is_closed = true;
        self.pool.has_parts.notify_all();
        for thread in self.threads.drain(..) {
            // Its panic was passed on with its round.
            let _ = thread.join();
        }
    }
}

impl Pool {
    /// Waits for a part to run. Returns it with the time of its round, or `None` if the stream has ended.
    fn wait_for_part(&self) -> Option<(StreamPart, u64)> {
        let mut round = self.round.lock();
        loop {
            if round.is_closed {
                return None;
            }
            if let Some(part) = round.waiting.pop() {
                round.running += 1;
                return Some((part, round.now_ms));
            }
            self.has_parts.wait(&mut round);
        }
    }

    /// Waits until no apply thread runs a part. Calls `while_waiting` again and again meanwhile.
    fn wait_for_apply_threads(&self, while_waiting: &mut dyn FnMut()) {
        loop {
            let mut round = self.round.lock();
            if round.running > 0 {
                self.is_idle.wait_for(&mut round, WAIT_INTERVAL);
            }
            if round.running == 0 {
                return;
            }
            drop(round);
            while_waiting();
        }
    }
}

/// Runs parts until the stream ends.
fn run_thread(pool: &Pool, mut seat: Seat, mut runner: PartRunner) {
    let mut thread = replicated_thread(&pool.server, ThreadIndex::new(seat.index()));
    while let Some((mut part, now_ms)) = pool.wait_for_part() {
        memory::use_own_arena();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let pass = seat.enter_lent(&pool.loan);
            let pass = pass.expect("the link's thread lends its passage until all parts of the round are over");
            let commands = runner.run(&mut thread, &pass, &mut part, now_ms, &mut || {});
            let metrics = &pool.server.stats.metrics;
            metrics.add(thread.thread_index, Counter::ApplyThreadCommands, commands.unwrap_or(0));
            commands
        }));
        pool.server.stats.activities.end(thread.thread_index);
        let mut round = pool.round.lock();
        let has_panicked = ended.is_err();
        match ended {
            Ok(commands) => round.end_part(part, commands, &mut thread),
            Err(panic) => {
                round.panic.get_or_insert(panic);
            }
        }
        round.running -= 1;
        if round.running == 0 {
            pool.is_idle.notify_one();
        }
        drop(round);
        if has_panicked {
            return;
        }
    }
}
