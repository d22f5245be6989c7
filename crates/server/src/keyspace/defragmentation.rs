//! The walk of active defragmentation over the keyspace: it moves entries and values out of sparse slabs.
//!
//! The walk takes the lease of one slot at a time, for a step of bounded work. A large value is moved in several steps,
//! each under a lease of its own; meanwhile it may change or be deleted. A slot that is leased at the moment is passed
//! over, and visited again at the end.
//!
//! Moving changes nothing that a command, a snapshot or a replica could see, so neither pauses nor the role matter, nor
//! that a snapshot has not saved the slot yet. Values that another thread reads without a lease are shared, and stay.
//! Between two steps anything may happen to the keyspace: the position is only a number.

use std::collections::VecDeque;
use std::time::Duration;

use weft_base::DbIndex;
use weft_base::slots::SLOTS;
use weft_os::time::Instant;
use weft_table::relocation::Mover;
use weft_values::Value;
use weft_values::relocation::{PartCursor, PartMover};

use super::hash::KeyHasher;
use super::{GatePassage, Seat, Slot, publish_header};

/// The time after which the walk leaves the gate and enters it again.
const PASSAGE_TIME: Duration = Duration::from_millis(1);
/// The number of times that the walk tries to lease a slot again.
const MAX_ATTEMPTS: u32 = 5;

/// The result of a part of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkProgress {
    /// There is more to do.
    Unfinished,
    /// The next slot is leased by another thread: the walk should pause.
    SlotLeased,
    /// All slots were visited.
    Finished,
}

/// A walk over all slots.
pub struct DefragWalk {
    /// The slot that comes next; behind the last one, the slots in `leased` follow.
    slot: usize,
    db: usize,
    /// The position in the table.
    cursor: u32,
    /// The slots that were leased when it was their turn, and the number of attempts.
    leased: VecDeque<(usize, u32)>,
    /// Values of which some parts have not been visited.
    large_values: VecDeque<LargeValue>,
    /// The time spent inside the gate.
    worked: Duration,
}

/// A value that is moved in several steps.
struct LargeValue {
    slot: usize,
    db: DbIndex,
    key: Box<[u8]>,
    /// The first part that has not been visited.
    cursor: PartCursor,
    /// The number of attempts to lease the slot.
    attempts: u32,
}

/// Moves the parts of values.
struct ValueMover<'a>(&'a mut Mover);

impl PartMover for ValueMover<'_> {
    fn is_exhausted(&self) -> bool {
        self.0.is_exhausted()
    }

    fn vec<T>(&mut self, vec: &mut Vec<T>) {
        self.0.vec(vec);
    }

    fn deque<T>(&mut self, deque: &mut VecDeque<T>) {
        self.0.deque(deque);
    }

    fn boxed_slice<T>(&mut self, slice: &mut Box<[T]>) {
        self.0.boxed_slice(slice);
    }

    fn boxed<T>(&mut self, value: &mut Box<T>) {
        self.0.boxed(value);
    }
}

impl DefragWalk {
    /// Begins a walk at the first slot.
    pub fn new() -> Self {
        DefragWalk {
            slot: 0,
            db: 0,
            cursor: 0,
            leased: VecDeque::new(),
            large_values: VecDeque::new(),
            worked: Duration::ZERO,
        }
    }

    /// Returns the time for which the walk has worked since this was asked last. It has not worked while the gate was
    /// closed, which may take long.
    pub fn take_worked(&mut self) -> Duration {
        std::mem::take(&mut self.worked)
    }

    /// Walks on until `deadline`, or until another thread waits for exclusive mode. A step takes `units` units of work
    /// under one lease ([`Mover::begin_step`]); at least one step is taken.
    pub fn walk_until(
        &mut self,
        seat: &mut Seat,
        hasher: &KeyHasher,
        mover: &mut Mover,
        units: u32,
        deadline: Instant,
    ) -> WalkProgress {
        loop {
            let pass = seat.enter();
            let entered = Instant::now();
            let leave_at = deadline.min(entered + PASSAGE_TIME);
            loop {
                mover.begin_step(units);
                let progress = match self.large_values.pop_front() {
                    Some(value) => self.relocate_large_value(&pass, hasher, mover, value),
                    None => self.relocate_slot(&pass, mover),
                };
                if progress != WalkProgress::Unfinished || pass.gate_is_closing() {
                    self.worked += entered.elapsed();
                    return progress;
                }
                if Instant::now() >= leave_at {
                    break;
                }
            }
            self.worked += entered.elapsed();
            if Instant::now() >= deadline {
                return WalkProgress::Unfinished;
            }
        }
    }

    /// Takes a step in the slot that comes next.
    fn relocate_slot(&mut self, pass: &GatePassage<'_>, mover: &mut Mover) -> WalkProgress {
        while self.slot < SLOTS && !pass.domain().header(self.slot).may_hold_any() {
            self.begin_slot(self.slot + 1);
        }
        let (index, attempts) = match (self.slot, self.leased.front()) {
            (SLOTS, None) => return WalkProgress::Finished,
            (SLOTS, Some((index, attempts))) => (*index, *attempts),
            (index, _) => (index, 0),
        };
        let Some(mut lease) = pass.try_write(index) else {
            self.end_slot();
            if attempts < MAX_ATTEMPTS {
                self.leased.push_back((index, attempts + 1));
            }
            // Only at the end there is nothing else to do meanwhile.
            return match self.slot {
                SLOTS => WalkProgress::SlotLeased,
                _ => WalkProgress::Unfinished,
            };
        };
        let (header, slot): (_, &mut Slot) = lease.parts_mut();
        while self.db < slot.databases() && !mover.is_exhausted() {
            let db = DbIndex::new(self.db);
            let large_values = &mut self.large_values;
            let next = slot
                .table_mut(db)
                .relocate_entries(self.cursor, mover, &mut |key, value: &mut Value, mover| {
                    if let Some(cursor) = value.move_parts(PartCursor::default(), &mut ValueMover(mover)) {
                        large_values.push_back(LargeValue {
                            slot: index,
                            db,
                            key: key.into(),
                            cursor,
                            attempts: 0,
                        });
                    }
                });
            self.cursor = next.unwrap_or(0);
            self.db += usize::from(next.is_none());
        }
        let is_last = self.db >= slot.databases();
        publish_header(header, slot);
        drop(lease);
        if is_last {
            self.end_slot();
        }
        WalkProgress::Unfinished
    }

    /// Ends the visit of the slot that comes next.
    fn end_slot(&mut self) {
        match self.slot {
            SLOTS => {
                self.leased.pop_front();
                self.begin_slot(SLOTS);
            }
            index => self.begin_slot(index + 1),
        }
    }

    fn begin_slot(&mut self, slot: usize) {
        (self.slot, self.db, self.cursor) = (slot, 0, 0);
    }

    /// Takes a step in a large value, if it still exists and is not shared.
    fn relocate_large_value(
        &mut self,
        pass: &GatePassage<'_>,
        hasher: &KeyHasher,
        mover: &mut Mover,
        mut large: LargeValue,
    ) -> WalkProgress {
        let Some(mut slot) = pass.try_write(large.slot) else {
            large.attempts += 1;
            if large.attempts <= MAX_ATTEMPTS {
                self.large_values.push_front(large);
            }
            return WalkProgress::SlotLeased;
        };
        if large.db.get() >= slot.databases() {
            return WalkProgress::Unfinished;
        }
        let hash = hasher.hash(&large.key);
        let entry = slot.table_mut(large.db).find_mut(hash, &large.key);
        let Some(mut entry) = entry.filter(|entry| !entry.as_ref().is_shared()) else {
            return WalkProgress::Unfinished;
        };
        let next = entry
            .object_mut()
            .and_then(|value| value.move_parts(large.cursor, &mut ValueMover(mover)));
        drop(slot);
        if let Some(cursor) = next {
            large.cursor = cursor;
            large.attempts = 0;
            self.large_values.push_front(large);
        }
        WalkProgress::Unfinished
    }
}

#[cfg(test)]
mod tests;
