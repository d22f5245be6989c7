//! Functions about the context: the module, the client, the log, the lock of thread-safe contexts.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use weft_os::atomic::Ordering;
use weft_os::time::Instant;

use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::invoke;
use crate::module::{fork, options, post_jobs};
use crate::objects::context::Context;
use crate::objects::string::ModuleString;
use crate::session::context::flags;
use crate::session::{self, lending};

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("SetModuleOptions", set_module_options),
    ("GetModuleOptionsAll", module_options_all),
    ("UpdateRuntimeArgs", update_runtime_args),
    ("WrongArity", wrong_arity),
    ("GetClientId", client_id),
    ("SelectDb", select_db),
    ("GetSelectedDb", selected_db),
    ("GetContextFlags", context_flags),
    ("GetContextFlagsAll", context_flags_all),
    ("MustObeyClient", must_obey_client),
    ("AvoidReplicaTraffic", avoid_replica_traffic),
    ("GetServerVersion", server_version),
    ("_Assert", assert_failed),
    ("Yield", give_way),
    ("GetDetachedThreadSafeContext", detached_thread_safe_context),
    ("FreeThreadSafeContext", free_thread_safe_context),
    ("ThreadSafeContextLock", lock),
    ("ThreadSafeContextTryLock", try_lock),
    ("ThreadSafeContextUnlock", unlock),
];

/// The version of Valkey that modules see: 9.1.2.
const SERVER_VERSION: c_int = 0x0009_0102;

// ---- the module ----------------------------------------------------------------------------------------------------

unsafe extern "C" fn set_module_options(context: *mut Context, chosen: c_int) {
    // SAFETY: rule 1.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        context.module.options.store(chosen, Ordering::Relaxed);
    }
}

extern "C" fn module_options_all() -> c_int {
    options::ALL
}

/// Replaces the arguments that MODULE LIST and CONFIG REWRITE show. The first of `argv` is the name of a command.
unsafe extern "C" fn update_runtime_args(context: *mut Context, argv: *mut *mut ModuleString, argc: c_int) -> c_int {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return ERR;
    };
    let count = usize::try_from(argc).unwrap_or(0);
    let args = (1..count)
        // SAFETY: rule 1; there are `argc` strings.
        .map(|index| unsafe { ModuleString::bytes_of(*argv.add(index)) }.to_vec())
        .collect();
    *context.module.args.lock() = args;
    OK
}

// ---- the client ----------------------------------------------------------------------------------------------------

/// Replies with the error of a wrong number of arguments.
unsafe extern "C" fn wrong_arity(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    if let Some(context) = unsafe { Context::from_pointer(context) } {
        let name = context.command.get().map_or("", |command| command.full_name);
        let text = format!("ERR wrong number of arguments for '{name}' command");
        context.reply_with_error(text.as_bytes(), false, true);
    }
    OK
}

unsafe extern "C" fn client_id(context: *mut Context) -> u64 {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    context.map_or(0, |context| context.caller.borrow().client_id)
}

unsafe extern "C" fn select_db(context: *mut Context, db: c_int) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let databases = session::host().map_or(1, |host| host.databases());
    match (context, u32::try_from(db)) {
        (Some(context), Ok(db)) if db < databases => {
            context.caller.borrow_mut().db = db;
            OK
        }
        _ => ERR,
    }
}

unsafe extern "C" fn selected_db(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    context.map_or(0, |context| context.caller.borrow().db as c_int)
}

unsafe extern "C" fn context_flags(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let mut shown = session::host().map_or(0, |host| host.server_flags());
    let client_id = context.map_or(0, |context| context.caller.borrow().client_id);
    shown |= session::current(|session| session.client_flags(client_id)).unwrap_or(0);
    if context.is_some_and(|context| context.caller.borrow().protocol == weft_resp::Protocol::Resp3) {
        shown |= flags::RESP3;
    }
    if context.is_none() {
        shown &= !(flags::DENY_BLOCKING | flags::REPLICATED | flags::RESP3 | flags::MULTI_DIRTY);
    }
    shown
}

extern "C" fn context_flags_all() -> c_int {
    flags::ALL
}

unsafe extern "C" fn must_obey_client(context: *mut Context) -> c_int {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return 0;
    };
    let client_id = context.caller.borrow().client_id;
    session::current(|session| session.must_obey_client(client_id)).map_or(0, c_int::from)
}

extern "C" fn avoid_replica_traffic() -> c_int {
    session::host().map_or(0, |host| c_int::from(host.should_avoid_replica_traffic()))
}

extern "C" fn server_version() -> c_int {
    SERVER_VERSION
}

/// Ends the process after a failed assertion of a module.
unsafe extern "C" fn assert_failed(expression: *const c_char, file: *const c_char, line: c_int) {
    // SAFETY: rule 1; both are C strings.
    let (expression, file) = unsafe { (CStr::from_ptr(expression), CStr::from_ptr(file)) };
    if let Some(host) = session::host() {
        host.report_failed_assertion(expression, file, line);
    }
    // Only tests have no server.
    panic!("{file:?}:{line} {expression:?} is not true (in a module)");
}

// ---- the lock ------------------------------------------------------------------------------------------------------

thread_local! {
    /// `true` while `Yield` lets others run on this thread.
    static IS_YIELDING: Cell<bool> = const { Cell::new(false) };
}

/// The interval between two effects of `Yield`.
const YIELD_INTERVAL: Duration = Duration::from_millis(10);
/// `VALKEYMODULE_YIELD_FLAG_CLIENTS`: clients get an error meanwhile.
const YIELD_CLIENTS: c_int = 1 << 1;

/// Lets other threads, and the clients of this one, have a moment.
unsafe extern "C" fn give_way(context: *mut Context, chosen: c_int, busy_reply: *const c_char) {
    // SAFETY: rule 1.
    let Some(_context) = (unsafe { Context::from_pointer(context) }) else {
        return;
    };
    if IS_YIELDING.replace(true) {
        return;
    }
    let now = Instant::now();
    let Some(next) = invoke::next_yield() else {
        // The first time of a call. A call that gives way at all does so soon after its start.
        let threshold_ms = session::host().map_or(0, |host| host.busy_threshold_ms());
        invoke::set_next_yield(now + Duration::from_millis(threshold_ms));
        IS_YIELDING.set(false);
        return;
    };
    if now >= next {
        let busy_reply = match busy_reply.is_null() {
            true => None,
            // SAFETY: rule 1; the text is a C string.
            false => Some(unsafe { CStr::from_ptr(busy_reply) }),
        };
        session::current(|session| session.give_way(chosen & YIELD_CLIENTS != 0, busy_reply));
        invoke::set_next_yield(Instant::now() + YIELD_INTERVAL);
    }
    IS_YIELDING.set(false);
}

/// Creates a context of the module that a thread of it may use for as long as it likes.
unsafe extern "C" fn detached_thread_safe_context(context: *mut Context) -> *mut Context {
    // SAFETY: rule 1.
    let Some(context) = (unsafe { Context::from_pointer(context) }) else {
        return std::ptr::null_mut();
    };
    let caller = crate::objects::context::Caller::none();
    Box::into_raw(Box::new(Context::new(context.module.clone(), caller)))
}

/// Frees a thread-safe context.
unsafe extern "C" fn free_thread_safe_context(context: *mut Context) {
    if !context.is_null() {
        // SAFETY: rule 1: it was created as a box, and the module does not use it any more.
        drop(unsafe { Box::from_raw(context) });
    }
}

extern "C" fn lock(_context: *mut Context) {
    if let Some(host) = session::host() {
        host.start_lending();
    }
    lending::lock();
}

/// Locks if nobody has the lock, no module runs at home, and no data are being loaded. Otherwise fails with `EBUSY`.
extern "C" fn try_lock(context: *mut Context) -> c_int {
    let is_withheld = || session::host().is_some_and(|host| host.is_lock_withheld());
    if lending::is_locked() || lending::is_lent() || invoke::is_any_running() || is_withheld() {
        errno::set(libc::EBUSY);
        return ERR;
    }
    lock(context);
    OK
}

unsafe extern "C" fn unlock(context: *mut Context) {
    // The thread that has lent the session is not there in a child.
    fork::return_from_child("of the thread that has forked");
    if lending::is_last_lock() && post_jobs::are_waiting() {
        // They belong to the unit of this lock. As in Valkey, this thread runs them.
        session::current(|session| post_jobs::run_all(session));
    }
    if lending::unlock() {
        return;
    }
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let name = context.map_or_else(|| "".into(), |context| context.module.name());
    eprintln!("Module {name} has unlocked a thread-safe context without having locked it");
    std::process::abort();
}
