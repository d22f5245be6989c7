//! Walks over the keys of a database, and over the elements of a value.

use super::SessionKey;

/// The position after a step of a walk over a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueScan {
    /// The value has no elements to walk over.
    WrongType,
    /// The walk goes on at this cursor, or has ended if it is 0.
    Next(u64),
    /// A small value was shown at once.
    Whole,
}

/// The function that gets each element: a field with its value, a member, or a member with its score as text.
pub type ElementVisitor<'v> = &'v mut dyn FnMut(&[u8], Option<&[u8]>);

/// Walks over the keys of a database, and over the elements of a value.
pub trait ScanSession {
    /// Returns the number of keys of a database.
    fn database_size(&mut self, db: u32) -> u64;

    /// Calls `visit` with the name of a random key. Returns `false` if there is none, or the session does not hold the
    /// whole keyspace.
    fn random_key(&mut self, db: u32, visit: &mut dyn FnMut(&[u8])) -> bool;

    /// Calls `visit` with the names of some keys from a cursor on, and returns the next cursor, which is 0 at the end.
    /// `None` if the session does not hold the whole keyspace.
    fn scan_database(&mut self, db: u32, cursor: u64, visit: &mut dyn FnMut(&[u8])) -> Option<u64>;

    /// Calls `visit` with some elements of a hash, set or sorted set from a cursor on.
    fn scan_value(&mut self, key: SessionKey<'_>, cursor: u64, visit: ElementVisitor<'_>) -> ValueScan;

    /// Deletes all keys of all databases. With `restarts_log` the append-only file is closed before and rewritten
    /// afterwards. With `is_lazy` another thread frees the memory.
    fn reset_dataset(&mut self, restarts_log: bool, is_lazy: bool);
}
