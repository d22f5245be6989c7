//! What earlier runs of a script tell about the next one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A script that ran longer than this leaves the worker next time.
const LONG: Duration = Duration::from_millis(1);
/// One that left and ran shorter than this stays next time.
const SHORT: Duration = Duration::from_micros(200);

/// What is expected of the next run.
#[derive(Debug)]
pub struct Habits {
    long: AtomicBool,
    writes: AtomicBool,
    asks: AtomicBool,
}

impl Habits {
    /// Of code that never ran. Code without loops and functions is short in any case.
    pub fn of_new(code: &[u8]) -> Self {
        Habits {
            long: AtomicBool::new(may_loop(code)),
            writes: AtomicBool::new(false),
            asks: AtomicBool::new(may_ask(code)),
        }
    }

    /// Whether it is to run where it makes nobody wait.
    pub fn is_long(&self) -> bool {
        self.long.load(Ordering::Relaxed)
    }

    /// Whether it calls commands that ask all workers, whose answers cannot be waited for on one of them.
    pub fn asks(&self) -> bool {
        self.asks.load(Ordering::Relaxed)
    }

    /// It has called one.
    pub fn note_ask(&self) {
        self.asks.store(true, Ordering::Relaxed);
    }

    /// Whether it has written before.
    pub fn writes(&self) -> bool {
        self.writes.load(Ordering::Relaxed)
    }

    /// It is writing.
    pub fn note_write(&self) {
        if !self.writes() {
            self.writes.store(true, Ordering::Relaxed);
        }
    }

    /// A run turned out too long for a worker.
    pub fn note_long(&self) {
        self.long.store(true, Ordering::Relaxed);
    }

    /// A run has ended.
    pub fn note_duration(&self, duration: Duration) {
        if duration > LONG {
            self.note_long();
        } else if duration < SHORT && self.is_long() {
            self.long.store(false, Ordering::Relaxed);
        }
    }
}

/// Whether code may run for ever. Words inside texts and comments count, which costs one run elsewhere.
fn may_loop(code: &[u8]) -> bool {
    let words: [&[u8]; 4] = [b"while", b"for", b"repeat", b"function"];
    words
        .iter()
        .any(|word| code.windows(word.len()).any(|window| window == *word))
}

/// Whether code calls, by name, what asks all workers. A name that is put together only when it runs is found out then.
fn may_ask(code: &[u8]) -> bool {
    let names: [&[u8]; 2] = [b"info", b"client"];
    let is_call = |at: usize| {
        let rest = code.get(at..).unwrap_or_default().trim_ascii_start();
        let rest = rest.strip_prefix(b"(").unwrap_or(rest).trim_ascii_start();
        let [b'\'' | b'"', word @ ..] = rest else {
            return false;
        };
        let ends = |name: &[u8]| matches!(word.get(name.len()), Some(b'\'' | b'"'));
        let is_named = |name: &&[u8]| {
            word.get(..name.len())
                .is_some_and(|word| word.eq_ignore_ascii_case(name))
        };
        names.iter().any(|name| is_named(name) && ends(name))
    };
    let call = b"call";
    (0..code.len()).any(|at| code[at..].starts_with(call) && is_call(at + call.len()))
}

#[cfg(test)]
mod tests;
