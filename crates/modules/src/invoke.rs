//! Calls into modules: with a session, and with the name that the report of a crash shows.

use std::cell::Cell;
use std::sync::Arc;

use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::time::Instant;

use crate::module::{Module, fork};
use crate::session::{Session, with_session, without_session};

thread_local! {
    /// The module whose code this thread runs; null for none. The module lives until the call that has set it ends.
    static RUNNING: Cell<*const Module> = const { Cell::new(std::ptr::null()) };
    /// The time of the next effect of `Yield` on this thread; `None` before the first use of it in a call.
    static NEXT_YIELD: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The number of calls into modules that are under way in exclusive mode, on all threads.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Restores the module that ran before. The flag is set if the call was counted.
struct RestoredModule(*const Module, bool);

impl Drop for RestoredModule {
    fn drop(&mut self) {
        if self.1 {
            CALLS.fetch_sub(1, Ordering::Relaxed);
        }
        if self.0.is_null() && fork::is_child() {
            fork::return_from_child(
                running_module()
                    .map_or_else(|| "?".into(), |module| module.name())
                    .as_ref(),
            );
        }
        RUNNING.set(self.0);
    }
}

/// Calls `run`, which calls into `module`. The functions of the API use `session` meanwhile.
pub fn call_into<R>(module: &Arc<Module>, session: &mut dyn Session, run: impl FnOnce() -> R) -> R {
    // Slot-safe commands do not share a counter.
    let is_counted = session.is_exclusive();
    with_session(session, || name(module, is_counted, run))
}

/// Calls `run`, which calls into `module`, without a session. Several threads may do this at the same time.
pub fn call_without_session<R>(module: &Arc<Module>, run: impl FnOnce() -> R) -> R {
    without_session(|| name(module, false, run))
}

/// Calls `run`, which calls into `module`, with the session that the thread has already, or without one.
pub fn name_module<R>(module: &Arc<Module>, run: impl FnOnce() -> R) -> R {
    name(module, true, run)
}

fn name<R>(module: &Arc<Module>, is_counted: bool, run: impl FnOnce() -> R) -> R {
    if is_counted {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    let before = RUNNING.replace(Arc::as_ptr(module));
    if before.is_null() {
        begin_call();
    }
    let _restored = RestoredModule(before, is_counted);
    run()
}

/// Begins a call into a module from outside: `Yield` has an effect once it has lasted for `busy-reply-threshold`.
fn begin_call() {
    NEXT_YIELD.set(None);
}

/// Returns the time of the next effect of `Yield` on this thread; `None` before the first use of it in a call.
pub fn next_yield() -> Option<Instant> {
    NEXT_YIELD.get()
}

/// Sets the time of the next effect of `Yield` on this thread.
pub fn set_next_yield(time: Instant) {
    NEXT_YIELD.set(Some(time));
}

/// Returns `true` if some thread runs code of a module that was called from here.
pub fn is_any_running() -> bool {
    CALLS.load(Ordering::Relaxed) > 0
}

/// Calls `show` with the name of the module whose code this thread runs. A signal handler may call this.
pub fn show_running(show: impl FnOnce(&str)) {
    let running = RUNNING.try_with(Cell::get).unwrap_or(std::ptr::null());
    // SAFETY: the module lives until the call ends that has set the pointer, and resets it.
    if let Some(module) = unsafe { running.as_ref() } {
        show(module.name_for_crash());
    }
}

/// Returns the module whose code this thread runs.
pub fn running_module() -> Option<Arc<Module>> {
    let running = RUNNING.get();
    // SAFETY: as above. The pointer is that of an `Arc`, which is counted once more here.
    (!running.is_null()).then(|| unsafe {
        Arc::increment_strong_count(running);
        Arc::from_raw(running)
    })
}
