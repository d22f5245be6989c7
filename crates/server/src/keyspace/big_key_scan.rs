//! One step of the scan for big keys: a walk over the keys that ends after some time.
//!
//! The walk holds one read lease at a time, and leaves the gate after [`KEYS_PER_PASSAGE`] keys. No value is walked
//! through: all collections count their bytes and elements.

use std::time::Duration;

use weft_base::DbIndex;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::hash::{self, HashRef};
use weft_values::list::packed::PackedList;
use weft_values::packed::PackedKind;
use weft_values::set::SetView;
use weft_values::sorted_set::packed::PackedSortedSet;

use super::access::KeyCounts;
use super::walk::{Cursor, WalkAccess, WalkEnd, walk};
use super::{GatePassage, Seat};
use crate::observability::big_keys::{ScanPosition, ScanStep, TYPES};
use weft_os::time::Instant;

#[cfg(test)]
mod tests;

/// The number of keys that are visited in one passage of the gate. They take some 10 µs if they are not cached.
const KEYS_PER_PASSAGE: usize = if cfg!(feature = "simulated") { 4 } else { 64 };
/// The number of refusals after which a slot is left out: it is in use for longer than any ordinary command.
const MAX_REFUSALS: u32 = 1000;
/// The pause after a refusal.
const RETRY_INTERVAL: Duration = Duration::from_micros(50);

/// Walks on from the position of the step until its time is over or all keys are visited.
pub fn run_step(seat: &mut Seat, counts: &KeyCounts, step: &mut ScanStep) {
    let deadline = Instant::now() + step.budget;
    loop {
        if step.position.cursor == Cursor::START.to_number() {
            let Some(db) = next_used_database(counts, step.position.db) else {
                step.is_complete = true;
                return;
            };
            step.position.db = db.get();
        }
        let ScanPosition { db, cursor, refusals } = step.position;
        let end = visit_keys(&seat.enter(), DbIndex::new(db), step);
        let (db, next, refusals) = match end {
            WalkEnd::End => (db + 1, Cursor::START, 0),
            WalkEnd::Paused(next) => (db, next, 0),
            WalkEnd::Contended(here) if here.to_number() != cursor || refusals < MAX_REFUSALS => {
                weft_os::thread::sleep(RETRY_INTERVAL);
                let earlier = if here.to_number() == cursor { refusals } else { 0 };
                (db, here, earlier + 1)
            }
            WalkEnd::Contended(here) => {
                step.skipped_slots += 1;
                (db, here.next_slot(), 0)
            }
        };
        step.position = ScanPosition {
            db,
            cursor: next.to_number(),
            refusals,
        };
        if Instant::now() >= deadline {
            return;
        }
    }
}

/// Returns the first database from `from` on that has keys.
fn next_used_database(counts: &KeyCounts, from: usize) -> Option<DbIndex> {
    DbIndex::all(counts.databases())
        .skip(from)
        .find(|db| counts.keys(*db) > 0)
}

fn visit_keys(pass: &GatePassage<'_>, db: DbIndex, step: &mut ScanStep) -> WalkEnd {
    let from = Cursor::from_number(step.position.cursor);
    walk(&WalkAccess::Pass(pass), db, from, KEYS_PER_PASSAGE, &mut |_, entry| {
        if matches!(entry.value(), ValueRef::Object(Value::Module(_))) {
            // Only its module knows how large it is.
            return;
        }
        let (kind, bytes) = (type_index(entry.value()), allocated_bytes(entry));
        if step.count(kind, bytes) {
            step.add(kind, db, entry.key(), bytes, element_count(entry.value()));
        }
    })
}

/// Returns the number of bytes that a key and its value take from the allocator.
fn allocated_bytes(entry: EntryRef<'_, Value>) -> u64 {
    let behind = match entry.value() {
        ValueRef::Object(object) => object.allocated_bytes(),
        _ => 0,
    };
    (entry.allocated_bytes() + behind) as u64
}

/// Returns the index of a value's type in [`TYPES`].
fn type_index(value: ValueRef<'_, Value>) -> usize {
    let name = match value {
        ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Blob(_) => return 0,
        ValueRef::Packed(packed) => PackedKind::of(packed).type_name(),
        ValueRef::Object(object) => object.type_name(),
    };
    TYPES.iter().position(|known| *known == name).unwrap_or(0)
}

/// Returns the number of elements of a value; of a string, its length in bytes.
fn element_count(value: ValueRef<'_, Value>) -> u64 {
    let count = match value {
        ValueRef::Int(number) => itoa::Buffer::new().format(number).len(),
        ValueRef::Bytes(bytes) => bytes.len(),
        ValueRef::Blob(blob) => blob.len(),
        ValueRef::Packed(packed) => match PackedKind::of(packed) {
            PackedKind::List => PackedList::new(packed).len(),
            PackedKind::Hash => HashRef::Packed(hash::run_of(packed)).len(),
            PackedKind::Set | PackedKind::IntegerSet => SetView::of_packed(packed).len(),
            PackedKind::SortedSet => PackedSortedSet::new(packed).len(),
        },
        ValueRef::Object(Value::List(list)) => list.len(),
        ValueRef::Object(Value::Hash(hash)) => hash.len(),
        ValueRef::Object(Value::Set(set)) => set.len(),
        ValueRef::Object(Value::SortedSet(set)) => set.len(),
        ValueRef::Object(Value::Stream(stream)) => return stream.length(),
        ValueRef::Object(Value::Module(_)) => 1,
    };
    count as u64
}
