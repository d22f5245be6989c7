//! Deletion of expired keys and fields, both those that readers found and those that no client accesses any more.
//!
//! A slot's header holds the time at which its next key is due, and the slot's table indexes due keys by bucket. So the
//! cycle needs no sampling: it reads 16384 header words and queues the slots that are due. Workers process the queue in
//! slices between their batches.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_command_table::spec::CommandFlags;
use weft_table::{Removed, ValueDue};
use weft_values::Value;

use super::access::{HeldLeases, TableCounts, is_expired, value_due_ms};
use super::effects::{Effects, ExpiredKey, Hooks, RemovalCause};
use super::key_identity::NamedKey;
use super::module_values::note_unlinked;
use super::{GatePassage, Keyspace, Seat, Slot, Slots, publish_header, ready_keys};
use crate::notify::keyspace_event::{EventClass, KeyspaceEvent};
use weft_base::slots::SLOTS;
use weft_os::sync::Mutex;
use weft_os::time::Instant;

/// The number of slots taken from the queue at once.
const SLOTS_PER_TAKE: usize = 16;
/// The maximum number of keys deleted under one lease.
const KEYS_PER_LEASE: usize = 64;
/// The maximum number of hash fields deleted under one lease.
const FIELDS_PER_LEASE: usize = 256;
/// The event of a hash that lost expired fields without a command. As in Valkey, its class is `x`, while the same event
/// of a command has class `h`.
const FIELDS_EXPIRED: KeyspaceEvent = KeyspaceEvent {
    class: EventClass::Expired,
    name: "hexpired",
};

/// Queues the slots whose next key is due. Returns the number of queued slots.
pub fn queue_due(slots: &Slots, queue: &Mutex<Vec<SlotIndex>>, now_ms: u64) -> usize {
    let mut queue = queue.lock();
    if !queue.is_empty() {
        return queue.len();
    }
    for slot in 0..SLOTS {
        let header = slots.header(slot);
        if header.hint.due_ms().is_some_and(|due_ms| due_ms < now_ms) && !header.is_importing() {
            queue.push(SlotIndex::from_index(slot));
        }
    }
    queue.len()
}

/// Propagates the recorded effects to other clients while the slot is still leased.
pub type OnExpired<'a> = &'a mut dyn FnMut(&mut Effects);

/// One slice of active expiry.
pub struct ExpirySlice<'a> {
    /// The slots that are due.
    pub queue: &'a Mutex<Vec<SlotIndex>>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The time limit.
    pub budget: Duration,
    /// Returns `true` if keys may be deleted here. It is called inside the gate, at every passage: the server's role
    /// changes in exclusive mode, and a replica deletes nothing by itself.
    pub may_delete: &'a dyn Fn() -> bool,
}

/// Works on queued slots. Returns `true` if slots are left.
pub fn run_slice(
    keyspace: &Keyspace,
    seat: &mut Seat,
    slice: &ExpirySlice<'_>,
    effects: &mut Effects,
    notify: OnExpired<'_>,
) -> bool {
    let start = Instant::now();
    let queue = slice.queue;
    let mut due: Vec<SlotIndex> = Vec::with_capacity(SLOTS_PER_TAKE);
    loop {
        {
            let mut queue = queue.lock();
            let keep = queue.len().saturating_sub(SLOTS_PER_TAKE);
            due.extend(queue.drain(keep..));
        }
        if due.is_empty() {
            return false;
        }
        while let Some(slot) = due.pop() {
            match expire_slot(keyspace, seat, slot, slice, effects, notify) {
                Some(true) => due.push(slot),
                Some(false) => {}
                None => {
                    queue.lock().clear();
                    return false;
                }
            }
            if start.elapsed() >= slice.budget {
                queue.lock().append(&mut due);
                return true;
            }
        }
    }
}

/// Deletes due keys of one slot. Returns `true` if more are due, and `None` if nothing may be deleted here any more.
///
/// A slot that cannot be leased is left to the next cycle, because it stays due. Its lease may belong to a script,
/// which can hold it for seconds. Neither another slot nor the worker waits for it.
fn expire_slot(
    keyspace: &Keyspace,
    seat: &mut Seat,
    slot: SlotIndex,
    slice: &ExpirySlice<'_>,
    effects: &mut Effects,
    notify: OnExpired<'_>,
) -> Option<bool> {
    let (thread_index, now_ms) = (ThreadIndex::new(seat.index()), slice.now_ms);
    let mut removed: Vec<Removed<Value>> = Vec::new();
    let pass = seat.enter();
    if !(slice.may_delete)() {
        return None;
    }
    let Some(mut lease) = pass.write_spinning(slot.index()) else {
        return Some(false);
    };
    let mut more = false;
    effects.hooks = keyspace.hooks.current();
    let (header, data) = lease.parts_mut();
    if header.is_importing() {
        // The source of the import decides when keys expire.
        return Some(false);
    }
    if header.has_pinned_or_unsaved_values() {
        // Removing fields from a pinned hash would require copying it, and unsaved keys would need before-images. The
        // slot stays due, for the next cycle.
        return Some(false);
    }
    let mut fields = FieldExpiry::new(now_ms, effects.hooks, data.watching().is_some());
    let position = (keyspace, thread_index, now_ms);
    for db in DbIndex::all(data.databases()) {
        more |= expire_in_database(
            position,
            data,
            (db, slot),
            (KEYS_PER_LEASE, true),
            &mut fields,
            &mut removed,
            effects,
        );
    }
    effects.log_writer.commit();
    notify(effects);
    publish_header(header, data);
    header.hint.set_due(data.next_due_ms());
    queue_blocked_clients_of_slot(keyspace, data, slot, effects);
    drop(lease);
    drop(pass);
    effects.expired_keys += removed.len() as u64 - fields.emptied;
    effects.expired_fields += fields.removed as u64;
    for removed in removed {
        effects.discard_removed(removed, RemovalCause::Expiry);
    }
    Some(more)
}

/// Deletes due keys of one database of a slot, at most so many. Returns `true` if more are due. Each key is a unit if
/// `ends_units` is set; otherwise all belong to the caller's unit.
fn expire_in_database(
    (keyspace, thread_index, now_ms): (&Keyspace, ThreadIndex, u64),
    data: &mut Slot,
    (db, slot): (DbIndex, SlotIndex),
    (keys_max, ends_units): (usize, bool),
    fields: &mut FieldExpiry,
    removed: &mut Vec<Removed<Value>>,
    effects: &mut Effects,
) -> bool {
    let table = data.table_mut(db);
    let before = TableCounts::of_table(table);
    let from = removed.len();
    fields.volatile = 0;
    // A key still exists in the millisecond of its expiry.
    let until_ms = now_ms.saturating_sub(1);
    let more = table.expire_due(until_ms, keys_max, removed, &mut |name, value| {
        fields.expire_fields(name, value)
    });
    note_removed_keys(keyspace, effects, (db, slot), &removed[from..]);
    let gone = removed[from..].iter().filter(|key| value_due_ms(key.value()).is_some());
    let volatile = fields.volatile - gone.count() as i64;
    keyspace.counts.add_volatile(thread_index, db, volatile);
    let after = TableCounts::of_table(table);
    keyspace.counts.add_difference(thread_index, db, before, after);
    if let Some(watching) = data.watching() {
        for key in &removed[from..] {
            watching.mark_key(db, key.key(), false);
        }
        // Those that lost all fields are among the removed keys.
        for hash in fields.changed.iter().filter(|hash| !hash.is_emptied) {
            watching.mark_key(db, &hash.name, true);
        }
    }
    if !effects.hooks.is_empty() {
        record_expired(effects, db, &removed[from..], &mut fields.changed, ends_units);
    }
    fields.changed.clear();
    more
}

/// Deletes the next due key of a slot that the caller holds, or due fields of hashes, as a part of the caller's unit.
/// Returns `true` if there was something to delete: more may be due.
pub fn expire_next_in_unit(
    keyspace: &Keyspace,
    held: &mut HeldLeases<'_, '_>,
    slot: SlotIndex,
    thread_index: ThreadIndex,
    now_ms: u64,
    effects: &mut Effects,
) -> bool {
    effects.hooks = keyspace.hooks.current();
    let Some((header, data)) = held.writable_slot(slot) else {
        return false;
    };
    if header.is_importing() || header.has_pinned_or_unsaved_values() {
        return false;
    }
    let mut removed = Vec::new();
    let mut fields = FieldExpiry::new(now_ms, effects.hooks, data.watching().is_some());
    let position = (keyspace, thread_index, now_ms);
    for db in DbIndex::all(data.databases()) {
        expire_in_database(
            position,
            data,
            (db, slot),
            (1, false),
            &mut fields,
            &mut removed,
            effects,
        );
        if !removed.is_empty() || fields.removed > 0 {
            break;
        }
    }
    let has_expired = !removed.is_empty() || fields.removed > 0;
    publish_header(header, data);
    header.hint.set_due(data.next_due_ms());
    queue_blocked_clients_of_slot(keyspace, data, slot, effects);
    effects.expired_keys += removed.len() as u64 - fields.emptied;
    effects.expired_fields += fields.removed as u64;
    for removed in removed {
        effects.discard_removed(removed, RemovalCause::Expiry);
    }
    has_expired
}

/// Keeps copies of keys that have expired, if modules look at such keys.
#[inline]
fn note_removed_keys(
    keyspace: &Keyspace,
    effects: &mut Effects,
    (db, slot): (DbIndex, SlotIndex),
    removed: &[Removed<Value>],
) {
    if effects.hooks.contains(Hooks::REMOVED_KEYS) {
        for entry in removed {
            let key = NamedKey {
                name: entry.key(),
                hash: keyspace.hasher.hash(entry.key()),
                slot,
            };
            effects.note_removed_key(db, key, entry.as_ref(), RemovalCause::Expiry.removal(), false);
        }
    }
}

/// Records deletions for the hooks that are set: keys, and hashes that lost fields. Each of them is a unit if
/// `ends_units` is set.
#[cold]
fn record_expired(
    effects: &mut Effects,
    db: DbIndex,
    removed: &[Removed<Value>],
    hashes: &mut Vec<ExpiredFields>,
    ends_units: bool,
) {
    let (events, tracking) = (
        effects.hooks.intersects(Hooks::EVENTS),
        effects.hooks.intersects(Hooks::TRACKING),
    );
    for ExpiredFields {
        name,
        is_emptied: emptied,
        fields,
    } in hashes.drain(..)
    {
        log_expired_fields(effects, db, &name, &fields);
        if emptied && effects.is_logging() {
            effects.log_expired(db, &name);
        }
        if ends_units {
            effects.log_writer.end_unit();
        }
        if events {
            effects.record_event(db, &name, FIELDS_EXPIRED);
            if emptied {
                effects.record_event(db, &name, KeyspaceEvent::generic("del"));
            }
        }
        if tracking {
            effects.record_invalidation(db, &name);
        }
    }
    for key in removed.iter().filter(|key| !is_emptied_hash(key)) {
        record_deletion(effects, db, key);
        if ends_units {
            effects.log_writer.end_unit();
        }
    }
}

/// Records the deletion of an expired key for the hooks that are set.
fn record_deletion(effects: &mut Effects, db: DbIndex, key: &Removed<Value>) {
    if effects.is_logging() {
        effects.log_expired(db, key.key());
    }
    if effects.hooks.intersects(Hooks::EVENTS) {
        effects.record_event(db, key.key(), KeyspaceEvent::EXPIRED);
    }
    if effects.hooks.intersects(Hooks::TRACKING) {
        effects.record_invalidation(db, key.key());
    }
}

/// A hash that lost fields.
struct ExpiredFields {
    name: Box<[u8]>,
    /// `true` if it lost all fields.
    is_emptied: bool,
    /// The names of the fields, if writes are logged.
    fields: Vec<Box<[u8]>>,
}

/// Propagates the expiry of fields.
pub fn log_expired_fields(effects: &mut Effects, db: DbIndex, name: &[u8], fields: &[Box<[u8]>]) {
    if effects.is_logging() && !fields.is_empty() {
        let mut words: Vec<&[u8]> = vec![b"HDEL", name];
        words.extend(fields.iter().map(|field| &**field));
        effects.log_expiry(db, &words);
    }
}

/// Returns `true` if a key was removed because its hash lost the last field.
fn is_emptied_hash(key: &Removed<Value>) -> bool {
    matches!(key.value(), weft_table::ValueRef::Object(Value::Hash(hash)) if hash.is_empty())
}

/// Removal of due fields from the hashes of one slot.
struct FieldExpiry {
    now_ms: u64,
    removed: usize,
    /// The number of hashes that lost their last field.
    emptied: u64,
    /// The change in the number of hashes with fields that expire.
    volatile: i64,
    /// Hashes of the current database that lost fields. Collected only if some hook is on, or keys are watched.
    changed: Vec<ExpiredFields>,
    should_collect: bool,
    is_logging: bool,
}

impl FieldExpiry {
    fn new(now_ms: u64, hooks: Hooks, has_watched_keys: bool) -> Self {
        FieldExpiry {
            now_ms,
            removed: 0,
            emptied: 0,
            volatile: 0,
            changed: Vec::new(),
            should_collect: !hooks.is_empty() || has_watched_keys,
            is_logging: hooks.intersects(Hooks::LOG),
        }
    }

    fn expire_fields(&mut self, name: &[u8], value: &mut Value) -> ValueDue {
        let Value::Hash(hash) = value else {
            return ValueDue::At(None);
        };
        let was_volatile = hash.has_expiring_fields();
        let (mut fields, logs) = (Vec::new(), self.is_logging);
        let limit = FIELDS_PER_LEASE.saturating_sub(self.removed);
        let removed = hash.remove_expired(self.now_ms, limit, |field| {
            if logs {
                fields.push(field.into());
            }
        });
        self.removed += removed;
        if removed > 0 && self.should_collect {
            self.changed.push(ExpiredFields {
                name: name.into(),
                is_emptied: hash.is_empty(),
                fields,
            });
        }
        self.volatile += i64::from(hash.has_expiring_fields()) - i64::from(was_volatile);
        if hash.is_empty() {
            self.emptied += 1;
            return ValueDue::Empty;
        }
        // The limit of this lease is reached. The next lease continues with this hash.
        if hash.has_expired_fields(self.now_ms) {
            return ValueDue::LimitReached;
        }
        ValueDue::At(hash.next_expiry_ms())
    }
}

/// Queues the waiters that end when keys are deleted. They are served after the lease.
pub(super) fn queue_blocked_clients_of_slot(keyspace: &Keyspace, data: &Slot, slot: SlotIndex, effects: &mut Effects) {
    if data.blocked().is_none() {
        return;
    }
    for db in DbIndex::all(data.databases()) {
        ready_keys::add_ready_keys_of_slot(data, db, slot, |name| keyspace.hasher.hash(name), &mut effects.ready);
    }
}

/// Deletes the keys that readers found expired. `may_delete` is called inside the gate; if it returns `false`, the
/// queue of these keys is discarded.
pub fn delete_keys_found_expired(
    keyspace: &Keyspace,
    seat: &mut Seat,
    now_ms: u64,
    may_delete: &dyn Fn() -> bool,
    effects: &mut Effects,
    notify: OnExpired<'_>,
) {
    let thread_index = ThreadIndex::new(seat.index());
    let pass = seat.enter();
    if may_delete() {
        let row = (thread_index, UnitOfExpired::Command);
        delete_keys_found_expired_in_pass(keyspace, &pass, row, now_ms, effects, notify);
    } else {
        discard_keys_found_expired(effects, notify);
    }
}

/// Discards the queue of expired keys that readers have met, on a server that may not delete them.
#[cold]
pub fn discard_keys_found_expired(effects: &mut Effects, notify: OnExpired<'_>) {
    for key in std::mem::take(&mut effects.expired) {
        if key.should_publish_miss {
            effects.record_event(key.db, &key.name, KeyspaceEvent::MISSED);
            notify(effects);
        }
    }
}

/// What is a unit in the log when keys are deleted that a command found expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitOfExpired {
    /// All these keys together.
    Command,
    /// Each key: the command visits keys that its client has not named.
    Key,
}

impl UnitOfExpired {
    /// Returns the unit for a command with these flags, as in Valkey.
    pub fn of_command(flags: CommandFlags) -> UnitOfExpired {
        match flags.contains(CommandFlags::TOUCHES_ARBITRARY_KEYS) {
            true => UnitOfExpired::Key,
            false => UnitOfExpired::Command,
        }
    }
}

/// Deletes the keys that readers found expired, within a passage of the gate. The calling thread counts in the row
/// `thread_index` and holds no lease.
#[cold]
pub fn delete_keys_found_expired_in_pass(
    keyspace: &Keyspace,
    pass: &GatePassage<'_>,
    (thread_index, unit): (ThreadIndex, UnitOfExpired),
    now_ms: u64,
    effects: &mut Effects,
    notify: OnExpired<'_>,
) {
    let expired = std::mem::take(&mut effects.expired);
    // The leases are held to the end, because the log may have all deletions as one transaction.
    let mut leases = BTreeMap::new();
    for key in &expired {
        let slot = key.slot.index();
        // A leased slot is left to the expiry cycle. Its keys are invisible already.
        if !leases.contains_key(&slot)
            && let Some(lease) = pass.try_write(slot)
        {
            leases.insert(slot, lease);
        }
    }
    for key in &expired {
        let was_deleted = leases.get_mut(&key.slot.index()).is_some_and(|lease| {
            effects.hooks = keyspace.hooks.current();
            let (header, data) = lease.parts_mut();
            let is_unsaved = header.is_unsaved();
            delete_key_found_expired(keyspace, data, is_unsaved, key, thread_index, now_ms, effects)
        });
        if was_deleted {
            effects.expired_keys += 1;
            if unit == UnitOfExpired::Key {
                effects.log_writer.end_unit();
            }
        }
        if key.should_publish_miss {
            effects.record_event(key.db, &key.name, KeyspaceEvent::MISSED);
        }
    }
    effects.log_writer.commit();
    notify(effects);
    for (slot, lease) in &mut leases {
        let (header, data) = lease.parts_mut();
        publish_header(header, data);
        queue_blocked_clients_of_slot(keyspace, data, SlotIndex::from_index(*slot), effects);
    }
}

/// Deletes the keys that readers found expired, in slots that the caller holds. What is recorded is a part of the
/// caller's unit.
#[cold]
pub fn delete_keys_found_expired_in_unit(
    keyspace: &Keyspace,
    held: &mut HeldLeases<'_, '_>,
    thread_index: ThreadIndex,
    now_ms: u64,
    effects: &mut Effects,
) {
    for key in std::mem::take(&mut effects.expired) {
        if let Some((header, data)) = held.writable_slot(key.slot) {
            let is_unsaved = header.is_unsaved();
            if delete_key_found_expired(keyspace, data, is_unsaved, &key, thread_index, now_ms, effects) {
                effects.expired_keys += 1;
                publish_header(header, data);
                queue_blocked_clients_of_slot(keyspace, data, key.slot, effects);
            }
        }
        if key.should_publish_miss {
            effects.record_event(key.db, &key.name, KeyspaceEvent::MISSED);
        }
    }
}

/// Deletes a key if it has expired, and records that. Returns `true` if it was deleted.
fn delete_key_found_expired(
    keyspace: &Keyspace,
    data: &mut Slot,
    is_unsaved: bool,
    key: &ExpiredKey,
    thread_index: ThreadIndex,
    now_ms: u64,
    effects: &mut Effects,
) -> bool {
    let (db, name) = (key.db, &key.name);
    let table = data.table_mut(db);
    let before = TableCounts::of_table(table);
    let has_expired = table
        .find(key.hash, name)
        .is_some_and(|entry| is_expired(entry.expire_at_ms(), now_ms));
    if !has_expired {
        return false;
    }
    if is_unsaved {
        let key = NamedKey {
            name,
            hash: key.hash,
            slot: key.slot,
        };
        keyspace.before_images.keep_before_image(db, key, table);
    }
    let Some(removed) = table.remove(key.hash, name) else {
        return false;
    };
    note_unlinked(removed.value(), db, name);
    let named = NamedKey {
        name,
        hash: key.hash,
        slot: key.slot,
    };
    effects.note_removed_key(db, named, removed.as_ref(), RemovalCause::Expiry.removal(), false);
    let volatile = value_due_ms(removed.value()).is_some();
    keyspace.counts.add_volatile(thread_index, db, -i64::from(volatile));
    let after = TableCounts::of_table(table);
    keyspace.counts.add_difference(thread_index, db, before, after);
    if !effects.hooks.is_empty() {
        record_deletion(effects, db, &removed);
    }
    effects.discard_removed(removed, RemovalCause::Expiry);
    if let Some(watching) = data.watching() {
        watching.mark_key(db, name, false);
    }
    true
}

#[cfg(test)]
mod tests;
