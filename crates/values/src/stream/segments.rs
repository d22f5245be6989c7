//! The segments of a large block, by which searches and walks over many deleted entries take bounded time.
//!
//! ```text
//!   run of a block:   | e e e e e e | e e d d e | d d d d d d d d d d d d d | e d d d d |
//!   segments:           6 live        3 live      forgotten                   1 live
//! ```
//!
//! Blocks usually have a few kilobytes, and walking over the entries of one of them is fast. But the limits of blocks
//! are settings, and the blocks of a file may have any size. The entries of a large block are divided into segments of
//! about the size of a usual block. A segment without live entries is forgotten, so no walk enters it. A large
//! block therefore takes as much time as a sequence of usual blocks, of which those without live entries are removed.
//! The bytes of the block do not change, because files contain them.

use std::ops::Range;

use super::StreamId;
use super::sorted_chunks::{ChunkPosition, SortedChunks};

/// The maximum size of a segment in bytes, unless a single entry is larger.
const SEGMENT_BYTES: usize = if cfg!(test) { 100 } else { 4096 };

/// Consecutive entries, some of which are live.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The ID of the first entry.
    first_id: StreamId,
    /// The offset of the first entry in the run.
    start: u32,
    /// The offset of the end of the last entry.
    end: u32,
    /// The number of entries that are not deleted.
    live: u32,
}

impl Segment {
    fn new(id: StreamId, entry: &Range<usize>, is_live: bool) -> Self {
        Segment {
            first_id: id,
            start: entry.start as u32,
            end: entry.end as u32,
            live: u32::from(is_live),
        }
    }

    /// Adds an entry if it follows the last one and if the segment has room for it. Returns `true` if it did.
    fn extend(&mut self, entry: &Range<usize>, is_live: bool) -> bool {
        let fits = self.end as usize == entry.start && entry.end - self.start as usize <= SEGMENT_BYTES;
        if fits {
            self.end = entry.end as u32;
            self.live += u32::from(is_live);
        }
        fits
    }

    fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The segments that have live entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments(SortedChunks<Segment>);

impl Segments {
    /// Divides entries into segments. Each entry is given by its ID, its position in the run, and `true` if it is live.
    pub fn of_entries(entries: impl Iterator<Item = (StreamId, Range<usize>, bool)>) -> Self {
        let mut segments = Segments::default();
        let mut current: Option<Segment> = None;
        for (id, entry, is_live) in entries {
            let extended = current.as_mut().is_some_and(|segment| segment.extend(&entry, is_live));
            if !extended {
                segments.push(current.replace(Segment::new(id, &entry, is_live)));
            }
        }
        segments.push(current);
        segments
    }

    /// Adds a segment unless it has no live entries.
    fn push(&mut self, segment: Option<Segment>) {
        if let Some(segment) = segment.filter(|segment| segment.live > 0) {
            self.0.push(segment);
        }
    }

    /// Adds a live entry at the end of the run.
    pub fn append(&mut self, id: StreamId, entry: Range<usize>) {
        let extended = self.0.last_mut().is_some_and(|last| last.extend(&entry, true));
        if !extended {
            self.push(Some(Segment::new(id, &entry, true)));
        }
    }

    /// Accounts for the deletion of the live entry at an offset.
    pub fn remove_live(&mut self, offset: usize) {
        let at = self.0.last_before(|segment| segment.start as usize <= offset);
        debug_assert!(at.is_some(), "a live entry is in a segment");
        let Some(at) = at else { return };
        let segment = self.0.item_mut(at);
        debug_assert!(segment.live > 0 && offset < segment.end as usize);
        segment.live -= 1;
        if segment.live == 0 {
            self.0.remove(at);
        }
    }

    /// Returns the position of the first segment that ends after an offset, without the part before that offset.
    pub fn range_from(&self, offset: usize) -> Option<Range<usize>> {
        let at = self.0.first_after(|segment| segment.end as usize <= offset)?;
        let range = self.0.item(at).range();
        Some(range.start.max(offset)..range.end)
    }

    /// Returns the position of the last segment that begins before an offset, without the part after that offset.
    pub fn range_before(&self, offset: usize) -> Option<Range<usize>> {
        let at = self.0.last_before(|segment| (segment.start as usize) < offset)?;
        let range = self.0.item(at).range();
        Some(range.start..range.end.min(offset))
    }

    fn position_of(&self, id: StreamId) -> Option<ChunkPosition> {
        self.0.last_before(|segment| segment.first_id <= id)
    }

    /// Returns the position of the last segment whose first ID is not larger than `id`. It contains the live entry with
    /// this ID if that exists.
    pub fn range_of(&self, id: StreamId) -> Option<Range<usize>> {
        self.position_of(id).map(|at| self.0.item(at).range())
    }

    /// Iterates over the segments that may contain live entries with IDs from `start` to `end`: the size of each in
    /// bytes, and the number of its live entries.
    pub fn sizes(&self, start: StreamId, end: StreamId) -> impl DoubleEndedIterator<Item = (usize, u64)> {
        let first = self.position_of(start).or_else(|| self.0.first_after(|_| false));
        let bounds = first.zip(self.position_of(end)).filter(|(first, last)| first <= last);
        bounds
            .into_iter()
            .flat_map(move |(first, last)| self.0.between(first, last))
            .map(|segment| (segment.range().len(), u64::from(segment.live)))
    }
}
