//! `--check-system`: checks for system settings that slow the server down or limit it.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

/// The result of a check.
enum SystemCheckResult {
    Fine,
    /// The files with the setting do not exist.
    Skipped,
    /// The problem and its solution.
    Warning(String),
}

type Check = fn() -> SystemCheckResult;

/// Runs all checks. Returns the report for standard output, and `true` if there is no warning.
pub fn run() -> (String, bool) {
    let checks: [(&str, Check); 3] = [
        ("clocksource", clock_source),
        ("overcommit", overcommit),
        ("open-files", open_files),
    ];
    let mut report = String::new();
    let mut well = true;
    for (name, check) in checks {
        let verdict = match check() {
            SystemCheckResult::Fine => "OK".into(),
            SystemCheckResult::Skipped => "skipped".into(),
            SystemCheckResult::Warning(text) => {
                well = false;
                format!("WARNING:\n{text}")
            }
        };
        report += &format!("[{name}]...{verdict}\n");
    }
    (report, well)
}

fn read_setting(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// Checks the clock source. Some clocks need a system call for each reading.
fn clock_source() -> SystemCheckResult {
    const PATH: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match read_setting(PATH).as_deref() {
        None => SystemCheckResult::Skipped,
        Some(slow @ ("xen" | "hpet" | "acpi_pm" | "jiffies")) => SystemCheckResult::Warning(format!(
            "The kernel reads the time from '{slow}', which is slow. If the machine has a stable TSC, select it:\n\
             echo tsc > {PATH}"
        )),
        Some(_) => SystemCheckResult::Fine,
    }
}

/// Checks the overcommit mode. This server does not fork, so the default heuristic is sufficient. Strict accounting
/// counts memory that is only reserved.
fn overcommit() -> SystemCheckResult {
    match read_setting("/proc/sys/vm/overcommit_memory").as_deref() {
        None => SystemCheckResult::Skipped,
        Some("2") => SystemCheckResult::Warning(
            "The kernel accounts for memory strictly, so an allocation can fail while memory is free:\n\
             sysctl vm.overcommit_memory=0"
                .into(),
        ),
        Some(_) => SystemCheckResult::Fine,
    }
}

/// The number of file descriptors for the default number of clients and the server's own files.
const REQUIRED_OPEN_FILES: u64 = 10_000 + 32;

fn open_files() -> SystemCheckResult {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Err(_) => SystemCheckResult::Skipped,
        Ok((_, most)) if most < REQUIRED_OPEN_FILES => SystemCheckResult::Warning(format!(
            "At most {most} files can be open, fewer than the default number of clients: raise 'ulimit -Hn'."
        )),
        Ok(_) => SystemCheckResult::Fine,
    }
}
