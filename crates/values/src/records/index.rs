//! The index of a large collection: leaves that cover ranges of hashes, found through two levels of directories.
//!
//! ```text
//!   hash:  | root's bits | region's bits |        tag        |
//!             |               |                |
//!             v               v                v
//!          [ root ] ----> [ region ] ----> [ leaf: tag id, tag id, ... ] ----> record
//! ```
//!
//! Both levels use extendible hashing: a directory has 2^n slots, and several neighbouring slots may refer to the same
//! item. A full leaf is split in two, and so is a region with too many leaves. The cost of an operation is therefore
//! bounded by the size of a leaf or of the directory of one region. The leaves form a sequence in hash order, which a
//! scan follows.
//!
//! Leaves and regions that have become small are merged again, so an index that has shrunk is as compact as one that
//! never was large. Every directory knows the number of its entries. So a random entry is found without bias through a
//! random region and a random leaf of it, whatever is left of the index.

use super::id::RecordId;
use super::leaf::{HashRange, Leaf, MAX_DEPTH, MAX_ENTRIES};
use crate::relocation::{PartCursor, PartMover, relocate_parts};

/// The maximum number of leaves of a region. A full region is split in two.
const MAX_LEAVES: usize = 1024;
/// The number of entries below which a leaf is merged with its sibling, if both together fill at most half a leaf.
const MERGE_BELOW: usize = MAX_ENTRIES / 8;
/// The expected number of entries of a leaf that is created in advance.
const EXPECTED_ENTRIES: usize = 180;
/// The maximum depth of the leaves that are created in advance.
const MAX_PREPARED_DEPTH: u8 = 14;
/// The maximum number of leaves of a region that results from merging two regions.
const MAX_MERGED_LEAVES: usize = MAX_LEAVES / 2;
/// The number of directory bits from which on a region is not merged. Leaves of very different depths would make the
/// directory of the merged region much larger than its number of leaves requires.
const MAX_MERGED_BITS: u8 = 12;
/// The maximum number of entries of a region, unless more hashes begin with the same [`MAX_DEPTH`] bits than a leaf
/// has entries.
const MAX_REGION_ENTRIES: usize = MAX_LEAVES * MAX_ENTRIES;
/// The number of attempts to select a random item of a directory before all of its items are counted instead. An
/// attempt fails more often the fewer entries the items have compared to the maximum.
const RANDOM_TRIES: usize = 32;
/// The number of items of a directory up to which counting all of them is as fast as random attempts.
const FEW_ITEMS: usize = 8;

/// An item of a directory, which covers a range of hashes.
trait Covering {
    fn stretch(&self) -> HashRange;

    /// The number of entries.
    fn entries(&self) -> usize;
}

impl Covering for Leaf {
    fn stretch(&self) -> HashRange {
        self.stretch
    }

    #[inline]
    fn entries(&self) -> usize {
        self.len()
    }
}

/// Items that together cover a range of hashes.
#[derive(Clone, Debug)]
struct Directory<T> {
    stretch: HashRange,
    /// The binary logarithm of the number of slots.
    bits: u8,
    slots: Vec<u32>,
    items: Vec<T>,
    /// The number of entries of all items.
    entries: usize,
}

impl<T> Covering for Directory<T> {
    fn stretch(&self) -> HashRange {
        self.stretch
    }

    #[inline]
    fn entries(&self) -> usize {
        self.entries
    }
}

impl<T: Covering> Directory<T> {
    fn empty(stretch: HashRange) -> Self {
        Directory {
            stretch,
            bits: 0,
            slots: vec![0],
            items: Vec::new(),
            entries: 0,
        }
    }

    #[inline]
    fn slot_of(&self, hash: u64) -> usize {
        // The shift is split in two because with 0 bits a single shift by 64 would overflow.
        ((hash << self.stretch.depth) >> 1 >> (63 - self.bits)) as usize
    }

    #[inline]
    fn number_of(&self, hash: u64) -> usize {
        self.slots[self.slot_of(hash)] as usize
    }

    #[inline]
    fn item(&self, hash: u64) -> &T {
        &self.items[self.number_of(hash)]
    }

    #[inline]
    fn item_mut(&mut self, hash: u64) -> &mut T {
        let number = self.number_of(hash);
        &mut self.items[number]
    }

    /// Returns the slots of a range of hashes.
    fn range(&self, stretch: HashRange) -> std::ops::Range<usize> {
        let first = self.slot_of(stretch.start());
        first..first + (1 << (self.bits - (stretch.depth - self.stretch.depth)))
    }

    /// Adds an item and makes the slots of its range refer to it.
    fn insert_item(&mut self, item: T) {
        let stretch = item.stretch();
        while stretch.depth - self.stretch.depth > self.bits {
            self.slots = self.slots.iter().flat_map(|slot| [*slot; 2]).collect();
            self.bits += 1;
        }
        let number = self.items.len() as u32;
        self.entries += item.entries();
        self.items.push(item);
        let range = self.range(stretch);
        self.slots[range].fill(number);
    }

    /// Removes an item. Its slots are invalid until another item is placed there.
    fn remove_item(&mut self, number: usize) -> T {
        let item = self.items.swap_remove(number);
        self.entries -= item.entries();
        if let Some(moved) = self.items.get(number) {
            let range = self.range(moved.stretch());
            self.slots[range].fill(number as u32);
        }
        item
    }

    /// Halves the number of slots as long as every item has several of them.
    fn halve_slots(&mut self) {
        while self.bits > 0 && self.items.len() * 8 <= self.slots.len() {
            let deepest = self.items.iter().map(|item| item.stretch().depth).max();
            if deepest.is_some_and(|depth| depth >= self.stretch.depth + self.bits) {
                return;
            }
            self.slots = self.slots.iter().step_by(2).copied().collect();
            self.bits -= 1;
        }
    }

    /// Distributes the items, of which there are several, over two directories.
    fn split(self) -> [Self; 2] {
        let [lower, upper] = self.stretch.halves();
        let mut halves = [Directory::empty(lower), Directory::empty(upper)];
        for item in self.items {
            let side = usize::from(item.stretch().start() >= upper.start());
            halves[side].insert_item(item);
        }
        halves
    }

    /// Moves the slots and the items, but not what the items own.
    fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.vec(&mut self.slots);
        mover.vec(&mut self.items);
    }

    fn allocated_bytes(&self) -> usize {
        self.slots.len() * size_of::<u32>() + self.items.capacity() * size_of::<T>()
    }

    /// Selects a random entry, each with the same probability. Returns its item, and its number within the item. `most`
    /// is the maximum number of entries of an item.
    fn random(&self, most: usize, below: &mut impl FnMut(usize) -> usize) -> Option<(&T, usize)> {
        if self.entries == 0 {
            return None;
        }
        if self.items.len() > FEW_ITEMS {
            // Rejection sampling: an item is accepted with a probability proportional to its number of entries.
            for _ in 0..RANDOM_TRIES {
                let (item, entry) = (&self.items[below(self.items.len())], below(most));
                if entry < item.entries() {
                    return Some((item, entry));
                }
            }
        }
        let mut entry = below(self.entries);
        for item in &self.items {
            match entry.checked_sub(item.entries()) {
                Some(rest) => entry = rest,
                None => return Some((item, entry)),
            }
        }
        None
    }
}

type Region = Directory<Leaf>;

#[derive(Clone, Debug)]
pub(super) struct Index {
    root: Directory<Region>,
    /// The sum of the capacities of all leaves, in bytes.
    leaf_bytes: usize,
    /// The memory of the directories in bytes.
    directory_bytes: usize,
}

impl Index {
    /// Creates an index with capacity for `entries` entries.
    pub(super) fn with_capacity(entries: usize) -> Self {
        let leaves = entries.div_ceil(EXPECTED_ENTRIES).max(1);
        let depth = (leaves.ilog2() as u8).min(MAX_PREPARED_DEPTH);
        let mut root = Directory::empty(HashRange::ALL);
        root.insert_item(Region::empty(HashRange::ALL));
        let mut index = Index {
            root,
            leaf_bytes: 0,
            directory_bytes: 0,
        };
        index.root.items[0].insert_item(Leaf::new(HashRange::ALL));
        index.split_to_depth(HashRange::ALL, depth);
        index.count_directories();
        index
    }

    /// Splits the empty leaf of a range until its parts have the depth `depth`.
    fn split_to_depth(&mut self, stretch: HashRange, depth: u8) {
        if stretch.depth < depth {
            self.split_leaf(stretch.start(), |_| 0);
            stretch
                .halves()
                .into_iter()
                .for_each(|half| self.split_to_depth(half, depth));
        }
    }

    fn count_directories(&mut self) {
        let regions = self.root.items.iter().map(Directory::allocated_bytes);
        self.directory_bytes = regions.sum::<usize>() + self.root.allocated_bytes();
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.leaf_bytes + self.directory_bytes
    }

    /// Moves the directories, which are the parts of kind 1, and the leaves, those of kind 2.
    pub(super) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        if from <= PartCursor::of_kind(1) {
            self.root.move_parts(mover);
        }
        let regions = &mut self.root.items;
        let next = relocate_parts(regions.iter_mut(), 1, from, mover, Directory::move_parts);
        next.or_else(|| {
            let leaves = self.root.items.iter_mut().flat_map(|region| &mut region.items);
            relocate_parts(leaves, 2, from, mover, Leaf::move_parts)
        })
    }

    /// Recomputes the sums of the capacities after the index was cloned.
    pub(super) fn count_allocated(&mut self) {
        let leaves = self.root.items.iter().flat_map(|region| &region.items);
        self.leaf_bytes = leaves.map(Leaf::allocated_bytes).sum();
        self.count_directories();
    }

    #[inline]
    fn leaf(&self, hash: u64) -> &Leaf {
        self.root.item(hash).item(hash)
    }

    /// Changes the leaf that covers a hash and accounts for the change of its memory and of its number of entries.
    #[inline]
    fn change_leaf(&mut self, hash: u64, change: impl FnOnce(&mut Leaf)) {
        let region = self.root.item_mut(hash);
        let leaf = region.item_mut(hash);
        let (bytes_before, entries_before) = (leaf.allocated_bytes(), leaf.len());
        change(leaf);
        let (bytes, entries) = (leaf.allocated_bytes(), leaf.len());
        region.entries = region.entries + entries - entries_before;
        self.root.entries = self.root.entries + entries - entries_before;
        self.leaf_bytes = self.leaf_bytes + bytes - bytes_before;
    }

    /// Finds the first id for which `is_it` returns `true`, among the ids whose entries match this hash. An entry may
    /// match although its record has another hash.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(RecordId) -> bool) -> Option<RecordId> {
        let mut found = None;
        self.leaf(hash).find(hash, |number| {
            let id = RecordId::from_number(number);
            let is_it = is_it(id);
            if is_it {
                found = Some(id);
            }
            is_it
        });
        found
    }

    /// Returns the memory near the position at which [`Self::find`] reads.
    pub(super) fn search_memory(&self, hash: u64) -> &[u8] {
        self.leaf(hash).search_memory(hash)
    }

    /// Adds an id. `hash_of` returns the hash of an id that is already present.
    pub(super) fn insert(&mut self, hash: u64, id: RecordId, hash_of: impl Fn(u64) -> u64) {
        loop {
            let leaf = self.leaf(hash);
            if leaf.len() < MAX_ENTRIES || leaf.stretch.depth == MAX_DEPTH {
                break;
            }
            self.split_leaf(hash, &hash_of);
        }
        self.change_leaf(hash, |leaf| leaf.insert(hash, id.number()));
    }

    fn split_leaf(&mut self, hash: u64, hash_of: impl Fn(u64) -> u64) {
        if self.root.item(hash).items.len() >= MAX_LEAVES {
            let region = self.root.remove_item(self.root.number_of(hash));
            region.split().into_iter().for_each(|half| self.root.insert_item(half));
            self.count_directories();
        }
        let region = self.root.item_mut(hash);
        let before = region.allocated_bytes();
        let leaf = region.remove_item(region.number_of(hash));
        let mut leaf_bytes = self.leaf_bytes - leaf.allocated_bytes();
        for half in leaf.split(hash_of) {
            leaf_bytes += half.allocated_bytes();
            region.insert_item(half);
        }
        let after = region.allocated_bytes();
        self.leaf_bytes = leaf_bytes;
        self.directory_bytes = self.directory_bytes + after - before;
    }

    /// Removes an id.
    pub(super) fn remove(&mut self, hash: u64, id: RecordId) {
        let entry = self.entry_of(hash, id);
        self.change_leaf(hash, |leaf| leaf.remove(entry));
        if self.merge_leaf(hash) {
            // The merged leaf or region may be small enough for its own sibling.
            while self.merge_leaf(hash) || self.merge_region(hash) {}
        }
    }

    /// Replaces an id.
    pub(super) fn replace_id(&mut self, hash: u64, old: RecordId, new: RecordId) {
        let entry = self.entry_of(hash, old);
        self.change_leaf(hash, |leaf| leaf.set_id(entry, new.number()));
    }

    fn entry_of(&self, hash: u64, id: RecordId) -> usize {
        self.leaf(hash)
            .find(hash, |number| number == id.number())
            .expect("every record is in the index")
    }

    /// Merges a small leaf with its sibling if both fit in one leaf. Returns `true` if it did.
    fn merge_leaf(&mut self, hash: u64) -> bool {
        let region = self.root.item_mut(hash);
        let stretch = region.item(hash).stretch;
        if region.item(hash).len() >= MERGE_BELOW || stretch.depth == region.stretch.depth {
            return false;
        }
        let [lower, upper] = stretch.parent().halves();
        let halves = [region.item(lower.start()), region.item(upper.start())];
        let whole = halves.iter().all(|half| half.stretch.depth == stretch.depth);
        if !whole || halves[0].len() + halves[1].len() > MAX_ENTRIES / 2 {
            return false;
        }
        let before = region.allocated_bytes();
        let [lower, upper] = [lower, upper].map(|half| region.remove_item(region.number_of(half.start())));
        let leaf = Leaf::merge(&lower, &upper);
        let freed = lower.allocated_bytes() + upper.allocated_bytes();
        let leaf_bytes = self.leaf_bytes + leaf.allocated_bytes() - freed;
        region.insert_item(leaf);
        region.halve_slots();
        let after = region.allocated_bytes();
        self.leaf_bytes = leaf_bytes;
        self.directory_bytes = self.directory_bytes + after - before;
        true
    }

    /// Merges a region with its sibling if both have few leaves. Returns `true` if it did.
    fn merge_region(&mut self, hash: u64) -> bool {
        let stretch = self.root.item(hash).stretch;
        if stretch.depth == 0 {
            return false;
        }
        let [lower, upper] = stretch.parent().halves();
        let halves = [self.root.item(lower.start()), self.root.item(upper.start())];
        let fits = |half: &&Region| half.stretch.depth == stretch.depth && half.bits < MAX_MERGED_BITS;
        let leaves: usize = halves.iter().map(|half| half.items.len()).sum();
        if leaves > MAX_MERGED_LEAVES || !halves.iter().all(fits) {
            return false;
        }
        let freed: usize = halves.iter().map(|half| half.allocated_bytes()).sum();
        let before = self.root.allocated_bytes() + freed;
        let mut region = Region::empty(stretch.parent());
        for half in [lower, upper] {
            let half = self.root.remove_item(self.root.number_of(half.start()));
            half.items.into_iter().for_each(|leaf| region.insert_item(leaf));
        }
        let merged_bytes = region.allocated_bytes();
        self.root.insert_item(region);
        self.root.halve_slots();
        let after = self.root.allocated_bytes() + merged_bytes;
        self.directory_bytes = self.directory_bytes + after - before;
        true
    }

    /// Visits ids in hash order from hash `from` on, at least `at_least` of them if available. Returns the hash from
    /// which to continue, or `None` at the end.
    pub(super) fn scan(&self, from: u64, at_least: usize, visit: &mut dyn FnMut(RecordId)) -> Option<u64> {
        let mut from = from;
        let mut visited = 0;
        loop {
            if visited >= at_least && visited > 0 {
                return Some(from);
            }
            let leaf = self.leaf(from);
            let next = leaf.scan(from, at_least - visited, &mut |id| {
                visited += 1;
                visit(RecordId::from_number(id));
            });
            from = match next {
                Some(next) => next,
                None => leaf.stretch.end()?,
            };
        }
    }

    /// Selects a random id, each with the same probability. `below` returns a random number below its argument.
    pub(super) fn random(&self, below: &mut impl FnMut(usize) -> usize) -> Option<RecordId> {
        let (region, _) = self.root.random(MAX_REGION_ENTRIES, below)?;
        let (leaf, entry) = region.random(MAX_ENTRIES, below)?;
        Some(RecordId::from_number(leaf.id(entry)))
    }
}

#[cfg(test)]
mod tests;
