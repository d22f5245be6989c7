//! The CPU time that the process and its threads have used.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Microseconds of CPU time that the calling thread has used. Costs a system call.
pub fn thread_cpu_us() -> u64 {
    microseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// Time spent in user mode.
    pub user_us: u64,
    /// Time spent in the kernel.
    pub system_us: u64,
}

/// The CPU times that INFO reports in its CPU section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCpuTimes {
    /// The time of all threads of this process.
    pub own: CpuUsage,
    /// The time of child processes that were waited for.
    pub children: CpuUsage,
}

impl ProcessCpuTimes {
    /// Reads the times from the kernel with two system calls.
    pub fn now() -> Self {
        Self {
            own: read_usage(libc::RUSAGE_SELF),
            children: read_usage(libc::RUSAGE_CHILDREN),
        }
    }
}

impl CpuUsage {
    /// The times of the calling thread. In the main thread, these are the values that INFO calls `main_thread`.
    pub fn of_this_thread() -> Self {
        read_usage(libc::RUSAGE_THREAD)
    }
}

fn read_usage(subject: libc::c_int) -> CpuUsage {
    // SAFETY: rule 1; rusage consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: rule 1; `usage` is a live rusage.
    let result = unsafe { libc::getrusage(subject, &raw mut usage) };
    assert_eq!(result, 0, "getrusage fails only for an unknown `who` argument");
    CpuUsage {
        user_us: timeval_us(usage.ru_utime),
        system_us: timeval_us(usage.ru_stime),
    }
}

fn timeval_us(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
}

fn microseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests;
