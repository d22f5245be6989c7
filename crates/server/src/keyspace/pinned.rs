//! Which slots have values that are lent: to commands that look at them for long, without a lease.
//!
//! A snapshot ([`super::access::Snapshot`]) holds handles of large values. Changing such a value in place would mean
//! copying it first, which takes the longer the larger it is, and would keep a worker from everybody else. So who wants
//! to change one waits until it is given back, as if its slot were leased, while everything else goes on:
//!
//! ```text
//!   slot's header:   marks  | . . . databases . . . | lent |     set from the first loan to the end of the last
//!   write lease taken ─▶ not lent (always, nearly): go on
//!                     └▶ lent: is one of the values that this command changes where it is large, and shared?
//!                            no ─▶ go on          yes ─▶ the connection is put off, and the slot is wanted
//! ```
//!
//! 1. The mark is set under a lease of the slot, before the first handle is made, and taken out after the last is gone.
//!    So who has the slot's write lease and sees no mark shares nothing.
//! 2. A wanted slot lends nothing more for [`RESERVED`] after the last attempt: who waits gets in between two loans,
//!    however many there are. Commands that would have had a snapshot are put off meanwhile.
//! 3. Values that are replaced or deleted wait for nobody: the table gives up its reference, and the last handle frees
//!    the old value.
//! 4. MIGRATE freezes the keys that it sends: whoever would write one, in whatever way, is put off until it is done.
//!    Who reads goes on: until the key is gone, it is here.
//! 5. What is changed without a look at the mark (transactions in exclusive mode, clients that were served) is copied.
//!    That is slow, and right.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Slots;
use crate::observability::lock;

/// How long a slot lends nothing after somebody wanted to change what is lent. Who was put off comes back sooner.
const RESERVED: Duration = Duration::from_millis(5);

/// What is known of a slot that lends, or is wanted.
struct PinRecord {
    /// Loans that have not ended.
    pins: u32,
    /// Queued commands that want to change a value of the slot.
    writers: u32,
    reserved_until: Option<Instant>,
    /// Keys that nobody may write, with their databases.
    frozen: Vec<FrozenKey>,
}

/// A key that nobody may write: its database and its name.
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
    /// How many keys are frozen. Hardly ever any, so writers in slots that lend, or that a snapshot has not saved, need
    /// not lock the records to find that out. Raised under leases of the slots of these keys.
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
    /// Reserves slots for a queued command that wants to change their values. It holds nothing that another command
    /// waits for: loans that have begun go on, and a command that is refused a new one holds none.
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

    /// Begins a loan of values of these slots, each of which the caller has a lease of; `None` if one of them is
    /// wanted.
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

    /// Begins a loan of values of a slot that the caller has a lease of, wanted or not: what a snapshot reads of them
    /// has to be read at some time, and who wants to change them waits for that.
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

    /// Begins a loan of the values of these keys, which nobody may write until it ends; `None` if a slot is wanted or a
    /// key is frozen already. The caller has leases of all their slots.
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

    /// Returns `true` if nobody may write a key at the moment. The caller has a lease of its slot.
    pub fn is_frozen(&self, slot: u16, db: usize, name: &[u8]) -> bool {
        // Who froze it had a lease of the slot, whose end released the count to the caller's.
        self.frozen.load(Ordering::Acquire) > 0 && self.is_among_frozen(slot, |key| key.0 == db && *key.1 == *name)
    }

    /// The same for a key of this name in any database.
    pub fn is_frozen_anywhere(&self, slot: u16, name: &[u8]) -> bool {
        self.frozen.load(Ordering::Acquire) > 0 && self.is_among_frozen(slot, |key| *key.1 == *name)
    }

    #[cold]
    fn is_among_frozen(&self, slot: u16, is_it: impl Fn(&FrozenKey) -> bool) -> bool {
        let records = lock(&self.records);
        let frozen = records.get(&slot).map_or(&[][..], |record| &record.frozen);
        frozen.iter().any(is_it)
    }

    /// Somebody was put off who wants to change a value that this slot has lent.
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
