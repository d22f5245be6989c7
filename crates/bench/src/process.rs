//! CPU time and memory of a process, and the CPU affinity of threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, ErrorContext, Result};

#[cfg(test)]
mod tests;

/// The CPU time of a process at one moment.
///
/// The scheduler's statistics per thread count nanoseconds but omit threads that have ended. The totals of the process
/// include those threads but count ticks (10 ms). A sample holds both.
#[derive(Debug, Clone)]
pub struct CpuSample {
    thread_ns: BTreeMap<u32, u64>,
    total_ns: u64,
}

impl CpuSample {
    /// Reads the CPU time that `pid` has used so far.
    ///
    /// # Errors
    /// Fails if the process does not exist or its statistics cannot be read.
    pub fn read(pid: u32) -> Result<CpuSample> {
        let folder = format!("/proc/{pid}/task");
        let mut thread_ns = BTreeMap::new();
        for entry in fs::read_dir(&folder).context(format!("reading {folder}"))? {
            let entry = entry.context(format!("reading {folder}"))?;
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // A thread may end between the listing and this read.
            if let (Some(thread), Ok(text)) = (thread, fs::read_to_string(entry.path().join("schedstat"))) {
                let running = text.split_whitespace().next().and_then(|field| field.parse().ok());
                thread_ns.extend(running.map(|ns: u64| (thread, ns)));
            }
        }
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).context(format!("reading {path}"))?;
        let ticks = ticks_in_stat(&stat).ok_or_else(|| Error::Server(format!("{path} has no times")))?;
        let total_ns = ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second();
        Ok(CpuSample { thread_ns, total_ns })
    }

    /// The CPU time used since an earlier sample, in nanoseconds.
    pub fn nanoseconds_since(&self, earlier: &CpuSample) -> u64 {
        let none_ended = earlier
            .thread_ns
            .keys()
            .all(|thread| self.thread_ns.contains_key(thread));
        if !none_ended || self.thread_ns.is_empty() {
            return self.total_ns.saturating_sub(earlier.total_ns);
        }
        let now: u64 = self.thread_ns.values().sum();
        now.saturating_sub(earlier.thread_ns.values().sum())
    }
}

/// Parses the sum of user and system time, in ticks, from a line of `/proc/PID/stat`.
fn ticks_in_stat(stat: &str) -> Option<u64> {
    // The second field, the program's name, may contain blanks and parentheses.
    let after_name = stat.rsplit_once(')')?.1;
    let mut times = after_name.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

/// Returns the resident memory of `pid` in bytes.
///
/// # Errors
/// Fails if the process does not exist or its statistics cannot be read.
pub fn rss_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).context(format!("reading {path}"))?;
    let kilobytes = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| Error::Server(format!("{path} has no Rss line")))? * 1024)
}

/// Restricts the calling thread, and processes and threads that it starts later, to `cores`.
///
/// # Errors
/// Fails if a core does not exist or is not allowed.
pub fn pin_this_thread(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        if *core >= CpuSet::MAX_CPU {
            return Err(Error::Usage(format!("core {core} does not exist")));
        }
        set.set(*core);
    }
    sched_setaffinity(None, &set).context(format!("pinning to cores {cores:?}"))
}

/// Returns the cores on which the calling thread may run.
///
/// # Errors
/// Fails if the system call fails.
pub fn allowed_cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("reading the affinity")?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Raises this process's limit of open files to the allowed maximum. If that is too low, opening a file reports it.
pub fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Returns the name of the CPU, or `unknown`.
pub fn processor_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name"));
    name.and_then(|line| line.split_once(':'))
        .map_or("unknown", |(_, name)| name.trim())
        .to_string()
}

/// Returns the number of the machine's logical CPUs, or 0 if it is unknown.
pub fn processor_count() -> usize {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_processor = |line: &&str| line.split_once(':').is_some_and(|(name, _)| name.trim() == "processor");
    text.lines().filter(is_processor).count()
}

/// Returns the release of the kernel, or `unknown`.
pub fn kernel_release() -> String {
    let path = Path::new("/proc/sys/kernel/osrelease");
    fs::read_to_string(path).map_or("unknown".into(), |text| text.trim().to_string())
}
