//! The log lines of a script. They are held back while it runs: if the run is restarted, its lines are written again.

use std::cell::{Cell, RefCell};

use log::{Level, log, log_enabled};

/// The bytes of lines from which on they are written although the run may be restarted: a script may run forever.
const MAX_HELD_BYTES: usize = 64 << 10;

/// The log lines of a script that are held back.
#[derive(Default)]
pub(super) struct LogLines {
    lines: RefCell<Vec<(Level, Vec<u8>)>>,
    /// The bytes of the lines and of their places in the vector.
    bytes: Cell<usize>,
}

impl LogLines {
    /// Adds a line, whose level has the number of `server.LOG_DEBUG` (0) up to `server.LOG_WARNING` (3). Writes all
    /// lines if they are many.
    pub(super) fn push(&self, level: i64, text: Vec<u8>) {
        let level = match level {
            0 => Level::Trace,
            1 => Level::Debug,
            2 => Level::Info,
            _ => Level::Warn,
        };
        if !log_enabled!(level) {
            return;
        }
        self.bytes
            .set(self.bytes.get() + text.len() + size_of::<(Level, Vec<u8>)>());
        self.lines.borrow_mut().push((level, text));
        if self.bytes.get() >= MAX_HELD_BYTES {
            self.write();
        }
    }

    /// Writes the lines.
    fn write(&self) {
        for (level, text) in self.lines.borrow_mut().drain(..) {
            log!(level, "{}", String::from_utf8_lossy(&text));
        }
        self.bytes.set(0);
    }

    /// Writes the lines at the end of a run, or discards them if the run is restarted.
    pub(super) fn end_run(&self, is_restarted: bool) {
        match is_restarted {
            true => {
                self.lines.borrow_mut().clear();
                self.bytes.set(0);
            }
            false => self.write(),
        }
    }
}

#[cfg(test)]
mod tests;
