//! Functions for command filters.

use std::ffi::{c_int, c_ulonglong};
use std::ptr::{null, null_mut};

use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::command_filters::{self, CommandFilter, FilterFunction, FilteredCommand};
use crate::objects::context::Context;
use crate::objects::string::ModuleString;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RegisterCommandFilter", register),
    ("UnregisterCommandFilter", unregister),
    ("CommandFilterArgsCount", count),
    ("CommandFilterArgGet", word),
    ("CommandFilterArgInsert", insert),
    ("CommandFilterArgReplace", replace),
    ("CommandFilterArgDelete", delete),
    ("CommandFilterGetClientId", client_id),
];

unsafe extern "C" fn register(
    context: *mut Context,
    function: Option<FilterFunction>,
    flags: c_int,
) -> *const CommandFilter {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    match context.zip(function) {
        Some((context, function)) => command_filters::register(&context.module, function, flags),
        None => null(),
    }
}

unsafe extern "C" fn unregister(context: *mut Context, filter: *const CommandFilter) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let is_removed = context.is_some_and(|context| command_filters::unregister(&context.module, filter));
    if is_removed { OK } else { ERR }
}

/// Calls `change` with the command of a filter and a position. Returns [`ERR`] without them.
///
/// # Safety
/// The pointer is null, or that of the command that a filter has got (rule 1).
unsafe fn at(
    command: *mut FilteredCommand,
    position: c_int,
    change: impl FnOnce(&FilteredCommand, usize) -> bool,
) -> c_int {
    // SAFETY: the caller promises it.
    let command = unsafe { command.as_ref() };
    match (command, usize::try_from(position)) {
        (Some(command), Ok(position)) if change(command, position) => OK,
        _ => ERR,
    }
}

unsafe extern "C" fn count(command: *mut FilteredCommand) -> c_int {
    // SAFETY: rule 1.
    unsafe { command.as_ref() }.map_or(0, |command| command.count() as c_int)
}

unsafe extern "C" fn word(command: *mut FilteredCommand, position: c_int) -> *mut ModuleString {
    // SAFETY: rule 1.
    let command = unsafe { command.as_ref() };
    let position = usize::try_from(position).ok();
    let found = command
        .zip(position)
        .and_then(|(command, position)| command.word(position));
    found.unwrap_or(null_mut())
}

unsafe extern "C" fn insert(command: *mut FilteredCommand, position: c_int, word: *mut ModuleString) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        at(command, position, |command, at| {
            !word.is_null() && command.insert(at, word)
        })
    }
}

unsafe extern "C" fn replace(command: *mut FilteredCommand, position: c_int, word: *mut ModuleString) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        at(command, position, |command, at| {
            !word.is_null() && command.replace(at, word)
        })
    }
}

unsafe extern "C" fn delete(command: *mut FilteredCommand, position: c_int) -> c_int {
    // SAFETY: rule 1.
    unsafe { at(command, position, FilteredCommand::delete) }
}

unsafe extern "C" fn client_id(command: *mut FilteredCommand) -> c_ulonglong {
    // SAFETY: rule 1.
    unsafe { command.as_ref() }.map_or(0, |command| command.client_id)
}
