//! Pinned values: values that long commands read without a lease.
//!
//! A snapshot ([`super::access::Snapshot`]) holds handles of large values. Changing such a value in place would mean
//! copying it first, which takes longer the larger it is, and would keep a worker busy. So a writer of such a value
//! waits until it is unpinned, as if its slot were leased, while all other commands go on:
//!
//! ```text
//!   slot's header:   marks  | . . . databases . . . | pinned |   set from the first pin to the end of the last
//!   write lease taken ─▶ not pinned (nearly always): continue
//!                     └▶ pinned: is one of the values that this command changes in place large, and shared?
//!                            no ─▶ continue       yes ─▶ the connection is put off, and the slot is wanted
//! ```
//!
//! 1. The mark is set under a lease of the slot, before the first handle is made, and cleared after the last is
//!    dropped. So the holder of the slot's write lease that sees no mark shares nothing.
//! 2. A wanted slot gives no new pins for [`RESERVED`] after the last attempt. So a waiting writer gets in between two
//!    pins, however many there are. Commands that would have had a snapshot are put off meanwhile.
//! 3. Values that are replaced or deleted wait for nothing: the table drops its reference, and the last handle frees
//!    the old value.
//! 4. MIGRATE freezes the keys that it sends: a command that would write one in any way is put off until MIGRATE has
//!    ended. Readers go on: until the key is deleted, it is on this node.
//! 5. Values that are changed without a check of the mark (transactions in exclusive mode, clients that were served)
//!    are copied. That is slow, and correct.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Slots;
use crate::observability::lock;

/// The time for which a slot gives no pins after a writer wanted a pinned value. A writer that was put off returns
/// earlier.
const RESERVED: Duration = Duration::from_millis(5);

/// The record of a slot that has pins, or is wanted.
struct PinRecord {
    /// Loans that have not ended.
    pins: u32,
    /// Queued commands that want to change a value of the slot.
    writers: u32,
    reserved_until: Option<Instant>,
    /// Keys that must not be written, with their databases.
    frozen: Vec<FrozenKey>,
}

/// A key that must not be written: its database and its name.
pub type FrozenKey = (usize, Box<[u8]>);

impl PinRecord {
    fn new() -> Self {
        PinRecord {
            pins: 0,
            writers: 0,
            reserved_until: None,
            frozen: Vec::new(),
        }
    }

    fn is_reserved(&self, now: Instant) -> bool {
        self.writers > 0 || self.reserved_until.is_some_and(|until| now < until)
    }
}

/// The slots that lend.
#[derive(Default)]
pub struct PinnedSlots {
    records: Mutex<HashMap<u16, PinRecord>>,
    /// The number of frozen keys. There is hardly ever one, so writers in slots that have pins, or that a snapshot has
    /// not saved, need not lock the records to find out. Raised under leases of the slots of these keys.
    frozen: AtomicUsize,
}

/// Values of some slots are out. Whoever holds handles drops them before this.
pub struct Pin {
    lent: Arc<PinnedSlots>,
    slots: Arc<Slots>,
    numbers: Vec<u16>,
    frozen: Vec<(u16, FrozenKey)>,
}

/// Slots that lend nothing more to commands until a queued command has changed them.
pub struct Reservation {
    lent: Arc<PinnedSlots>,
    numbers: Vec<u16>,
}

impl PinnedSlots {
    /// Reserves slots for a queued command that wants to change their values. The command holds nothing that another
    /// one waits for: existing pins go on, and a command that is refused a new one holds none.
    pub fn reserve(self: &Arc<Self>, mut numbers: Vec<u16>) -> Reservation {
        numbers.sort_unstable();
        numbers.dedup();
        let mut records = lock(&self.records);
        for number in &numbers {
            records.entry(*number).or_insert_with(PinRecord::new).writers += 1;
        }
        Reservation {
            lent: self.clone(),
            numbers,
        }
    }

    /// Pins values of these slots, on each of which the caller has a lease. Returns `None` if one of them is wanted.
    pub fn lend(self: &Arc<Self>, slots: &Arc<Slots>, mut numbers: Vec<u16>) -> Option<Pin> {
        numbers.sort_unstable();
        numbers.dedup();
        let records = lock(&self.records);
        let now = Instant::now();
        let is_reserved = |number| {
            records
                .get(number)
                .is_some_and(|record: &PinRecord| record.is_reserved(now))
        };
        if numbers.iter().any(is_reserved) {
            return None;
        }
        Some(self.begin(records, slots, numbers))
    }

    /// Pins values of a slot on which the caller has a lease, wanted or not: a snapshot must read them at some time,
    /// and writers wait for that.
    pub fn lend_to_snapshot(self: &Arc<Self>, slots: &Arc<Slots>, number: u16) -> Pin {
        self.begin(lock(&self.records), slots, vec![number])
    }

    fn begin(
        self: &Arc<Self>,
        mut records: MutexGuard<'_, HashMap<u16, PinRecord>>,
        slots: &Arc<Slots>,
        numbers: Vec<u16>,
    ) -> Pin {
        for number in &numbers {
            let record = records.entry(*number).or_insert_with(PinRecord::new);
            record.pins += 1;
            slots.header(usize::from(*number)).set_lent(true);
        }
        Pin {
            lent: self.clone(),
            slots: slots.clone(),
            numbers,
            frozen: Vec::new(),
        }
    }

    /// Pins the values of these keys, which must not be written until the pin is dropped. Returns `None` if a slot is
    /// wanted or a key is frozen already. The caller has leases of all their slots.
    pub fn freeze(self: &Arc<Self>, slots: &Arc<Slots>, keys: Vec<(u16, FrozenKey)>) -> Option<Pin> {
        if keys.iter().any(|(slot, (db, name))| self.is_frozen(*slot, *db, name)) {
            return None;
        }
        let mut pin = self.lend(slots, keys.iter().map(|(slot, _)| *slot).collect())?;
        let mut records = lock(&self.records);
        self.frozen.fetch_add(keys.len(), Ordering::Release);
        for (slot, key) in &keys {
            if let Some(record) = records.get_mut(slot) {
                record.frozen.push(key.clone());
            }
        }
        drop(records);
        pin.frozen = keys;
        Some(pin)
    }

    /// Returns `true` if a key must not be written at the moment. The caller has a lease of its slot.
    pub fn is_frozen(&self, slot: u16, db: usize, name: &[u8]) -> bool {
        // The thread that froze it had a lease of the slot, whose end released the count to the caller's lease.
        self.frozen.load(Ordering::Acquire) > 0 && self.is_among_frozen(slot, |key| key.0 == db && *key.1 == *name)
    }

    /// Like [`Self::is_frozen`], for a key of this name in any database.
    pub fn is_frozen_anywhere(&self, slot: u16, name: &[u8]) -> bool {
        self.frozen.load(Ordering::Acquire) > 0 && self.is_among_frozen(slot, |key| *key.1 == *name)
    }

    #[cold]
    fn is_among_frozen(&self, slot: u16, is_it: impl Fn(&FrozenKey) -> bool) -> bool {
        let records = lock(&self.records);
        let frozen = records.get(&slot).map_or(&[][..], |record| &record.frozen);
        frozen.iter().any(is_it)
    }

    /// Records that a writer of a pinned value was put off.
    pub fn want(&self, slot: u16) {
        if let Some(record) = lock(&self.records).get_mut(&slot) {
            record.reserved_until = Some(Instant::now() + RESERVED);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut records = lock(&self.lent.records);
        let now = Instant::now();
        for number in &self.numbers {
            if let Some(record) = records.get_mut(number) {
                record.writers -= 1;
            }
        }
        records.retain(|_, record| record.pins > 0 || record.is_reserved(now));
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.numbers.is_empty() {
            return;
        }
        let mut records = lock(&self.lent.records);
        let now = Instant::now();
        self.lent.frozen.fetch_sub(self.frozen.len(), Ordering::Release);
        for (slot, key) in &self.frozen {
            if let Some(record) = records.get_mut(slot)
                && let Some(at) = record.frozen.iter().position(|other| other == key)
            {
                record.frozen.swap_remove(at);
            }
        }
        for number in &self.numbers {
            if let Some(record) = records.get_mut(number) {
                record.pins -= 1;
                if record.pins == 0 {
                    self.slots.header(usize::from(*number)).set_lent(false);
                }
            }
        }
        records.retain(|_, record| record.pins > 0 || record.is_reserved(now));
    }
}

#[cfg(test)]
mod tests;
