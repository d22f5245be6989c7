//! The search for big keys by a Weft server itself (WEFT BIGKEYS), which costs less than reading pages of keys.
//!
//! The server visits all keys with 1 % of the time of one of its background threads. When a scan is complete, the next
//! one starts after a pause. A scan that another client has started is shown, and not stopped, even if that client has
//! stopped ours meanwhile: the server stops what has our id.

use std::time::{Duration, Instant};

use super::keys::{BiggestKeys, FoundKey};
use super::random_id;
use crate::connection::reply::RespValue;
use crate::connection::{ServerConnection, accepted};
use crate::error::Result;
use crate::escape::printable;
use crate::model::KeysFigures;

#[cfg(test)]
mod tests;

/// The number of keys of each type.
const COUNT: &str = "100";
/// The share of a thread's time that a scan takes, in per cent.
const EFFORT: &str = "1";
/// The same as a share.
const COST_SHARE: f64 = 0.01;
/// The pause between two scans.
const PASS_PAUSE: Duration = Duration::from_secs(5);

/// The state of the search.
#[derive(Debug)]
pub struct ServerScan {
    /// The id of the scans that this program starts.
    id: String,
    /// `true` if this program has started a scan and does not know of its end.
    is_own: bool,
    passes: u64,
    /// The keys of the last complete scan.
    previous: BiggestKeys,
    /// The earliest time of the next scan.
    next_start: Instant,
}

/// A scan as the server reports it.
struct ScanReport {
    is_running: bool,
    is_complete: bool,
    keys: u64,
    biggest: BiggestKeys,
}

impl ServerScan {
    /// Creates the state before the first scan.
    pub fn new(now: Instant) -> ServerScan {
        ServerScan {
            id: random_id(),
            is_own: false,
            passes: 0,
            previous: BiggestKeys::default(),
            next_start: now,
        }
    }

    /// Asks the server, and starts the next scan if it is due. Returns the figures, or `None` if the server refuses.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn sample(
        &mut self,
        connection: &mut ServerConnection,
        total: Option<u64>,
        now: Instant,
    ) -> Result<Option<KeysFigures>> {
        let Ok(reply) = accepted(connection.call(&["WEFT", "BIGKEYS", "GET"])?) else {
            return Ok(None);
        };
        let Some(report) = parse(&reply) else {
            return Ok(None);
        };
        if self.is_own && report.is_complete {
            self.is_own = false;
            self.passes += 1;
            self.next_start = now + PASS_PAUSE;
        }
        let figures = KeysFigures {
            sampled: report.keys,
            total,
            passes: self.passes,
            cost_share: COST_SHARE,
            rows: report.biggest.merged(&self.previous),
        };
        if !report.is_running && now >= self.next_start {
            let start = ["WEFT", "BIGKEYS", "START"];
            let options = ["COUNT", COUNT, "EFFORT", EFFORT, "ID", &self.id];
            if accepted(connection.call(&[&start[..], &options].concat())?).is_err() {
                return Ok(None);
            }
            self.is_own = true;
            self.previous = report.biggest;
        }
        Ok(Some(figures))
    }

    /// Ends the search.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn stop(self, connection: &mut ServerConnection) -> Result<()> {
        if self.is_own {
            // An error has no consequence: the scan ends by itself, or has ended already.
            connection.call(&["WEFT", "BIGKEYS", "STOP", "ID", &self.id])?;
        }
        Ok(())
    }
}

/// Parses a report; `None` if it has another form.
fn parse(reply: &RespValue) -> Option<ScanReport> {
    let number = |value: &RespValue, name: &str| u64::try_from(value.field(name)?.integer()?).ok();
    let state = reply.field("state")?.bytes()?;
    let mut biggest = BiggestKeys::default();
    for figures in reply.field("types")?.elements()? {
        let kind = printable(figures.field("type")?.bytes()?, 32);
        for key in figures.field("biggest")?.elements()? {
            biggest.insert(FoundKey {
                database: number(key, "database")?,
                name: key.field("key")?.bytes()?,
                kind: kind.clone(),
                memory_bytes: number(key, "bytes")?,
                elements: number(key, "elements"),
            });
        }
    }
    Some(ScanReport {
        is_running: state == b"running",
        is_complete: state == b"complete",
        keys: number(reply, "keys")?,
        biggest,
    })
}
