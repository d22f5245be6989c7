//! The run delay of the workers: the time in which they could have run but waited for a CPU, as the kernel counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;

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
            let schedstat = active.get(index).and_then(|link| link.schedstat.get());
            let delay_ns = schedstat.and_then(run_delay_ns);
            if let (Some(before_ns), Some(delay_ns)) = (*last_ns, delay_ns) {
                waited_ns += delay_ns.saturating_sub(before_ns);
            }
            *last_ns = delay_ns;
        }
        waited_ns as f64 / elapsed_ns
    }
}

/// Returns how long the thread of a `schedstat` has waited for a CPU, in nanoseconds, or `None` if the system does not
/// report it. A wait counts when it ends.
fn run_delay_ns(schedstat: &File) -> Option<u64> {
    // Three numbers of at most 20 digits each.
    let mut text = [0; 80];
    let length = schedstat.read_at(&mut text, 0).ok()?;
    parse_run_delay(std::str::from_utf8(text.get(..length)?).ok()?)
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
        if let Ok(schedstat) = File::open("/proc/thread-self/schedstat")
            && let (Some(first), Some(second)) = (run_delay_ns(&schedstat), run_delay_ns(&schedstat))
        {
            assert!(second >= first);
        }
        let empty = File::open("/dev/null").expect("opens");
        assert_eq!(run_delay_ns(&empty), None, "it reports nothing");
    }

    /// In a simulation, no worker waits.
    #[cfg(not(feature = "simulated"))]
    #[test]
    fn an_open_file_is_read_again_from_its_beginning() {
        let path = std::env::temp_dir().join(format!("weft-schedstat-{}", std::process::id()));
        let report = |delay_ns: u64| std::fs::write(&path, format!("5 {delay_ns} 1\n")).expect("writes");
        report(1000);
        let link = WorkerLink::new();
        assert!(link.schedstat.set(File::open(&path).expect("opens")).is_ok());
        let links = [link];
        let now = Instant::now();
        let mut delays = RunDelays::new(1, now);
        let mut share = |us| delays.share_since_last_call(&links, now + Duration::from_micros(us));
        assert!(share(1) == 0.0, "it was not read before");
        report(251_000);
        assert!(share(1001) == 0.25);
        assert!(share(2001) == 0.0);
        std::fs::remove_file(&path).expect("removes");
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
        if let Ok(schedstat) = File::open("/proc/thread-self/schedstat") {
            assert!(link.schedstat.set(schedstat).is_ok());
        }
        let now = Instant::now();
        let mut delays = RunDelays::new(1, now);
        let links = [link];
        assert!(delays.share_since_last_call(&links, now + Duration::from_nanos(1)) == 0.0);
        assert!(delays.share_since_last_call(&[], now + Duration::from_nanos(2)) == 0.0);
        assert!(delays.share_since_last_call(&links, now + Duration::from_nanos(3)) == 0.0);
    }
}
