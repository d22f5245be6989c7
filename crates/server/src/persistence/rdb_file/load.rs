//! Loading of RDB files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_values::Value;

use super::error::{RdbFault, RdbLoadError, on_one_line};
use super::source::RdbSource;
use super::value_length::{is_empty_value, module_name, skip_value};
use super::{MAGIC_BYTES, opcode};
use crate::keyspace::access::{KeyCounts, value_due_ms};
use crate::keyspace::before_image::BeforeImages;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::staging::StagedDatabases;
use crate::keyspace::string_encoding::encode_string;
use crate::keyspace::{Exclusive, SlotTable, publish_due_time, publish_header};
use crate::observability::log;
use weft_base::slots::SLOTS;
use weft_config::{Config, id};
use weft_os::atomic::Ordering;
use weft_rdb::dump_payload::{self, FOREIGN_VERSIONS, RestoredValue, VERSION};
use weft_rdb::strings::RdbReader;

/// The last version of files with the magic REDIS.
pub(crate) const LAST_SHARED_VERSION: u32 = 11;
/// The first version with a checksum.
const FIRST_VERSION_WITH_CHECKSUM: u32 = 5;
/// The length of a replication ID in bytes.
const REPLICATION_ID_BYTES: usize = 40;
/// The maximum number of empty keys that are logged.
const EMPTY_KEYS_LOGGED: u64 = 10;

/// The destination of keys.
pub enum LoadDestination<'l, 'p> {
    /// The keyspace, in exclusive mode.
    Keyspace(&'l mut Exclusive<'p>),
    /// A staging keyspace.
    Staging(&'l mut StagedDatabases),
}

/// A callback for dropped keys, with their databases and names.
pub type OnKeyDropped<'l> = &'l mut dyn FnMut(DbIndex, &[u8]);

/// The context of a load.
pub struct RdbLoader<'l, 'p> {
    /// The destination.
    pub destination: LoadDestination<'l, 'p>,
    /// The hash that distributes keys over slots.
    pub hasher: &'l KeyHasher,
    /// The counts of keys to update.
    pub counts: &'l KeyCounts,
    /// The before-images of a running snapshot, for keys that the file replaces.
    pub before_images: &'l BeforeImages,
    /// The row of `counts` that belongs to this thread.
    pub thread_index: ThreadIndex,
    /// The parameters of the server.
    pub config: &'l Config,
    /// Sets the access clock of new entries.
    pub clock: AccessClock,
    /// Keys that expired before this time, and hashes all of whose fields did, are dropped. In milliseconds since the
    /// Unix epoch; 0 drops none.
    pub now_ms: u64,
    /// `true` if a key of the file replaces an existing one. Otherwise an existing key is an error.
    pub should_replace: bool,
    /// Called for each key that is dropped because it has expired.
    pub on_dropped_key: Option<OnKeyDropped<'l>>,
    /// Called with the bytes read so far, at intervals; other threads may use the keyspace meanwhile.
    pub progress: Option<ProgressCallback<'l>>,
}

/// The callback for the progress of a load.
pub struct ProgressCallback<'l> {
    /// The number of bytes of the file between two reports.
    pub every_bytes: u64,
    /// Receives the number of bytes that have been read.
    pub report: &'l dyn Fn(u64),
    /// Receives the memory usage of the server that wrote the file, in bytes.
    pub used_memory: &'l dyn Fn(u64),
}

/// The result of a load.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoadedFile {
    /// The number of keys loaded.
    pub keys: u64,
    /// The number of keys that had expired.
    pub expired: u64,
    /// The number of keys without elements.
    pub empty_keys: u64,
    /// The number of hashes all of whose fields had expired.
    pub expired_hashes: u64,
    /// The codes of function libraries.
    pub functions: Vec<Vec<u8>>,
    /// The offset in the file at which the RDB data ends.
    pub end_offset: u64,
    /// The position in the replication history at which the file was written, if the file contains it.
    pub position: StoredReplicationPosition,
}

/// A position in a replication stream, as stored in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredReplicationPosition {
    /// The replication ID; empty if the file has none.
    pub id: Vec<u8>,
    /// The replication offset.
    pub offset: Option<i64>,
    /// The database that was selected in the stream.
    pub db: Option<DbIndex>,
    /// The states of cluster slots that were being migrated; empty if the file has none.
    pub open_slots: Vec<u8>,
}

/// A file whose header has been read and accepted.
pub struct RdbInput<R> {
    source: RdbSource<R>,
    version: u32,
}

impl<R: Read> RdbInput<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// If the file is not an RDB file, or its version is not supported.
    pub fn open(input: R, config: &Config) -> Result<Self, RdbFault> {
        let mut source = RdbSource::new(input, config.boolean(id::RDBCHECKSUM));
        let version = read_version(&mut source, config.choice(id::RDB_VERSION_CHECK) == "relaxed")?;
        Ok(RdbInput { source, version })
    }

    /// Loads the contents up to the end of the RDB data.
    ///
    /// # Errors
    /// The number of bytes read successfully and the error, if the file is damaged.
    pub fn load(&mut self, loader: &mut RdbLoader<'_, '_>) -> Result<LoadedFile, (u64, RdbFault)> {
        let loaded = loader.read_body(&mut self.source, self.version);
        loader.publish_headers();
        loaded.map_err(|fault| (self.source.offset(), fault))
    }

    /// The bytes that were read beyond the end of the RDB data, and the input.
    pub fn into_rest(self) -> (Vec<u8>, R) {
        self.source.into_remaining()
    }
}

/// Loads a file into the destination, and logs the auxiliary fields. After an error, some of its keys may have been
/// loaded.
///
/// # Errors
/// If the file does not exist or is damaged. The error has not been logged.
pub fn load(path: &Path, loader: &mut RdbLoader<'_, '_>) -> Result<LoadedFile, RdbLoadError> {
    let error = |offset, fault| RdbLoadError {
        path: path.to_owned(),
        offset,
        fault,
    };
    let file = File::open(path).map_err(|reason| error(0, RdbFault::Open(reason)))?;
    let mut source = RdbSource::new(file, loader.config.boolean(id::RDBCHECKSUM));
    let loaded = loader.read(&mut source);
    loader.publish_headers();
    loaded.map_err(|fault| error(source.offset(), fault))
}

/// The attributes that precede a key in the file.
#[derive(Clone, Copy, Default)]
struct KeyAttributes {
    expire_at_ms: Option<i64>,
    idle_s: Option<u64>,
    frequency: Option<u8>,
}

impl RdbLoader<'_, '_> {
    /// Loads a complete file.
    pub(crate) fn read<R: Read>(&mut self, source: &mut RdbSource<R>) -> Result<LoadedFile, RdbFault> {
        let version = read_version(source, self.config.choice(id::RDB_VERSION_CHECK) == "relaxed")?;
        self.read_body(source, version)
    }

    fn read_body<R: Read>(&mut self, source: &mut RdbSource<R>, version: u32) -> Result<LoadedFile, RdbFault> {
        let mut loaded = LoadedFile::default();
        let (mut db, mut about) = (DbIndex::FIRST, KeyAttributes::default());
        let mut reported = 0;
        loop {
            self.report_progress(source.offset(), &mut reported);
            source.begin_record();
            let kind = source.byte()?;
            if version <= u32::from(*dump_payload::FOREIGN_VERSIONS.end())
                && dump_payload::FOREIGN_TYPES.contains(&kind)
            {
                return Err(RdbFault::ForeignType(kind, version));
            }
            match kind {
                opcode::EXPIRY_S => {
                    let seconds = i32::from_le_bytes(source.array()?);
                    about.expire_at_ms = Some(i64::from(seconds) * 1000);
                }
                opcode::EXPIRY_MS => about.expire_at_ms = Some(i64::from_le_bytes(source.array()?)),
                opcode::FREQUENCY => about.frequency = Some(source.byte()?),
                opcode::IDLE_TIME => about.idle_s = Some(source.length()? as u64),
                opcode::DATABASE => db = self.select_database(source.length()?)?,
                opcode::DATABASE_SIZE => {
                    source.length()?;
                    source.length()?;
                }
                opcode::SLOT_INFO => {
                    source.length()?;
                    source.length()?;
                    source.length()?;
                }
                opcode::AUX => {
                    let (name, text) = (source.string()?, source.string()?);
                    handle_aux_field(&name, &text, &mut loaded.position)?;
                    if let (Some(pace), b"used-mem") = (&self.progress, name.as_slice()) {
                        (pace.used_memory)(weft_resp::number::parse_i64(&text).map_or(0, |bytes| bytes.max(0) as u64));
                    }
                }
                opcode::FUNCTION => loaded.functions.push(source.string()?),
                opcode::FUNCTION_BEFORE_RELEASE => {
                    return Err(RdbFault::damaged("Pre-release function format not supported."));
                }
                opcode::MODULE => return Err(RdbFault::Module(module_name(source.length()? as u64))),
                opcode::SLOT_IMPORT => {
                    return Err(RdbFault::damaged(
                        "The RDB file contains an unfinished slot import, which is not supported",
                    ));
                }
                opcode::END => break,
                kind => {
                    self.load_key(source, kind, db, about, &mut loaded)?;
                    about = KeyAttributes::default();
                    delay_load(self.config);
                }
            }
        }
        if version >= FIRST_VERSION_WITH_CHECKSUM {
            verify_checksum(source, self.config.boolean(id::RDBCHECKSUM))?;
        }
        loaded.end_offset = source.offset();
        Ok(loaded)
    }

    /// Reports the progress and lets other threads in, if it is time.
    fn report_progress(&mut self, offset: u64, reported: &mut u64) {
        let Some(pace) = self
            .progress
            .as_ref()
            .filter(|pace| offset - *reported >= pace.every_bytes)
        else {
            return;
        };
        debug_assert!(
            offset > *reported || pace.every_bytes == 0,
            "the offset in an RDB file ascends"
        );
        *reported = offset;
        (pace.report)(offset);
        if let LoadDestination::Keyspace(all) = &mut self.destination {
            all.pause();
        }
    }

    fn select_database(&self, number: usize) -> Result<DbIndex, RdbFault> {
        let databases = self.counts.databases();
        if number >= databases {
            return Err(RdbFault::Database(databases));
        }
        let db = DbIndex::new(number);
        self.counts.mark_used(db);
        Ok(db)
    }

    fn load_key<R: Read>(
        &mut self,
        source: &mut RdbSource<R>,
        kind: u8,
        db: DbIndex,
        about: KeyAttributes,
        loaded: &mut LoadedFile,
    ) -> Result<(), RdbFault> {
        let name = source.skip_string()?;
        let from = source.position();
        skip_value(source, kind)?;
        let name = source.decode_string(name)?;
        let body = source.record_bytes(from..source.position());
        let limits = self.config.encoding_limits();
        let Some(value) = dump_payload::parse_value(kind, &mut RdbReader::new(body), &limits) else {
            if !is_empty_value(kind, body) {
                return Err(RdbFault::damaged(format!(
                    "Integrity check of a value of type {kind} failed."
                )));
            }
            if loaded.empty_keys < EMPTY_KEYS_LOGGED {
                log::notice!("rdbLoadObject skipping empty key: {}", on_one_line(&name));
            }
            loaded.empty_keys += 1;
            return Ok(());
        };
        if about.expire_at_ms.is_some_and(|at_ms| at_ms < self.now_ms as i64) {
            loaded.expired += 1;
            self.notify_dropped(db, &name);
            return Ok(());
        }
        if has_only_expired_fields(&value, self.now_ms) {
            loaded.expired_hashes += 1;
            self.notify_dropped(db, &name);
        } else {
            self.insert_key(db, &name, value, about)?;
            loaded.keys += 1;
        }
        Ok(())
    }

    fn notify_dropped(&mut self, db: DbIndex, name: &[u8]) {
        if let Some(tell) = &mut self.on_dropped_key {
            tell(db, name);
        }
    }

    fn insert_key(
        &mut self,
        db: DbIndex,
        name: &[u8],
        value: RestoredValue<'_>,
        about: KeyAttributes,
    ) -> Result<(), RdbFault> {
        let hash = self.hasher.hash(name);
        let number = KeyHasher::slot(hash);
        if let LoadDestination::Keyspace(all) = &mut self.destination {
            let (header, slot) = all.parts_mut(number);
            if header.is_unsaved() {
                let slot_number = SlotIndex::from_index(number);
                let key = NamedKey {
                    name,
                    hash,
                    slot: slot_number,
                };
                self.before_images.keep_before_image(db, key, slot.table_mut(db));
            }
        }
        let table = self.destination.table_mut(number, db);
        let (keys, expiring) = (table.len() as i64, table.with_expiry() as i64);
        let mut volatile = 0;
        if table.find(hash, name).is_some() {
            if !self.should_replace {
                return Err(RdbFault::Duplicate(db));
            }
            if let Some(removed) = table.remove(hash, name) {
                volatile -= i64::from(value_due_ms(removed.value()).is_some());
            }
        }
        let clock = match (self.clock.is_lfu, about) {
            (
                true,
                KeyAttributes {
                    frequency: Some(uses), ..
                },
            ) => self.clock.with_frequency(uses),
            (
                false,
                KeyAttributes {
                    idle_s: Some(idle_s), ..
                },
            ) => self.clock.with_idle(idle_s),
            _ => self.clock.for_new_entry(),
        };
        let expire_at_ms = about.expire_at_ms.and_then(|at_ms| u64::try_from(at_ms).ok());
        value.insert_with(encode_string, |value| {
            drop(table.insert(hash, name, value, expire_at_ms, clock))
        });
        if let Some(mut entry) = table.find_mut(hash, name)
            && let Some(due_ms) = value_due_ms(entry.value())
        {
            entry.note_value_due(due_ms);
            volatile += 1;
        }
        let (keys, expiring) = (table.len() as i64 - keys, table.with_expiry() as i64 - expiring);
        debug_assert!(
            (0..=1).contains(&keys) && (-1..=1).contains(&expiring) && (-1..=1).contains(&volatile),
            "a loaded key is one key"
        );
        match &mut self.destination {
            LoadDestination::Keyspace(_) => {
                self.counts.add(self.thread_index, db, keys, expiring);
                self.counts.add_volatile(self.thread_index, db, volatile);
            }
            LoadDestination::Staging(apart) => apart.add_counts(db, [keys, expiring, volatile]),
        }
        Ok(())
    }

    /// Publishes the headers of all slots after the load.
    fn publish_headers(&mut self) {
        let LoadDestination::Keyspace(all) = &mut self.destination else {
            return;
        };
        for index in 0..SLOTS {
            let (header, slot) = all.parts_mut(index);
            publish_header(header, slot);
            publish_due_time(header, slot);
        }
    }
}

impl LoadDestination<'_, '_> {
    fn table_mut(&mut self, slot: usize, db: DbIndex) -> &mut SlotTable {
        match self {
            LoadDestination::Keyspace(all) => all.cell_mut(slot).table_mut(db),
            LoadDestination::Staging(apart) => apart.table_mut(slot, db),
        }
    }
}

/// Slows loading down, for tests (`key-load-delay`): by this number of microseconds per key, or if negative, by one
/// microsecond per that number of keys.
pub fn delay_load(config: &Config) {
    let delay_us = match config.integer(id::KEY_LOAD_DELAY) {
        0 => return,
        delay_us if delay_us > 0 => delay_us.unsigned_abs(),
        rarely if fastrand::u64(..rarely.unsigned_abs()) == 0 => 1,
        _ => return,
    };
    weft_os::thread::sleep(std::time::Duration::from_micros(delay_us));
}

/// Returns `true` if the value is a hash all of whose fields have expired.
///
/// Other hashes keep their expired fields. Replicas that continue from the file's replication offset still have these
/// fields. They receive the deletions when the fields are deleted here.
fn has_only_expired_fields(value: &RestoredValue<'_>, now_ms: u64) -> bool {
    match value {
        RestoredValue::Object(Value::Hash(hash)) => {
            hash.has_expired_fields(now_ms) && hash.iter(now_ms).next().is_none()
        }
        _ => false,
    }
}

fn read_version<R: Read>(source: &mut RdbSource<R>, relaxed: bool) -> Result<u32, RdbFault> {
    let magic: [u8; MAGIC_BYTES] = source.array()?;
    let (digits, shared) = match &magic {
        [b'R', b'E', b'D', b'I', b'S', digits @ ..] => (&digits[..], true),
        [b'V', b'A', b'L', b'K', b'E', b'Y', digits @ ..] => (&digits[..], false),
        _ => return Err(RdbFault::Signature(magic.to_vec())),
    };
    let version = digits
        .iter()
        .take_while(|digit| digit.is_ascii_digit())
        .fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    let newest = u32::from(VERSION);
    let foreign = u32::from(*FOREIGN_VERSIONS.start())..=u32::from(*FOREIGN_VERSIONS.end());
    let known = match shared {
        true => (1..=LAST_SHARED_VERSION).contains(&version) || (relaxed && foreign.contains(&version)),
        false => version > *foreign.end() && (version <= newest || relaxed),
    };
    if known {
        Ok(version)
    } else {
        Err(RdbFault::Version(version))
    }
}

fn verify_checksum<R: Read>(source: &mut RdbSource<R>, wanted: bool) -> Result<(), RdbFault> {
    let expected = source.checksum();
    let found = u64::from_le_bytes(source.array()?);
    if !wanted {
        return Ok(());
    }
    match found {
        0 => log::notice!("RDB file was saved with checksum disabled: no check performed."),
        found if found == expected || !dump_payload::VERIFIES_CHECKSUMS.load(Ordering::Relaxed) => {}
        found => return Err(RdbFault::Checksum(expected, found)),
    }
    Ok(())
}

/// Logs the facts about itself that a file contains.
fn handle_aux_field(name: &[u8], text: &[u8], position: &mut StoredReplicationPosition) -> Result<(), RdbFault> {
    let shown = on_one_line(text);
    let number = || weft_resp::number::parse_i64(text).unwrap_or(0);
    match name.to_ascii_lowercase().as_slice() {
        [b'%', ..] => log::notice!("RDB '{}': {shown}", on_one_line(name)),
        b"redis-ver" => log::notice!("Loading RDB produced by Redis version {shown}"),
        b"valkey-ver" => log::notice!("Loading RDB produced by Valkey version {shown}"),
        b"ctime" => {
            let now_s = (weft_base::clock::unix_ms() / 1000) as i64;
            log::notice!("RDB age {} seconds", now_s.saturating_sub(number()).max(0));
        }
        b"used-mem" => log::notice!("RDB memory usage when created {:.2} Mb", number() as f64 / 1_048_576.0),
        b"aof-preamble" if number() != 0 => log::notice!("RDB has an AOF tail"),
        b"aof-base" if number() != 0 => log::notice!("RDB is base AOF"),
        b"slot-info" if shown.split(',').filter(|part| part.parse::<u64>().is_ok()).count() < 3 => {
            return Err(RdbFault::Truncated);
        }
        b"repl-stream-db" => position.db = usize::try_from(number()).ok().map(DbIndex::new),
        b"repl-id" if text.len() == REPLICATION_ID_BYTES => position.id = text.to_vec(),
        b"repl-offset" => position.offset = Some(number()),
        b"cluster-slot-states" => position.open_slots = text.to_vec(),
        b"aof-preamble" | b"aof-base" | b"slot-info" | b"lua" | b"redis-bits" | b"repl-id" => {}
        _ => log::debug!("Unrecognized RDB AUX field: '{}'", on_one_line(name)),
    }
    Ok(())
}
