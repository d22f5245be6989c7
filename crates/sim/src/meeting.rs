//! Times at which clients begin to send together, and together with a disturbance.
//!
//! A disturbance may take much longer than a request. So a client that is to meet disturbances waits for the next one
//! before each of its pipelines, until the last disturbance has ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weft_os::scheduler;
use weft_os::thread;

/// The interval between two meetings, in nanoseconds.
const INTERVAL_NS: u64 = 500_000;

/// The number of disturbances that have been announced.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
/// Set once no further disturbance comes.
static HAVE_ROUNDS_ENDED: AtomicBool = AtomicBool::new(false);

/// Waits for the next meeting.
fn wait_for_meeting() {
    let now_ns = scheduler::figures().now_ns;
    thread::sleep(Duration::from_nanos(INTERVAL_NS - now_ns % INTERVAL_NS));
}

/// Announces a disturbance, and waits for the meeting at which it begins.
pub fn begin_round() {
    ROUNDS.fetch_add(1, Ordering::SeqCst);
    wait_for_meeting();
}

/// Records that no further disturbance comes.
pub fn end_rounds() {
    HAVE_ROUNDS_ENDED.store(true, Ordering::SeqCst);
}

/// The disturbances at which a client was present.
#[derive(Debug, Default)]
pub struct Attendance {
    rounds: u64,
}

impl Attendance {
    /// Waits for the meeting of the next disturbance, or for any meeting if there is none.
    pub fn wait_for_next(&mut self) {
        loop {
            wait_for_meeting();
            let rounds = ROUNDS.load(Ordering::SeqCst);
            if rounds > self.rounds || HAVE_ROUNDS_ENDED.load(Ordering::SeqCst) {
                self.rounds = rounds;
                return;
            }
        }
    }
}
