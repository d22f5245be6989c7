//! What a thread does before its session ends: it stores what a module has written by a pointer.

use std::cell::Cell;

thread_local! {
    /// The function to be called; `None` as long as there is nothing to do.
    static STEP: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Sets the function that is called before this thread's session ends.
pub fn set(step: Option<fn()>) {
    STEP.set(step);
}

/// Calls the function.
#[inline]
pub fn run() {
    if let Some(step) = STEP.get() {
        step();
    }
}
