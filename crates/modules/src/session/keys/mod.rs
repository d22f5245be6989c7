//! Access to keys and their values, as the functions of the API use it.
//!
//! A key is located once, when the module opens it ([`KeySession::locate_key`]). Its identity has everything that the
//! later functions need to find the value again, so that no function of the API hashes the name. Between two functions
//! nothing of the value is borrowed: each function looks the value up, and finds what other functions left.
//!
//! A function that changes a value makes before-images, updates counts, and wakes blocked clients. It is not
//! propagated, publishes no event but `new`, and marks no watches: the module closes the key for that, or says it.

#[cfg(test)]
pub mod fake;
mod hash;
mod lifetime;
mod list;
mod scan;
mod sorted_set;
mod stream;
mod string;

pub use hash::HashSession;
pub use lifetime::LifetimeSession;
pub use list::ListSession;
pub use scan::{ElementVisitor, ScanSession, ValueScan};
pub use sorted_set::{
    MemberPosition, MemberRemoval, RangeEnd, ScoreChange, ScoreConditions, ScoreUpdate, SortedSetRange,
    SortedSetSession,
};
pub use stream::{StreamAddError, StreamSession};
pub use string::{StringBytes, StringSession};

use weft_base::{DbIndex, SlotIndex};

/// The type of a key's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyKind {
    /// There is no value.
    #[default]
    Empty,
    /// A string.
    String,
    /// A list.
    List,
    /// A hash.
    Hash,
    /// A set.
    Set,
    /// A sorted set.
    SortedSet,
    /// A value of a module's type.
    Module,
    /// A stream.
    Stream,
}

/// The place of a key in the keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyIdentity {
    /// The database.
    pub db: DbIndex,
    /// The hash of the name.
    pub hash: u64,
    /// The slot.
    pub slot: SlotIndex,
    /// The index of the slot's lease, if the session holds leases of single slots.
    pub lease: u32,
}

/// A key in a call of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionKey<'k> {
    /// The name.
    pub name: &'k [u8],
    /// Its place.
    pub identity: &'k KeyIdentity,
    /// `true` if the key had a value when the module looked last. Without one, what is stored has expired, and a
    /// function that creates a value deletes it first.
    pub has_value: bool,
}

bitflags::bitflags! {
    /// The effects of a lookup that do not happen.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct LookupOptions: u32 {
        /// The lookup is no use of the key.
        const NO_TOUCH = 1;
        /// A miss of the key is no event.
        const NO_EVENT = 1 << 1;
        /// The lookup is neither a hit nor a miss.
        const NO_STATISTICS = 1 << 2;
        /// A key that has expired stays.
        const NO_EXPIRY = 1 << 3;
    }
}

/// Access to keys as such.
pub trait KeySession:
    StringSession + ListSession + HashSession + SortedSetSession + StreamSession + LifetimeSession + ScanSession
{
    /// Returns the place of a key. `None` if this session may not access the key: the command has not declared it, or
    /// there is no such database.
    fn locate_key(&mut self, db: u32, name: &[u8], is_write: bool) -> Option<KeyIdentity>;

    /// Looks a key up as a reader does.
    fn open_for_reading(&mut self, key: SessionKey<'_>, options: LookupOptions) -> KeyKind;

    /// Looks a key up as a writer does. A key that has expired is deleted first.
    fn open_for_writing(&mut self, key: SessionKey<'_>, options: LookupOptions) -> KeyKind;

    /// Returns the type of what is stored, without counting that as a lookup.
    fn stored_kind(&mut self, key: SessionKey<'_>) -> KeyKind;

    /// Returns the number of elements of a collection, or of bytes of a string. It is 0 without a value, and for a
    /// value of a module's type.
    fn value_length(&mut self, key: SessionKey<'_>) -> usize;

    /// Deletes a key. With `is_lazy`, another thread frees its memory.
    fn delete_key(&mut self, key: SessionKey<'_>, is_lazy: bool);

    /// Informs the clients that watch or cache a key that it has changed.
    fn signal_modified_key(&mut self, key: SessionKey<'_>);
}
