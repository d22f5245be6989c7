//! Writing of RDB files.

use std::collections::HashMap;
use std::time::Duration;

use weft_base::files::FixedPath;
use weft_base::{DbIndex, SlotIndex};
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;

use super::buffered_writer::BufferedWriter;
use super::error::{RdbFilePurpose, RdbSaveError};
use super::file::RdbFile;
use super::module_records::ModuleRecords;
use super::{LAST_SHARED_VERSION, opcode};
use crate::keyspace::access::KeyCounts;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::walk::{Cursor, WalkAccess, WalkEnd, walk};
use weft_config::{COMPATIBLE_VERSION, Config, id};
use weft_os::time::Instant;
use weft_rdb::dump_payload::{self, VERSION};
use weft_rdb::hashes;
use weft_rdb::strings::{write_integer, write_length, write_string};

/// The version of Valkey that introduced the newest format.
const FIRST_VERSION_WITH_NEWEST_FORMAT: u32 = 0x09_00_00;

/// The number of keys between two checks for write errors.
const KEYS_PER_STEP: usize = 256;
/// The interval at which a thread that waits after a key checks if the delay is 0 now.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The contents of a dump.
pub struct SaveContents<'c> {
    /// Access to the whole keyspace.
    pub slots: WalkAccess<'c, 'c>,
    /// The counts of its keys.
    pub counts: &'c KeyCounts,
    /// The header before the keys.
    pub head: RdbHeader<'c>,
    /// The parameters of the server.
    pub config: &'c Config,
    /// Interprets the access clocks of entries.
    pub clock: AccessClock,
    /// Decides if there is a delay after each key.
    pub key_delay: KeyDelay,
    /// The finished records of modules.
    pub modules: &'c ModuleRecords,
}

/// Decides if a file is saved slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDelay {
    /// As `rdb-key-save-delay` says.
    Configured,
    /// There is no delay.
    None,
}

/// The version of the RDB format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdbFormat {
    /// The newest one.
    #[default]
    Newest,
    /// The last version that is shared with Redis. It has no hashes with field expiry. Otherwise both versions are
    /// identical.
    Shared,
}

impl RdbFormat {
    /// The newest version that a server of this version can read. `version` has two hexadecimal digits for each of its
    /// parts.
    pub const fn for_version(version: u32) -> RdbFormat {
        match version >= FIRST_VERSION_WITH_NEWEST_FORMAT {
            true => RdbFormat::Newest,
            false => RdbFormat::Shared,
        }
    }

    fn magic(self) -> String {
        match self {
            RdbFormat::Newest => format!("VALKEY{VERSION:03}"),
            RdbFormat::Shared => format!("REDIS{LAST_SHARED_VERSION:04}"),
        }
    }

    /// Returns `true` if this version has values of this type.
    fn supports_type(self, kind: u8) -> bool {
        self == RdbFormat::Newest || kind != hashes::TYPE_EXPIRING
    }
}

/// A slot import that had not ended when a file was written: its keys are in the file, and hidden from clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedImport {
    /// The name of the job.
    pub name: [u8; IMPORT_NAME_BYTES],
    /// The first and the last slot of each range.
    pub ranges: Vec<(SlotIndex, SlotIndex)>,
}

/// The length of the name of a slot import in bytes.
pub const IMPORT_NAME_BYTES: usize = 40;

/// The header of an RDB file.
#[derive(Clone, Copy, Debug, Default)]
pub struct RdbHeader<'h> {
    /// The version of the format.
    pub format: RdbFormat,
    /// The codes of function libraries.
    pub functions: &'h [Vec<u8>],
    /// The slot imports that have not ended.
    pub imports: &'h [UnfinishedImport],
    /// The current time in seconds since the Unix epoch.
    pub now_s: u64,
    /// The memory that the data takes in bytes.
    pub used_memory_bytes: u64,
    /// Further auxiliary fields in order: names and texts.
    pub aux_fields: &'h [(&'static str, Vec<u8>)],
    /// `true` if the file is the base of an append-only file.
    pub is_aof_base: bool,
    /// The records of modules before the keys.
    pub module_data: &'h [u8],
}

impl RdbHeader<'_> {
    /// Appends the header.
    pub fn write(&self, out: &mut Vec<u8>, compress: bool) {
        out.extend(self.format.magic().bytes());
        let name = |out: &mut Vec<u8>, name: &str| {
            out.push(opcode::AUX);
            write_string(out, name.as_bytes(), compress);
        };
        let number = |out: &mut Vec<u8>, field: &str, number: u64| {
            name(out, field);
            write_integer(out, number as i64);
        };
        name(out, "valkey-ver");
        write_string(out, COMPATIBLE_VERSION.as_bytes(), compress);
        number(out, "redis-bits", 64);
        number(out, "ctime", self.now_s);
        number(out, "used-mem", self.used_memory_bytes);
        for (field, text) in self.aux_fields {
            name(out, field);
            write_string(out, text, compress);
        }
        number(out, "aof-base", self.is_aof_base.into());
        out.extend_from_slice(self.module_data);
        for library in self.functions {
            out.push(opcode::FUNCTION);
            write_string(out, library, compress);
        }
        for import in self.imports {
            out.push(opcode::SLOT_IMPORT);
            write_string(out, &import.name, false);
            write_length(out, import.ranges.len());
            for (first, last) in &import.ranges {
                write_length(out, first.index());
                write_length(out, last.index());
            }
        }
    }
}

/// Appends the records before the keys of a database: its number, the number of keys, and the number of those with an
/// expiry.
pub fn write_database(out: &mut Vec<u8>, db: DbIndex, keys: u64, with_expiry: u64) {
    out.push(opcode::DATABASE);
    write_length(out, db.get());
    out.push(opcode::DATABASE_SIZE);
    write_length(out, keys as usize);
    write_length(out, with_expiry as usize);
}

/// The attribute about its use that a key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessNote {
    None,
    Idle,
    Frequency,
}

/// The options for encoding keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyEncodingOptions {
    /// `true` if strings are compressed.
    pub should_compress: bool,
    format: RdbFormat,
    use_attribute: AccessNote,
    clock: AccessClock,
}

/// A key and its value.
#[derive(Clone, Copy)]
pub struct SavedKey<'k> {
    /// The name of the key.
    pub name: &'k [u8],
    /// The value of the key.
    pub value: ValueRef<'k, Value>,
    /// The expiry, in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<u64>,
    /// The access clock of the key.
    pub clock: u32,
}

impl<'k> From<EntryRef<'k, Value>> for SavedKey<'k> {
    fn from(entry: EntryRef<'k, Value>) -> Self {
        SavedKey {
            name: entry.key(),
            value: entry.value(),
            expire_at_ms: entry.expire_at_ms(),
            clock: entry.clock(),
        }
    }
}

impl KeyEncodingOptions {
    /// Returns the configured style. As in Valkey, the eviction policy decides which record about its use a key gets.
    pub fn from_config(config: &Config, clock: AccessClock) -> Self {
        KeyEncodingOptions {
            should_compress: config.boolean(id::RDBCOMPRESSION),
            format: RdbFormat::Newest,
            use_attribute: match config.choice(id::MAXMEMORY_POLICY) {
                policy if policy.ends_with("lfu") => AccessNote::Frequency,
                policy if policy.ends_with("lru") => AccessNote::Idle,
                _ => AccessNote::None,
            },
            clock,
        }
    }

    /// The same options for another version of the format.
    pub fn with_format(self, format: RdbFormat) -> Self {
        KeyEncodingOptions { format, ..self }
    }

    /// Appends the attributes that precede a key: its expiry in milliseconds since the Unix epoch, and its use.
    pub(super) fn write_attributes(&self, out: &mut Vec<u8>, expire_at_ms: Option<u64>, clock: u32) {
        if let Some(at_ms) = expire_at_ms {
            out.push(opcode::EXPIRY_MS);
            out.extend(at_ms.to_le_bytes());
        }
        match self.use_attribute {
            AccessNote::None => {}
            AccessNote::Idle => {
                out.push(opcode::IDLE_TIME);
                write_length(out, self.clock.idle_s(clock) as usize);
            }
            AccessNote::Frequency => {
                out.push(opcode::FREQUENCY);
                out.push(self.clock.frequency(clock) as u8);
            }
        }
    }

    /// Appends a key. Returns `true` if the format can represent its value.
    #[must_use = "a dump that other servers cannot read must not reach them"]
    pub fn write_key(&self, out: &mut Vec<u8>, key: SavedKey<'_>) -> bool {
        if let ValueRef::Object(Value::Module(_)) = key.value {
            // Its module has encoded it before, see `module_records.rs`.
            return false;
        }
        self.write_attributes(out, key.expire_at_ms, key.clock);
        // The name belongs between the type and the value, which are written together.
        let at = out.len();
        write_string(out, key.name, self.should_compress);
        let value_at = out.len();
        dump_payload::write_value(out, key.value, self.should_compress);
        debug_assert!(out.len() > value_at + 1, "an encoded value has a type and contents");
        out[at..=value_at].rotate_right(1);
        self.format.supports_type(out[at])
    }
}

/// Returns the name of a file that is being saved in the foreground.
pub fn temporary_name() -> String {
    format!("temp-{}.rdb", std::process::id())
}

/// Saves all data to a file. Until it is complete, it has a temporary name in the working directory of its path.
///
/// # Errors
/// If a step of saving fails.
pub fn save(path: &FixedPath, purpose: RdbFilePurpose, contents: &SaveContents<'_>) -> Result<(), RdbSaveError> {
    let temporary = path.directory().file(temporary_name());
    write_file(temporary, purpose, contents)?.publish(path)
}

/// Writes a complete file and syncs it.
pub(crate) fn write_file(
    path: FixedPath,
    purpose: RdbFilePurpose,
    contents: &SaveContents<'_>,
) -> Result<RdbFile, RdbSaveError> {
    let config = contents.config;
    let mut file = RdbFile::create(path, purpose, config.boolean(id::RDB_SAVE_INCREMENTAL_FSYNC))?;
    let style = KeyEncodingOptions::from_config(config, contents.clock);
    let mut gathering = BufferedWriter::new(config.boolean(id::RDBCHECKSUM));
    contents.head.write(&mut gathering.bytes, style.should_compress);
    let module_keys = contents.modules.by_name();
    for db in DbIndex::all(contents.counts.databases()) {
        contents.write_keys(&mut gathering, &mut file, db, &style, &module_keys)?;
    }
    gathering.bytes.extend_from_slice(&contents.modules.after_keys);
    file.write(&gathering.finish())?;
    file.sync()?;
    Ok(file)
}

impl SaveContents<'_> {
    /// Waits as required by `rdb-key-save-delay`. Setting it to 0 ends the wait. A delay after several keys, which is a
    /// microsecond, is left out.
    fn wait_after_key(&self) {
        let delay_us = || match self.key_delay {
            KeyDelay::Configured => u64::try_from(self.config.integer(id::RDB_KEY_SAVE_DELAY)).unwrap_or(0),
            KeyDelay::None => 0,
        };
        let us = delay_us();
        if us == 0 {
            return;
        }
        let until = Instant::now() + Duration::from_micros(us);
        while delay_us() != 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            weft_os::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    fn write_keys(
        &self,
        gathering: &mut BufferedWriter,
        file: &mut RdbFile,
        db: DbIndex,
        style: &KeyEncodingOptions,
        module_keys: &HashMap<(DbIndex, &[u8]), &[u8]>,
    ) -> Result<(), RdbSaveError> {
        let (keys, with_expiry) = (self.counts.keys(db), self.counts.with_expiry(db));
        if keys == 0 {
            return Ok(());
        }
        write_database(&mut gathering.bytes, db, keys, with_expiry);
        let mut cursor = Cursor::START;
        let mut written = 0;
        loop {
            let mut passed = Ok(());
            let stop = walk(&self.slots, db, cursor, KEYS_PER_STEP, &mut |_, entry| {
                if passed.is_ok() {
                    written += 1;
                    match entry.value() {
                        ValueRef::Object(Value::Module(_)) => {
                            let record = module_keys.get(&(db, entry.key()));
                            assert!(
                                record.is_some(),
                                "the value of a module has a record before the file is written"
                            );
                            gathering.bytes.extend_from_slice(record.copied().unwrap_or_default());
                        }
                        // The newest format can represent every other value.
                        _ => _ = style.write_key(&mut gathering.bytes, entry.into()),
                    }
                    self.wait_after_key();
                    if gathering.is_full() {
                        passed = file.write(&gathering.take());
                    }
                }
            });
            passed?;
            match stop {
                WalkEnd::End => {
                    debug_assert_eq!(written, keys, "a file has every key of database {db} once");
                    return Ok(());
                }
                WalkEnd::Paused(next) | WalkEnd::Contended(next) => cursor = next,
            }
        }
    }
}
