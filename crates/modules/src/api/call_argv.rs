//! Calling a command whose reply goes to functions of the module, one for each type.
//!
//! Valkey does not offer these functions through `GetApi` yet; modules that are linked with the server find them as
//! symbols of the program (`native/calls.c`).

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::api::calls::{call_command, refusal_reply};
use crate::api::{ERR, OK};
use crate::errno;
use crate::objects::arguments::{CallFlags, CommandWords};
use crate::objects::context::Context;
use crate::objects::promise::Promise;
use crate::objects::reply_receiver::{REPLY_HANDLERS_VERSION, ReplyHandlers, ReplyReceiver};
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::calls::CallOutcome;

/// Calls a command, and passes its reply to functions of the module.
///
/// # Safety
/// The context is one; there are `count` strings at `words`; `handlers` is null or the functions of a module, which may
/// be called with the data (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_call_argv(
    context: *mut Context,
    words: *const *const ModuleString,
    count: c_int,
    flags: c_int,
    handlers: *const ReplyHandlers,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises it.
    let (context, handlers) = unsafe { (Context::from_pointer(context), handlers.as_ref()) };
    let Some(context) = context else {
        return ERR;
    };
    assert!(
        handlers.is_none_or(|handlers| handlers.version == REPLY_HANDLERS_VERSION),
        "the module '{}' passes functions for replies of an unknown version",
        context.module.name()
    );
    let receiver = handlers.map(|handlers| ReplyReceiver::new(*handlers, data));
    let mut command = CommandWords::default();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller promises it.
        if !command.push(unsafe { ModuleString::bytes_of(*words.add(index)) }) {
            errno::set(libc::EINVAL);
            return ERR;
        }
    }
    let flags = CallFlags::from_bits_truncate(flags.cast_unsigned());
    let (bytes, result) = match call_command(context, &command, flags) {
        CallOutcome::Replied(bytes) => (bytes, OK),
        CallOutcome::Refused(refusal) => {
            let is_reply = flags.contains(CallFlags::ERRORS_AS_REPLIES);
            let result = if is_reply { OK } else { ERR };
            (refusal_reply(refusal.text).unwrap_or_default(), result)
        }
        CallOutcome::Blocked(promise) => {
            if let Some(receiver) = receiver {
                promise.set_receiver(receiver);
                // The server keeps the promise until the command replies or is aborted.
                // SAFETY: the handle is that of the promise, which lives as long as the command is blocked.
                unsafe { receiver.note_blocked(context, Arc::as_ptr(&promise).cast()) };
            }
            return OK;
        }
    };
    if let Some(receiver) = receiver {
        receiver.receive(context, bytes);
    }
    result
}

/// Takes back a blocked command.
///
/// # Safety
/// The handle is that which the module got when the command was blocked, and the command has not replied (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_call_argv_abort(handle: *const Promise) -> c_int {
    // SAFETY: the caller promises it.
    let Some(promise) = (unsafe { handle.as_ref() }) else {
        return ERR;
    };
    if !promise.is_pending() {
        return ERR;
    }
    // The server may give up the last reference to the promise.
    // SAFETY: the handle is that of a shared promise, which lives.
    let promise = unsafe {
        Arc::increment_strong_count(handle);
        Arc::from_raw(std::ptr::from_ref(promise))
    };
    match session::current(|session| session.abort_call(&promise)) {
        Some(true) if promise.end().is_some() => OK,
        _ => ERR,
    }
}

/// Replies to the client with bytes that are a reply already.
///
/// # Safety
/// The context is one, and there are `length` bytes (rule 1).
#[unsafe(no_mangle)]
unsafe extern "C" fn weft_modules_reply_raw(context: *mut Context, bytes: *const c_char, length: usize) -> c_int {
    // SAFETY: the caller promises it.
    if let Some(context) = unsafe { Context::from_pointer(context) }
        && length > 0
    {
        // SAFETY: the caller promises it.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
        context.reply_with_proto(bytes, false);
    }
    OK
}
