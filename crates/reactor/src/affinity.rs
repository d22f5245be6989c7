//! Which CPUs a thread may run on, and how urgently.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs the calling thread may run on, ascending.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Confines the calling thread, and threads it starts later, to `cpus`. Fails with `InvalidInput` if
/// none of them exists or is allowed here, or a number is beyond what the kernel's set can hold.
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

/// The slice of a thread that steps back, ns. A thread that wakes up preempts another at once only if its own slice is
/// shorter (and it is due); else it waits until the other has used up its slice, some 3 ms.
const LONG_SLICE_NS: u64 = 20_000_000;

/// Lets the calling thread step back when others want its CPU: `nice` as in the command of that name, 0 to 19. Where
/// the kernel knows slices (Linux 6.12), others preempt it as soon as they wake up.
pub fn step_back(nice: i32) -> io::Result<()> {
    if set_slice(nice, LONG_SLICE_NS).is_ok() {
        return Ok(());
    }
    // Linux keeps priorities by thread, whatever POSIX says.
    Ok(rustix::process::setpriority_process(
        Some(rustix::thread::gettid()),
        nice,
    )?)
}

/// The system's number of the calling thread. The main thread's is that of the process.
#[must_use]
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Sets the niceness of the calling thread and how long it runs at a stretch.
fn set_slice(nice: i32, slice_ns: u64) -> io::Result<()> {
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
    // SAFETY: rule 1: the call reads a live local of the size that it says; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads a list as the `*-cpulist` options take it: `0,2,3`, `0,2-3`, `0-20:3` (every third of 0 to
/// 20). `None` if it is malformed, or names a CPU beyond what the kernel's set can hold.
pub fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = match range.split_once('-') {
            Some(ends) => ends,
            None if range.len() == part.len() => (range, range),
            None => return None,
        };
        let (first, last) = (number(first)?, number(last)?);
        let step = number(step).filter(|&step| step > 0)?;
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend((first..=last).step_by(step));
    }
    Some(cpus)
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<usize> {
    let text = text.trim();
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests;
