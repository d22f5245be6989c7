//! Functions of scripting engines.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use super::registry::c_bytes;
use super::{ERR, Functions, OK};
use crate::functions;
use crate::module::engine_debugger::{self, CommandsEnd, with_console};
use crate::module::engines::{self, Methods};
use crate::objects::call_reply::CallReply;
use crate::objects::context::Context;
use crate::objects::string::ModuleString;
use crate::session;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("RegisterScriptingEngine", register),
    ("UnregisterScriptingEngine", unregister),
    ("GetFunctionExecutionState", execution_state),
    ("ScriptingEngineDebuggerLog", debugger_log),
    ("ScriptingEngineDebuggerLogRespReplyStr", debugger_log_reply_text),
    ("ScriptingEngineDebuggerLogRespReply", debugger_log_reply),
    ("ScriptingEngineDebuggerFlushLogs", debugger_flush),
    ("ScriptingEngineDebuggerProcessCommands", debugger_process_commands),
];

/// The states of a script that runs (`ValkeyModuleScriptingEngineExecutionState`).
const EXECUTING: c_int = 0;
const KILLED: c_int = 1;

/// Registers an engine.
///
/// # Safety
/// Rule 1, and the methods are a structure of the version that it states.
unsafe extern "C" fn register(
    context: *mut Context,
    name: *const c_char,
    data: *mut c_void,
    methods: *const Methods,
) -> c_int {
    // SAFETY: the caller promises it.
    let (context, name) = unsafe { (Context::from_pointer(context), c_bytes(name)) };
    let name = name.and_then(|name| str::from_utf8(name).ok());
    let (Some(context), Some(name), false) = (context, name, methods.is_null()) else {
        return ERR;
    };
    log::debug!("Registering a new scripting engine: {name}");
    // SAFETY: the caller promises it.
    match unsafe { engines::register(&context.module, name, data, methods) } {
        true => OK,
        false => ERR,
    }
}

/// Removes an engine, with all its scripts and libraries.
unsafe extern "C" fn unregister(_context: *mut Context, name: *const c_char) -> c_int {
    // SAFETY: rule 1.
    let name = unsafe { c_bytes(name) }
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    if engines::unregister(&name) {
        return OK;
    }
    log::warn!("There's no engine registered with name {name}");
    ERR
}

/// Returns the state of the script that the thread runs.
extern "C" fn execution_state(_server: *mut c_void) -> c_int {
    match session::current(|session| session.check_script()) {
        Some(true) => KILLED,
        Some(false) | None => EXECUTING,
    }
}

/// Adds a line for the user of the debugger, and frees the string.
unsafe extern "C" fn debugger_log(line: *mut ModuleString, is_trimmed: c_int) {
    if line.is_null() {
        return;
    }
    // SAFETY: rule 1.
    let text = unsafe { ModuleString::bytes_of(line) };
    with_console(|console| console.log(text, is_trimmed != 0));
    // SAFETY: the engine gives the string away.
    unsafe { ModuleString::release(line) };
}

/// Adds a line with a reply, which is a C string.
unsafe extern "C" fn debugger_log_reply_text(reply: *const c_char) {
    // SAFETY: rule 1.
    let reply = unsafe { c_bytes(reply) }.unwrap_or_default();
    with_console(|console| console.log_reply(reply));
}

/// Adds a line with the reply of a call.
unsafe extern "C" fn debugger_log_reply(reply: *mut CallReply) {
    // SAFETY: rule 1.
    if let Some(reply) = unsafe { reply.as_ref() } {
        with_console(|console| console.log_reply(reply.proto()));
    }
}

/// Sends all lines.
extern "C" fn debugger_flush() {
    with_console(|console| console.flush());
}

/// Executes commands of the user until the script goes on.
unsafe extern "C" fn debugger_process_commands(is_disconnected: *mut c_int, error: *mut *mut ModuleString) {
    let (disconnected, text) = match engine_debugger::process_commands() {
        CommandsEnd::Continues => (0, None),
        CommandsEnd::Disconnected => (1, None),
        CommandsEnd::Failed(text) => (0, Some(text)),
    };
    // SAFETY: the engine passes places for a number and for a pointer (rule 1).
    unsafe {
        if !is_disconnected.is_null() {
            is_disconnected.write(disconnected);
        }
        if !error.is_null() {
            error.write(text.map_or(null_mut(), |text| ModuleString::create(text.as_bytes())));
        }
    }
}
