//! The first lines of the log, and the logo.

use std::io::IsTerminal;

use crate::observability::log::{self, Level};
use weft_config::{COMPATIBLE_VERSION, Config, id};

/// Logs the start. `configured` is `true` if there was a configuration file or an argument.
pub fn log_start(is_configured: bool) {
    log::notice!("oO0OoO0OoO0Oo Weft is starting oO0OoO0OoO0Oo");
    log::notice!(
        "Weft version={}, Valkey version={COMPATIBLE_VERSION}, bits={}, commit={}, modified=0, pid={}, just started",
        env!("CARGO_PKG_VERSION"),
        usize::BITS,
        commit(),
        std::process::id()
    );
    if is_configured {
        log::notice!("Configuration loaded");
    } else {
        let program = std::env::args_os().next().unwrap_or_default();
        log::warning!(
            "Warning: no config file specified, using the default config. In order to specify a config file use {} \
             /path/to/weft.conf",
            program.display()
        );
    }
}

/// Logs the mode and the port: with the logo if standard output is a terminal, or always if configured so.
pub fn log_banner(config: &Config) {
    let mode = if config.boolean(id::CLUSTER_ENABLED) {
        "cluster"
    } else {
        "standalone"
    };
    let port = config.port();
    let somebody_looks =
        !config.boolean(id::SYSLOG_ENABLED) && config.text(id::LOGFILE).is_empty() && std::io::stdout().is_terminal();
    if somebody_looks || config.boolean(id::ALWAYS_SHOW_LOGO) {
        log::write_raw(Level::Notice, &banner_text(mode, port));
    } else {
        log::notice!("Running mode={mode}, port={port}.");
    }
}

fn commit() -> &'static str {
    option_env!("WEFT_COMMIT").unwrap_or("00000000")
}

fn banner_text(mode: &str, port: i64) -> String {
    let facts = [
        String::new(),
        format!("Weft {} ({}) {} bit", env!("CARGO_PKG_VERSION"), commit(), usize::BITS),
        format!("as Valkey {COMPATIBLE_VERSION}"),
        String::new(),
        format!("Running in {mode} mode"),
        format!("Port: {port}"),
        format!("PID: {}", std::process::id()),
        String::new(),
        String::new(),
    ];
    let mut text = String::from("\n");
    for (threads, fact) in LOGO.iter().zip(facts) {
        let line = format!("   {threads}    {fact}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    text
}

/// A weave: the threads of the weft pass over and under those of the warp.
const LOGO: [&str; 9] = [
    "    |     |     |     |    ",
    "  ==|=====|==   |   ==|==  ",
    "    |     |  \\  |  /  |    ",
    "  --+-----|---==|==---|--  ",
    "    |     |     |     |    ",
    "  ==|==---+--===|=====|==  ",
    "    |  \\  |  /  |     |    ",
    "  --|---==|==---+-----|--  ",
    "    |     |     |     |    ",
];
