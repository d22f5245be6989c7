//! Bookkeeping of slots with pinned values: values that long-running commands read without a lease.
//!
//! A snapshot ([`super::access::KeySnapshot`]) holds handles of large values. Changing such a value in place would
//! require copying it first. The time for that grows with the size of the value, and it would block the worker for all
//! of its clients. So a command that wants to change a pinned value waits until it is unpinned, as if its slot were
//! leased, while everything else continues:
//!
//! ```text
//!   slot's header:   marks  | . . . databases . . . | pinned |     set from the first pin to the end of the last
//!   write lease taken ─▶ not pinned (nearly always): continue
//!                     └▶ pinned: is one of the values that this command changes in place large, and shared?
//!                            no ─▶ continue       yes ─▶ the connection is parked, and the slot is reserved
//! ```
//!
//! 1. The mark is set under a lease of the slot before the first handle is made. It is cleared after the last handle is
//!    gone. So a holder of the slot's write lease that sees no mark shares no value.
//! 2. A writer that is put off reserves the slot: it grants no new pins until a writer of the slot has had its turn, or
//!    the writer has not tried again for long ([`BriefReservation::renew`]). So a waiting writer gets in between two
//!    pins, however many there are. Commands that would have taken a snapshot are deferred meanwhile. The mark stays
//!    while the slot is reserved in this way, so that the writer comes by here.
//! 3. Values that are replaced or deleted wait for no pin. The table gives up its reference, and the last handle frees
//!    the old value.
//! 4. MIGRATE freezes the keys that it sends. Every command, transaction and script that would write one is deferred
//!    until MIGRATE has ended. Readers continue: until the key is deleted, it is on this node.
//! 5. A writer that was put off and then held back by CLIENT PAUSE copies the value. Its reservation has ended in the
//!    pause, so others may have pinned the value again, and the next pause may come before they end.
//! 6. A change that does not check the mark (scripts, transactions in exclusive mode, clients that were served) copies
//!    the value. That is slow but correct.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Slots;

use weft_base::{DbIndex, SlotIndex};
use weft_os::atomic::{AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::{Mutex, MutexGuard};
use weft_os::time::Instant;

/// The shortest time for which a slot gives no pins after a writer wanted a pinned value. A writer that was put off
/// returns earlier. Only one whose client has gone away does not.
const MIN_RESERVATION_TIME: Duration = Duration::from_millis(200);
/// The longest such time. The turns of a worker are that long only if there are many more threads than cores.
const MAX_RESERVATION_TIME: Duration = Duration::from_secs(5);
/// The time for which a reservation is remembered after its end, to know how long its writer takes to try again.
const MEMORY_TIME: Duration = Duration::from_secs(2);
/// The reservation as a multiple of the time between the last two attempts.
const RESERVED_INTERVALS: u32 = 4;
/// The number of keys of a slot whose writers are remembered.
const MAX_RESERVATIONS: usize = 8;

/// The time after which a command that waits for keys to cease to be frozen is admitted again, whether they have or
/// not.
const MAX_THAW_WAIT: Duration = Duration::from_secs(1);

/// The state of a slot that has pinned values or is reserved.
struct PinRecord {
    /// The number of pins that have not ended.
    pins: u32,
    /// The number of queued commands that want to change a value of the slot.
    queued_writers: u32,
    /// One for each key that writers wait to change, up to [`MAX_RESERVATIONS`].
    reservations: Vec<BriefReservation>,
    /// The names of keys that may not be written, with their databases.
    frozen: HashMap<Box<[u8]>, Vec<DbIndex>>,
}

/// A reservation of a slot for a writer that was put off, and tries again soon.
struct BriefReservation {
    /// The hash of the key that it changes.
    key_hash: u64,
    last_attempt: Instant,
    until: Instant,
}

impl BriefReservation {
    /// Reserves until the writer must have tried again: a few times as long as it took between its last two attempts.
    fn renew(before: Option<&BriefReservation>, key_hash: u64) -> Self {
        let now = Instant::now();
        let interval = before.map_or(Duration::ZERO, |before| now - before.last_attempt);
        let time = (interval * RESERVED_INTERVALS).clamp(MIN_RESERVATION_TIME, MAX_RESERVATION_TIME);
        BriefReservation {
            key_hash,
            last_attempt: now,
            until: now + time,
        }
    }
}

/// A key that may not be written: its database and its name.
pub type FrozenKey = (DbIndex, Box<[u8]>);

impl PinRecord {
    fn new() -> Self {
        PinRecord {
            pins: 0,
            queued_writers: 0,
            reservations: Vec::new(),
            frozen: HashMap::new(),
        }
    }

    fn is_reserved(&self, now: Instant) -> bool {
        self.queued_writers > 0 || self.reservations.iter().any(|brief| now < brief.until)
    }

    /// Returns `true` if the slot keeps its mark and its record.
    fn is_marked(&self) -> bool {
        self.pins > 0 || !self.reservations.is_empty()
    }

    /// Renews the reservation for the writers of a key. The others keep theirs: writers of two keys that take turns
    /// would otherwise both be forgotten. Beyond the limit the one that ends first goes.
    fn renew_reservation(&mut self, key_hash: u64) {
        let known = self.reservations.iter().position(|brief| brief.key_hash == key_hash);
        let renewed = BriefReservation::renew(known.map(|at| &self.reservations[at]), key_hash);
        let full = self.reservations.len() >= MAX_RESERVATIONS;
        let first_to_end = || (0..self.reservations.len()).min_by_key(|at| self.reservations[*at].until);
        match known.or_else(|| first_to_end().filter(|_| full)) {
            Some(at) => self.reservations[at] = renewed,
            None => self.reservations.push(renewed),
        }
    }

    /// Returns `true` if there is any reason to keep the record.
    fn is_needed(&self) -> bool {
        self.is_marked() || self.queued_writers > 0
    }
}

/// The slots that have pinned values or are reserved.
#[derive(Default)]
pub struct PinnedSlots {
    records: Mutex<HashMap<SlotIndex, PinRecord>>,
    /// The number of frozen keys. It is nearly always zero, so writers in slots that have pinned values, or that a
    /// snapshot has not saved, need not lock the records to find that out. It is raised under leases of the slots of
    /// these keys.
    frozen: AtomicUsize,
    /// The number of times that keys ceased to be frozen. It changes while `records` is locked.
    thaws: AtomicU64,
    /// What is to be done when keys cease to be frozen. It is locked after `records`.
    after_thaw: Mutex<Vec<AfterThaw>>,
}

/// A function that lets a command continue, which waits until keys cease to be frozen.
struct AfterThaw {
    since: Instant,
    run: Box<dyn FnOnce() + Send>,
}

/// A pin on values of some slots. The holder drops its handles before this.
pub struct Pin {
    pinned: Arc<PinnedSlots>,
    slots: Arc<Slots>,
    slot_numbers: Vec<SlotIndex>,
    frozen: Vec<(SlotIndex, FrozenKey)>,
}

/// Slots that grant no new pins to commands until a queued command has changed them.
pub struct SlotReservation {
    pinned: Arc<PinnedSlots>,
    numbers: Vec<SlotIndex>,
}

impl PinnedSlots {
    /// Reserves slots for a queued command that wants to change their values. A reservation holds nothing that another
    /// command waits for: existing pins continue, and a command that is refused a new pin holds none.
    pub fn reserve(self: &Arc<Self>, mut numbers: Vec<SlotIndex>) -> SlotReservation {
        numbers.sort_unstable();
        numbers.dedup();
        let mut records = self.records.lock();
        for number in &numbers {
            records.entry(*number).or_insert_with(PinRecord::new).queued_writers += 1;
        }
        SlotReservation {
            pinned: self.clone(),
            numbers,
        }
    }

    /// Pins values of these slots. The caller has a lease of each. Returns `None` if one of them is reserved.
    pub fn pin(self: &Arc<Self>, slots: &Arc<Slots>, mut numbers: Vec<SlotIndex>) -> Option<Pin> {
        numbers.sort_unstable();
        numbers.dedup();
        let records = self.records.lock();
        let now = Instant::now();
        let is_reserved = |number| {
            records
                .get(number)
                .is_some_and(|record: &PinRecord| record.is_reserved(now))
        };
        if numbers.iter().any(is_reserved) {
            return None;
        }
        Some(self.add_pin(records, slots, numbers))
    }

    /// Pins values of a slot that the caller has a lease of, even if it is reserved. The saving snapshot has to read
    /// these values at some time, and a command that wants to change them waits for that.
    pub fn pin_for_snapshot(self: &Arc<Self>, slots: &Arc<Slots>, number: SlotIndex) -> Pin {
        self.add_pin(self.records.lock(), slots, vec![number])
    }

    fn add_pin(
        self: &Arc<Self>,
        mut records: MutexGuard<'_, HashMap<SlotIndex, PinRecord>>,
        slots: &Arc<Slots>,
        numbers: Vec<SlotIndex>,
    ) -> Pin {
        for number in &numbers {
            let record = records.entry(*number).or_insert_with(PinRecord::new);
            record.pins += 1;
            slots.header(number.index()).set_pinned(true);
        }
        Pin {
            pinned: self.clone(),
            slots: slots.clone(),
            slot_numbers: numbers,
            frozen: Vec::new(),
        }
    }

    /// Pins the values of these keys and forbids writing the keys until the pin ends. Returns `None` if a slot is
    /// reserved or a key is frozen already. The caller has leases of all their slots.
    pub fn freeze(self: &Arc<Self>, slots: &Arc<Slots>, keys: Vec<(SlotIndex, FrozenKey)>) -> Option<Pin> {
        if keys.iter().any(|(slot, (db, name))| self.is_frozen(*slot, *db, name)) {
            return None;
        }
        let mut pin = self.pin(slots, keys.iter().map(|(slot, _)| *slot).collect())?;
        let mut records = self.records.lock();
        self.frozen.fetch_add(keys.len(), Ordering::Release);
        for (slot, (db, name)) in &keys {
            if let Some(record) = records.get_mut(slot) {
                record.frozen.entry(name.clone()).or_default().push(*db);
            }
        }
        drop(records);
        pin.frozen = keys;
        Some(pin)
    }

    /// Returns `true` if some key may not be written at the moment.
    pub fn has_frozen_keys(&self) -> bool {
        self.frozen.load(Ordering::Acquire) > 0
    }

    /// Returns `true` if a key of the slot may not be written at the moment.
    pub fn has_frozen_keys_in(&self, slot: SlotIndex) -> bool {
        let has_frozen = |record: &PinRecord| !record.frozen.is_empty();
        self.has_frozen_keys() && self.records.lock().get(&slot).is_some_and(has_frozen)
    }

    /// Returns the number of times that keys ceased to be frozen. A command that waits for a key reads it before it
    /// looks for frozen keys, and waits until it has changed.
    pub fn thaws(&self) -> u64 {
        self.thaws.load(Ordering::Acquire)
    }

    /// Calls a function as soon as the number of thaws is not `thaws` any more, or when it has waited for long
    /// ([`Self::run_long_waiting`]). The function must not pin or unpin values.
    pub fn run_after_thaw(&self, thaws: u64, run: impl FnOnce() + Send + 'static) {
        let records = self.records.lock();
        if self.thaws() == thaws {
            let (since, run) = (Instant::now(), Box::new(run));
            self.after_thaw.lock().push(AfterThaw { since, run });
            return;
        }
        drop(records);
        run();
    }

    /// Calls the functions that have waited for a thaw for [`MAX_THAW_WAIT`]. What they let continue is admitted again:
    /// its client may have been killed, and the role of the server, the cluster and permissions may have changed.
    pub fn run_long_waiting(&self) {
        let now = Instant::now();
        let is_long = |waiting: &mut AfterThaw| now >= waiting.since + MAX_THAW_WAIT;
        let long: Vec<AfterThaw> = self.after_thaw.lock().extract_if(.., is_long).collect();
        for waiting in long {
            (waiting.run)();
        }
    }

    /// Returns `true` if a key may not be written at the moment. The caller has a lease of its slot.
    pub fn is_frozen(&self, slot: SlotIndex, db: DbIndex, name: &[u8]) -> bool {
        // The thread that froze the key held a lease of the slot. Its release made the count visible to the caller's
        // lease.
        self.has_frozen_keys() && self.is_among_frozen(slot, name, |databases| databases.contains(&db))
    }

    /// Returns `true` if a key of this name may not be written in some database. The caller has a lease of its slot.
    pub fn is_frozen_in_any_database(&self, slot: SlotIndex, name: &[u8]) -> bool {
        self.has_frozen_keys() && self.is_among_frozen(slot, name, |_| true)
    }

    #[cold]
    fn is_among_frozen(&self, slot: SlotIndex, name: &[u8], is_it: impl Fn(&[DbIndex]) -> bool) -> bool {
        let records = self.records.lock();
        let databases = records.get(&slot).and_then(|record| record.frozen.get(name));
        databases.is_some_and(|databases| is_it(databases))
    }

    /// Reserves a slot with pins for a writer of a pinned value, which is put off. Returns `false` if the slot has no
    /// pins: then the writer need not wait.
    pub fn reserve_briefly(&self, slot: SlotIndex, key_hash: u64) -> bool {
        let mut records = self.records.lock();
        let pinned = records.get_mut(&slot).filter(|record| record.pins > 0);
        let is_pinned = pinned.is_some();
        if let Some(record) = pinned {
            record.renew_reservation(key_hash);
        }
        is_pinned
    }

    /// Ends the brief reservation of a slot, because a writer of the key has its turn. The caller has the slot's write
    /// lease.
    pub fn end_brief_reservation(&self, slots: &Slots, slot: SlotIndex, key_hash: u64) {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&slot) else {
            return;
        };
        let before = record.reservations.len();
        record.reservations.retain(|brief| brief.key_hash != key_hash);
        if record.reservations.len() < before {
            release_slot(&mut records, slots, slot);
        }
    }

    /// Forgets the brief reservations whose writers have not come back for long.
    pub fn end_expired_reservations(&self, slots: &Slots) {
        let mut records = self.records.lock();
        let now = Instant::now();
        let ended: Vec<SlotIndex> = records
            .iter_mut()
            .filter_map(|(slot, record)| {
                let before = record.reservations.len();
                record.reservations.retain(|brief| now < brief.until + MEMORY_TIME);
                (record.reservations.len() < before).then_some(*slot)
            })
            .collect();
        for slot in ended {
            release_slot(&mut records, slots, slot);
        }
    }
}

/// Removes the mark of a slot, and its record, as soon as they are not needed.
fn release_slot(records: &mut HashMap<SlotIndex, PinRecord>, slots: &Slots, slot: SlotIndex) {
    let Some(record) = records.get(&slot) else {
        return;
    };
    if !record.is_marked() {
        slots.header(slot.index()).set_pinned(false);
    }
    if !record.is_needed() {
        records.remove(&slot);
    }
}

impl Drop for SlotReservation {
    fn drop(&mut self) {
        let mut records = self.pinned.records.lock();
        for number in &self.numbers {
            if let Some(record) = records.get_mut(number) {
                record.queued_writers -= 1;
                if !record.is_needed() {
                    records.remove(number);
                }
            }
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.slot_numbers.is_empty() {
            return;
        }
        let mut waiting = Vec::new();
        let mut records = self.pinned.records.lock();
        if !self.frozen.is_empty() {
            self.pinned.frozen.fetch_sub(self.frozen.len(), Ordering::Release);
            self.pinned.thaws.fetch_add(1, Ordering::Release);
            waiting = std::mem::take(&mut *self.pinned.after_thaw.lock());
        }
        for (slot, (db, name)) in &self.frozen {
            if let Some(record) = records.get_mut(slot)
                && let Some(databases) = record.frozen.get_mut(name)
            {
                databases.retain(|other| other != db);
                if databases.is_empty() {
                    record.frozen.remove(name);
                }
            }
        }
        for number in &self.slot_numbers {
            if let Some(record) = records.get_mut(number) {
                record.pins -= 1;
                release_slot(&mut records, &self.slots, *number);
            }
        }
        drop(records);
        for waiting in waiting {
            (waiting.run)();
        }
    }
}

#[cfg(test)]
mod tests;
