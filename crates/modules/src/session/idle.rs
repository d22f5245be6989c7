//! A worker that can serve its other connections while code of a module, or a load of data, runs on its thread.
//!
//! The worker registers itself for the time of a job. Code that runs within the job finds it through the thread, not
//! through its session: the session of the job may be that of another thread, or one that was created within.

use std::cell::Cell;
use std::ptr::NonNull;

/// A worker that can serve its other connections while one of its commands runs.
pub trait IdleTurns {
    /// Serves the connections. The gate is open.
    fn serve_meanwhile(&mut self);
}

thread_local! {
    /// The worker of this thread, unless it serves its connections at the moment.
    static IDLE: Cell<Option<NonNull<dyn IdleTurns>>> = const { Cell::new(None) };
}

/// Restores what was registered before, also if the function that runs meanwhile panics.
struct Restored(Option<NonNull<dyn IdleTurns>>);

impl Drop for Restored {
    fn drop(&mut self) {
        IDLE.set(self.0);
    }
}

/// Calls `run`, in which [`serve_idle_turn`] on this thread uses `idle`.
pub fn with_idle_turns<R>(idle: &mut (dyn IdleTurns + '_), run: impl FnOnce() -> R) -> R {
    // SAFETY: only the lifetime changes. The pointer is removed before this function returns, and so before the borrow
    // ends, and nothing else uses the worker meanwhile: `run` does not have it.
    let pointer = unsafe {
        std::mem::transmute::<NonNull<dyn IdleTurns + '_>, NonNull<dyn IdleTurns + 'static>>(NonNull::from(idle))
    };
    let _restored = Restored(IDLE.replace(Some(pointer)));
    run()
}

/// Lets the worker of this thread serve its other connections, if there is one. It is not found within that turn.
pub fn serve_idle_turn() {
    let Some(mut pointer) = IDLE.take() else {
        return;
    };
    let _restored = Restored(Some(pointer));
    // SAFETY: `with_idle_turns` borrows the worker and has not returned. The pointer was taken, so there is one use.
    unsafe { pointer.as_mut() }.serve_meanwhile();
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(usize);

    impl IdleTurns for Counted {
        fn serve_meanwhile(&mut self) {
            self.0 += 1;
            serve_idle_turn();
        }
    }

    #[test]
    fn a_turn_does_not_nest_and_ends_with_its_job() {
        let mut worker = Counted(0);
        with_idle_turns(&mut worker, || {
            serve_idle_turn();
            serve_idle_turn();
        });
        serve_idle_turn();
        assert_eq!(worker.0, 2);
    }
}
