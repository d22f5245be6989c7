//! The time at which a thread began to run code of modules: all calls within it see the same time.

use std::cell::Cell;

use weft_base::clock;

thread_local! {
    /// Microseconds since the Unix epoch; 0 if nothing has asked for the time since the code began to run.
    static CACHED_US: Cell<u64> = const { Cell::new(0) };
}

/// Returns the time, in microseconds since the Unix epoch, that stays the same while the thread has a session.
pub fn cached_us() -> u64 {
    if CACHED_US.get() == 0 || !super::is_present() {
        CACHED_US.set(clock::unix_us());
    }
    CACHED_US.get()
}

/// Forgets the time, because the thread has no session any more.
pub(super) fn forget() {
    CACHED_US.set(0);
}
