//! RDB files: all data, and other state that outlives the process, in one file.
//!
//! ```text
//! magic and version   "REDIS" and 0001 to 0011, or "VALKEY" and 080
//! records             an opcode or a type, then
//!   FA                name, text: an auxiliary field about the file (AUX)
//!   F5                text: a function library
//!   FE                number: the database of the keys that follow
//!   FB                numbers: keys and keys with an expiry of that database
//!   F4                numbers: slot, its keys, those with an expiry
//!   F7                number: type of a module, then elements: its data besides the keys
//!   FD, FC            the expiry of the next key: s (4 bytes), ms (8 bytes) since the epoch
//!   F8, F9            the idle time of the next key (number, s), its frequency of use (1 byte)
//!   type              key, value: see the codecs of the types
//!   FF                the end
//! checksum            CRC-64 of all preceding bytes, little-endian, since version 5; 0 if there is none
//! ```
//!
//! A file is read through a window ([`source`]). The size of a record is determined first ([`value_length`]). Then the
//! codec of its type gets exactly these bytes. So a truncated or damaged file results in an error that states the
//! offset. One thread reads the records ([`reader`]) and passes the keys on in batches, undecoded ([`batch`]), to the
//! threads that decode and insert them ([`insert`], [`loader_threads`]). The memory needed beyond the data itself is
//! bounded by the largest value and a few megabytes.

mod batch;
mod buffered_writer;
mod error;
mod file;
mod in_flight;
mod insert;
mod load;
mod loader_threads;
mod module_records;
mod reader;
mod rewrite_commands;
mod save;
mod source;
mod value_length;

pub use buffered_writer::{BufferedWriter, RdbChecksum};
pub use error::{RdbFault, RdbFilePurpose, RdbLoadError};
pub use file::{RdbFile, sync_directory_of};
pub use in_flight::{InFlightBytes, InFlightShare};
pub use load::{
    LoadDestination, LoadedFile, OnKeyDropped, ProgressCallback, RdbInput, RdbLoader, StoredReplicationPosition,
    delay_load, load,
};
pub use loader_threads::LoadThreads;
pub use module_records::{
    DecodedRecords, ModuleEncodeFailed, ModuleRecordForm, ModuleRecords, UndecodedRecord, decode, decode_in_place,
    encode,
};
pub use rewrite_commands::{RdbToCommands, rewrite_to_commands};
pub use save::{
    KeyDelay, KeyEncodingOptions, RdbFormat, RdbHeader, SaveContents, SavedKey, UnfinishedImport, save, temporary_name,
    write_database,
};
pub use source::RdbSource;
pub use value_length::{is_empty_value, module_name, skip_value};

use weft_os::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The length of the magic and the version in bytes.
pub const MAGIC_BYTES: usize = 9;
/// The last version of files with the magic REDIS.
const LAST_SHARED_VERSION: u32 = 11;

/// The opcodes of records that are not keys.
pub mod opcode {
    /// Commands that create a key with a value of a module. Only the server itself reads files with this.
    pub const COMMANDS: u8 = 242;
    /// A running migration of slots.
    pub const SLOT_IMPORT: u8 = 243;
    /// The number of keys of the next slot.
    pub const SLOT_INFO: u8 = 244;
    /// A function library.
    pub const FUNCTION: u8 = 245;
    /// A function library in the format used before the first release of functions.
    pub const FUNCTION_BEFORE_RELEASE: u8 = 246;
    /// Data of a module that is not a key.
    pub const MODULE: u8 = 247;
    /// The idle time of the next key.
    pub const IDLE_TIME: u8 = 248;
    /// The use frequency of the next key.
    pub const FREQUENCY: u8 = 249;
    /// An auxiliary field about the file.
    pub const AUX: u8 = 250;
    /// The number of keys of the next database.
    pub const DATABASE_SIZE: u8 = 251;
    /// The expiry of the next key in milliseconds.
    pub const EXPIRY_MS: u8 = 252;
    /// The expiry of the next key in seconds.
    pub const EXPIRY_S: u8 = 253;
    /// The database of the keys that follow.
    pub const DATABASE: u8 = 254;
    /// The end of the file.
    pub const END: u8 = 255;
}

/// The status of RDB saves and loads. INFO reports it, and it determines when the next save is due.
pub struct SaveStatus {
    /// The time of the last save or of the start of the server, in seconds since the Unix epoch.
    pub last_save_s: AtomicU64,
    /// The value of the change counter at the last save.
    changes_saved: AtomicU64,
    /// The number of saves started.
    pub saves: AtomicU64,
    /// The number of keys that the last load read.
    pub keys_loaded: AtomicU64,
    /// The number of expired keys that the last load dropped.
    pub keys_expired: AtomicU64,
    /// Set while data is being loaded.
    pub is_loading: AtomicBool,
    /// `true` if the last background save failed.
    pub has_last_save_failed: AtomicBool,
    /// The start of the last background save, in seconds since the Unix epoch.
    pub last_try_s: AtomicU64,
    /// The duration of the last background save in seconds; -1 before the first one.
    pub last_duration_s: AtomicI64,
    /// The number of bytes that before-images took during the last background save.
    pub last_before_image_bytes: AtomicU64,
    /// `true` if a background save should start as soon as no other snapshot is running.
    pub is_scheduled: AtomicBool,
    /// `true` if a background thread is about to start a save.
    pub is_requested: AtomicBool,
}

impl Default for SaveStatus {
    fn default() -> Self {
        SaveStatus {
            last_save_s: AtomicU64::new(0),
            changes_saved: AtomicU64::new(0),
            saves: AtomicU64::new(0),
            keys_loaded: AtomicU64::new(0),
            keys_expired: AtomicU64::new(0),
            is_loading: AtomicBool::new(false),
            has_last_save_failed: AtomicBool::new(false),
            last_try_s: AtomicU64::new(0),
            last_duration_s: AtomicI64::new(-1),
            last_before_image_bytes: AtomicU64::new(0),
            is_scheduled: AtomicBool::new(false),
            is_requested: AtomicBool::new(false),
        }
    }
}

impl SaveStatus {
    /// Records that the first `changes` changes are saved.
    pub fn record_save(&self, now_s: u64, changes: u64) {
        // A save in exclusive mode may end before a background save that has begun earlier, and contains more.
        self.changes_saved.fetch_max(changes, Ordering::Relaxed);
        self.last_save_s.store(now_s, Ordering::Relaxed);
        self.has_last_save_failed.store(false, Ordering::Relaxed);
    }

    /// The number of changes that are not saved, of `changes` in total.
    pub fn unsaved_changes(&self, changes: u64) -> u64 {
        changes.saturating_sub(self.changes_saved.load(Ordering::Relaxed))
    }

    /// Records the figures of a load.
    pub fn record_load(&self, loaded: &LoadedFile) {
        self.keys_loaded.store(loaded.keys, Ordering::Relaxed);
        self.keys_expired.store(loaded.expired, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
