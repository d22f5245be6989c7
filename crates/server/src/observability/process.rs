//! Reads the operating system's statistics of this process and its machine.
//!
//! A simulation has none of them: they differ from run to run, and so would the lengths of replies.

use std::path::PathBuf;

use nix::sys::resource::{Usage, UsageWho, getrusage};

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// The time in the kernel.
    pub system_s: f64,
    /// The time in user mode.
    pub user_s: f64,
}

/// Returns the id of the process; 1 in a simulation.
pub fn id() -> u32 {
    match cfg!(feature = "simulated") {
        true => 1,
        false => std::process::id(),
    }
}

/// Returns the path of the program; an empty one if it is unknown.
pub fn executable() -> PathBuf {
    match cfg!(feature = "simulated") {
        true => PathBuf::new(),
        false => std::env::current_exe().unwrap_or_default(),
    }
}

/// Returns the CPU time of all threads.
pub fn cpu() -> CpuTime {
    of(UsageWho::RUSAGE_SELF)
}

/// Returns the CPU time of child processes that have ended.
pub fn cpu_of_children() -> CpuTime {
    of(UsageWho::RUSAGE_CHILDREN)
}

/// Returns the CPU time of the main thread.
pub fn cpu_of_main_thread() -> Option<CpuTime> {
    if cfg!(feature = "simulated") {
        return None;
    }
    let process = std::process::id();
    let stat = std::fs::read_to_string(format!("/proc/self/task/{process}/stat")).ok()?;
    // The name in parentheses may contain blanks; the state and numbers follow it.
    let (_, numbers) = stat.rsplit_once(')')?;
    let mut ticks = numbers.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let ticks_a_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()?? as f64;
    let user_s = ticks.next()?.ok()? as f64 / ticks_a_second;
    let system_s = ticks.next()?.ok()? as f64 / ticks_a_second;
    Some(CpuTime { system_s, user_s })
}

fn of(who: UsageWho) -> CpuTime {
    if cfg!(feature = "simulated") {
        return CpuTime::default();
    }
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    getrusage(who).map_or(CpuTime::default(), |usage: Usage| CpuTime {
        system_s: seconds(usage.system_time()),
        user_s: seconds(usage.user_time()),
    })
}

/// Returns the resident memory of the process, in bytes.
pub fn resident_bytes() -> Option<u64> {
    if cfg!(feature = "simulated") {
        return None;
    }
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let page_bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * page_bytes as u64)
}

/// Returns the physical memory of the machine, in bytes.
pub fn machine_bytes() -> Option<u64> {
    if cfg!(feature = "simulated") {
        return None;
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = total.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Returns the name of the operating system, such as `Linux 6.1.0 x86_64`.
pub fn operating_system() -> String {
    if cfg!(feature = "simulated") {
        return "simulated".to_owned();
    }
    nix::sys::utsname::uname().map_or_else(
        |_| "unknown".to_owned(),
        |name| {
            let part = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
            format!(
                "{} {} {}",
                part(name.sysname()),
                part(name.release()),
                part(name.machine())
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_running_process_are_plausible() {
        let resident = resident_bytes().expect("/proc is mounted");
        let machine = machine_bytes().expect("/proc is mounted");
        assert!(resident > 100_000 && resident < machine, "{resident} of {machine}");
        assert!(operating_system().starts_with("Linux "));
        let all = cpu();
        let main = cpu_of_main_thread().expect("/proc is mounted");
        assert!(
            main.user_s + main.system_s <= all.user_s + all.system_s + 0.02,
            "{main:?} of {all:?}"
        );
    }
}
