//! The script that a command runs, found or compiled, and the rules that its flags set.

use std::rc::Rc;

use weft_base::SlotIndex;
use weft_resp::Args;
use weft_resp::number::parse_i64;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::commands::scripting::script::NO_SCRIPT;
use crate::dispatch::script_flags::{self, ScriptName, named};
use crate::dispatch::thread::ThreadState;
use weft_base::slots::cluster_slot;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_scripting as scripting;
use weft_scripting::{Program, ScriptFlags};

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

/// Returns the slot of a script's first declared key.
pub(super) fn first_slot(prepared: &PreparedScript, args: Args<'_>) -> Option<SlotIndex> {
    (prepared.must_use_one_slot && prepared.key_count > 0).then(|| cluster_slot(args.argument(3)))
}

fn key_count(args: Args<'_>, not_a_number: CommandError) -> Result<usize, CommandError> {
    let count = parse_i64(args.argument(2)).ok_or(not_a_number)?;
    let arguments = args.len() as i64 - 3;
    if count > arguments {
        return Err(CommandError::constant(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    usize::try_from(count).map_err(|_| CommandError::constant("ERR Number of keys can't be negative"))
}

/// Finds or compiles the script of a command.
pub(super) fn prepare_script(
    thread: &ThreadState,
    command: &Command<Binding>,
    args: Args<'_>,
    is_primary: bool,
) -> Result<PreparedScript, CommandError> {
    let scripts = &thread.server.scripting;
    let not_compiled = |text: Vec<u8>| CommandError::from_bytes([b"ERR ", &text[..]].concat());
    let (program, keys) = match named(command, args) {
        ScriptName::Source(source) => {
            let keys = key_count(args, CommandError::NOT_AN_INTEGER)?;
            (
                scripting::prepare_script(scripts, Some(source), b"", false).map_err(not_compiled)?,
                keys,
            )
        }
        ScriptName::Digest(digest) => {
            if digest.len() != 40 {
                return Err(NO_SCRIPT);
            }
            let keys = key_count(args, CommandError::NOT_AN_INTEGER)?;
            let found = scripting::prepare_script(scripts, None, digest, false).map_err(|text| match text.is_empty() {
                true => NO_SCRIPT,
                false => not_compiled(text),
            });
            (found?, keys)
        }
        ScriptName::Function(name) => {
            let found = scripting::prepare_function(scripts, name).map_err(not_compiled)?;
            let program = found.ok_or(CommandError::constant("ERR Function not found"))?;
            let bad_count = CommandError::constant("ERR Bad number of keys provided");
            (program, key_count(args, bad_count)?)
        }
    };
    let must_read = command.spec.flags.contains(CommandFlags::READONLY);
    let flags = program.flags();
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
    assert!(
        keys + 3 <= args.len(),
        "the declared keys of a script are among its arguments"
    );
    Ok(PreparedScript {
        key_count: keys,
        is_read_only: must_read || promises(ScriptFlags::NO_WRITES),
        allows_oom: promises(ScriptFlags::ALLOW_OOM),
        must_use_one_slot: thread.view.is_some() && flags.is_some() && !promises(ScriptFlags::ALLOW_CROSS_SLOT_KEYS),
        program,
    })
}

pub(super) fn is_out_of_memory(thread: &ThreadState) -> bool {
    thread.memory_limit.is_full
}
