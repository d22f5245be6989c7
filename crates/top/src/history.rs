//! The figures of the last five minutes, for the charts.

use std::collections::VecDeque;

use crate::model::TopReport;

/// The time that is kept, in milliseconds.
pub const KEPT_MS: u64 = 300_000;
/// The largest number of points: five minutes at the shortest interval.
const MAX_POINTS: usize = 3000;

/// A figure that has a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartFigure {
    /// Commands per second.
    Operations,
    /// Busy cores.
    Cpu,
    /// Bytes received per second.
    NetworkIn,
    /// Bytes sent per second.
    NetworkOut,
    /// Used memory.
    Memory,
    /// The share of lookups that found their key.
    HitRatio,
    /// The median of the latency of commands.
    LatencyP50,
    /// The 99th percentile of the latency.
    LatencyP99,
    /// The 99.9th percentile of the latency.
    LatencyP999,
}

/// The figures of one moment, by [`ChartFigure`].
#[derive(Debug, Clone, Copy)]
struct HistoryPoint {
    time_ms: u64,
    values: [Option<f64>; 9],
}

/// The points of the last five minutes.
#[derive(Debug, Clone, Default)]
pub struct FigureHistory(VecDeque<HistoryPoint>);

impl FigureHistory {
    /// Adds the figures of a report, and drops those that are too old.
    pub fn push(&mut self, report: &TopReport) {
        let overview = &report.overview;
        self.0.push_back(HistoryPoint {
            time_ms: report.time_ms,
            values: [
                overview.operations_per_s,
                overview.cpu_cores,
                overview.network_in_bytes_per_s,
                overview.network_out_bytes_per_s,
                overview.used_memory_bytes.map(|bytes| bytes as f64),
                overview.hit_ratio,
                overview.latency_p50_us,
                overview.latency_p99_us,
                overview.latency_p999_us,
            ],
        });
        let oldest = report.time_ms.saturating_sub(KEPT_MS);
        while self.0.len() > MAX_POINTS || self.0.front().is_some_and(|point| point.time_ms < oldest) {
            self.0.pop_front();
        }
    }

    /// Returns one value for each of `width` columns, the newest last. If there are more points than columns, a column
    /// is the mean of its points; columns before the first point are `None`.
    pub fn columns(&self, figure: ChartFigure, width: usize) -> Vec<Option<f64>> {
        let points: Vec<Option<f64>> = self.0.iter().map(|point| point.values[figure as usize]).collect();
        if width == 0 {
            return Vec::new();
        }
        let group = points.len().div_ceil(width).max(1);
        let mut columns: Vec<Option<f64>> = points.rchunks(group).map(mean).collect();
        columns.resize(width, None);
        columns.reverse();
        columns
    }
}

fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}
