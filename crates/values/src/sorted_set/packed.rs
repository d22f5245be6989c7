//! The packed form of a small sorted set: consecutive pairs of member and score, in order.
//!
//! ```text
//!   +------+-------------------+------------------------------------------+
//!   | kind | members           | member | score | member | score | ...     |
//!   | 1    | 2, little-endian  | elements of a run, see `listpack`        |
//!   +------+-------------------+------------------------------------------+
//! ```
//!
//! A score that is an integer of a magnitude up to 2^53 is stored as an integer, which takes 2 to 9 bytes. Any other
//! score is stored as a string of 8 bytes: the little-endian bytes of the floating-point number. (In files it is stored
//! in decimal.)

use std::ops::Range;

use crate::listpack::{DECIMAL_MAX_BYTES, Element, ElementRun, Needle, push_element};
use crate::packed::PackedKind;

use super::leaf::ScoreOrder;
use super::range::{LexRange, ScoreRange};

/// The number of bytes before the run.
const HEADER_BYTES: usize = 3;
/// The maximum magnitude up to which every integer has an exact floating-point representation.
const EXACT_MAX: f64 = (1u64 << 53) as f64;

/// Returns the stored form of a score. If it is not an integer, it is written into `raw`.
fn stored_score(score: f64, raw: &mut [u8; 8]) -> Element<'_> {
    let integer = score as i64;
    if score.abs() <= EXACT_MAX && integer as f64 == score {
        Element::Int(integer)
    } else {
        *raw = score.to_le_bytes();
        Element::Bytes(raw)
    }
}

fn read_score(element: Element<'_>) -> f64 {
    match element {
        Element::Int(integer) => integer as f64,
        Element::Bytes(raw) => raw.try_into().map_or(0.0, f64::from_le_bytes),
    }
}

/// A packed sorted set.
#[derive(Clone, Copy, Debug)]
pub struct PackedSortedSet<'a> {
    run: ElementRun<'a>,
    len: usize,
}

/// A member, its score, and the offsets in the run of the start and the end of the pair.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    member: Element<'a>,
    score: f64,
    start: usize,
    end: usize,
}

impl<'a> PackedSortedSet<'a> {
    /// Creates a view of the bytes of a packed sorted set.
    ///
    /// # Panics
    ///
    /// Panics if there are too few bytes for a header.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        debug_assert_eq!(PackedKind::of(bytes), PackedKind::SortedSet);
        let (header, run) = bytes.split_at(HEADER_BYTES);
        Self {
            run: ElementRun::new(run),
            len: usize::from(u16::from_le_bytes([header[1], header[2]])),
        }
    }

    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn entry_at(&self, start: usize) -> Option<Entry<'a>> {
        let (member, middle) = self.run.step(start)?;
        let (score, end) = self.run.step(middle)?;
        Some(Entry {
            member,
            score: read_score(score),
            start,
            end,
        })
    }

    fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let entry = self.entry_at(at)?;
            at = entry.end;
            Some(entry)
        })
    }

    /// Returns the rank of a member and its score.
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        let (rank, entry) = self.find(member)?;
        Some((rank, entry.score))
    }

    /// Returns the score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        let at = self.run.find(member, 2)?;
        Some(self.entry_at(at)?.score)
    }

    fn find(&self, member: &[u8]) -> Option<(usize, Entry<'a>)> {
        let needle = Needle::new(member);
        self.entries()
            .enumerate()
            .find(|(_, entry)| needle.matches(entry.member))
    }

    /// Returns the first offset whose entry is not before (score, member).
    fn insertion_offset(&self, score: f64, member: &[u8]) -> usize {
        let mut scratch = [0; DECIMAL_MAX_BYTES];
        let found = self.entries().find(|entry| {
            let order = entry.score.cmp_score(score);
            order.then_with(|| entry.member.text(&mut scratch).cmp(member)).is_ge()
        });
        found.map_or(self.run.bytes().len(), |entry| entry.start)
    }

    fn ranks(
        &self,
        mut starts: impl FnMut(Entry<'a>) -> bool,
        mut ends: impl FnMut(Entry<'a>) -> bool,
    ) -> Range<usize> {
        let mut entries = self.entries().enumerate();
        let Some((start, first)) = entries.find(|(_, entry)| !starts(*entry)) else {
            return self.len..self.len;
        };
        if !ends(first) {
            return start..start;
        }
        let behind = entries.find(|(_, entry)| !ends(*entry));
        start..behind.map_or(self.len, |(rank, _)| rank)
    }

    /// Returns the ranks of the members whose scores are in a range.
    pub fn ranks_of_scores(&self, range: &ScoreRange) -> Range<usize> {
        self.ranks(
            |entry| range.is_before_start(entry.score),
            |entry| range.is_before_end(entry.score),
        )
    }

    /// Returns the ranks of the members in a range.
    pub fn ranks_of_lex(&self, range: &LexRange<'_>) -> Range<usize> {
        let mut scratch = [0; DECIMAL_MAX_BYTES];
        let mut other = [0; DECIMAL_MAX_BYTES];
        self.ranks(
            |entry| range.is_before_start(entry.member.text(&mut scratch)),
            |entry| range.is_before_end(entry.member.text(&mut other)),
        )
    }

    /// Iterates over the members in a range of ranks with their scores, in ascending order or, with `reverse`, in
    /// descending order.
    pub fn iter_ranks(&self, ranks: Range<usize>, reverse: bool) -> PackedSortedSetIter<'a> {
        let ranks = ranks.start.min(self.len)..ranks.end.min(self.len);
        let first = if reverse { ranks.end } else { ranks.start };
        let bytes = self.run.bytes().len();
        let offset = self.run.offset_of(2 * first, 2 * self.len).unwrap_or(bytes);
        PackedSortedSetIter {
            set: *self,
            offset,
            left: ranks.len(),
            reverse,
        }
    }
}

/// An iterator over members and their scores, in order.
#[derive(Clone, Debug)]
pub struct PackedSortedSetIter<'a> {
    set: PackedSortedSet<'a>,
    offset: usize,
    left: usize,
    reverse: bool,
}

impl<'a> Iterator for PackedSortedSetIter<'a> {
    type Item = (Element<'a>, f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        if self.reverse {
            let run = self.set.run;
            self.offset = run.previous_offset(run.previous_offset(self.offset)?)?;
        }
        let entry = self.set.entry_at(self.offset)?;
        if !self.reverse {
            self.offset = entry.end;
        }
        Some((entry.member, entry.score))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// The bytes of a packed sorted set, for modification.
#[derive(Clone, Debug)]
pub struct PackedSortedSetBuf(Vec<u8>);

impl PackedSortedSetBuf {
    /// Copies a packed sorted set.
    pub fn copy_of(bytes: &[u8]) -> Self {
        // Usually one member is added to the copy.
        let mut copy = Vec::with_capacity(bytes.len() + 64);
        copy.extend_from_slice(bytes);
        Self(copy)
    }

    /// Creates an empty packed sorted set.
    pub fn empty() -> Self {
        Self(vec![PackedKind::SortedSet as u8, 0, 0])
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a read-only view.
    #[inline]
    pub fn view(&self) -> PackedSortedSet<'_> {
        PackedSortedSet::new(&self.0)
    }

    fn set_len(&mut self, len: usize) {
        self.0[1..HEADER_BYTES].copy_from_slice(&(len as u16).to_le_bytes());
    }

    /// Appends a member that sorts after all others.
    pub fn push(&mut self, member: &[u8], score: f64) {
        let len = self.view().len();
        push_element(&mut self.0, Element::of(member));
        push_element(&mut self.0, stored_score(score, &mut [0; 8]));
        self.set_len(len + 1);
    }

    /// Adds a member that is not present yet.
    pub fn insert(&mut self, member: &[u8], score: f64) {
        let place = HEADER_BYTES + self.view().insertion_offset(score, member);
        let len = self.view().len();
        if place == self.0.len() {
            self.push(member, score);
            return;
        }
        let mut raw = [0; 8];
        let (member, score) = (Element::of(member), stored_score(score, &mut raw));
        let more = member.run_bytes() + score.run_bytes();
        let end = self.0.len();
        self.0.reserve(more);
        push_element(&mut self.0, member);
        push_element(&mut self.0, score);
        self.0[place..].rotate_right(more);
        debug_assert_eq!(self.0.len(), end + more);
        self.set_len(len + 1);
    }

    /// Changes the score of a member, if it is present.
    pub fn change_score(&mut self, member: &[u8], score: f64) {
        if self.remove(member) {
            self.insert(member, score);
        }
    }

    /// Removes a member. Returns `true` if it was present.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let view = self.view();
        let len = view.len();
        let Some((_, entry)) = view.find(member) else {
            return false;
        };
        let range = HEADER_BYTES + entry.start..HEADER_BYTES + entry.end;
        self.0.drain(range);
        self.set_len(len - 1);
        true
    }

    /// Removes the members in a range of ranks.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        let view = self.view();
        let len = view.len();
        let offset = |rank: usize| {
            let found = view.run.offset_of(2 * rank, 2 * len);
            HEADER_BYTES + found.unwrap_or(view.run.bytes().len())
        };
        let range = offset(ranks.start)..offset(ranks.end);
        self.0.drain(range);
        self.set_len(len - ranks.len());
    }
}
