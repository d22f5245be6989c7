//! The overview: figures in two columns, and charts of the last five minutes below them.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, SparklineBar, Wrap};

use super::theme::Theme;
use crate::format;
use crate::history::{ChartFigure, FigureHistory};
use crate::model::{OverviewFigures, TopReport};
use crate::sampling::latency;

/// The number of lines of figures.
const FIGURE_LINES: u16 = 9;
/// The width of the names of figures.
const NAME_WIDTH: usize = 14;
/// The smallest width for two columns.
const TWO_COLUMNS: u16 = 70;
/// The number of charts in a row.
const CHART_COLUMNS: usize = 3;
/// Bars have this many steps. The sparkline takes whole numbers.
const BAR_STEPS: f64 = 10_000.0;

/// Draws the overview.
pub fn draw(frame: &mut Frame<'_>, area: Rect, report: &TopReport, history: &FigureHistory, theme: Theme) {
    if let Some(reason) = report.unavailable.get("overview") {
        let text = format!("Not available: {reason}");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let overview = &report.overview;
    let left = activity(report);
    let right = state(overview, report.time_ms / 1000);
    if area.width < TWO_COLUMNS {
        let lines = [left, right].concat();
        frame.render_widget(Paragraph::new(figure_lines(&lines, theme)), area);
        return;
    }
    let [figures, charts] = Layout::vertical([Constraint::Length(FIGURE_LINES), Constraint::Min(0)]).areas(area);
    let [left_area, right_area] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(figures);
    frame.render_widget(Paragraph::new(figure_lines(&left, theme)), left_area);
    frame.render_widget(Paragraph::new(figure_lines(&right, theme)), right_area);
    draw_charts(frame, charts, report, history, theme);
}

fn figure_lines(figures: &[(&'static str, String)], theme: Theme) -> Vec<Line<'static>> {
    let line = |(name, value): &(&'static str, String)| {
        Line::from(vec![
            Span::styled(format!("{name:<NAME_WIDTH$}"), theme.dim()),
            Span::raw(value.clone()),
        ])
    };
    figures.iter().map(line).collect()
}

/// The percentiles of the latency, or the reason why there are none.
fn latencies(report: &TopReport) -> String {
    if let Some(reason) = report.unavailable.get(latency::PART) {
        return reason.clone();
    }
    let overview = &report.overview;
    let percentiles = [
        overview.latency_p50_us,
        overview.latency_p99_us,
        overview.latency_p999_us,
    ];
    percentiles.map(format::microseconds).join(", ")
}

fn activity(report: &TopReport) -> Vec<(&'static str, String)> {
    let overview = &report.overview;
    let clients = format!(
        "{} of {}, {} blocked",
        format::integer(overview.connected_clients),
        format::integer(overview.max_clients),
        format::integer(overview.blocked_clients)
    );
    let connections = format!(
        "{}, {} rejected in all",
        format::count(overview.connections_per_s),
        format::integer(overview.rejected_connections)
    );
    vec![
        ("Operations/s", format::count(overview.operations_per_s)),
        ("p50 p99 p99.9", latencies(report)),
        ("CPU", format!("{} cores", format::decimal(overview.cpu_cores, 2))),
        ("CPU/command", format::microseconds(overview.cpu_us_per_command)),
        ("Network in", format::bytes_per_s(overview.network_in_bytes_per_s)),
        ("Network out", format::bytes_per_s(overview.network_out_bytes_per_s)),
        ("Clients", clients),
        ("Connections/s", connections),
        ("Errors/s", format::count(overview.error_replies_per_s)),
    ]
}

fn state(overview: &OverviewFigures, now_s: u64) -> Vec<(&'static str, String)> {
    let size = |bytes: Option<u64>| format::bytes(bytes.map(|bytes| bytes as f64));
    let limit = match overview.max_memory_bytes {
        Some(0) => "no limit".to_owned(),
        limit => format!("of {}", size(limit)),
    };
    let keys = format!(
        "{}, {} expire",
        format::integer(overview.keys),
        format::integer(overview.keys_with_expiry)
    );
    let removed = format!(
        "{} evicted, {} expired",
        format::count(overview.evicted_keys_per_s),
        format::count(overview.expired_keys_per_s)
    );
    vec![
        ("Used memory", format!("{} {limit}", size(overview.used_memory_bytes))),
        (
            "Eviction",
            overview.max_memory_policy.clone().unwrap_or_else(|| "-".to_owned()),
        ),
        ("Resident", size(overview.resident_memory_bytes)),
        ("Keys", keys),
        ("Removed/s", removed),
        ("Hit ratio", format::percent(overview.hit_ratio)),
        ("RDB file", rdb_state(overview, now_s)),
        ("AOF", aof_state(overview)),
        ("Role", role(overview)),
    ]
}

fn rdb_state(overview: &OverviewFigures, now_s: u64) -> String {
    let persistence = &overview.persistence;
    if persistence.loading == Some(true) {
        return "loading".to_owned();
    }
    if persistence.rdb_save_in_progress == Some(true) {
        return "saving".to_owned();
    }
    let age = persistence.rdb_last_save_time_s.map(|time| now_s.saturating_sub(time));
    format!(
        "{}, {} changes in {}",
        persistence.rdb_last_status.as_deref().unwrap_or("-"),
        format::integer(persistence.rdb_changes_since_save),
        format::duration(age)
    )
}

fn aof_state(overview: &OverviewFigures) -> String {
    let persistence = &overview.persistence;
    match (persistence.aof_enabled, persistence.aof_rewrite_in_progress) {
        (None, _) => "-".to_owned(),
        (Some(false), _) => "off".to_owned(),
        (Some(true), Some(true)) => "being rewritten".to_owned(),
        (Some(true), _) => format!(
            "{}, {}",
            persistence.aof_last_write_status.as_deref().unwrap_or("-"),
            format::bytes(persistence.aof_size_bytes.map(|bytes| bytes as f64))
        ),
    }
}

fn role(overview: &OverviewFigures) -> String {
    match (overview.role.as_deref(), &overview.primary_link) {
        (Some("master"), _) => format!("primary, {} replicas", format::integer(overview.connected_replicas)),
        (Some("slave"), link) => format!("replica, link {}", link.as_deref().unwrap_or("-")),
        (other, _) => other.unwrap_or("-").to_owned(),
    }
}

/// A chart: its figure, its title and the newest value.
type Chart = (ChartFigure, &'static str, String);

/// The charts, in rows.
fn charts(overview: &OverviewFigures) -> [[Chart; CHART_COLUMNS]; 3] {
    let latency = |figure, title, value| (figure, title, format::microseconds(value));
    let memory = overview.used_memory_bytes.map(|bytes| bytes as f64);
    let (received, sent) = (overview.network_in_bytes_per_s, overview.network_out_bytes_per_s);
    [
        [
            (
                ChartFigure::Operations,
                "Operations/s",
                format::count(overview.operations_per_s),
            ),
            (ChartFigure::Cpu, "CPU cores", format::decimal(overview.cpu_cores, 2)),
            (ChartFigure::HitRatio, "Hit ratio", format::percent(overview.hit_ratio)),
        ],
        [
            latency(ChartFigure::LatencyP50, "Latency p50", overview.latency_p50_us),
            latency(ChartFigure::LatencyP99, "p99", overview.latency_p99_us),
            latency(ChartFigure::LatencyP999, "p99.9", overview.latency_p999_us),
        ],
        [
            (ChartFigure::NetworkIn, "Network in", format::bytes_per_s(received)),
            (ChartFigure::NetworkOut, "Network out", format::bytes_per_s(sent)),
            (ChartFigure::Memory, "Used memory", format::bytes(memory)),
        ],
    ]
}

fn draw_charts(frame: &mut Frame<'_>, area: Rect, report: &TopReport, history: &FigureHistory, theme: Theme) {
    let charts = charts(&report.overview);
    // As many rows of charts as have a title and a line of bars.
    let rows = usize::from(area.height / 2).min(charts.len());
    let row_areas = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    for (row_area, row) in row_areas.iter().zip(charts) {
        let is_latency = row.iter().any(|(figure, ..)| *figure == ChartFigure::LatencyP50);
        if let (true, Some(reason)) = (is_latency, report.unavailable.get(latency::PART)) {
            let text = format!("Latency is not available: {reason}");
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), *row_area);
            continue;
        }
        let columns = Layout::horizontal([Constraint::Fill(1); CHART_COLUMNS]).spacing(1);
        let columns: [Rect; CHART_COLUMNS] = columns.areas(*row_area);
        for (area, (figure, title, value)) in columns.into_iter().zip(row) {
            let [title_area, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
            let title = vec![Span::styled(format!("{title} "), theme.title()), Span::raw(value)];
            frame.render_widget(Line::from(title), title_area);
            draw_bars(frame, bars, &history.columns(figure, usize::from(bars.width)), theme);
        }
    }
}

fn draw_bars(frame: &mut Frame<'_>, area: Rect, columns: &[Option<f64>], theme: Theme) {
    let highest = columns.iter().flatten().copied().fold(0.0, f64::max);
    let bars = columns.iter().map(|value| {
        let share = value.filter(|_| highest > 0.0).map(|value| value / highest);
        SparklineBar::from(share.map(|share| (share.clamp(0.0, 1.0) * BAR_STEPS) as u64))
    });
    let sparkline = Sparkline::default()
        .data(bars.collect::<Vec<_>>())
        .max(BAR_STEPS as u64)
        .absent_value_symbol(" ")
        .style(theme.chart());
    frame.render_widget(sparkline, area);
}
