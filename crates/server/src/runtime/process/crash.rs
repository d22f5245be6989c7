//! Last words: what the log gets when the process dies of a fault or a broken invariant.
//!
//! A panic is a broken invariant. Its hook writes what was asserted and where, and aborts; the abort is
//! reported like any fatal signal, with the backtrace of the panic.

use std::panic::PanicHookInfo;

use crate::observability::log;
use weft_config::{COMPATIBLE_VERSION, Config, id};

/// Prepares reports: faults go to the log as it is now, panics to the log as it is then.
///
/// `crash-log-enabled no` leaves faults to the system; panics are logged all the same.
pub fn install_crash_reports(config: &Config) {
    std::panic::set_hook(Box::new(report_panic));
    if let Ok(descriptor) = log::descriptor() {
        // A descriptor is set already only if this runs twice, and then that one serves as well.
        let _ = weft_reactor::set_emergency_log(descriptor);
    }
    weft_reactor::set_crash_reports(config.boolean(id::CRASH_LOG_ENABLED));
    if let Err(error) = weft_reactor::install_crash_handler(process_facts(config)) {
        log::warning!("There will be no crash reports: {error}");
    }
}

/// The facts about this process that a crash report contains; they live as long as the process.
fn process_facts(config: &Config) -> &'static [(&'static str, &'static str)] {
    let file = config
        .file()
        .map_or_else(String::new, |file| file.display().to_string());
    let facts: [(&'static str, String); 6] = [
        ("weft_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("valkey_version", COMPATIBLE_VERSION.to_owned()),
        (
            "weft_commit",
            option_env!("WEFT_COMMIT").unwrap_or("00000000").to_owned(),
        ),
        ("process_id", std::process::id().to_string()),
        ("tcp_port", config.port().to_string()),
        ("config_file", file),
    ];
    let facts: Vec<(&'static str, &'static str)> = facts
        .into_iter()
        .map(|(name, value)| (name, &*Box::leak(value.into_boxed_str())))
        .collect();
    Vec::leak(facts)
}

fn report_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let payload = panic.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let location = panic.location().map_or_else(String::new, ToString::to_string);
    log::warning!("=== ASSERTION FAILED ===");
    log::warning!(
        "==> {location} in thread '{}': {}",
        thread.name().unwrap_or("?"),
        message.unwrap_or("")
    );
    std::process::abort();
}

#[cfg(test)]
mod tests;
