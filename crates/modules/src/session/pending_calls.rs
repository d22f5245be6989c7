//! The calls of modules that wait for the home thread, because no code of a module may run where they become due.

use std::collections::VecDeque;

use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::Mutex;

/// A call that waits. It runs where the thread has a session, which it does not use itself meanwhile.
type PendingCall = Box<dyn FnOnce() + Send>;

static PENDING: Mutex<VecDeque<PendingCall>> = Mutex::new(VecDeque::new());
static HAS_PENDING: AtomicBool = AtomicBool::new(false);

/// Adds a call to the queue. Returns `true` if the queue was empty; the caller then has the host run it soon.
#[must_use]
pub fn add(call: impl FnOnce() + Send + 'static) -> bool {
    let mut pending = PENDING.lock();
    pending.push_back(Box::new(call));
    !HAS_PENDING.swap(true, Ordering::Release)
}

/// Calls the modules about values that were removed and freed on other threads. The caller's thread has a session,
/// which it does not use meanwhile.
pub fn run_pending_calls() {
    while HAS_PENDING.load(Ordering::Acquire) {
        let calls = {
            let mut pending = PENDING.lock();
            HAS_PENDING.store(false, Ordering::Relaxed);
            std::mem::take(&mut *pending)
        };
        calls.into_iter().for_each(|call| call());
    }
}
