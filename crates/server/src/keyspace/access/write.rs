//! One key under a write lease, from opening the write to recording its result.

use std::cell::Cell;

use weft_base::{DbIndex, SlotIndex};
use weft_modules::module::server_events::KeyRemoval;
use weft_table::{EntryMut, EntryRef, NewValue, Removed, ValueRef};
use weft_values::Value;
use weft_values::hash::Hash;

use crate::clients_waiting::blocking::WaitedKind;
use crate::keyspace::effects::{Effects, Hooks, RemovalCause};
use crate::keyspace::key_identity::LocalExpiry;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::module_values::{note_object_unlinked, note_unlinked};
use crate::keyspace::ready_keys::{self, ReadyKey};
use crate::keyspace::{InterestedClients, Slot, SlotHeader, SlotTable};
use crate::notify::keyspace_event::KeyspaceEvent;

use super::{AccessContext, is_expired, object_due_ms, value_due_ms};

/// The effect of setting a value on the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryUpdate {
    /// The expiry stays.
    Keep,
    /// Removes the expiry.
    Remove,
    /// Sets the expiry to this time, in ms since the Unix epoch.
    SetTo(u64),
}

/// One key under a write lease. A write that is dropped changed nothing; one that changed the key is closed by
/// [`KeyWrite::changed`] or one of its relatives.
pub struct KeyWrite<'k> {
    table: &'k mut SlotTable,
    header: &'k SlotHeader,
    /// The clients that wait for or watch keys of the slot.
    interested: Option<&'k InterestedClients>,
    name: &'k [u8],
    hash: u64,
    slot: SlotIndex,
    db: DbIndex,
    access: &'k AccessContext<'k>,
    effects: &'k mut Effects,
    keys_before: usize,
    /// The number of keys in the table when the interested clients were last notified.
    keys_at_last_notification: usize,
    expiring_before: usize,
    /// The change in the number of volatile values.
    volatile: i64,
    /// `true` until the entry's access clock has advanced. It advances once, however often the handler accesses the
    /// entry; that of a new entry does not.
    is_touch_pending: Cell<bool>,
    /// Set by a method that replaces or removes the entry or its expiry, until the change is declared.
    is_modified: bool,
    is_closed: bool,
}

// Closing a write moves it. A larger value would be moved by a call to `memcpy`.
const _: () = assert!(size_of::<KeyWrite<'_>>() <= 128);

impl<'k> KeyWrite<'k> {
    /// Opens a key of a slot that is held for writing. An expired entry is deleted first.
    #[inline]
    pub fn new(
        header: &'k SlotHeader,
        slot: &'k mut Slot,
        key: NamedKey<'k>,
        db: DbIndex,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        Self::open::<false>(header, slot, key, db, access, effects)
    }

    /// Like [`Self::new`], but an expired entry stays, for a command that deletes what is stored without looking it up.
    pub fn with_expired(
        header: &'k SlotHeader,
        slot: &'k mut Slot,
        key: NamedKey<'k>,
        db: DbIndex,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        Self::open::<true>(header, slot, key, db, access, effects)
    }

    #[inline]
    fn open<const KEEPS_EXPIRED: bool>(
        header: &'k SlotHeader,
        slot: &'k mut Slot,
        key: NamedKey<'k>,
        db: DbIndex,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        // The slot outlives the table borrow. `finish` publishes through the header alone.
        let (table, interested) = slot.table_and_interested_clients(db, key.hash);
        if header.is_unsaved() {
            effects.keep_before_image(db, key, table);
        }
        if effects.undo.is_some() {
            effects.keep_former_state(db, key, table);
        }
        let expiring = table.with_expiry();
        let open = OpenSlot {
            table,
            interested,
            header,
            counts_use: !KEEPS_EXPIRED,
        };
        if !KEEPS_EXPIRED && expiring > 0 && has_expired(open.table, &key, access) {
            return Self::open_without_expired(open, key, db, access, effects);
        }
        Self::from_parts(open, key, db, access, effects)
    }

    #[cold]
    fn open_without_expired(
        open: OpenSlot<'k>,
        key: NamedKey<'k>,
        db: DbIndex,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        let mut write = Self::from_parts(open, key, db, access, effects);
        write.delete_expired();
        write
    }

    /// Built in its final place and not modified here, because a modified value would be moved field by field.
    #[inline]
    fn from_parts(
        open: OpenSlot<'k>,
        key: NamedKey<'k>,
        db: DbIndex,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        let OpenSlot {
            table,
            interested,
            header,
            counts_use,
        } = open;
        KeyWrite {
            keys_before: table.len(),
            keys_at_last_notification: table.len(),
            expiring_before: table.with_expiry(),
            volatile: 0,
            is_touch_pending: Cell::new(counts_use && access.should_touch),
            table,
            header,
            interested,
            name: key.name,
            hash: key.hash,
            slot: key.slot,
            db,
            access,
            effects,
            is_modified: false,
            is_closed: false,
        }
    }
}

/// A slot that is held for writing, opened for one database.
struct OpenSlot<'k> {
    table: &'k mut SlotTable,
    /// The clients that wait for or watch keys of the slot.
    interested: Option<&'k InterestedClients>,
    header: &'k SlotHeader,
    /// `true` if access to the entry is a use of it.
    counts_use: bool,
}

/// Returns `true` if a key of a slot exists and has expired.
pub(super) fn has_expired_in(slot: &Slot, key: &NamedKey<'_>, db: DbIndex, access: &AccessContext<'_>) -> bool {
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
    pub fn name_for_plan(&self) -> &'k [u8] {
        self.name
    }

    /// Returns the identity of the key.
    fn named(&self) -> NamedKey<'k> {
        NamedKey {
            name: self.name,
            hash: self.hash,
            slot: self.slot,
        }
    }
}

impl KeyWrite<'_> {
    /// The key's name.
    #[inline]
    pub fn name(&self) -> &[u8] {
        self.name
    }

    /// Returns the current entry. The first access is a use of the key.
    #[inline]
    pub fn entry(&self) -> Option<EntryRef<'_, Value>> {
        let entry = self.stored()?;
        touch_once(&self.is_touch_pending, self.access, entry);
        Some(entry)
    }

    /// Returns the current entry, for the accounting around a command.
    #[inline]
    fn stored(&self) -> Option<EntryRef<'_, Value>> {
        self.table.find(self.hash, self.name)
    }

    /// The entry, for changes in place. The first access is a use of the key.
    #[inline]
    pub fn entry_mut(&mut self) -> Option<EntryMut<'_, Value>> {
        let entry = self.table.find_mut(self.hash, self.name)?;
        touch_once(&self.is_touch_pending, self.access, entry.as_ref());
        Some(entry)
    }

    /// Returns `true` if the key exists.
    #[inline]
    pub fn exists(&self) -> bool {
        self.entry().is_some()
    }

    /// Returns the key after noting that the command has opened it before, which was its use.
    #[must_use]
    pub fn opened_again(self) -> Self {
        self.is_touch_pending.set(false);
        self
    }

    /// Sets the value. Creates the key if it is missing.
    #[inline]
    pub fn set(&mut self, value: NewValue<'_, Value>, expiry: ExpiryUpdate) {
        self.is_modified = true;
        let due_ms = match &value {
            NewValue::Object(object) => self.note_stored_object(object),
            NewValue::Shared(object) => self.note_stored_object(object),
            _ => None,
        };
        match self.table.find_mut(self.hash, self.name) {
            Some(mut entry) => {
                touch_once(&self.is_touch_pending, self.access, entry.as_ref());
                if expiry != ExpiryUpdate::Keep {
                    let key = NamedKey {
                        name: self.name,
                        hash: self.hash,
                        slot: self.slot,
                    };
                    let replaced = entry.as_ref();
                    self.effects
                        .note_removed_key(self.db, key, replaced, KeyRemoval::Overwritten, false);
                }
                match expiry {
                    ExpiryUpdate::Keep => {}
                    ExpiryUpdate::Remove => {
                        if entry.expire_at_ms().is_some() {
                            let freed = entry.set_expire(None);
                            self.effects.discard(freed);
                        }
                    }
                    ExpiryUpdate::SetTo(at) => {
                        let freed = entry.set_expire(Some(at));
                        self.effects.discard(freed);
                    }
                }
                if let Some(object) = entry.object() {
                    self.volatile -= i64::from(object_due_ms(object).is_some());
                    note_object_unlinked(object, self.db, self.name);
                }
                let freed = entry.set_value(value);
                self.effects.discard(freed);
            }
            None => {
                let at = match expiry {
                    ExpiryUpdate::SetTo(at) => Some(at),
                    ExpiryUpdate::Keep | ExpiryUpdate::Remove => None,
                };
                let clock = self.access.clock.for_new_entry();
                let freed = self.table.insert(self.hash, self.name, value, at, clock);
                self.effects.discard(freed);
                self.is_touch_pending.set(false);
                self.record_event(KeyspaceEvent::NEW);
            }
        }
        if let ExpiryUpdate::SetTo(at) = expiry {
            self.lower_due_time(at);
        }
        if let Some(due_ms) = due_ms {
            self.record_volatile_value(due_ms);
        }
    }

    /// Adds to the value if it is stored as an integer, with a single lookup, and returns the sum. Returns `None`
    /// without a change if there is no such value, or if the sum is out of range.
    #[inline]
    pub fn add_to_integer(&mut self, increment: i64) -> Option<i64> {
        let mut entry = self.table.find_mut(self.hash, self.name)?;
        touch_once(&self.is_touch_pending, self.access, entry.as_ref());
        let ValueRef::Int(before) = entry.as_ref().value() else {
            return None;
        };
        let sum = before.checked_add(increment)?;
        let freed = entry.set_value(NewValue::Int(sum));
        self.effects.discard(freed);
        self.is_modified = true;
        Some(sum)
    }

    /// Puts a string into the place of the entry, as if the entry was deleted before.
    pub fn replace_with_string(&mut self, bytes: &[u8]) {
        let observes = Hooks::RECORDS_EVENTS
            .union(Hooks::MODULE_EVENTS)
            .union(Hooks::REMOVED_KEYS);
        if !self.effects.hooks.intersects(observes)
            && let Some(mut entry) = self.table.find_mut(self.hash, self.name)
            && entry.object().is_none()
        {
            self.is_modified = true;
            self.is_touch_pending.set(false);
            if entry.expire_at_ms().is_some() {
                let freed = entry.set_expire(None);
                self.effects.discard(freed);
            }
            let freed = entry.set_value(NewValue::Bytes(bytes));
            self.effects.discard(freed);
            entry.set_clock(self.access.clock.for_new_entry());
            return;
        }
        self.delete();
        self.set(NewValue::Bytes(bytes), ExpiryUpdate::Remove);
    }

    /// Notes an object that is being stored. Returns the time at which the first part of it expires.
    #[inline]
    fn note_stored_object(&self, object: &Value) -> Option<u64> {
        self.access.counts.module_slots.note_object(self.slot, object);
        object_due_ms(object)
    }

    /// Stores the value in another encoding. Unlike [`Self::set`], this is not a change of the key.
    pub fn reencode(&mut self, value: NewValue<'_, Value>) {
        let was_modified = self.is_modified;
        self.set(value, ExpiryUpdate::Keep);
        self.is_modified = was_modified;
    }

    /// Lowers the slot's due time to this time. On a writable replica the key is also noted for local expiry.
    #[inline]
    fn lower_due_time(&mut self, at_ms: u64) {
        self.header.hint.lower_due(at_ms);
        if self.effects.hooks.intersects(Hooks::LOCAL_EXPIRY) {
            self.record_local_expiry(at_ms);
        }
    }

    #[cold]
    fn record_local_expiry(&mut self, at_ms: u64) {
        // For the primary nothing expires: it deletes its keys by itself.
        if self.access.now_ms > 0 {
            self.effects.local_expiries.push(LocalExpiry {
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
    fn record_volatile_value(&mut self, due_ms: u64) {
        self.volatile += 1;
        if let Some(mut entry) = self.table.find_mut(self.hash, self.name) {
            entry.note_value_due(due_ms);
        }
        self.header.hint.lower_due(due_ms);
    }

    /// Changes a hash that is stored as an object. Returns `None` if the key's value is not such a hash.
    pub fn change_hash<R>(&mut self, change: impl FnOnce(&mut Hash) -> R) -> Option<R> {
        let mut entry = self.table.find_mut(self.hash, self.name)?;
        touch_once(&self.is_touch_pending, self.access, entry.as_ref());
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
            self.is_modified = true;
            self.effects.discard(freed);
            if let Some(at) = expire_at_ms {
                self.lower_due_time(at);
            }
        }
    }

    /// Removes and returns the entry.
    pub fn remove(&mut self) -> Option<Removed<Value>> {
        self.remove_for(KeyRemoval::Deleted, false)
    }

    fn remove_for(&mut self, removal: KeyRemoval, is_emptied: bool) -> Option<Removed<Value>> {
        let removed = self.table.remove(self.hash, self.name)?;
        self.effects
            .note_removed_key(self.db, self.named(), removed.as_ref(), removal, is_emptied);
        self.is_modified = true;
        self.volatile -= i64::from(value_due_ms(removed.value()).is_some());
        note_unlinked(removed.value(), self.db, self.name);
        Some(removed)
    }

    /// Returns the key after counting a lookup as a reader does.
    #[must_use]
    pub fn counted(mut self) -> Self {
        self.count_lookup();
        self
    }

    /// Counts a lookup as a reader does. Together with the command's own access this is a single use of the key.
    pub fn count_lookup(&mut self) {
        if self.exists() {
            self.effects.hits += 1;
        } else {
            self.effects.misses += 1;
            self.record_event(KeyspaceEvent::MISSED);
        }
    }

    /// Makes the next access another use of the key, for a command that reads the key and then opens it to write.
    pub fn begin_another_use(&mut self) {
        self.is_touch_pending.set(self.access.should_touch);
    }

    /// Deletes the entry because a client gave it an expiry in the past. Returns `true` if there was an entry.
    pub fn delete_with_past_expiry(&mut self) -> bool {
        let removed = self.remove_for(KeyRemoval::Expired, false);
        let deleted = self.discard_removed(removed, RemovalCause::Command);
        self.effects.expired_keys += u64::from(deleted);
        deleted
    }

    /// Deletes the entry. Its memory is freed after the lease. Returns `true` if there was an entry.
    pub fn delete(&mut self) -> bool {
        self.delete_for(RemovalCause::Command)
    }

    /// Like [`Self::delete`], with another cause.
    pub fn delete_for(&mut self, cause: RemovalCause) -> bool {
        let removed = self.remove_for(cause.removal(), false);
        self.discard_removed(removed, cause)
    }

    /// Deletes the entry because a command removes its last element.
    pub fn delete_emptied(&mut self) -> bool {
        let removed = self.remove_for(KeyRemoval::Deleted, true);
        self.discard_removed(removed, RemovalCause::Command)
    }

    fn discard_removed(&mut self, removed: Option<Removed<Value>>, cause: RemovalCause) -> bool {
        let existed = removed.is_some();
        if let Some(removed) = removed {
            self.effects.discard_removed(removed, cause);
        }
        existed
    }

    /// Keeps a copy of the entry for modules, because the command replaces its value and keeps its expiry.
    pub fn note_overwritten(&mut self) {
        self.note_replaced(KeyRemoval::Overwritten);
    }

    /// Keeps a copy of the entry for modules, because the command puts another entry in its place.
    pub fn note_replaced(&mut self, removal: KeyRemoval) {
        let (key, effects) = (self.named(), &mut *self.effects);
        if let Some(entry) = self.table.find(self.hash, self.name) {
            effects.note_removed_key(self.db, key, entry, removal, false);
        }
    }

    /// Stores an entry that was removed elsewhere under this key's name, with its expiry, and records the event of a
    /// new key.
    pub fn insert_removed(&mut self, removed: Removed<Value>) {
        self.replace_with_removed(removed);
        self.record_event(KeyspaceEvent::NEW);
    }

    /// Like [`Self::insert_removed`], for a key that may exist.
    pub fn replace_with_removed(&mut self, removed: Removed<Value>) {
        self.is_modified = true;
        self.is_touch_pending.set(false);
        let at = removed.expire_at_ms();
        let due_ms = match removed.value() {
            ValueRef::Object(object) => self.note_stored_object(object),
            _ => None,
        };
        let replaced_volatile = self.stored().map_or(0, |entry| {
            note_unlinked(entry.value(), self.db, self.name);
            i64::from(value_due_ms(entry.value()).is_some())
        });
        self.volatile -= replaced_volatile;
        let freed = self.table.insert_removed(self.hash, self.name, removed);
        self.effects.discard(freed);
        if let Some(at) = at {
            self.lower_due_time(at);
        }
        if let Some(due_ms) = due_ms {
            self.record_volatile_value(due_ms);
        }
    }

    /// Closes the write: the key changed. `event` names the change.
    #[inline]
    pub fn changed(mut self, event: KeyspaceEvent) {
        self.effects.dirty += 1;
        self.record_event(event);
        self.notify_interested_clients();
        self.publish_result();
    }

    /// Closes the write: the key changed, and the dirty count grows by `times`.
    pub fn changed_times(mut self, event: KeyspaceEvent, times: u64) {
        self.effects.dirty += times;
        self.record_event(event);
        self.notify_interested_clients();
        self.publish_result();
    }

    /// Closes the write: the change matters to clients blocked on the key, but not to clients that watch it or cache
    /// it.
    pub fn changed_for_waiting(mut self, event: KeyspaceEvent, times: u64) {
        self.effects.dirty += times;
        self.record_event(event);
        if let Some(interested) = self.interested {
            self.wake_blocked_clients(interested);
        }
        self.publish_result();
    }

    /// Closes the write: the change counts `times` times and is only propagated. No client is informed, and watches are
    /// not marked.
    pub fn changed_quietly(mut self, times: u64) {
        self.effects.dirty += times;
        self.publish_result();
    }

    /// Closes a write of a module: clients that are blocked on the key may be served. The change is not counted, and
    /// clients that watch or cache the key learn of it by [`Self::signal_modified`].
    pub fn changed_by_module(mut self) {
        self.keys_at_last_notification = self.table.len();
        if let Some(interested) = self.interested {
            self.wake_blocked_clients(interested);
        }
        self.publish_result();
    }

    /// Marks watches and cached copies of the key as outdated. The key itself does not change here.
    pub fn signal_modified(mut self) {
        self.notify_interested_clients();
        self.publish_result();
    }

    /// Closes the write: the change is counted and announced with another key of the same command (RENAME, MOVE).
    pub fn changed_with_another_key(mut self) {
        self.publish_result();
    }

    /// Counts hash fields that were deleted because they had expired, and records the event.
    pub fn record_expired_fields(&mut self, fields: usize) {
        if fields > 0 {
            self.count_expired_fields(fields as u64);
            self.record_event(KeyspaceEvent::hash("hexpired"));
        }
    }

    /// Counts hash fields that were deleted because they had expired.
    pub fn count_expired_fields(&mut self, fields: u64) {
        self.effects.expired_fields += fields;
    }

    /// Records an event in addition to the one that closes the write (for example `expire` in addition to `set`).
    #[inline]
    pub fn record_event(&mut self, event: KeyspaceEvent) {
        if self.effects.hooks.intersects(Hooks::RECORDS_EVENTS) {
            self.effects.record_event(self.db, self.name, event);
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
        if self.delete_for(RemovalCause::Expiry) {
            self.effects.expired_keys += 1;
            self.record_event(KeyspaceEvent::EXPIRED);
            if self.effects.is_logging() {
                self.effects.log_expired(self.db, self.name);
            }
            self.notify_interested_clients();
            self.is_modified = false;
        }
    }

    /// Marks the watches of the key, and queues its waiters if they can be served from its new state.
    #[inline]
    fn notify_interested_clients(&mut self) {
        if self.effects.hooks.intersects(Hooks::TRACKING) {
            self.keys_at_last_notification = self.table.len();
            self.effects.record_invalidation(self.db, self.name);
        }
        if let Some(interested) = self.interested {
            self.notify_watching_and_blocked(interested);
        }
    }

    #[cold]
    fn notify_watching_and_blocked(&mut self, interested: &InterestedClients) {
        self.keys_at_last_notification = self.table.len();
        interested
            .watching
            .mark_key(self.db, self.name, self.stored().is_some());
        self.wake_blocked_clients(interested);
    }

    /// Queues the key's waiters if they can be served from its new state.
    fn wake_blocked_clients(&mut self, interested: &InterestedClients) {
        let kind = ready_keys::blocking_kind_of(self.stored());
        if interested.blocked.has_waiter_for(self.db, self.name, kind) {
            let is_new_or_deleted = self.table.len() != self.keys_before;
            let mut key = ReadyKey::new(self.db, self.slot, self.hash, self.name);
            key.reaches_modules = is_new_or_deleted || kind == WaitedKind::Stream;
            ready_keys::add_ready_key(&mut self.effects.ready, key);
        }
    }

    fn publish_result(&mut self) {
        self.is_closed = true;
        if self.table.len() != self.keys_at_last_notification {
            // This also covers changes that are counted with another key (RENAME, MOVE).
            self.notify_interested_clients();
        }
        let keys = self.table.len() as i64 - self.keys_before as i64;
        let expiring = self.table.with_expiry() as i64 - self.expiring_before as i64;
        self.access
            .counts
            .add(self.access.thread_index, self.db, keys, expiring);
        self.access
            .counts
            .add_volatile(self.access.thread_index, self.db, self.volatile);
        let occupied = !self.table.is_empty();
        if occupied != (self.keys_before > 0) {
            self.header.mark_database(self.db, occupied);
        }
        if !occupied {
            // Opening the key may have created the table.
            self.access.counts.note_empty_table(self.db);
        }
        if self.db == DbIndex::FIRST {
            self.table.publish(&self.header.hint);
        }
    }
}

/// Advances the access clock of an entry if that is pending.
#[inline]
fn touch_once(is_pending: &Cell<bool>, access: &AccessContext<'_>, entry: EntryRef<'_, Value>) {
    if is_pending.replace(false) {
        access.clock.touch(entry);
    }
}

impl Drop for KeyWrite<'_> {
    fn drop(&mut self) {
        if !self.is_closed {
            debug_assert!(
                !self.is_modified || weft_os::thread::panicking(),
                "a KeyWrite that replaced or removed its entry was dropped without being closed as changed"
            );
            self.publish_result();
        }
    }
}
