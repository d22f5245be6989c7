//! The page of a report: one HTML document that needs no other file and no network.

use std::fmt::Write;

use super::markup::{escape, write_definitions, write_paragraph, write_table};
use super::plots::{BarChart, PercentileChart, PlotSeries};
use super::scaling;
use crate::error::Result;
use crate::report::{
    LATENCIES, LoadRow, REQUESTS, Report, ReportTable, SERVER_CPU, Section, format_decimal, format_ratio,
    format_thousands, median,
};
use crate::sets::{PART_NAMES, PUBLISHED};

#[cfg(test)]
mod tests;

/// The style of the page. Colours follow the preference of the reader's system.
const STYLE: &str = "
:root {
  color-scheme: light dark;
  --text: #1b1f24; --page: #ffffff; --line: #d0d7de; --shade: #f3f5f8; --warn: #fff4d6;
}
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ed; --page: #14171b; --line: #3a424c; --shade: #1e2329; --warn: #3d3210; }
}
body { color: var(--text); background: var(--page); font: 16px/1.5 system-ui, sans-serif; max-width: 1080px;
  margin: 0 auto; padding: 1rem; }
h2 { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1rem; }
a { color: inherit; }
code { font-size: 0.9em; overflow-wrap: anywhere; }
dt { font-weight: 600; margin-top: 0.4rem; }
dd { margin-left: 1rem; }
figure { margin: 1.5rem 0; overflow-x: auto; }
figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--text); }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; }
thead th { background: var(--shade); vertical-align: bottom; }
th:first-child { text-align: left; white-space: nowrap; }
.warning { background: var(--warn); padding: 0.6rem 1rem; border-radius: 4px; }
";

/// The style of a plot that is a file of its own.
const FIGURE_STYLE: &str = "<style>text { fill: #1b1f24; } @media (prefers-color-scheme: dark) \
    { text { fill: #e6e9ed; } }</style>";

/// The depth of the pipeline of the loads in [`figure`].
const FIGURE_PIPELINE: u64 = 16;

/// What the page says besides the measurements and their environment.
#[derive(Debug, Clone, Default)]
pub struct PageFacts {
    /// The CPUs on which the servers and the client were pinned, where they were.
    pub pinning: String,
    /// The number of interleaved rounds.
    pub rounds: usize,
    /// The length of each measurement in seconds.
    pub window_s: f64,
    /// The length of the load before each measurement in seconds.
    pub warmup_s: f64,
    /// The reason why the run ended before its time.
    pub early_end: Option<String>,
}

/// Returns the whole page.
///
/// # Errors
/// Fails if a plot cannot be drawn.
pub fn page(report: &Report, facts: &PageFacts) -> Result<String> {
    let title = "Weft and Valkey, measured in turn";
    let mut html = String::new();
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\" />\n\
         <title>{title}, {date}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        date = escape(&report.environment.date)
    );
    if let Some(reason) = &facts.early_end {
        let _ = writeln!(
            html,
            "<p class=\"warning\">The run ended early: {}. The page has the rows that were finished.</p>",
            escape(reason)
        );
    }
    write_machine(&mut html, report, facts);
    write_contents(&mut html, report);
    for (number, section) in report.sections.iter().enumerate() {
        write_section(&mut html, number, section)?;
    }
    write_memory(&mut html, report)?;
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

/// Returns the CPU time per request of the loads at pipeline 16 as an SVG document.
///
/// # Errors
/// Fails if the plot cannot be drawn.
pub fn figure(report: &Report) -> Result<String> {
    let first = report.sections.iter().find(|section| !section.loads.is_empty());
    let labels = first.map(|section| section.labels.clone()).unwrap_or_default();
    let mut rows: Vec<&LoadRow> = Vec::new();
    let mut parts = Vec::new();
    for section in &report.sections {
        if section.labels == labels && section.worker_points.is_empty() {
            let loads = section.loads.iter().filter(|row| row.pipeline == FIGURE_PIPELINE);
            rows.extend(loads);
            parts.resize(rows.len(), part_name(section));
        }
    }
    let chart = BarChart {
        title: "CPU time of the server per request, in µs; shorter is better".to_string(),
        rows: distinct_names(&rows, &parts),
        ..bars(&rows, &labels, SERVER_CPU, two_decimals)
    };
    let svg = chart.svg()?;
    let (opening, content) = svg.split_once('>').unwrap_or((svg.as_str(), ""));
    Ok(format!("{opening}>{FIGURE_STYLE}{content}"))
}

/// Returns the short name of the comparison that a section shows.
fn part_name(section: &Section) -> Option<&'static str> {
    let mut parts = PUBLISHED.comparisons.iter().zip(PART_NAMES);
    let found = parts.find(|(comparison, _)| section.title.starts_with(comparison.title));
    found.map(|(_, name)| name)
}

/// Returns the names of rows of several comparisons. Names that occur twice are followed by that of the comparison.
fn distinct_names(rows: &[&LoadRow], parts: &[Option<&'static str>]) -> Vec<String> {
    let names: Vec<String> = rows.iter().map(|row| row.name()).collect();
    let occurs_twice = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    let distinct = |(name, part): (&String, &Option<&'static str>)| match part {
        Some(part) if occurs_twice(name) => format!("{name}, {part}"),
        _ => name.clone(),
    };
    names.iter().zip(parts).map(distinct).collect()
}

fn write_machine(html: &mut String, report: &Report, facts: &PageFacts) {
    let environment = &report.environment;
    let rows = [
        ("date", environment.date.clone()),
        ("CPU", environment.processor.clone()),
        ("logical CPUs", environment.processors.to_string()),
        ("memory", environment.memory_text()),
        ("kernel", format!("Linux {}", environment.kernel)),
        ("pinning", facts.pinning.clone()),
        (
            "measurements",
            format!(
                "{} of {} s, after {} s of the same load",
                rounds_text(facts.rounds),
                facts.window_s,
                facts.warmup_s
            ),
        ),
    ];
    let table = ReportTable {
        heads: vec!["machine and run".to_string(), String::new()],
        rows: rows
            .into_iter()
            .map(|(name, value)| vec![name.to_string(), value])
            .collect(),
    };
    write_table(html, &table);
    let command_line = [("Command line of this report", report.command_line.as_str())];
    let versions = report.distinct_versions();
    let versions = versions.iter().map(|(labels, version)| (labels.as_str(), *version));
    write_definitions(html, command_line.into_iter().chain(versions));
    write_paragraph(
        html,
        "Each server is started with no data and filled; then each load runs on one server, on the other one, and on \
         the first one again. Every reply is checked. Numbers are medians over the rounds. A ratio is the median of \
         the rounds' ratios, the first server over the other one: for requests/s, more than 1 is better for the first \
         server, and for CPU time, latency and memory, less than 1. CPU time is that of all threads of the server. On \
         a machine that others share, ratios of CPU time mean more than requests/s.",
    );
    write_paragraph(
        html,
        "A load is named by its command, a mixture by commands with their shares in percent; then follow the size of \
         values in bytes (B) and the number of requests in flight per connection (P).",
    );
}

/// Names a number of rounds.
fn rounds_text(rounds: usize) -> String {
    match rounds {
        1 => "1 round".to_string(),
        rounds => format!("{rounds} interleaved rounds"),
    }
}

/// Appends links to the sections, with the range of their ratios.
fn write_contents(html: &mut String, report: &Report) {
    html.push_str("<h2>Contents</h2>\n<ol>\n");
    for (number, section) in report.sections.iter().enumerate() {
        let title = escape(&section.title);
        let _ = writeln!(html, "<li><a href=\"#part{number}\">{title}</a></li>");
    }
    html.push_str("<li><a href=\"#memory\">Memory per key</a></li>\n</ol>\n");
    let compared = |section: &&Section| section.labels.len() == 2 && section.worker_points.is_empty();
    let rows: Vec<Vec<String>> = report
        .sections
        .iter()
        .filter(compared)
        .filter(|section| !section.loads.is_empty())
        .map(|section| {
            let metrics = [REQUESTS, SERVER_CPU, LATENCIES[1]];
            let ranges = metrics.map(|metric| ratio_range(&section.loads, metric));
            [vec![section.title.clone()], ranges.to_vec()].concat()
        })
        .collect();
    if !rows.is_empty() {
        let heads = [
            "ratio, median (lowest to highest)",
            "requests/s",
            "CPU-µs/request",
            "p99 latency",
        ];
        let heads = heads.map(String::from).to_vec();
        write_table(html, &ReportTable { heads, rows });
    }
}

/// Formats the median, the lowest and the highest ratio of the loads.
fn ratio_range(loads: &[LoadRow], metric: usize) -> String {
    let ratios: Vec<f64> = loads.iter().filter_map(|row| row.ratio(metric, 1)).collect();
    let lowest = ratios.iter().copied().reduce(f64::min);
    let highest = ratios.iter().copied().reduce(f64::max);
    format!(
        "{} ({} to {})",
        format_ratio(median(ratios)),
        format_ratio(lowest),
        format_ratio(highest)
    )
}

fn write_section(html: &mut String, number: usize, section: &Section) -> Result<()> {
    let _ = writeln!(html, "<h2 id=\"part{number}\">{}</h2>", escape(&section.title));
    let commands = section.labels.iter().zip(&section.commands);
    write_definitions(
        html,
        commands.map(|(label, command)| (label.as_str(), command.as_str())),
    );
    for remark in &section.remarks {
        write_paragraph(html, &format!("{remark}."));
    }
    if section.loads.is_empty() {
        write_paragraph(html, "No load was finished.");
        return Ok(());
    }
    if section.worker_points.is_empty() {
        write_load_plots(html, section)?;
        write_table(html, &section.loads_table());
    } else {
        for row in &section.loads {
            let caption = format!("{}: requests/s over workers", row.name());
            write_figure(html, &caption, &scaling::throughput_curves(section, row).svg()?);
        }
        write_table(html, &scaling::table(section));
    }
    for note in section.notes() {
        write_paragraph(html, &note);
    }
    Ok(())
}

fn write_load_plots(html: &mut String, section: &Section) -> Result<()> {
    let rows: Vec<&LoadRow> = section.loads.iter().collect();
    let throughput = BarChart {
        title: "requests/s".to_string(),
        ..bars(&rows, &section.labels, REQUESTS, thousands)
    };
    write_figure(html, "Throughput: longer is better", &throughput.svg()?);
    let cpu = BarChart {
        title: "CPU-µs of the server per request".to_string(),
        ..bars(&rows, &section.labels, SERVER_CPU, two_decimals)
    };
    write_figure(html, "CPU time per request: shorter is better", &cpu.svg()?);
    let percentiles = |side: usize| -> Vec<Option<[f64; 3]>> {
        let of_row = |row: &&LoadRow| {
            let [median, p99, p999] = LATENCIES.map(|metric| row.median(side, metric));
            Some([median?, p99?, p999?])
        };
        rows.iter().map(of_row).collect()
    };
    let series = section.labels.iter().enumerate().map(|(side, label)| PlotSeries {
        name: label.clone(),
        values: percentiles(side),
    });
    let latency = PercentileChart {
        title: "latency in µs, logarithmic".to_string(),
        rows: rows.iter().map(|row| row.name()).collect(),
        series: series.collect(),
        format: thousands,
    };
    let caption = "Latency: the dot is the median, the ring p99, the end of the line p99.9; further left is better";
    write_figure(html, caption, &latency.svg()?);
    Ok(())
}

/// Returns bars of a metric, without a title.
fn bars(rows: &[&LoadRow], labels: &[String], metric: usize, format: fn(f64) -> String) -> BarChart {
    let series = labels.iter().enumerate().map(|(side, label)| PlotSeries {
        name: label.clone(),
        values: rows.iter().map(|row| row.median(side, metric)).collect(),
    });
    BarChart {
        title: String::new(),
        rows: rows.iter().map(|row| row.name()).collect(),
        series: series.collect(),
        format,
    }
}

/// Appends the memory per key of all sections that have the labels of the first one.
fn write_memory(html: &mut String, report: &Report) -> Result<()> {
    html.push_str("<h2 id=\"memory\">Memory per key</h2>\n");
    let sections = report.sections.iter().filter(|section| !section.memory.is_empty());
    let sections: Vec<&Section> = sections.collect();
    let Some(first) = sections.first() else {
        write_paragraph(html, "No memory was measured.");
        return Ok(());
    };
    let alike = sections.iter().filter(|section| section.labels == first.labels);
    let alike: Vec<&&Section> = alike.collect();
    let memory: Vec<_> = alike.iter().flat_map(|section| &section.memory).collect();
    let series = first.labels.iter().enumerate().map(|(side, label)| PlotSeries {
        name: label.clone(),
        values: memory.iter().map(|row| row.bytes_per_key.get(side).copied()).collect(),
    });
    let chart = BarChart {
        title: "resident bytes per key".to_string(),
        rows: memory.iter().map(|row| row.name()).collect(),
        series: series.collect(),
        format: |value| format_decimal(Some(value), 1),
    };
    write_figure(html, "Memory per key or collection: shorter is better", &chart.svg()?);
    let table = ReportTable {
        heads: first.memory_table().heads,
        rows: alike.iter().flat_map(|section| section.memory_table().rows).collect(),
    };
    write_table(html, &table);
    write_paragraph(
        html,
        "The growth of resident memory by filling the server, divided by the number of keys or collections, after it \
         has settled. Keys of strings have 16 bytes. With few keys, or with short measurements, memory that the server \
         has not returned yet counts too.",
    );
    Ok(())
}

fn write_figure(html: &mut String, caption: &str, svg: &str) {
    let _ = writeln!(
        html,
        "<figure>\n<figcaption>{}</figcaption>\n{svg}</figure>",
        escape(caption)
    );
}

fn thousands(value: f64) -> String {
    format_thousands(Some(value))
}

fn two_decimals(value: f64) -> String {
    format_decimal(Some(value), 2)
}
