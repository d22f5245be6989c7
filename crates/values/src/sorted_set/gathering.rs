//! A collection of members that is then built into a sorted set in one operation.

use std::collections::HashSet;

use crate::listpack::{DECIMAL_MAX_BYTES, Element};

use super::draft::{DetachedSortedSet, SortedSetLimits};
use super::leaf::ScoreOrder;

/// Members with their scores, in any order.
#[derive(Clone, Debug, Default)]
pub struct MemberBuilder {
    bytes: Vec<u8>,
    members: Vec<SortedMembers>,
}

#[derive(Clone, Copy, Debug)]
struct SortedMembers {
    start: usize,
    length: usize,
    score: f64,
}

impl MemberBuilder {
    /// Creates an empty collection with capacity for `members` members.
    pub fn with_capacity(members: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(members * 16),
            members: Vec::with_capacity(members),
        }
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a member that is not present yet.
    pub fn push(&mut self, member: &[u8], score: f64) {
        self.members.push(SortedMembers {
            start: self.bytes.len(),
            length: member.len(),
            score,
        });
        self.bytes.extend_from_slice(member);
    }

    /// Adds a member in the form in which a packed set stores it.
    pub fn push_element(&mut self, member: Element<'_>, score: f64) {
        self.push(member.text(&mut [0; DECIMAL_MAX_BYTES]), score);
    }

    /// Returns a member by its number, in insertion order.
    pub fn member(&self, number: usize) -> &[u8] {
        self.text(self.members[number])
    }

    /// Returns the score of a member by its number, for modification.
    pub fn score_mut(&mut self, number: usize) -> &mut f64 {
        &mut self.members[number].score
    }

    fn text(&self, gathered: SortedMembers) -> &[u8] {
        &self.bytes[gathered.start..gathered.start + gathered.length]
    }

    /// Returns `true` if some member is present twice.
    pub fn has_duplicates(&self) -> bool {
        let mut seen = HashSet::with_capacity(self.members.len());
        !self.members.iter().all(|gathered| seen.insert(self.text(*gathered)))
    }

    /// Returns the members with their scores, in the order of a sorted set.
    pub fn sorted(&self) -> Vec<(&[u8], f64)> {
        let mut members: Vec<(&[u8], f64)> = self
            .members
            .iter()
            .map(|gathered| (self.text(*gathered), gathered.score))
            .collect();
        members.sort_unstable_by(|a, b| a.1.cmp_score(b.1).then_with(|| a.0.cmp(b.0)));
        members
    }

    /// Builds the sorted set from the members, which must be distinct.
    pub fn build(self, limits: SortedSetLimits) -> DetachedSortedSet {
        DetachedSortedSet::from_sorted(&self.sorted(), limits)
    }
}
