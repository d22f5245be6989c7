//! Functions that block clients, and unblock them.

use std::ffi::{c_int, c_longlong, c_void};
use std::sync::Arc;

use weft_base::clock;

use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::invoke;
use crate::module::Module;
use crate::objects::blocked_client::{
    AuthenticationCallback, BlockReason, BlockedClient, BlockedClientParameters, CallbackKind, Callbacks,
    CommandCallback, DisconnectCallback, FreeCallback,
};
use crate::objects::context::{Caller, Context};
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::blocking::{BlockRequest, BlockingPermission};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("BlockClient", block_client),
    ("BlockClientOnKeys", block_client_on_keys),
    ("BlockClientOnKeysWithFlags", block_client_on_keys_with_flags),
    ("BlockClientOnAuth", block_client_on_auth),
    ("BlockClientGetPrivateData", private_data),
    ("BlockClientSetPrivateData", set_private_data),
    ("SignalKeyAsReady", signal_key_as_ready),
    ("UnblockClient", unblock_client),
    ("AbortBlock", abort_block),
    ("SetDisconnectCallback", set_disconnect_callback),
    ("IsBlockedReplyRequest", is_reply_request),
    ("IsBlockedTimeoutRequest", is_timeout_request),
    ("GetBlockedClientPrivateData", context_data),
    ("GetBlockedClientReadyKey", ready_key),
    ("GetBlockedClientHandle", handle),
    ("BlockedClientDisconnected", is_disconnected),
    ("BlockedClientMeasureTimeStart", start_measuring),
    ("BlockedClientMeasureTimeEnd", stop_measuring),
    ("GetThreadSafeContext", thread_safe_context),
];

/// `VALKEYMODULE_BLOCK_UNBLOCK_DELETED`: the deletion of a key counts as a change, too.
const UNBLOCK_DELETED: c_int = 1;

/// The arguments of a function that blocks a client.
struct Request<'a> {
    reason: BlockReason,
    callbacks: Callbacks,
    data: *mut c_void,
    timeout_ms: c_longlong,
    keys: Vec<&'a [u8]>,
    includes_deletion: bool,
}

impl Request<'_> {
    fn new(reason: BlockReason, callbacks: Callbacks) -> Self {
        Request {
            reason,
            callbacks,
            data: std::ptr::null_mut(),
            timeout_ms: 0,
            keys: Vec::new(),
            includes_deletion: false,
        }
    }
}

/// Blocks the client of a context. Where it cannot be blocked although the module may expect it, the client gets an
/// error and the module a blocked client for which nobody waits.
fn block(context: &Context, request: Request<'_>) -> *mut BlockedClient {
    let caller: Caller = context.caller.borrow().clone();
    let permission = session::current(|session| session.blocking_permission(caller.client_id));
    // The command has a reply of its own, so it cannot reply that its client is not blocked.
    let is_key_event = context.blocked.kind.get() == CallbackKind::KeyEvent;
    match permission {
        None | Some(BlockingPermission::NoClient) => {
            errno::set(libc::EINVAL);
            return std::ptr::null_mut();
        }
        Some(BlockingPermission::InScript | BlockingPermission::InTransaction | BlockingPermission::Denied)
            if is_key_event =>
        {
            errno::set(libc::EINVAL);
            return std::ptr::null_mut();
        }
        Some(BlockingPermission::NotSupported) => {
            errno::set(libc::ENOTSUP);
            return std::ptr::null_mut();
        }
        Some(_) => {}
    }
    let words = context.strings.words();
    let words = words.map_or_else(Vec::new, |words| words.args().iter().map(<[u8]>::to_vec).collect());
    let attempt = context.blocked.attempt.borrow().clone();
    let blocked = BlockedClient::create(BlockedClientParameters {
        module: context.module.clone(),
        caller,
        reason: request.reason,
        words,
        attempt,
        callbacks: request.callbacks,
        data: request.data,
    });
    match refusal(context, &request, permission) {
        Err(text) => context.reply_with_error(text.as_bytes(), false, true),
        Ok(deadline_ms) => {
            session::current(|session| {
                session.block_client(BlockRequest {
                    client: &blocked,
                    keys: request.keys,
                    includes_deletion: request.includes_deletion,
                    deadline_ms,
                });
            });
        }
    }
    *context.blocked.begun.borrow_mut() = Some(blocked.clone());
    blocked.as_pointer()
}

/// Returns the end of the wait, or the error for the client if it cannot be blocked.
fn refusal(
    context: &Context,
    request: &Request<'_>,
    permission: Option<BlockingPermission>,
) -> Result<Option<u64>, &'static str> {
    let deadline_ms = match u64::try_from(request.timeout_ms) {
        Ok(0) => None,
        // A time in the past is over at once.
        Err(_) => Some(clock::unix_ms()),
        Ok(timeout_ms) => {
            let end = clock::unix_ms().checked_add(timeout_ms);
            let end = end.filter(|end| i64::try_from(*end).is_ok());
            Some(end.ok_or("ERR timeout is out of range")?)
        }
    };
    let is_authentication = request.reason == BlockReason::Authentication;
    match permission {
        Some(BlockingPermission::InScript) => Err("ERR Blocking module command called from Lua script"),
        Some(BlockingPermission::InTransaction) => Err("ERR Blocking module command called from transaction"),
        Some(BlockingPermission::Denied) => Err("ERR Blocking module command called where blocking is not allowed"),
        _ if context.blocked.kind.get() == CallbackKind::Reply && context.blocked.attempt.borrow().is_none() => {
            Err("ERR Blocking module command called from a Reply callback context")
        }
        _ if !is_authentication && context.blocked.attempt.borrow().is_some() => {
            Err("ERR Clients undergoing module based authentication can only be blocked on auth")
        }
        _ => Ok(deadline_ms),
    }
}

unsafe extern "C" fn block_client(
    context: *mut Context,
    reply: Option<CommandCallback>,
    timeout: Option<CommandCallback>,
    free: Option<FreeCallback>,
    timeout_ms: c_longlong,
) -> *mut BlockedClient {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return std::ptr::null_mut();
    };
    let callbacks = Callbacks {
        reply,
        timeout,
        free,
        ..Callbacks::default()
    };
    let mut request = Request::new(BlockReason::Module, callbacks);
    request.timeout_ms = timeout_ms;
    block(context, request)
}

unsafe extern "C" fn block_client_on_keys(
    context: *mut Context,
    reply: Option<CommandCallback>,
    timeout: Option<CommandCallback>,
    free: Option<FreeCallback>,
    timeout_ms: c_longlong,
    keys: *mut *mut ModuleString,
    count: c_int,
    data: *mut c_void,
) -> *mut BlockedClient {
    // SAFETY: the arguments are those of this function.
    unsafe { block_client_on_keys_with_flags(context, reply, timeout, free, timeout_ms, keys, count, data, 0) }
}

unsafe extern "C" fn block_client_on_keys_with_flags(
    context: *mut Context,
    reply: Option<CommandCallback>,
    timeout: Option<CommandCallback>,
    free: Option<FreeCallback>,
    timeout_ms: c_longlong,
    keys: *mut *mut ModuleString,
    count: c_int,
    data: *mut c_void,
    flags: c_int,
) -> *mut BlockedClient {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return std::ptr::null_mut();
    };
    let callbacks = Callbacks {
        reply,
        timeout,
        free,
        ..Callbacks::default()
    };
    let count = usize::try_from(count).unwrap_or(0);
    let keys = (0..count).map(|index| {
        // SAFETY: rule 1; there are `count` strings, which live until this function has returned.
        unsafe { ModuleString::bytes_of(*keys.add(index)) }
    });
    let mut request = Request::new(BlockReason::Keys, callbacks);
    request.keys = keys.collect();
    request.timeout_ms = timeout_ms;
    request.data = data;
    request.includes_deletion = flags & UNBLOCK_DELETED != 0;
    block(context, request)
}

/// Blocks a client that authenticates itself. Only within a callback that was set with `RegisterAuthCallback`.
unsafe extern "C" fn block_client_on_auth(
    context: *mut Context,
    reply: Option<AuthenticationCallback>,
    free: Option<FreeCallback>,
) -> *mut BlockedClient {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return std::ptr::null_mut();
    };
    if context.blocked.attempt.borrow().is_none() {
        let text = b"ERR Module blocking client on auth when not currently undergoing module authentication";
        context.reply_with_error(text, false, true);
        return std::ptr::null_mut();
    }
    let callbacks = Callbacks {
        authentication: reply,
        free,
        ..Callbacks::default()
    };
    block(context, Request::new(BlockReason::Authentication, callbacks))
}

// ---- blocked clients -----------------------------------------------------------------------------------------------

extern "C" fn private_data(client: *mut BlockedClient) -> *mut c_void {
    BlockedClient::find(client).map_or(std::ptr::null_mut(), |client| client.data())
}

extern "C" fn set_private_data(client: *mut BlockedClient, data: *mut c_void) {
    if let Some(client) = BlockedClient::find(client) {
        client.set_data(data);
    }
}

/// Ends the wait of a client: its reply callback is called soon. Fails for a client that waits for keys and has no
/// timeout callback, which makes the reply then.
extern "C" fn unblock_client(client: *mut BlockedClient, data: *mut c_void) -> c_int {
    let Some(client) = BlockedClient::find(client) else {
        errno::set(libc::EINVAL);
        return ERR;
    };
    if client.reason == BlockReason::Keys && !client.may_time_out() {
        errno::set(libc::ENOTSUP);
        return ERR;
    }
    unblock(client, data);
    OK
}

fn unblock(client: Arc<BlockedClient>, data: *mut c_void) {
    if client.note_unblocked(data)
        && let Some(host) = session::host()
    {
        host.end_blocked_client(client);
    }
}

/// Ends the wait of a client without a reply of the module's callbacks.
extern "C" fn abort_block(client: *mut BlockedClient) -> c_int {
    if let Some(client) = BlockedClient::find(client) {
        client.remove_reply_callbacks();
    }
    unblock_client(client, std::ptr::null_mut())
}

extern "C" fn set_disconnect_callback(client: *mut BlockedClient, callback: Option<DisconnectCallback>) {
    if let Some(client) = BlockedClient::find(client) {
        client.set_disconnect_callback(callback);
    }
}

extern "C" fn start_measuring(client: *mut BlockedClient) -> c_int {
    let client = BlockedClient::find(client);
    client.map_or(ERR, |client| {
        client.start_measuring();
        OK
    })
}

extern "C" fn stop_measuring(client: *mut BlockedClient) -> c_int {
    match BlockedClient::find(client) {
        Some(client) if client.stop_measuring() => OK,
        _ => ERR,
    }
}

unsafe extern "C" fn signal_key_as_ready(context: *mut Context, key: *mut ModuleString) {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return;
    };
    // SAFETY: rule 1.
    let name = unsafe { ModuleString::bytes_of(key) };
    let db = context.caller.borrow().db;
    session::current(|session| session.signal_key_as_ready(db, name));
}

// ---- contexts of callbacks -----------------------------------------------------------------------------------------

/// Returns 1 if the context is that of a callback of this kind.
///
/// # Safety
/// The pointer is null, or that of a context (rule 1).
unsafe fn is_kind(context: *mut Context, kind: CallbackKind) -> c_int {
    // SAFETY: the caller promises it.
    let context = unsafe { Context::from_pointer(context) };
    c_int::from(context.is_some_and(|context| context.blocked.kind.get() == kind))
}

unsafe extern "C" fn is_reply_request(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    unsafe { is_kind(context, CallbackKind::Reply) }
}

unsafe extern "C" fn is_timeout_request(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    unsafe { is_kind(context, CallbackKind::Timeout) }
}

unsafe extern "C" fn is_disconnected(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    unsafe { is_kind(context, CallbackKind::Disconnected) }
}

unsafe extern "C" fn context_data(context: *mut Context) -> *mut c_void {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    context.map_or(std::ptr::null_mut(), |context| context.blocked.data.get())
}

unsafe extern "C" fn ready_key(context: *mut Context) -> *mut ModuleString {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    context.map_or(std::ptr::null_mut(), |context| context.blocked.ready_key.get())
}

unsafe extern "C" fn handle(context: *mut Context) -> *mut BlockedClient {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let client = context.and_then(|context| context.blocked.client.borrow().clone());
    client.map_or(std::ptr::null_mut(), |client| client.as_pointer())
}

/// Creates a context for another thread. Its replies are for the blocked client; without one it belongs to no client,
/// and to the module that runs.
unsafe extern "C" fn thread_safe_context(client: *mut BlockedClient) -> *mut Context {
    let Some(client) = BlockedClient::find(client) else {
        let module = invoke::running_module().unwrap_or_else(|| Module::new(String::new()));
        let context = Context::new(module, Caller::none());
        context.reply_state.discard();
        return Box::into_raw(Box::new(context));
    };
    let context = Box::new(Context::new(client.module.clone(), client.caller.clone()));
    *context.blocked.receiver.borrow_mut() = Some(client.clone());
    *context.blocked.client.borrow_mut() = Some(client.clone());
    let pointer = Box::into_raw(context);
    client.add_context(pointer);
    pointer
}

#[cfg(test)]
mod tests;
