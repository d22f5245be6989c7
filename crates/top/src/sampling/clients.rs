//! The clients, from CLIENT LIST.

use std::collections::HashMap;

use crate::escape::printable;
use crate::model::{ClientRow, ClientsFigures};
use crate::sampling::info::counter_rate;

/// The largest number of clients that are kept.
pub const MAX_CLIENTS: usize = 20_000;
/// The longest text of a client that is kept, in characters.
const MAX_CHARACTERS: usize = 256;

/// The counters of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCounters {
    input_bytes: Option<u64>,
    output_bytes: Option<u64>,
    commands: Option<u64>,
}

/// The counters of all clients at one time, by id.
pub type CountersById = HashMap<u64, ClientCounters>;

/// Parses the reply, and computes rates with the counters of `seconds` ago. Returns the counters for the next time,
/// too.
pub fn figures(reply: &[u8], earlier: &CountersById, seconds: Option<f64>) -> (ClientsFigures, CountersById) {
    let mut figures = ClientsFigures::default();
    let mut counters = CountersById::new();
    for line in reply.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some((mut row, now)) = parse_line(line) else {
            continue;
        };
        figures.total += 1;
        if figures.rows.len() >= MAX_CLIENTS {
            continue;
        }
        let before = earlier.get(&row.id).copied().unwrap_or_default();
        row.in_bytes_per_s = counter_rate(before.input_bytes, now.input_bytes, seconds);
        row.out_bytes_per_s = counter_rate(before.output_bytes, now.output_bytes, seconds);
        row.commands_per_s = counter_rate(before.commands, now.commands, seconds);
        counters.insert(row.id, now);
        figures.rows.push(row);
    }
    (figures, counters)
}

/// Parses one client; `None` if the line has no id.
fn parse_line(line: &[u8]) -> Option<(ClientRow, ClientCounters)> {
    let mut row = ClientRow::default();
    let mut counters = ClientCounters::default();
    let mut has_id = false;
    for word in line.split(|byte| *byte == b' ') {
        let Some(equals) = word.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let (name, value) = (&word[..equals], &word[equals + 1..]);
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let text = || printable(value, MAX_CHARACTERS);
        match name {
            b"id" => {
                row.id = number()?;
                has_id = true;
            }
            b"addr" => row.address = text(),
            b"name" => row.name = text(),
            b"user" => row.user = text(),
            b"cmd" => row.command = text(),
            b"flags" => row.flags = text(),
            b"db" => row.database = number(),
            b"age" => row.age_s = number(),
            b"idle" => row.idle_s = number(),
            b"tot-mem" => row.memory_bytes = number(),
            b"tot-net-in" => counters.input_bytes = number(),
            b"tot-net-out" => counters.output_bytes = number(),
            b"tot-cmds" => counters.commands = number(),
            _ => {}
        }
    }
    has_id.then_some((row, counters))
}
