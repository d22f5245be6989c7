//! Sets of any members: records and their index.

use crate::records::{self, Record, Records, Shape, hash_of};

/// Members as records.
#[derive(Clone, Debug)]
pub struct Table(Records);

impl Default for Table {
    fn default() -> Self {
        Table(Records::new(Shape::Members))
    }
}

impl Table {
    /// An empty table for so many members of so many bytes in all.
    pub fn with_capacity(members: usize, bytes: usize) -> Self {
        Table(Records::with_capacity(Shape::Members, members, bytes))
    }

    /// Members.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes allocated.
    pub fn allocated_bytes(&self) -> usize {
        self.0.allocated_bytes()
    }

    /// Whether this is a member.
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        self.0.find(hash_of(member), member).is_some()
    }

    /// The records and their index, for looking at where they lie.
    pub fn records(&self) -> &Records {
        &self.0
    }

    /// Adds a member. Whether it was missing.
    #[inline]
    pub fn insert(&mut self, member: &[u8]) -> bool {
        let hash = hash_of(member);
        let missing = self.0.find(hash, member).is_none();
        if missing {
            self.0.insert(hash, &Record::member(member));
        }
        missing
    }

    /// Adds a member that is known to be missing.
    pub fn insert_missing(&mut self, member: &[u8]) {
        self.0.insert(hash_of(member), &Record::member(member));
    }

    /// Takes a member out. Whether it was there.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let hash = hash_of(member);
        let found = self.0.find(hash, member);
        if let Some(id) = found {
            self.0.remove(hash, id, |_, _, _| {});
        }
        found.is_some()
    }

    /// Gives back memory that is to spare after many members were added.
    pub fn shrink(&mut self) {
        self.0.shrink(|_, _, _| {});
    }

    /// Visits every member, in the order of memory.
    #[inline]
    pub fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a [u8])) {
        self.0.for_each(|record| visit(record.key));
    }

    /// Every member, in the order of memory.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        Iter(self.0.iter())
    }

    /// Any member; see [`super::random`].
    pub fn random(&self, random: &mut impl FnMut(usize) -> usize) -> Option<&[u8]> {
        self.0.random(random).map(|id| self.0.record(id).key)
    }

    /// Visits members step by step, as [`Records::scan`].
    pub fn scan(&self, cursor: u64, at_least: usize, visit: &mut dyn FnMut(&[u8])) -> u64 {
        self.0.scan(cursor, at_least, &mut |_, record| visit(record.key))
    }
}

/// Members in the order of memory.
#[derive(Clone)]
pub struct Iter<'a>(records::Iter<'a>);

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.next().map(|(_, record)| record.key)
    }
}
