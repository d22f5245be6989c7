//! Values of modules' data types, as keys hold them.
//!
//! Only the module knows what is behind the address of a value, and changes it there. So whatever shows the value at
//! one moment, such as a data file, asks the module for it at that moment. All functions here that call the module must
//! be called where the module may run ([`crate::session`]), while nothing changes the value.
//!
//! A key is deleted, or gets another value, on any thread and under leases, where no code of a module may run. Then the
//! calls that the module expects wait in a queue ([`pending_calls`]), which is empty before any other function of a
//! module runs on the home thread. So a module never finds a value that it was not told about.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use weft_os::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use weft_rdb::dump_payload;
use weft_rdb::strings::{RdbReader, write_length};
use weft_values::Value;
use weft_values::foreign::ForeignValue;

use super::digest::{DIGEST_BYTES, ModuleDigest};
use super::io::{ModuleIo, opcode};
use super::key_options::KeyOptions;
use super::string::ModuleString;
use crate::api::OK;
use crate::module::types::{AUX_AFTER_KEYS, AUX_BEFORE_KEYS, DataType, TypeId, all, callback, find};
use crate::session::{self, pending_calls};

/// The opcode of data besides the keys in data files.
pub const RDB_OPCODE_AUX: u8 = 247;
/// The effort above which a background thread frees a value.
const LAZYFREE_EFFORT: usize = 64;

/// The number of values that exist.
static VALUES: AtomicUsize = AtomicUsize::new(0);

/// Returns `true` if any value of a module exists.
pub fn any_exist() -> bool {
    VALUES.load(Ordering::Relaxed) > 0
}

/// A value of a data type of a module.
#[derive(Debug)]
pub struct ModuleValue {
    kind: &'static DataType,
    /// The address of the module's data, which only the module uses.
    address: AtomicPtr<c_void>,
    /// `true` once the module has declared that freeing it takes long.
    is_slow_to_free: AtomicBool,
    /// The number of times that the module has opened it for writing.
    writes: AtomicU64,
}

/// The name of a key as an object that lives as long as this.
struct KeyName(*mut ModuleString);

impl KeyName {
    fn new(name: &[u8]) -> KeyName {
        KeyName(ModuleString::create(name))
    }
}

impl Drop for KeyName {
    fn drop(&mut self) {
        // SAFETY: this is one of the holders. The module may have become another one.
        unsafe { ModuleString::release(self.0) };
    }
}

/// The number that a module gets for a database.
fn db_number(db: u32) -> i32 {
    i32::try_from(db).unwrap_or(i32::MAX)
}

/// The reason why bytes are not a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No module has a type of this name.
    #[error("The RDB file contains module data I can't load: no matching module type '{0}'")]
    UnknownType(String),
    /// The module of this name could not load it.
    #[error(
        "The RDB file contains module data for the module type '{0}', that the responsible module is not able to load. \
         Check for modules log above for additional clues."
    )]
    Refused(String),
    /// The module of this name has not read all of it.
    #[error(
        "The RDB file contains module data for the module '{0}' that is not terminated by the proper module value EOF \
         marker"
    )]
    NoEnd(String),
    /// The identifier of the type is missing.
    #[error("Short read module id")]
    Truncated,
}

impl ModuleValue {
    /// Creates a value that owns what is at an address, which is of this type.
    pub fn new(kind: &'static DataType, address: *mut c_void) -> Arc<ModuleValue> {
        VALUES.fetch_add(1, Ordering::Relaxed);
        Arc::new(ModuleValue {
            kind,
            address: AtomicPtr::new(address),
            is_slow_to_free: AtomicBool::new(false),
            writes: AtomicU64::new(0),
        })
    }

    /// Returns its type.
    pub fn kind(&self) -> &'static DataType {
        self.kind
    }

    /// Returns its address.
    pub fn address(&self) -> *mut c_void {
        self.address.load(Ordering::Acquire)
    }

    /// Counts that the module has opened it for writing.
    pub fn note_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of times that the module has opened it for writing. A value for which this has not grown has
    /// not changed, unless its module changes it without opening the key.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Replaces its address, and returns the old one, which belongs to the module again.
    pub fn replace(&self, address: *mut c_void) -> *mut c_void {
        self.address.swap(address, Ordering::AcqRel)
    }

    /// Appends the identifier of the type and the contents, as behind the type and the key in a data file. Returns
    /// `false` if the module failed; then nothing is appended.
    #[must_use]
    pub fn append_rdb(&self, out: &mut Vec<u8>, key: &[u8], db: u32, should_compress: bool) -> bool {
        let Some(save) = self.kind.methods.rdb_save else {
            return false;
        };
        let name = KeyName::new(key);
        let mut io = ModuleIo::for_saving(self.kind, name.0, db_number(db), should_compress);
        // SAFETY: the callback is that of the type of the value, which nothing else uses meanwhile.
        unsafe { save(&raw mut io, self.address()) };
        let Some(contents) = io.into_output() else {
            return false;
        };
        write_length(out, self.kind.id.0 as usize);
        out.extend(contents);
        write_length(out, opcode::END.into());
        true
    }

    /// Returns the payload of the value for DUMP; `None` if the module fails.
    pub fn dump(&self, key: &[u8], db: u32, should_compress: bool) -> Option<Vec<u8>> {
        let mut payload = vec![dump_payload::TYPE_MODULE];
        if !self.append_rdb(&mut payload, key, db, should_compress) {
            return None;
        }
        dump_payload::append_footer(&mut payload, dump_payload::VERSION);
        Some(payload)
    }

    /// Decodes a value from what [`Self::append_rdb`] has appended. Bytes behind it are ignored.
    ///
    /// # Errors
    /// If there is no such type, or its module cannot load the value.
    pub fn decode(bytes: &[u8], key: &[u8], db: u32) -> Result<Arc<ModuleValue>, DecodeError> {
        let mut reader = RdbReader::new(bytes);
        let id = TypeId(reader.length().ok_or(DecodeError::Truncated)? as u64);
        let contents = &bytes[bytes.len() - reader.remaining_bytes()..];
        let kind = find(id).ok_or_else(|| DecodeError::UnknownType(id.name()))?;
        let module_name = || {
            kind.module()
                .map(|module| module.name().to_string())
                .unwrap_or_default()
        };
        let load = kind
            .methods
            .rdb_load
            .ok_or_else(|| DecodeError::Refused(module_name()))?;
        let name = KeyName::new(key);
        let mut io = ModuleIo::for_loading(kind, name.0, db_number(db), contents);
        // SAFETY: the callback is that of the type.
        let address = unsafe { load(&raw mut io, id.encoding_version()) };
        // The value is dropped by an error.
        let value = (!address.is_null()).then(|| ModuleValue::new(kind, address));
        match io.load_end() {
            true => value.ok_or_else(|| DecodeError::Refused(module_name())),
            false => Err(DecodeError::NoEnd(module_name())),
        }
    }

    /// Returns the commands that create the value, as the module emits them. Returns `None` if it fails.
    pub fn rewrite(&self, key: &[u8], db: u32) -> Option<Vec<u8>> {
        let rewrite = self.kind.methods.aof_rewrite?;
        let name = KeyName::new(key);
        let mut io = ModuleIo::for_rewriting(self.kind, name.0, db_number(db));
        // SAFETY: the callback is that of the type of the value, which nothing else uses meanwhile.
        unsafe { rewrite(&raw mut io, name.0, self.address()) };
        io.into_output()
    }

    /// Returns the digest that the module computes for the value; `None` if it does not.
    pub fn digest(&self, key: &[u8], db: u32) -> Option<[u8; DIGEST_BYTES]> {
        let compute = self.kind.methods.digest?;
        let name = KeyName::new(key);
        let mut digest = ModuleDigest::new(name.0, db_number(db));
        // SAFETY: the callback is that of the type of the value, which nothing else uses meanwhile.
        unsafe { compute(&raw mut digest, self.address()) };
        Some(digest.sum())
    }

    /// Returns the memory of the value in bytes, as the module states it. It may look at `samples` elements only; 0
    /// stands for all of them.
    pub fn memory_usage(&self, key: &[u8], db: u32, samples: usize) -> usize {
        let methods = &self.kind.methods;
        // SAFETY: the callbacks are those of the type of the value, which nothing else uses meanwhile.
        unsafe {
            if let Some(usage) = methods.mem_usage2 {
                let name = KeyName::new(key);
                return usage(&mut options_of(&name, db), self.address(), samples);
            }
            methods.mem_usage.map_or(0, |usage| usage(self.address()))
        }
    }

    /// Returns a copy of the value.
    ///
    /// # Errors
    /// The error text for COPY, if the module cannot copy it.
    pub fn copy(&self, from: (&[u8], u32), to: (&[u8], u32)) -> Result<Arc<ModuleValue>, &'static str> {
        let methods = &self.kind.methods;
        let (source, target) = (KeyName::new(from.0), KeyName::new(to.0));
        let mut options = KeyOptions {
            from_key: source.0,
            to_key: target.0,
            from_db: db_number(from.1),
            to_db: db_number(to.1),
        };
        // SAFETY: the callbacks are those of the type of the value, which nothing else uses meanwhile.
        let address = unsafe {
            match (methods.copy2, methods.copy) {
                (Some(copy), _) => copy(&raw mut options, self.address()),
                (None, Some(copy)) => copy(source.0, target.0, self.address()),
                (None, None) => return Err("ERR not supported for this module key"),
            }
        };
        match address.is_null() {
            true => Err("ERR module key failed to copy"),
            false => Ok(ModuleValue::new(self.kind, address)),
        }
    }

    /// Calls the callback for a value that was removed from its key, and asks how long freeing it takes.
    fn call_unlinked(&self, key: &[u8], db: u32) {
        let methods = &self.kind.methods;
        let name = KeyName::new(key);
        // SAFETY: the callbacks are those of the type of the value, which nothing else uses meanwhile.
        unsafe {
            let effort = match (methods.free_effort2, methods.free_effort) {
                (Some(effort), _) => effort(&mut options_of(&name, db), self.address()),
                (None, Some(effort)) => effort(name.0, self.address()),
                (None, None) => 1,
            };
            let is_slow = effort == 0 || effort > LAZYFREE_EFFORT;
            self.is_slow_to_free.store(is_slow, Ordering::Relaxed);
            match (methods.unlink2, methods.unlink) {
                (Some(unlink), _) => unlink(&mut options_of(&name, db), self.address()),
                (None, Some(unlink)) => unlink(name.0, self.address()),
                (None, None) => {}
            }
        }
    }
}

/// Returns the options of a call that is about one key.
fn options_of(name: &KeyName, db: u32) -> KeyOptions {
    KeyOptions {
        from_key: name.0,
        to_key: null_mut(),
        from_db: db_number(db),
        to_db: -1,
    }
}

/// Returns the value of an object of the keyspace, if it is one of a module.
pub fn of_object(object: &Value) -> Option<Arc<ModuleValue>> {
    object.module()?.clone().downcast()
}

impl ForeignValue for ModuleValue {
    fn type_name(&self) -> &'static str {
        self.kind.name
    }

    fn note_unlinked(self: Arc<Self>, db: u32, key: &[u8]) {
        let methods = &self.kind.methods;
        let wants_call = methods.unlink.is_some()
            || methods.unlink2.is_some()
            || methods.free_effort.is_some()
            || methods.free_effort2.is_some();
        if wants_call {
            let key: Box<[u8]> = key.into();
            queue_call(move || self.call_unlinked(&key, db));
        }
    }
}

impl Drop for ModuleValue {
    fn drop(&mut self) {
        VALUES.fetch_sub(1, Ordering::Relaxed);
        let Some(free) = self.kind.methods.free else {
            return;
        };
        let body = FreedValue {
            free,
            address: AtomicPtr::new(*self.address.get_mut()),
        };
        match session::host() {
            Some(host) if self.is_slow_to_free.load(Ordering::Relaxed) => {
                host.free_in_background(Box::new(move || body.free()));
            }
            Some(_) if !session::is_present() => queue_call(|| session::without_session(|| body.free())),
            // This is where the module runs, or a process without a server.
            _ => session::without_session(|| body.free()),
        }
    }
}

/// What is left of a value to be freed.
struct FreedValue {
    free: callback::Free,
    address: AtomicPtr<c_void>,
}

impl FreedValue {
    fn free(self) {
        // SAFETY: nothing refers to the value any more.
        unsafe { (self.free)(self.address.into_inner()) };
    }
}

/// Adds a call to those that wait for the home thread. The host runs them soon.
fn queue_call(call: impl FnOnce() + Send + 'static) {
    let was_empty = pending_calls::add(call);
    if was_empty && let Some(host) = session::host() {
        host.run_pending_calls_soon();
    }
}

/// Returns the records with the data besides the keys that all modules save at `when`: [`AUX_BEFORE_KEYS`] or
/// [`AUX_AFTER_KEYS`]. Returns `None` if a module fails.
pub fn save_aux(when: c_int, should_compress: bool) -> Option<Vec<u8>> {
    debug_assert!([AUX_BEFORE_KEYS, AUX_AFTER_KEYS].contains(&when), "there are two times");
    let mut out = Vec::new();
    for kind in all() {
        let methods = &kind.methods;
        if methods.aux_save_triggers & when == 0 {
            continue;
        }
        let mut header = vec![RDB_OPCODE_AUX];
        write_length(&mut header, kind.id.0 as usize);
        write_length(&mut header, opcode::UNSIGNED.into());
        write_length(&mut header, when as usize);
        let prologue = match (methods.aux_save2, methods.aux_save) {
            (Some(_), _) => header,
            (None, Some(_)) => {
                out.append(&mut header);
                Vec::new()
            }
            (None, None) => continue,
        };
        let mut io = ModuleIo::for_saving_after(kind, null_mut(), -1, should_compress, prologue);
        // SAFETY: the callbacks are those of the type.
        unsafe {
            match (methods.aux_save2, methods.aux_save) {
                (Some(save), _) => save(&raw mut io, when),
                (None, Some(save)) => save(&raw mut io, when),
                (None, None) => {}
            }
        }
        let contents = io.into_output()?;
        if methods.aux_save2.is_some() && contents.is_empty() {
            continue;
        }
        out.extend(contents);
        write_length(&mut out, opcode::END.into());
    }
    Some(out)
}

/// The reason why data besides the keys was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuxError {
    /// No module has a type of this name.
    #[error("The RDB file contains AUX module data I can't load: no matching module '{0}'")]
    UnknownType(String),
    /// The type of this name has no such data.
    #[error("The RDB file contains module AUX data, but the module '{0}' doesn't seem to support it.")]
    NotSupported(String),
    /// The module of the type of this name could not load it.
    #[error(
        "The RDB file contains module AUX data for the module type '{0}', that the responsible module is not able to \
         load. Check for modules log above for additional clues."
    )]
    Refused(String),
    /// The module of the type of this name has not read all of it.
    #[error(
        "The RDB file contains module AUX data for the module '{0}' that is not terminated by the proper module value \
         EOF marker"
    )]
    NoEnd(String),
}

/// Checks that a module can load data besides the keys of this type.
///
/// # Errors
/// If there is no such type, or it has no such data.
pub fn check_aux(id: TypeId) -> Result<(), AuxError> {
    match find(id) {
        None => Err(AuxError::UnknownType(id.name())),
        Some(kind) if kind.methods.aux_load.is_none() => Err(AuxError::NotSupported(id.name())),
        Some(_) => Ok(()),
    }
}

/// Gives a module data besides the keys, from behind the number that says when it was saved up to its end.
///
/// # Errors
/// If no module can load it.
pub fn load_aux(id: TypeId, when: c_int, contents: &[u8]) -> Result<(), AuxError> {
    let kind = find(id).ok_or_else(|| AuxError::UnknownType(id.name()))?;
    let load = kind.methods.aux_load.ok_or_else(|| AuxError::NotSupported(id.name()))?;
    let mut io = ModuleIo::for_loading(kind, null_mut(), -1, contents);
    // SAFETY: the callback is that of the type.
    let result = unsafe { load(&raw mut io, id.encoding_version(), when) };
    if result != OK || io.has_failed() {
        return Err(AuxError::Refused(id.name()));
    }
    match io.load_end() {
        true => Ok(()),
        false => Err(AuxError::NoEnd(id.name())),
    }
}

#[cfg(test)]
mod tests;
