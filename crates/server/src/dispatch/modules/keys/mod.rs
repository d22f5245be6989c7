//! Access of modules to keys and their values ([`weft_modules::session::keys`]).
//!
//! Each function looks its value up. One that may change it opens the key as handlers do ([`KeyWrite`]), so that
//! before-images, counts, the undo log of a script and the leases are the same. It closes the key as a module's write
//! ([`KeyWrite::changed_by_module`]): blocked clients may be served, but nothing is propagated or counted as a change,
//! and clients that watch the key learn of it when the module closes it.

mod hash;
mod lifetime;
mod list;
mod scan;
mod sorted_set;
mod stream;
mod string;

use weft_base::DbIndex;
use weft_modules::session::keys::{KeyIdentity, KeyKind, KeySession, LookupOptions, SessionKey};
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::packed::PackedKind;

use super::ModuleSession;
use crate::commands::hash::fields::value_as_hash;
use crate::commands::list::stored::value_as_list;
use crate::commands::set::value_as_set;
use crate::commands::sorted_set::value_as_sorted_set;
use crate::commands::stream::arguments::entry_as_stream;
use crate::commands::string::bytes::with_bytes;
use crate::keyspace::access::{AccessContext, KeyWrite, is_expired};
use crate::keyspace::effects::{Effects, Hooks, RemovalCause};
use crate::keyspace::key_identity::{NamedKey, PlannedKey};
use crate::state::Server;
use std::sync::Arc;

/// What a function needs besides the key.
#[derive(Clone, Copy)]
pub(in crate::dispatch) struct EditContext<'s> {
    /// The server, for its parameters.
    server: &'s Arc<Server>,
    /// The time at which fields expire, in milliseconds since the Unix epoch.
    expiry_ms: u64,
    /// The time up to which an expiry is in the past; 0 if another server deletes what has expired.
    past_ms: u64,
    /// The time of the command, in milliseconds since the Unix epoch.
    now_ms: u64,
}

/// Returns the type of a value.
fn kind_of(value: ValueRef<'_, Value>) -> KeyKind {
    match value {
        ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Blob(_) => KeyKind::String,
        ValueRef::Packed(packed) => match PackedKind::of(packed) {
            PackedKind::List => KeyKind::List,
            PackedKind::Hash => KeyKind::Hash,
            PackedKind::Set | PackedKind::IntegerSet => KeyKind::Set,
            PackedKind::SortedSet => KeyKind::SortedSet,
        },
        ValueRef::Object(value) => match value {
            Value::List(_) => KeyKind::List,
            Value::Hash(_) => KeyKind::Hash,
            Value::Set(_) => KeyKind::Set,
            Value::SortedSet(_) => KeyKind::SortedSet,
            Value::Stream(_) => KeyKind::Stream,
            Value::Module(_) => KeyKind::Module,
        },
    }
}

/// Returns the number of elements of a value, or of bytes of a string.
fn length_of(entry: EntryRef<'_, Value>) -> usize {
    let value = entry.value();
    match kind_of(value) {
        KeyKind::String => with_bytes(value, <[u8]>::len).unwrap_or(0),
        KeyKind::List => value_as_list(value).map_or(0, |list| list.len()),
        KeyKind::Hash => value_as_hash(value).map_or(0, |hash| hash.len()),
        KeyKind::Set => value_as_set(value).map_or(0, |set| set.len()),
        KeyKind::SortedSet => value_as_sorted_set(value).map_or(0, |set| set.len()),
        KeyKind::Stream => match entry_as_stream(Some(entry)) {
            Ok(Some(stream)) => usize::try_from(stream.length()).unwrap_or(usize::MAX),
            _ => 0,
        },
        KeyKind::Module | KeyKind::Empty => 0,
    }
}

fn planned(key: SessionKey<'_>) -> PlannedKey {
    PlannedKey {
        lease: key.identity.lease,
        ..PlannedKey::unnamed(key.identity.hash)
    }
}

fn named<'k>(key: SessionKey<'k>) -> NamedKey<'k> {
    NamedKey {
        name: key.name,
        hash: key.identity.hash,
        slot: key.identity.slot,
    }
}

impl ModuleSession<'_, '_> {
    /// Calls `run` with the entry of a key, even if it has expired. This is no lookup. Returns `None` without an entry.
    pub(in crate::dispatch) fn with_stored<R>(
        &mut self,
        key: SessionKey<'_>,
        run: impl FnOnce(EntryRef<'_, Value>) -> R,
    ) -> Option<R> {
        let held = self.access.as_held_leases();
        let table = held.slot(&planned(key))?.table(key.identity.db)?;
        table.find(key.identity.hash, key.name).map(run)
    }

    /// Calls `run` with a key that is open for writing, and closes it as changed. An expired entry stays if the module
    /// has seen it. Returns `None` if the session may not write the key.
    pub(in crate::dispatch) fn edit_key<R>(
        &mut self,
        key: SessionKey<'_>,
        run: impl FnOnce(&mut KeyWrite<'_>, EditContext<'_>) -> R,
    ) -> Option<R> {
        self.open_write(key, key.has_value, |mut write, context| {
            let result = run(&mut write, context);
            write.changed_by_module();
            result
        })
    }

    /// Calls `run` with a key that is open for writing, and may be found expired.
    fn open_write<R>(
        &mut self,
        key: SessionKey<'_>,
        keeps_expired: bool,
        run: impl FnOnce(KeyWrite<'_>, EditContext<'_>) -> R,
    ) -> Option<R> {
        let is_remote = self.thread.effects.keeps_expired;
        let frame = self.thread.split_frame().0;
        let (server, access) = (frame.server, frame.access_context(self.client));
        let (effects, now_ms) = frame.into_effects();
        let context = EditContext {
            server,
            expiry_ms: access.now_ms,
            past_ms: if is_remote { 0 } else { access.now_ms },
            now_ms,
        };
        let mut held = self.access.as_held_leases();
        let (header, slot) = held.writable_slot(key.identity.slot)?;
        let (key, db) = (named(key), key.identity.db);
        let write = match keeps_expired {
            true => KeyWrite::with_expired(header, slot, key, db, &access, effects),
            false => KeyWrite::new(header, slot, key, db, &access, effects),
        };
        let result = run(write, context);
        self.deliver_events_of_access();
        Some(result)
    }

    /// Looks a key up. An expired one is deleted, unless another server does that. Modules have the events afterwards.
    fn look_up(&mut self, key: SessionKey<'_>, options: LookupOptions, is_write: bool) -> KeyKind {
        let kind = self.find_kind(key, options, is_write);
        self.deliver_events_of_access();
        kind
    }

    fn find_kind(&mut self, key: SessionKey<'_>, options: LookupOptions, is_write: bool) -> KeyKind {
        let frame = self.thread.split_frame().0;
        let access = frame.access_context(self.client);
        let (effects, _) = frame.into_effects();
        let held = self.access.as_held_leases();
        let table = held.slot(&planned(key)).and_then(|slot| slot.table(key.identity.db));
        let found = table.and_then(|table| table.find(key.identity.hash, key.name));
        let has_expired = found.is_some_and(|entry| is_expired(entry.expire_at_ms(), access.now_ms));
        if let Some(entry) = found.filter(|_| !has_expired) {
            if !options.contains(LookupOptions::NO_STATISTICS) && !is_write {
                effects.hits += 1;
            }
            if !options.contains(LookupOptions::NO_TOUCH) && access.should_touch {
                access.clock.touch(entry);
            }
            return kind_of(entry.value());
        }
        if has_expired {
            self.meet_expired(key, options);
        }
        if !is_write {
            self.note_miss(key, options);
        }
        KeyKind::Empty
    }

    fn meet_expired(&mut self, key: SessionKey<'_>, options: LookupOptions) {
        if options.contains(LookupOptions::NO_EXPIRY) || self.thread.effects.keeps_expired {
            return;
        }
        let deleted = self.open_write(key, false, |write, _| drop(write));
        if deleted.is_none() {
            // Only a read lease is held. The deletion follows after the command.
            self.thread
                .effects
                .queue_expired(key.identity.db, &planned(key), key.name, false);
        }
    }

    /// Returns `true` if some client may watch, cache or wait for a key.
    fn may_concern_clients(&mut self, key: SessionKey<'_>) -> bool {
        let mut held = self.access.as_held_leases();
        let slot = held.writable_slot(key.identity.slot);
        let is_awaited = slot.is_some_and(|(_, slot)| slot.has_interested_clients(key.identity.hash));
        is_awaited || self.thread.effects.hooks.intersects(Hooks::TRACKING)
    }

    fn note_miss(&mut self, key: SessionKey<'_>, options: LookupOptions) {
        let effects: &mut Effects = &mut self.thread.effects;
        if !options.contains(LookupOptions::NO_STATISTICS) {
            effects.misses += 1;
        }
        if !options.contains(LookupOptions::NO_EVENT) {
            effects.record_missed_event(key.identity.db, key.name);
        }
    }

    /// Returns the settings with which keys are accessed.
    fn access_context(&mut self) -> AccessContext<'_> {
        self.thread.split_frame().0.access_context(self.client)
    }

    /// Returns the index of a database of a module's context.
    fn database(&self, db: u32) -> Option<DbIndex> {
        let databases = self.thread.server.keyspace.counts.databases();
        DbIndex::parse(i64::from(db), databases)
    }
}

impl KeySession for ModuleSession<'_, '_> {
    fn locate_key(&mut self, db: u32, name: &[u8], is_write: bool) -> Option<KeyIdentity> {
        let db = self.database(db)?;
        let plan = self.plan_key(0, name)?;
        if is_write {
            self.access.as_held_leases().writable_slot(plan.slot)?;
        }
        Some(KeyIdentity {
            db,
            hash: plan.hash,
            slot: plan.slot,
            lease: plan.lease,
        })
    }

    fn open_for_reading(&mut self, key: SessionKey<'_>, options: LookupOptions) -> KeyKind {
        self.look_up(key, options, false)
    }

    fn open_for_writing(&mut self, key: SessionKey<'_>, options: LookupOptions) -> KeyKind {
        self.look_up(key, options, true)
    }

    fn stored_kind(&mut self, key: SessionKey<'_>) -> KeyKind {
        self.with_stored(key, |entry| kind_of(entry.value()))
            .unwrap_or_default()
    }

    fn value_length(&mut self, key: SessionKey<'_>) -> usize {
        self.with_stored(key, length_of).unwrap_or(0)
    }

    fn delete_key(&mut self, key: SessionKey<'_>, is_lazy: bool) {
        let cause = match is_lazy {
            true => RemovalCause::Unlink,
            false => RemovalCause::Command,
        };
        self.edit_key(key, |write, _| write.delete_for(cause));
    }

    fn signal_modified_key(&mut self, key: SessionKey<'_>) {
        // Modules mostly signal keys that no client waits for, and the lookup would cost more than this.
        if self.may_concern_clients(key) {
            self.open_write(key, true, |write, _| write.signal_modified());
        }
    }
}

#[cfg(test)]
mod tests;
