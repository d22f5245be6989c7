//! Long commands leave their worker: a background thread runs them on a copy of the request.
//!
//! ```text
//!   worker                                       background thread
//!   ──────                                       ─────────────────
//!   run: leases, handler
//!     handler: ctx.leaves_worker(estimate)
//!     snapshot of the keys, if possible
//!   the leases end, reply and counts are undone
//!   DetachedCommand = request, keys, client's view ──▶  on the snapshot, outside the gate:
//!   the connection parks                           the same handler, which stays ──▶ only reads: done
//!   ... other connections go on ...                │ stores
//!                                                  ▼
//!                                                enter the gate, leases, all or nothing ──▶ refused: sleep, retry
//!                                                all as in the snapshot? ─ yes ─▶ store what the handler stored
//!                                                  │ no
//!                                                  ▼
//!                                                under leases: the same handler from start to end
//!   the connection goes on               ◀─────  reply and counts
//! ```
//!
//! 1. A handler decides before it has changed anything, from sizes that it has looked up.
//! 2. A command with very many keys does not even take its leases on the worker: see `has_many_keys` in `leased.rs`.
//! 3. The run on the background thread is the one that is recorded: reply, error, calls, time, hits.
//! 4. The background thread has a copy of what handlers read of a client. A handler that changes its client never
//!    leaves the worker.
//! 5. Between two attempts the thread holds no lease, so no other thread waits for it. After [`REQUEUE_AFTER`] of
//!    refused attempts it moves the command to the end of the queue. There are only a few background threads, and
//!    another command in the queue may hold what this one waits for, such as a snapshot. A command that a pause holds
//!    back is put into the queue when the pause ends. A command whose result on a
//!    snapshot cannot be stored moves to that queue as well. From then on no value of the
//!    command's keys may be pinned until the command has run, so that later readers cannot overtake it for ever.
//! 6. Before each attempt the command is admitted again, within the same passage of the gate. Much may have changed
//!    since its worker admitted it: writes may be paused, this server may be a replica, slots may have moved, the user
//!    may have lost a permission, or the client may have been killed. The first four happen in exclusive mode, so the
//!    command writes nothing after such a change has been acknowledged.
//!
//! # Atomicity
//!
//! A command that only reads answers from the state in which its worker held all leases. Its linearization point is
//! that moment, which lies between request and reply. The same holds for a command that fails or finds nothing to
//! change.
//!
//! A command that stores takes effect when it holds its leases for the second time. It computed its writes and its
//! reply from the snapshot. Under the second leases every key that it has read is the same as in the snapshot. Of its
//! other keys the handler used only whether they exist, and that is the same too. The handler, run from start to end
//! under these leases, would therefore have stored and replied the same, and no client can observe a difference. A key
//! that had another value in between makes no difference: a pinned value is neither changed nor freed, so the same
//! object is the same value.
//!
//! If anything differs, the result is discarded and the handler runs again under leases from start to end. Commands
//! without a snapshot run that way from the beginning: those that change their keys in place, that have many keys, or
//! that reach keys that are not in the plan. Every command therefore ends, whatever other clients do.
//!
//! The threads for commands on snapshots have a lower scheduling priority than the workers. They hold leases only while
//! they store, so a worker that needs these slots waits briefly. The threads that run commands under leases have the
//! priority of the workers: on a busy machine, clients of the leased slots would otherwise wait for a thread that
//! rarely runs.

use std::sync::Arc;
use std::time::Duration;

use weft_base::{ParkedClient, ThreadIndex};
use weft_resp::ArgRange;

use crate::commands::context::{Binding, CommandResult, Context, HandlerMode, NextStep};
use crate::commands::error::CommandError;
use crate::keyspace::GatePassage;
use crate::keyspace::Seat;
use crate::keyspace::access::{HeldLeases, KeySnapshot, Lease, has_written, record_misses};
use crate::keyspace::effects::{Change, Effects, Hooks};
use crate::keyspace::expiry;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::pinned::SlotReservation;
use crate::net::client::Client;
use crate::net::client_snapshot::TransactionFigures;
use crate::net::connection::Connection;
use crate::notify::messages::{MAX_FULL_MAILBOX_WAIT, NotificationSender, wait_for_full_mailbox, wake_workers};
use crate::propagation::RewrittenCommands;
use crate::replication::ReplicationState;
use crate::state::{BackgroundJob, DetachedResult, Message, Server};
use weft_base::clock::unix_ms;
use weft_command_table::registry::Command;
use weft_os::time::Instant;

use super::accounting::{record_denial, write_error};
use super::admit::{Admission, admit, admit_script};
use super::effects::free_removed_values;
use super::execute::{apply_effects, reply_redirection, run_handler, run_with_handler};
use super::expired_sources;
use super::pins;
use super::plan::{CommandPlan, RequestKind};
use super::request::{Outcome, Request};
use super::script_flags;
use super::thread::{LeasedCall, ThreadState};

/// The first pause after refused leases. It doubles up to [`MAX_RETRY_PAUSE`].
const MIN_RETRY_PAUSE: Duration = Duration::from_micros(20);
/// The time of refused attempts after which a command gives way to other commands of the queue.
const REQUEUE_AFTER: Duration = Duration::from_millis(5);
/// The time for which results computed on a snapshot wait for their leases before they are discarded and computed under
/// leases.
const DRAFT_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest pause after refused leases.
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Runs a command under the leases of its keys, in one passage of the gate. The code that detaches a command passes the
/// function that runs it, because such functions detach commands themselves.
pub type RunLeased = for<'p> fn(
    &mut ThreadState,
    &'p GatePassage<'p>,
    &Request<'_>,
    &mut [PlannedKey],
    &mut Vec<Lease<'p>>,
    &mut Connection,
) -> Outcome;

/// Runs a command on a script thread, in exclusive mode, which the function takes itself.
pub type RunExclusive = fn(&mut ThreadState, &mut Seat, &Request<'_>, &mut Connection) -> Outcome;

/// A command that is handed to a background thread.
pub struct DetachedCommand {
    command: &'static Command<Binding>,
    binding: Binding,
    request: Vec<u8>,
    ranges: Vec<ArgRange>,
    keys: Vec<PlannedKey>,
    snapshot: Option<Box<KeySnapshot>>,
    client: Client,
    /// Runs the command under its leases.
    run_leased: RunLeased,
    /// Set if the command runs in exclusive mode instead.
    run_exclusive: Option<RunExclusive>,
    /// The number of refused attempts so far.
    failures: u32,
    /// Set once the command has been moved to the end of the queue: no value of its keys may be pinned until it has
    /// run.
    reservation: Option<SlotReservation>,
}

/// The result of one turn on a background thread.
enum JobOutcome {
    /// The command has run.
    Completed(Box<DetachedResult>),
    /// The leases were refused for [`REQUEUE_AFTER`]: the command is moved to the end of the queue.
    Requeue(Box<DetachedCommand>),
    /// MIGRATE is sending a key of the command: it is put into the queue again once `PinnedSlots::thaws` has changed
    /// from this value.
    AwaitThaw(u64, Box<DetachedCommand>),
    /// A pause holds the command back: it is put into the queue again once `Pause::resumptions` has changed from this
    /// value.
    AwaitResumption(u64, Box<DetachedCommand>),
}

impl DetachedCommand {
    /// Copies the parts of a request that the background thread needs.
    #[cold]
    pub fn new(
        request: &Request<'_>,
        keys: &[PlannedKey],
        snapshot: Option<Box<KeySnapshot>>,
        connection: &mut Connection,
        run_leased: RunLeased,
    ) -> Box<Self> {
        let plan = request.plan;
        Box::new(DetachedCommand {
            command: request.command,
            binding: request.binding,
            request: connection.input[plan.start..plan.end].to_vec(),
            ranges: plan.ranges_of(request.ranges).to_vec(),
            keys: keys.to_vec(),
            snapshot,
            client: connection.client.detached_view(),
            run_leased,
            run_exclusive: None,
            failures: 0,
            reservation: None,
        })
    }

    /// Sets the function that runs the command on a script thread, in exclusive mode instead of under its leases.
    pub fn set_exclusive_run(&mut self, run: RunExclusive) {
        self.run_exclusive = Some(run);
    }

    /// Moves the client's transaction, which EXEC runs, and its watches to the command. Until EXEC has ended, reports
    /// on clients show the client inside its transaction.
    pub fn take_transaction(&mut self, client: &mut Client) {
        client.transaction_figures = Some(Box::new(TransactionFigures {
            // EXEC ends the watches before the first command.
            watched: 0,
            is_dirty: false,
            ..client.current_transaction_figures()
        }));
        self.client.transaction = client.transaction.take();
        self.client.watches = client.watches.take();
    }

    /// Creates the job that runs the command and sends its result to the worker of the client.
    pub fn into_job(self: Box<Self>, requester: ParkedClient) -> BackgroundJob {
        Box::new(move |server, seat| match self.run(server, seat, requester.worker) {
            JobOutcome::Completed(result) => send_result(server, requester, result),
            JobOutcome::Requeue(command) => {
                // Sending fails only while the process ends.
                let _ = server.background.long_commands.send(command.into_job(requester));
            }
            JobOutcome::AwaitThaw(thaws, command) => {
                let send = server.background.long_commands.send_later(command.into_job(requester));
                server.keyspace.pinned.run_after_thaw(thaws, send);
            }
            JobOutcome::AwaitResumption(resumptions, command) => {
                let send = server.background.long_commands.send_later(command.into_job(requester));
                server.clients.pause.run_after_resumption(resumptions, send);
            }
        })
    }

    /// Creates the job that runs the script on a script thread.
    pub fn into_script_job(self: Box<Self>, requester: ParkedClient) -> BackgroundJob {
        Box::new(
            move |server, seat| match self.run_script(server, seat, requester.worker) {
                JobOutcome::Completed(result) => send_result(server, requester, result),
                JobOutcome::Requeue(command) => {
                    let _ = server.background.scripts.send(command.into_script_job(requester));
                }
                JobOutcome::AwaitThaw(thaws, command) => {
                    let send = server.background.scripts.send_later(command.into_script_job(requester));
                    server.keyspace.pinned.run_after_thaw(thaws, send);
                }
                JobOutcome::AwaitResumption(resumptions, command) => {
                    let send = server.background.scripts.send_later(command.into_script_job(requester));
                    server.clients.pause.run_after_resumption(resumptions, send);
                }
            },
        )
    }

    fn run_script(self, server: &Arc<Server>, seat: &mut Seat, worker: ThreadIndex) -> JobOutcome {
        let running = &server.scripting.running;
        let (run_leased, run_exclusive) = (self.run_leased, self.run_exclusive);
        let mut thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
        thread.for_script = true;
        let mut start = running.start_on_script_thread();
        self.run_attempts(thread, seat, worker, &mut |thread, seat, request, keys, connection| {
            if let Some(run_exclusive) = run_exclusive {
                return run_exclusive(thread, seat, request, connection);
            }
            if !start.try_begin() {
                return Outcome::Contended;
            }
            let outcome = attempt_under_leases(run_leased, thread, seat, request, keys, connection);
            running.end_on_script_thread();
            let failures = Some(connection.lease_failures);
            refuse_behind_overdue_script(thread, request, keys, connection, outcome, failures)
        })
    }

    fn run(self, server: &Arc<Server>, seat: &mut Seat, worker: ThreadIndex) -> JobOutcome {
        let thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
        let run_leased = self.run_leased;
        self.run_attempts(thread, seat, worker, &mut |thread, seat, request, keys, connection| {
            let outcome = attempt_under_leases(run_leased, thread, seat, request, keys, connection);
            refuse_behind_overdue_script(thread, request, keys, connection, outcome, None)
        })
    }

    fn run_attempts(
        mut self,
        mut thread: ThreadState,
        seat: &mut Seat,
        worker: ThreadIndex,
        attempt: &mut CommandAttempt<'_>,
    ) -> JobOutcome {
        assert_eq!(
            thread.thread_index,
            ThreadIndex::new(seat.index()),
            "a thread counts in the row of its seat"
        );
        thread.may_leave = false;
        let plan = CommandPlan {
            token: 0,
            start: 0,
            end: self.request.len(),
            args: 0..self.ranges.len() as u32,
            keys: 0..self.keys.len() as u32,
            probes_end: 0,
            kind: RequestKind::Command(self.command, self.binding),
        };
        let request = Request {
            plan: &plan,
            command: self.command,
            binding: self.binding,
            ranges: &self.ranges,
        };
        let mut connection = Connection::new(self.client);
        connection.input = self.request;
        connection.lease_failures = self.failures;
        let keys = &mut self.keys;
        let had_snapshot = self.snapshot.is_some();
        let on_snapshot = (self.snapshot)
            .and_then(|snapshot| run_on_snapshot(&mut thread, seat, &request, keys, *snapshot, &mut connection));
        let ended = match on_snapshot {
            Some(after) => Some(after),
            // This thread has a low priority, and must not hold leases for long.
            None if had_snapshot => None,
            None => run_under_leases(&mut thread, seat, &request, keys, &mut connection, attempt),
        };
        finish_attempts(&mut thread, seat, worker, &mut connection, ended.is_some());
        let Some(next_step) = ended else {
            let awaited_thaw = connection.awaited_thaw;
            let command = Box::new(DetachedCommand {
                request: connection.input,
                snapshot: None,
                client: connection.client,
                failures: connection.lease_failures,
                ..self
            });
            return command.put_off(&thread, awaited_thaw);
        };
        JobOutcome::Completed(Box::new(DetachedResult {
            output: connection.output,
            next_step,
            log_sequence: connection.client.last_write_sequence,
            db: connection.client.db,
            commands: connection.client.commands,
            is_abandoned: thread.is_unit_unfinished,
        }))
    }

    /// Decides how a command goes on that has not run: at the end of the queue, or after MIGRATE or a pause. A command
    /// that waits for one of these does not keep others from the slots of its other keys.
    fn put_off(mut self: Box<Self>, thread: &ThreadState, awaited_thaw: Option<u64>) -> JobOutcome {
        let reservation = self.reservation.take();
        if let Some(thaws) = awaited_thaw {
            return JobOutcome::AwaitThaw(thaws, self);
        }
        if let Some(resumptions) = thread.awaited_resumption {
            return JobOutcome::AwaitResumption(resumptions, self);
        }
        self.reservation = reserve_slots(&thread.server, thread, &self.keys, reservation);
        JobOutcome::Requeue(self)
    }
}

/// Publishes the effects of attempts to run a command, which has ended or not.
fn finish_attempts(
    thread: &mut ThreadState,
    seat: &mut Seat,
    worker: ThreadIndex,
    connection: &mut Connection,
    has_ended: bool,
) {
    let server = thread.server.clone();
    finish_batch(thread, seat);
    connection.client.commands += std::mem::take(&mut thread.ended_commands);
    assert!(
        !thread.effects.log_writer.has_pending_ops(),
        "every op of a command has a sequence number when its leases have ended"
    );
    NotificationSender::new(&server, &mut thread.effects, thread.thread_index).send_broadcasts();
    for unserved in thread.unserved.drain(..) {
        server.worker(worker).send(Message::ServeWaiters(unserved));
    }
    wake_workers(&server, &mut thread.effects);
    thread.effects.log_writer.wake();
    wait_for_full_mailbox(&server, &mut thread.effects, MAX_FULL_MAILBOX_WAIT);
    let mut removed_watches = std::mem::take(&mut thread.effects.removed_watches);
    if has_ended && let Some(watches) = connection.client.watches.take() {
        removed_watches.extend(watches.keys);
    }
    if !removed_watches.is_empty() {
        server.worker(worker).send(Message::RemoveWatches(removed_watches));
    }
}

/// Reserves the command's keys, so that later readers cannot overtake it indefinitely. Does nothing while a pause holds
/// the command back, so that reads continue.
fn reserve_slots(
    server: &Server,
    thread: &ThreadState,
    keys: &[PlannedKey],
    reservation: Option<SlotReservation>,
) -> Option<SlotReservation> {
    let held = &server.clients.pause.held_slots;
    let is_held = || held.is_any() && keys.iter().any(|key| key.is_write && held.contains(key.slot));
    if thread.for_script || server.clients.pause.are_writes_paused(unix_ms()) || is_held() {
        return None;
    }
    let slots = || keys.iter().filter(|key| key.is_write).map(|key| key.slot).collect();
    Some(reservation.unwrap_or_else(|| server.keyspace.pinned.reserve(slots())))
}

/// Sends the result of a command to the worker of its client.
fn send_result(server: &Server, requester: ParkedClient, result: Box<DetachedResult>) {
    server.worker(requester.worker).send(Message::CommandDone {
        client: requester.client,
        park_id: requester.park_id,
        result,
    });
}

/// An attempt to run a command under leases.
type CommandAttempt<'a> =
    dyn FnMut(&mut ThreadState, &mut Seat, &Request<'_>, &mut [PlannedKey], &mut Connection) -> Outcome + 'a;

/// Sleeps between attempts. The pause doubles each time.
struct Backoff {
    pause: Duration,
    started: Instant,
}

impl Backoff {
    fn new() -> Self {
        Backoff {
            pause: MIN_RETRY_PAUSE,
            started: Instant::now(),
        }
    }

    /// Sleeps before the next attempt; returns `true` if the attempts have lasted longer than `longest`.
    fn wait(&mut self, connection: &mut Connection, longest: Duration) -> bool {
        connection.lease_failures = connection.lease_failures.saturating_add(1);
        weft_os::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(MAX_RETRY_PAUSE);
        self.started.elapsed() > longest
    }
}

/// Runs a command under leases from its start to its end. Returns `None` if its leases were refused for
/// [`REQUEUE_AFTER`], or if it waits for MIGRATE ([`Connection::awaited_thaw`]) or for the end of a pause
/// ([`ThreadState::awaited_resumption`]).
fn run_under_leases(
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    connection: &mut Connection,
    attempt: &mut CommandAttempt<'_>,
) -> Option<NextStep> {
    let mut patience = Backoff::new();
    loop {
        (connection.awaited_thaw, thread.awaited_resumption) = (None, None);
        match attempt(thread, seat, request, keys, connection) {
            Outcome::Done => return Some(NextStep::Reply),
            Outcome::After(after) => return Some(after),
            Outcome::Contended if connection.awaited_thaw.is_some() || thread.awaited_resumption.is_some() => {
                return None;
            }
            Outcome::Contended if patience.wait(connection, REQUEUE_AFTER) => return None,
            Outcome::Contended => {}
        }
    }
}

/// Runs a command on a snapshot. Returns `None` if it has to be run under leases.
fn run_on_snapshot(
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    mut snapshot: KeySnapshot,
    connection: &mut Connection,
) -> Option<NextStep> {
    thread.begin_batch(snapshot.now_ms());
    thread.effects.keeps_expired = thread.server.replication.state_bits().expiry_is_remote();
    let outcome = if keys.iter().any(|key| key.is_write) {
        let draft = compute_on_snapshot(thread, request, keys, &mut snapshot, connection)?;
        apply_snapshot_result(thread, seat, request, keys, snapshot, draft, connection)?
    } else {
        let outcome = run_handler(thread, None, request, keys, snapshot.held_slots(), connection);
        apply_effects(thread);
        outcome
    };
    match outcome {
        Outcome::Done => Some(NextStep::Reply),
        Outcome::After(NextStep::RetryAsWriter) | Outcome::Contended => None,
        Outcome::After(after) => Some(after),
    }
}

/// The reply and the changes that a storing command has computed on a snapshot.
struct SnapshotResult {
    result: CommandResult,
    reply: Vec<u8>,
    changes: Vec<Change>,
    dirty: u64,
    /// The number of lookups that found a key.
    hits: u64,
    /// The number of lookups that found no key.
    misses: u64,
    /// The commands to propagate if writes are logged when the result is stored.
    rewritten_commands: RewrittenCommands,
    /// The run time, in ticks of the thread's timer.
    ticks: u64,
}

/// Runs a storing command on a snapshot. Returns `None` if its changes cannot be applied later.
fn compute_on_snapshot(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    snapshot: &mut KeySnapshot,
    connection: &mut Connection,
) -> Option<SnapshotResult> {
    assert!(
        thread.effects.changes.is_empty() && thread.effects.dirty == 0 && !thread.effects.log_writer.has_pending_ops(),
        "a result is computed with an empty record of effects"
    );
    let (hooks, expired_keys) = (thread.effects.hooks, thread.effects.expired_keys);
    // The log may be switched on, or get other consumers, before the result is stored.
    thread.effects.hooks = Hooks::ON_SNAPSHOT.union(Hooks::LOG);
    let Connection {
        client, input, output, ..
    } = connection;
    let db = client.db;
    let (held, counts) = snapshot.writable_slots();
    let call = LeasedCall {
        command: request.command,
        args: request.args(input),
        planned: keys,
        held,
        pass: None,
    };
    let mut context = thread.split_frame().0.context(call, client, output);
    (context.keys.context.counts, context.keys.context.thread_index) = (counts, ThreadIndex::FIRST);
    let result = (request.binding.handler)(&mut context);
    let next_step = std::mem::take(&mut context.next_step);
    drop(context);
    let splices = output.len() - output.bytes.len();
    let reply = std::mem::take(&mut output.bytes);
    output.clear();
    free_removed_values(&mut thread.effects, &thread.server);
    let effects = &mut thread.effects;
    // A destination that has expired is deleted when the result is stored.
    (effects.hooks, effects.expired_keys) = (hooks, expired_keys);
    let rewritten = effects.log_writer.take_rewritten();
    assert!(
        !effects.log_writer.has_pending_ops(),
        "what a copy of keys has logged is detached"
    );
    let draft = SnapshotResult {
        result,
        reply,
        changes: std::mem::take(&mut effects.changes),
        dirty: std::mem::take(&mut effects.dirty),
        hits: std::mem::take(&mut effects.hits),
        misses: std::mem::take(&mut effects.misses),
        rewritten_commands: rewritten,
        ticks: thread.timer.raw() - thread.ticks,
    };
    let elsewhere = draft.changes.iter().any(|change| change.db != db);
    let silent = !has_written(&draft.changes) && draft.dirty > 0;
    let can_be_done = matches!(next_step, NextStep::Reply) && splices == 0 && !elsewhere && !silent;
    can_be_done.then_some(draft)
}

/// Returns `true` if MIGRATE is sending a key that the command writes.
#[cold]
fn is_being_migrated(
    thread: &ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &Connection,
) -> bool {
    let call = request.call(&connection.input, connection.client.db);
    pins::awaited_thaw(&thread.server.keyspace, call, keys).is_some()
}

/// Answers a command that fails or changes nothing, as computed on a snapshot.
fn answer_unchanged(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    draft: SnapshotResult,
    connection: &mut Connection,
) -> Outcome {
    thread.ticks = thread.timer.raw() - draft.ticks;
    thread.effects.hits += draft.hits;
    thread.effects.misses += draft.misses;
    let answer = |context: &mut Context<'_, '_>| {
        record_misses(context.keys.effects, &draft.changes);
        context.reply.out.extend_from_slice(&draft.reply);
        draft.result
    };
    let outcome = run_with_handler(thread, None, request, keys, HeldLeases::Nothing, connection, answer);
    apply_effects(thread);
    outcome
}

/// Applies the changes that a command has computed on a snapshot. Returns `None` if its keys have changed since, or if
/// its leases were refused for [`DRAFT_TIMEOUT`].
fn apply_snapshot_result(
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    mut snapshot: KeySnapshot,
    draft: SnapshotResult,
    connection: &mut Connection,
) -> Option<Outcome> {
    if draft.result.is_err() || !has_written(&draft.changes) {
        return Some(answer_unchanged(thread, request, keys, draft, connection));
    }
    let mut patience = Backoff::new();
    loop {
        thread.begin_batch(unix_ms());
        let pass = seat.enter();
        thread.begin_passage();
        let admission = admit_again(thread, request, keys, connection);
        if !matches!(admission, Admission::Run) || thread.moving.is_some() {
            // The run under leases reports the error, or checks the keys.
            return None;
        }
        let mut many: Vec<Lease<'_>> = Vec::new();
        let call = request.call(&connection.input, connection.client.db);
        let failures = connection.lease_failures;
        let Some(leased) = expired_sources::lease_command(thread, &pass, call, keys, &mut many, failures) else {
            drop(many);
            drop(pass);
            if patience.wait(connection, DRAFT_TIMEOUT) {
                return None;
            }
            continue;
        };
        debug_assert!(HeldLeases::Many(&mut many).covers(keys), "the leases cover the keys");
        if leased.has_marked_slots && is_being_migrated(thread, request, keys, connection) {
            // The run under leases waits.
            return None;
        }
        // The recorded time of the command includes its work, not its waits.
        thread.ticks = thread.timer.raw() - draft.ticks;
        let store = |context: &mut Context<'_, '_>| {
            if context.server.clients.directory.was_killed(context.client) || !snapshot.is_current(&context.keys) {
                context.next_step = NextStep::Defer;
                return Ok(());
            }
            if leased.has_expired_source {
                context.delete_expired_sources();
            }
            snapshot.apply_changes(&mut context.keys, &draft.changes, draft.dirty);
            context.keys.effects.hits += draft.hits;
            context.keys.effects.misses += draft.misses;
            let effects = &mut *context.keys.effects;
            if effects.is_logging() {
                let target = effects.hooks.log_target();
                effects.log_writer.restore_rewritten(draft.rewritten_commands, target);
            }
            context.reply.out.extend_from_slice(&draft.reply);
            draft.result
        };
        let outcome = run_with_handler(
            thread,
            Some(&pass),
            request,
            keys,
            HeldLeases::Many(&mut many),
            connection,
            store,
        );
        drop(many);
        apply_effects(thread);
        drop(pass);
        return (!matches!(outcome, Outcome::Contended)).then_some(outcome);
    }
}

/// Makes one attempt to run a command, in one passage of the gate.
fn attempt_under_leases(
    run_leased: RunLeased,
    thread: &mut ThreadState,
    seat: &mut Seat,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    thread.begin_batch(unix_ms());
    let pass = seat.enter();
    run_if_admitted(thread, request, keys, connection, |thread, keys, connection| {
        let mut many: Vec<Lease<'_>> = Vec::new();
        run_leased(thread, &pass, request, keys, &mut many, connection)
    })
}

/// Admits a command again at the start of a passage of the gate, or of exclusive mode. Runs it if it may.
pub(super) fn run_if_admitted(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    connection: &mut Connection,
    run: impl FnOnce(&mut ThreadState, &mut [PlannedKey], &mut Connection) -> Outcome,
) -> Outcome {
    thread.begin_passage();
    // Waiting at the gate does not count as the time of a command.
    thread.ticks = thread.timer.raw();
    let resumptions = thread.server.clients.pause.resumptions();
    let error = match admit_again(thread, request, keys, connection) {
        Admission::Run => None,
        Admission::Paused => {
            thread.awaited_resumption = Some(resumptions);
            return Outcome::Contended;
        }
        Admission::PutOff => return Outcome::Contended,
        Admission::Redirected(error) => Some(error),
        Admission::Refused(error) => Some(as_error_of(&connection.client, error)),
        Admission::Denied(denial) => {
            let args = request.args(&connection.input);
            let error = record_denial(thread, connection, request.command, args, denial);
            Some(as_error_of(&connection.client, error))
        }
        Admission::ClientClosing => return Outcome::Done,
    };
    if let Some(error) = error {
        return reply_redirection(thread, request, keys, connection, error);
    }
    run(thread, keys, connection)
}

/// Replies with a BUSY error to a command that was refused a slot which an overdue script holds. Otherwise returns the
/// outcome of the attempt. `script_failures` is the number of attempts so far if the command runs a script.
fn refuse_behind_overdue_script(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
    outcome: Outcome,
    script_failures: Option<u32>,
) -> Outcome {
    if !matches!(outcome, Outcome::Contended) {
        return outcome;
    }
    let refused = script_flags::busy_error_of_refused(&thread.server, &mut connection.client, keys, script_failures);
    let Some(error) = refused else {
        return outcome;
    };
    let error = as_error_of(&connection.client, error);
    write_error(thread, &error, &mut connection.output.bytes);
    let metrics = &thread.server.stats.metrics;
    metrics.record_rejection(thread.thread_index, request.command.id as usize);
    Outcome::Done
}

/// Returns the error as the client's command reports it. A detached command of a client with a transaction is EXEC.
fn as_error_of(client: &Client, error: CommandError) -> CommandError {
    match client.transaction {
        Some(_) => error.into_exec_error(),
        None => error,
    }
}

/// Admits the command again, within the passage of the gate in which it would run.
fn admit_again(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Admission {
    // A script that runs too long refuses new commands, not those that were admitted before.
    thread.replication_state = thread.replication_state.difference(ReplicationState::SCRIPT_BUSY);
    let Connection { client, input, .. } = connection;
    if thread.server.clients.directory.was_killed(client) {
        return Admission::ClientClosing;
    }
    let admission = admit(thread, client, request.command, || request.args(input), keys);
    match request.binding.mode {
        HandlerMode::Script => admit_script(thread, client, admission, request.command, request.args(input)),
        HandlerMode::Leased | HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep | HandlerMode::Module => {
            admission
        }
    }
}

/// Deletes the expired keys that the command found and counts its effects, as the end of a batch does.
pub(super) fn finish_batch(thread: &mut ThreadState, seat: &mut Seat) {
    let server = thread.server.clone();
    thread.leave_expired_to_home();
    if !thread.effects.expired.is_empty() {
        let thread_index = thread.thread_index;
        let notify = &mut |effects: &mut Effects| {
            NotificationSender::new(&server, effects, thread_index).send_recorded_effects(None)
        };
        let may_delete = || server.may_delete_expired(thread.now_ms);
        expiry::delete_keys_found_expired(
            &server.keyspace,
            seat,
            thread.now_ms,
            &may_delete,
            &mut thread.effects,
            notify,
        );
        free_removed_values(&mut thread.effects, &server);
        thread.collect_ready_keys();
    }
    assert!(
        thread.effects.expired.is_empty() && thread.effects.ready.is_empty(),
        "the keys that a command found expired or made ready are dealt with at its end"
    );
    thread
        .effects
        .add_to_metrics(&server.keyspace, &server.stats.metrics, thread.thread_index);
}
