//! The callbacks by which modules authenticate clients.
//!
//! AUTH, and HELLO with AUTH, ask the callbacks one after the other, the one first that was registered last, until one
//! of them decides. If none does, the password decides. A callback may block the client; the next one is asked after
//! the module has unblocked it.

use std::ffi::c_int;
use std::sync::Arc;

use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::Mutex;

use super::Module;
use super::server_events::{self, ServerEvent};
use crate::invoke;
use crate::objects::blocked_client::{AuthenticationAttempt, AuthenticationCallback, BlockedClient, Waiting};
use crate::objects::context::{Caller, Context};
use crate::objects::reply::FinishedReply;
use crate::objects::string::ModuleString;
use crate::session::Session;

/// The result of a callback that has decided (`VALKEYMODULE_AUTH_HANDLED`).
const HANDLED: c_int = 0;

/// A registered callback.
#[derive(Clone)]
struct Registered {
    number: u64,
    module: Arc<Module>,
    callback: AuthenticationCallback,
}

/// The callbacks, in the order of registration.
static CALLBACKS: Mutex<Vec<Registered>> = Mutex::new(Vec::new());
/// `true` if there are some.
static HAS_CALLBACKS: AtomicBool = AtomicBool::new(false);
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// What modules have decided about a client.
#[derive(Debug)]
pub enum Decision {
    /// Nothing: the password decides.
    NotHandled,
    /// The client is logged in.
    Granted,
    /// The client is refused with this text. `None` for that of a wrong password.
    Denied(Option<Vec<u8>>),
    /// The client is refused, and a module has replied.
    Replied(FinishedReply),
    /// The client is blocked.
    Blocked,
}

/// Returns `true` if modules authenticate clients.
#[inline]
pub fn has_callbacks() -> bool {
    HAS_CALLBACKS.load(Ordering::Relaxed)
}

/// Registers a callback.
pub fn register(module: &Arc<Module>, callback: AuthenticationCallback) {
    CALLBACKS.lock().push(Registered {
        number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
        module: module.clone(),
        callback,
    });
    HAS_CALLBACKS.store(true, Ordering::Relaxed);
    let owner = Arc::downgrade(module);
    module.add_cleanup(move || {
        let mut callbacks = CALLBACKS.lock();
        callbacks.retain(|registered| !std::ptr::eq(Arc::as_ptr(&registered.module), owner.as_ptr()));
        HAS_CALLBACKS.store(!callbacks.is_empty(), Ordering::Relaxed);
    });
}

/// Asks the callbacks about a client that authenticates itself.
pub fn authenticate(
    session: &mut dyn Session,
    caller: &Caller,
    words: &[Vec<u8>],
    user: &[u8],
    password: &[u8],
) -> Decision {
    let attempt = AuthenticationAttempt {
        user: user.to_vec(),
        password: password.to_vec(),
        callback: u64::MAX,
    };
    ask_next(session, caller, words, attempt)
}

/// Goes on with the authentication of a client that a module has unblocked.
pub fn resume(session: &mut dyn Session, blocked: &Arc<BlockedClient>) -> Decision {
    let Some(attempt) = blocked.attempt.clone() else {
        return Decision::NotHandled;
    };
    let mut decision = Decision::NotHandled;
    blocked.end_authentication(session, |session, callback, context| {
        decision = ask(session, callback, context, &blocked.words, &attempt);
        c_int::from(matches!(decision, Decision::NotHandled))
    });
    match decision {
        Decision::NotHandled => ask_next(session, &blocked.caller, &blocked.words, attempt),
        decided => decided,
    }
}

/// Asks the callbacks after the one that was asked last.
fn ask_next(
    session: &mut dyn Session,
    caller: &Caller,
    words: &[Vec<u8>],
    mut attempt: AuthenticationAttempt,
) -> Decision {
    loop {
        let next = {
            let callbacks = CALLBACKS.lock();
            let next = callbacks
                .iter()
                .rev()
                .find(|registered| registered.number < attempt.callback);
            next.cloned()
        };
        let Some(registered) = next else {
            return Decision::NotHandled;
        };
        attempt.callback = registered.number;
        let context = Context::new(registered.module.clone(), caller.clone());
        match ask(session, registered.callback, context, words, &attempt) {
            Decision::NotHandled => {}
            decided => return decided,
        }
    }
}

/// Asks one callback.
fn ask(
    session: &mut dyn Session,
    callback: AuthenticationCallback,
    context: Context,
    words: &[Vec<u8>],
    attempt: &AuthenticationAttempt,
) -> Decision {
    *context.blocked.attempt.borrow_mut() = Some(attempt.clone());
    context.users.has_authenticated.set(false);
    let module = context.module.clone();
    let client_id = context.caller.borrow().client_id;
    let strings: Vec<*mut ModuleString> = words.iter().map(|word| ModuleString::create(word)).collect();
    let (user, password) = (
        ModuleString::create(&attempt.user),
        ModuleString::create(&attempt.password),
    );
    let decision = invoke::call_into(&module, session, || {
        let mut error = std::ptr::null_mut();
        // SAFETY: the context and the strings live until the function has returned. The module may retain strings.
        let result = unsafe {
            context.strings.set(&strings);
            let result = callback(context.as_pointer(), user, password, &raw mut error);
            context.strings.set(&[]);
            result
        };
        let reply = context.take_reply();
        let begun = context.blocked.begun.take();
        let decision = if begun.is_some_and(|begun| begun.waiting() != Waiting::Nobody) {
            Decision::Blocked
        } else if result != HANDLED {
            Decision::NotHandled
        } else if context.users.has_authenticated.get() {
            Decision::Granted
        } else if !reply.bytes.is_empty() {
            Decision::Replied(reply)
        } else {
            // SAFETY: the module has created the string, or has set none.
            Decision::Denied((!error.is_null()).then(|| unsafe { ModuleString::bytes_of(error) }.to_vec()))
        };
        // SAFETY: the module leaves the text to the server; this function is a holder of the other strings.
        unsafe {
            if !error.is_null() {
                context.disown(error);
                ModuleString::release(error);
            }
            for string in strings.into_iter().chain([user, password]) {
                ModuleString::release(string);
            }
        }
        drop(context);
        decision
    });
    let is_granted = matches!(decision, Decision::Granted);
    if is_granted || matches!(decision, Decision::Denied(_) | Decision::Replied(_)) {
        let attempt = ServerEvent::Authenticated {
            client_id,
            user: attempt.user.clone(),
            module: Some(module.name()),
            is_granted,
        };
        server_events::deliver(session, &attempt);
    }
    decision
}
