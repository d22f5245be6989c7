//! How handlers reach keys: `KeyRead` and `KeyWrite` under the leases that the dispatcher took.
//!
//! A handler never sees a slot. It asks for the n-th key of its plan and gets either a view of the entry
//! or a [`KeyWrite`], which must be closed as [`KeyWrite::changed`] or [`KeyWrite::unchanged`]. From that
//! one record follow the dirty count and every hook (watch, event, waiters, tracking, log): see
//! [`super::effects`].

mod growing;
mod snapshot;
mod undeclared;

pub use growing::{GrowingLeases, Whole};
pub use snapshot::{Attempt, Private, Snapshot, Use, has_written, note_misses};
pub use undeclared::{Contended, FurtherLeases};

use std::sync::atomic::{AtomicBool, Ordering};

use weft_resp::Args;
use weft_sync::StripedCounters;
use weft_table::{EntryMut, EntryRef, NewValue, Removed, ValueRef};
use weft_values::Value;
use weft_values::hash::Hash;

use super::clock::AccessClock;
use super::effects::{Cause, Effects, Hooks};
use super::event::Event;
use super::hash::KeyHasher;
use super::local::LocalKey;
use super::reach::Reach;
use super::ready::{self, ReadyKey};
use super::{Exclusive, Interested, ReadLease, Slot, SlotHeader, SlotTable, WriteLease};

/// A key of a plan: which argument it is, its hash and where its slot's lease is held.
#[derive(Clone, Copy, Debug)]
pub struct PlannedKey {
    /// The hash of the key.
    pub hash: u64,
    /// Index of the argument.
    pub argument: u32,
    /// Its slot.
    pub slot: u16,
    /// Whether the command may write the key.
    pub write: bool,
    /// Index into the held leases, once they are held.
    pub lease: u32,
}

impl PlannedKey {
    /// The key that is argument `argument`, with its hash.
    #[inline]
    pub const fn of_argument(argument: usize, hash: u64, write: bool) -> Self {
        PlannedKey {
            hash,
            argument: argument as u32,
            slot: KeyHasher::slot(hash) as u16,
            write,
            lease: 0,
        }
    }

    /// A key that no argument names, to be read.
    pub const fn unnamed(hash: u64) -> Self {
        PlannedKey {
            hash,
            argument: u32::MAX,
            slot: KeyHasher::slot(hash) as u16,
            write: false,
            lease: 0,
        }
    }
}

/// One held lease.
pub enum Lease<'a> {
    /// Beside other readers.
    Read(ReadLease<'a>),
    /// Alone.
    Write(WriteLease<'a>),
}

impl Lease<'_> {
    #[inline]
    fn slot(&self) -> &Slot {
        match self {
            Lease::Read(lease) => lease,
            Lease::Write(lease) => lease,
        }
    }

    /// Whether the slot is held for writing and values of it are lent, or to be saved before they change.
    #[inline]
    pub fn meets_loans(&self) -> bool {
        match self {
            Lease::Read(_) => false,
            Lease::Write(lease) => lease.header().is_reserved(),
        }
    }

    fn cell(&self) -> usize {
        match self {
            Lease::Read(lease) => lease.cell(),
            Lease::Write(lease) => lease.cell(),
        }
    }
}

/// A command with more keys than this prefetches on its own while it walks over them.
pub const SLIDING_KEYS: usize = 64;
/// How many keys ahead it asks for values; twice as many for entries.
const SLIDING_DISTANCE: usize = 12;

/// What a command holds while it runs.
pub enum Held<'a, 'p> {
    /// Nothing: the command has no keys.
    Nothing,
    /// The lease of the only slot.
    One(&'a mut Lease<'p>),
    /// Leases of several slots, ascending.
    Many(&'a mut Vec<Lease<'p>>),
    /// Leases of a script, which takes more of them as it goes.
    Growing(&'a mut GrowingLeases<'p>),
    /// Every slot.
    Everything(&'a mut Exclusive<'p>),
    /// A copy of its keys, for itself.
    Private(&'a mut Private),
}

impl Held<'_, '_> {
    /// The slot of a key; `None` if it is not held.
    #[inline]
    pub fn slot(&self, key: &PlannedKey) -> Option<&Slot> {
        match self {
            Held::One(lease) => Some(lease.slot()),
            Held::Many(leases) => leases.get(key.lease as usize).map(Lease::slot),
            Held::Growing(leases) => leases.at(key.lease).map(Lease::slot),
            Held::Everything(all) => Some(all.cell(key.slot as usize)),
            Held::Private(private) => Some(private.slot()),
            Held::Nothing => None,
        }
    }

    #[inline]
    fn slot_mut(&mut self, key: &PlannedKey) -> Option<(&SlotHeader, &mut Slot)> {
        match self {
            Held::One(Lease::Write(lease)) => Some(lease.parts_mut()),
            Held::Many(leases) => match leases.get_mut(key.lease as usize) {
                Some(Lease::Write(lease)) => Some(lease.parts_mut()),
                _ => None,
            },
            Held::Growing(leases) => leases.written_at(key.lease),
            Held::Everything(all) => Some(all.parts_mut(key.slot as usize)),
            Held::Private(private) => Some(private.parts_mut()),
            Held::One(Lease::Read(_)) | Held::Nothing => None,
        }
    }

    /// A slot whose write lease is among what is held, whether or not a key of the command lies in it.
    pub fn written_slot(&mut self, slot: u16) -> Option<(&SlotHeader, &mut Slot)> {
        let number = slot as usize;
        match self {
            Held::One(Lease::Write(lease)) if lease.cell() == number => Some(lease.parts_mut()),
            Held::Many(leases) => {
                let at = leases.binary_search_by_key(&number, Lease::cell).ok()?;
                match leases.get_mut(at) {
                    Some(Lease::Write(lease)) => Some(lease.parts_mut()),
                    _ => None,
                }
            }
            Held::Growing(leases) => leases.written(slot),
            Held::Everything(all) => Some(all.parts_mut(number)),
            Held::One(_) | Held::Private(_) | Held::Nothing => None,
        }
    }

    /// Whether every slot is held.
    pub fn is_everything(&self) -> bool {
        match self {
            Held::Everything(_) => true,
            Held::Growing(leases) => leases.is_everything(),
            Held::Nothing | Held::One(_) | Held::Many(_) | Held::Private(_) => false,
        }
    }
}

impl<'p> Held<'_, 'p> {
    /// The whole keyspace, to change; `None` if some slot is not held.
    pub fn whole<'h>(&'h mut self) -> Option<Whole<'h, 'p>> {
        match self {
            Held::Everything(all) => Some(Whole::Alone(all)),
            Held::Growing(leases) if leases.is_everything() => Some(Whole::Leased(leases)),
            Held::Nothing | Held::One(_) | Held::Many(_) | Held::Growing(_) | Held::Private(_) => None,
        }
    }
}

/// Counters per database.
const COUNTS: usize = 3;

/// When the first part of a value expires, in ms since the epoch, if parts of it do.
#[inline]
pub fn value_due_ms(value: ValueRef<'_, Value>) -> Option<u64> {
    match value {
        ValueRef::Object(object) => object_due_ms(object),
        _ => None,
    }
}

#[inline]
fn object_due_ms(object: &Value) -> Option<u64> {
    match object {
        Value::Hash(hash) => hash.next_due_ms(),
        _ => None,
    }
}

/// Keys, keys with an expiry and volatile values per database: each thread writes its own row, readers add them up.
pub struct KeyCounts {
    rows: StripedCounters,
    /// Databases that somebody used, by number.
    opened: Box<[AtomicBool]>,
    databases: usize,
}

impl KeyCounts {
    /// Zeroes for `databases` databases and `seats` threads.
    pub fn new(seats: usize, databases: usize) -> Self {
        KeyCounts {
            rows: StripedCounters::new(seats, databases * COUNTS),
            opened: (0..databases).map(|db| AtomicBool::new(db == 0)).collect(),
            databases,
        }
    }

    /// Adds to the counts of database `db` in the row of thread `seat`.
    #[inline]
    pub fn add(&self, seat: usize, db: usize, keys: i64, with_expiry: i64) {
        if keys != 0 {
            self.rows.add_as_only_writer(seat, db * COUNTS, keys);
        }
        if with_expiry != 0 {
            self.rows.add_as_only_writer(seat, db * COUNTS + 1, with_expiry);
        }
    }

    /// Adds to the count of volatile values in database `db` in the row of thread `seat`.
    #[inline]
    pub fn add_volatile(&self, seat: usize, db: usize, values: i64) {
        if values != 0 {
            self.rows.add_as_only_writer(seat, db * COUNTS + 2, values);
        }
    }

    /// Notes that database `db` is being used: it is one that MEMORY STATS describes from now on.
    pub fn open(&self, db: usize) {
        if let Some(opened) = self.opened.get(db).filter(|opened| !opened.load(Ordering::Relaxed)) {
            opened.store(true, Ordering::Relaxed);
        }
    }

    /// Whether database `db` was ever used.
    pub fn is_open(&self, db: usize) -> bool {
        self.opened.get(db).is_some_and(|opened| opened.load(Ordering::Relaxed))
    }

    /// Keys in database `db`.
    pub fn keys(&self, db: usize) -> u64 {
        self.rows.sum(db * COUNTS).max(0) as u64
    }

    /// Keys with an expiry in database `db`.
    pub fn with_expiry(&self, db: usize) -> u64 {
        self.rows.sum(db * COUNTS + 1).max(0) as u64
    }

    /// Keys in database `db` whose value is volatile: parts of it expire (fields of a hash).
    pub fn volatile(&self, db: usize) -> u64 {
        self.rows.sum(db * COUNTS + 2).max(0) as u64
    }

    /// Databases counted.
    pub fn databases(&self) -> usize {
        self.databases
    }

    /// Whether any key anywhere, or a part of its value, expires.
    pub fn any_expiry(&self) -> bool {
        (0..self.databases).any(|db| self.with_expiry(db) > 0 || self.volatile(db) > 0)
    }
}

/// Everything about "now" and "who" that access to keys depends on; fixed for one command.
#[derive(Clone, Copy)]
pub struct AccessContext<'a> {
    /// Milliseconds since the epoch.
    pub now_ms: u64,
    /// How the access clock of entries advances.
    pub clock: &'a AccessClock,
    /// Key counts and the row to write.
    pub counts: &'a KeyCounts,
    /// The row of this thread.
    pub seat: usize,
    /// Whether a read advances the entry's access clock (CLIENT NO-TOUCH).
    pub touch: bool,
    /// Whether expired keys are still visible (CLIENT IMPORT-SOURCE).
    pub sees_expired: bool,
}

/// The keys of one command.
pub struct Keys<'a, 'p> {
    /// The command's arguments.
    pub args: Args<'a>,
    /// The keys, in the order of the key walker.
    pub planned: &'a [PlannedKey],
    /// What is held.
    pub held: Held<'a, 'p>,
    /// The client's database.
    pub db: usize,
    /// Time, clock, counters.
    pub access: AccessContext<'a>,
    /// What the command did.
    pub effects: &'a mut Effects,
    /// How far its lookups reach, once it has turned out to have many keys.
    pub reach: Option<Reach>,
}

/// Whether an entry with this expiry is gone at `now_ms`.
#[inline]
pub fn is_expired(expire_at_ms: Option<u64>, now_ms: u64) -> bool {
    expire_at_ms.is_some_and(|at| now_ms > at)
}

/// How a lookup for reading treats hit counts and the access clock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// An ordinary read.
    Yes,
    /// The entry's access clock stays (TYPE, TTL).
    No,
    /// The same, and nobody is told that the key is missing (OBJECT).
    Unnoticed,
    /// As an ordinary read, whatever CLIENT NO-TOUCH says (TOUCH).
    Always,
}

impl<'a> Keys<'a, '_> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.planned.len()
    }

    /// The name of the n-th key.
    #[inline]
    pub fn name(&self, index: usize) -> &'a [u8] {
        self.planned
            .get(index)
            .map_or(&[][..], |key| self.args.at(key.argument as usize))
    }

    /// The n-th key's entry for reading; `None` when it is missing or expired.
    #[inline]
    pub fn read(&mut self, index: usize) -> Option<EntryRef<'_, Value>> {
        self.read_with(index, self.db, Touch::Yes)
    }

    /// The n-th key's entry in database `db` for reading.
    #[inline]
    pub fn read_with(&mut self, index: usize, db: usize, touch: Touch) -> Option<EntryRef<'_, Value>> {
        let key = self.planned.get(index)?;
        let name = self.args.at(key.argument as usize);
        let found = self
            .held
            .slot(key)
            .and_then(|slot| slot.table(db))
            .and_then(|table| table.find(key.hash, name));
        visible(found, &self.access, self.effects, touch, (db, key, name))
    }

    /// The n-th key's entry, once more or beside others. Whoever looks has read it before: that was the use that counts.
    #[inline]
    pub fn peek(&self, index: usize) -> Option<EntryRef<'_, Value>> {
        let key = self.planned.get(index)?;
        let table = self.held.slot(key)?.table(self.db)?;
        let entry = table.find(key.hash, self.name(index))?;
        let visible = self.access.sees_expired || !is_expired(entry.expire_at_ms(), self.access.now_ms);
        visible.then_some(entry)
    }

    /// Fetches the memory of keys behind the n-th, for commands with so many keys that the batch left them out.
    #[inline]
    pub fn prefetch_ahead(&mut self, index: usize) {
        if self.planned.len() > SLIDING_KEYS {
            self.prefetch_window(index);
        }
    }

    fn prefetch_window(&mut self, index: usize) {
        // Entries two distances ahead, values one: at the start both windows are filled at once.
        let (near, far) = (SLIDING_DISTANCE, 2 * SLIDING_DISTANCE);
        let (entries, values) = if index == 0 {
            (0, 0)
        } else {
            (index + far - 1, index + near - 1)
        };
        let mut reach = self.reach.take().unwrap_or_default();
        for number in entries..(index + far).min(self.planned.len()) {
            let key = &self.planned[number];
            if let Some(table) = self.held.slot(key).and_then(|slot| slot.table(self.db)) {
                table.entry_place(key.hash, reach.head()).prefetch();
            }
        }
        let values = if reach.needs_values() { values } else { usize::MAX };
        for number in values..(index + near).min(self.planned.len()) {
            let key = &self.planned[number];
            if let Some(table) = self.held.slot(key).and_then(|slot| slot.table(self.db)) {
                reach.value_place(table, key.hash).prefetch();
            }
        }
        self.reach = Some(reach);
    }

    /// The n-th key for writing.
    #[inline]
    pub fn write(&mut self, index: usize) -> KeyWrite<'_> {
        self.write_in(index, self.db)
    }

    /// The n-th key of database `db` for writing. An expired entry is deleted first.
    #[inline]
    pub fn write_in(&mut self, index: usize, db: usize) -> KeyWrite<'_> {
        let key = &self.planned[index];
        let named = NamedKey {
            name: self.args.at(key.argument as usize),
            hash: key.hash,
            slot: key.slot,
        };
        let Some(parts) = self.held.slot_mut(key) else {
            unreachable!("the key walker said that key {index} is not written, and the handler writes it");
        };
        KeyWrite::new(parts, named, db, &self.access, self.effects)
    }

    /// Whether the n-th key may be written under what is held.
    pub fn is_written(&mut self, index: usize) -> bool {
        self.planned
            .get(index)
            .is_some_and(|key| self.held.slot_mut(key).is_some())
    }
}

/// A key as [`KeyWrite`] knows it.
#[derive(Clone, Copy)]
pub struct NamedKey<'k> {
    /// Its name.
    pub name: &'k [u8],
    /// The hash of its name.
    pub hash: u64,
    /// Its slot.
    pub slot: u16,
}

/// What a reader sees of an entry that was found or not; counts the lookup, and queues what has expired.
#[inline]
fn visible<'e>(
    found: Option<EntryRef<'e, Value>>,
    access: &AccessContext<'_>,
    effects: &mut Effects,
    touch: Touch,
    (db, key, name): (usize, &PlannedKey, &[u8]),
) -> Option<EntryRef<'e, Value>> {
    let Some(entry) = found else {
        effects.misses += 1;
        if effects.hooks.has(Hooks::NOTED) && touch != Touch::Unnoticed {
            effects.note(db, name, Event::MISSED);
        }
        return None;
    };
    if is_expired(entry.expire_at_ms(), access.now_ms) && !access.sees_expired {
        effects.misses += 1;
        effects.queue_expired(db, key, name, touch != Touch::Unnoticed);
        return None;
    }
    effects.hits += 1;
    let advance = match touch {
        Touch::Yes => access.touch,
        Touch::No | Touch::Unnoticed => false,
        Touch::Always => true,
    };
    if advance {
        access.clock.touch(entry);
    }
    Some(entry)
}

/// What becomes of the expiry when a value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// As it was.
    Keep,
    /// None.
    Never,
    /// At this time, in ms since the epoch.
    At(u64),
}

/// One key under a write lease; closed by [`KeyWrite::changed`] or [`KeyWrite::unchanged`].
pub struct KeyWrite<'k> {
    table: &'k mut SlotTable,
    header: &'k SlotHeader,
    /// Who waits for keys of the slot, or watches them.
    interested: Option<&'k Interested>,
    name: &'k [u8],
    hash: u64,
    slot: u16,
    db: usize,
    access: &'k AccessContext<'k>,
    effects: &'k mut Effects,
    keys_before: usize,
    /// Keys of the table when the interested were last told.
    keys_told: usize,
    expiring_before: usize,
    /// Volatile values more than before.
    volatile: i64,
    closed: bool,
}

// Closing a write moves it; a larger one would be moved by a call.
const _: () = assert!(size_of::<KeyWrite<'_>>() <= 128);

impl<'k> KeyWrite<'k> {
    /// A key of a slot that is held for writing. An expired entry is deleted first.
    #[inline]
    pub fn new(
        (header, slot): (&'k SlotHeader, &'k mut Slot),
        key: NamedKey<'k>,
        db: usize,
        access: &'k AccessContext<'k>,
        effects: &'k mut Effects,
    ) -> Self {
        // The slot outlives the table borrow; `finish` publishes through the header alone.
        let (table, interested) = slot.table_and_interested(db);
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

    /// Made where it is to be, and not changed here: what is changed on its way is moved, part by part.
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

/// A slot that is held for writing: the table of a database, who minds its changes, and the header.
type OpenSlot<'k> = (&'k mut SlotTable, Option<&'k Interested>, &'k SlotHeader);

fn has_expired(table: &SlotTable, key: &NamedKey<'_>, access: &AccessContext<'_>) -> bool {
    table
        .find(key.hash, key.name)
        .is_some_and(|entry| is_expired(entry.expire_at_ms(), access.now_ms))
}

impl<'k> KeyWrite<'k> {
    /// The key's name, beside other uses of the key.
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

    /// The entry as it stands.
    #[inline]
    pub fn entry(&self) -> Option<EntryRef<'_, Value>> {
        self.table.find(self.hash, self.name)
    }

    /// The entry as it stands; looking at it counts as a use.
    #[inline]
    pub fn use_entry(&self) -> Option<EntryRef<'_, Value>> {
        let entry = self.entry()?;
        if self.access.touch {
            self.access.clock.touch(entry);
        }
        Some(entry)
    }

    /// The entry, to be changed in place; its access clock advances.
    #[inline]
    pub fn entry_mut(&mut self) -> Option<EntryMut<'_, Value>> {
        let entry = self.table.find_mut(self.hash, self.name)?;
        if self.access.touch {
            self.access.clock.touch(entry.as_ref());
        }
        Some(entry)
    }

    /// Whether the key exists.
    #[inline]
    pub fn exists(&self) -> bool {
        self.entry().is_some()
    }

    /// Sets the value, making the key when it is missing.
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

    /// Somebody has to delete the key at this time.
    #[inline]
    fn note_expiry(&mut self, at_ms: u64) {
        self.header.hint.lower_due(at_ms);
        if self.effects.hooks.has(Hooks::LOCAL_EXPIRY) {
            self.note_local(at_ms);
        }
    }

    #[cold]
    fn note_local(&mut self, at_ms: u64) {
        // Nothing expires for the primary, whose keys are its own to delete.
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

    /// Counts a volatile value that was put here, and remembers when it is due.
    #[cold]
    fn note_volatile(&mut self, due_ms: u64) {
        self.volatile += 1;
        if let Some(mut entry) = self.table.find_mut(self.hash, self.name) {
            entry.note_value_due(due_ms);
        }
        self.header.hint.lower_due(due_ms);
    }

    /// Changes a hash that is a value of its own; `None` if the key's value is none.
    pub fn change_hash<R>(&mut self, change: impl FnOnce(&mut Hash) -> R) -> Option<R> {
        let mut entry = self.table.find_mut(self.hash, self.name)?;
        if self.access.touch {
            self.access.clock.touch(entry.as_ref());
        }
        let Some(Value::Hash(hash)) = entry.object_mut() else {
            return None;
        };
        let was_volatile = hash.is_volatile();
        let result = change(hash);
        let due_ms = hash.next_due_ms();
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

    /// Takes the entry out.
    pub fn remove(&mut self) -> Option<Removed<Value>> {
        let removed = self.table.remove(self.hash, self.name)?;
        self.volatile -= i64::from(value_due_ms(removed.value()).is_some());
        Some(removed)
    }

    /// Counts the look at the key as that of a reader, for a command that answers with what was there.
    pub fn count_lookup(&mut self) {
        if self.exists() {
            self.effects.hits += 1;
        } else {
            self.effects.misses += 1;
            self.note(Event::MISSED);
        }
    }

    /// Deletes the entry because a client gave it an expiry that has passed. Whether there was one.
    pub fn delete_passed(&mut self) -> bool {
        let deleted = self.delete();
        self.effects.expired_keys += u64::from(deleted);
        deleted
    }

    /// Deletes the entry; the memory is freed after the lease. Whether there was one.
    pub fn delete(&mut self) -> bool {
        self.delete_for(Cause::Command)
    }

    /// The same, for a cause of its own.
    pub fn delete_for(&mut self, cause: Cause) -> bool {
        match self.remove() {
            Some(removed) => {
                self.effects.discard_removed(removed, cause);
                true
            }
            None => false,
        }
    }

    /// Puts an entry that was taken out elsewhere here, under this key's name, with its expiry. The key is a new one.
    pub fn put(&mut self, removed: Removed<Value>) {
        self.replace(removed);
        self.note(Event::NEW);
    }

    /// The same, of which it is not known yet whether it makes a new key.
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

    /// Closes the write: the key changed and `event` tells how.
    #[inline]
    pub fn changed(mut self, event: Event) {
        self.effects.dirty += 1;
        self.note(event);
        self.tell_interested();
        self.finish();
    }

    /// Closes the write: the key changed, in `times` ways that the dirty count tells apart.
    pub fn changed_times(mut self, event: Event, times: u64) {
        self.effects.dirty += times;
        self.note(event);
        self.tell_interested();
        self.finish();
    }

    /// Closes the write: the key changed in a way that matters to those who wait for it, and to nobody who watches it or
    /// keeps a copy.
    pub fn changed_for_waiting(mut self, event: Event, times: u64) {
        self.effects.dirty += times;
        self.note(event);
        if let Some(interested) = self.interested {
            self.wake(interested);
        }
        self.finish();
    }

    /// Closes the write: what changed `times` times is for the log alone. Nobody is told, and no client that watches the
    /// key minds.
    pub fn changed_quietly(mut self, times: u64) {
        self.effects.dirty += times;
        self.finish();
    }

    /// Closes the write: nothing changed.
    #[inline]
    pub fn unchanged(mut self) {
        self.finish();
    }

    /// Counts fields of the hash that were deleted because they had expired, and records that.
    pub fn expired_fields(&mut self, fields: usize) {
        if fields > 0 {
            self.count_expired_fields(fields as u64);
            self.note(Event::hash("hexpired"));
        }
    }

    /// Counts fields of the hash that were deleted because they had expired.
    pub fn count_expired_fields(&mut self, fields: u64) {
        self.effects.expired_fields += fields;
    }

    /// Records an event beside the one the write is closed with (`set` beside `expire`).
    #[inline]
    pub fn note(&mut self, event: Event) {
        if self.effects.hooks.has(Hooks::NOTED) {
            self.effects.note(self.db, self.name, event);
        }
    }

    /// Has the log repeat this instead of the command that runs.
    #[inline]
    pub fn log_instead(&mut self, words: &[&[u8]]) {
        self.effects.log_instead(words);
    }

    /// What the command did, for what it says to the log.
    pub fn effects(&mut self) -> &mut Effects {
        self.effects
    }

    /// The entry's time is over.
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

    /// Tells those who watch the key, and has those served who wait for what it is now.
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
    fn tell(&mut self, interested: &Interested) {
        self.keys_told = self.table.len();
        interested.watching.touch(self.db, self.name, self.exists());
        self.wake(interested);
    }

    /// Has those served who wait for what the key is now.
    fn wake(&mut self, interested: &Interested) {
        let kind = ready::kind_of(self.entry());
        if interested.waiting.awaits(self.db, self.name, kind) {
            ready::note(
                &mut self.effects.ready,
                ReadyKey::new(self.db, self.slot, self.hash, self.name),
            );
        }
    }

    fn finish(&mut self) {
        self.closed = true;
        if self.table.len() != self.keys_told {
            // Also where the change counts with another key (RENAME, MOVE).
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
