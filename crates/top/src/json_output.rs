//! `--json`: prints one report per interval.
//!
//! The first sample is only the base of the rates of the second one, which is the first that is printed.

use std::io::{self, Write};
use std::time::Duration;

use crate::connection::Connector;
use crate::error::{Result, TopError};
use crate::model::TopReport;
use crate::poller::{self, PollEvent};
use crate::sampling::WantedParts;
use crate::sampling::hot_keys::HotKeysMode;
use crate::sampling::slots::SlotOrder;
use crate::terminal::TerminationSignals;

/// How often the termination signals are looked at while there is no event.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// The parts of a report that cost the server more than INFO, and are printed only if asked for.
#[derive(Debug, Clone, Copy)]
pub struct CostlyParts {
    /// The biggest keys.
    pub sample_keys: bool,
    /// The most used keys.
    pub hot_keys: bool,
}

/// Prints reports until `count` of them are printed, the reader of the output is gone, or a signal ends the process.
///
/// # Errors
/// Fails if the server is not reached at first, or if it is lost when one report is to be printed only.
pub fn run(
    connector: Connector,
    interval: Duration,
    count: Option<u64>,
    pretty: bool,
    parts: CostlyParts,
) -> Result<()> {
    let wanted = WantedParts {
        clients: true,
        slots: Some(SlotOrder::CpuTime),
        keys: parts.sample_keys,
        hot_keys: match parts.hot_keys {
            true => HotKeysMode::Sampled,
            false => HotKeysMode::Hidden,
        },
    };
    let signals = TerminationSignals::register()?;
    let poller = poller::start(connector, interval, wanted)?;
    let mut printed = 0;
    let mut has_connected = false;
    while !signals.arrived() && count.is_none_or(|count| printed < count) {
        let Ok(event) = poller.events.recv_timeout(SIGNAL_CHECK) else {
            continue;
        };
        match event {
            PollEvent::Report(report) => {
                has_connected = true;
                // The first sample of a connection has no rates.
                if report.interval_s.is_none() && !report.unavailable.contains_key("overview") {
                    continue;
                }
                if !print(&report, pretty)? {
                    return Ok(());
                }
                printed += 1;
            }
            PollEvent::Disconnected(error) if !has_connected || count == Some(1) => return Err(error),
            PollEvent::Disconnected(error) => eprintln!("weft-top: {error}; connecting again"),
            PollEvent::Message(_) => {}
        }
    }
    Ok(())
}

/// Prints a report. Returns `false` if the reader of the output is gone.
fn print(report: &TopReport, pretty: bool) -> Result<bool> {
    let text = match pretty {
        true => serde_json::to_string_pretty(report),
        false => serde_json::to_string(report),
    };
    let mut text = text.map_err(|error| TopError::Server(format!("the report has no JSON: {error}")))?;
    text.push('\n');
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(TopError::system("writing the output")(error)),
    }
}
