//! `oom-score-adj`: how likely the kernel kills this process when memory runs out.

use std::io;

use crate::observability::log;
use weft_config::{Config, id};
use weft_os::sync::Mutex;

const FILE: &str = "/proc/self/oom_score_adj";

/// The adjustment before Weft's first one, restored when the parameter is `no` again.
static INITIAL_ADJUSTMENT: Mutex<Option<i64>> = Mutex::new(None);

/// Applies `oom-score-adj` and `oom-score-adj-values`.
///
/// # Errors
/// If the kernel does not accept the value; lowering it needs a privilege. The failure is logged.
pub fn adjust(config: &Config, is_replica: bool) -> io::Result<()> {
    let mut before = INITIAL_ADJUSTMENT.lock();
    let mode = config.choice(id::OOM_SCORE_ADJ);
    if mode == "no" {
        return match before.take() {
            Some(value) => write_adjustment(value),
            None => Ok(()),
        };
    }
    let base = match *before {
        Some(base) => base,
        None => *before.insert(read_adjustment()?),
    };
    let mut value = i64::from(config.oom_score_adjustments()[usize::from(is_replica)]);
    if mode != "absolute" {
        value += base;
    }
    write_adjustment(value.clamp(-1000, 1000))
}

fn read_adjustment() -> io::Result<i64> {
    let value = std::fs::read_to_string(FILE).and_then(|text| text.trim().parse().map_err(io::Error::other));
    value.inspect_err(|error| log::warning!("Unable to read oom_score_adj: {}", weft_base::files::error_text(error)))
}

fn write_adjustment(value: i64) -> io::Result<()> {
    std::fs::write(FILE, format!("{value}\n"))
        .inspect_err(|error| log::warning!("Unable to write oom_score_adj: {}", weft_base::files::error_text(error)))
}
