//! Sets of arbitrary members: records and their index.

use crate::records::{self, Record, RecordShape, Records, hash_of};
use crate::relocation::{PartCursor, PartMover};

/// A set whose members are stored as records.
#[derive(Clone, Debug)]
pub struct SetTable(Records);

impl Default for SetTable {
    fn default() -> Self {
        SetTable(Records::new(RecordShape::Members))
    }
}

impl SetTable {
    /// Creates an empty table with capacity for `members` members of `bytes` bytes in total.
    pub fn with_capacity(members: usize, bytes: usize) -> Self {
        SetTable(Records::with_capacity(RecordShape::Members, members, bytes))
    }

    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of allocated bytes.
    pub fn allocated_bytes(&self) -> usize {
        self.0.allocated_bytes()
    }

    /// Moves the records; see [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        self.0.move_parts(from, mover)
    }

    /// Returns `true` if `member` is present.
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        self.0.find(hash_of(member), member).is_some()
    }

    /// The records and their index, so that callers can inspect their memory addresses.
    pub fn records(&self) -> &Records {
        &self.0
    }

    /// Adds a member. Returns `true` if it was not present.
    #[inline]
    pub fn insert(&mut self, member: &[u8]) -> bool {
        let hash = hash_of(member);
        let missing = self.0.find(hash, member).is_none();
        if missing {
            self.0.insert(hash, &Record::member(member));
        }
        missing
    }

    /// Adds a member that is known not to be present.
    pub fn insert_new(&mut self, member: &[u8]) {
        self.0.insert(hash_of(member), &Record::member(member));
    }

    /// Removes a member. Returns `true` if it was present.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let hash = hash_of(member);
        let found = self.0.find(hash, member);
        if let Some(id) = found {
            self.0.remove(hash, id, |_, _, _| {});
        }
        found.is_some()
    }

    /// Frees spare capacity after many members were added.
    pub fn shrink(&mut self) {
        self.0.shrink(|_, _, _| {});
    }

    /// Calls `visit` for every member, in memory order.
    #[inline]
    pub fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a [u8])) {
        self.0.for_each(|record| visit(record.key));
    }

    /// Iterates over all members in memory order.
    #[inline]
    pub fn iter(&self) -> SetTableIter<'_> {
        SetTableIter(self.0.iter())
    }

    /// Returns a random member; see [`super::random`].
    pub fn random_member(&self, random: &mut impl FnMut(usize) -> usize) -> Option<&[u8]> {
        self.0.random_record(random).map(|id| self.0.record(id).key)
    }

    /// Visits members in steps as [`Records::scan`] does.
    pub fn scan(&self, cursor: u64, at_least: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.0.scan(cursor, at_least, &mut |_, record| visit(record.key))
    }
}

/// An iterator over members in memory order.
#[derive(Clone)]
pub struct SetTableIter<'a>(records::RecordIter<'a>);

impl<'a> Iterator for SetTableIter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.next().map(|(_, record)| record.key)
    }
}
