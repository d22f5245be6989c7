//! Clients that modules have blocked (`ValkeyModuleBlockedClient`).
//!
//! ```text
//!   BlockClient ─▶ waits ─┬─ UnblockClient (any thread) ─▶ home worker: reply callback ─▶ reply ─┐
//!                         ├─ a key is ready ─▶ home worker: reply callback agrees ─▶ reply ──────┤
//!                         ├─ time is over ─▶ home worker: timeout callback ─▶ reply              ├─▶ free callback
//!                         └─ client ends ─▶ home worker: disconnect callback                     │
//!                                              └─ the module calls UnblockClient later ──────────┘
//! ```
//!
//! 1. The server has a client wait ([`Waiting`]), or nobody: the command runs in a script or a transaction, or its
//!    client has gone. Only the home worker changes that, so the ends of a wait do not race with each other.
//! 2. The module has the address. It is valid until the object has ended; [`BlockedClient::find`] checks that.
//! 3. A client that the module has blocked without keys stays in the count of the module until the module unblocks it,
//!    even if its time is over or it has gone. One that waits for keys ends by itself.
//! 4. A client may go after the module has unblocked it, and before the home worker handles that. As in Valkey, the
//!    disconnect callback is then called before the free callback. The data of the first call of UnblockClient count:
//!    the disconnect callback may unblock the client again.
//! 5. Replies of thread-safe contexts are collected ([`BlockedClient::collect_replies`]), and follow that of the
//!    callback.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use weft_os::atomic::Ordering;
use weft_os::sync::Mutex;
use weft_os::time::Instant;
use weft_resp::Protocol;

use crate::api::OK;
use crate::invoke;
use crate::module::Module;
use crate::objects::context::{Caller, Context};
use crate::objects::reply::FinishedReply;
use crate::objects::string::ModuleString;
use crate::session::Session;

mod context_state;

pub use context_state::{AuthenticationAttempt, BlockedState, CallbackKind};

/// A callback with the arguments of a command (`ValkeyModuleCmdFunc`).
pub type CommandCallback = unsafe extern "C" fn(*mut Context, *mut *mut ModuleString, c_int) -> c_int;
/// A callback that authenticates a client (`ValkeyModuleAuthCallback`).
pub type AuthenticationCallback =
    unsafe extern "C" fn(*mut Context, *mut ModuleString, *mut ModuleString, *mut *mut ModuleString) -> c_int;
/// A callback that frees the data of a blocked client.
pub type FreeCallback = unsafe extern "C" fn(*mut Context, *mut c_void);
/// A callback for the end of a blocked client's connection (`ValkeyModuleDisconnectFunc`).
pub type DisconnectCallback = unsafe extern "C" fn(*mut Context, *mut BlockedClient);

/// What a client is blocked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// The module.
    Module,
    /// Keys.
    Keys,
    /// The module, which authenticates the client.
    Authentication,
}

/// What waits for the end of a blocked client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing.
    Nobody,
    /// The connection that is parked under this id.
    Connection(u64),
    /// The call of a module, whose promise the server knows by this number.
    Call(u64),
}

/// The callbacks of a blocked client.
#[derive(Clone, Copy, Default)]
pub struct Callbacks {
    /// Makes the reply.
    pub reply: Option<CommandCallback>,
    /// Goes on with an authentication.
    pub authentication: Option<AuthenticationCallback>,
    /// Makes the reply once the time is over.
    pub timeout: Option<CommandCallback>,
    /// Frees the data.
    pub free: Option<FreeCallback>,
    /// Notes that the client has gone.
    pub disconnect: Option<DisconnectCallback>,
}

/// What changes while a client is blocked.
struct State {
    callbacks: Callbacks,
    waiting: Waiting,
    /// `true` once the module has unblocked it.
    is_unblocked: bool,
    /// `true` once everything is over: the module must not use its address any more.
    has_ended: bool,
    /// The data of the module.
    data: *mut c_void,
    /// The replies of thread-safe contexts.
    reply: FinishedReply,
    /// The thread-safe contexts that have not been freed.
    contexts: Vec<*const Context>,
    /// The start of the time that the module measures.
    measured_from: Option<Instant>,
    /// The time that the module has measured.
    measured: Duration,
    /// The strings in which the module got the words of the command. Modules use them until they unblock the client.
    strings: Vec<*mut ModuleString>,
}

// SAFETY: the pointers are only passed back to the module, or used where rule 1 of the crate allows it.
unsafe impl Send for State {}

/// A client that a module has blocked.
pub struct BlockedClient {
    /// The module.
    pub module: Arc<Module>,
    /// Whose command it was.
    pub caller: Caller,
    /// What it is blocked on.
    pub reason: BlockReason,
    /// The words of the command.
    pub words: Vec<Vec<u8>>,
    /// What a client that authenticates itself has sent, and how far that has come.
    pub attempt: Option<AuthenticationAttempt>,
    state: Mutex<State>,
}

impl std::fmt::Debug for BlockedClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("BlockedClient");
        shown
            .field("client", &self.caller.client_id)
            .field("reason", &self.reason);
        shown.finish_non_exhaustive()
    }
}

/// The reply to a client whose wait has ended.
#[derive(Debug, Default)]
pub struct EndedBlock {
    /// The reply.
    pub reply: FinishedReply,
    /// The time that the module has measured, and that the callback has taken, in nanoseconds.
    pub nanoseconds: u64,
}

/// The blocked clients of all modules, by address.
static BLOCKED: LazyLock<Mutex<HashMap<usize, Arc<BlockedClient>>>> = LazyLock::new(Mutex::default);

/// The arguments of a new blocked client.
pub struct BlockedClientParameters {
    /// The module.
    pub module: Arc<Module>,
    /// Whose command it was.
    pub caller: Caller,
    /// What it is blocked on.
    pub reason: BlockReason,
    /// The words of the command.
    pub words: Vec<Vec<u8>>,
    /// The authentication.
    pub attempt: Option<AuthenticationAttempt>,
    /// The callbacks.
    pub callbacks: Callbacks,
    /// The data of the module.
    pub data: *mut c_void,
}

impl BlockedClient {
    /// Creates a blocked client for which nobody waits yet.
    pub fn create(parameters: BlockedClientParameters) -> Arc<BlockedClient> {
        let blocked = Arc::new(BlockedClient {
            module: parameters.module,
            caller: parameters.caller,
            reason: parameters.reason,
            words: parameters.words,
            attempt: parameters.attempt,
            state: Mutex::new(State {
                callbacks: parameters.callbacks,
                waiting: Waiting::Nobody,
                is_unblocked: false,
                has_ended: false,
                data: parameters.data,
                reply: FinishedReply::default(),
                contexts: Vec::new(),
                measured_from: None,
                measured: Duration::ZERO,
                strings: Vec::new(),
            }),
        });
        blocked.module.usage.blocked_clients.fetch_add(1, Ordering::AcqRel);
        BLOCKED.lock().insert(blocked.as_pointer() as usize, blocked.clone());
        blocked
    }

    /// Keeps the strings in which the module got the words of the command, and their places in memory.
    ///
    /// # Safety
    /// The caller is a holder of each string, and gives that up.
    pub unsafe fn keep_strings(&self, strings: Vec<*mut ModuleString>) {
        self.state.lock().strings = strings;
    }

    /// Returns the pointer that the module gets.
    pub fn as_pointer(self: &Arc<Self>) -> *mut BlockedClient {
        Arc::as_ptr(self).cast_mut()
    }

    /// Returns the blocked client behind a module's pointer; `None` if it has ended, or for null.
    pub fn find(pointer: *const BlockedClient) -> Option<Arc<BlockedClient>> {
        BLOCKED.lock().get(&(pointer as usize)).cloned()
    }

    /// Returns what waits for it.
    pub fn waiting(&self) -> Waiting {
        self.state.lock().waiting
    }

    /// Records what waits for it.
    pub fn set_waiting(&self, waiting: Waiting) {
        self.state.lock().waiting = waiting;
    }

    /// Returns `true` once the module has unblocked it.
    pub fn is_unblocked(&self) -> bool {
        self.state.lock().is_unblocked
    }

    /// Returns `true` if it has a timeout callback, so that CLIENT UNBLOCK may end it.
    pub fn may_time_out(&self) -> bool {
        self.state.lock().callbacks.timeout.is_some()
    }

    /// Returns the data of the module.
    pub fn data(&self) -> *mut c_void {
        self.state.lock().data
    }

    /// Sets the data of the module.
    pub fn set_data(&self, data: *mut c_void) {
        self.state.lock().data = data;
    }

    /// Sets the callback for the end of the client's connection.
    pub fn set_disconnect_callback(&self, callback: Option<DisconnectCallback>) {
        self.state.lock().callbacks.disconnect = callback;
    }

    /// Removes the callbacks that make a reply.
    pub fn remove_reply_callbacks(&self) {
        let callbacks = &mut self.state.lock().callbacks;
        (callbacks.reply, callbacks.authentication, callbacks.disconnect) = (None, None, None);
    }

    /// Notes that the module has unblocked the client. Returns `false` if it has done so before: the data of the first
    /// time stay then, so that they are freed.
    pub fn note_unblocked(&self, data: *mut c_void) -> bool {
        self.collect_replies();
        let mut state = self.state.lock();
        let is_first = !std::mem::replace(&mut state.is_unblocked, true);
        if is_first && self.reason != BlockReason::Keys {
            state.data = data;
        }
        is_first
    }

    // ---- measuring -------------------------------------------------------------------------------------------------

    /// Starts to measure the time that the module takes.
    pub fn start_measuring(&self) {
        self.state.lock().measured_from = Some(Instant::now());
    }

    /// Stops measuring. Returns `false` if it was not started.
    pub fn stop_measuring(&self) -> bool {
        let mut state = self.state.lock();
        let Some(start) = state.measured_from else {
            return false;
        };
        state.measured += start.elapsed();
        true
    }

    /// Returns the time that the module has measured, in nanoseconds.
    pub fn measured_ns(&self) -> u64 {
        self.state.lock().measured.as_nanos() as u64
    }

    // ---- thread-safe contexts --------------------------------------------------------------------------------------

    /// Adds a thread-safe context, whose replies are for this client.
    pub fn add_context(&self, context: *const Context) {
        self.state.lock().contexts.push(context);
    }

    /// Removes a thread-safe context that is about to be freed, and takes its reply.
    pub fn remove_context(&self, context: &Context) {
        let mut state = self.state.lock();
        state.contexts.retain(|other| !std::ptr::eq(*other, context));
        append(&mut state.reply, context.take_reply());
    }

    /// Takes the replies of all thread-safe contexts.
    pub fn collect_replies(&self) {
        let mut state = self.state.lock();
        for index in 0..state.contexts.len() {
            // SAFETY: a context removes itself before it ends. The module does not use it on another thread while it
            // unblocks the client.
            let reply = unsafe { &*state.contexts[index] }.take_reply();
            append(&mut state.reply, reply);
        }
    }

    // ---- callbacks -------------------------------------------------------------------------------------------------

    /// Creates the context of a callback.
    pub fn context(self: &Arc<Self>, kind: CallbackKind) -> Context {
        let context = Context::new(self.module.clone(), self.caller.clone());
        context.blocked.kind.set(kind);
        context.blocked.data.set(self.data());
        *context.blocked.client.borrow_mut() = Some(self.clone());
        context
    }

    /// Calls a callback with the words of the command. Returns its result and its reply.
    fn call(
        self: &Arc<Self>,
        session: &mut dyn Session,
        callback: CommandCallback,
        context: Context,
    ) -> (c_int, FinishedReply) {
        let mut strings: Vec<*mut ModuleString> = self.words.iter().map(|word| ModuleString::create(word)).collect();
        invoke::call_into(&self.module, session, || {
            // SAFETY: the context and the strings live until the function has returned. The module may retain strings.
            let result = unsafe {
                context.strings.set(&strings);
                let result = callback(context.as_pointer(), strings.as_mut_ptr(), strings.len() as c_int);
                context.strings.set(&[]);
                result
            };
            for string in strings {
                // SAFETY: this function is a holder of each string.
                unsafe { ModuleString::release(string) };
            }
            let reply = context.take_reply();
            drop(context);
            (result, reply)
        })
    }

    /// Ends a client that the module has unblocked. Returns the reply, if something waits for it. Not for one that
    /// authenticates itself, as long as something waits for it.
    pub fn end(self: &Arc<Self>, session: &mut dyn Session) -> Option<EndedBlock> {
        let (waits, callbacks) = {
            let state = self.state.lock();
            (state.waiting != Waiting::Nobody, state.callbacks)
        };
        let start = Instant::now();
        let mut reply = FinishedReply::default();
        let callback = match self.reason {
            BlockReason::Module => callbacks.reply.map(|callback| (callback, CallbackKind::Reply)),
            // The module has unblocked it before a key was ready.
            BlockReason::Keys => callbacks.timeout.map(|callback| (callback, CallbackKind::Timeout)),
            BlockReason::Authentication => None,
        };
        if let Some((callback, kind)) = callback.filter(|_| waits) {
            reply = self.call(session, callback, self.context(kind)).1;
        }
        let called = start.elapsed();
        self.finish(session);
        self.collect_replies();
        let mut state = self.state.lock();
        append(&mut reply, std::mem::take(&mut state.reply));
        waits.then(|| EndedBlock {
            reply,
            nanoseconds: (state.measured + called).as_nanos() as u64,
        })
    }

    /// Lets the module reply to a client whose time is over. Returns `None` if it was unblocked before.
    pub fn time_out(self: &Arc<Self>, session: &mut dyn Session) -> Option<EndedBlock> {
        let callback = {
            let mut state = self.state.lock();
            if state.is_unblocked || state.waiting == Waiting::Nobody {
                return None;
            }
            state.callbacks.disconnect = None;
            state.callbacks.timeout
        };
        let mut ended = EndedBlock::default();
        if let Some(callback) = callback {
            ended.reply = self.call(session, callback, self.context(CallbackKind::Timeout)).1;
        }
        ended.nanoseconds = self.state.lock().measured.as_nanos() as u64;
        self.abandon(session);
        Some(ended)
    }

    /// Lets the module know that the client has gone, or does not wait any more.
    pub fn disconnect(self: &Arc<Self>, session: &mut dyn Session) {
        let callback = {
            let mut state = self.state.lock();
            if state.waiting == Waiting::Nobody {
                return;
            }
            state.callbacks.disconnect.take()
        };
        if let Some(callback) = callback {
            let context = self.context(CallbackKind::None);
            invoke::call_into(&self.module, session, || {
                // SAFETY: the context lives until the function has returned.
                unsafe { callback(context.as_pointer(), self.as_pointer()) };
                drop(context);
            });
        }
        self.abandon(session);
    }

    /// Notes that nothing waits any more. What waited for keys ends with that.
    fn abandon(self: &Arc<Self>, session: &mut dyn Session) {
        let ends = {
            let mut state = self.state.lock();
            state.waiting = Waiting::Nobody;
            self.reason == BlockReason::Keys && !state.is_unblocked
        };
        if ends {
            self.finish(session);
        }
    }

    /// Lets the module serve a client that waits for keys, one of which is ready. Returns `None` if it does not.
    pub fn serve(self: &Arc<Self>, session: &mut dyn Session, key: &[u8]) -> Option<EndedBlock> {
        let callback = {
            let state = self.state.lock();
            if state.is_unblocked || state.waiting == Waiting::Nobody {
                return None;
            }
            state.callbacks.reply?
        };
        let start = Instant::now();
        let context = self.context(CallbackKind::Reply);
        let ready_key = ModuleString::create(key);
        context.blocked.ready_key.set(ready_key);
        let (result, reply) = self.call(session, callback, context);
        // SAFETY: this function is a holder of the string.
        unsafe { ModuleString::release(ready_key) };
        if result != OK {
            return None;
        }
        let nanoseconds = (self.state.lock().measured + start.elapsed()).as_nanos() as u64;
        self.finish(session);
        Some(EndedBlock { reply, nanoseconds })
    }

    /// Calls the callback that goes on with an authentication, and ends. Returns its result, if there is one.
    pub fn end_authentication(
        self: &Arc<Self>,
        session: &mut dyn Session,
        call: impl FnOnce(&mut dyn Session, AuthenticationCallback, Context) -> c_int,
    ) -> Option<c_int> {
        let callback = self.state.lock().callbacks.authentication;
        let result = callback.map(|callback| call(session, callback, self.context(CallbackKind::Reply)));
        self.finish(session);
        result
    }

    /// Frees the data of the module, and ends: the address is not valid any more.
    fn finish(self: &Arc<Self>, session: &mut dyn Session) {
        let (free, data, is_waiting) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.has_ended, true) {
                return;
            }
            (state.callbacks.free, state.data, state.waiting != Waiting::Nobody)
        };
        if let Some(free) = free.filter(|_| !data.is_null()) {
            let kind = match is_waiting {
                true => CallbackKind::None,
                false => CallbackKind::Disconnected,
            };
            let context = self.context(kind);
            invoke::call_into(&self.module, session, || {
                // SAFETY: the context lives until the function has returned; the data are the module's.
                unsafe { free(context.as_pointer(), data) };
                drop(context);
            });
        }
        self.state.lock().waiting = Waiting::Nobody;
        BLOCKED.lock().remove(&(self.as_pointer() as usize));
        self.module.usage.blocked_clients.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the protocol of its reply.
    pub fn protocol(&self) -> Protocol {
        self.caller.protocol
    }
}

impl Drop for BlockedClient {
    fn drop(&mut self) {
        for string in self.state.get_mut().strings.drain(..) {
            // SAFETY: this object is a holder of each string.
            unsafe { ModuleString::release(string) };
        }
    }
}

/// Appends a reply to another one.
fn append(reply: &mut FinishedReply, mut further: FinishedReply) {
    reply.bytes.append(&mut further.bytes);
    reply.errors.append(&mut further.errors);
}

#[cfg(test)]
mod tests;
