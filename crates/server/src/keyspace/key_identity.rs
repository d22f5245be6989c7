//! The identities of keys: of a key in a plan, of one that is written, and of one that a replica expires by itself.

use weft_base::{DbIndex, SlotIndex};

use super::hash::KeyHasher;

/// A key of a plan: the index of its argument, its hash, and the index of its slot's lease.
#[derive(Clone, Copy, Debug)]
pub struct PlannedKey {
    /// The hash of the key.
    pub hash: u64,
    /// The index of the argument that names the key.
    pub argument: u32,
    /// The slot of the key.
    pub slot: SlotIndex,
    /// `true` if the command may write the key.
    pub is_write: bool,
    /// The index into the held leases. Valid once the leases are held.
    pub lease: u32,
}

impl PlannedKey {
    /// The key that is argument `argument`, with its hash.
    #[inline]
    pub const fn from_argument(argument: usize, hash: u64, write: bool) -> Self {
        PlannedKey {
            hash,
            argument: argument as u32,
            slot: SlotIndex::from_index(KeyHasher::slot(hash)),
            is_write: write,
            lease: 0,
        }
    }

    /// A key that no argument names, for reading.
    pub const fn unnamed(hash: u64) -> Self {
        PlannedKey {
            hash,
            argument: u32::MAX,
            slot: SlotIndex::from_index(KeyHasher::slot(hash)),
            is_write: false,
            lease: 0,
        }
    }
}

/// The identity of a key as [`KeyWrite`](super::access::KeyWrite) uses it.
#[derive(Clone, Copy)]
pub struct NamedKey<'k> {
    /// The key's name.
    pub name: &'k [u8],
    /// The hash of its name.
    pub hash: u64,
    /// The slot of the key.
    pub slot: SlotIndex,
}

/// A key and the time at which it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalExpiry {
    /// The key's database.
    pub db: DbIndex,
    /// The key's slot.
    pub slot: SlotIndex,
    /// The key's hash.
    pub hash: u64,
    /// The key's name.
    pub name: Box<[u8]>,
    /// The time at which the key expires, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}
