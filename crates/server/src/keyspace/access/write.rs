//! One key under a write lease, from opening the write to recording its result.

use weft_table::{EntryMut, EntryRef, NewValue, Removed};
use weft_values::Value;
use weft_values::hash::Hash;

use crate::keyspace::effects::{Cause, Effects, Hooks};
use crate::keyspace::ready_keys::{self, ReadyKey};
use crate::keyspace::writable_replica_keys::LocalKey;
use crate::keyspace::{InterestedClients, Slot, SlotHeader, SlotTable};
use crate::notify::keyspace_event::Event;

use super::{AccessContext, is_expired, object_due_ms, value_due_ms};

/// The identity of a key as [`KeyWrite`] uses it.
#[derive(Clone, Copy)]
pub struct NamedKey<'k> {
    /// The key's name.
    pub name: &'k [u8],
    /// The hash of its name.
    pub hash: u64,
    /// The slot of the key.
    pub slot: u16,
}

/// The effect of setting a value on the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The expiry stays.
    Keep,
    /// Removes the expiry.
    Never,
    /// Sets the expiry to this time, in ms since the Unix epoch.
    At(u64),
}

/// One key under a write lease. It is closed by [`KeyWrite::changed`] or [`KeyWrite::unchanged`].
pub struct KeyWrite<'k> {
    table: &'k mut SlotTable,
    header: &'k SlotHeader,
    /// The clients that wait for or watch keys of the slot.
    interested: Option<&'k InterestedClients>,
    name: &'k [u8],
    hash: u64,
    slot: u16,
    db: usize,
    access: &'k AccessContext<'k>,
    effects: &'k mut Effects,
    keys_before: usize,
    /// The number of keys in the table when the interested clients were last notified.
    keys_told: usize,
    expiring_before: usize,
    /// The change in the number of volatile values.
    volatile: i64,
    closed: bool,
}

// Closing a write moves it. A larger value would be moved by a call to `memcpy`.
const _: () = assert!(size_of::<KeyWrite<'_>>() <= 128);

impl<'k> KeyWrite<'k> {
    /// Opens a key of a slot that is held for writing. An expired entry is deleted first.
    #[inline]
    pub fn new(
        (header, slot): (&'k SlotHeader, &'k mut Slot),
        key: NamedKey<'k>,
        db: usize,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        // The slot outlives the table borrow. `finish` publishes through the header alone.
        let (table, interested) = slot.table_and_interested(db, key.hash);
        if header.is_unsaved() {
            effects.keep(db, key, table);
        }
        let expiring = table.with_expiry();
        let open = (table, interested, header);
        if expiring > 0 && !access.sees_expired && has_expired(open.0, &key, access) {
            return Self::without_expired(open, key, db, access, effects);
        }
        Self::of(open, key, db, access, effects)
    }

    #[cold]
    fn without_expired(
        open: OpenSlot<'k>,
        key: NamedKey<'k>,
        db: usize,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        let mut write = Self::of(open, key, db, access, effects);
        write.delete_expired();
        write
    }

    /// Built in its final place and not modified here, because a modified value would be moved field by field.
    #[inline]
    fn of(
        (table, interested, header): OpenSlot<'k>,
        key: NamedKey<'k>,
        db: usize,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        KeyWrite {
            keys_before: table.len(),
            keys_told: table.len(),
            expiring_before: table.with_expiry(),
            volatile: 0,
            table,
            header,
            interested,
            name: key.name,
            hash: key.hash,
            slot: key.slot,
            db,
            access,
            effects,
            closed: false,
        }
    }
}

/// A slot that is held for writing: the table of a database, the clients interested in its changes, and the header.
type OpenSlot<'k> = (&'k mut SlotTable, Option<&'k InterestedClients>, &'k SlotHeader);

/// Returns `true` if a key of a slot exists and has expired.
pub(super) fn has_expired_in(
    (_, slot): &(&SlotHeader, &mut Slot),
    key: &NamedKey<'_>,
    db: usize,
    access: &AccessContext<'_>,
) -> bool {
    let table = slot.table(db).filter(|table| table.with_expiry() > 0);
    table.is_some_and(|table| has_expired(table, key, access))
}

fn has_expired(table: &SlotTable, key: &NamedKey<'_>, access: &AccessContext<'_>) -> bool {
    table
        .find(key.hash, key.name)
        .is_some_and(|entry| is_expired(entry.expire_at_ms(), access.now_ms))
}

impl<'k> KeyWrite<'k> {
    /// The key's name, with a lifetime that permits other uses of the key.
    pub fn named(&self) -> &'k [u8] {
        self.name
    }
}

impl KeyWrite<'_> {
    /// The key's name.
    #[inline]
    pub fn name(&self) -> &[u8] {
        self.name
    }

    /// Returns the current entry.
    #[inline]
    pub fn entry(&self) -> Option<EntryRef<'_, Value>> {
        self.table.find(self.hash, self.name)
    }

    /// Returns the current entry, and counts this as a use.
    #[inline]
    pub fn use_entry(&self) -> Option<EntryRef<'_, Value>> {
        let entry = self.entry()?;
        if self.access.touch {
            self.access.clock.touch(entry);
        }
        Some(entry)
    }

    /// The entry, for changes in place. Its access clock advances.
    #[inline]
    pub fn entry_mut(&mut self) -> Option<EntryMut<'_, Value>> {
        let entry = self.table.find_mut(self.hash, self.name)?;
        if self.access.touch {
            self.access.clock.touch(entry.as_ref());
        }
        Some(entry)
    }

    /// Returns `true` if the key exists.
    #[inline]
    pub fn exists(&self) -> bool {
        self.entry().is_some()
    }

    /// Sets the value. Creates the key if it is missing.
    #[inline]
    pub fn set(&mut self, value: NewValue<'_, Value>, expiry: Expiry) {
        let due_ms = match &value {
            NewValue::Object(object) => object_due_ms(object),
            NewValue::Shared(object) => object_due_ms(object),
            _ => None,
        };
        match self.table.find_mut(self.hash, self.name) {
            Some(mut entry) => {
                if self.access.touch {
                    self.access.clock.touch(entry.as_ref());
                }
                match expiry {
                    Expiry::Keep => {}
                    Expiry::Never => {
                        if entry.expire_at_ms().is_some() {
                            let freed = entry.set_expire(None);
                            self.effects.discard(freed);
                        }
                    }
                    Expiry::At(at) => {
                        let freed = entry.set_expire(Some(at));
                        self.effects.discard(freed);
                    }
                }
                if entry.object().and_then(object_due_ms).is_some() {
                    self.volatile -= 1;
                }
                let freed = entry.set_value(value);
                self.effects.discard(freed);
            }
            None => {
                let at = match expiry {
                    Expiry::At(at) => Some(at),
                    Expiry::Keep | Expiry::Never => None,
                };
                let clock = self.access.clock.of_new_entry();
                let freed = self.table.insert(self.hash, self.name, value, at, clock);
                self.effects.discard(freed);
                self.note(Event::NEW);
            }
        }
        if let Expiry::At(at) = expiry {
            self.note_expiry(at);
        }
        if let Some(due_ms) = due_ms {
            self.note_volatile(due_ms);
        }
    }

    /// Lowers the slot's due time to this time. On a writable replica the key is also noted for local expiry.
    #[inline]
    fn note_expiry(&mut self, at_ms: u64) {
        self.header.hint.lower_due(at_ms);
        if self.effects.hooks.has(Hooks::LOCAL_EXPIRY) {
            self.note_local(at_ms);
        }
    }

    #[cold]
    fn note_local(&mut self, at_ms: u64) {
        // For the primary nothing expires; it deletes its keys itself.
        if self.access.now_ms > 0 {
            self.effects.local.push(LocalKey {
                db: self.db,
                slot: self.slot,
                hash: self.hash,
                name: self.name.into(),
                at_ms,
            });
        }
    }

    /// Counts a volatile value that was stored here, and records its due time.
    #[cold]
    fn note_volatile(&mut self, due_ms: u64) {
        self.volatile += 1;
        if let Some(mut entry) = self.table.find_mut(self.hash, self.name) {
            entry.note_value_due(due_ms);
        }
        self.header.hint.lower_due(due_ms);
    }

    /// Changes a hash that is stored as an object. Returns `None` if the key's value is not such a hash.
    pub fn change_hash<R>(&mut self, change: impl FnOnce(&mut Hash) -> R) -> Option<R> {
        let mut entry = self.table.find_mut(self.hash, self.name)?;
        if self.access.touch {
            self.access.clock.touch(entry.as_ref());
        }
        let Some(Value::Hash(hash)) = entry.object_mut() else {
            return None;
        };
        let was_volatile = hash.has_expiring_fields();
        let result = change(hash);
        let due_ms = hash.next_expiry_ms();
        self.volatile += i64::from(due_ms.is_some()) - i64::from(was_volatile);
        if let Some(due_ms) = due_ms {
            entry.note_value_due(due_ms);
            self.header.hint.lower_due(due_ms);
        }
        Some(result)
    }

    /// Sets or removes the expiry of an existing key.
    pub fn set_expiry(&mut self, expire_at_ms: Option<u64>) {
        if let Some(mut entry) = self.table.find_mut(self.hash, self.name) {
            let freed = entry.set_expire(expire_at_ms);
            self.effects.discard(freed);
            if let Some(at) = expire_at_ms {
                self.note_expiry(at);
            }
        }
    }

    /// Removes and returns the entry.
    pub fn remove(&mut self) -> Option<Removed<Value>> {
        let removed = self.table.remove(self.hash, self.name)?;
        self.volatile -= i64::from(value_due_ms(removed.value()).is_some());
        Some(removed)
    }

    /// Counts a lookup as a reader does, for a command that replies with the previous value.
    pub fn count_lookup(&mut self) {
        if self.exists() {
            self.effects.hits += 1;
        } else {
            self.effects.misses += 1;
            self.note(Event::MISSED);
        }
    }

    /// Deletes the entry because a client gave it an expiry in the past. Returns `true` if there was an entry.
    pub fn delete_passed(&mut self) -> bool {
        let deleted = self.delete();
        self.effects.expired_keys += u64::from(deleted);
        deleted
    }

    /// Deletes the entry. Its memory is freed after the lease. Returns `true` if there was an entry.
    pub fn delete(&mut self) -> bool {
        self.delete_for(Cause::Command)
    }

    /// Like [`Self::delete`], with another cause.
    pub fn delete_for(&mut self, cause: Cause) -> bool {
        match self.remove() {
            Some(removed) => {
                self.effects.discard_removed(removed, cause);
                true
            }
            None => false,
        }
    }

    /// Stores an entry that was removed elsewhere under this key's name, with its expiry, and records the event of a
    /// new key.
    pub fn put(&mut self, removed: Removed<Value>) {
        self.replace(removed);
        self.note(Event::NEW);
    }

    /// Like [`Self::put`], for a key that may exist.
    pub fn replace(&mut self, removed: Removed<Value>) {
        let at = removed.expire_at_ms();
        let due_ms = value_due_ms(removed.value());
        if self.entry().is_some_and(|entry| value_due_ms(entry.value()).is_some()) {
            self.volatile -= 1;
        }
        let freed = self.table.insert_removed(self.hash, self.name, removed);
        self.effects.discard(freed);
        if let Some(at) = at {
            self.note_expiry(at);
        }
        if let Some(due_ms) = due_ms {
            self.note_volatile(due_ms);
        }
    }

    /// Closes the write: the key changed. `event` names the change.
    #[inline]
    pub fn changed(mut self, event: Event) {
        self.effects.dirty += 1;
        self.note(event);
        self.tell_interested();
        self.finish();
    }

    /// Closes the write: the key changed, and the dirty count grows by `times`.
    pub fn changed_times(mut self, event: Event, times: u64) {
        self.effects.dirty += times;
        self.note(event);
        self.tell_interested();
        self.finish();
    }

    /// Closes the write: the change matters to clients blocked on the key, but not to clients that watch it or cache
    /// it.
    pub fn changed_for_waiting(mut self, event: Event, times: u64) {
        self.effects.dirty += times;
        self.note(event);
        if let Some(interested) = self.interested {
            self.wake(interested);
        }
        self.finish();
    }

    /// Closes the write: the change counts `times` times and is only propagated. No client is informed, and watches are
    /// not marked.
    pub fn changed_quietly(mut self, times: u64) {
        self.effects.dirty += times;
        self.finish();
    }

    /// Closes the write: nothing changed.
    #[inline]
    pub fn unchanged(mut self) {
        self.finish();
    }

    /// Counts hash fields that were deleted because they had expired, and records the event.
    pub fn expired_fields(&mut self, fields: usize) {
        if fields > 0 {
            self.count_expired_fields(fields as u64);
            self.note(Event::hash("hexpired"));
        }
    }

    /// Counts hash fields that were deleted because they had expired.
    pub fn count_expired_fields(&mut self, fields: u64) {
        self.effects.expired_fields += fields;
    }

    /// Records an event in addition to the one that closes the write (`set` with `expire`).
    #[inline]
    pub fn note(&mut self, event: Event) {
        if self.effects.hooks.has(Hooks::NOTED) {
            self.effects.note(self.db, self.name, event);
        }
    }

    /// Logs this command instead of the command that runs.
    #[inline]
    pub fn log_instead(&mut self, words: &[&[u8]]) {
        self.effects.log_instead(words);
    }

    /// Returns the record of the command's effects, for propagation.
    pub fn effects(&mut self) -> &mut Effects {
        self.effects
    }

    /// Deletes the entry because it has expired, and records, counts and logs the expiry.
    fn delete_expired(&mut self) {
        if self.delete_for(Cause::Expiry) {
            self.effects.expired_keys += 1;
            self.note(Event::EXPIRED);
            if self.effects.logs() {
                self.effects.log_expired(self.db, self.name);
            }
            self.tell_interested();
        }
    }

    /// Marks the watches of the key, and queues its waiters if they can be served from its new state.
    #[inline]
    fn tell_interested(&mut self) {
        if self.effects.hooks.has(Hooks::TRACKING) {
            self.keys_told = self.table.len();
            self.effects.note_value(self.db, self.name);
        }
        if let Some(interested) = self.interested {
            self.tell(interested);
        }
    }

    #[cold]
    fn tell(&mut self, interested: &InterestedClients) {
        self.keys_told = self.table.len();
        interested.watching.touch(self.db, self.name, self.exists());
        self.wake(interested);
    }

    /// Queues the key's waiters if they can be served from its new state.
    fn wake(&mut self, interested: &InterestedClients) {
        let kind = ready_keys::kind_of(self.entry());
        if interested.waiting.has_waiter_for(self.db, self.name, kind) {
            ready_keys::note(
                &mut self.effects.ready,
                ReadyKey::new(self.db, self.slot, self.hash, self.name),
            );
        }
    }

    fn finish(&mut self) {
        self.closed = true;
        if self.table.len() != self.keys_told {
            // This also covers changes that are counted with another key (RENAME, MOVE).
            self.tell_interested();
        }
        let keys = self.table.len() as i64 - self.keys_before as i64;
        let expiring = self.table.with_expiry() as i64 - self.expiring_before as i64;
        self.access.counts.add(self.access.seat, self.db, keys, expiring);
        self.access
            .counts
            .add_volatile(self.access.seat, self.db, self.volatile);
        let occupied = !self.table.is_empty();
        if occupied != (self.keys_before > 0) {
            self.header.mark(self.db, occupied);
        }
        if self.db == 0 {
            self.table.publish(&self.header.hint);
        }
    }
}

impl Drop for KeyWrite<'_> {
    fn drop(&mut self) {
        if !self.closed {
            debug_assert!(std::thread::panicking(), "a KeyWrite was neither changed nor unchanged");
            self.finish();
        }
    }
}
