//! Indexes of databases.

use std::fmt;

/// The index of a database, as SELECT names it: from 0 to the number of databases (`databases`) less one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DbIndex(usize);

impl DbIndex {
    /// The database that a new client uses. Every server has it.
    pub const FIRST: DbIndex = DbIndex(0);

    /// Creates the index with this number.
    pub const fn new(index: usize) -> DbIndex {
        DbIndex(index)
    }

    /// Accepts the index of one of `databases` databases. Returns `None` if there is no such database.
    pub fn parse(number: i64, databases: usize) -> Option<DbIndex> {
        let index = usize::try_from(number).ok()?;
        (index < databases).then_some(DbIndex(index))
    }

    /// Returns the indexes of the first `databases` databases.
    pub fn all(databases: usize) -> impl DoubleEndedIterator<Item = DbIndex> + ExactSizeIterator + Clone {
        (0..databases).map(DbIndex)
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for DbIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
