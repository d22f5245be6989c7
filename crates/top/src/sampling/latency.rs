//! The latency of commands between two samples, from LATENCY HISTOGRAM.
//!
//! The reply has, for each command, the calls since the statistics were reset that took at most 1, 2, 4 microseconds
//! and so on. The calls of the interval are the difference of two replies. A percentile is interpolated within its
//! bucket, so it may be wrong by a factor of two at most. The server counts what takes longer than a second as a
//! second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::connection::reply::RespValue;
use crate::connection::{ServerConnection, accepted};
use crate::error::Result;
use crate::escape::printable;
use crate::model::TopReport;

#[cfg(test)]
pub mod tests;

/// The name of this part in the list of what is not available.
pub const PART: &str = "latency";
/// The largest number of commands that are kept.
const MAX_COMMANDS: usize = 10_000;
/// The largest number of buckets of a command.
const MAX_BUCKETS: usize = 64;
/// The longest name that is kept, in characters.
const MAX_CHARACTERS: usize = 256;
/// The time for which a refused command is not sent again, so that errors are not counted at each sample.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);

/// The number of calls in each bucket, by the upper bound of the bucket in microseconds.
type Buckets = BTreeMap<u64, u64>;

/// Percentiles of a latency, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Percentiles {
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
}

/// The histograms of one reply, by command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LatencyHistograms(BTreeMap<String, Buckets>);

impl LatencyHistograms {
    /// Reads a reply. Commands whose histogram is malformed are skipped. Returns `None` if it is no map.
    fn parse(reply: &RespValue) -> Option<LatencyHistograms> {
        let pairs = reply.elements()?.chunks_exact(2).take(MAX_COMMANDS);
        let commands = pairs.filter_map(|pair| {
            let name = printable(pair[0].bytes()?, MAX_CHARACTERS);
            Some((name, buckets(pair[1].field("histogram_usec")?)?))
        });
        Some(LatencyHistograms(commands.collect()))
    }

    /// Returns the calls of each command since the earlier reply; `None` if the statistics were reset in between.
    fn since(&self, earlier: &LatencyHistograms) -> Option<BTreeMap<&str, Buckets>> {
        // A reset forgets the commands that are not called again.
        if earlier.0.keys().any(|name| !self.0.contains_key(name)) {
            return None;
        }
        let none = Buckets::new();
        let mut increases = BTreeMap::new();
        for (name, later) in &self.0 {
            let earlier = earlier.0.get(name).unwrap_or(&none);
            increases.insert(name.as_str(), difference(earlier, later)?);
        }
        Some(increases)
    }
}

/// Reads upper bounds and cumulative numbers of calls, both of which rise.
fn buckets(reply: &RespValue) -> Option<Buckets> {
    let mut buckets = Buckets::new();
    let (mut last_bound, mut total) = (0, 0);
    for pair in reply.elements()?.chunks_exact(2).take(MAX_BUCKETS) {
        let bound = u64::try_from(pair[0].integer()?).ok()?;
        let cumulative = u64::try_from(pair[1].integer()?).ok()?;
        if bound < last_bound {
            return None;
        }
        // Latencies below a microsecond have a bucket whose bound may be 0.
        *buckets.entry(bound).or_default() += cumulative.checked_sub(total)?;
        (last_bound, total) = (bound, cumulative);
    }
    Some(buckets)
}

/// Returns the calls that were added to each bucket; `None` if a bucket has fewer than before.
fn difference(earlier: &Buckets, later: &Buckets) -> Option<Buckets> {
    let is_reset = earlier
        .iter()
        .any(|(bound, calls)| later.get(bound).copied().unwrap_or(0) < *calls);
    let added = |(bound, calls): (&u64, &u64)| (*bound, calls - earlier.get(bound).unwrap_or(&0));
    (!is_reset).then(|| later.iter().map(added).collect())
}

fn percentiles(buckets: &Buckets) -> Percentiles {
    Percentiles {
        p50: percentile(buckets, 0.5),
        p99: percentile(buckets, 0.99),
        p999: percentile(buckets, 0.999),
    }
}

/// Returns the latency in microseconds that this share of calls did not exceed; `None` without calls.
fn percentile(buckets: &Buckets, share: f64) -> Option<f64> {
    let total: f64 = buckets.values().map(|calls| *calls as f64).sum();
    let rank = total * share;
    let mut below = 0.0;
    for (bound, calls) in buckets.iter().filter(|(_, calls)| **calls > 0) {
        let calls = *calls as f64;
        if below + calls >= rank {
            // Each bucket begins at half of its upper bound, the first one at 0.
            let (lower, upper) = ((bound / 2) as f64, *bound as f64);
            return Some(lower + (upper - lower) * (rank - below) / calls);
        }
        below += calls;
    }
    None
}

/// The state between samples.
#[derive(Debug, Default)]
pub struct LatencySampling {
    /// The last reply, and the run of the server that it comes from.
    earlier: Option<(Option<String>, LatencyHistograms)>,
    /// The time and the text of the last refusal.
    refusal: Option<(Instant, String)>,
}

impl LatencySampling {
    /// Asks the server, and adds the percentiles since the last sample to the report. `run_id` is that of INFO.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn sample(
        &mut self,
        connection: &mut ServerConnection,
        run_id: Option<&str>,
        report: &mut TopReport,
    ) -> Result<()> {
        if let Some((time, text)) = &self.refusal
            && time.elapsed() < REFUSAL_KEPT
        {
            report.unavailable.insert(PART, text.clone());
            return Ok(());
        }
        let reply = accepted(connection.call(&["LATENCY", "HISTOGRAM"])?);
        self.apply(reply, run_id, report);
        Ok(())
    }

    /// Adds the percentiles of the calls between the last reply and this one to the report.
    fn apply(&mut self, reply: std::result::Result<RespValue, String>, run_id: Option<&str>, report: &mut TopReport) {
        let earlier = self.earlier.take();
        self.refusal = None;
        let no_map = || "the reply to LATENCY HISTOGRAM is malformed".to_owned();
        match reply.and_then(|reply| LatencyHistograms::parse(&reply).ok_or_else(no_map)) {
            Err(text) => {
                report.unavailable.insert(PART, text.clone());
                // Other errors end by themselves, such as BUSY.
                if ["NOPERM", "ERR"].iter().any(|kind| text.starts_with(kind)) {
                    self.refusal = Some((Instant::now(), text));
                }
            }
            Ok(later) => {
                if let Some((earlier_run, earlier)) = &earlier
                    && earlier_run.as_deref() == run_id
                {
                    fill(earlier, &later, report);
                }
                self.earlier = Some((run_id.map(str::to_owned), later));
            }
        }
    }
}

/// Fills the fields of the report.
fn fill(earlier: &LatencyHistograms, later: &LatencyHistograms, report: &mut TopReport) {
    let Some(increases) = later.since(earlier) else {
        return;
    };
    let mut all = Buckets::new();
    for (bound, calls) in increases.values().flatten() {
        let sum = all.entry(*bound).or_default();
        *sum = sum.saturating_add(*calls);
    }
    // The commands of this program are calls, too.
    if all.values().all(|calls| *calls == 0) {
        let reason = "the server measures no latencies (latency-tracking)".to_owned();
        report.unavailable.insert(PART, reason);
        return;
    }
    let figures = percentiles(&all);
    report.overview.latency_p50_us = figures.p50;
    report.overview.latency_p99_us = figures.p99;
    report.overview.latency_p999_us = figures.p999;
    for row in report.commands.iter_mut().flatten() {
        let figures = increases.get(row.name.as_str()).map(percentiles).unwrap_or_default();
        row.interval_p50_us = figures.p50;
        row.interval_p99_us = figures.p99;
        row.interval_p999_us = figures.p999;
    }
}
