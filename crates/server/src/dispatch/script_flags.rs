//! The properties of a script that matter before it runs: its flags, and the queries of workers that it makes.

use std::sync::Arc;

use weft_base::SlotIndex;
use weft_resp::Args;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::commands::scripting::module_calls;
use crate::commands::scripting::script::busy_error_of_run;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ScriptRefusal};
use crate::replication::ReplicationState;
use crate::state::Server;
use weft_command_table::registry::Command;
use weft_config::id;
use weft_modules::module::loading;
use weft_scripting as scripting;
use weft_scripting::{Library, Script, ScriptFlags, ScriptingEngine, Scripts};

use super::leases::ANNOUNCE_AFTER_FAILURES;
use super::thread::ThreadState;

/// The name that a command gives for its script.
pub(super) enum ScriptName<'a> {
    Source(&'a [u8]),
    Digest(&'a [u8]),
    Function(&'a [u8]),
}

/// Returns the name that a command gives for its script.
pub(super) fn named<'a>(command: &Command<Binding>, args: Args<'a>) -> ScriptName<'a> {
    match command.full_name {
        "eval" | "eval_ro" => ScriptName::Source(args.argument(1)),
        "evalsha" | "evalsha_ro" => ScriptName::Digest(args.argument(1)),
        _ => ScriptName::Function(args.argument(1)),
    }
}

/// A script or function of an engine that a command names.
pub(super) enum NamedScript {
    /// A source, which may have to be compiled.
    Source(Arc<dyn ScriptingEngine>),
    /// A cached script.
    Cached(Arc<Script>),
    /// A function, and its index in the library.
    Function(Arc<Library>, usize),
}

/// Returns the script of an engine that a command names.
pub(super) fn find_engine_script(server: &Server, command: &Command<Binding>, args: Args<'_>) -> Option<NamedScript> {
    let scripts = &server.scripting;
    if !scripts.engines.any_exist() {
        return None;
    }
    match named(command, args) {
        ScriptName::Source(source) => scripts.engine_of_source(source).map(NamedScript::Source),
        ScriptName::Digest(digest) => {
            let script = scripts.cache.find(digest)?;
            script.engine.is_some().then_some(NamedScript::Cached(script))
        }
        ScriptName::Function(name) => {
            let (library, index) = scripts.libraries.current().function(name)?;
            library
                .engine
                .is_some()
                .then_some(NamedScript::Function(library, index))
        }
    }
}

/// Returns `true` if a command runs a script of an engine.
#[inline]
pub fn runs_in_engine(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    server.scripting.engines.any_exist() && find_engine_script(server, command, args).is_some()
}

/// Returns the flags of the script that a command would run, if it has any.
pub(super) fn script_flags(scripts: &Scripts, command: &Command<Binding>, args: Args<'_>) -> Option<ScriptFlags> {
    match named(command, args) {
        ScriptName::Source(source) => scripting::flags_of_source(source),
        ScriptName::Digest(digest) => scripts.cache.find(digest)?.flags,
        ScriptName::Function(name) => {
            let (library, index) = scripts.libraries.current().function(name)?;
            Some(library.functions[index].flags)
        }
    }
}

/// Returns `true` if memory is short and the script's flags say that it may need some.
#[cold]
pub fn is_denied_by_oom(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    let may_run = ScriptFlags::ALLOW_OOM;
    script_flags(&server.scripting, command, args)
        .is_some_and(|flags| !flags.contains(may_run) && !flags.contains(ScriptFlags::NO_WRITES))
}

/// Returns `true` if the script has flags and they do not promise that it writes nothing.
pub fn may_write(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    script_flags(&server.scripting, command, args).is_some_and(|flags| !flags.contains(ScriptFlags::NO_WRITES))
}

/// Returns `true` if the script, as far as is known, calls commands that query all workers.
pub fn may_query_workers(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    let scripts = &server.scripting;
    match named(command, args) {
        ScriptName::Source(source) => scripting::may_query_workers(&scripts.cache, source),
        ScriptName::Digest(digest) => scripts
            .cache
            .find(digest)
            .is_some_and(|script| script.profile.queries_workers()),
        ScriptName::Function(name) => {
            let found = scripts.libraries.current().function(name);
            found.is_some_and(|(library, index)| library.functions[index].profile.queries_workers())
        }
    }
}

/// Returns `true` if the script may call a command of a module that runs at home, or runs there itself.
pub fn may_call_modules(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    let generation = loading::generation();
    if generation == 0 {
        return false;
    }
    let scripts = &server.scripting;
    if runs_in_engine(server, command, args) {
        return true;
    }
    match named(command, args) {
        ScriptName::Source(source) => module_calls::names_module_command(source),
        ScriptName::Digest(digest) => scripts.cache.find(digest).is_some_and(|script| {
            script
                .profile
                .calls_modules(generation, || module_calls::names_module_command(&script.source))
        }),
        ScriptName::Function(name) => scripts
            .libraries
            .current()
            .function(name)
            .is_some_and(|(library, index)| {
                let profile = &library.functions[index].profile;
                profile.calls_modules(generation, || module_calls::names_module_command(&library.code))
            }),
    }
}

/// Returns `true` unless the script surely ends by itself. Functions can be replaced before they run.
pub fn may_run_forever(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    match named(command, args) {
        ScriptName::Source(source) => scripting::may_run_forever(source),
        ScriptName::Digest(digest) => {
            let script = server.scripting.cache.find(digest);
            script.is_none_or(|script| script.profile.may_run_forever())
        }
        ScriptName::Function(_) => true,
    }
}

/// Returns `true` if the script declares that it writes nothing.
#[cold]
pub fn is_declared_read_only(server: &Server, command: &Command<Binding>, args: Args<'_>) -> bool {
    script_flags(&server.scripting, command, args).is_some_and(|flags| flags.contains(ScriptFlags::NO_WRITES))
}

/// Returns the BUSY error for a command that waits for all scripts, if one is overdue.
#[cold]
pub fn busy_error(server: &Server) -> Option<CommandError> {
    busy_error_of_holder(server, None)
}

/// Returns the BUSY error for a client's command that was refused a slot, if an overdue script holds it: the slot of
/// one of `keys`, or of a key of the client's transaction, or one that the command has needed while it ran. The latter
/// is forgotten. `script_failures` is the number of attempts so far if the command runs a script. A script may also
/// have been refused another slot, or the token.
#[cold]
pub(super) fn busy_error_of_refused(
    server: &Server,
    client: &mut Client,
    keys: &[PlannedKey],
    script_failures: Option<u32>,
) -> Option<CommandError> {
    let refused_slot = client.refused_slot.take();
    if !server.scripting.running.has_overdue() {
        return None;
    }
    let refusal = client.script_refusal.filter(|_| script_failures.is_some());
    let further = match refusal {
        // Another thread than that of the overdue script may have the token for a moment.
        Some(ScriptRefusal::Token) if script_failures > Some(ANNOUNCE_AFTER_FAILURES) => return busy_error(server),
        Some(ScriptRefusal::Slot(slot)) => Some(slot),
        Some(ScriptRefusal::Token | ScriptRefusal::Home) | None => None,
    };
    let queued = client.transaction.as_deref();
    let queued = queued.map_or(&[][..], |transaction| &transaction.keys);
    let of_keys = keys.iter().chain(queued).map(|key| key.slot);
    let mut slots = of_keys.chain(further).chain(refused_slot);
    slots.find_map(|slot| busy_error_of_holder(server, Some(slot)))
}

/// Returns the BUSY error of an overdue script that holds the slot, or of any one if `slot` is `None`.
fn busy_error_of_holder(server: &Server, slot: Option<SlotIndex>) -> Option<CommandError> {
    let holder = server.scripting.running.overdue_holder(slot.map(SlotIndex::get));
    holder.map(|run| busy_error_of_run(&server.config, &run))
}

/// Checks that this server's replication state allows the script that a command would run, if it has flags.
#[cold]
pub(super) fn check_flags_of_script(
    thread: &ThreadState,
    command: &Command<Binding>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    match script_flags(&thread.server.scripting, command, args) {
        Some(flags) => check_replication_state(thread, Some(flags)),
        None => Ok(()),
    }
}

/// Checks that this server's replication state allows a script with these flags. `None` stands for a script that
/// declares nothing.
#[cold]
pub(super) fn check_replication_state(thread: &ThreadState, flags: Option<ScriptFlags>) -> Result<(), CommandError> {
    let promises = |flag: ScriptFlags| flags.is_some_and(|flags| flags.contains(flag));
    if flags.is_some() && !promises(ScriptFlags::NO_WRITES) && is_read_only(thread) {
        return Err(CommandError::constant(
            "READONLY You can't write against a read only replica.",
        ));
    }
    if is_stale(thread) && !promises(ScriptFlags::ALLOW_STALE) {
        return Err(CommandError::constant(
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ));
    }
    if flags.is_some() && !promises(ScriptFlags::NO_WRITES) && has_too_few_replicas(thread) {
        return Err(CommandError::constant("NOREPLICAS Not enough good replicas to write."));
    }
    Ok(())
}

/// Checks that the server's state allows a script that a module calls and that has these flags. A call that is not in
/// script mode is admitted without them, so the texts are those of a script that begins to run.
#[cold]
pub(super) fn check_script_of_module(thread: &ThreadState, flags: ScriptFlags) -> Result<(), CommandError> {
    if is_stale(thread) && !flags.contains(ScriptFlags::ALLOW_STALE) {
        return Err(CommandError::constant(
            "MASTERDOWN Link with MASTER is down, replica-serve-stale-data is set to 'no' and 'allow-stale' flag is not \
             set on the script.",
        ));
    }
    if flags.contains(ScriptFlags::NO_WRITES) {
        return Ok(());
    }
    if is_read_only(thread) {
        return Err(CommandError::constant(
            "READONLY Can not run script with write flag on readonly replica",
        ));
    }
    let (name, blocked) = (
        thread.server.config.product_name(),
        "but it's currently unable to persist to disk. Writable scripts are blocked. Use 'no-writes' flag for read only \
         scripts.",
    );
    if thread.tunables.refuses_writes {
        return Err(CommandError::from_text(format!(
            "MISCONF {name} is configured to save RDB snapshots, {blocked}"
        )));
    }
    if thread.tunables.is_aof_failing {
        let reason = thread.server.persistence.aof.failure_reason().unwrap_or_default();
        return Err(CommandError::from_text(format!(
            "MISCONF {name} is configured to persist data to AOF, {blocked} AOF error: {reason}"
        )));
    }
    Ok(())
}

/// Returns `true` if this server is a replica without a link that must not serve old data.
pub(super) fn is_stale(thread: &ThreadState) -> bool {
    let stale = ReplicationState::IS_REPLICA.union(ReplicationState::LINK_DOWN);
    thread.replication_state.contains(stale) && !thread.server.config.boolean(id::REPLICA_SERVE_STALE_DATA)
}

/// Returns `true` if this server is a primary with fewer replicas than writes need.
pub(super) fn has_too_few_replicas(thread: &ThreadState) -> bool {
    thread.replication_state.contains(ReplicationState::TOO_FEW_REPLICAS)
        && !thread.replication_state.contains(ReplicationState::IS_REPLICA)
}

/// Returns `true` if this server is a replica that takes no writes of clients.
pub(super) fn is_read_only(thread: &ThreadState) -> bool {
    thread.replication_state.contains(ReplicationState::IS_REPLICA)
        && thread.server.config.boolean(id::REPLICA_READ_ONLY)
}
