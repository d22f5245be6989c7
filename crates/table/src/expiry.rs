//! The expiry index: the buckets that may hold a key that is due.
//!
//! Each bucket of a segment with expiries has a bound: a 32-bit time, at or before the earliest expiry of the entries
//! stored in it, in units of 256 ms since 2020. Each segment has a lower bound of its bounds, and the table (its root)
//! one of its segments' bounds. Only a sweep raises bounds: it reads the entries of the due buckets, removes those that
//! are due, and records exact bounds again. So setting an expiry is two `min`s, removing or postponing one costs
//! nothing, and a bound that is too early costs one read of seven entries, once.
//!
//! ```text
//!   table.next_due ------> segment.next_due -----> bounds: [ 41 | -- | 17 | 60 ]   min = 17
//!                                                                     |
//!                                     bucket 2: entries that expire at 17.3, 55, never, ...
//! ```
//!
//! Growing moves entries without reading them: an entry takes its old bucket's bound along. Since buckets are in hash
//! order, a bound spreads to neighbours only, and the next sweep corrects it.
//!
//! A table of segments is swept in steps of at most [`SEGMENTS_PER_STEP`] per call. The sweep remembers the placement
//! that it has reached (segments may split and merge meanwhile) and the earliest bound of the segments before it, which
//! becomes the table's when the sweep is complete.
//!
//! Values may have parts that are due while their key is not (the fields of a hash). Such a value records its time in
//! the bound of its bucket too, and a sweep lets the caller examine every object in a due bucket.

use crate::bucket::{PLACEMENTS, Placement, SLOTS};
use crate::entry::EntryRef;
use crate::expiry_unit::{NEVER, start_of_ms, unit_of};
use crate::garbage::Removed;
use crate::prefetch::prefetch_line;
use crate::segment::SegmentSlot;
use crate::sweep::Sweep;
use crate::table::Table;

/// The maximum number of segments that a sweep examines in one call.
const SEGMENTS_PER_STEP: usize = 2048;

/// The result of examining a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueDue {
    /// The time at which the next part of the value is due, in milliseconds since the Unix epoch; `None` if no part
    /// ever is.
    At(Option<u64>),
    /// The value has become empty: the key must be removed.
    Empty,
    /// The caller has removed as many parts as it wants to at once, and the value has more that are due. The sweep
    /// ends, and the next one continues with this value.
    LimitReached,
}

/// The parameters and results of a sweep.
struct SweepWork<'a, V> {
    now_ms: u64,
    /// The maximum number of keys in `out`.
    limit: usize,
    out: &'a mut Vec<Removed<V>>,
    look: &'a mut dyn FnMut(&[u8], &mut V) -> ValueDue,
}

impl<V> Table<V> {
    /// Returns a time, in milliseconds since the Unix epoch, before which no key expires, or `None` if none ever does.
    /// Cheap: it reads only the table itself.
    #[inline]
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        if !self.has_due() || self.root.next_due == NEVER {
            return None;
        }
        Some(start_of_ms(self.root.next_due))
    }

    fn has_due(&self) -> bool {
        self.root.with_expiry > 0 || self.root.has_values_due()
    }

    /// Removes at most `at_most` keys that have expired, that is, whose expiry is before `now_ms`. Returns `true` if
    /// there may be more. `look` gets every object in a due bucket and removes the parts of it that are due; an object
    /// of which another handle exists is copied first. If it returns [`ValueDue::LimitReached`], the sweep ends there.
    pub fn expire_due(
        &mut self,
        now_ms: u64,
        at_most: usize,
        out: &mut Vec<Removed<V>>,
        look: &mut dyn FnMut(&[u8], &mut V) -> ValueDue,
    ) -> bool
    where
        V: Clone,
    {
        if !self.has_due() || self.root.next_due > unit_of(now_ms) {
            return false;
        }
        let limit = out.len() + at_most;
        let mut work = SweepWork {
            now_ms,
            limit,
            out,
            look,
        };
        if self.has_directory() {
            self.sweep_directory(&mut work)
        } else {
            let more = self.sweep_segment(0, &mut work);
            if self.root.next_due == NEVER {
                self.root.set_values_due(false);
            }
            self.shrink(0);
            more
        }
    }

    fn sweep_directory(&mut self, work: &mut SweepWork<'_, V>) -> bool
    where
        V: Clone,
    {
        let now_ms = work.now_ms;
        for _ in 0..SEGMENTS_PER_STEP {
            let Some(directory) = self.directory_mut() else {
                return true;
            };
            let Sweep {
                reached,
                earliest,
                began_ms,
            } = directory.sweep;
            if reached == PLACEMENTS {
                directory.sweep = Sweep::new();
                self.root.next_due = earliest;
                if earliest == NEVER {
                    self.root.set_values_due(false);
                }
                return began_ms < now_ms && self.next_due_ms().is_some_and(|due| due < now_ms);
            }
            if reached == 0 {
                directory.sweep.began_ms = now_ms;
            }
            let index = self.segment_index(Placement::new(reached));
            let end = self.placement_range(index).end;
            if self.segment(index).next_due <= unit_of(now_ms) && self.sweep_segment(index, work) {
                return true;
            }
            let next_due = self.segment(index).next_due;
            if let Some(directory) = self.directory_mut() {
                directory.sweep.reached = end;
                directory.sweep.earliest = directory.sweep.earliest.min(next_due);
            }
            self.shrink(index);
        }
        true
    }

    /// Removes due entries of one segment. Returns `true` if a limit was reached before the end.
    fn sweep_segment(&mut self, index: usize, work: &mut SweepWork<'_, V>) -> bool
    where
        V: Clone,
    {
        let now = unit_of(work.now_ms);
        let due_from = |bounds: &[u32], from: usize| {
            let rest = bounds.get(from..)?;
            rest.iter().position(|&bound| bound <= now).map(|at| from + at)
        };
        let mut due = due_from(self.segment(index).bounds(), 0);
        while let Some(bucket) = due {
            due = due_from(self.segment(index).bounds(), bucket + 1);
            if let Some(next) = due {
                self.prefetch_entries_of(index, next);
            }
            if !self.sweep_bucket(index, bucket, work) {
                return true;
            }
        }
        let segment = self.segment_mut(index);
        segment.next_due = segment.bounds().iter().copied().min().unwrap_or(NEVER);
        if segment.next_due == NEVER {
            segment.free_bounds();
        }
        false
    }

    pub(crate) fn prefetch_entries_of(&self, index: usize, bucket: usize) {
        let bucket = self.segment(index).bucket(bucket);
        (0..SLOTS).for_each(|slot| prefetch_line(bucket.entry(slot)));
    }

    /// Removes the due entries of one bucket and corrects its bound. Returns `false` if a limit was reached: `out` is
    /// full, or the caller wants to examine no more values. The bucket then stays due.
    fn sweep_bucket(&mut self, index: usize, bucket: usize, work: &mut SweepWork<'_, V>) -> bool
    where
        V: Clone,
    {
        let mut earliest = NEVER;
        for slot in 0..SLOTS {
            let Some(entry) = self.segment(index).entry_at(bucket, slot) else {
                continue;
            };
            if work.out.len() >= work.limit {
                return false;
            }
            let expire_at_ms = entry.expire_at_ms();
            let mut gone = expire_at_ms.is_some_and(|at_ms| at_ms < work.now_ms);
            if !gone && let Some((mut object, replaced)) = entry.unique_object::<V>() {
                drop(replaced);
                // SAFETY: rules 1, 5 and 8: the table is borrowed exclusively, no other handle of the object exists,
                // and the key is not part of it.
                let (key, value) = unsafe { (EntryRef::<V>::new(entry), object.as_mut()) };
                match (work.look)(key.key(), value) {
                    ValueDue::Empty => gone = true,
                    ValueDue::LimitReached => return false,
                    ValueDue::At(due_ms) => earliest = earliest.min(due_ms.map_or(NEVER, unit_of)),
                }
            }
            if gone {
                let removed = self.remove_without_shrinking(index, SegmentSlot { bucket, slot });
                work.out.push(removed);
            } else {
                earliest = earliest.min(expire_at_ms.map_or(NEVER, unit_of));
            }
        }
        if let Some(bound) = self.segment_mut(index).bounds_mut().get_mut(bucket) {
            *bound = earliest;
        }
        true
    }

    /// Records that the entry at `spot` expires at `expire_at_ms`.
    pub(crate) fn note_expiry(&mut self, index: usize, spot: SegmentSlot, expire_at_ms: Option<u64>) {
        let Some(expire_at_ms) = expire_at_ms else {
            return;
        };
        let due = unit_of(expire_at_ms);
        self.segment_mut(index).lower_bound(spot.bucket, due);
        if let Some(directory) = self.directory_mut() {
            directory.sweep.earliest = directory.sweep.earliest.min(due);
            self.root.next_due = self.root.next_due.min(due);
        }
    }
}

#[cfg(test)]
mod tests;
