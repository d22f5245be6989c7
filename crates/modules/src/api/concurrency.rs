//! Where the commands of a module run: what this server adds to the API.

use std::ffi::c_int;

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::command::ModuleCommand;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![("SetCommandConcurrency", set_command_concurrency)];

/// `WEFTMODULE_HOME`: the command runs on the home worker, in exclusive mode.
const HOME: c_int = 0;
/// `WEFTMODULE_SLOT_SAFE`: the command runs on the worker of its client, under the leases of its keys.
const SLOT_SAFE: c_int = 2;

/// Declares where a command runs. Fails for a way that this server does not have.
unsafe extern "C" fn set_command_concurrency(command: *const ModuleCommand, concurrency: c_int) -> c_int {
    // SAFETY: rule 1; commands are never freed.
    match (unsafe { command.as_ref() }, concurrency) {
        (Some(command), HOME | SLOT_SAFE) => {
            command.set_slot_safe(concurrency == SLOT_SAFE);
            OK
        }
        _ => ERR,
    }
}
