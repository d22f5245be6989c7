//! Cheap clocks, and what the process has used of the CPU.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Microseconds since some fixed point; never goes back. No system call (vDSO).
pub fn monotonic_us() -> u64 {
    microseconds(clock_gettime(ClockId::Monotonic))
}

/// Microseconds since 1970 by the wall clock, which may jump. No system call (vDSO).
pub fn unix_us() -> u64 {
    microseconds(clock_gettime(ClockId::Realtime))
}

/// Milliseconds since 1970 by the wall clock, which may jump. No system call (vDSO).
pub fn unix_ms() -> u64 {
    unix_us() / 1000
}

/// Microseconds of CPU the calling thread has used. A system call.
pub fn thread_cpu_us() -> u64 {
    microseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In the program.
    pub user_us: u64,
    /// In the kernel.
    pub system_us: u64,
}

/// What INFO reports under CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessTimes {
    /// All threads of this process.
    pub own: Usage,
    /// Children that were waited for.
    pub children: Usage,
}

impl ProcessTimes {
    /// Asks the kernel; two system calls.
    pub fn now() -> Self {
        Self {
            own: usage(libc::RUSAGE_SELF),
            children: usage(libc::RUSAGE_CHILDREN),
        }
    }
}

impl Usage {
    /// The calling thread's times. Called by the main thread, what INFO calls `main_thread`.
    pub fn of_this_thread() -> Self {
        usage(libc::RUSAGE_THREAD)
    }
}

fn usage(who: libc::c_int) -> Usage {
    // SAFETY: rule 1; rusage is integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: rule 1; `usage` is a live rusage.
    let result = unsafe { libc::getrusage(who, &raw mut usage) };
    assert_eq!(result, 0, "getrusage fails only for an unknown subject");
    Usage {
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
