//! The timers of modules. The home worker calls them.
//!
//! A timer is known by the time at which it is due, in microseconds since the Unix epoch. If there is one at that time
//! already, it is due a microsecond later.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use weft_base::clock;
use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::Mutex;

use super::Module;
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::session::Session;

/// A function that is called once (`ValkeyModuleTimerProc`).
pub type TimerFunction = unsafe extern "C" fn(*mut Context, *mut c_void);

/// A timer that is not due yet.
struct Timer {
    module: Arc<Module>,
    db: u32,
    function: TimerFunction,
    data: *mut c_void,
}

// SAFETY: the data are only passed back to the module.
unsafe impl Send for Timer {}

static TIMERS: Mutex<BTreeMap<u64, Timer>> = Mutex::new(BTreeMap::new());
/// The time at which the first timer is due; `u64::MAX` if there is none.
static NEXT_DUE_US: AtomicU64 = AtomicU64::new(u64::MAX);

fn publish_next(timers: &BTreeMap<u64, Timer>) {
    let next = timers.first_key_value().map_or(u64::MAX, |(due_us, _)| *due_us);
    NEXT_DUE_US.store(next, Ordering::Release);
}

/// Returns the time at which the first timer is due, in microseconds since the Unix epoch.
#[inline]
pub fn next_due_us() -> Option<u64> {
    let next = NEXT_DUE_US.load(Ordering::Acquire);
    (next != u64::MAX).then_some(next)
}

/// Creates a timer that is due after this many milliseconds. Returns its number, and `true` if it is the first one due.
pub fn create(
    module: &Arc<Module>,
    db: u32,
    period_ms: i64,
    function: TimerFunction,
    data: *mut c_void,
) -> (u64, bool) {
    let now_us = clock::unix_us();
    let mut due_us = now_us
        .saturating_add_signed(period_ms.saturating_mul(1000))
        .min(u64::MAX - 1);
    let mut timers = TIMERS.lock();
    while timers.contains_key(&due_us) {
        due_us += 1;
    }
    let timer = Timer {
        module: module.clone(),
        db,
        function,
        data,
    };
    timers.insert(due_us, timer);
    module.usage.timers.fetch_add(1, Ordering::AcqRel);
    publish_next(&timers);
    (
        due_us,
        timers.first_key_value().is_some_and(|(first, _)| *first == due_us),
    )
}

/// Removes a timer of a module. Returns its data; `None` if the module has no such timer.
pub fn stop(module: &Arc<Module>, number: u64) -> Option<*mut c_void> {
    let mut timers = TIMERS.lock();
    if !Arc::ptr_eq(&timers.get(&number)?.module, module) {
        return None;
    }
    let timer = timers.remove(&number)?;
    publish_next(&timers);
    module.usage.timers.fetch_sub(1, Ordering::AcqRel);
    Some(timer.data)
}

/// Returns the milliseconds until a timer of a module is due, and its data; `None` if the module has no such timer.
pub fn find(module: &Arc<Module>, number: u64) -> Option<(u64, *mut c_void)> {
    let timers = TIMERS.lock();
    let timer = timers.get(&number)?;
    let remaining_ms = number.saturating_sub(clock::unix_us()) / 1000;
    Arc::ptr_eq(&timer.module, module).then_some((remaining_ms, timer.data))
}

/// A timer that is due.
pub struct DueTimer {
    timer: Timer,
}

/// Takes the first timer that is due at this time, in microseconds since the Unix epoch.
pub fn pop_due(now_us: u64) -> Option<DueTimer> {
    let mut timers = TIMERS.lock();
    let first = timers.first_entry().filter(|first| *first.key() <= now_us)?;
    let timer = first.remove();
    publish_next(&timers);
    Some(DueTimer { timer })
}

impl DueTimer {
    /// Calls the function of the timer.
    pub fn run(self, session: &mut dyn Session) {
        let Timer {
            module,
            db,
            function,
            data,
        } = self.timer;
        if !module.is_unloaded() {
            let context = Context::new(module.clone(), Caller { db, ..Caller::none() });
            context.reply_state.discard();
            invoke::call_into(&module, session, || {
                // SAFETY: the context lives until the function has returned; the data are the module's.
                unsafe { function(context.as_pointer(), data) };
                drop(context);
            });
        }
        module.usage.timers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
