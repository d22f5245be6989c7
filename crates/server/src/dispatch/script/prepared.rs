//! The script that a command runs, found or compiled, and the rules that its flags set.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_base::SlotIndex;
use weft_resp::Args;
use weft_resp::number::parse_i64;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::commands::scripting::script::NO_SCRIPT;
use crate::dispatch::script_flags::{self, ScriptName, named};
use crate::dispatch::thread::ThreadState;
use crate::net::client::Client;
use weft_base::slots::cluster_slot;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_config::id;
use weft_scripting as scripting;
use weft_scripting::{CurrentRun, FunctionError, Library, Program, RunParameters, ScriptFlags, ScriptRun, StopReason};

/// The run time after which a script is too long for a worker.
const MAX_TIME_ON_WORKER: Duration = Duration::from_micros(500);
/// The time for which a worker loads a library. It is longer, because a worker does so once: the functions of a library
/// that takes longer run on script threads.
const MAX_LOAD_TIME_ON_WORKER: Duration = Duration::from_millis(2);

/// A script that can run, and the parameters of its call.
pub(super) struct PreparedScript {
    pub(super) program: Rc<Program>,
    /// The number of arguments that are keys.
    pub(super) key_count: usize,
    pub(super) is_read_only: bool,
    pub(super) allows_oom: bool,
    /// `true` if, in a cluster, the keys must be in one slot.
    pub(super) must_use_one_slot: bool,
}

/// The reason why a script does not run.
pub(super) enum PrepareError {
    /// The error reply.
    Refused(CommandError),
    /// The run was stopped while a library was loaded for it.
    Stopped(StopReason),
}

impl From<CommandError> for PrepareError {
    fn from(error: CommandError) -> Self {
        PrepareError::Refused(error)
    }
}

impl PrepareError {
    /// Returns the error for a script that cannot restart, so that only the end of the process stops it.
    pub(super) fn into_error(self) -> CommandError {
        match self {
            PrepareError::Refused(error) => error,
            PrepareError::Stopped(_) => CommandError::constant("ERR The server is about to end"),
        }
    }
}

/// Returns the slot of a script's first declared key.
pub(super) fn first_slot(prepared: &PreparedScript, args: Args<'_>) -> Option<SlotIndex> {
    (prepared.must_use_one_slot && prepared.key_count > 0).then(|| cluster_slot(args.argument(3)))
}

pub(in crate::dispatch) fn key_count(args: Args<'_>, not_a_number: CommandError) -> Result<usize, CommandError> {
    let count = parse_i64(args.argument(2)).ok_or(not_a_number)?;
    let arguments = args.len() as i64 - 3;
    if count > arguments {
        return Err(CommandError::constant(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    usize::try_from(count).map_err(|_| CommandError::constant("ERR Number of keys can't be negative"))
}

/// Returns the parameters of a run that begins now. `may_leave` is set if it may move to a script thread.
pub(in crate::dispatch) fn run_parameters<'n>(
    thread: &ThreadState,
    name: &'n [u8],
    is_function: bool,
    may_leave: bool,
    args: Args<'_>,
) -> RunParameters<'n> {
    let threshold_ms = thread.server.config.unsigned(id::BUSY_REPLY_THRESHOLD);
    RunParameters {
        name,
        is_function,
        command: match thread.for_script {
            true => args.iter().map(<[u8]>::to_vec).collect(),
            false => Vec::new(),
        },
        leaves_after: may_leave.then_some(MAX_TIME_ON_WORKER),
        overdue_after: (threshold_ms > 0).then(|| Duration::from_millis(threshold_ms)),
        started: None,
    }
}

/// Returns a run that loads the library of a function, in order to call it.
fn loading_run(
    thread: &ThreadState,
    name: &[u8],
    args: Args<'_>,
    is_primary: bool,
    note_held_slots: &dyn Fn(&ScriptRun),
) -> CurrentRun {
    let run = ScriptRun::new(RunParameters {
        leaves_after: thread.may_leave.then_some(MAX_LOAD_TIME_ON_WORKER),
        ..run_parameters(thread, name, true, thread.may_leave, args)
    });
    note_held_slots(&run);
    if !thread.may_leave && !thread.for_script && !thread.replays && !is_primary {
        // Part of a transaction that keeps its worker, so FUNCTION KILL might not arrive.
        run.end_when_overdue();
    }
    CurrentRun {
        run: Arc::new(run),
        is_listed: thread.for_script,
    }
}

/// Returns `true` if code of libraries that takes this time is too long for a worker.
pub(in crate::dispatch) fn is_too_long_to_load(load_time: Duration) -> bool {
    load_time > MAX_LOAD_TIME_ON_WORKER
}

/// Runs the code of libraries on a script thread before a client's transaction, so that the transaction can call their
/// functions there at once. Each is a listed run, as if the client called a function, and holds nothing.
///
/// # Errors
/// If a library cannot be loaded on this thread, its run was killed, the client was killed, or the process is about to
/// end.
pub(in crate::dispatch) fn prepare_libraries(
    thread: &ThreadState,
    client: &Client,
    libraries: &[Arc<Library>],
    args: Args<'_>,
) -> Result<(), CommandError> {
    debug_assert!(thread.for_script, "clients can kill the runs");
    let begin = |name: &[u8]| {
        let current = loading_run(thread, name, args, false, &|_| {});
        if thread.server.clients.directory.was_killed(client) {
            current.run.stop(StopReason::Killed);
        }
        current
    };
    scripting::prepare_libraries(&thread.server.scripting, libraries, begin).map_err(|error| match error {
        FunctionError::Failed(text) => not_compiled(text),
        FunctionError::Stopped(stop) => PrepareError::Stopped(stop).into_error(),
    })
}

pub(in crate::dispatch) fn not_compiled(text: Vec<u8>) -> CommandError {
    CommandError::from_bytes([b"ERR ", &text[..]].concat())
}

/// Finds or compiles the script of a command. Also returns the number of its keys.
fn find_program(
    thread: &ThreadState,
    command: &Command<Binding>,
    args: Args<'_>,
    is_primary: bool,
    note_held_slots: &dyn Fn(&ScriptRun),
) -> Result<(Rc<Program>, usize), PrepareError> {
    let scripts = &thread.server.scripting;
    match named(command, args) {
        ScriptName::Source(source) => {
            let keys = key_count(args, CommandError::NOT_AN_INTEGER)?;
            let program = scripting::prepare_script(scripts, Some(source), b"", false).map_err(not_compiled)?;
            Ok((program, keys))
        }
        ScriptName::Digest(digest) => {
            if digest.len() != 40 {
                return Err(NO_SCRIPT.into());
            }
            let keys = key_count(args, CommandError::NOT_AN_INTEGER)?;
            let found = scripting::prepare_script(scripts, None, digest, false).map_err(|text| match text.is_empty() {
                true => NO_SCRIPT,
                false => not_compiled(text),
            });
            Ok((found?, keys))
        }
        ScriptName::Function(name) => {
            let begin = |name: &[u8]| loading_run(thread, name, args, is_primary, note_held_slots);
            let found = scripting::prepare_function(scripts, name, begin).map_err(|error| match error {
                FunctionError::Failed(text) => PrepareError::Refused(not_compiled(text)),
                FunctionError::Stopped(stop) => PrepareError::Stopped(stop),
            });
            let program = found?.ok_or(CommandError::constant("ERR Function not found"))?;
            let bad_count = CommandError::constant("ERR Bad number of keys provided");
            Ok((program, key_count(args, bad_count)?))
        }
    }
}

/// Finds or compiles the script of a command, and checks that its flags allow it to run. If the library of a function
/// has to be loaded first, that is a run of its own: `note_held_slots` records in it the slots that the thread holds.
pub(super) fn prepare_script(
    thread: &ThreadState,
    command: &Command<Binding>,
    args: Args<'_>,
    is_primary: bool,
    note_held_slots: &dyn Fn(&ScriptRun),
) -> Result<PreparedScript, PrepareError> {
    let (program, keys) = find_program(thread, command, args, is_primary, note_held_slots)?;
    check_flags(thread, command, program.flags(), is_primary)?;
    assert!(
        keys + 3 <= args.len(),
        "the declared keys of a script are among its arguments"
    );
    let flags = program.flags();
    let promises = |flag: ScriptFlags| flags.is_some_and(|flags| flags.contains(flag));
    Ok(PreparedScript {
        key_count: keys,
        is_read_only: command.spec.flags.contains(CommandFlags::READONLY) || promises(ScriptFlags::NO_WRITES),
        allows_oom: promises(ScriptFlags::ALLOW_OOM),
        must_use_one_slot: thread.view.is_some() && flags.is_some() && !promises(ScriptFlags::ALLOW_CROSS_SLOT_KEYS),
        program,
    })
}

/// Checks that the flags of a script allow the command to run it.
pub(in crate::dispatch) fn check_flags(
    thread: &ThreadState,
    command: &Command<Binding>,
    flags: Option<ScriptFlags>,
    is_primary: bool,
) -> Result<(), CommandError> {
    let must_read = command.spec.flags.contains(CommandFlags::READONLY);
    let promises = |flag: ScriptFlags| flags.is_some_and(|flags| flags.contains(flag));
    if thread.view.is_some() && promises(ScriptFlags::NO_CLUSTER) {
        return Err(CommandError::constant(
            "ERR Can not run script on cluster, 'no-cluster' flag is set.",
        ));
    }
    if !thread.replication_state.is_empty() && !is_primary {
        script_flags::check_replication_state(thread, flags)?;
    }
    if flags.is_some() && must_read && !promises(ScriptFlags::NO_WRITES) {
        return Err(CommandError::constant(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    if flags.is_some()
        && !promises(ScriptFlags::ALLOW_OOM)
        && !promises(ScriptFlags::NO_WRITES)
        && is_out_of_memory(thread)
    {
        return Err(CommandError::constant(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        ));
    }
    Ok(())
}

pub(super) fn is_out_of_memory(thread: &ThreadState) -> bool {
    thread.memory_limit.is_full
}
