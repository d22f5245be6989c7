//! `oom-score-adj`: how likely the kernel kills this process when memory runs out.

use std::io;
use std::sync::Mutex;

use crate::config::{Config, id};
use crate::observability::{lock, log};

const FILE: &str = "/proc/self/oom_score_adj";

/// The adjustment before the first one of ours, which comes back when the parameter is `no` again.
static BEFORE: Mutex<Option<i64>> = Mutex::new(None);

/// Acts on `oom-score-adj` and `oom-score-adj-values`.
///
/// # Errors
/// When the kernel does not take the value: lowering it is for the privileged. The log tells.
pub fn adjust(config: &Config, is_replica: bool) -> io::Result<()> {
    let mut before = lock(&BEFORE);
    let mode = config.choice(id::OOM_SCORE_ADJ);
    if mode == "no" {
        return match before.take() {
            Some(value) => write(value),
            None => Ok(()),
        };
    }
    let base = match *before {
        Some(base) => base,
        None => *before.insert(read()?),
    };
    let mut value = i64::from(config.oom_score_adjustments()[usize::from(is_replica)]);
    if mode != "absolute" {
        value += base;
    }
    write(value.clamp(-1000, 1000))
}

fn read() -> io::Result<i64> {
    let value = std::fs::read_to_string(FILE).and_then(|text| text.trim().parse().map_err(io::Error::other));
    value.inspect_err(|error| log::warning!("Unable to read oom_score_adj: {}", crate::config::error_text(error)))
}

fn write(value: i64) -> io::Result<()> {
    std::fs::write(FILE, format!("{value}\n"))
        .inspect_err(|error| log::warning!("Unable to write oom_score_adj: {}", crate::config::error_text(error)))
}
