//! The panels with a table: a few lines of figures, then the table.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};

use super::table;
use super::theme::Theme;
use crate::columns;
use crate::format;
use crate::model::{
    ClientsFigures, HotKeysFigures, KeysFigures, MemoryReport, ReplicationFigures, SlotsFigures, TopReport,
    WorkersFigures,
};
use crate::panel::Panel;
use crate::sampling::latency;
use crate::state::DashboardState;

/// The number of lines above each table.
pub const HEAD_LINES: u16 = 3;

/// Draws the shown panel.
pub fn draw(frame: &mut Frame<'_>, area: Rect, report: &TopReport, state: &DashboardState, theme: Theme) {
    // Of a small screen, the table gets more than the lines above it.
    let head_lines = if area.height > 2 * HEAD_LINES { HEAD_LINES } else { 0 };
    let [head, body] = Layout::vertical([Constraint::Length(head_lines), Constraint::Min(0)]).areas(area);
    let Some(lines) = head_text(report, state) else {
        let reason = Paragraph::new(reason(report, state)).wrap(Wrap { trim: true });
        return frame.render_widget(reason, area);
    };
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines), head);
    draw_table(frame, body, report, state, theme);
}

/// The lines above the table; `None` if the report has no figures for the panel.
fn head_text(report: &TopReport, state: &DashboardState) -> Option<Vec<String>> {
    Some(match state.panel {
        Panel::Overview => return None,
        Panel::Workers => workers_lines(report.workers.as_ref()?),
        Panel::Commands => {
            report.commands.as_ref()?;
            commands_lines(report)
        }
        Panel::Clients => clients_lines(report.clients.as_ref()?),
        Panel::Slots => slots_lines(report.slots.as_ref()?),
        Panel::Keys if state.shows_hot_keys => hot_keys_lines(report.hot_keys.as_ref()?),
        Panel::Keys => keys_lines(report.keys.as_ref()?),
        Panel::Replication => replication_lines(report.replication.as_ref()?),
        Panel::Memory => memory_lines(report.memory.as_ref()?),
    })
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, report: &TopReport, state: &DashboardState, theme: Theme) {
    let table = state.table();
    match state.panel {
        Panel::Overview => {}
        Panel::Workers => {
            let rows = report.workers.as_ref().map(|part| part.threads.as_slice());
            table::draw(
                frame,
                area,
                rows.unwrap_or_default(),
                columns::WORKER_COLUMNS,
                table,
                theme,
            );
        }
        Panel::Commands => {
            let rows = report.commands.as_deref().unwrap_or_default();
            table::draw(frame, area, rows, columns::COMMAND_COLUMNS, table, theme);
        }
        Panel::Clients => {
            let rows = report.clients.as_ref().map(|part| part.rows.as_slice());
            table::draw(
                frame,
                area,
                rows.unwrap_or_default(),
                columns::CLIENT_COLUMNS,
                table,
                theme,
            );
        }
        Panel::Slots => {
            let rows = report.slots.as_ref().map(|part| part.rows.as_slice());
            table::draw(
                frame,
                area,
                rows.unwrap_or_default(),
                columns::SLOT_COLUMNS,
                table,
                theme,
            );
        }
        Panel::Keys if state.shows_hot_keys => {
            let rows = report.hot_keys.as_ref().map(|part| part.rows.as_slice());
            let rows = rows.unwrap_or_default();
            table::draw(frame, area, rows, columns::HOT_KEY_COLUMNS, table, theme);
        }
        Panel::Keys => {
            let rows = report.keys.as_ref().map(|part| part.rows.as_slice());
            let rows = rows.unwrap_or_default();
            table::draw(frame, area, rows, columns::KEY_COLUMNS, table, theme);
        }
        Panel::Replication => {
            let rows = report.replication.as_ref().map(|part| part.replicas.as_slice());
            table::draw(
                frame,
                area,
                rows.unwrap_or_default(),
                columns::REPLICA_COLUMNS,
                table,
                theme,
            );
        }
        Panel::Memory => {
            let rows = report.memory.as_ref().map(|part| part.consumers.as_slice());
            table::draw(
                frame,
                area,
                rows.unwrap_or_default(),
                columns::MEMORY_COLUMNS,
                table,
                theme,
            );
        }
    }
}

/// The reason why the shown panel has no figures.
fn reason(report: &TopReport, state: &DashboardState) -> String {
    let part = match state.panel {
        Panel::Overview => "overview",
        Panel::Workers => "workers",
        Panel::Commands => "commands",
        Panel::Clients => "clients",
        Panel::Slots => "slots",
        Panel::Keys if state.shows_hot_keys => "hot_keys",
        Panel::Keys => "keys",
        Panel::Replication => "replication",
        Panel::Memory => "memory",
    };
    match report.unavailable.get(part) {
        Some(reason) => format!("Not available: {reason}"),
        None if part == "keys" && !state.searches_keys => {
            "The search for big keys is off, because it costs the server up to 1 % of its time. Press s to start it."
                .to_owned()
        }
        None if state.is_paused => "The display is frozen. Press space to let it run.".to_owned(),
        None => "Waiting for the reply…".to_owned(),
    }
}

fn workers_lines(workers: &WorkersFigures) -> Vec<String> {
    let mut first = String::new();
    match (workers.configured, workers.active) {
        (Some(configured), Some(active)) => first = format!("{active} of {configured} workers are in use"),
        (None, Some(0)) => first = "I/O threads are not in use".to_owned(),
        (None, Some(_)) => first = "I/O threads are in use".to_owned(),
        _ => {}
    }
    let rates: Vec<String> = workers
        .rates
        .iter()
        .map(|(name, rate)| {
            let name = name.trim_start_matches("weft_").trim_start_matches("io_threaded_");
            format!("{} {}/s", name.replace('_', " "), format::count(*rate))
        })
        .collect();
    let (second, third) = rates.split_at(rates.len().min(4));
    vec![first, second.join(", "), third.join(", ")]
}

fn commands_lines(report: &TopReport) -> Vec<String> {
    let second = match report.unavailable.get(latency::PART) {
        Some(reason) => format!("p50, p99, p99.9 are not available: {reason}"),
        None => "Totals are since the statistics were reset (on wide screens: percentiles, too).".to_owned(),
    };
    vec![
        "Rates, shares and percentiles are those of the last interval.".to_owned(),
        second,
    ]
}

fn clients_lines(clients: &ClientsFigures) -> Vec<String> {
    let mut lines = vec![format!("{} clients", clients.total)];
    if clients.total > clients.rows.len() {
        lines.push(format!("Only {} of them are shown.", clients.rows.len()));
    }
    lines
}

fn slots_lines(slots: &SlotsFigures) -> Vec<String> {
    let mut lines = vec![format!("The first {} slots by {}", slots.rows.len(), slots.ordered_by)];
    if let Some(note) = &slots.note {
        lines.push(format!("Other figures need cluster-slot-stats-enabled ({note})"));
    }
    lines
}

fn keys_lines(keys: &KeysFigures) -> Vec<String> {
    vec![
        format!(
            "{} of {} keys sampled in this pass, {} passes complete",
            keys.sampled,
            format::integer(keys.total),
            keys.passes
        ),
        format!(
            "The search takes {:.2} % of one thread of the server at most.",
            keys.cost_share * 100.0
        ),
    ]
}

fn hot_keys_lines(keys: &HotKeysFigures) -> Vec<String> {
    let duration = format::duration(Some(keys.duration_s as u64));
    let samples = format!("{} samples in {duration}", keys.samples);
    match (keys.is_sampling, keys.samples) {
        (true, _) => vec![
            format!("One of {} uses of keys is sampled: {samples}", keys.sample_ratio),
            "Shares are those of all keys: of their uses, and of the time of commands.".to_owned(),
        ],
        (false, 0) => vec![
            "The server samples no keys, because it costs up to 1 % of its time.".to_owned(),
            "Press s to start.".to_owned(),
        ],
        (false, _) => vec![format!("Sampling has ended: {samples}"), "Press s to start.".to_owned()],
    }
}

fn replication_lines(replication: &ReplicationFigures) -> Vec<String> {
    let size = |bytes: Option<u64>| format::bytes(bytes.map(|bytes| bytes as f64));
    let role = match &replication.primary {
        None => format!("primary, {} replicas", replication.replicas.len()),
        Some(primary) => format!(
            "replica of {}, link {}, last data {} s ago, {} behind{}",
            primary.address,
            primary.status,
            primary
                .last_io_s
                .map_or_else(|| "-".to_owned(), |seconds| seconds.to_string()),
            size(primary.behind_bytes),
            if primary.sync_in_progress {
                ", synchronizing"
            } else {
                ""
            }
        ),
    };
    let second = format!(
        "offset {} ({}), backlog {} of {}",
        format::integer(replication.offset),
        format::bytes_per_s(replication.stream_bytes_per_s),
        size(replication.backlog_used_bytes),
        size(replication.backlog_size_bytes)
    );
    let third = format!(
        "synchronizations: {} full, {} partial, {} partial refused",
        format::integer(replication.full_syncs),
        format::integer(replication.partial_syncs),
        format::integer(replication.partial_syncs_refused)
    );
    vec![role, second, third]
}

fn memory_lines(memory: &MemoryReport) -> Vec<String> {
    let field = |name: &str| memory.fields.get(name).copied();
    let size = |name: &str| format::bytes(field(name));
    vec![
        format!(
            "used {} (peak {}), resident {}, overhead {}",
            size("used_memory"),
            size("used_memory_peak"),
            size("used_memory_rss"),
            size("used_memory_overhead")
        ),
        format!(
            "{}: allocated {}, active {}, resident {}",
            memory.allocator.as_deref().unwrap_or("allocator"),
            size("allocator_allocated"),
            size("allocator_active"),
            size("allocator_resident")
        ),
        format!(
            "fragmentation {} in all, {} in the allocator; {} scripts, {} functions",
            format::decimal(field("mem_fragmentation_ratio"), 2),
            format::decimal(field("allocator_frag_ratio"), 2),
            format::count(field("number_of_cached_scripts")),
            format::count(field("number_of_functions"))
        ),
    ]
}
