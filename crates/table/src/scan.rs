//! Going through a table: in hash order with a cursor, all at once, or at random.
//!
//! A cursor is a placement: all keys with smaller placements have been visited. A key's placement
//! never changes, and `scan` visits every key whose placement lies between the cursor it was given
//! and the one it returns; so no resize, split or merge between calls can make it miss a key that is
//! there all the time. Within a call, the keys are visited home by home, because the array is in hash
//! order only that far.

use crate::bucket::{PLACEMENTS, Placement, SLOTS};
use crate::entry::EntryRef;
use crate::expiry_unit::NEVER;
use crate::segment::{Segment, SegmentSlot};
use crate::table::Table;

/// The cursor at which [`Table::scan`] visits a key with this hash: one from a greater cursor on leaves it out.
#[inline]
#[must_use]
pub fn scan_position(hash: u64) -> u32 {
    Placement::of_hash(hash).number()
}

/// Random positions tried before the nearest entry is taken instead.
const RANDOM_TRIES: usize = 128;

impl<V> Table<V> {
    /// Visits keys in hash order, starting at cursor `from` (0 at first), at least `at_least` of
    /// them if there are so many. Returns the cursor for the next call, `None` at the end. A key
    /// that is there from the first call to the last is visited, whatever happens in between.
    pub fn scan(&self, from: u32, at_least: usize, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> Option<u32> {
        let mut cursor = from;
        let mut visited = 0;
        while cursor < PLACEMENTS {
            let index = self.segment_index(Placement::new(cursor));
            let stretch = self.stretch(index);
            let segment = self.segment(index);
            if segment.len == 0 {
                cursor = stretch.end;
                continue;
            }
            while cursor < stretch.end {
                let home = segment.home(Placement::new(cursor));
                visited += visit_home(segment, home, cursor, visit);
                cursor = stretch.start + segment.first_placement_of(home + 1);
                if visited >= at_least {
                    return (cursor < PLACEMENTS).then_some(cursor);
                }
            }
        }
        None
    }

    /// All keys, in no particular order.
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

    /// A key chosen by the random number, each nearly as likely as any other.
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

/// Buckets and segments that one call of [`Table::sample`] looks at.
const SAMPLED_BUCKETS: usize = 4096;

impl<V> Table<V> {
    /// Visits keys that lie together, from a random bucket on, `at_most` of them; with `expiring` only keys that have
    /// an expiry, and buckets without such keys cost next to nothing. Returns how many were visited: fewer if there are
    /// no more, or if they are rare in a large table.
    pub fn sample(&self, random: u64, at_most: usize, expiring: bool, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> usize {
        if self.is_empty() || (expiring && self.with_expiry() == 0) {
            return 0;
        }
        let number = mix(random);
        let first = self.segment_index(Placement::of_hash(number));
        let mut index = first;
        let start = ((number & 0x3f_ffff) as usize * self.segment(first).bucket_count()) >> 22;
        let mut bucket = start;
        // Of a full bucket not all entries may be wanted: which of them are first is drawn, too.
        let turn = (number >> 32) as usize % SLOTS;
        let (mut visited, mut looked_at, mut wrapped) = (0, 0, false);
        loop {
            let segment = self.segment(index);
            // The first segment is looked at a second time, for what lies before the bucket at which this began.
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
                    visited += visit_bucket(segment, (bucket, turn), at_most - visited, expiring, visit);
                }
                bucket += 1;
            }
            looked_at += 1;
            if ends || visited >= at_most || looked_at >= SAMPLED_BUCKETS {
                return visited;
            }
            bucket = 0;
            let next = self.stretch(index).end;
            (index, wrapped) = match next < PLACEMENTS {
                true => (self.segment_index(Placement::new(next)), wrapped),
                false => (0, true),
            };
        }
    }
}

/// Visits entries of one bucket, from the slot `turn` on; returns how many.
fn visit_bucket<V>(
    segment: &Segment,
    (bucket, turn): (usize, usize),
    at_most: usize,
    expiring: bool,
    visit: &mut dyn FnMut(EntryRef<'_, V>),
) -> usize {
    let mut visited = 0;
    for slot in (turn..SLOTS).chain(0..turn) {
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

/// Visits the entries of one home whose placement is `from` or greater; returns how many.
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
