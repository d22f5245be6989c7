//! The context of a handler: its arguments, keys, reply, client and server.

use weft_reactor::SharedValues;
use weft_resp::{Args, Protocol, Reply};
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::list::ListEnd;

use std::sync::Arc;

use super::error::CommandError;
use super::permission;
use crate::keyspace::GatePassage;
use crate::keyspace::access::{FurtherLeases, HeldLeases, KeyUse, Keys, SnapshotAttempt};
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::kill_mark::KillMark;
use crate::observability::metrics::Counter;
use crate::state::{BackgroundJob, HomeStandby, JobQueue, Message, PermissionCheck, PermissionLoss, Server};
use weft_base::{ParkedClient, SlotIndex, ThreadIndex};
use weft_command_table::keys::walk_keys;
use weft_command_table::registry::Command;
use weft_command_table::spec::{CommandFlags, Group, KeyFlags};
use weft_config::id;
use weft_modules::module::command::{Concurrency, ModuleCommand};
use weft_modules::module::server_events::are_databases_observed;
use weft_modules::module::types;

pub use crate::state::{BackgroundRun, BackgroundStep, BackgroundWork, NextStep};

#[cfg(test)]
mod tests;

/// The result of a handler: the handler has written the reply, or returns the error to reply with.
pub type CommandResult = Result<(), CommandError>;

/// A function that executes a command.
pub type CommandHandler = for<'a, 'p> fn(&mut Context<'a, 'p>) -> CommandResult;

/// The mode in which a command is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerMode {
    /// The worker holds the leases of the command's keys. A command without keys needs no lease.
    Leased,
    /// The thread owns the whole keyspace.
    Exclusive,
    /// Like `Exclusive` if the first argument is SLEEP, otherwise like `Leased`. This is the mode of DEBUG.
    ExclusiveForSleep,
    /// The command runs a script under the leases of its keys and of all further keys that the script accesses. The
    /// handler only reads the arguments; the dispatcher runs the script.
    Script,
    /// The command runs code of a module. The dispatcher calls no handler, but the module
    /// ([`Binding::module_command`]), or loads or unloads one (MODULE LOAD). It does so on the home worker, in
    /// exclusive mode.
    Module,
}

/// A handler and the way in which it is executed.
#[derive(Clone, Copy)]
pub struct Binding {
    /// The handler.
    pub handler: CommandHandler,
    /// The mode in which it is executed.
    pub mode: HandlerMode,
    /// `true` if the handler writes keys that its key specifications call read-only.
    pub writes_all_keys: bool,
    /// The index of the argument that names the member or field to look up; 0 for none. In a large collection, the
    /// worker prefetches the memory that leads to this member. [`ALL_MEMBERS`], [`HEAD_ELEMENTS`] and [`TAIL_ELEMENTS`]
    /// stand for such parts of a collection, and [`REGISTER`] for one of a HyperLogLog.
    pub member_argument: u8,
    /// `true` if the handler accesses keys that are not in its plan, or counts them. Only such a handler may let its
    /// command run again later because a slot is leased. A transaction with such a command needs the whole keyspace.
    pub has_undeclared_keys: bool,
    /// `true` if the handler reports the replication offset, or compares another one with the backlog. The backlog must
    /// contain every write that was answered before.
    pub must_report_exact_offset: bool,
    /// `true` if the handler needs answers from the threads that own the clients. In a transaction the dispatcher
    /// collects these answers beforehand.
    pub queries_workers: bool,
    /// `true` if the command changes the configuration or writes its file. A transaction begins this change before it
    /// runs, because no thread may wait for another change within the gate.
    pub changes_config: bool,
    /// `true` if the command pauses clients. It comes after the others that wait for exclusive mode, because they would
    /// have to wait for the end of the pause.
    pub pauses_clients: bool,
    /// `true` if the handler calls modules for keys that have their values. If modules have data types, it runs in
    /// exclusive mode and has the home worker at its disposal ([`Context::call_modules`]).
    pub calls_modules: bool,
    /// `true` if the handler reads or sets parameters of modules. If there are any, it runs as one that calls modules
    /// for values of keys.
    pub uses_module_parameters: bool,
    /// `true` if the handler compiles scripts. If modules have scripting engines, it runs as one that calls modules for
    /// values of keys.
    pub uses_scripting_engines: bool,
    /// The command of a module, for [`HandlerMode::Module`]; `None` for the commands that load and unload modules.
    pub module_command: Option<&'static ModuleCommand>,
}

/// Stands for all members or fields, in place of an argument's index.
pub const ALL_MEMBERS: u8 = u8::MAX;
/// Stands for the first elements of a list.
pub const HEAD_ELEMENTS: u8 = u8::MAX - 1;
/// Stands for the last elements of a list, or entries of a stream.
pub const TAIL_ELEMENTS: u8 = u8::MAX - 2;

/// Stands for the register that the element in argument 2 may raise.
pub const REGISTER: u8 = u8::MAX - 3;

impl Binding {
    /// Returns the binding of a command that accesses keys that are not in its plan.
    pub const fn with_undeclared_keys(mut self) -> Self {
        self.has_undeclared_keys = true;
        self
    }

    /// Returns the binding of a command that needs the replication offset after all earlier writes.
    pub const fn with_exact_offset(mut self) -> Self {
        self.must_report_exact_offset = true;
        self
    }

    /// Returns the binding of a command that needs answers from the threads that own the clients.
    pub const fn with_worker_query(mut self) -> Self {
        self.queries_workers = true;
        self
    }

    /// Returns the binding of a command that changes the configuration or writes its file.
    pub const fn with_config_change(mut self) -> Self {
        self.changes_config = true;
        self
    }

    /// Returns the binding of a command that calls modules for keys that have their values.
    pub const fn with_module_values(mut self) -> Self {
        self.calls_modules = true;
        self
    }

    /// Returns the binding of a command that reads or sets parameters of modules.
    pub const fn with_module_parameters(mut self) -> Self {
        self.uses_module_parameters = true;
        self
    }

    /// Returns the binding of a command that compiles scripts.
    pub const fn with_scripting_engines(mut self) -> Self {
        self.uses_scripting_engines = true;
        self
    }

    /// Returns `true` if the command has to call modules, as far as their data types, parameters and engines are known.
    pub fn needs_modules(&self) -> bool {
        self.mode == HandlerMode::Module
            || (self.calls_modules && (types::any_exist() || are_databases_observed()))
            || (self.uses_module_parameters && weft_modules::module::parameters::any_exist())
            || (self.uses_scripting_engines && weft_modules::module::engines::any_exist())
    }

    /// Returns `true` for a command of a module that is not declared to run elsewhere, and for those about modules.
    #[inline]
    pub fn runs_at_home(&self) -> bool {
        let is_at_home = |command: &ModuleCommand| command.concurrency() == Concurrency::Home;
        self.mode == HandlerMode::Module && self.module_command.is_none_or(is_at_home)
    }

    /// Returns the binding of a command that pauses clients.
    pub const fn with_pause(mut self) -> Self {
        self.pauses_clients = true;
        self
    }

    /// Returns the binding of a command that looks up the member or field in argument `index`.
    pub const fn with_member_argument(mut self, index: u8) -> Self {
        self.member_argument = index;
        self
    }

    /// Returns the binding of a command that changes one end of a list, or of a stream.
    pub const fn with_list_end(self, end: ListEnd) -> Self {
        self.with_member_argument(match end {
            ListEnd::Head => HEAD_ELEMENTS,
            ListEnd::Tail => TAIL_ELEMENTS,
        })
    }

    /// Returns the binding of a command that adds the element in argument 2 to a HyperLogLog.
    pub const fn with_register(self) -> Self {
        self.with_member_argument(REGISTER)
    }

    /// Returns the binding of a command that reads all members or fields.
    pub const fn with_all_members(self) -> Self {
        self.with_member_argument(ALL_MEMBERS)
    }
}

/// Binds a handler that runs under the leases of its keys.
pub const fn leased(handler: CommandHandler) -> Binding {
    Binding {
        handler,
        mode: HandlerMode::Leased,
        writes_all_keys: false,
        member_argument: 0,
        has_undeclared_keys: false,
        must_report_exact_offset: false,
        queries_workers: false,
        changes_config: false,
        pauses_clients: false,
        calls_modules: false,
        uses_module_parameters: false,
        uses_scripting_engines: false,
        module_command: None,
    }
}

/// Binds a handler that runs under the leases of its keys and may write all of them, whatever the key specifications
/// say.
pub const fn leased_for_writing(run: CommandHandler) -> Binding {
    Binding {
        handler: run,
        mode: HandlerMode::Leased,
        writes_all_keys: true,
        member_argument: 0,
        has_undeclared_keys: false,
        must_report_exact_offset: false,
        queries_workers: false,
        changes_config: false,
        pauses_clients: false,
        calls_modules: false,
        uses_module_parameters: false,
        uses_scripting_engines: false,
        module_command: None,
    }
}

/// Binds a command that runs a script. The dispatcher runs the script and calls no handler.
pub const fn script() -> Binding {
    Binding {
        handler: |_| unreachable!("the dispatcher runs scripts"),
        mode: HandlerMode::Script,
        writes_all_keys: false,
        member_argument: 0,
        has_undeclared_keys: false,
        must_report_exact_offset: false,
        queries_workers: false,
        changes_config: false,
        pauses_clients: false,
        calls_modules: false,
        uses_module_parameters: false,
        uses_scripting_engines: false,
        module_command: None,
    }
}

/// Binds a command that runs code of a module. The dispatcher runs it and calls no handler.
pub const fn module(command: Option<&'static ModuleCommand>) -> Binding {
    Binding {
        mode: HandlerMode::Module,
        module_command: command,
        ..leased(|_| unreachable!("the dispatcher runs the code of modules"))
    }
}

/// Binds a handler that needs the whole keyspace.
pub const fn exclusive(run: CommandHandler) -> Binding {
    Binding {
        handler: run,
        mode: HandlerMode::Exclusive,
        writes_all_keys: true,
        member_argument: 0,
        has_undeclared_keys: false,
        must_report_exact_offset: false,
        queries_workers: false,
        changes_config: false,
        pauses_clients: false,
        calls_modules: false,
        uses_module_parameters: false,
        uses_scripting_engines: false,
        module_command: None,
    }
}

/// Binds the handler of DEBUG.
pub const fn exclusive_for_sleep(handler: CommandHandler) -> Binding {
    Binding {
        mode: HandlerMode::ExclusiveForSleep,
        ..leased(handler)
    }
}

/// The longest estimated time of work that is done on the worker, in nanoseconds. Longer work moves to a background
/// thread, because the worker's other clients wait meanwhile. The collections of a simulation have few elements.
const MAX_WORKER_NS: u64 = if cfg!(feature = "simulated") { 150 } else { 200_000 };
/// The length that the source of a slot migration may give a string by naming an offset, whatever the limit here: twice
/// the default of `proto-max-bulk-len`, in bytes.
const MAX_IMPORTED_STRING_BYTES: u64 = 1 << 30;
/// The same for the primary and the append-only file, in bytes. A damaged file must not demand any amount of memory.
const MAX_REPEATED_STRING_BYTES: u64 = 64 << 30;

/// What the work of a command on a background thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkKind {
    /// It may take effect as soon as it has begun.
    Effective,
    /// It only reads, or prepares an effect.
    Harmless,
    /// It waits for another server.
    Exchange,
}

/// The context of a handler.
pub struct Context<'a, 'p> {
    /// The arguments; the first is the command's name.
    pub args: Args<'a>,
    /// The keys of the command, under leases.
    pub keys: Keys<'a, 'p>,
    /// The reply that the handler writes.
    pub reply: Reply<'a>,
    /// Large values that are spliced into the reply by reference.
    pub shared: SharedValues<'a>,
    /// The client that sent the command.
    pub client: &'a mut Client,
    /// The server.
    pub server: &'a Arc<Server>,
    /// The command that is executed.
    pub command: &'static Command<Binding>,
    /// The passage through the gate; `None` in exclusive mode.
    pub pass: Option<&'a GatePassage<'p>>,
    /// The current time in milliseconds since the Unix epoch, the same for a whole batch.
    pub now_ms: u64,
    /// `true` if the handler may move to a background thread. `false` if it already runs on one, in exclusive mode, or
    /// as a part of a transaction or script.
    pub may_detach: bool,
    /// `true` if the client may block on keys. Otherwise a blocking command that finds no element replies as it does
    /// after a timeout.
    pub may_block: bool,
    /// The step that the dispatcher takes after the handler.
    pub next_step: NextStep,
    /// Leases of keys that are in no plan, if the command changes something because of what it has read there. The
    /// dispatcher ends them after the command has its position in the log: no change of these keys comes before it.
    pub further_leases: Option<Box<FurtherLeases<'a, 'p>>>,
    /// The home worker, if the thread has summoned it ([`Context::call_modules`]).
    pub home_standby: &'a mut Option<HomeStandby>,
}

impl<'a> Context<'a, '_> {
    /// Returns the n-th argument; empty if there is none.
    #[inline]
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.args.argument(index)
    }

    /// Returns the number of arguments, including the command's name.
    #[inline]
    pub fn argc(&self) -> usize {
        self.args.len()
    }

    /// Returns the time against which the expiration of keys is checked, in milliseconds since the Unix epoch. For
    /// commands from the primary or from the source of an import this is 0, because no key expires for them.
    #[inline]
    pub fn expiry_time_ms(&self) -> u64 {
        self.keys.context.now_ms
    }

    /// Returns the time up to which an expiry is in the past for a command that sets or replaces it, in milliseconds
    /// since the Unix epoch. It is 0 if another server deletes what has expired: then keys and fields with such an
    /// expiry are stored, and stay until that server deletes them.
    #[inline]
    pub fn past_expiry_ms(&self) -> u64 {
        match self.keeps_expired() {
            true => 0,
            false => self.expiry_time_ms(),
        }
    }

    /// Returns `true` if another server deletes what has expired.
    #[inline]
    pub fn keeps_expired(&self) -> bool {
        self.server.replication.state_bits().expiry_is_remote()
    }

    /// Deletes the expired keys that the command only reads; see [`Keys::delete_expired`].
    #[inline]
    pub fn delete_expired_sources(&mut self) {
        let (spec, args) = (self.command.spec, self.args);
        self.keys.delete_expired(|| {
            let mut are_read_only = Vec::new();
            walk_keys(spec, &args, &mut |position| {
                are_read_only.push(position.flags.is_read_only())
            });
            are_read_only
        });
    }

    /// Calls `run` where the code of modules may run, for a command that is declared for it
    /// ([`Binding::with_module_values`], [`Binding::with_module_parameters`]).
    ///
    /// # Errors
    /// If the command does not run in exclusive mode: modules have got data types or parameters since it began.
    pub fn call_modules<R: Send>(&mut self, run: impl FnOnce() -> R + Send) -> Result<R, CommandError> {
        let thread_index = self.keys.context.thread_index;
        match &mut self.keys.held {
            HeldLeases::Exclusive(all) => Ok(self.server.call_modules_once(all, thread_index, self.home_standby, run)),
            _ => Err(CommandError::constant(
                "TRYAGAIN The data of modules are not accessible here",
            )),
        }
    }

    /// Replies with these lines, as the HELP subcommands do.
    pub fn reply_with_lines(&mut self, lines: &[&str]) -> CommandResult {
        self.reply.array(lines.len());
        for line in lines {
            self.reply.simple(line);
        }
        Ok(())
    }

    /// Replies with the string value of the n-th key, or null if there is no such key.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is not a string.
    #[inline]
    pub fn reply_with_string(&mut self, index: usize) -> CommandResult {
        match self.keys.read(index) {
            None => {
                self.reply.null();
                Ok(())
            }
            Some(entry) => reply_bulk(&mut self.reply, &mut self.shared, entry),
        }
    }

    /// Returns the longest time that the handler may take on this thread, in nanoseconds. Longer work moves to a
    /// background thread if possible.
    #[inline]
    pub fn max_worker_ns(&self) -> u64 {
        if self.may_detach { MAX_WORKER_NS } else { u64::MAX }
    }

    /// Moves the handler to a background thread if `estimated_ns` is too long for the other clients of this worker.
    /// Returns `true` if it did.
    #[inline]
    pub fn detach_if_long(&mut self, estimated_ns: u64) -> bool {
        let leaves = estimated_ns > self.max_worker_ns();
        if leaves {
            self.detach();
        }
        leaves
    }

    /// Moves the handler to a background thread, which runs it again from its start: on a snapshot of its keys if
    /// possible, otherwise under the same leases. The handler must have changed nothing yet, and returns at once.
    /// Handlers that change their client must not call this.
    #[cold]
    pub fn detach(&mut self) {
        debug_assert!(self.may_detach, "only what may leave leaves");
        self.next_step = match self.keys.snapshot(&self.key_uses(), &self.server.keyspace, self.now_ms) {
            SnapshotAttempt::Taken(snapshot) => NextStep::RunInBackground(Some(snapshot)),
            SnapshotAttempt::NotPossible => NextStep::RunInBackground(None),
            SnapshotAttempt::Deferred => NextStep::Defer,
        };
    }

    /// Moves the handler to a background thread, which runs it again under the same leases from start to end, because
    /// it accesses keys that are not in its plan.
    #[cold]
    pub fn detach_under_leases(&mut self) {
        debug_assert!(self.may_detach, "only what may leave leaves");
        self.next_step = NextStep::RunInBackground(None);
    }

    /// Runs the handler again in a later turn, because another thread holds `slot`. If that is an overdue script, which
    /// may never end, the client gets the BUSY error instead. The handler must have changed nothing yet, and returns at
    /// once.
    #[cold]
    pub fn defer_until_free(&mut self, slot: SlotIndex) {
        self.client.refused_slot = Some(slot);
        self.next_step = NextStep::Defer;
    }

    /// Returns the use that the command makes of each of its keys, if a snapshot may stand for these keys; otherwise an
    /// empty list.
    fn key_uses(&self) -> Vec<KeyUse> {
        let spec = self.command.spec;
        let waits = spec.flags.contains(CommandFlags::BLOCKING);
        let mut uses = Vec::new();
        if !waits && !matches!(spec.group, Group::Scripting | Group::Connection | Group::Server) {
            walk_keys(spec, &self.args, &mut |position| uses.push(position.flags));
        }
        let use_of = |(key, flags): (&PlannedKey, KeyFlags)| match (key.is_write, flags.is_overwrite()) {
            (false, _) => KeyUse::Read,
            (true, true) => KeyUse::Replace,
            (true, false) => KeyUse::Change,
        };
        self.keys.planned.iter().zip(uses).map(use_of).collect()
    }

    /// Does work that needs no keys on a background thread. In a transaction or script the work is done at once,
    /// because other commands follow.
    ///
    /// # Errors
    /// The error of work that was done in place.
    pub fn run_without_keys(&mut self, work: impl FnOnce(&Arc<Server>) -> Vec<u8> + Send + 'static) -> CommandResult {
        if self.may_block {
            self.reply_from_background(move |server, _| work(server));
            return Ok(());
        }
        let bytes = work(self.server);
        match bytes.strip_prefix(b"-") {
            Some(error) => Err(CommandError::from_bytes(error.trim_ascii_end().to_vec())),
            None => {
                self.reply.out.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    /// Parks the connection and produces the reply on a background thread.
    pub fn reply_from_background(
        &mut self,
        work: impl FnOnce(&Arc<Server>, &mut crate::keyspace::Seat) -> Vec<u8> + Send + 'static,
    ) {
        let run = |server: &Arc<Server>, seat: &mut crate::keyspace::Seat| BackgroundStep::reply(work(server, seat));
        self.run_in_background(Box::new(run));
    }

    /// Returns the length that a command may give a string by naming an offset (`proto-max-bulk-len`), in bytes.
    pub fn max_string_bytes(&self) -> u64 {
        let configured = self.server.config.integer(id::PROTO_MAX_BULK_LEN).max(0) as u64;
        max_string_bytes(self.client.flags, configured)
    }

    /// Does the same as [`Context::reply_from_background`] for work that writes.
    pub fn run_in_background(&mut self, run: BackgroundRun) {
        let kind = match self.command.spec.flags.contains(CommandFlags::READONLY) {
            true => WorkKind::Harmless,
            false => WorkKind::Effective,
        };
        self.start_background_work(run, kind);
    }

    /// Does the same as [`Context::run_in_background`] for work that has no effect before it returns
    /// [`BackgroundStep::TakeEffect`].
    pub fn prepare_in_background(&mut self, run: BackgroundRun) {
        self.start_background_work(run, WorkKind::Harmless);
    }

    /// Does the same as [`Context::reply_from_background`] for work that waits for another server.
    pub fn run_after_exchange(&mut self, run: BackgroundRun) {
        self.start_background_work(run, WorkKind::Exchange);
    }

    /// Does the same as [`Context::reply_from_background`] for work that completes an effect which the handler has made
    /// already. It is done, and its reply sent, even if the client loses its permission before it begins. If the client
    /// is killed by then, it is done without a reply.
    pub fn complete_in_background(
        &mut self,
        work: impl FnOnce(&Arc<Server>, &mut crate::keyspace::Seat) -> Vec<u8> + Send + 'static,
    ) {
        let run = |server: &Arc<Server>, seat: &mut crate::keyspace::Seat| BackgroundStep::reply(work(server, seat));
        self.next_step = NextStep::Background(Box::new(BackgroundWork {
            run: Box::new(run),
            waits_for_server: false,
            delays_kill: false,
            permission: None,
            completes_effect: true,
        }));
    }

    fn start_background_work(&mut self, run: BackgroundRun, kind: WorkKind) {
        let work = BackgroundWork {
            run,
            waits_for_server: kind == WorkKind::Exchange,
            delays_kill: kind == WorkKind::Effective,
            permission: self.may_block.then(|| self.permission_check()),
            completes_effect: false,
        };
        self.next_step = NextStep::Background(Box::new(work));
    }

    /// Returns a check for a command that begins later, on another thread: the permission may have been taken away by
    /// then.
    pub fn permission_check(&mut self) -> PermissionCheck {
        let (command, mut client) = (self.command, self.client.detached_view());
        let words: Vec<Vec<u8>> = self.args.iter().map(<[u8]>::to_vec).collect();
        Box::new(move |server, thread_index| {
            permission::check_queued_command(server, thread_index, &mut client, command, &words)
        })
    }
}

/// Counts the error reply of a command that counts as done without an error already. `code` is the code of the error.
pub fn count_late_error(server: &Server, thread_index: ThreadIndex, command: usize, code: &[u8]) {
    let metrics = &server.stats.metrics;
    metrics.record_failure(thread_index, command);
    metrics.add(thread_index, Counter::ErrorReplies, 1);
    server.stats.errors.count(code);
}

/// Writes an entry's string as a bulk reply. A large refcounted value is spliced in without copying.
///
/// # Errors
/// `WRONGTYPE` if the entry is not a string.
#[inline]
pub fn reply_bulk(reply: &mut Reply<'_>, shared: &mut SharedValues<'_>, entry: EntryRef<'_, Value>) -> CommandResult {
    match entry.value() {
        ValueRef::Bytes(bytes) => reply.bulk(bytes),
        ValueRef::Int(number) => reply.bulk_integer(number),
        ValueRef::Blob(blob) => {
            if shared.takes(blob.len()) {
                reply.bulk_header(blob.len());
                shared.push(reply.out.len(), Box::new(blob.clone()));
                reply.crlf();
            } else {
                reply.bulk(blob);
            }
        }
        ValueRef::Packed(_) | ValueRef::Object(_) => return Err(CommandError::WRONG_TYPE),
    }
    Ok(())
}

/// The size in bytes above which a value is stored so that it can be sent by reference.
pub const MIN_SHARED_REPLY_BYTES: usize = 16 * 1024;

/// Has `work` done on a background thread, which sends the reply to the client, unless the mark says that the client is
/// killed by then and the command has not taken effect yet. Returns `false` if the threads have ended.
pub fn send_background_work(
    server: &Server,
    work: BackgroundWork,
    mark: Arc<KillMark>,
    requester: ParkedClient,
) -> bool {
    // CLIENT KILL neither prevents the rest of an effect, nor waits for it.
    let mark = if work.completes_effect { Arc::default() } else { mark };
    threads_of(server, work.waits_for_server).send(background_job(work, mark, requester))
}

fn background_job(mut work: BackgroundWork, mark: Arc<KillMark>, requester: ParkedClient) -> BackgroundJob {
    Box::new(move |server, seat| {
        // The reply to CLIENT KILL waits for work that takes effect, but not for another server, nor for a pause.
        let is_lasting = work.delays_kill && mark.try_begin_lasting();
        if !is_lasting && mark.is_killed() {
            return;
        }
        let thread_index = ThreadIndex::new(seat.index());
        let allowed = match &mut work.permission {
            Some(check) => check(server, thread_index),
            None => Ok(()),
        };
        let step = match allowed {
            Ok(()) => Some((work.run)(server, seat)),
            Err(PermissionLoss::Denied(bytes)) => Some(BackgroundStep::reply(bytes)),
            Err(PermissionLoss::ClientEnds) => None,
        };
        if is_lasting {
            server.end_lasting(&mark);
        }
        match step {
            // As in Valkey, everything in the propagation log so far counts as written by this client.
            Some(BackgroundStep::Reply { bytes, first_write }) => {
                server.worker(requester.worker).send(Message::Reply {
                    client: requester.client,
                    park_id: requester.park_id,
                    bytes,
                    first_write,
                    log_sequence: server.propagation.last_sequence(),
                });
            }
            Some(BackgroundStep::Continue(run)) => {
                let threads = threads_of(server, work.waits_for_server);
                // Sending fails only while the process ends.
                let _ = threads.send(background_job(BackgroundWork { run, ..work }, mark, requester));
            }
            Some(BackgroundStep::TakeEffect(run)) => {
                let work = BackgroundWork {
                    run,
                    delays_kill: true,
                    ..work
                };
                background_job(work, mark, requester)(server, seat);
            }
            Some(BackgroundStep::AwaitResumption(resumptions, run)) => {
                let threads = threads_of(server, work.waits_for_server);
                let work = BackgroundWork { run, ..work };
                let send = threads.send_later(background_job(work, mark, requester));
                server.clients.pause.run_after_resumption(resumptions, send);
            }
            None => {}
        }
    })
}

/// Returns the length that a command of a client with these flags may give a string by naming an offset, in bytes.
/// `configured` is `proto-max-bulk-len`.
///
/// A command from the primary or from the append-only file has run before, maybe with a higher limit. To refuse it
/// would lose data. The source of a slot migration is another server, which must not demand any amount of memory. If it
/// is refused, the migration fails and the source keeps the data.
fn max_string_bytes(flags: ClientFlags, configured: u64) -> u64 {
    if flags.intersects(ClientFlags::PRIMARY.union(ClientFlags::REPLAY)) {
        configured.max(MAX_REPEATED_STRING_BYTES)
    } else if flags.contains(ClientFlags::SLOT_IMPORT) {
        configured.max(MAX_IMPORTED_STRING_BYTES)
    } else {
        configured
    }
}

/// Returns the threads for a kind of work.
fn threads_of(server: &Server, waits_for_server: bool) -> &JobQueue {
    match waits_for_server {
        true => &server.background.exchanges,
        false => &server.background.long_commands,
    }
}

/// Returns the bytes of a reply that is written outside a handler, in the protocol of the client.
pub fn build_reply(protocol: Protocol, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = Reply {
        out: &mut out,
        protocol,
    };
    write(&mut reply);
    out
}
