//! Iteration over a table: in hash order with a cursor, all at once, or at random.
//!
//! A cursor is a placement: all keys with smaller placements have been visited. A key's placement never changes, and
//! `scan` visits every key whose placement lies between the cursor that it was given and the one that it returns. So no
//! resize, split or merge between calls can make it miss a key that exists all the time. Within a call, the keys are
//! visited home by home, because the array is in hash order only at that granularity.

use crate::bucket::{PLACEMENTS, Placement, SLOTS};
use crate::entry::EntryRef;
use crate::expiry_unit::NEVER;
use crate::prefetch::prefetch_line;
use crate::segment::{Segment, SegmentSlot};
use crate::table::Table;

/// Returns the cursor at which [`Table::scan`] visits a key with this hash; a scan from a greater cursor skips it.
#[inline]
#[must_use]
pub fn scan_position(hash: u64) -> u32 {
    Placement::of_hash(hash).number()
}

/// The size of a cache line in bytes.
const LINE_BYTES: usize = 64;

/// The number of random positions that are tried before the nearest entry is taken instead.
const RANDOM_TRIES: usize = 128;

impl<V> Table<V> {
    /// Visits keys in hash order, starting at cursor `from` (0 at first): at least `at_least` keys, if there are so
    /// many. Returns the cursor for the next call, or `None` at the end. A key that exists from the first call to the
    /// last is visited, whatever changes in between.
    pub fn scan(&self, from: u32, at_least: usize, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> Option<u32> {
        let mut cursor = from;
        let mut visited = 0;
        while cursor < PLACEMENTS {
            let index = self.segment_index(Placement::new(cursor));
            let placement_range = self.placement_range(index);
            let segment = self.segment(index);
            if segment.len == 0 {
                cursor = placement_range.end;
                continue;
            }
            prefetch_entries(segment, segment.home(Placement::new(cursor)));
            while cursor < placement_range.end {
                let home = segment.home(Placement::new(cursor));
                if home + 1 < segment.bucket_count() {
                    prefetch_entries(segment, home + 1);
                }
                visited += visit_home(segment, home, cursor, visit);
                cursor = placement_range.start + segment.first_placement_of(home + 1);
                if visited >= at_least {
                    return (cursor < PLACEMENTS).then_some(cursor);
                }
            }
        }
        None
    }

    /// Iterates over all keys in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_, V>> {
        self.segments().flat_map(|segment| {
            let slots = segment.bucket_count() * SLOTS;
            (0..slots).filter_map(|at| {
                let entry = segment.entry_at(at / SLOTS, at % SLOTS)?;
                // SAFETY: rule 1: the table is borrowed as long as the entry.
                Some(unsafe { EntryRef::new(entry) })
            })
        })
    }

    /// Returns a key chosen by the random number, each almost equally likely.
    #[must_use]
    pub fn random(&self, random: u64) -> Option<EntryRef<'_, V>> {
        if self.is_empty() {
            return None;
        }
        let mut state = random;
        for _ in 0..RANDOM_TRIES {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let number = mix(state);
            let segment = self.segment_of(Placement::of_hash(number));
            let slots = (segment.bucket_count() * SLOTS) as u64;
            let at = (((number & 0x3f_ffff) * slots) >> 22) as usize;
            if slots > 0
                && let Some(entry) = segment.entry_at(at / SLOTS, at % SLOTS)
            {
                // SAFETY: rule 1: the table is borrowed as long as the entry.
                return Some(unsafe { EntryRef::new(entry) });
            }
        }
        self.iter().next()
    }
}

/// The number of buckets and segments that one call of [`Table::sample`] examines at most.
const SAMPLED_BUCKETS: usize = 4096;

impl<V> Table<V> {
    /// Visits up to `at_most` neighbouring keys, starting at a random bucket. With `expiring` it visits only keys that
    /// have an expiry, and buckets without such keys cost almost nothing. Returns the number of visited keys: fewer
    /// than `at_most` if there are no more, or if they are rare in a large table.
    pub fn sample(&self, random: u64, at_most: usize, expiring: bool, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> usize {
        if self.is_empty() || (expiring && self.with_expiry() == 0) {
            return 0;
        }
        let number = mix(random);
        let first = self.segment_index(Placement::of_hash(number));
        let mut index = first;
        let start = ((number & 0x3f_ffff) as usize * self.segment(first).bucket_count()) >> 22;
        let mut bucket = start;
        // Not all entries of a full bucket may be wanted, so the first slot is chosen at random, too.
        let first_slot = (number >> 32) as usize % SLOTS;
        let (mut visited, mut looked_at, mut wrapped) = (0, 0, false);
        loop {
            let segment = self.segment(index);
            // The first segment is visited a second time, for the buckets before the one where this call started.
            let ends = wrapped && index == first;
            let end = match (segment.len, ends) {
                (0, _) => 0,
                _ if expiring && segment.bounds().is_empty() => 0,
                (_, true) => start,
                _ => segment.bucket_count(),
            };
            while bucket < end && visited < at_most && looked_at < SAMPLED_BUCKETS {
                looked_at += 1;
                if !expiring || segment.bound(bucket) != NEVER {
                    visited += visit_bucket(segment, bucket, first_slot, at_most - visited, expiring, visit);
                }
                bucket += 1;
            }
            looked_at += 1;
            if ends || visited >= at_most || looked_at >= SAMPLED_BUCKETS {
                return visited;
            }
            bucket = 0;
            let next = self.placement_range(index).end;
            (index, wrapped) = match next < PLACEMENTS {
                true => (self.segment_index(Placement::new(next)), wrapped),
                false => (0, true),
            };
        }
    }
}

/// Visits entries of one bucket, starting at slot `first_slot`; returns their number.
fn visit_bucket<V>(
    segment: &Segment,
    bucket: usize,
    first_slot: usize,
    at_most: usize,
    expiring: bool,
    visit: &mut dyn FnMut(EntryRef<'_, V>),
) -> usize {
    let mut visited = 0;
    for slot in (first_slot..SLOTS).chain(0..first_slot) {
        let Some(entry) = segment.entry_at(bucket, slot) else {
            continue;
        };
        if expiring && entry.expire_at_ms().is_none() {
            continue;
        }
        // SAFETY: rule 1: the table is borrowed while it is sampled.
        visit(unsafe { EntryRef::new(entry) });
        visited += 1;
        if visited == at_most {
            break;
        }
    }
    visited
}

/// Prefetches the first lines of the entries in a bucket.
fn prefetch_entries(segment: &Segment, bucket: usize) {
    let bucket = segment.bucket(bucket);
    for slot in 0..SLOTS {
        let entry = bucket.entry(slot);
        prefetch_line(entry);
        prefetch_line(entry.cast::<u8>().wrapping_add(LINE_BYTES));
    }
}

/// Visits the entries of one home whose placement is at least `from`; returns their number.
fn visit_home<V>(segment: &Segment, home: usize, from: u32, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> usize {
    let mut visited = 0;
    let mut index = home;
    for _ in 0..segment.bucket_count() {
        let bucket = segment.bucket(index);
        for slot in 0..SLOTS {
            if bucket.entry(slot).is_null() {
                continue;
            }
            let placement = bucket.placement(slot);
            if placement.number() >= from && segment.home(placement) == home {
                let entry = segment.entry(SegmentSlot { bucket: index, slot });
                // SAFETY: rule 1: the table is borrowed while it is scanned.
                visit(unsafe { EntryRef::new(entry) });
                visited += 1;
            }
        }
        if !bucket.is_overflowed() {
            break;
        }
        index = segment.after(index);
    }
    visited
}

/// A bijection whose results look random (splitmix64's finaliser).
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
