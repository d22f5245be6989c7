//! Crash reports: what the process logs when it dies of a fault or a broken invariant.
//!
//! A panic is a broken invariant. The panic hook logs the message and its location, and aborts. The abort is reported
//! like any fatal signal, with the backtrace of the panic.

use std::panic::PanicHookInfo;

use crate::observability::log;
use weft_config::{COMPATIBLE_VERSION, Config, id};

/// Prepares crash reports. Faults go to the log file that is open now, panics to the log that is open when they happen.
///
/// `crash-log-enabled no` leaves faults to the system; panics are logged nevertheless.
pub fn install_crash_reports(config: &Config) {
    std::panic::set_hook(Box::new(report_panic));
    if let Ok(descriptor) = log::descriptor() {
        // Setting the descriptor fails only on a second call, and then the first one is equally good.
        let _ = weft_reactor::set_emergency_log(descriptor);
    }
    weft_reactor::set_module_of_crash(|show| weft_modules::invoke::show_running(|module| show(module)));
    weft_reactor::set_module_info_of_crash(|write| {
        let text = weft_modules::module::info::collect_for_crash();
        if !text.is_empty() {
            write(b"\n------ MODULES INFO OUTPUT ------\n");
            write(&text);
        }
    });
    weft_reactor::set_crash_reports(config.boolean(id::CRASH_LOG_ENABLED));
    if let Err(error) = weft_reactor::install_crash_handler(process_facts(config)) {
        log::warning!("There will be no crash reports: {error}");
    }
}

/// Returns the facts about this process that a crash report contains; they live as long as the process.
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
    weft_modules::invoke::show_running(|module| log::warning!("The thread runs code of module {module}"));
    log::warning!(
        "==> {location} in thread '{}': {}",
        thread.name().unwrap_or("?"),
        message.unwrap_or("")
    );
    std::process::abort();
}

#[cfg(test)]
mod tests;
