//! The lines of INFO's reply, and the figures that several sections show.

use std::fmt::Display;
use std::fmt::Write as _;

use super::section::InfoSection;

/// Figures of clients that only the workers have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// The number of blocked clients.
    pub blocked: u64,
    /// The number of clients that watch keys.
    pub watching: u64,
    /// The memory of all connections except those of replicas and of migrations of slots, in bytes, as CLIENT LIST
    /// shows it.
    pub memory_bytes: u64,
    /// The part of it that is allocated for these connections alone.
    pub allocated_bytes: u64,
    /// The memory that is allocated for replicas' connections alone, in bytes. It is without the stream, which the
    /// backlog keeps for all replicas, and without the copies of it on their way to them.
    pub replica_bytes: u64,
    /// The largest input buffer, in bytes.
    pub max_input_bytes: u64,
    /// The largest output buffer, in bytes.
    pub max_output_bytes: u64,
    /// The number of connections that are about to be closed.
    pub closing: u64,
}

/// Lines of `name:value`.
pub(super) struct InfoLines(pub(super) Vec<u8>);

impl InfoLines {
    pub(super) fn with_title(section: InfoSection) -> Self {
        InfoLines(format!("# {}\r\n", section.title()).into_bytes())
    }

    pub(super) fn push_field(&mut self, name: &str, value: impl Display) {
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = write!(line, "{name}:{value}\r\n");
        self.0.extend_from_slice(line.as_bytes());
    }

    pub(super) fn push_bytes_field(&mut self, name: &str, value: &[u8]) {
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b':');
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    /// Writes a number of bytes, and the same in human-readable form.
    pub(super) fn push_size_fields(&mut self, name: &str, bytes: u64) {
        self.push_field(name, bytes);
        self.push_field(&format!("{name}_human"), format_bytes(bytes));
    }

    pub(super) fn push_zero_fields(&mut self, names: &[&str]) {
        for name in names {
            self.push_field(name, 0);
        }
    }
}

/// Formats a number of bytes in its largest unit.
pub fn format_bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut number = bytes as f64;
    let mut unit = 'B';
    for next in ['K', 'M', 'G', 'T', 'P', 'E'] {
        if number < 1024.0 {
            break;
        }
        number /= 1024.0;
        unit = next;
    }
    format!("{number:.2}{unit}")
}
