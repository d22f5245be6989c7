//! Executes one plan: leases all or none, handler, effects, release, counters.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_reactor::Output;
use weft_resp::{Args, Protocol, Reply};

use crate::clients_waiting::blocking::{ServeResult, Waiter};
use crate::commands::context::{Binding, CommandResult, Context, Mode, NextStep};
use crate::commands::error::CommandError;
use crate::keyspace::access::{AccessContext, HeldLeases, KeySnapshot, Keys, Lease, PREFETCH_WINDOW_KEYS, PlannedKey};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::{Effects, Hooks};
use crate::keyspace::prefetch_policy::PrefetchPolicy;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::{Client, ClientFlags};
use crate::net::client_snapshot::ClientSnapshot;
use crate::net::connection::Connection;
use crate::observability::metrics::Counter;
use crate::replication::ReplicationState;
use crate::state::{Server, UnservedKeys};
use weft_cluster::Cluster;
use weft_cluster::view::ClusterView;
use weft_command_table::registry::Command;

use super::background::{Detached, has_many_keys};
use super::effects::release;
use super::expired_sources::{self, SourceLeases};
use super::memory_limit::{self, MemoryLimit};
use super::notifications::{Caller, announce};
use super::plan::Plan;
use super::record::{self, CommandEnd, Thresholds};
use super::redirect::{self, MigrationState};
use super::serve;
use super::slot_stats;
use super::{pins, propagate};

/// The number of failed attempts after which a writer makes the slot refuse new readers.
pub const PATIENCE: u32 = 3;
/// The number of failed attempts after which a reader regards the announcement of a writer on a free slot as left over.
/// A writer that still waits has tried as often by then.
const READERS_PATIENCE: u32 = 12;

/// The state that a worker keeps from command to command.
pub struct Thread {
    /// The server.
    pub server: Arc<Server>,
    /// The index of this thread's row of counters.
    pub seat: usize,
    /// The effects of the running command.
    pub effects: Effects,
    /// Milliseconds since the Unix epoch, at the start of the batch.
    pub now_ms: u64,
    /// The access clock at the start of the batch.
    pub clock: AccessClock,
    /// The reading of the timer at the end of the last command.
    pub ticks: u64,
    /// The clock that `ticks` is read from.
    pub timer: quanta::Clock,
    /// The version of the users at the last passage of the gate. No permission changes within a passage.
    pub acl_version: u64,
    /// The cluster view at the last passage of the gate; `None` outside cluster mode.
    pub view: Option<Arc<ClusterView>>,
    /// The version of that view.
    pub view_version: u64,
    /// The direction in which the slot of the admitted command moves, if it does.
    pub moving: Option<MigrationState>,
    /// The replication state as it concerns commands, at the last passage of the gate.
    pub standing: ReplicationState,
    /// A copy of the configuration parameters that commands read.
    pub tunables: super::tunables::Tunables,
    /// `true` if long commands may leave this thread. Commands of a background thread and parts of transactions and
    /// scripts may not.
    pub may_leave: bool,
    /// `true` if clients may block for keys. Parts of transactions and scripts may not.
    pub may_block: bool,
    /// `true` on a script thread.
    pub for_script: bool,
    /// `true` if the thread replays commands, for which no key expires.
    pub replays: bool,
    /// The time for the expiry of keys, in milliseconds since the Unix epoch. It stays 0 while `replays` is set.
    pub expiry_ms: u64,
    /// `true` if a long script opens the gate at intervals, so that clients get `-LOADING`.
    pub lets_in: bool,
    /// Snapshots of the other clients, while a transaction runs that reads them.
    pub client_snapshots: Option<Vec<ClientSnapshot>>,
    /// The blocked clients that the running command has served.
    pub served: Vec<(Arc<Waiter>, ServeResult)>,
    /// The waiters whose connections belong to this thread, which replies to them without mail.
    pub served_here: Vec<Arc<Waiter>>,
    /// Ready keys that are still to be served and belong to no connection.
    pub unserved: Vec<UnservedKeys>,
    /// The memory that the thread may still take.
    pub room: MemoryLimit,
    /// The prefetch policy.
    pub reach: PrefetchPolicy,
    /// The number of batches that have run.
    pub batches: u32,
    /// The slot that the current transaction or script is counted for, if slot statistics are enabled.
    pub(super) slot: Option<u16>,
    /// Scratch memory: the slots to lease.
    pub(super) order: Vec<(u16, bool, u32)>,
}

impl Thread {
    /// Creates the state of a thread that counts in row `seat`.
    pub fn new(server: Arc<Server>, seat: usize) -> Self {
        let tunables = super::tunables::Tunables::read(&server);
        let timer = quanta::Clock::new();
        let effects = Effects {
            log_writer: server.propagation.log_writer(),
            ..Effects::for_keyspace(&server.keyspace)
        };
        Thread {
            seat,
            effects,
            now_ms: 0,
            clock: tunables.clock,
            ticks: timer.raw(),
            timer,
            acl_version: server.acl.version(),
            view: server.cluster.as_ref().map(Cluster::view),
            view_version: 0,
            moving: None,
            standing: server.replication.state_bits(),
            tunables,
            may_leave: true,
            may_block: true,
            for_script: false,
            replays: false,
            expiry_ms: 0,
            lets_in: false,
            client_snapshots: None,
            served: Vec::new(),
            served_here: Vec::new(),
            unserved: Vec::new(),
            room: MemoryLimit::default(),
            reach: PrefetchPolicy::default(),
            batches: 0,
            slot: None,
            order: Vec::new(),
            server,
        }
    }

    /// Starts a batch: sets its time and copies parameters that have changed.
    pub fn begin(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.expiry_ms = if self.replays { 0 } else { now_ms };
        if self.tunables.refresh(&self.server) {
            memory_limit::begin(self);
        }
        self.effects.log_writer.lazy_expire = self.tunables.lazy_expire;
        self.effects.log_writer.measures_units = self.tunables.slot_stats;
        self.clock = self.tunables.clock;
        self.clock.now_s = now_ms / 1000;
        self.ticks = self.timer.raw();
    }

    /// Refreshes the state that does not change within a passage of the gate. Call it at the start of a passage.
    #[inline]
    pub fn look_around(&mut self) {
        self.acl_version = self.server.acl.version();
        self.standing = self.server.replication.state_bits();
        redirect::take_view(self);
    }

    /// Keeps keys that became ready by changes without a command (expiry). They are served later, under leases of their
    /// own.
    #[inline]
    pub fn keep_ready(&mut self) {
        if !self.effects.ready.is_empty() {
            let ready = VecDeque::from(std::mem::take(&mut self.effects.ready));
            self.unserved.push(UnservedKeys::new(ready));
        }
    }

    /// Splits the thread into the parts that a command uses and the waiters that it has served.
    #[inline]
    pub(super) fn split(&mut self) -> (ThreadFrame<'_>, &mut Vec<(Arc<Waiter>, ServeResult)>) {
        let frame = ThreadFrame {
            server: &self.server,
            clock: &self.clock,
            effects: &mut self.effects,
            now_ms: self.now_ms,
            expiry_ms: self.expiry_ms,
            seat: self.seat,
            may_leave: self.may_leave,
            may_block: self.may_block,
        };
        (frame, &mut self.served)
    }
}

/// The thread's part of the context of a command.
pub(super) struct ThreadFrame<'a> {
    /// The server.
    pub server: &'a Arc<Server>,
    clock: &'a AccessClock,
    effects: &'a mut Effects,
    now_ms: u64,
    expiry_ms: u64,
    seat: usize,
    may_leave: bool,
    may_block: bool,
}

/// A command about to run, with its arguments and leases.
pub(super) struct Call<'a, 'p> {
    /// The command.
    pub command: &'static Command<Binding>,
    /// The arguments.
    pub args: Args<'a>,
    /// The keys.
    pub planned: &'a [PlannedKey],
    /// The leases that are held.
    pub held: HeldLeases<'a, 'p>,
    /// The passage of the gate.
    pub pass: Option<&'a GatePassage<'p>>,
}

impl<'a> ThreadFrame<'a> {
    /// Returns the settings with which keys are accessed on behalf of a client.
    #[inline]
    pub fn access(&self, client: &Client) -> AccessContext<'a> {
        AccessContext {
            now_ms: self.expiry_ms,
            clock: self.clock,
            counts: &self.server.keyspace.counts,
            thread_index: self.seat,
            should_touch: !client.flags.contains(ClientFlags::NO_TOUCH),
            sees_expired: client.flags.contains(ClientFlags::IMPORT_SOURCE)
                && self.server.config.boolean(weft_config::id::IMPORT_MODE),
        }
    }

    /// Returns the access to the keys of a call.
    #[inline]
    pub fn keys<'p>(self, call: Call<'a, 'p>, client: &Client) -> Keys<'a, 'p> {
        Keys {
            args: call.args,
            planned: call.planned,
            held: call.held,
            db: client.db,
            context: self.access(client),
            effects: self.effects,
            prefetch_policy: None,
        }
    }

    /// Returns the context of a call by a client. It replies to `output`.
    #[inline]
    pub fn context<'p>(self, call: Call<'a, 'p>, client: &'a mut Client, output: &'a mut Output) -> Context<'a, 'p> {
        let (server, now_ms, may_block) = (self.server, self.now_ms, self.may_block);
        let (args, command, pass) = (call.args, call.command, call.pass);
        let may_leave = self.may_leave && pass.is_some();
        let protocol = client.protocol;
        let keys = self.keys(call, client);
        let (bytes, shared) = output.parts_mut();
        Context {
            args,
            keys,
            reply: Reply { out: bytes, protocol },
            shared,
            client,
            server,
            command,
            pass,
            now_ms,
            may_leave,
            may_block,
            after: NextStep::Nothing,
        }
    }
}

/// The inputs of an execution.
pub struct Request<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The command.
    pub command: &'static Command<Binding>,
    /// The handler.
    pub binding: Binding,
    /// The argument ranges of the whole batch.
    pub ranges: &'a [weft_resp::ArgRange],
}

impl<'a> Request<'a> {
    /// Returns the arguments, which lie in the input of the connection.
    #[inline]
    pub fn args(&self, input: &'a [u8]) -> Args<'a> {
        let (first, last) = self.plan.args;
        Args::new(
            &input[self.plan.start..self.plan.end],
            &self.ranges[first as usize..last as usize],
        )
    }
}

/// The outcome of an execution.
pub enum Outcome {
    /// The reply is in the output.
    Done,
    /// Another thread holds the lease of a slot. The command has had no effect.
    Contended,
    /// The connection waits for this step.
    After(NextStep),
}

/// Leases the slots of the keys: all, or none. Returns `None` if a lease is refused. Otherwise returns `true` if a slot
/// to be written has pinned values, or values that a snapshot has to save before they change.
pub(super) fn lease<'p>(
    pass: &'p GatePassage<'p>,
    keys: &mut [PlannedKey],
    order: &mut Vec<(u16, bool, u32)>,
    many: &mut Vec<Lease<'p>>,
    failures: u32,
) -> Option<bool> {
    order.clear();
    order.extend(
        keys.iter()
            .enumerate()
            .map(|(index, key)| (key.slot, key.is_write, index as u32)),
    );
    // Slots ascend. Within a slot the writers sort behind the readers, so the last entry decides the kind of lease.
    order.sort_unstable();
    let slots = pass.domain();
    for (slot, _, index) in order.iter() {
        slots
            .header(*slot as usize)
            .hint
            .prefetch_bucket(keys[*index as usize].hash);
    }
    let (mut at, mut meets_loans) = (0, false);
    while at < order.len() {
        let slot = order[at].0;
        let mut end = at + 1;
        while end < order.len() && order[end].0 == slot {
            end += 1;
        }
        let write = order[end - 1].1;
        let Some(held) = lease_one(pass, slot as usize, write, failures) else {
            many.clear();
            return None;
        };
        for (_, _, index) in &order[at..end] {
            keys[*index as usize].lease = many.len() as u32;
        }
        meets_loans |= held.has_pinned_or_unsaved_values();
        many.push(held);
        at = end;
    }
    Some(meets_loans)
}

#[inline]
fn lease_one<'p>(pass: &'p GatePassage<'p>, slot: usize, write: bool, failures: u32) -> Option<Lease<'p>> {
    let held = if write {
        pass.write_spinning(slot).map(Lease::Write)
    } else {
        pass.read_spinning(slot).map(Lease::Read)
    };
    if held.is_none() && failures >= PATIENCE {
        insist(pass, slot, write, failures);
    }
    held
}

/// Announces a writer that keeps being refused. For a reader, ends the announcement of a writer that has given up.
#[cold]
fn insist(pass: &GatePassage<'_>, slot: usize, write: bool, failures: u32) {
    if write {
        pass.announce_writer(slot);
    } else if failures >= READERS_PATIENCE {
        pass.end_announcement(slot);
    }
}

/// Runs a plan under the leases of its keys.
pub fn run_leased<'p>(
    thread: &mut Thread,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    if request.binding.mode == Mode::Script {
        return super::script::run_leased(thread, pass, request, keys, many, connection);
    }
    let outcome = run_leased_once(thread, pass, request, keys, many, connection);
    if matches!(outcome, Outcome::After(NextStep::AsWriter)) {
        for key in keys.iter_mut() {
            key.is_write = true;
        }
        return run_leased_once(thread, pass, request, keys, many, connection);
    }
    outcome
}

#[inline]
fn run_leased_once<'p>(
    thread: &mut Thread,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let outcome = match keys {
        [key] => {
            let mut lease = lease_one(pass, key.slot as usize, key.is_write, connection.lease_failures);
            // Borrowed in its place, not moved: see `HeldLeases::One`.
            let Some(lease) = &mut lease else {
                return Outcome::Contended;
            };
            let leased = SourceLeases {
                meets_loans: lease.has_pinned_or_unsaved_values(),
                finds_expired: false,
            };
            run_held(
                thread,
                pass,
                request,
                keys,
                (HeldLeases::One(lease), leased),
                connection,
            )
        }
        [] => {
            let leased = SourceLeases {
                meets_loans: false,
                finds_expired: false,
            };
            run_held(thread, pass, request, keys, (HeldLeases::Nothing, leased), connection)
        }
        _ if keys.len() > PREFETCH_WINDOW_KEYS && has_many_keys(thread, request.command, keys.len()) => {
            return detach(thread, request, keys, None, connection);
        }
        _ => {
            let command = (request.command, request.args(&connection.input), connection.client.db);
            let leased = expired_sources::lease_sources(thread, pass, command, keys, many, connection.lease_failures);
            let Some(leased) = leased else {
                return Outcome::Contended;
            };
            let held = (HeldLeases::Many(many), leased);
            let outcome = run_held(thread, pass, request, keys, held, connection);
            many.clear();
            outcome
        }
    };
    settle_effects(thread);
    outcome
}

/// Runs a plan under its leases, unless a pinned value or a migrating slot prevents it.
#[inline]
fn run_held<'p>(
    thread: &mut Thread,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    (held, leased): (HeldLeases<'_, 'p>, SourceLeases),
    connection: &mut Connection,
) -> Outcome {
    if leased.meets_loans | thread.moving.is_some() {
        if leased.meets_loans && pins::must_wait(&thread.server.keyspace, request, keys, &held, connection) {
            return Outcome::Contended;
        }
        if let Err(error) = settle_moving(thread, request, keys, &held, connection) {
            return refuse_moving(thread, (request, keys), connection, error);
        }
    }
    if leased.finds_expired {
        return run_without_expired(thread, Some(pass), request, keys, held, connection);
    }
    run(thread, Some(pass), request, keys, held, connection)
}

/// Frees memory and replies to served clients after the leases of a command have ended. In exclusive mode it runs just
/// before that mode ends.
#[inline]
pub(super) fn settle_effects(thread: &mut Thread) {
    release(&mut thread.effects, &thread.server);
    serve::mail(thread);
}

/// Runs a plan in exclusive mode.
pub fn run_exclusive(
    thread: &mut Thread,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .add(thread.seat, Counter::ExclusiveCommands, 1);
    let held = HeldLeases::Exclusive(all);
    if let Err(error) = settle_moving(thread, request, keys, &held, connection) {
        return refuse_moving(thread, (request, keys), connection, error);
    }
    let outcome = match expired_sources::deletes_expired(thread, request.command) {
        true => run_without_expired(thread, None, request, keys, held, connection),
        false => run(thread, None, request, keys, held, connection),
    };
    settle_effects(thread);
    outcome
}

/// Checks which keys of a command are on this node, if its slot is migrating.
#[cold]
pub(super) fn settle_moving(
    thread: &Thread,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    connection: &Connection,
) -> Result<(), CommandError> {
    let (Some(moving), Some(view)) = (thread.moving, &thread.view) else {
        return Ok(());
    };
    let args = request.args(&connection.input);
    let keys = keys.iter().map(|key| (args, key));
    redirect::settle_moving(thread, view, &connection.client, moving, held, keys)
}

/// Replies with a redirection or refusal to a command that already holds its leases.
#[cold]
pub(super) fn refuse_moving(
    thread: &mut Thread,
    (request, keys): (&Request<'_>, &[PlannedKey]),
    connection: &mut Connection,
    error: CommandError,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .record_rejection(thread.seat, request.command.id as usize);
    book_refused(thread, request, keys, connection);
    connection.client.last_command = request.command.full_name;
    let before = connection.output.mark();
    write_error(thread, &error, &mut connection.output.bytes);
    connection.apply_reply_mode(before);
    Outcome::Done
}

/// Counts the request of a command that is refused or queued, if slot statistics are enabled.
#[inline]
pub(super) fn book_refused(thread: &Thread, request: &Request<'_>, keys: &[PlannedKey], connection: &Connection) {
    if thread.tunables.slot_stats {
        let bytes = &connection.input[request.plan.start..request.plan.end];
        let args = request.args(&connection.input);
        slot_stats::book_request(thread, &connection.client, request.command, (bytes, args), keys);
    }
}

/// Runs a plan's handler under the leases. The caller runs [`settle_effects`] after the leases have ended.
#[inline]
pub(super) fn run<'p>(
    thread: &mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Outcome {
    run_as(thread, pass, request, keys, held, connection, request.binding.run)
}

/// Deletes the expired keys that the command would read, then runs its handler; see [`run`].
#[cold]
fn run_without_expired<'p>(
    thread: &mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Outcome {
    let handler = request.binding.run;
    run_as(thread, pass, request, keys, held, connection, |context| {
        context.keys.delete_expired();
        handler(context)
    })
}

/// Runs `handler` in place of the plan's own handler; see [`run`].
#[inline]
pub(super) fn run_as<'p>(
    thread: &mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
    handler: impl FnOnce(&mut Context<'_, 'p>) -> CommandResult,
) -> Outcome {
    let command = request.command;
    let Connection {
        client, input, output, ..
    } = connection;
    let args = request.args(input);
    client.last_command = command.full_name;
    let before = output.mark();
    let length_before = output.len();
    let lookups = (thread.effects.hits, thread.effects.misses);
    let dirty = thread.effects.dirty;
    // Read under the leases: a client that registered interest in one of the keys did so under leases, too.
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let (frame, served) = thread.split();
    let server = frame.server;
    let call = Call {
        command,
        args,
        planned: keys,
        held,
        pass,
    };
    // A block ends the context, because `drop(context)` would move it.
    let (result, after, unserved) = {
        let mut context = frame.context(call, client, output);
        let result = handler(&mut context);
        if context.keys.effects.is_logging() {
            propagate::end_call(&mut context.keys, &context.after, dirty);
            context.keys.effects.log_writer.end_measured_unit();
        }
        let unserved = if context.keys.effects.ready.is_empty() {
            None
        } else {
            serve::serve_ready(&mut context.keys, pass, server, served)
        };
        if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
            let runs_again = context.after.is_restarted();
            announce(&mut context, runs_again, Caller::Client);
        }
        if context.keys.effects.log_writer.has_pending_ops() {
            context.client.last_write_sequence = propagate::commit(context.keys.effects);
        }
        (result, context.after, unserved)
    };
    let failed = result.is_err();
    if let Err(error) = result {
        output.truncate(before);
        write_error(thread, &error, &mut output.bytes);
    }
    let request_bytes = request.plan.end - request.plan.start;
    let after = match after {
        NextStep::Nothing => NextStep::Nothing,
        NextStep::Defer => {
            output.truncate(before);
            // The run that produces the reply is the one that is counted.
            (thread.effects.hits, thread.effects.misses) = lookups;
            return Outcome::Contended;
        }
        NextStep::Leave(snapshot) => {
            output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            return detach(thread, request, keys, snapshot, connection);
        }
        NextStep::Background(work) => {
            thread.ticks = thread.timer.raw();
            let slot = slot_stats::slot_if_counted(thread, command, args, keys);
            let work = record::counted((command, args), client, request_bytes, slot, *work);
            return Outcome::After(NextStep::Background(Box::new(work)));
        }
        NextStep::AsWriter => {
            output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            return Outcome::After(NextStep::AsWriter);
        }
        NextStep::Block(mut blocked) => {
            let now = thread.timer.raw();
            blocked.nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
            thread.ticks = now;
            blocked.request_bytes = request_bytes;
            blocked.slot = slot_stats::slot_if_counted(thread, command, args, keys);
            let subject = || record::subject_of(command, args, client);
            blocked.subject = record::might_be_remembered(&thread.tunables, &blocked).then(subject);
            return Outcome::After(NextStep::Block(blocked));
        }
        other => other,
    };
    let ending = CommandEnd {
        nanoseconds: finish_command(thread, command, failed),
        request_bytes,
        reply_bytes: output.len() - length_before,
    };
    let thresholds = Thresholds::of(&thread.tunables);
    record::remember(&thread.server, command, thresholds, &ending, || {
        record::subject_of(command, args, client)
    });
    if thread.tunables.slot_stats {
        slot_stats::book_run(thread, (request, keys), (client, input), &ending);
    }
    match after {
        NextStep::Nothing => {
            // There is nothing to drop. The call that finds this out would cost more than everything else here.
            std::mem::forget(after);
            let Some(unserved) = unserved else {
                connection.apply_reply_mode(before);
                return Outcome::Done;
            };
            let reply = connection.output.split_off(before);
            Outcome::After(NextStep::Serve(Box::new((*unserved, reply))))
        }
        other => {
            thread.unserved.extend(unserved.map(|unserved| *unserved));
            Outcome::After(other)
        }
    }
}

/// Moves the command to a background thread.
#[cold]
fn detach(
    thread: &mut Thread,
    request: &Request<'_>,
    keys: &[PlannedKey],
    snapshot: Option<Box<KeySnapshot>>,
    connection: &mut Connection,
) -> Outcome {
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let command = Detached::new(request, keys, snapshot, connection);
    Outcome::After(NextStep::Detached(Box::new(Box::new(|origin| {
        command.into_job(origin)
    }))))
}

/// Returns the reply to a blocking command that has timed out.
pub fn null_array(protocol: Protocol) -> Vec<u8> {
    let mut bytes = Vec::new();
    Reply::new(&mut bytes, protocol).null_array();
    bytes
}

/// Appends an error reply and counts it.
pub fn write_error(thread: &Thread, error: &CommandError, out: &mut Vec<u8>) {
    error.write(out);
    thread.server.stats.metrics.add(thread.seat, Counter::ErrorReplies, 1);
    thread.server.stats.errors.count(error.code());
}

/// Adds a command to its counters. Returns its duration in nanoseconds.
#[inline]
pub(super) fn finish_command(thread: &mut Thread, command: &'static Command<Binding>, failed: bool) -> u64 {
    let now = thread.timer.raw();
    let nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
    thread.ticks = now;
    let metrics = &thread.server.stats.metrics;
    metrics.record_execution(thread.seat, command.id as usize, nanoseconds, failed);
    if thread.tunables.latency_tracking {
        metrics.record_latency(thread.seat, command.id as usize, nanoseconds);
    }
    nanoseconds
}
