//! Reads the records of an RDB file in order: acts on those that are not keys, and passes the keys on undecoded.

use std::io::Read;
use std::ops::Range;

use weft_base::slots::SLOTS;
use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_config::{Config, id};
use weft_modules::module::types::{self, AUX_BEFORE_KEYS, TypeId};
use weft_modules::objects::io::opcode as module_opcode;
use weft_modules::objects::value::{DecodeError, check_aux};
use weft_os::atomic::Ordering;
use weft_rdb::dump_payload;

use super::batch::{BatchBudget, KeyAttributes, RawKey};
use super::error::RdbFault;
use super::insert::{InsertContext, SharedSlots};
use super::load::{LoadedFile, OnKeyDropped, ProgressCallback, delay_load, handle_aux_field};
use super::loader_threads::KeySink;
use super::module_records::{DecodeRecords, UndecodedContent, UndecodedKey, UndecodedRecord};
use super::opcode;
use super::save::{IMPORT_NAME_BYTES, UnfinishedImport};
use super::source::{RdbSource, decode_string};
use super::value_length::{skip_module_elements, skip_value};
use crate::keyspace::access::KeyCounts;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::staging::KeyCountChanges;

/// The counts of keys that a load changes.
pub(super) enum CountDestination<'a> {
    /// Those of the keyspace, in the row of this thread.
    Keyspace(&'a KeyCounts, ThreadIndex),
    /// Those of a staging keyspace.
    Staging(&'a mut [KeyCountChanges]),
}

impl CountDestination<'_> {
    pub(super) fn add(&mut self, changes: &[KeyCountChanges]) {
        for (db, change) in DbIndex::all(changes.len()).zip(changes) {
            match self {
                CountDestination::Keyspace(counts, thread_index) => {
                    counts.add(*thread_index, db, change[0], change[1]);
                    counts.add_volatile(*thread_index, db, change[2]);
                }
                CountDestination::Staging(counts) => {
                    for (sum, figure) in counts[db.get()].iter_mut().zip(change) {
                        *sum += figure;
                    }
                }
            }
        }
    }
}

/// A record of a file.
enum Record {
    /// A key, with the ends of its name and of its value relative to the start of the record.
    Key {
        kind: u8,
        hash: u64,
        name_end: usize,
        end: usize,
    },
    /// A record that was acted upon.
    Other,
    /// The end of the records.
    End,
}

/// Reads the records of one file. The thread that holds exclusive mode runs it.
pub(super) struct RecordReader<'r, 'scope, 'b, R> {
    /// The file, of which the header was read.
    pub source: &'r mut RdbSource<R>,
    /// The version of the file.
    pub version: u32,
    /// The parameters of the server.
    pub config: &'r Config,
    /// The hash of key names.
    pub hasher: &'r KeyHasher,
    /// The databases of the server.
    pub databases: &'r KeyCounts,
    /// The destination of keys.
    pub sink: KeySink<'scope, 'b>,
    /// The memory for batches.
    pub budget: &'b BatchBudget,
    /// What is shared with the threads that insert keys.
    pub context: &'b InsertContext<'b>,
    /// The keyspace, if other threads may use it at intervals.
    pub gate: Option<&'r SharedSlots<'r>>,
    /// Has modules decode what precedes the keys as soon as it is read; `None` if they have to wait for the end.
    pub decode_early: Option<DecodeRecords<'r>>,
    /// The progress to report.
    pub progress: Option<&'r ProgressCallback<'r>>,
    /// Called for dropped keys.
    pub on_dropped_key: Option<OnKeyDropped<'r>>,
    /// The counts of keys.
    pub counts: CountDestination<'r>,
    /// The state between two records.
    pub state: ReadState,
}

/// What is known after a part of a file.
#[derive(Default)]
pub(super) struct ReadState {
    /// The selected database.
    db: Option<DbIndex>,
    attributes: KeyAttributes,
    /// The keys of the current batch.
    keys: Vec<RawKey>,
    /// The offset in the file at which the current batch starts.
    batch_offset: u64,
    /// The last offset that was reported.
    reported: u64,
    loaded: LoadedFile,
    /// The records that modules have to decode.
    module_records: Vec<UndecodedRecord>,
}

/// What the reader has found, besides the keys that it has passed on.
pub(super) struct ReadRecords {
    /// The contents of the other records.
    pub loaded: LoadedFile,
    /// The records that modules have to decode.
    pub module_records: Vec<UndecodedRecord>,
    /// The fault that the reader has met. An earlier fault of a key is in the context.
    pub end: Result<(), RdbFault>,
    /// The offset of that fault.
    pub offset: u64,
}

impl<R: Read> RecordReader<'_, '_, '_, R> {
    /// Reads all records, and waits until their keys are inserted, but for those that modules have to decode.
    pub fn read(mut self) -> ReadRecords {
        let end = self.read_records();
        let offset = self.source.offset();
        let rest = self.source.take_last_batch();
        self.pass_on(rest);
        let RecordReader {
            sink,
            context,
            mut counts,
            mut on_dropped_key,
            state,
            ..
        } = self;
        sink.finish();
        take_over_changes(context, &mut counts, &mut on_dropped_key);
        ReadRecords {
            loaded: state.loaded,
            module_records: state.module_records,
            end,
            offset,
        }
    }

    fn read_records(&mut self) -> Result<(), RdbFault> {
        loop {
            self.report_progress();
            self.source.begin_record_of_batch();
            let record = self.read_record();
            if let Some(batch) = self.source.take_batch(|| self.budget.spare())
                && !self.pass_on(batch)
            {
                return Ok(());
            }
            match record? {
                Record::Key {
                    kind,
                    hash,
                    name_end,
                    end,
                } => {
                    let start = self.source.record_start();
                    let state = &mut self.state;
                    state.keys.push(RawKey {
                        kind,
                        db: state.db.unwrap_or(DbIndex::FIRST),
                        attributes: std::mem::take(&mut state.attributes),
                        hash,
                        name_start: start + 1,
                        value_start: start + name_end,
                        end: start + end,
                    });
                    delay_load(self.config);
                }
                Record::Other => {}
                Record::End => return Ok(()),
            }
        }
    }

    /// Passes the keys of a batch on. Returns `false` if there is no use in reading on.
    fn pass_on(&mut self, bytes: Vec<u8>) -> bool {
        let state = &mut self.state;
        let length = bytes.len() as u64;
        let batch = self.budget.create_batch(bytes, state.batch_offset, state.keys.len());
        state.batch_offset += length;
        let is_taken = self.sink.take_batch(batch, &mut state.keys);
        self.budget.wait(state.batch_offset);
        take_over_changes(self.context, &mut self.counts, &mut self.on_dropped_key);
        is_taken && !self.context.progress.has_fault()
    }

    /// Reports the progress and lets other threads in, if it is time.
    fn report_progress(&mut self) {
        let (offset, reported) = (self.source.offset(), &mut self.state.reported);
        let Some(progress) = self
            .progress
            .filter(|progress| offset - *reported >= progress.every_bytes)
        else {
            return;
        };
        debug_assert!(
            offset > *reported || progress.every_bytes == 0,
            "the offset in an RDB file ascends"
        );
        *reported = offset;
        (progress.report)(offset);
        if let Some(gate) = self.gate {
            gate.pause_for(progress.meanwhile);
        }
    }

    fn read_record(&mut self) -> Result<Record, RdbFault> {
        let source = &mut *self.source;
        let kind = source.byte()?;
        if self.version <= u32::from(*dump_payload::FOREIGN_VERSIONS.end())
            && dump_payload::FOREIGN_TYPES.contains(&kind)
        {
            return Err(RdbFault::ForeignType(kind, self.version));
        }
        let attributes = &mut self.state.attributes;
        match kind {
            opcode::EXPIRY_S => {
                let seconds = i32::from_le_bytes(source.array()?);
                attributes.expire_at_ms = Some(i64::from(seconds) * 1000);
            }
            opcode::EXPIRY_MS => attributes.expire_at_ms = Some(i64::from_le_bytes(source.array()?)),
            opcode::FREQUENCY => attributes.frequency = Some(source.byte()?),
            opcode::IDLE_TIME => attributes.idle_s = Some(source.length()? as u64),
            opcode::DATABASE => self.select_database()?,
            opcode::DATABASE_SIZE => {
                let keys = source.length()?;
                source.length()?;
                let db = self.state.db.unwrap_or(DbIndex::FIRST);
                self.context.expected_keys[db.get()].store(keys, Ordering::Relaxed);
            }
            opcode::SLOT_INFO => {
                source.length()?;
                source.length()?;
                source.length()?;
            }
            opcode::AUX => self.read_aux_field()?,
            opcode::FUNCTION => self.state.loaded.functions.push(source.string()?),
            opcode::FUNCTION_BEFORE_RELEASE => {
                return Err(RdbFault::damaged("Pre-release function format not supported."));
            }
            opcode::MODULE => self.read_module_data()?,
            opcode::SLOT_IMPORT => self.state.loaded.imports.push(read_import(source)?),
            opcode::END => return Ok(Record::End),
            kind => return self.read_key(kind),
        }
        Ok(Record::Other)
    }

    /// Finds the end of a key without decoding its value.
    fn read_key(&mut self, kind: u8) -> Result<Record, RdbFault> {
        let name = self.source.skip_string()?;
        if kind == dump_payload::TYPE_MODULE {
            return self.read_module_key(name);
        }
        let accepts_newer = || self.config.choice(id::RDB_VERSION_CHECK) == "relaxed";
        skip_value(self.source, kind).map_err(|fault| match fault {
            RdbFault::UnknownType(_) if accepts_newer() => RdbFault::UnknownNewerType,
            fault => fault,
        })?;
        Ok(Record::Key {
            kind,
            hash: self
                .hasher
                .hash(&decode_string(self.source.record_bytes(name.clone()))?),
            name_end: name.end,
            end: self.source.position(),
        })
    }

    /// Keeps a key whose value a module has to decode.
    fn read_module_key(&mut self, name: Range<usize>) -> Result<Record, RdbFault> {
        let from = self.source.position();
        let id = TypeId(self.source.length()? as u64);
        if types::find(id).is_none() {
            return Err(DecodeError::UnknownType(id.name()).into());
        }
        skip_module_elements(self.source)?;
        let name = self.source.decode_string(name)?;
        let key = UndecodedKey {
            db: self.state.db.unwrap_or(DbIndex::FIRST),
            hash: self.hasher.hash(&name),
            name,
            attributes: std::mem::take(&mut self.state.attributes),
            value: self.source.record_bytes(from..self.source.position()).to_vec(),
        };
        self.keep_module_record(UndecodedContent::Key(key));
        delay_load(self.config);
        Ok(Record::Other)
    }

    /// Keeps data of a module besides the keys.
    fn read_module_data(&mut self) -> Result<(), RdbFault> {
        let id = TypeId(self.source.length()? as u64);
        let mark = self.source.length()?;
        let when = self.source.length()?;
        if mark != usize::from(module_opcode::UNSIGNED) {
            return Err(RdbFault::damaged("bad when_opcode"));
        }
        check_aux(id)?;
        let from = self.source.position();
        skip_module_elements(self.source)?;
        let contents = self.source.record_bytes(from..self.source.position()).to_vec();
        let when = i32::try_from(when).unwrap_or_default();
        let content = UndecodedContent::Aux { id, when, contents };
        match self.decode_early.filter(|_| when == AUX_BEFORE_KEYS) {
            Some(decode) => {
                let end_offset = self.source.offset();
                let (_, fault) = decode(vec![UndecodedRecord { end_offset, content }], None);
                fault.map_or(Ok(()), |(_, fault)| Err(fault))
            }
            None => {
                self.keep_module_record(content);
                Ok(())
            }
        }
    }

    fn keep_module_record(&mut self, content: UndecodedContent) {
        self.state.module_records.push(UndecodedRecord {
            end_offset: self.source.offset(),
            content,
        });
    }

    fn select_database(&mut self) -> Result<(), RdbFault> {
        let number = self.source.length()?;
        let databases = self.databases.databases();
        if number >= databases {
            return Err(RdbFault::Database(databases));
        }
        let db = DbIndex::new(number);
        self.databases.mark_used(db);
        self.state.db = Some(db);
        Ok(())
    }

    fn read_aux_field(&mut self) -> Result<(), RdbFault> {
        let (name, text) = (self.source.string()?, self.source.string()?);
        handle_aux_field(&name, &text, &mut self.state.loaded.position)?;
        if let (Some(progress), b"used-mem") = (self.progress, name.as_slice()) {
            (progress.used_memory)(weft_resp::number::parse_i64(&text).map_or(0, |bytes| bytes.max(0) as u64));
        }
        Ok(())
    }
}

/// Reads the record of a slot import.
pub fn read_import<R: Read>(source: &mut RdbSource<R>) -> Result<UnfinishedImport, RdbFault> {
    let invalid = || RdbFault::damaged("Invalid slot import in RDB");
    let name = source.string()?;
    let name = <[u8; IMPORT_NAME_BYTES]>::try_from(name.as_slice()).map_err(|_| invalid())?;
    let count = source.length()?;
    let mut ranges = Vec::new();
    for _ in 0..count {
        let (first, last) = (source.length()?, source.length()?);
        let slot = |number: usize| u16::try_from(number).ok().and_then(SlotIndex::new);
        match (slot(first), slot(last)) {
            (Some(first), Some(last)) if first <= last && ranges.len() < SLOTS => ranges.push((first, last)),
            _ => return Err(invalid()),
        }
    }
    Ok(UnfinishedImport { name, ranges })
}

/// Counts the keys that were inserted since the last call, and reports those that were dropped.
fn take_over_changes(
    context: &InsertContext<'_>,
    counts: &mut CountDestination<'_>,
    on_dropped_key: &mut Option<OnKeyDropped<'_>>,
) {
    let (dropped, changes) = context.progress.take_changes();
    counts.add(&changes);
    if let Some(tell) = on_dropped_key {
        for (_, db, name) in dropped {
            tell(db, &name);
        }
    }
}
