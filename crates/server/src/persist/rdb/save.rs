//! From the keyspace into a file.
//!
//! The file is written under another name and takes its own when it is on disk as a whole: there is never a moment
//! without a whole dump.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use weft_table::EntryRef;
use weft_values::Value;

use super::error::{SaveError, Step};
use super::opcode;
use super::sink::Sink;
use crate::config::{COMPATIBLE_VERSION, Config, id};
use crate::keyspace::access::KeyCounts;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::walk::{Cursor, Reach, Stop, walk};
use crate::persist::payload::{self, VERSION};
use crate::persist::strings::{write_integer, write_length, write_string};

/// Keys written between two looks at whether the file still takes them.
const KEYS_A_STEP: usize = 256;

/// What is saved.
pub struct Contents<'c> {
    /// The whole keyspace.
    pub reach: Reach<'c, 'c>,
    /// Its counts.
    pub counts: &'c KeyCounts,
    /// Libraries of functions.
    pub functions: &'c [Vec<u8>],
    /// Parameters.
    pub config: &'c Config,
    /// Understands the access clock of entries.
    pub clock: AccessClock,
    /// Seconds since the epoch.
    pub now_s: u64,
    /// Bytes that the data takes in memory.
    pub used_memory_bytes: u64,
}

/// Which note about its use a key gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UseNote {
    None,
    Idle,
    Frequency,
}

/// Saves everything to a file in the working directory.
///
/// # Errors
/// When a step of that fails. What was at `path` before is still there, unless the last step is the one that failed.
pub fn save(path: &Path, contents: &Contents<'_>) -> Result<(), SaveError> {
    let temporary = PathBuf::from(format!("temp-{}.rdb", std::process::id()));
    let written = write_file(&temporary, contents).and_then(|()| {
        std::fs::rename(&temporary, path).map_err(|reason| SaveError {
            path: temporary.clone(),
            step: Step::Rename(path.to_owned()),
            reason,
        })
    });
    if let Err(error) = written {
        if error.step != Step::Open {
            // It is of no use to anybody; if it cannot be removed, the next dump replaces it.
            let _ = std::fs::remove_file(&temporary);
        }
        return Err(error);
    }
    sync_directory().map_err(|reason| SaveError {
        path: path.to_owned(),
        step: Step::SyncDirectory,
        reason,
    })
}

fn sync_directory() -> io::Result<()> {
    File::open(".")?.sync_all()
}

/// Writes a whole file and has it on disk.
pub(super) fn write_file(path: &Path, contents: &Contents<'_>) -> Result<(), SaveError> {
    let error = |step| {
        move |reason| SaveError {
            path: path.to_owned(),
            step,
            reason,
        }
    };
    let config = contents.config;
    let file = File::create(path).map_err(error(Step::Open))?;
    let mut sink = Sink::new(
        file,
        config.boolean(id::RDBCHECKSUM),
        config.boolean(id::RDB_SAVE_INCREMENTAL_FSYNC),
    );
    let written = contents.write(&mut sink);
    let offset = sink.written();
    written.map_err(error(Step::Write(offset)))?;
    sink.sync().map_err(error(Step::Sync))
}

impl Contents<'_> {
    fn write(&self, sink: &mut Sink) -> io::Result<()> {
        let compress = self.config.boolean(id::RDBCOMPRESSION);
        self.write_head(&mut sink.gathered, compress);
        for db in 0..self.counts.databases() {
            self.write_database(sink, db, compress)?;
        }
        sink.gathered.push(opcode::END);
        sink.seal()
    }

    fn write_head(&self, out: &mut Vec<u8>, compress: bool) {
        out.extend(format!("VALKEY{VERSION:03}").bytes());
        let name = |out: &mut Vec<u8>, name: &str| {
            out.push(opcode::AUX);
            write_string(out, name.as_bytes(), compress);
        };
        name(out, "valkey-ver");
        write_string(out, COMPATIBLE_VERSION.as_bytes(), compress);
        let numbers = [
            ("redis-bits", 64),
            ("ctime", self.now_s),
            ("used-mem", self.used_memory_bytes),
            ("aof-base", 0),
        ];
        for (field, number) in numbers {
            name(out, field);
            write_integer(out, number as i64);
        }
        for library in self.functions {
            out.push(opcode::FUNCTION);
            write_string(out, library, compress);
        }
    }

    fn write_database(&self, sink: &mut Sink, db: usize, compress: bool) -> io::Result<()> {
        if self.counts.keys(db) == 0 {
            return Ok(());
        }
        let out = &mut sink.gathered;
        out.push(opcode::DATABASE);
        write_length(out, db);
        out.push(opcode::DATABASE_SIZE);
        write_length(out, self.counts.keys(db) as usize);
        write_length(out, self.counts.with_expiry(db) as usize);
        let note = self.use_note();
        let mut cursor = Cursor::START;
        loop {
            let mut passed = Ok(());
            let stop = walk(&self.reach, db, cursor, KEYS_A_STEP, &mut |_, entry| {
                if passed.is_ok() {
                    self.write_key(&mut sink.gathered, entry, note, compress);
                    passed = sink.pass_on();
                }
            });
            passed?;
            match stop {
                Stop::End => return Ok(()),
                Stop::Enough(next) | Stop::Contended(next) => cursor = next,
            }
        }
    }

    /// Valkey tells under each policy what that policy goes by.
    fn use_note(&self) -> UseNote {
        match self.config.choice(id::MAXMEMORY_POLICY) {
            policy if policy.ends_with("lfu") => UseNote::Frequency,
            policy if policy.ends_with("lru") => UseNote::Idle,
            _ => UseNote::None,
        }
    }

    fn write_key(&self, out: &mut Vec<u8>, entry: EntryRef<'_, Value>, note: UseNote, compress: bool) {
        if let Some(at_ms) = entry.expire_at_ms() {
            out.push(opcode::EXPIRY_MS);
            out.extend(at_ms.to_le_bytes());
        }
        match note {
            UseNote::None => {}
            UseNote::Idle => {
                out.push(opcode::IDLE);
                write_length(out, self.clock.idle_s(entry.clock()) as usize);
            }
            UseNote::Frequency => {
                out.push(opcode::FREQUENCY);
                out.push(self.clock.frequency(entry.clock()) as u8);
            }
        }
        // The key stands between type and value, which are written as one.
        let at = out.len();
        payload::write(out, entry.value(), compress);
        let mut key = Vec::with_capacity(entry.key().len() + 9);
        write_string(&mut key, entry.key(), compress);
        out.splice(at + 1..at + 1, key);
    }
}
