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
//!   an entry of its own      | flags | ms delta | seq delta | n | name 1 | value 1 | ... | elements |
//!   field names              +-------+----------+-----------+---+--------+---------+-----+----------+
//! ```
//!
//! The field names of the first entry are the block's. Deltas are relative to the block's first ID. `elements` counts the
//! elements of the entry before it, so that entries can be walked backwards. A listpack in a file begins with the three
//! numbers that are kept outside the run here, where changing them moves nothing.
//!
//! Entries are only ever appended, and marking one as deleted changes a byte in place: offsets into a run stay good.

use super::StreamId;
use crate::listpack::{self, DECIMAL_MAX_BYTES, Element, Run};

/// The entry is deleted.
const DELETED: u8 = 1;
/// The entry has the block's field names.
const SAME_NAMES: u8 = 2;
/// Elements of an entry beside names and values: flags, both deltas, the count of elements.
const FRAME_ELEMENTS: usize = 4;
/// Elements of a listpack in front of the run: live, dead, names.
const HEADER_ELEMENTS: usize = 3;
/// Room for the elements of an entry beside names and values, bytes.
const FRAME_BYTES: usize = 32;
/// Room that a name or value takes beside its bytes, for short ones; long ones make the run grow once more.
const ELEMENT_BYTES: usize = 4;
/// Where most runs end: blocks have at most 4 KiB unless `stream-node-max-bytes` says otherwise.
const PAGE_BYTES: usize = 4096;
/// What an entry takes, mostly.
const END_PLACE_BYTES: usize = 128;
/// Bytes of a whole listpack beside its elements.
const WHOLE_BYTES: usize = 7;

/// Entries one behind the other, the first of which gives the block its ID.
#[derive(Clone, Debug)]
pub struct Block {
    run: Vec<u8>,
    /// Elements in the run.
    elements: u32,
    /// Entries that are not deleted.
    live: u32,
    /// Entries that are.
    dead: u32,
    /// Field names at the start of the run.
    names: u32,
    /// Where the first entry begins.
    body: u32,
    /// No entry that begins before this offset is live.
    live_from: u32,
}

/// An entry as it stands in a block.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its ID.
    pub id: StreamId,
    /// Its number of fields.
    pub fields: usize,
    /// The block's names; `None` if the entry has its own.
    names: Option<&'a [u8]>,
    /// Values, or pairs of a name and a value.
    content: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Names and values, in the order in which they were added.
    #[inline]
    pub fn pairs(&self) -> Pairs<'a> {
        Pairs {
            names: self.names.map(|names| (Run::new(names), 0)),
            content: Run::new(self.content),
            offset: 0,
            left: self.fields,
        }
    }
}

/// The names and values of an entry.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    names: Option<(Run<'a>, usize)>,
    content: Run<'a>,
    offset: usize,
    left: usize,
}

impl<'a> Pairs<'a> {
    #[inline]
    fn content(&mut self) -> Option<Element<'a>> {
        let (element, end) = self.content.step(self.offset)?;
        self.offset = end;
        Some(element)
    }
}

impl<'a> Iterator for Pairs<'a> {
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

/// An entry with its place in the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundEntry<'a> {
    pub entry: Entry<'a>,
    pub deleted: bool,
    /// Where it begins.
    pub offset: usize,
    /// Where the next one begins.
    pub end: usize,
}

/// Takes elements off the front of a run.
struct Steps<'a> {
    run: Run<'a>,
    offset: usize,
}

impl Steps<'_> {
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

/// A number, in whichever form it is stored.
#[inline]
fn as_int(element: Element<'_>) -> Option<i64> {
    match element {
        Element::Int(number) => Some(number),
        Element::Bytes(bytes) => listpack::integer_of(bytes),
    }
}

impl Block {
    /// A block that begins with an entry of these fields, which is yet to be appended; with room for `room_bytes`.
    pub(super) fn new<'n>(names: impl ExactSizeIterator<Item = &'n [u8]>, room_bytes: usize) -> Self {
        let mut run = Vec::with_capacity(room_bytes);
        let count = names.len();
        for name in names {
            listpack::push(&mut run, name);
        }
        listpack::push_int(&mut run, 0);
        let body = run.len() as u32;
        Block {
            run,
            elements: count as u32 + 1,
            live: 0,
            dead: 0,
            names: count as u32,
            body,
            live_from: body,
        }
    }

    /// Entries that are not deleted.
    #[inline]
    pub fn live(&self) -> u64 {
        u64::from(self.live)
    }

    /// Entries, deleted ones included.
    #[inline]
    pub fn entries(&self) -> u64 {
        u64::from(self.live) + u64::from(self.dead)
    }

    /// Bytes of the run.
    #[inline]
    pub fn run_bytes(&self) -> usize {
        self.run.len()
    }

    /// Bytes allocated.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.run.capacity()
    }

    /// Bytes of the whole listpack.
    #[inline]
    pub fn whole_bytes(&self) -> usize {
        let header: usize = self
            .header()
            .map(|number| Element::Int(number).run_bytes())
            .iter()
            .sum();
        WHOLE_BYTES + header + self.run.len()
    }

    #[inline]
    fn header(&self) -> [i64; HEADER_ELEMENTS] {
        [self.live, self.dead, self.names].map(i64::from)
    }

    /// Appends the whole listpack, as it stands in files.
    pub fn write_whole(&self, out: &mut Vec<u8>) {
        let mut run = Vec::with_capacity(self.whole_bytes());
        for number in self.header() {
            listpack::push_int(&mut run, number);
        }
        run.extend_from_slice(&self.run);
        listpack::write_whole(out, &run, self.elements as usize + HEADER_ELEMENTS);
    }

    /// Whether these are the block's field names.
    fn has_names<'n>(&self, names: impl ExactSizeIterator<Item = &'n [u8]>) -> bool {
        if names.len() != self.names as usize {
            return false;
        }
        let run = Run::new(&self.run);
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

    /// Appends an entry of `content_bytes` bytes of names and values. `base` is the block's ID.
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
        // The count does not count itself.
        listpack::push_int(run, elements as i64 - 1);
        self.elements += elements as u32;
        self.live += 1;
    }

    /// Makes room for about so many bytes, `least` at least: at first little, then twice as much each time up to a page,
    /// at which most blocks end. Beyond it the run grows as vectors do.
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

    /// Gives back room that no entry will need any more.
    pub(super) fn seal(&mut self) {
        if self.run.capacity() - self.run.len() > self.run.len() / 8 {
            self.run.shrink_to_fit();
        }
    }

    /// Where the next entry comes: an address and a length.
    pub(super) fn end_place(&self) -> (*const u8, usize) {
        let room = self.run.capacity() - self.run.len();
        (
            self.run.as_ptr().wrapping_add(self.run.len()),
            room.min(END_PLACE_BYTES),
        )
    }

    /// Where a walk over the live entries begins.
    #[inline]
    pub(super) fn live_start(&self) -> usize {
        self.live_from as usize
    }

    /// Where the entries end.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.run.len()
    }

    /// The entry at an offset; `None` at the end.
    #[inline]
    pub(super) fn entry_at(&self, base: StreamId, offset: usize) -> Option<FoundEntry<'_>> {
        let run = Run::new(&self.run);
        let mut steps = Steps { run, offset };
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
            entry: Entry {
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

    /// The entry that ends at an offset; `None` at the first entry.
    #[inline]
    pub(super) fn entry_before(&self, base: StreamId, end: usize) -> Option<FoundEntry<'_>> {
        if end <= self.body as usize {
            return None;
        }
        let run = Run::new(&self.run);
        let mut offset = run.before(end)?;
        for _ in 0..as_int(run.at(offset)?)? {
            offset = run.before(offset)?;
        }
        self.entry_at(base, offset)
    }

    /// The ID of the last entry, deleted or not.
    pub(super) fn last_id(&self, base: StreamId) -> StreamId {
        self.entry_before(base, self.run.len())
            .map_or(StreamId::MIN, |found| found.entry.id)
    }

    /// The live entry of an ID, looked for from an offset on.
    pub(super) fn find(&self, base: StreamId, id: StreamId, mut offset: usize) -> Option<FoundEntry<'_>> {
        while let Some(found) = self.entry_at(base, offset) {
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
        }
    }

    /// Marks live entries from the first on as deleted, while `goes` says so. Returns how many it were.
    pub(super) fn mark_first(&mut self, base: StreamId, mut goes: impl FnMut(StreamId, u64) -> bool) -> u64 {
        let mut marked = 0;
        let mut offset = self.live_start();
        while let Some(found) = self.entry_at(base, offset) {
            let (end, deleted) = (found.end, found.deleted);
            if !deleted {
                if !goes(found.entry.id, marked) {
                    break;
                }
                self.mark_deleted(offset);
                marked += 1;
            }
            offset = end;
        }
        self.live_from = offset as u32;
        marked
    }

    /// The block that a whole listpack is. `None` if it is none, or if its IDs do not ascend or are below `base`.
    pub(super) fn read_whole(base: StreamId, whole: &[u8]) -> Option<Self> {
        let (run, elements) = listpack::validate(whole)?;
        let mut steps = Steps { run, offset: 0 };
        let (live, dead) = (steps.int()?, steps.int()?);
        let names = usize::try_from(steps.int()?).ok()?;
        let entries = live.checked_add(dead)?;
        let start = steps.offset;
        steps.skip(names)?;
        if steps.int()? != 0 {
            return None;
        }
        let mut block = Block {
            run: run.bytes()[start..].to_vec(),
            elements: u32::try_from(elements - HEADER_ELEMENTS).ok()?,
            live: 0,
            dead: 0,
            names: names as u32,
            body: u32::try_from(steps.offset - start).ok()?,
            live_from: 0,
        };
        block.live_from = block.body;
        block.check_entries(base, u64::try_from(entries).ok()?)?;
        Some(block)
    }

    /// Counts the entries of a run that came from outside and checks everything that the rest of this file relies on.
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
            let declared = Run::new(&self.run)
                .before(offset)
                .and_then(|at| Run::new(&self.run).at(at))?;
            if as_int(declared)? != elements as i64 - 1 {
                return None;
            }
            *(if deleted { &mut self.dead } else { &mut self.live }) += 1;
        }
        (offset == self.run.len()).then_some(())
    }

    /// The entry at an offset and its number of elements.
    fn check_entry(&self, base: StreamId, offset: usize) -> Option<(FoundEntry<'_>, usize)> {
        let mut steps = Steps {
            run: Run::new(&self.run),
            offset,
        };
        // Flags are changed in place, so they have to be a number of one byte.
        if self.run.get(offset)? & !(DELETED | SAME_NAMES) != 0 {
            return None;
        }
        steps.skip(3)?;
        let found = self.entry_at(base, offset)?;
        let elements = match found.entry.names {
            Some(_) => found.entry.fields,
            None => usize::try_from(steps.int()?).ok()?.checked_mul(2)?.checked_add(1)?,
        };
        Some((found, elements.checked_add(FRAME_ELEMENTS)?))
    }
}
