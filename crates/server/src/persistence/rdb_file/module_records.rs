//! What only modules can encode and decode: their values, and their data besides the keys.
//!
//! The code of a module runs on one thread, and may use the whole keyspace meanwhile. So a file is written in this
//! order: the values of modules are collected ([`crate::keyspace::module_values::find_module_keys`]), their modules
//! encode them where modules may run ([`encode`]), and then the file is written, with the finished records in the place
//! of these keys. A loader does the reverse: it collects the records of modules from the whole file, their modules
//! decode them in the order of the file ([`decode`]), and then the keys are inserted.

use std::collections::HashMap;
use std::sync::Arc;

use weft_base::DbIndex;
use weft_modules::module::types::{AUX_AFTER_KEYS, AUX_BEFORE_KEYS, TypeId};
use weft_modules::objects::value::{DecodeError, ModuleValue, load_aux, save_aux};
use weft_rdb::dump_payload::TYPE_MODULE;
use weft_rdb::strings::write_string;
use weft_resp::command::write_command;

use super::batch::KeyAttributes;
use super::error::RdbFault;
use super::opcode;
use super::save::KeyEncodingOptions;
use crate::keyspace::Exclusive;
use crate::keyspace::module_values::ModuleKey;
use crate::observability::log;

/// The form of the records of keys with values of modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModuleRecordForm {
    /// Values, for a data file.
    #[default]
    Values,
    /// Commands that create the keys, for a reader that converts the records of all other keys to commands.
    Commands,
}

/// The finished records of modules.
#[derive(Default)]
pub struct ModuleRecords {
    /// The records of keys.
    pub keys: Vec<(ModuleKey, Vec<u8>)>,
    /// The records before the keys of a file.
    pub before_keys: Vec<u8>,
    /// The records after the keys of a file.
    pub after_keys: Vec<u8>,
}

/// A module could not encode its data. The reason was logged.
#[derive(Debug)]
pub struct ModuleEncodeFailed;

/// Has modules encode their values, and their data besides the keys. Called where modules may run, at the moment that
/// the file shows.
///
/// # Errors
/// If a module fails.
pub fn encode(
    keys: Vec<ModuleKey>,
    options: &KeyEncodingOptions,
    form: ModuleRecordForm,
) -> Result<ModuleRecords, ModuleEncodeFailed> {
    let mut records = ModuleRecords::default();
    let aux = |when| {
        save_aux(when, options.should_compress).ok_or_else(|| {
            log::warning!("A module could not save its data besides the keys");
            ModuleEncodeFailed
        })
    };
    let is_file = form == ModuleRecordForm::Values;
    if is_file {
        records.before_keys = aux(AUX_BEFORE_KEYS)?;
    }
    for key in keys {
        let record = match form {
            ModuleRecordForm::Values => encode_value(&key, options),
            ModuleRecordForm::Commands => encode_commands(&key),
        };
        let Some(record) = record else {
            log::warning!("A module could not save a value of its type {}", key.value.kind().name);
            return Err(ModuleEncodeFailed);
        };
        records.keys.push((key, record));
    }
    if is_file {
        records.after_keys = aux(AUX_AFTER_KEYS)?;
    }
    Ok(records)
}

/// Returns the record of a key as in a data file.
fn encode_value(key: &ModuleKey, options: &KeyEncodingOptions) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    options.write_attributes(&mut out, key.expire_at_ms, key.clock);
    out.push(TYPE_MODULE);
    write_string(&mut out, &key.name, options.should_compress);
    let db = key.db.get() as u32;
    key.value
        .append_rdb(&mut out, &key.name, db, options.should_compress)
        .then_some(out)
}

/// Returns a record with the commands that create a key: those of its module, or a RESTORE if that has none.
fn encode_commands(key: &ModuleKey) -> Option<Vec<u8>> {
    let db = key.db.get() as u32;
    let mut commands = match key.value.rewrite(&key.name, db) {
        Some(commands) => commands,
        None if key.value.kind().methods.aof_rewrite.is_some() => return None,
        None => {
            let payload = key.value.dump(&key.name, db, false)?;
            let mut restore = Vec::new();
            let words: [&[u8]; 4] = [b"RESTORE", &key.name, b"0", &payload];
            write_command(words.into_iter(), &mut restore);
            restore
        }
    };
    if let Some(at_ms) = key.expire_at_ms {
        let at_ms = at_ms.to_string();
        let words: [&[u8]; 3] = [b"PEXPIREAT", &key.name, at_ms.as_bytes()];
        write_command(words.into_iter(), &mut commands);
    }
    let mut out = vec![opcode::COMMANDS];
    write_string(&mut out, &commands, false);
    Some(out)
}

impl ModuleRecords {
    /// Returns the records of keys by database and name.
    pub fn by_name(&self) -> HashMap<(DbIndex, &[u8]), &[u8]> {
        self.keys
            .iter()
            .map(|(key, record)| ((key.db, &*key.name), record.as_slice()))
            .collect()
    }
}

/// A record of a file that a module has to decode.
pub struct UndecodedRecord {
    /// The offset in the file at which it ends.
    pub end_offset: u64,
    pub(super) content: UndecodedContent,
}

/// The contents of a record that a module has to decode.
pub(super) enum UndecodedContent {
    /// A key.
    Key(UndecodedKey),
    /// Data besides the keys, of this type and from this time, up to its end.
    Aux { id: TypeId, when: i32, contents: Vec<u8> },
}

/// A key whose value a module has to decode.
pub(super) struct UndecodedKey {
    pub db: DbIndex,
    pub hash: u64,
    pub name: Vec<u8>,
    pub attributes: KeyAttributes,
    /// The value, from the identifier of its type on.
    pub value: Vec<u8>,
}

/// A key whose value was decoded.
pub struct DecodedKey {
    pub(super) end_offset: u64,
    pub(super) key: UndecodedKey,
    pub(super) value: Arc<ModuleValue>,
}

/// The result of decoding: the keys up to the first fault, and that with its offset.
pub type DecodedRecords = (Vec<DecodedKey>, Option<(u64, RdbFault)>);

/// Has modules decode records, in the order of the file. Called where modules may run.
pub fn decode(records: Vec<UndecodedRecord>) -> DecodedRecords {
    let mut keys = Vec::new();
    for record in records {
        let end_offset = record.end_offset;
        match record.content {
            UndecodedContent::Aux { id, when, contents } => {
                if let Err(error) = load_aux(id, when, &contents) {
                    log::warning!("{error}");
                    return (keys, Some((end_offset, RdbFault::Truncated)));
                }
            }
            UndecodedContent::Key(key) => match ModuleValue::decode(&key.value, &key.name, key.db.get() as u32) {
                Ok(value) => keys.push(DecodedKey { end_offset, key, value }),
                Err(error) => return (keys, Some((end_offset, RdbFault::from(error)))),
            },
        }
    }
    (keys, None)
}

impl From<DecodeError> for RdbFault {
    fn from(error: DecodeError) -> Self {
        RdbFault::damaged(error.to_string())
    }
}

/// Decodes records for a loader: called with all records of a file, and with the keyspace if the loader has exclusive
/// mode. Without it, the data that precede the keys have been decoded when they were read.
pub type DecodeRecords<'l> = &'l dyn Fn(Vec<UndecodedRecord>, Option<&mut Exclusive<'_>>) -> DecodedRecords;

/// Decodes records on the calling thread.
pub fn decode_in_place(records: Vec<UndecodedRecord>, _: Option<&mut Exclusive<'_>>) -> DecodedRecords {
    decode(records)
}
