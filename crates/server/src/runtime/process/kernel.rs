//! Checks and adjusts kernel settings at startup.

use crate::observability::log;
use weft_config::{Config, id};

/// Applies `disable-thp`: transparent huge pages that the kernel assigns by itself cost memory after deletes.
///
/// Logs a warning if the kernel always assigns them and this process cannot opt out.
pub fn configure_huge_pages(config: &Config) {
    if !config.boolean(id::DISABLE_THP) {
        return;
    }
    let refused = nix::sys::prctl::set_thp_disable(true).is_err();
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    if refused && read_setting(path).is_some_and(|modes| modes.contains("[always]")) {
        log::warning!(
            "WARNING Transparent huge pages are handed out to every process and could not be switched off for this \
             one. Memory of deleted keys may come back late. To change it for the machine: echo madvise > {path}"
        );
    }
}

/// Warns about settings that can make the server fail although the machine has enough memory.
///
/// Weft does not fork, so the default overcommit heuristic is sufficient; strict accounting is not.
pub fn warn_about_memory() {
    if read_setting("/proc/sys/vm/overcommit_memory").as_deref() == Some("2") {
        log::warning!(
            "WARNING Memory is accounted for strictly (vm.overcommit_memory is 2), so an allocation can fail while \
             memory is free. To change it: sysctl vm.overcommit_memory=0"
        );
    }
}

/// Warns if the kernel limits the listen backlog to less than configured.
pub fn warn_about_backlog(config: &Config) {
    let backlog = config.integer(id::TCP_BACKLOG);
    let most = read_setting("/proc/sys/net/core/somaxconn").and_then(|text| text.parse::<i64>().ok());
    if let Some(most) = most
        && most > 0
        && most < backlog
    {
        log::warning!(
            "WARNING: The TCP backlog setting of {backlog} cannot be enforced because /proc/sys/net/core/somaxconn is \
             set to the lower value of {most}."
        );
    }
}

/// Warns about a memory limit that is too small for any data set.
pub fn warn_about_tiny_maxmemory(config: &Config) {
    let bytes = config.unsigned(id::MAXMEMORY);
    if bytes > 0 && bytes < 1024 * 1024 {
        log::warning!(
            "WARNING: You specified a maxmemory value that is less than 1MB (current value is {bytes} bytes). Are you \
             sure this is what you really want?"
        );
    }
}

fn read_setting(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}
