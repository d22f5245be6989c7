//! How the servers scale with their number of workers: the sides of a section as curves and as a table.

use super::plots::{CurveChart, PlotSeries};
use crate::report::{
    LATENCIES, LoadRow, REQUESTS, ReportTable, SERVER_CPU, Section, WorkerPoint, format_decimal, format_ratio,
    format_thousands,
};

/// A metric of the table, with its unit and number of decimals.
const TABLE_METRICS: [(usize, &str, usize); 3] = [
    (REQUESTS, "req/s", 0),
    (SERVER_CPU, "CPU-µs/req", 2),
    (LATENCIES[1], "p99 µs", 0),
];

/// Returns the curves of requests per second of a load.
pub fn throughput_curves(section: &Section, row: &LoadRow) -> CurveChart {
    let curve = |server: &'static str| {
        let points = section.worker_points.iter().enumerate();
        let of_server = points.filter(|(_, point)| point.server == server);
        let values = of_server.filter_map(|(side, point)| {
            let requests = row.median(side, REQUESTS)?;
            Some((i32::try_from(point.workers).ok()?, requests))
        });
        PlotSeries {
            name: server.to_string(),
            values: values.collect(),
        }
    };
    CurveChart {
        title: format!("{}, requests/s", row.name()),
        horizontal: "workers (I/O threads)".to_string(),
        series: servers(section).into_iter().map(curve).collect(),
        format: |value| format_thousands(Some(value)),
    }
}

/// Returns a table with a row for each load and number of workers, and the ratio of the first server to the second one.
pub fn table(section: &Section) -> ReportTable {
    let servers = servers(section);
    let mut heads = vec!["load".to_string(), "workers".to_string()];
    for (_, unit, _) in TABLE_METRICS {
        heads.extend(servers.iter().map(|server| format!("{server} {unit}")));
        heads.extend((servers.len() == 2).then(|| "ratio".to_string()));
    }
    let mut numbers: Vec<usize> = section.worker_points.iter().map(|point| point.workers).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut rows = Vec::new();
    for row in &section.loads {
        for workers in &numbers {
            let place = |&server: &&'static str| {
                let wanted = WorkerPoint {
                    server,
                    workers: *workers,
                };
                section.worker_points.iter().position(|point| *point == wanted)
            };
            let sides: Vec<Option<usize>> = servers.iter().map(place).collect();
            rows.push(cells(row, *workers, &sides));
        }
    }
    ReportTable { heads, rows }
}

fn cells(row: &LoadRow, workers: usize, sides: &[Option<usize>]) -> Vec<String> {
    let mut cells = vec![row.name(), workers.to_string()];
    for (metric, _, decimals) in TABLE_METRICS {
        for side in sides {
            let value = side.and_then(|side| row.median(side, metric));
            cells.push(match decimals {
                0 => format_thousands(value),
                _ => format_decimal(value, decimals),
            });
        }
        if let [first, second] = sides {
            let pair = first.zip(*second);
            cells.push(format_ratio(
                pair.and_then(|(first, second)| row.ratio_between(metric, first, second)),
            ));
        }
    }
    cells
}

/// The servers of the section, in the order of its sides.
fn servers(section: &Section) -> Vec<&'static str> {
    let mut servers = Vec::new();
    for point in &section.worker_points {
        if !servers.contains(&point.server) {
            servers.push(point.server);
        }
    }
    servers
}
