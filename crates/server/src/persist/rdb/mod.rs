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

mod error;
mod extent;
mod load;
mod save;
mod sink;
mod source;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use error::{Fault, LoadError};
pub use load::{Destination, Loaded, Loader, Opened, load};
pub use save::{Contents, save};

/// Bytes of the magic and the version.
const MAGIC_BYTES: usize = 9;

/// Marks of records that are no keys.
mod opcode {
    pub const SLOT_IMPORT: u8 = 243;
    pub const SLOT_INFO: u8 = 244;
    pub const FUNCTION: u8 = 245;
    pub const FUNCTION_BEFORE_RELEASE: u8 = 246;
    pub const MODULE: u8 = 247;
    pub const IDLE: u8 = 248;
    pub const FREQUENCY: u8 = 249;
    pub const AUX: u8 = 250;
    pub const DATABASE_SIZE: u8 = 251;
    pub const EXPIRY_MS: u8 = 252;
    pub const EXPIRY_S: u8 = 253;
    pub const DATABASE: u8 = 254;
    pub const END: u8 = 255;
}

/// What INFO tells about dumps, and what dumps hold beside keys.
#[derive(Default)]
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
}

impl Status {
    /// Notes that everything up to `changes` changes is in a dump.
    pub fn saved(&self, now_s: u64, changes: u64) {
        self.changes_saved.store(changes, Ordering::Relaxed);
        self.last_save_s.store(now_s, Ordering::Relaxed);
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
