//! The threads of the server: Weft's workers, or Valkey's main thread and I/O threads.

use std::collections::BTreeMap;

use crate::model::{WorkerRow, WorkersFigures};
use crate::sampling::info::{InfoPair, counter_rate, part_count};

/// Counters of INFO whose rates the panel shows.
const RATES: &[&str] = &[
    "weft_batches",
    "weft_deferrals",
    "weft_exclusive_commands",
    "weft_background_commands",
    "weft_moved_connections",
    "weft_prefetch_batches",
    "weft_tunings",
    "io_threaded_reads_processed",
    "io_threaded_writes_processed",
    "eventloop_cycles",
];
/// The largest number of rows.
const MAX_THREADS: usize = 1024;

/// Computes the figures of the threads.
///
/// # Errors
/// Fails if INFO says nothing of threads.
pub fn figures(pair: &InfoPair<'_>) -> Result<WorkersFigures, String> {
    let mut threads = weft_workers(pair);
    if threads.is_empty() {
        threads = valkey_threads(pair);
    }
    if threads.is_empty() {
        return Err("INFO of this server says nothing of its threads".to_owned());
    }
    let mut rates = BTreeMap::new();
    for name in RATES {
        if pair.later.text(name).is_some() {
            rates.insert((*name).to_owned(), pair.rate(name));
        }
    }
    let info = pair.later;
    Ok(WorkersFigures {
        configured: info.count("weft_workers"),
        active: info.count("weft_workers_active").or(info.count("io_threads_active")),
        threads,
        rates,
    })
}

fn weft_workers(pair: &InfoPair<'_>) -> Vec<WorkerRow> {
    let mut rows: Vec<(u64, WorkerRow)> = Vec::new();
    for (suffix, value) in pair.later.with_prefix("weft_worker").take(MAX_THREADS) {
        let Ok(index) = suffix.parse() else { continue };
        let field = format!("weft_worker{suffix}");
        let before = pair.earlier.and_then(|earlier| earlier.text(&field));
        let rate = |name: &str| {
            let before = before.and_then(|before| part_count(before, name));
            counter_rate(before, part_count(value, name), pair.seconds())
        };
        let row = WorkerRow {
            name: format!("worker {index}"),
            busy_share: rate("busy_ms").map(|ms_per_s| (ms_per_s / 1000.0).min(1.0)),
            connections: part_count(value, "connections"),
            commands_per_s: rate("requests"),
        };
        rows.push((index, row));
    }
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn valkey_threads(pair: &InfoPair<'_>) -> Vec<WorkerRow> {
    let row = |name: String, field: &str| WorkerRow {
        name,
        busy_share: pair.rate(field).map(|share| share.min(1.0)),
        connections: None,
        commands_per_s: None,
    };
    let mut rows = Vec::new();
    let main = "used_active_time_main_thread";
    if pair.later.text(main).is_some() {
        rows.push(row("main thread".to_owned(), main));
    }
    let prefix = "used_active_time_io_thread_";
    let mut indices: Vec<u64> = pair
        .later
        .with_prefix(prefix)
        .filter_map(|(index, _)| index.parse().ok())
        .take(MAX_THREADS)
        .collect();
    indices.sort_unstable();
    rows.extend(
        indices
            .iter()
            .map(|index| row(format!("I/O thread {index}"), &format!("{prefix}{index}"))),
    );
    rows
}
