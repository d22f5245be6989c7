//! Functions for what happens later: timers, watched descriptors, jobs after an event, authentication.

use std::ffi::{c_int, c_longlong, c_void};

use super::{ERR, Functions, OK};
use crate::errno;
use crate::functions;
use crate::module::authentication;
use crate::module::post_jobs::{self, FreeFunction, JobFunction};
use crate::module::timers::{self, TimerFunction};
use crate::module::watched_fds::{self, EventFunction, OneShotFunction, READABLE, WRITABLE};
use crate::objects::blocked_client::AuthenticationCallback;
use crate::objects::context::Context;
use crate::session;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("CreateTimer", create_timer),
    ("StopTimer", stop_timer),
    ("GetTimerInfo", timer_info),
    ("EventLoopAdd", event_loop_add),
    ("EventLoopDel", event_loop_del),
    ("EventLoopAddOneShot", event_loop_add_one_shot),
    ("AddPostNotificationJob", add_post_notification_job),
    ("RegisterAuthCallback", register_auth_callback),
];

// ---- timers --------------------------------------------------------------------------------------------------------

/// Creates a timer that is due after this many milliseconds. Returns its number.
unsafe extern "C" fn create_timer(
    context: *mut Context,
    period_ms: c_longlong,
    function: Option<TimerFunction>,
    data: *mut c_void,
) -> u64 {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let (Some(context), Some(function)) = (context, function) else {
        return 0;
    };
    let db = context.caller.borrow().db;
    let (number, is_first) = timers::create(&context.module, db, period_ms, function, data);
    if is_first && let Some(host) = session::host() {
        host.wake_home();
    }
    number
}

unsafe extern "C" fn stop_timer(context: *mut Context, number: u64, data: *mut *mut c_void) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let Some(stopped) = context.and_then(|context| timers::stop(&context.module, number)) else {
        return ERR;
    };
    if !data.is_null() {
        // SAFETY: it is a place for a pointer.
        unsafe { data.write(stopped) };
    }
    OK
}

unsafe extern "C" fn timer_info(
    context: *mut Context,
    number: u64,
    remaining_ms: *mut u64,
    data: *mut *mut c_void,
) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let Some((remaining, found)) = context.and_then(|context| timers::find(&context.module, number)) else {
        return ERR;
    };
    // SAFETY: both are null, or places for the results.
    unsafe {
        if !remaining_ms.is_null() {
            remaining_ms.write(remaining);
        }
        if !data.is_null() {
            data.write(found);
        }
    }
    OK
}

// ---- descriptors ---------------------------------------------------------------------------------------------------

/// Returns `false` after setting the error number if the server cannot watch this descriptor.
fn is_in_range(fd: c_int) -> bool {
    let limit = session::host().map_or(usize::MAX, |host| host.max_watched_fds());
    let is_in_range = usize::try_from(fd).is_ok_and(|fd| fd < limit);
    if !is_in_range {
        errno::set(libc::ERANGE);
    }
    is_in_range
}

extern "C" fn event_loop_add(fd: c_int, mask: c_int, function: Option<EventFunction>, data: *mut c_void) -> c_int {
    if !is_in_range(fd) {
        return ERR;
    }
    let Some(function) = function.filter(|_| mask & !(READABLE | WRITABLE) == 0) else {
        errno::set(libc::EINVAL);
        return ERR;
    };
    match watched_fds::add(fd, mask, function, data) {
        Ok(()) => {
            errno::set(0);
            OK
        }
        Err(error) => {
            errno::set(error.raw_os_error().unwrap_or(libc::EINVAL));
            ERR
        }
    }
}

extern "C" fn event_loop_del(fd: c_int, mask: c_int) -> c_int {
    if !is_in_range(fd) {
        return ERR;
    }
    if mask & !(READABLE | WRITABLE) != 0 {
        errno::set(libc::EINVAL);
        return ERR;
    }
    watched_fds::remove(fd, mask);
    errno::set(0);
    OK
}

extern "C" fn event_loop_add_one_shot(function: Option<OneShotFunction>, data: *mut c_void) -> c_int {
    let Some(function) = function else {
        errno::set(libc::EINVAL);
        return ERR;
    };
    watched_fds::call_soon(function, data);
    errno::set(0);
    OK
}

// ---- jobs and authentication ---------------------------------------------------------------------------------------

/// Adds a job for the end of the unit. Fails in code that is not in exclusive mode: another unit would run the job.
unsafe extern "C" fn add_post_notification_job(
    context: *mut Context,
    function: Option<JobFunction>,
    data: *mut c_void,
    free: Option<FreeFunction>,
) -> c_int {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    let (Some(context), Some(function)) = (context, function) else {
        return ERR;
    };
    if session::current(|session| session.is_exclusive()) != Some(true)
        || session::host().is_some_and(|host| host.refuses_post_notification_jobs())
    {
        return ERR;
    }
    post_jobs::add(&context.module, context.caller.borrow().db, function, data, free);
    OK
}

unsafe extern "C" fn register_auth_callback(context: *mut Context, callback: Option<AuthenticationCallback>) {
    // SAFETY: rule 1.
    let context = unsafe { Context::from_pointer(context) };
    if let (Some(context), Some(callback)) = (context, callback) {
        authentication::register(&context.module, callback);
    }
}

#[cfg(test)]
mod tests;
