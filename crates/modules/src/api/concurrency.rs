//! Where the commands of a module run, and the functions that get its keyspace events: what this server adds to the
//! API.

use std::ffi::c_int;

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::command::{Concurrency, ModuleCommand};
use crate::module::keyspace_events::{self, EventFunction, classes};
use crate::objects::context::Context;
use crate::session;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("SetCommandConcurrency", set_command_concurrency),
    ("SubscribeToKeyspaceEventsSlotSafe", subscribe_slot_safe),
];

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

/// Subscribes to keyspace events, for a function that several threads may call at the same time. There is no such
/// subscription to keys that are loaded.
unsafe extern "C" fn subscribe_slot_safe(
    context: *mut Context,
    wanted: c_int,
    function: Option<EventFunction>,
) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let Some((context, function)) = context.zip(function) else {
        return ERR;
    };
    // Commands that run meanwhile would not record their events.
    if wanted & classes::LOADED != 0 || session::current(|session| session.is_exclusive()) != Some(true) {
        return ERR;
    }
    keyspace_events::subscribe_slot_safe(&context.module, wanted, function);
    OK
}
