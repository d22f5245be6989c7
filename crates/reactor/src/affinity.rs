//! CPU affinity and scheduling priority of threads.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the CPUs on which the calling thread may run, in ascending order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Confines the calling thread, and threads that it starts later, to `cpus`.
///
/// # Errors
/// Fails with `InvalidInput` if none of the CPUs exists or is allowed here, or if a number exceeds the size of the
/// kernel's CPU set.
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The scheduling slice of a low-priority thread, in nanoseconds. A thread that wakes up preempts the running thread at
/// once only if its own slice is shorter (and it is due). Otherwise it waits until the running thread has used up its
/// slice, some 3 ms.
const LOW_PRIORITY_SLICE_NS: u64 = 20_000_000;

/// Lowers the scheduling priority of the calling thread. `nice` is as in the command of that name, 0 to 19. Where the
/// kernel supports slices (Linux 6.12), other threads preempt this thread as soon as they wake up.
///
/// # Errors
/// Fails if the kernel refuses the priority.
pub fn lower_priority(nice: i32) -> io::Result<()> {
    if set_nice_and_slice(nice, LOW_PRIORITY_SLICE_NS).is_ok() {
        return Ok(());
    }
    // Linux keeps priorities per thread, although POSIX says per process.
    Ok(rustix::process::setpriority_process(
        Some(rustix::thread::gettid()),
        nice,
    )?)
}

/// The kernel's id of the calling thread. The id of the main thread is that of the process. A simulation numbers its
/// threads instead.
#[must_use]
pub fn thread_id() -> i32 {
    weft_os::thread::simulated_id().unwrap_or_else(|| rustix::thread::gettid().as_raw_nonzero().get())
}

/// Sets the nice value and the scheduling slice of the calling thread.
fn set_nice_and_slice(nice: i32, slice_ns: u64) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: rule 1: the call reads a live local of the size that it states; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Parses a CPU list in the format of the `*-cpulist` options: `0,2,3`, `0,2-3`, `0-20:3` (every third of 0 to 20).
/// Returns `None` if it is malformed, or if it names a CPU that exceeds the size of the kernel's CPU set.
pub fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = match range.split_once('-') {
            Some(ends) => ends,
            None if range.len() == part.len() => (range, range),
            None => return None,
        };
        let (first, last) = (parse_digits(first)?, parse_digits(last)?);
        let step = parse_digits(step).filter(|&step| step > 0)?;
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend((first..=last).step_by(step));
    }
    Some(cpus)
}

/// Parses a number that consists of digits only: `parse` alone would accept a sign.
fn parse_digits(text: &str) -> Option<usize> {
    let text = text.trim();
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests;
