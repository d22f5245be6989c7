//! RDB files: all data, and what else outlives the process, in one file.
//!
//! ```text
//! magic and version   "REDIS" and 0001 to 0011, or "VALKEY" and 080
//! records             a byte that tells the kind, then
//!   FA                name, text: a note about the file (AUX)
//!   F5                text: a library of functions
//!   FE                number: the database of the keys that follow
//!   FB                numbers: keys and keys that expire of that database
//!   F4                numbers: slot, its keys, those that expire
//!   FD, FC            when the next key expires: s (4 bytes), ms (8 bytes) since the epoch
//!   F8, F9            how long the next key was not used (number, s), how often it was (1 byte)
//!   type              key, value: see the codecs of the types
//!   FF                the end
//! checksum            CRC-64 of everything before, little-endian, since version 5; 0 if there is none
//! ```
//!
//! A file is read through a window ([`source`]) that holds one record at a time: the size of a record is found out
//! first ([`extent`]), then the codec of its type gets exactly these bytes. So memory beyond the data itself is
//! bounded by the largest value, and a file that was cut or damaged ends in an error that tells the place.

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
    /// How many keys of a slot follow.
    pub const SLOT_INFO: u8 = 244;
    /// A library of functions.
    pub const FUNCTION: u8 = 245;
    /// The same, in the form of before there was a release.
    pub const FUNCTION_BEFORE_RELEASE: u8 = 246;
    /// What a module has saved beside keys.
    pub const MODULE: u8 = 247;
    /// How long the next key was not used.
    pub const IDLE: u8 = 248;
    /// How often the next key was used.
    pub const FREQUENCY: u8 = 249;
    /// A note about the file.
    pub const AUX: u8 = 250;
    /// How many keys of a database follow.
    pub const DATABASE_SIZE: u8 = 251;
    /// When the next key expires, ms.
    pub const EXPIRY_MS: u8 = 252;
    /// When the next key expires, s.
    pub const EXPIRY_S: u8 = 253;
    /// The database of the keys that follow.
    pub const DATABASE: u8 = 254;
    /// The end.
    pub const END: u8 = 255;
}

/// What is known about dumps: INFO tells it, and it decides when the next one is due.
pub struct Status {
    /// When the last dump was written, or the server started, seconds since the epoch.
    pub last_save_s: AtomicU64,
    /// The count of changes when the last dump was written.
    changes_saved: AtomicU64,
    /// Dumps asked for.
    pub saves: AtomicU64,
    /// Keys that the last load brought.
    pub keys_loaded: AtomicU64,
    /// Keys that the last load dropped, as they had expired.
    pub keys_expired: AtomicU64,
    /// Whether a load is under way.
    pub loading: AtomicBool,
    /// Whether the last dump in the background failed.
    pub last_failed: AtomicBool,
    /// When the last dump in the background was begun, seconds since the epoch.
    pub last_try_s: AtomicU64,
    /// How long the last dump in the background took, seconds; -1 before the first one.
    pub last_took_s: AtomicI64,
    /// Bytes that old states of keys took while it was written.
    pub last_kept_bytes: AtomicU64,
    /// Whether a dump in the background is to be begun as soon as nothing else is under way.
    pub scheduled: AtomicBool,
    /// Whether a background thread is about to begin one because of that, or of a save point.
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
