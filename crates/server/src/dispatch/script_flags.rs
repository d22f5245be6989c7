//! The properties of a script that matter before it runs: its flags, and the queries of workers that it makes.

use weft_resp::Args;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::commands::scripting::script::busy_error_of_run;
use crate::state::Server;
use weft_command_table::registry::Command;
use weft_scripting as scripting;
use weft_scripting::{ScriptFlags, Scripts};

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

/// Returns the flags of the script that a command would run, if it has any.
fn script_flags(scripts: &Scripts, command: &Command<Binding>, args: Args<'_>) -> Option<ScriptFlags> {
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

/// Returns the error for a client that was refused a slot, if an overdue script holds one of these slots, or any slot
/// if `all`.
#[cold]
pub fn busy_error(server: &Server, slots: impl Iterator<Item = u16>, all: bool) -> Option<CommandError> {
    let running = &server.scripting.running;
    let any = || running.overdue_holder(None);
    let holder = match all {
        true => any(),
        false => slots.into_iter().find_map(|slot| running.overdue_holder(Some(slot))),
    };
    holder.map(|run| busy_error_of_run(&run))
}
