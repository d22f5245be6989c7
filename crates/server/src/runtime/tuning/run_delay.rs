//! The run delay of the workers: the time in which they could have run but waited for a CPU, as the kernel counts it.

use weft_os::time::Instant;

use crate::state::WorkerLink;

/// The run delays of the workers at the last call.
pub(super) struct RunDelays {
    /// By worker, in nanoseconds; `None` for those that were not active, and where the kernel does not report it.
    last_ns: Vec<Option<u64>>,
    last_call: Instant,
}

impl RunDelays {
    /// Creates the state for so many workers, none of which has been read.
    pub(super) fn new(workers: usize, now: Instant) -> Self {
        RunDelays {
            last_ns: vec![None; workers],
            last_call: now,
        }
    }

    /// Returns the sum of the shares of the time since the last call in which the active workers waited for a CPU. One
    /// that was not active at the last call counts from the next call on. In a simulation, no worker waits.
    pub(super) fn share_since_last_call(&mut self, active: &[WorkerLink], now: Instant) -> f64 {
        if cfg!(feature = "simulated") {
            return 0.0;
        }
        let elapsed_ns = now.duration_since(self.last_call).as_nanos().max(1) as f64;
        self.last_call = now;
        let mut waited_ns = 0;
        for (index, last_ns) in self.last_ns.iter_mut().enumerate() {
            let thread_id = active.get(index).and_then(|link| link.thread_id.get());
            let delay_ns = thread_id.and_then(|id| run_delay_ns(*id));
            if let (Some(before_ns), Some(delay_ns)) = (*last_ns, delay_ns) {
                waited_ns += delay_ns.saturating_sub(before_ns);
            }
            *last_ns = delay_ns;
        }
        waited_ns as f64 / elapsed_ns
    }
}

/// Returns how long a thread of this process has waited for a CPU, in nanoseconds, or `None` if the system does not
/// report it. A wait counts when it ends.
fn run_delay_ns(thread_id: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/schedstat")).ok()?;
    parse_run_delay(&text)
}

/// Returns the second field of a thread's `schedstat` (Linux, `Documentation/scheduler/sched-stats.rst`). The first one
/// is the time on a CPU, and the third one is the number of times that the thread got a CPU.
fn parse_run_delay(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_run_delay_is_the_second_field() {
        assert_eq!(parse_run_delay("34034579 41572539 131\n"), Some(41_572_539));
        assert_eq!(parse_run_delay("0 0 0\n"), Some(0));
        assert_eq!(parse_run_delay("34034579"), None);
        assert_eq!(parse_run_delay(""), None);
        assert_eq!(parse_run_delay("1 -2 3"), None);
    }

    #[test]
    fn the_run_delay_of_a_thread_never_decreases() {
        let thread_id = weft_reactor::thread_id();
        if let (Some(first), Some(second)) = (run_delay_ns(thread_id), run_delay_ns(thread_id)) {
            assert!(second >= first);
        }
        assert_eq!(run_delay_ns(-1), None, "there is no such thread");
    }

    #[test]
    fn workers_without_a_thread_wait_for_nothing() {
        let workers = [WorkerLink::new(), WorkerLink::new()];
        let now = Instant::now();
        let mut delays = RunDelays::new(2, now);
        for calls in 1..4 {
            let share = delays.share_since_last_call(&workers, now + Duration::from_millis(calls));
            assert!(share == 0.0, "{share}");
        }
    }

    /// What a worker waited before it was active does not belong to the time since the last call.
    #[test]
    fn a_worker_counts_from_the_second_call_on() {
        let link = WorkerLink::new();
        assert!(link.thread_id.set(weft_reactor::thread_id()).is_ok());
        let now = Instant::now();
        let mut delays = RunDelays::new(1, now);
        let links = [link];
        assert!(delays.share_since_last_call(&links, now + Duration::from_nanos(1)) == 0.0);
        assert!(delays.share_since_last_call(&[], now + Duration::from_nanos(2)) == 0.0);
        assert!(delays.share_since_last_call(&links, now + Duration::from_nanos(3)) == 0.0);
    }
}
