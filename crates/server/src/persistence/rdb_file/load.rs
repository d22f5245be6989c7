//! Loading of RDB files.

use std::fs::File;
use std::io::Read;

use weft_base::files::FixedPath;
use weft_base::slots::SLOTS;
use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_config::{Config, id};
use weft_os::atomic::{AtomicUsize, Ordering};
use weft_rdb::dump_payload::{self, FOREIGN_VERSIONS, VERSION};

use super::batch::BatchBudget;
use super::error::{RdbFault, RdbLoadError, on_one_line};
use super::insert::{InsertContext, LoadProgress, LoadTally};
use super::loader_threads::{LoadThreads, UndividedSlots, with_key_sink};
use super::module_records::{DecodeRecords, UndecodedRecord};
use super::reader::{CountDestination, ReadRecords, ReadState, RecordReader};
use super::save::UnfinishedImport;
use super::source::RdbSource;
use super::{LAST_SHARED_VERSION, MAGIC_BYTES};
use crate::keyspace::access::KeyCounts;
use crate::keyspace::before_image::BeforeImages;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::encoding_limits::EncodingParameters;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::staging::StagedDatabases;
use crate::keyspace::{Exclusive, publish_due_time, publish_header};
use crate::observability::log;

/// The first version with a checksum.
const FIRST_VERSION_WITH_CHECKSUM: u32 = 5;
/// The length of a replication ID in bytes.
const REPLICATION_ID_BYTES: usize = 40;

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
    /// The threads that decode and insert keys.
    pub threads: LoadThreads,
    /// Called for each key that is dropped because it has expired.
    pub on_dropped_key: Option<OnKeyDropped<'l>>,
    /// Has modules decode their records.
    pub decode_modules: DecodeRecords<'l>,
    /// Called with the bytes read so far, at intervals; other threads may use the keyspace meanwhile.
    pub progress: Option<ProgressCallback<'l>>,
}

/// The callback for the progress of a load.
pub struct ProgressCallback<'l> {
    /// The number of bytes of the file between two reports.
    pub every_bytes: u64,
    /// Receives the number of bytes that have been read.
    pub report: &'l dyn Fn(u64),
    /// Called while the gate is open for other threads, if the load has exclusive mode.
    pub meanwhile: &'l dyn Fn(),
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
    /// The slot imports that had not ended when the file was written.
    pub imports: Vec<UnfinishedImport>,
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
        loader.read_body(&mut self.source, self.version)
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
pub fn load(path: &FixedPath, loader: &mut RdbLoader<'_, '_>) -> Result<LoadedFile, RdbLoadError> {
    let error = |(offset, fault)| RdbLoadError {
        path: path.name().to_owned(),
        offset,
        fault,
    };
    let file = File::open(path).map_err(|reason| error((0, RdbFault::Open(reason))))?;
    let mut source = RdbSource::new(file, loader.config.boolean(id::RDBCHECKSUM));
    loader.read(&mut source).map_err(error)
}

impl RdbLoader<'_, '_> {
    /// Loads a complete file.
    pub(crate) fn read<R: Read>(&mut self, source: &mut RdbSource<R>) -> Result<LoadedFile, (u64, RdbFault)> {
        let version = read_version(source, self.config.choice(id::RDB_VERSION_CHECK) == "relaxed");
        match version {
            Ok(version) => self.read_body(source, version),
            Err(fault) => Err((source.offset(), fault)),
        }
    }

    fn read_body<R: Read>(&mut self, source: &mut RdbSource<R>, version: u32) -> Result<LoadedFile, (u64, RdbFault)> {
        source.set_batch_bytes(self.threads.batch_bytes);
        let databases = self.counts.databases();
        let context = InsertContext {
            before_images: self.before_images,
            clock: self.clock,
            now_ms: self.now_ms,
            should_replace: self.should_replace,
            reports_dropped_keys: self.on_dropped_key.is_some(),
            limits: self.config.encoding_limits(),
            expected_keys: (0..databases).map(|_| AtomicUsize::new(0)).collect(),
            progress: LoadProgress::new(databases),
        };
        let ReadRecords {
            mut loaded,
            module_records,
            end,
            offset,
        } = self.read_records(source, version, &context);
        if end.is_ok() && !module_records.is_empty() && !context.progress.has_fault() {
            let part = self.load_module_records(module_records, &context);
            context.progress.add(part);
        }
        self.publish_headers();
        let tally = context.progress.into_tally();
        // Those behind a fault may have been found, too.
        let fault_offset = tally.fault.as_ref().map_or(u64::MAX, |(offset, _)| *offset);
        for (_, name) in tally.empty_names.iter().filter(|(offset, _)| *offset < fault_offset) {
            log::notice!("rdbLoadObject skipping empty key: {}", on_one_line(name));
        }
        if let Some(fault) = tally.fault {
            return Err(fault);
        }
        end.map_err(|fault| (offset, fault))?;
        if version >= FIRST_VERSION_WITH_CHECKSUM {
            let verified = verify_checksum(source, self.config.boolean(id::RDBCHECKSUM));
            verified.map_err(|fault| (source.offset(), fault))?;
        }
        loaded.keys = tally.keys;
        loaded.expired = tally.expired;
        loaded.empty_keys = tally.empty_keys;
        loaded.expired_hashes = tally.expired_hashes;
        loaded.end_offset = source.offset();
        Ok(loaded)
    }

    /// Reads all records and inserts the keys, on as many threads as there are for this.
    fn read_records<R: Read>(
        &mut self,
        source: &mut RdbSource<R>,
        version: u32,
        context: &InsertContext<'_>,
    ) -> ReadRecords {
        let shared;
        let (slots, gate, counts) = match &mut self.destination {
            LoadDestination::Keyspace(all) => {
                shared = all.share();
                let counts = CountDestination::Keyspace(self.counts, self.thread_index);
                (UndividedSlots::Keyspace(&shared), Some(&shared), counts)
            }
            LoadDestination::Staging(staged) => {
                let (slots, counts) = staged.parts_mut();
                (UndividedSlots::Staging(slots), None, CountDestination::Staging(counts))
            }
        };
        // With exclusive mode the slots are shared by the threads that load, and modules have to wait for its end.
        let decode_early = gate.is_none().then_some(self.decode_modules);
        let budget = BatchBudget::default();
        with_key_sink(self.threads.count, context, slots, |sink| {
            let reader = RecordReader {
                source,
                version,
                config: self.config,
                hasher: self.hasher,
                databases: self.counts,
                sink,
                budget: &budget,
                context,
                gate,
                decode_early,
                progress: self.progress.as_ref(),
                on_dropped_key: match &mut self.on_dropped_key {
                    Some(tell) => Some(tell),
                    None => None,
                },
                counts,
                state: ReadState::default(),
            };
            reader.read()
        })
    }

    /// Has modules decode their records, and inserts the keys among them. Returns what was done.
    fn load_module_records(&mut self, records: Vec<UndecodedRecord>, context: &InsertContext<'_>) -> LoadTally {
        let all = match &mut self.destination {
            LoadDestination::Keyspace(all) => Some(&mut **all),
            LoadDestination::Staging(_) => None,
        };
        let (keys, fault) = (self.decode_modules)(records, all);
        let mut part = LoadTally::new(self.counts.databases());
        part.fault = fault;
        for key in keys {
            let end_offset = key.end_offset;
            let slot = KeyHasher::slot(key.key.hash);
            let inserted = match &mut self.destination {
                LoadDestination::Keyspace(all) => {
                    let (header, slot) = all.parts_mut(slot);
                    context.insert_decoded(Some(header), slot, key, &mut part)
                }
                LoadDestination::Staging(staged) => {
                    context.insert_decoded(None, &mut staged.parts_mut().0[slot], key, &mut part)
                }
            };
            match inserted {
                Ok(false) => {}
                Ok(true) => {
                    let slot = SlotIndex::from_index(slot);
                    match &mut self.destination {
                        LoadDestination::Keyspace(_) => self.counts.module_slots.add(slot),
                        LoadDestination::Staging(staged) => staged.note_module_value(slot),
                    }
                }
                Err(fault) => {
                    part.fault = Some((end_offset, fault));
                    break;
                }
            }
        }
        let mut counts = match &mut self.destination {
            LoadDestination::Keyspace(_) => CountDestination::Keyspace(self.counts, self.thread_index),
            LoadDestination::Staging(staged) => CountDestination::Staging(staged.parts_mut().1),
        };
        counts.add(&std::mem::take(&mut part.changes));
        for (_, db, name) in std::mem::take(&mut part.dropped) {
            if let Some(tell) = &mut self.on_dropped_key {
                tell(db, &name);
            }
        }
        part
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
pub(super) fn handle_aux_field(
    name: &[u8],
    text: &[u8],
    position: &mut StoredReplicationPosition,
) -> Result<(), RdbFault> {
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
