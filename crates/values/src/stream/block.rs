//! A block of entries, packed as in one of Valkey's listpacks.
//!
//! ```text
//!   outside the run        the run
//!  +------+------+-------+ +--------+-----+--------+---+---------+---------+--
//!  | live | dead | names | | name 1 | ... | name n | 0 | entry 1 | entry 2 |  ...
//!  +------+------+-------+ +--------+-----+--------+---+---------+---------+--
//!
//!                            +-------+----------+-----------+---------+-----+---------+----------+
//!   an entry with the        | flags | ms delta | seq delta | value 1 | ... | value n | elements |
//!   block's field names      +-------+----------+-----------+---------+-----+---------+----------+
//!
//!                            +-------+----------+-----------+---+--------+---------+-----+----------+
//!   an entry with its own    | flags | ms delta | seq delta | n | name 1 | value 1 | ... | elements |
//!   field names              +-------+----------+-----------+---+--------+---------+-----+----------+
//! ```
//!
//! The field names of the first entry are those of the block. Deltas are relative to the first ID of the block.
//! `elements` is the number of elements of the entry before it, so that entries can be traversed backwards. A listpack
//! in a file begins with the three numbers that are stored outside the run here, where changing them does not move the
//! run.
//!
//! Entries are only appended, and marking an entry as deleted changes a byte in place, so offsets into a run remain
//! valid.
//!
//! The entries of a large block are divided into [`Segments`], which are found by ID or offset and forgotten when all
//! of their entries are deleted. So a search or a walk reads few entries besides those that it returns.

use std::ops::Range;

use super::StreamId;
use super::segments::Segments;
use crate::listpack::{self, DECIMAL_MAX_BYTES, Element, ElementRun};
use crate::relocation::PartMover;

/// The flag of a deleted entry.
const DELETED: u8 = 1;
/// The flag of an entry that has the block's field names.
const SAME_NAMES: u8 = 2;
/// The number of elements of an entry in addition to names and values: flags, both deltas, and the number of elements.
const FRAME_ELEMENTS: usize = 4;
/// The number of elements of a listpack before the run: live, dead, names.
const HEADER_ELEMENTS: usize = 3;
/// The space to reserve for the elements of an entry other than names and values, in bytes.
const FRAME_BYTES: usize = 32;
/// The overhead of a short name or value in bytes. A long one may make the run grow once more.
const ELEMENT_BYTES: usize = 4;
/// The capacity at which most runs stop growing, in bytes: blocks have at most 4 KiB unless
/// `stream-node-max-bytes` is set to another value.
const PAGE_BYTES: usize = 4096;
/// The size of most entries in bytes.
const END_PREFETCH_BYTES: usize = 128;
/// The size of a listpack's header and end mark in bytes.
const LISTPACK_OVERHEAD_BYTES: usize = 7;
/// The number of elements from which on a block is divided into segments. Blocks of the usual size have fewer.
const MIN_DIVIDED_ELEMENTS: u32 = if cfg!(test) { 64 } else { 4096 };

#[cfg(test)]
thread_local! {
    /// The number of entries that this thread has read.
    pub(super) static ENTRIES_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Consecutive entries. The ID of the first one is the ID of the block.
#[derive(Clone, Debug)]
pub struct StreamBlock {
    run: Vec<u8>,
    /// The number of elements in the run.
    elements: u32,
    /// The number of entries that are not deleted.
    live: u32,
    /// The number of deleted entries.
    dead: u32,
    /// The number of field names at the start of the run.
    names: u32,
    /// The offset of the first entry.
    body: u32,
    /// The offset before which no live entry begins.
    live_from: u32,
    /// The segments of the entries, if the block is large.
    segments: Option<Box<Segments>>,
}

/// An entry in a block.
#[derive(Clone, Copy, Debug)]
pub struct StreamEntry<'a> {
    /// The ID.
    pub id: StreamId,
    /// The number of fields.
    pub fields: usize,
    /// The names of the block, or `None` if the entry has its own names.
    names: Option<&'a [u8]>,
    /// The values, or pairs of a name and a value.
    content: &'a [u8],
}

impl<'a> StreamEntry<'a> {
    /// Iterates over the names and values in the order in which they were added.
    #[inline]
    pub fn pairs(&self) -> FieldValuePairs<'a> {
        FieldValuePairs {
            names: self.names.map(|names| (ElementRun::new(names), 0)),
            content: ElementRun::new(self.content),
            offset: 0,
            left: self.fields,
        }
    }
}

/// An iterator over the names and values of an entry.
#[derive(Clone, Debug)]
pub struct FieldValuePairs<'a> {
    names: Option<(ElementRun<'a>, usize)>,
    content: ElementRun<'a>,
    offset: usize,
    left: usize,
}

impl<'a> FieldValuePairs<'a> {
    #[inline]
    fn content(&mut self) -> Option<Element<'a>> {
        let (element, end) = self.content.step(self.offset)?;
        self.offset = end;
        Some(element)
    }
}

impl<'a> Iterator for FieldValuePairs<'a> {
    type Item = (Element<'a>, Element<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let name = match &mut self.names {
            Some((run, offset)) => {
                let (name, end) = run.step(*offset)?;
                *offset = end;
                name
            }
            None => self.content()?,
        };
        Some((name, self.content()?))
    }
}

/// An entry and its position in the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundEntry<'a> {
    pub entry: StreamEntry<'a>,
    pub deleted: bool,
    /// The offset of the entry.
    pub offset: usize,
    /// The offset of the next entry.
    pub end: usize,
}

/// A reader of consecutive elements of a run.
struct ElementReader<'a> {
    run: ElementRun<'a>,
    offset: usize,
}

impl ElementReader<'_> {
    #[inline]
    fn int(&mut self) -> Option<i64> {
        let (element, end) = self.run.step(self.offset)?;
        self.offset = end;
        as_int(element)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Option<()> {
        for _ in 0..count {
            self.offset = self.run.step(self.offset)?.1;
        }
        Some(())
    }
}

/// Returns the integer that an element holds, regardless of its stored form.
#[inline]
fn as_int(element: Element<'_>) -> Option<i64> {
    match element {
        Element::Int(number) => Some(number),
        Element::Bytes(bytes) => listpack::parse_integer(bytes),
    }
}

impl StreamBlock {
    /// Creates a block for an entry with these field names, which must be appended next, with capacity for `room_bytes`
    /// bytes.
    pub(super) fn new<'n>(names: impl ExactSizeIterator<Item = &'n [u8]>, room_bytes: usize) -> Self {
        let mut run = Vec::with_capacity(room_bytes);
        let count = names.len();
        for name in names {
            listpack::push(&mut run, name);
        }
        listpack::push_int(&mut run, 0);
        let body = run.len() as u32;
        StreamBlock {
            run,
            elements: count as u32 + 1,
            live: 0,
            dead: 0,
            names: count as u32,
            body,
            live_from: body,
            segments: None,
        }
    }

    /// The number of entries that are not deleted.
    #[inline]
    pub fn live(&self) -> u64 {
        u64::from(self.live)
    }

    /// The number of entries, including deleted ones.
    #[inline]
    pub fn entries(&self) -> u64 {
        u64::from(self.live) + u64::from(self.dead)
    }

    /// The length of the run in bytes.
    #[inline]
    pub fn run_bytes(&self) -> usize {
        self.run.len()
    }

    /// Moves the run.
    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.vec(&mut self.run);
        if let Some(segments) = &mut self.segments {
            mover.boxed(segments);
        }
    }

    /// The number of bytes allocated for the run.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.run.capacity()
    }

    /// The size of the whole listpack in bytes.
    #[inline]
    pub fn listpack_bytes(&self) -> usize {
        let header: usize = self
            .header()
            .map(|number| Element::Int(number).run_bytes())
            .iter()
            .sum();
        LISTPACK_OVERHEAD_BYTES + header + self.run.len()
    }

    #[inline]
    fn header(&self) -> [i64; HEADER_ELEMENTS] {
        [self.live, self.dead, self.names].map(i64::from)
    }

    /// Appends the whole listpack to `out`, in the form in which files store it.
    pub fn write_listpack(&self, out: &mut Vec<u8>) {
        let mut run = Vec::with_capacity(self.listpack_bytes());
        for number in self.header() {
            listpack::push_int(&mut run, number);
        }
        run.extend_from_slice(&self.run);
        listpack::write_listpack(out, &run, self.elements as usize + HEADER_ELEMENTS);
    }

    /// Returns `true` if these are the block's field names.
    fn has_names<'n>(&self, names: impl ExactSizeIterator<Item = &'n [u8]>) -> bool {
        if names.len() != self.names as usize {
            return false;
        }
        let run = ElementRun::new(&self.run);
        let mut scratch = [0; DECIMAL_MAX_BYTES];
        let mut offset = 0;
        for name in names {
            match run.step(offset) {
                Some((element, end)) if element.text(&mut scratch) == name => offset = end,
                _ => return false,
            }
        }
        true
    }

    /// Appends an entry of `content_bytes` bytes of names and values. `base` is the ID of the block.
    pub(super) fn append<'n>(
        &mut self,
        base: StreamId,
        id: StreamId,
        pairs: impl ExactSizeIterator<Item = (&'n [u8], &'n [u8])> + Clone,
        content_bytes: usize,
    ) {
        let fields = pairs.len();
        let same = self.has_names(pairs.clone().map(|(name, _)| name));
        self.reserve(content_bytes + FRAME_BYTES + 2 * ELEMENT_BYTES * fields, content_bytes);
        let run = &mut self.run;
        let start = run.len();
        let (ms_delta, seq_delta) = id.deltas_from(base);
        listpack::push_int(run, i64::from(if same { SAME_NAMES } else { 0 }));
        listpack::push_int(run, ms_delta);
        listpack::push_int(run, seq_delta);
        let elements = if same {
            for (_, value) in pairs {
                listpack::push(run, value);
            }
            fields + FRAME_ELEMENTS
        } else {
            listpack::push_int(run, fields as i64);
            for (name, value) in pairs {
                listpack::push(run, name);
                listpack::push(run, value);
            }
            2 * fields + 1 + FRAME_ELEMENTS
        };
        // The stored number does not include the element that holds it.
        listpack::push_int(run, elements as i64 - 1);
        self.elements += elements as u32;
        self.live += 1;
        if let Some(segments) = &mut self.segments {
            segments.append(id, start..self.run.len());
        } else if self.elements >= MIN_DIVIDED_ELEMENTS {
            self.divide(base);
        }
    }

    /// Divides the entries into segments.
    #[cold]
    fn divide(&mut self, base: StreamId) {
        let mut offset = self.live_start();
        let entries = std::iter::from_fn(|| {
            let found = self.entry_at(base, offset)?;
            offset = found.end;
            Some((found.entry.id, found.offset..found.end, !found.deleted))
        });
        let segments = Segments::of_entries(entries);
        self.segments = Some(Box::new(segments));
    }

    /// Reserves about `bytes` bytes, and at least `least`. The capacity starts small and doubles up to a page, at which
    /// most blocks are full. Beyond a page, the run grows as vectors do.
    #[inline]
    fn reserve(&mut self, bytes: usize, least: usize) {
        let (length, capacity) = (self.run.len(), self.run.capacity());
        if capacity - length >= bytes || capacity >= PAGE_BYTES {
            return;
        }
        let doubled = (2 * length).max(length + bytes);
        let target = if length + least <= PAGE_BYTES {
            doubled.min(PAGE_BYTES)
        } else {
            doubled
        };
        self.run.reserve_exact(target - length);
    }

    /// Frees the unused capacity of a block to which no entry will be added.
    pub(super) fn release_spare_capacity(&mut self) {
        if self.run.capacity() - self.run.len() > self.run.len() / 8 {
            self.run.shrink_to_fit();
        }
    }

    /// Returns the address and length of the memory to which the next entry will be written.
    pub(super) fn end_memory(&self) -> (*const u8, usize) {
        let room = self.run.capacity() - self.run.len();
        (
            self.run.as_ptr().wrapping_add(self.run.len()),
            room.min(END_PREFETCH_BYTES),
        )
    }

    /// The offset before which no live entry begins.
    #[inline]
    pub(super) fn live_start(&self) -> usize {
        self.live_from as usize
    }

    /// Returns the next part of the run from an offset on that may contain live entries. It is empty if there is none.
    #[inline]
    pub(super) fn live_range_from(&self, offset: usize) -> Range<usize> {
        match &self.segments {
            None => offset..self.run.len(),
            Some(segments) => segments.range_from(offset).unwrap_or(self.run.len()..self.run.len()),
        }
    }

    /// Returns the last part of the run up to an offset that may contain live entries. It is empty if there is none.
    #[inline]
    pub(super) fn live_range_before(&self, end: usize) -> Range<usize> {
        match &self.segments {
            None => self.live_start().min(end)..end,
            Some(segments) => segments.range_before(end).unwrap_or(0..0),
        }
    }

    /// Returns the part of the run that contains the live entry with this ID, if that exists, and those around it.
    #[inline]
    fn live_range_of(&self, id: StreamId) -> Option<Range<usize>> {
        match &self.segments {
            None if self.live == 0 => None,
            None => Some(self.live_start()..self.run.len()),
            Some(segments) => segments.range_of(id),
        }
    }

    /// Returns the part of the run in which the live entries with this or a larger ID begin.
    #[inline]
    pub(super) fn live_range_since(&self, id: StreamId) -> Range<usize> {
        match self.live_range_of(id) {
            Some(range) => range.start.max(self.live_start())..range.end,
            None if self.segments.is_none() => self.run.len()..self.run.len(),
            None => self.live_range_from(self.live_start()),
        }
    }

    /// Returns the part of the run in which the live entries with this or a smaller ID end.
    #[inline]
    pub(super) fn live_range_until(&self, id: StreamId) -> Range<usize> {
        self.live_range_of(id).unwrap_or(0..0)
    }

    /// Calls `visit` with the approximate number of elements and the number of live entries of each part of the block
    /// that is read in order to find the entries with IDs from `start` to `end`. The last part comes first if
    /// `is_reverse` is set. Returns `false` as soon as `visit` does.
    pub(super) fn visit_sizes(
        &self,
        [start, end]: [StreamId; 2],
        is_reverse: bool,
        visit: &mut impl FnMut(u64, u64) -> bool,
    ) -> bool {
        let Some(segments) = &self.segments else {
            let elements = if self.live == 0 { 0 } else { self.elements };
            return visit(u64::from(elements), self.live());
        };
        let mut sizes = segments.sizes(start, end);
        let visit_part = |(bytes, live): (usize, u64)| visit(self.elements_in(bytes), live);
        if is_reverse {
            sizes.rev().all(visit_part)
        } else {
            sizes.all(visit_part)
        }
    }

    /// Returns the approximate number of elements in a part of the run.
    fn elements_in(&self, bytes: usize) -> u64 {
        u64::from(self.elements) * bytes as u64 / self.run.len().max(1) as u64
    }

    /// Returns the approximate number of elements that are read in order to find the entry with this ID.
    pub(super) fn search_elements(&self, id: StreamId) -> u64 {
        self.live_range_of(id).map_or(0, |range| self.elements_in(range.len()))
    }

    /// Returns the approximate number of elements from the first live entry to the entry with this ID. It is 0 in a
    /// block of the usual size.
    pub(super) fn elements_before(&self, id: StreamId) -> u64 {
        self.live_range_of(id).map_or(0, |range| {
            self.elements_in(range.start.saturating_sub(self.live_start()))
        })
    }

    /// Returns the approximate number of elements that are read in order to visit this number of live entries.
    pub(super) fn elements_of(&self, live_entries: u64) -> u64 {
        u64::from(self.elements) * live_entries / self.live().max(1)
    }

    /// The offset of the end of the entries.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.run.len()
    }

    /// Returns the entry at an offset, or `None` at the end.
    #[inline]
    pub(super) fn entry_at(&self, base: StreamId, offset: usize) -> Option<FoundEntry<'_>> {
        #[cfg(test)]
        ENTRIES_READ.set(ENTRIES_READ.get() + 1);
        let run = ElementRun::new(&self.run);
        let mut steps = ElementReader { run, offset };
        let flags = *self.run.get(offset)?;
        steps.skip(1)?;
        let id = base.plus(steps.int()?, steps.int()?);
        let same = flags & SAME_NAMES != 0;
        let fields = if same {
            self.names as usize
        } else {
            steps.int()? as usize
        };
        let start = steps.offset;
        steps.skip(if same { fields } else { fields.saturating_mul(2) })?;
        let content = &self.run[start..steps.offset];
        steps.skip(1)?;
        Some(FoundEntry {
            entry: StreamEntry {
                id,
                fields,
                names: same.then(|| &self.run[..self.body as usize]),
                content,
            },
            deleted: flags & DELETED != 0,
            offset,
            end: steps.offset,
        })
    }

    /// Returns the entry that ends at an offset, or `None` at the start of the first entry.
    #[inline]
    pub(super) fn entry_before(&self, base: StreamId, end: usize) -> Option<FoundEntry<'_>> {
        if end <= self.body as usize {
            return None;
        }
        let run = ElementRun::new(&self.run);
        let mut offset = run.previous_offset(end)?;
        for _ in 0..as_int(run.at(offset)?)? {
            offset = run.previous_offset(offset)?;
        }
        self.entry_at(base, offset)
    }

    /// Returns the ID of the last entry, whether deleted or not.
    pub(super) fn last_id(&self, base: StreamId) -> StreamId {
        self.entry_before(base, self.run.len())
            .map_or(StreamId::MIN, |found| found.entry.id)
    }

    /// Returns the live entry with this ID, which does not begin before an offset.
    pub(super) fn find(&self, base: StreamId, id: StreamId, offset: usize) -> Option<FoundEntry<'_>> {
        let range = self.live_range_of(id)?;
        let mut offset = range.start.max(offset);
        while offset < range.end
            && let Some(found) = self.entry_at(base, offset)
        {
            if found.entry.id >= id {
                return (found.entry.id == id && !found.deleted).then_some(found);
            }
            offset = found.end;
        }
        None
    }

    /// Marks the live entry at an offset as deleted.
    pub(super) fn mark_deleted(&mut self, offset: usize) {
        if let Some(flags) = self.run.get_mut(offset) {
            debug_assert!(*flags & DELETED == 0, "an entry is deleted once");
            *flags |= DELETED;
            self.live -= 1;
            self.dead += 1;
            if let Some(segments) = &mut self.segments {
                segments.remove_live(offset);
            }
        }
    }

    /// Marks live entries from the first one on as deleted, as long as `should_delete` returns `true`. Returns the
    /// number of marked entries.
    pub(super) fn mark_deleted_while(
        &mut self,
        base: StreamId,
        mut should_delete: impl FnMut(StreamId, u64) -> bool,
    ) -> u64 {
        let mut marked = 0;
        let mut range = self.live_range_from(self.live_start());
        while let Some(found) = self.entry_at(base, range.start) {
            let (end, deleted) = (found.end, found.deleted);
            if !deleted {
                if !should_delete(found.entry.id, marked) {
                    break;
                }
                self.mark_deleted(range.start);
                marked += 1;
            }
            range.start = end;
            if range.start >= range.end {
                range = self.live_range_from(end);
            }
        }
        self.live_from = range.start as u32;
        marked
    }

    /// Reads a block from a whole listpack. Returns `None` if it is invalid, or if its IDs are not ascending or are
    /// below `base`.
    pub(super) fn read_listpack(base: StreamId, whole: &[u8]) -> Option<Self> {
        let (run, elements) = listpack::validate(whole)?;
        let mut steps = ElementReader { run, offset: 0 };
        let (live, dead) = (steps.int()?, steps.int()?);
        let names = usize::try_from(steps.int()?).ok()?;
        // A block without entries is written by no server. Its ID would not bound those of later entries.
        let entries = live.checked_add(dead).filter(|entries| *entries > 0)?;
        let start = steps.offset;
        steps.skip(names)?;
        if steps.int()? != 0 {
            return None;
        }
        let mut block = StreamBlock {
            run: run.bytes()[start..].to_vec(),
            elements: u32::try_from(elements - HEADER_ELEMENTS).ok()?,
            live: 0,
            dead: 0,
            names: names as u32,
            body: u32::try_from(steps.offset - start).ok()?,
            live_from: 0,
            segments: None,
        };
        block.live_from = block.body;
        block.check_entries(base, u64::try_from(entries).ok()?)?;
        if block.elements >= MIN_DIVIDED_ELEMENTS {
            block.divide(base);
        }
        Some(block)
    }

    /// Counts the entries of a run of external origin and checks everything that the rest of this file relies on.
    fn check_entries(&mut self, base: StreamId, entries: u64) -> Option<()> {
        let mut offset = self.body as usize;
        let mut last = None;
        for _ in 0..entries {
            let (found, elements) = self.check_entry(base, offset)?;
            if found.entry.id < base || last.is_some_and(|last| last >= found.entry.id) {
                return None;
            }
            last = Some(found.entry.id);
            offset = found.end;
            let deleted = found.deleted;
            let declared = ElementRun::new(&self.run)
                .previous_offset(offset)
                .and_then(|at| ElementRun::new(&self.run).at(at))?;
            if as_int(declared)? != elements as i64 - 1 {
                return None;
            }
            *(if deleted { &mut self.dead } else { &mut self.live }) += 1;
        }
        (offset == self.run.len()).then_some(())
    }

    /// Returns the entry at an offset and its number of elements.
    fn check_entry(&self, base: StreamId, offset: usize) -> Option<(FoundEntry<'_>, usize)> {
        let mut steps = ElementReader {
            run: ElementRun::new(&self.run),
            offset,
        };
        // Flags are changed in place, so they must be an integer of one byte.
        if self.run.get(offset)? & !(DELETED | SAME_NAMES) != 0 {
            return None;
        }
        steps.skip(3)?;
        let found = self.entry_at(base, offset)?;
        let elements = match found.entry.names {
            Some(_) => found.entry.fields,
            None => usize::try_from(steps.int()?).ok()?.checked_mul(2)?.checked_add(1)?,
        };
        // XADD needs a field, and so does its form in an append-only file.
        if found.entry.fields == 0 {
            return None;
        }
        Some((found, elements.checked_add(FRAME_ELEMENTS)?))
    }
}
