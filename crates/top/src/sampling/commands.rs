//! The commands, from the sections commandstats and latencystats of INFO.

use crate::model::CommandFigures;
use crate::sampling::info::{InfoPair, counter_rate, finite_number, part, part_count};

/// Computes the figures of the commands, sorted by their share of time.
///
/// # Errors
/// Fails if INFO has no statistics of commands.
pub fn figures(pair: &InfoPair<'_>) -> Result<Vec<CommandFigures>, String> {
    let total_us: u64 = pair
        .later
        .with_prefix("cmdstat_")
        .filter_map(|(name, value)| increase(pair, name, value, "usec"))
        .fold(0, u64::saturating_add);
    let mut rows: Vec<CommandFigures> = pair
        .later
        .with_prefix("cmdstat_")
        .map(|(name, value)| command(pair, name, value, total_us))
        .collect();
    if rows.is_empty() {
        return Err("INFO of this server has no section commandstats".to_owned());
    }
    rows.sort_by(|one, other| {
        let key = |row: &CommandFigures| row.time_share.unwrap_or(0.0);
        key(other).total_cmp(&key(one)).then(other.calls.cmp(&one.calls))
    });
    Ok(rows)
}

fn command(pair: &InfoPair<'_>, name: &str, value: &str, total_us: u64) -> CommandFigures {
    let rate = |part: &str| {
        let before = earlier_value(pair, name, part);
        counter_rate(before, part_count(value, part), pair.seconds())
    };
    let calls = increase(pair, name, value, "calls");
    let us = increase(pair, name, value, "usec");
    let recent_us_per_call = match (us, calls) {
        (Some(us), Some(calls)) if calls > 0 => Some(us as f64 / calls as f64),
        _ => None,
    };
    let latencies = pair
        .later
        .text(&format!("latency_percentiles_usec_{name}"))
        .unwrap_or_default();
    let percentile = |name: &str| part(latencies, name).and_then(finite_number);
    CommandFigures {
        name: name.to_owned(),
        calls: part_count(value, "calls").unwrap_or(0),
        calls_per_s: rate("calls"),
        us_per_call: recent_us_per_call.or_else(|| part(value, "usec_per_call").and_then(finite_number)),
        time_share: us.filter(|_| total_us > 0).map(|us| us as f64 / total_us as f64),
        failed_per_s: rate("failed_calls"),
        rejected_per_s: rate("rejected_calls"),
        failed: part_count(value, "failed_calls").unwrap_or(0),
        rejected: part_count(value, "rejected_calls").unwrap_or(0),
        p50_us: percentile("p50"),
        p99_us: percentile("p99"),
        p999_us: percentile("p99.9"),
        // The histograms of latencies have them.
        interval_p50_us: None,
        interval_p99_us: None,
        interval_p999_us: None,
    }
}

/// The increase of one part of a command's statistics.
fn increase(pair: &InfoPair<'_>, name: &str, value: &str, part: &str) -> Option<u64> {
    part_count(value, part)?.checked_sub(earlier_value(pair, name, part)?)
}

/// The value in the earlier sample. A command that was first called after it begins at 0.
fn earlier_value(pair: &InfoPair<'_>, name: &str, part: &str) -> Option<u64> {
    match pair.earlier?.text(&format!("cmdstat_{name}")) {
        Some(value) => part_count(value, part),
        None => Some(0),
    }
}
