//! RDB files: all data, and other state that outlives the process, in one file.
//!
//! ```text
//! magic and version   "REDIS" and 0001 to 0011, or "VALKEY" and 080
//! records             a byte for the kind, then
//!   FA                name, text: a fact about the file (AUX)
//!   F5                text: a library of functions
//!   FE                number: the database of the keys that follow
//!   FB                numbers: keys and keys with an expiry of that database
//!   F4                numbers: slot, its keys, those with an expiry
//!   FD, FC            the next key's expiry: s (4 bytes), ms (8 bytes) since the Unix epoch
//!   F8, F9            the next key's idle time (number, s), its use frequency (1 byte)
//!   type              key, value: see the codecs of the types
//!   FF                the end
//! checksum            CRC-64 of everything before, little-endian, since version 5; 0 if there is none
//! ```
//!
//! A file is read through a window ([`source`]) that holds one record at a time: the size of a record is computed first
//! ([`value_length`]), then the codec of its type gets exactly these bytes. So memory beyond the data itself is bounded
//! by the largest value, and a truncated or damaged file ends in an error that names the offset.

mod buffered_writer;
mod error;
mod file;
mod load;
mod rewrite_commands;
mod save;
mod source;
mod value_length;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

pub use buffered_writer::BufferedWriter;
pub use error::{Fault, LoadError};
pub use file::DumpFile;
pub use load::{Destination, Loaded, Loader, OnKeyDropped, Opened, Position, ProgressCallback, delay, load};
pub use rewrite_commands::spell_out;
pub use save::{Contents, Format, Head, Key, Style, save, write_database};
pub use source::Source;
pub use value_length::{is_empty, module_name, skip_value};

/// Bytes of the magic and the version.
pub const MAGIC_BYTES: usize = 9;

/// Marks of records that are no keys.
pub mod opcode {
    /// A migration of slots that was under way.
    pub const SLOT_IMPORT: u8 = 243;
    /// The number of keys of the next slot.
    pub const SLOT_INFO: u8 = 244;
    /// A library of functions.
    pub const FUNCTION: u8 = 245;
    /// A function, in the form before its release.
    pub const FUNCTION_BEFORE_RELEASE: u8 = 246;
    /// Data that a module saved besides keys.
    pub const MODULE: u8 = 247;
    /// The idle time of the next key.
    pub const IDLE: u8 = 248;
    /// The use frequency of the next key.
    pub const FREQUENCY: u8 = 249;
    /// A note about the file.
    pub const AUX: u8 = 250;
    /// The number of keys of the next database.
    pub const DATABASE_SIZE: u8 = 251;
    /// The expiry of the next key, in ms.
    pub const EXPIRY_MS: u8 = 252;
    /// The expiry of the next key, in s.
    pub const EXPIRY_S: u8 = 253;
    /// The database of the keys that follow.
    pub const DATABASE: u8 = 254;
    /// The end.
    pub const END: u8 = 255;
}

/// The status of dumps, for INFO and for the decision when the next one is due.
pub struct Status {
    /// The time of the last dump, or of the server's start, in seconds since the Unix epoch.
    pub last_save_s: AtomicU64,
    /// The count of changes when the last dump was written.
    changes_saved: AtomicU64,
    /// Dumps asked for.
    pub saves: AtomicU64,
    /// Keys that the last load brought.
    pub keys_loaded: AtomicU64,
    /// Keys that the last load dropped, as they had expired.
    pub keys_expired: AtomicU64,
    /// Set while a load is under way.
    pub loading: AtomicBool,
    /// Set if the last background dump failed.
    pub last_failed: AtomicBool,
    /// The start of the last background dump, in seconds since the Unix epoch.
    pub last_try_s: AtomicU64,
    /// The duration of the last background dump in seconds; -1 before the first one.
    pub last_took_s: AtomicI64,
    /// Bytes that old states of keys took while it was written.
    pub last_kept_bytes: AtomicU64,
    /// Set if a background dump must start as soon as no other snapshot is under way.
    pub scheduled: AtomicBool,
    /// Set while a background thread is about to start one, because of that or of a save point.
    pub asked: AtomicBool,
}

impl Default for Status {
    fn default() -> Self {
        Status {
            last_save_s: AtomicU64::new(0),
            changes_saved: AtomicU64::new(0),
            saves: AtomicU64::new(0),
            keys_loaded: AtomicU64::new(0),
            keys_expired: AtomicU64::new(0),
            loading: AtomicBool::new(false),
            last_failed: AtomicBool::new(false),
            last_try_s: AtomicU64::new(0),
            last_took_s: AtomicI64::new(-1),
            last_kept_bytes: AtomicU64::new(0),
            scheduled: AtomicBool::new(false),
            asked: AtomicBool::new(false),
        }
    }
}

impl Status {
    /// Notes that everything up to `changes` changes is in a dump.
    pub fn saved(&self, now_s: u64, changes: u64) {
        self.changes_saved.store(changes, Ordering::Relaxed);
        self.last_save_s.store(now_s, Ordering::Relaxed);
        self.last_failed.store(false, Ordering::Relaxed);
    }

    /// Changes that are in no dump, of `changes` in all.
    pub fn unsaved(&self, changes: u64) -> u64 {
        changes.saturating_sub(self.changes_saved.load(Ordering::Relaxed))
    }

    /// Notes what a load brought.
    pub fn loaded(&self, loaded: &Loaded) {
        self.keys_loaded.store(loaded.keys, Ordering::Relaxed);
        self.keys_expired.store(loaded.expired, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
