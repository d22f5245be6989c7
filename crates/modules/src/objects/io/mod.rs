//! What a module reads its values from and writes them to (`ValkeyModuleIO`).
//!
//! A value in a data file, in a payload of DUMP, or in a string of a module is a sequence of elements, each behind an
//! opcode:
//!
//! ```text
//! 0          the end of a value in a file or a payload
//! 1, 2       a number of 64 bits, signed or unsigned, in the encoding of lengths
//! 3, 4       a number with a fraction, of 4 or 8 bytes, little-endian
//! 5          a string
//! ```
//!
//! A reader that meets another opcode than the module expects, or the end, has failed: later reads return 0 or null. A
//! module that has not declared that it handles this is stopped together with the process, because it would take the
//! zeros for data.

use std::cell::OnceCell;

use weft_rdb::strings::{RdbReader, write_length, write_string};
use weft_resp::Protocol;

use super::context::{Caller, Context};
use super::string::ModuleString;
use crate::module::types::DataType;

/// The opcodes of elements.
pub mod opcode {
    /// The end of a value.
    pub const END: u8 = 0;
    /// A signed number.
    pub const SIGNED: u8 = 1;
    /// An unsigned number.
    pub const UNSIGNED: u8 = 2;
    /// A number of 4 bytes with a fraction.
    pub const FLOAT: u8 = 3;
    /// A number of 8 bytes with a fraction.
    pub const DOUBLE: u8 = 4;
    /// A string.
    pub const STRING: u8 = 5;
}

/// The direction of a transfer, and its bytes.
enum Transfer<'b> {
    /// Elements are appended.
    Save {
        output: Vec<u8>,
        should_compress: bool,
        /// Precedes the first element; without any element it is left out.
        prologue: Vec<u8>,
    },
    /// Elements are read.
    Load { reader: RdbReader<'b>, length: usize },
    /// Commands are appended.
    Rewrite { commands: Vec<u8> },
}

/// A transfer of one value.
pub struct ModuleIo<'b> {
    transfer: Transfer<'b>,
    /// The type of the value.
    pub kind: &'static DataType,
    /// The name of the key, which outlives the transfer; null if it is not known.
    pub key: *mut ModuleString,
    /// The database of the key; -1 if it is not known.
    pub db: i32,
    has_failed: bool,
    context: OnceCell<Box<Context>>,
}

impl<'b> ModuleIo<'b> {
    fn new(kind: &'static DataType, key: *mut ModuleString, db: i32, transfer: Transfer<'b>) -> Self {
        ModuleIo {
            transfer,
            kind,
            key,
            db,
            has_failed: false,
            context: OnceCell::new(),
        }
    }

    /// Creates a transfer to which a module saves a value. Strings are compressed if `should_compress` is set.
    pub fn for_saving(kind: &'static DataType, key: *mut ModuleString, db: i32, should_compress: bool) -> Self {
        Self::for_saving_after(kind, key, db, should_compress, Vec::new())
    }

    /// Does the same. `prologue` precedes the first element; if the module saves nothing, it is left out.
    pub fn for_saving_after(
        kind: &'static DataType,
        key: *mut ModuleString,
        db: i32,
        should_compress: bool,
        prologue: Vec<u8>,
    ) -> Self {
        let transfer = Transfer::Save {
            output: Vec::new(),
            should_compress,
            prologue,
        };
        Self::new(kind, key, db, transfer)
    }

    /// Creates a transfer from which a module loads a value.
    pub fn for_loading(kind: &'static DataType, key: *mut ModuleString, db: i32, bytes: &'b [u8]) -> Self {
        let transfer = Transfer::Load {
            reader: RdbReader::new(bytes),
            length: bytes.len(),
        };
        Self::new(kind, key, db, transfer)
    }

    /// Creates a transfer to which a module emits commands that create a value.
    pub fn for_rewriting(kind: &'static DataType, key: *mut ModuleString, db: i32) -> Self {
        let transfer = Transfer::Rewrite { commands: Vec::new() };
        Self::new(kind, key, db, transfer)
    }

    /// Returns what the module has saved or emitted; `None` if something failed.
    pub fn into_output(self) -> Option<Vec<u8>> {
        match self.transfer {
            Transfer::Save { output, .. } if !self.has_failed => Some(output),
            Transfer::Rewrite { commands } if !self.has_failed => Some(commands),
            _ => None,
        }
    }

    /// Returns the number of bytes that the module has read.
    pub fn read_bytes(&self) -> usize {
        match &self.transfer {
            Transfer::Load { reader, length } => length - reader.remaining_bytes(),
            Transfer::Save { .. } | Transfer::Rewrite { .. } => 0,
        }
    }

    /// Returns `true` if an earlier call has failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Notes that a call has failed.
    pub fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Returns the context of the module for this transfer; `None` if the module is not loaded.
    pub fn context(&self) -> Option<&Context> {
        if let Some(context) = self.context.get() {
            return Some(context);
        }
        let module = self.kind.module()?;
        let caller = Caller {
            client_id: 0,
            db: 0,
            protocol: Protocol::Resp2,
        };
        Some(self.context.get_or_init(|| Box::new(Context::new(module, caller))))
    }

    /// Appends an element with `append`, unless an earlier call has failed or nothing is being saved. `append` gets the
    /// output, and if strings are compressed.
    fn save(&mut self, opcode: u8, append: impl FnOnce(&mut Vec<u8>, bool)) {
        let Transfer::Save {
            output,
            should_compress,
            prologue,
        } = &mut self.transfer
        else {
            self.has_failed = true;
            return;
        };
        if !self.has_failed {
            output.append(prologue);
            write_length(output, opcode.into());
            append(output, *should_compress);
        }
    }

    /// Saves an unsigned number.
    pub fn save_unsigned(&mut self, number: u64) {
        self.save(opcode::UNSIGNED, |output, _| write_length(output, number as usize));
    }

    /// Saves a number of 8 bytes with a fraction.
    pub fn save_double(&mut self, number: f64) {
        self.save(opcode::DOUBLE, |output, _| output.extend(number.to_le_bytes()));
    }

    /// Saves a number of 4 bytes with a fraction.
    pub fn save_float(&mut self, number: f32) {
        self.save(opcode::FLOAT, |output, _| output.extend(number.to_le_bytes()));
    }

    /// Saves a string.
    pub fn save_string(&mut self, bytes: &[u8]) {
        self.save(opcode::STRING, |output, compress| write_string(output, bytes, compress));
    }

    /// Emits a command.
    pub fn emit<'w>(&mut self, words: impl ExactSizeIterator<Item = &'w [u8]>) {
        match &mut self.transfer {
            Transfer::Rewrite { commands } if !self.has_failed => {
                weft_resp::command::write_command(words, commands);
            }
            Transfer::Rewrite { .. } => {}
            Transfer::Save { .. } | Transfer::Load { .. } => self.has_failed = true,
        }
    }

    /// Reads an element with `read`. Returns `None` if that or an earlier call has failed.
    fn load<T>(&mut self, opcode: u8, read: impl FnOnce(&mut RdbReader<'b>) -> Option<T>) -> Option<T> {
        if self.has_failed {
            return None;
        }
        let loaded = match &mut self.transfer {
            Transfer::Load { reader, .. } => match reader.length() {
                Some(found) if found == usize::from(opcode) => read(reader),
                _ => None,
            },
            Transfer::Save { .. } | Transfer::Rewrite { .. } => None,
        };
        if loaded.is_none() {
            self.fail_load();
        }
        loaded
    }

    /// Notes that a read has failed. Ends the process if the module does not handle that.
    #[cold]
    fn fail_load(&mut self) {
        let module = self.kind.module();
        if module.as_ref().is_some_and(|module| !module.handles_io_errors()) {
            let name = module.map(|module| module.name()).unwrap_or_default();
            // SAFETY: the creator of the transfer keeps the name until its end.
            let key = unsafe { ModuleString::bytes_of(self.key) };
            let key = match self.key.is_null() {
                true => "(null)".into(),
                false => String::from_utf8_lossy(key),
            };
            log::error!(
                "Error loading data from RDB (short read or EOF). Read performed by module '{name}' about type '{}' \
                 after reading '{}' bytes of a value for key named: '{key}'.",
                self.kind.name,
                self.read_bytes(),
            );
            std::process::abort();
        }
        self.has_failed = true;
    }

    /// Loads an unsigned number; 0 after a failure.
    pub fn load_unsigned(&mut self) -> u64 {
        self.load(opcode::UNSIGNED, |reader| reader.length().map(|number| number as u64))
            .unwrap_or(0)
    }

    /// Loads a number of 8 bytes with a fraction; 0 after a failure.
    pub fn load_double(&mut self) -> f64 {
        let read = |reader: &mut RdbReader<'b>| reader.bytes(8).and_then(|bytes| bytes.try_into().ok());
        self.load(opcode::DOUBLE, read).map_or(0.0, f64::from_le_bytes)
    }

    /// Loads a number of 4 bytes with a fraction; 0 after a failure.
    pub fn load_float(&mut self) -> f32 {
        let read = |reader: &mut RdbReader<'b>| reader.bytes(4).and_then(|bytes| bytes.try_into().ok());
        self.load(opcode::FLOAT, read).map_or(0.0, f32::from_le_bytes)
    }

    /// Loads a string; `None` after a failure.
    pub fn load_string(&mut self) -> Option<Vec<u8>> {
        use weft_rdb::strings::ParsedString;
        let parsed = self.load(opcode::STRING, RdbReader::string)?;
        Some(match parsed {
            ParsedString::Int(number) => number.to_string().into_bytes(),
            ParsedString::Bytes(bytes) => bytes.to_vec(),
            ParsedString::Decompressed(bytes) => bytes,
        })
    }

    /// Reads the opcode of a value's end, which is not the module's. Returns `false` if there is something else.
    pub fn load_end(&mut self) -> bool {
        match &mut self.transfer {
            Transfer::Load { reader, .. } => reader.length() == Some(usize::from(opcode::END)),
            Transfer::Save { .. } | Transfer::Rewrite { .. } => false,
        }
    }

    /// Returns the bytes that were not read.
    pub fn remaining_bytes(&self) -> usize {
        match &self.transfer {
            Transfer::Load { reader, .. } => reader.remaining_bytes(),
            Transfer::Save { .. } | Transfer::Rewrite { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests;
