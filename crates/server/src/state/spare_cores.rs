//! The cores that helping threads may use: those that would be idle without them, unless a worker could use them soon.

use super::idle_clock::{IdleClock, idle_clock};
use super::{Server, WorkerLink};
use crate::observability::metrics::Counter;
use weft_base::ThreadIndex;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_reactor::ProcessCpuTimes;

/// The busy share of the active workers above which another worker is needed.
pub const BUSY_SHARE: f64 = 0.85;
/// The number of active workers changes by at least an eighth of it, rounded up. So the change of the throughput
/// differs from noise.
const SMALLEST_STEP_DIVISOR: usize = 8;
/// The maximum number of threads that help at once.
const MAX_HELPING_THREADS: usize = 7;
/// What is added to the idle time before it is rounded down to whole cores: the share of a core that is hardly ever
/// idle.
const ROUNDING: f64 = 0.25;

/// Measures the spare cores between two calls.
pub struct SpareCores {
    idle_clock: IdleClock,
    idle_ms: Option<u64>,
    /// The processor time of this process, in milliseconds.
    used_ms: f64,
    busy_ns: Vec<u64>,
    called_at: Instant,
}

impl SpareCores {
    /// Starts to measure.
    pub fn new(server: &Server) -> Self {
        let mut idle_clock = idle_clock();
        let now = Instant::now();
        SpareCores {
            idle_ms: idle_clock(),
            idle_clock,
            used_ms: used_ms(),
            busy_ns: busy_times_ns(server, now),
            called_at: now,
        }
    }

    /// Returns the number of cores that were spare since the last call; 0 if the system does not report it. The helping
    /// threads have used `helpers_us` of processor time meanwhile, in µs. They must yield to other threads: what they
    /// get on a busy core does not count as spare.
    pub fn since_last_call(&mut self, server: &Server, helpers_us: u64) -> usize {
        let now = Instant::now();
        let elapsed_ms = now.duration_since(self.called_at).as_secs_f64() * 1000.0;
        let idle_ms = (self.idle_clock)();
        let busy_ns = busy_times_ns(server, now);
        let used_before_ms = std::mem::replace(&mut self.used_ms, used_ms());
        let idle_before_ms = std::mem::replace(&mut self.idle_ms, idle_ms);
        let busy_before_ns = std::mem::replace(&mut self.busy_ns, busy_ns);
        self.called_at = now;
        let (Some(before_ms), Some(idle_ms)) = (idle_before_ms, idle_ms) else {
            return 0;
        };
        let active = server.lifecycle.active_workers.load(Ordering::Relaxed);
        let busy = self.busy_ns.iter().zip(&busy_before_ns).take(active);
        let busy_ms: f64 = busy.map(|(now, before)| now.saturating_sub(*before) as f64 / 1e6).sum();
        let cores = cores();
        let needed_workers = match busy_ms >= BUSY_SHARE * elapsed_ms * active as f64 {
            true => needed_workers(active, server.usable_workers().min(cores)),
            false => 0,
        };
        // In a container, cores may be idle that this process may not use: its quota is used up.
        let allowed_ms = cores as f64 * elapsed_ms - (self.used_ms - used_before_ms);
        let idle_ms = (idle_ms.saturating_sub(before_ms) as f64).min(allowed_ms.max(0.0));
        let free_ms = idle_ms + helpers_us as f64 / 1000.0;
        spare_cores(free_ms / elapsed_ms.max(1.0), needed_workers)
    }
}

/// Returns the number of threads that can help at once on this machine, beside the one that they help.
pub fn max_helping_threads() -> usize {
    if cfg!(feature = "simulated") {
        return 1;
    }
    (cores() - 1).min(MAX_HELPING_THREADS)
}

/// Returns the number of cores that this process may use, with regard to its quota.
fn cores() -> usize {
    weft_os::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the processor time of this process, in milliseconds; 0 in a simulation, which takes no time.
fn used_ms() -> f64 {
    if cfg!(feature = "simulated") {
        return 0.0;
    }
    let usage = ProcessCpuTimes::now().own;
    (usage.user_us + usage.system_us) as f64 / 1000.0
}

/// Returns how long a worker has been busy since the server started, including the current turn, in nanoseconds. A
/// batch of slow commands may last longer than the time between two calls; without it the worker would look idle
/// meanwhile.
pub fn busy_ns(link: &WorkerLink, finished_turns_ns: u64, now_ns: u64) -> u64 {
    match link.turn_started_ns.load(Ordering::Relaxed) {
        0 => finished_turns_ns,
        began_ns => finished_turns_ns + now_ns.saturating_sub(began_ns),
    }
}

/// Returns the smallest number of workers that are added to `active` ones, or removed from them, at once.
pub fn smallest_step(active: usize) -> usize {
    active.div_ceil(SMALLEST_STEP_DIVISOR)
}

/// Returns for how many further workers cores are left if the active ones are busy: those of the smallest step, but no
/// more than `limit` in all. More workers may become active than the quota of the process has cores, but a core that is
/// left for them would not help them.
fn needed_workers(active: usize, limit: usize) -> usize {
    smallest_step(active).min(limit.saturating_sub(active))
}

/// Returns how many whole cores are spare if so many are free. One is left for each worker that is needed.
fn spare_cores(free: f64, needed_workers: usize) -> usize {
    (free - needed_workers as f64 + ROUNDING).max(0.0) as usize
}

fn busy_times_ns(server: &Server, now: Instant) -> Vec<u64> {
    let now_ns = now.duration_since(server.lifecycle.started).as_nanos() as u64;
    let workers = server.workers.iter().enumerate();
    workers
        .map(|(index, link)| {
            let index = ThreadIndex::new(index);
            busy_ns(link, server.stats.metrics.thread_sum(index, Counter::BusyNs), now_ns)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_count_as_spare_when_they_are_mostly_idle() {
        assert_eq!(spare_cores(0.0, 0), 0);
        // What threads of low priority get on a busy core.
        assert_eq!(spare_cores(0.1, 0), 0);
        assert_eq!(spare_cores(0.6, 0), 0);
        assert_eq!(spare_cores(0.9, 0), 1);
        assert_eq!(spare_cores(3.1, 0), 3);
    }

    #[test]
    fn a_core_is_left_for_a_worker_that_is_needed() {
        assert_eq!(spare_cores(0.9, 1), 0);
        assert_eq!(spare_cores(3.1, 1), 2);
    }

    /// Otherwise helping threads would keep the cores busy without which many workers try no further ones.
    #[test]
    fn a_core_is_left_for_each_worker_of_the_smallest_step() {
        let steps = [1, 2, 8, 9, 16, 17, 64].map(smallest_step);
        assert_eq!(steps, [1, 1, 1, 2, 2, 3, 8]);
        assert_eq!(spare_cores(7.1, smallest_step(64)), 0);
        assert_eq!(spare_cores(9.1, smallest_step(64)), 1);
    }

    #[test]
    fn no_core_is_left_for_workers_that_cannot_become_active() {
        let limits = [60, 64, 65, 70, 72, 100].map(|limit| needed_workers(64, limit));
        assert_eq!(limits, [0, 0, 1, 6, 8, 8]);
    }
}
