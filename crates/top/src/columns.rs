//! The columns of the tables: their text, their order and the filter of rows.

use std::cmp::Ordering;

use crate::format;
use crate::model::{ClientRow, CommandFigures, HotKeyRow, KeyRow, MemoryConsumer, ReplicaRow, SlotRow, WorkerRow};

/// A column of a table of `T`.
#[derive(Debug)]
pub struct Column<T: 'static> {
    /// The title.
    pub title: &'static str,
    /// The width in characters. The first column also takes what the others leave.
    pub width: u16,
    /// The text of a row.
    pub text: fn(&T) -> String,
    /// The value by which rows are sorted.
    pub key: fn(&T) -> SortKey,
}

/// A value by which rows are sorted.
#[derive(Debug, Clone, PartialEq)]
pub enum SortKey {
    /// A figure. Unknown ones come last in either direction.
    Number(Option<f64>),
    /// A text.
    Text(String),
}

/// How the rows of a table are chosen and ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowOrder {
    /// The column; `None` for the order of the report.
    pub column: Option<usize>,
    /// Reverses the direction. Without it, figures fall and texts rise.
    pub reversed: bool,
    /// Keeps only rows in which a column contains this text, in any case of letters.
    pub filter: String,
}

/// Returns the rows that pass the filter, in order.
pub fn arrange<'a, T>(rows: &'a [T], columns: &[Column<T>], order: &RowOrder) -> Vec<&'a T> {
    let filter = order.filter.to_lowercase();
    let passes = |row: &&T| {
        filter.is_empty()
            || columns
                .iter()
                .any(|column| (column.text)(row).to_lowercase().contains(&filter))
    };
    let mut rows: Vec<&T> = rows.iter().filter(passes).collect();
    match order.column.and_then(|column| columns.get(column)) {
        Some(column) => {
            let mut keyed: Vec<(SortKey, &T)> = rows.into_iter().map(|row| ((column.key)(row), row)).collect();
            keyed.sort_by(|(one, _), (other, _)| compare(one, other, order.reversed));
            rows = keyed.into_iter().map(|(_, row)| row).collect();
        }
        None if order.reversed => rows.reverse(),
        None => {}
    }
    rows
}

fn compare(one: &SortKey, other: &SortKey, reversed: bool) -> Ordering {
    let (ordering, is_reversed) = match (one, other) {
        (SortKey::Number(Some(one)), SortKey::Number(Some(other))) => (other.total_cmp(one), reversed),
        (SortKey::Number(one), SortKey::Number(other)) => (one.is_none().cmp(&other.is_none()), false),
        (SortKey::Text(one), SortKey::Text(other)) => (one.cmp(other), reversed),
        _ => (Ordering::Equal, false),
    };
    if is_reversed { ordering.reverse() } else { ordering }
}

fn number(value: Option<f64>) -> SortKey {
    SortKey::Number(value)
}

fn whole(value: Option<u64>) -> SortKey {
    SortKey::Number(value.map(|value| value as f64))
}

fn text(value: &str) -> SortKey {
    SortKey::Text(value.to_owned())
}

fn size(value: Option<u64>) -> String {
    format::bytes(value.map(|value| value as f64))
}

#[rustfmt::skip]
/// The columns of threads.
pub const WORKER_COLUMNS: &[Column<WorkerRow>] = &[
    Column { title: "Thread", width: 14, text: |row| row.name.clone(), key: |row| text(&row.name) },
    Column { title: "Busy", width: 8, text: |row| format::percent(row.busy_share), key: |row| number(row.busy_share) },
    Column { title: "Conns", width: 7, text: |row| format::integer(row.connections), key: |row| whole(row.connections) },
    Column { title: "Cmds/s", width: 9, text: |row| format::count(row.commands_per_s), key: |row| number(row.commands_per_s) },
];

#[rustfmt::skip]
/// The columns of commands.
pub const COMMAND_COLUMNS: &[Column<CommandFigures>] = &[
    Column { title: "Command", width: 12, text: |row| row.name.clone(), key: |row| text(&row.name) },
    Column { title: "Calls/s", width: 7, text: |row| format::count(row.calls_per_s), key: |row| number(row.calls_per_s) },
    Column { title: "Per call", width: 8, text: |row| format::microseconds(row.us_per_call), key: |row| number(row.us_per_call) },
    Column { title: "Time", width: 7, text: |row| format::percent(row.time_share), key: |row| number(row.time_share) },
    Column { title: "p50", width: 8, text: |row| format::microseconds(row.interval_p50_us), key: |row| number(row.interval_p50_us) },
    Column { title: "p99", width: 8, text: |row| format::microseconds(row.interval_p99_us), key: |row| number(row.interval_p99_us) },
    Column { title: "p99.9", width: 8, text: |row| format::microseconds(row.interval_p999_us), key: |row| number(row.interval_p999_us) },
    Column { title: "Failed", width: 6, text: |row| format::count(Some(row.failed as f64)), key: |row| whole(Some(row.failed)) },
    Column { title: "Reject", width: 6, text: |row| format::count(Some(row.rejected as f64)), key: |row| whole(Some(row.rejected)) },
    Column { title: "Calls", width: 8, text: |row| format::count(Some(row.calls as f64)), key: |row| whole(Some(row.calls)) },
    Column { title: "All p50", width: 9, text: |row| format::microseconds(row.p50_us), key: |row| number(row.p50_us) },
    Column { title: "All p99", width: 9, text: |row| format::microseconds(row.p99_us), key: |row| number(row.p99_us) },
    Column { title: "All p99.9", width: 10, text: |row| format::microseconds(row.p999_us), key: |row| number(row.p999_us) },
];

#[rustfmt::skip]
/// The columns of clients.
pub const CLIENT_COLUMNS: &[Column<ClientRow>] = &[
    Column { title: "Address", width: 15, text: |row| row.address.clone(), key: |row| text(&row.address) },
    Column { title: "Name", width: 8, text: |row| row.name.clone(), key: |row| text(&row.name) },
    Column { title: "Command", width: 9, text: |row| row.command.clone(), key: |row| text(&row.command) },
    Column { title: "Idle", width: 6, text: |row| format::duration(row.idle_s), key: |row| whole(row.idle_s) },
    Column { title: "Memory", width: 8, text: |row| size(row.memory_bytes), key: |row| whole(row.memory_bytes) },
    Column { title: "Cmds/s", width: 6, text: |row| format::count(row.commands_per_s), key: |row| number(row.commands_per_s) },
    Column { title: "In/s", width: 8, text: |row| format::bytes(row.in_bytes_per_s), key: |row| number(row.in_bytes_per_s) },
    Column { title: "Out/s", width: 8, text: |row| format::bytes(row.out_bytes_per_s), key: |row| number(row.out_bytes_per_s) },
    Column { title: "Id", width: 8, text: |row| row.id.to_string(), key: |row| whole(Some(row.id)) },
    Column { title: "User", width: 8, text: |row| row.user.clone(), key: |row| text(&row.user) },
    Column { title: "Age", width: 7, text: |row| format::duration(row.age_s), key: |row| whole(row.age_s) },
    Column { title: "Db", width: 3, text: |row| format::integer(row.database), key: |row| whole(row.database) },
    Column { title: "Flags", width: 6, text: |row| row.flags.clone(), key: |row| text(&row.flags) },
];

#[rustfmt::skip]
/// The columns of slots.
pub const SLOT_COLUMNS: &[Column<SlotRow>] = &[
    Column { title: "Slot", width: 8, text: |row| row.slot.to_string(), key: |row| whole(Some(row.slot)) },
    Column { title: "Keys", width: 9, text: |row| format::integer(row.keys), key: |row| whole(row.keys) },
    Column { title: "CPU", width: 10, text: |row| format::microseconds(row.cpu_us.map(|us| us as f64)), key: |row| whole(row.cpu_us) },
    Column { title: "CPU/s", width: 10, text: |row| format::microseconds(row.cpu_us_per_s), key: |row| number(row.cpu_us_per_s) },
    Column { title: "In", width: 10, text: |row| size(row.in_bytes), key: |row| whole(row.in_bytes) },
    Column { title: "Out", width: 10, text: |row| size(row.out_bytes), key: |row| whole(row.out_bytes) },
];

#[rustfmt::skip]
/// The columns of keys.
pub const KEY_COLUMNS: &[Column<KeyRow>] = &[
    Column { title: "Key", width: 16, text: |row| row.name.clone(), key: |row| text(&row.name) },
    Column { title: "Memory", width: 10, text: |row| size(Some(row.memory_bytes)), key: |row| whole(Some(row.memory_bytes)) },
    Column { title: "Elements", width: 9, text: |row| format::integer(row.elements), key: |row| whole(row.elements) },
    Column { title: "Type", width: 8, text: |row| row.kind.clone(), key: |row| text(&row.kind) },
    Column { title: "Db", width: 3, text: |row| row.database.to_string(), key: |row| whole(Some(row.database)) },
];

#[rustfmt::skip]
/// The columns of the most used keys.
pub const HOT_KEY_COLUMNS: &[Column<HotKeyRow>] = &[
    Column { title: "Key", width: 16, text: |row| row.name.clone(), key: |row| text(&row.name) },
    Column { title: "Uses/s", width: 8, text: |row| format::count(row.uses_per_s), key: |row| number(row.uses_per_s) },
    Column { title: "Share", width: 8, text: |row| format::percent(Some(row.share)), key: |row| number(Some(row.share)) },
    Column { title: "Writes", width: 8, text: |row| format::percent(Some(row.write_share)), key: |row| number(Some(row.write_share)) },
    Column { title: "Time", width: 8, text: |row| format::percent(Some(row.time_share)), key: |row| number(Some(row.time_share)) },
    Column { title: "Uses", width: 8, text: |row| format::count(Some(row.uses as f64)), key: |row| whole(Some(row.uses)) },
    Column { title: "Error", width: 8, text: |row| format::count(Some(row.error as f64)), key: |row| whole(Some(row.error)) },
    Column { title: "Db", width: 3, text: |row| row.database.to_string(), key: |row| whole(Some(row.database)) },
];

#[rustfmt::skip]
/// The columns of replicas.
pub const REPLICA_COLUMNS: &[Column<ReplicaRow>] = &[
    Column { title: "Replica", width: 16, text: |row| row.address.clone(), key: |row| text(&row.address) },
    Column { title: "State", width: 12, text: |row| row.state.clone(), key: |row| text(&row.state) },
    Column { title: "Behind", width: 10, text: |row| size(row.behind_bytes), key: |row| whole(row.behind_bytes) },
    Column { title: "Lag", width: 6, text: |row| format::duration(row.lag_s), key: |row| whole(row.lag_s) },
    Column { title: "Offset", width: 14, text: |row| format::integer(row.offset), key: |row| whole(row.offset) },
];

#[rustfmt::skip]
/// The columns of consumers of memory.
pub const MEMORY_COLUMNS: &[Column<MemoryConsumer>] = &[
    Column { title: "Consumer", width: 28, text: |row| row.title.to_owned(), key: |row| text(row.title) },
    Column { title: "Bytes", width: 10, text: |row| size(Some(row.bytes)), key: |row| whole(Some(row.bytes)) },
    Column { title: "Of RSS", width: 8, text: |row| format::percent(row.share), key: |row| number(row.share) },
    Column { title: "Field of INFO", width: 31, text: |row| row.field.to_owned(), key: |row| text(row.field) },
];
