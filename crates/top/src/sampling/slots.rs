//! The hottest slots, from CLUSTER SLOT-STATS.

use std::collections::HashMap;

use crate::connection::reply::RespValue;
use crate::model::SlotRow;
use crate::sampling::info::counter_rate;

/// The number of slots asked for.
pub const LIMIT: &str = "100";

/// The figure by which slots are ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SlotOrder {
    /// The CPU time of commands.
    #[default]
    CpuTime,
    /// The number of keys.
    KeyCount,
    /// Bytes received.
    NetworkIn,
    /// Bytes sent.
    NetworkOut,
}

impl SlotOrder {
    /// The name in CLUSTER SLOT-STATS.
    pub fn name(self) -> &'static str {
        match self {
            SlotOrder::CpuTime => "cpu-usec",
            SlotOrder::KeyCount => "key-count",
            SlotOrder::NetworkIn => "network-bytes-in",
            SlotOrder::NetworkOut => "network-bytes-out",
        }
    }

    /// The next order of the cycle.
    pub fn next(self) -> SlotOrder {
        match self {
            SlotOrder::CpuTime => SlotOrder::KeyCount,
            SlotOrder::KeyCount => SlotOrder::NetworkIn,
            SlotOrder::NetworkIn => SlotOrder::NetworkOut,
            SlotOrder::NetworkOut => SlotOrder::CpuTime,
        }
    }
}

/// Parses the reply, and computes the CPU time per second with the totals of `seconds` ago.
pub fn rows(reply: &RespValue, earlier: &HashMap<u64, u64>, seconds: Option<f64>) -> Vec<SlotRow> {
    let slots = reply.elements().unwrap_or_default();
    slots
        .iter()
        .filter_map(parse_slot)
        .map(|mut row| {
            row.cpu_us_per_s = counter_rate(earlier.get(&row.slot).copied(), row.cpu_us, seconds);
            row
        })
        .collect()
}

fn parse_slot(slot: &RespValue) -> Option<SlotRow> {
    let [number, figures] = slot.elements()? else {
        return None;
    };
    let mut row = SlotRow {
        slot: u64::try_from(number.integer()?).ok()?,
        ..SlotRow::default()
    };
    for pair in figures.elements()?.chunks_exact(2) {
        let value = pair[1].integer().and_then(|value| u64::try_from(value).ok());
        match pair[0].bytes()? {
            b"key-count" => row.keys = value,
            b"cpu-usec" => row.cpu_us = value,
            b"network-bytes-in" => row.in_bytes = value,
            b"network-bytes-out" => row.out_bytes = value,
            _ => {}
        }
    }
    Some(row)
}
