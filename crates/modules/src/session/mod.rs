//! What a module may do with the data, and what it may ask of the server. The server implements these traits.
//!
//! A [`Session`] is a thread's access to the keyspace while a function of a module runs: in exclusive mode, or under
//! the leases of the keys of a command. It belongs to the thread, not to a context of the module: a thread of the
//! module that holds the lock of a thread-safe context has one as well, and so have callbacks that get no context. A
//! [`Host`] is the server without its data. Any thread may use it at any time.

pub mod before_end;
pub mod blocking;
pub mod calls;
pub mod clients;
pub mod clock;
pub mod context;
pub mod engines;
pub mod events;
#[cfg(test)]
pub mod fake;
pub mod fork;
pub mod idle;
pub mod info;
pub mod keys;
pub mod latency;
pub mod lending;
pub mod pending_calls;
pub mod registry;
pub mod types;
pub mod users;

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use weft_os::sync::OnceLock;

/// A thread's access to the keyspace while a function of a module runs.
pub trait Session:
    events::EventSession
    + blocking::BlockingSession
    + clients::ClientSession
    + users::UserSession
    + context::ContextSession
    + types::TypesSession
    + calls::CallSession
    + engines::EngineSession
    + keys::KeySession
{
}

/// The server without its data.
pub trait Host:
    events::EventHost
    + info::InfoHost
    + blocking::BlockingHost
    + clients::ClientHost
    + users::UserHost
    + registry::RegistryHost
    + context::ContextHost
    + latency::LatencyHost
    + types::TypesHost
    + calls::CallHost
    + engines::EngineHost
    + fork::ForkHost
    + Send
    + Sync
{
}

static HOST: OnceLock<&'static dyn Host> = OnceLock::new();

thread_local! {
    /// The sessions of this thread. The last one is in use; those before it wait for the end of a call that they made.
    /// `None` hides them from code that must not use them ([`without_session`]).
    static SESSIONS: RefCell<Vec<Option<NonNull<dyn Session>>>> = const { RefCell::new(Vec::new()) };
    /// The last one of them, which the functions of the API use.
    static CURRENT: Cell<Option<NonNull<dyn Session>>> = const { Cell::new(None) };
}

/// Lets this thread use a session, or none, until [`pop_session`] is called. Returns the number of its sessions.
fn push_session(session: Option<NonNull<dyn Session>>) -> usize {
    CURRENT.set(session);
    SESSIONS.with_borrow_mut(|sessions| {
        sessions.push(session);
        sessions.len()
    })
}

/// Removes the session that was pushed last. Returns the number of those that are left.
fn pop_session() -> usize {
    SESSIONS.with_borrow_mut(|sessions| {
        sessions.pop();
        CURRENT.set(sessions.last().copied().flatten());
        sessions.len()
    })
}

/// Sets the server. Later calls have no effect: there is one server in a process that loads modules.
pub fn set_host(host: &'static dyn Host) {
    let _ = HOST.set(host);
}

/// Returns the server; `None` before it is set.
pub fn host() -> Option<&'static dyn Host> {
    HOST.get().copied()
}

/// Removes the session that was pushed last, also if the function that uses it panics.
struct PushedSession;

impl Drop for PushedSession {
    fn drop(&mut self) {
        before_end::run();
        if pop_session() == 0 {
            clock::forget();
        }
    }
}

/// Calls `run`, in which the functions of the API use `session` on this thread.
pub fn with_session<R>(session: &mut dyn Session, run: impl FnOnce() -> R) -> R {
    // SAFETY: only the lifetime changes. The pointer leaves the stack before this function returns, and so before the
    // borrow ends, and meanwhile nothing else uses the session (rule 2).
    let pointer = unsafe {
        std::mem::transmute::<NonNull<dyn Session + '_>, NonNull<dyn Session + 'static>>(NonNull::from(session))
    };
    let is_first = push_session(Some(pointer)) == 1;
    let _pushed = PushedSession;
    if is_first && current(|session| session.may_run_pending_calls()).unwrap_or(false) {
        // The modules learn of values that other threads have deleted before any other code of them runs.
        pending_calls::run_pending_calls();
    }
    run()
}

/// Calls `run`, in which this thread has no session, because the caller uses it: functions of the API that need one
/// fail.
pub fn without_session<R>(run: impl FnOnce() -> R) -> R {
    push_session(None);
    let _pushed = PushedSession;
    run()
}

/// Returns `true` if code of modules runs on this thread, or if the thread holds the lock of a thread-safe context.
pub fn is_present() -> bool {
    SESSIONS.with_borrow(|sessions| !sessions.is_empty())
}

/// Calls `run` with this thread's session. Returns `None` if the thread has none: it runs no function of a module, and
/// does not hold the lock of a thread-safe context.
#[inline]
pub fn current<R>(run: impl FnOnce(&mut dyn Session) -> R) -> Option<R> {
    let mut pointer = CURRENT.get()?;
    // SAFETY: the session is borrowed by `with_session`, which has not returned, and by nothing else (rule 2).
    Some(run(unsafe { pointer.as_mut() }))
}
