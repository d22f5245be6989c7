//! Where the commands of a module run: what this server adds to the API.

use std::ffi::c_int;

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::command::{Concurrency, ModuleCommand};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![("SetCommandConcurrency", set_command_concurrency)];

/// The ways, each with its number in `weftmodule.h` as its index.
const WAYS: [Concurrency; 3] = [Concurrency::Home, Concurrency::Serial, Concurrency::SlotSafe];

/// Declares where a command runs. Fails for a way that this server does not have.
unsafe extern "C" fn set_command_concurrency(command: *const ModuleCommand, concurrency: c_int) -> c_int {
    let way = usize::try_from(concurrency).ok().and_then(|number| WAYS.get(number));
    // SAFETY: rule 1; commands are never freed.
    match (unsafe { command.as_ref() }, way) {
        (Some(command), Some(way)) => {
            command.set_concurrency(*way);
            OK
        }
        _ => ERR,
    }
}
