//! The recording of a run: the file operations of the server and the markers of its clients, in one order.
//!
//! The preload library (`tests/faults/faults.c`) and this program append whole records to the same file in append mode.
//! A client writes its marker of an acknowledgement after it has received the reply, so the acknowledgement relies only
//! on operations whose records come before the marker.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The bytes of a record's header; see `struct record` in `faults.c`.
const HEADER_BYTES: usize = 32;
const FLAG_CREATED: u8 = 1;
const FLAG_TRUNCATED: u8 = 2;
const FLAG_DIRECTORY: u8 = 4;

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEvent {
    /// A file or a directory was opened under the number `file`.
    Open {
        file: u64,
        path: String,
        is_created: bool,
        is_truncated: bool,
        is_directory: bool,
    },
    /// Bytes of the recording were written to a file.
    Write { file: u64, offset: u64, data: Range<usize> },
    /// The size of a file was set.
    Truncate { file: u64, size: u64 },
    /// A sync began. It covers all operations on the file recorded before.
    SyncBegin { file: u64, sync: u64 },
    /// A sync has succeeded.
    SyncEnd { sync: u64 },
    /// A file was renamed.
    Rename { from: String, to: String },
    /// A second name was made.
    Link { from: String, to: String },
    /// A name was removed.
    Unlink { path: String },
    /// A directory was made.
    MakeDirectory { path: String },
    /// An operation failed because of an injected fault.
    Fault { operation: String, path: String },
    /// A marker of a client.
    Marker(String),
}

/// A record.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// The time in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The recorded event.
    pub event: FileEvent,
}

/// The records of a run.
pub struct Recording {
    /// The bytes to which the records refer.
    pub bytes: Arc<Vec<u8>>,
    /// The records in order.
    pub records: Vec<LogRecord>,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a recording.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut records = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let record = parse(&bytes, at).ok_or_else(|| format!("{}: unreadable at {at}", path.display()))?;
            at = record.1;
            records.push(record.0);
        }
        Ok(Recording {
            bytes: Arc::new(bytes),
            records,
        })
    }
}

/// Parses the record at an offset. Returns it with the offset of the next one.
fn parse(bytes: &[u8], at: usize) -> Option<(LogRecord, usize)> {
    let header = bytes.get(at..at + HEADER_BYTES)?;
    let number = |from: usize, length: usize| -> u64 {
        let field = header[from..from + length].iter().rev();
        field.fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (kind, flags) = (header[4], header[5]);
    let start = at + HEADER_BYTES;
    let end = start + number(0, 4) as usize;
    let middle = start + number(6, 2) as usize;
    bytes.get(start..end)?;
    let text = |range: Range<usize>| String::from_utf8_lossy(&bytes[range]).into_owned();
    let (first, second) = (|| text(start..middle), || text(middle..end));
    let (file, offset) = (number(16, 8), number(24, 8));
    let event = match kind {
        b'O' => FileEvent::Open {
            file,
            path: first(),
            is_created: flags & FLAG_CREATED != 0,
            is_truncated: flags & FLAG_TRUNCATED != 0,
            is_directory: flags & FLAG_DIRECTORY != 0,
        },
        b'W' => FileEvent::Write {
            file,
            offset,
            data: middle..end,
        },
        b'T' => FileEvent::Truncate { file, size: offset },
        b'B' => FileEvent::SyncBegin { file, sync: offset },
        b'E' => FileEvent::SyncEnd { sync: file },
        b'R' => FileEvent::Rename {
            from: first(),
            to: second(),
        },
        b'L' => FileEvent::Link {
            from: first(),
            to: second(),
        },
        b'U' => FileEvent::Unlink { path: first() },
        b'M' => FileEvent::MakeDirectory { path: first() },
        b'F' => FileEvent::Fault {
            path: first(),
            operation: second(),
        },
        b'A' => FileEvent::Marker(second()),
        _ => return None,
    };
    let time_ns = number(8, 8);
    Some((LogRecord { time_ns, event }, end))
}

/// Adds markers to a recording. All threads of the program share it.
pub struct MarkerWriter(File);

impl MarkerWriter {
    /// Opens the recording, which may not exist yet.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.map(MarkerWriter)
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Appends a marker.
    ///
    /// # Errors
    /// Fails if it cannot be written as a whole.
    pub fn mark(&self, text: &str) -> Result<(), String> {
        let mut record = Vec::with_capacity(HEADER_BYTES + text.len());
        record.extend_from_slice(&(text.len() as u32).to_le_bytes());
        record.extend_from_slice(&[b'A', 0, 0, 0]);
        record.extend_from_slice(&now_ns().to_le_bytes());
        record.extend_from_slice(&[0; 16]);
        record.extend_from_slice(text.as_bytes());
        match (&self.0).write(&record) {
            Ok(count) if count == record.len() => Ok(()),
            Ok(_) => Err("a marker was cut short".to_owned()),
            Err(error) => Err(format!("cannot write a marker: {error}")),
        }
    }
}

/// The time in nanoseconds since the Unix epoch.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
