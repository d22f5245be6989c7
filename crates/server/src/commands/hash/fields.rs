//! Access to the fields of hashes, for commands, in every layout.

use weft_resp::{Args, Reply};
use weft_table::{EntryRef, NewValue, ValueRef};
use weft_values::Value;
use weft_values::hash::{
    FieldExpiry, Hash, HashEncoding, HashLimits, HashRef, PackedHashBuilder, PreviousField, overwrite, run_of,
};
use weft_values::listpack::{Element, ElementRun};
use weft_values::packed::{MAX_PACKED_BYTES, PackedKind};

use super::super::error::CommandError;
use crate::commands::generic::expire::first_future_ms;
use crate::keyspace::access::{ExpiryUpdate, KeyWrite};
use crate::notify::keyspace_event::KeyspaceEvent;

/// The time to write a field to a reply, in nanoseconds.
pub const REPLY_FIELD_NS: u64 = 40;
/// The time to look up and change a field, in nanoseconds.
pub const CHANGE_FIELD_NS: u64 = 200;

/// Returns a value as a hash.
///
/// # Errors
/// `WRONGTYPE` if it is not a hash.
#[inline]
pub fn value_as_hash(value: ValueRef<'_, Value>) -> Result<HashRef<'_>, CommandError> {
    match value {
        ValueRef::Object(Value::Hash(hash)) => Ok(HashRef::Large(hash)),
        ValueRef::Packed(packed) if PackedKind::of(packed) == PackedKind::Hash => Ok(HashRef::Packed(run_of(packed))),
        _ => Err(CommandError::WRONG_TYPE),
    }
}

/// Returns an entry as a hash, if there is one.
///
/// # Errors
/// `WRONGTYPE` for other types.
#[inline]
pub fn entry_as_hash(entry: Option<EntryRef<'_, Value>>) -> Result<Option<HashRef<'_>>, CommandError> {
    entry.map(|entry| value_as_hash(entry.value())).transpose()
}

/// Returns the key if it is missing or holds a hash; otherwise the key is closed.
///
/// # Errors
/// `WRONGTYPE` if it holds another type.
#[inline]
pub fn check_hash_key(key: KeyWrite<'_>) -> Result<KeyWrite<'_>, CommandError> {
    let is_hash = entry_as_hash(key.entry()).map(|_| ());
    match is_hash {
        Ok(()) => Ok(key),
        Err(error) => Err(error),
    }
}

/// Returns the hash of a key that was checked.
#[inline]
pub fn key_as_hash<'k>(key: &'k KeyWrite<'_>) -> Option<HashRef<'k>> {
    entry_as_hash(key.entry()).ok().flatten()
}

/// Writes a name or value.
#[inline]
pub fn reply_element(reply: &mut Reply<'_>, element: Element<'_>) {
    match element {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Int(number) => reply.bulk_integer(number),
    }
}

/// Writes a value, or null.
#[inline]
pub fn reply_value_or_null(reply: &mut Reply<'_>, value: Option<Element<'_>>) {
    match value {
        Some(value) => reply_element(reply, value),
        None => reply.null(),
    }
}

/// Names of fields among the arguments.
#[derive(Clone, Copy)]
pub struct FieldNames<'a> {
    args: Args<'a>,
    first: usize,
    count: usize,
}

impl<'a> FieldNames<'a> {
    /// Creates a list of `count` names from argument `first` on.
    pub fn new(args: Args<'a>, first: usize, count: usize) -> Self {
        FieldNames { args, first, count }
    }

    /// Returns the number of names.
    pub fn len(self) -> usize {
        self.count
    }

    /// Iterates over the names.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> + Clone {
        (0..self.count).map(move |index| self.args.argument(self.first + index))
    }
}

/// Names and values of fields among the arguments.
#[derive(Clone, Copy)]
pub struct FieldValueArguments<'a> {
    args: Args<'a>,
    first: usize,
    count: usize,
}

impl<'a> FieldValueArguments<'a> {
    /// Creates a list of `count` names, each followed by its value, from argument `first` on.
    pub fn new(args: Args<'a>, first: usize, count: usize) -> Self {
        FieldValueArguments { args, first, count }
    }

    /// Returns the number of pairs.
    pub fn len(self) -> usize {
        self.count
    }

    /// Iterates over the pairs.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        (0..self.count).map(move |index| {
            let at = self.first + 2 * index;
            (self.args.argument(at), self.args.argument(at + 1))
        })
    }
}

/// The result of setting fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFieldsResult {
    /// The number of new fields.
    pub added: usize,
    /// The number of those that existed and had expired.
    pub expired: usize,
}

impl SetFieldsResult {
    fn count(&mut self, before: PreviousField) {
        self.added += usize::from(before != PreviousField::Present);
        self.expired += usize::from(before == PreviousField::Expired);
    }
}

/// Sets fields of a key that was checked. `pairs` has at least one. A field whose expiry is `past_ms` or earlier counts
/// as deleted before. As in Valkey, this includes a field that readers still see in its last millisecond.
pub fn set_fields<'a>(
    key: &mut KeyWrite<'_>,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    expiry: FieldExpiry,
    limits: HashLimits,
    past_ms: u64,
) -> SetFieldsResult {
    let fits = |bytes: &[u8]| bytes.len() <= limits.value_bytes;
    let (count, fitting) = pairs.clone().fold((0, true), |(count, fitting), (name, value)| {
        (count + 1, fitting && fits(name) && fits(value))
    });
    let compact = fitting && count <= limits.fields && !matches!(expiry, FieldExpiry::At(_));
    let future_ms = first_future_ms(past_ms);
    let mut done = SetFieldsResult::default();
    let changed = key.change_hash(|hash| {
        if !compact {
            hash.set_hashtable_encoding();
        }
        for (name, value) in pairs.clone() {
            done.count(hash.set(name, value, expiry, future_ms));
        }
        if hash.len() > limits.fields {
            hash.set_hashtable_encoding();
        }
    });
    if changed.is_some() {
        return done;
    }
    if !compact {
        let mut hash = to_unpacked(key, HashEncoding::Hashtable, count);
        for (name, value) in pairs {
            done.count(hash.set(name, value, expiry, future_ms));
        }
        key.set(NewValue::Object(Value::Hash(hash)), ExpiryUpdate::Keep);
        return done;
    }
    if count == 1 && overwrite_packed(key, pairs.clone()) {
        return done;
    }
    set_packed(key, pairs, limits)
}

/// Sets a field that exists to bytes that a module has provided. The expiry of the field stays.
pub fn set_provided_field(key: &mut KeyWrite<'_>, (name, value): (&[u8], &[u8]), past_ms: u64) {
    let future_ms = first_future_ms(past_ms);
    let set = |hash: &mut Hash| {
        hash.set(name, value, FieldExpiry::Keep, future_ms);
        hash.note_provided(name);
    };
    if key.change_hash(|hash| set(hash)).is_none() {
        let mut hash = to_unpacked(key, HashEncoding::Hashtable, 0);
        set(&mut hash);
        key.set(NewValue::Object(Value::Hash(hash)), ExpiryUpdate::Keep);
    }
}

/// Overwrites a single field in place, if it exists and has the same size.
fn overwrite_packed<'a>(key: &mut KeyWrite<'_>, mut pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
    let (Some((name, value)), Some(mut entry)) = (pairs.next(), key.entry_mut()) else {
        return false;
    };
    entry
        .packed_mut()
        .is_some_and(|packed| overwrite(packed, name, value).is_some())
}

/// Sets fields of a packed or missing hash, which is packed afterwards if it is small enough.
fn set_packed<'a>(
    key: &mut KeyWrite<'_>,
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    limits: HashLimits,
) -> SetFieldsResult {
    let bytes = pairs.clone().map(|(name, value)| name.len() + value.len() + 8).sum();
    let mut packing = PackedHashBuilder::of(packed_bytes(key), bytes);
    let mut done = SetFieldsResult::default();
    let mut rest = pairs;
    while packing.bytes().len() <= MAX_PACKED_BYTES
        && let Some((name, value)) = rest.next()
    {
        done.added += usize::from(packing.set(name, value));
    }
    if packing.bytes().len() <= MAX_PACKED_BYTES && packing.len() <= limits.fields {
        key.set(NewValue::Packed(packing.bytes()), ExpiryUpdate::Keep);
        return done;
    }
    let mut hash = Hash::from_run(run_of(packing.bytes()), HashEncoding::Listpack);
    for (name, value) in rest {
        done.count(hash.set(name, value, FieldExpiry::Never, 0));
    }
    if hash.len() > limits.fields {
        hash.set_hashtable_encoding();
    }
    key.set(NewValue::Object(Value::Hash(hash)), ExpiryUpdate::Keep);
    done
}

fn packed_bytes<'k>(key: &'k KeyWrite<'_>) -> Option<&'k [u8]> {
    match key.entry().map(|entry| entry.value()) {
        Some(ValueRef::Packed(packed)) => Some(packed),
        _ => None,
    }
}

/// Converts a packed hash to a separate object; creates an empty one, for this many fields, if the key is missing.
fn to_unpacked(key: &KeyWrite<'_>, reported: HashEncoding, fields: usize) -> Hash {
    match packed_bytes(key) {
        Some(packed) => Hash::from_run(run_of(packed), reported),
        None => Hash::with_capacity(reported, fields, 0),
    }
}

/// Converts a packed hash to a separate object, which reports `hashtable`.
pub fn unpack_hash(key: &mut KeyWrite<'_>) {
    if packed_bytes(key).is_some() {
        let hash = to_unpacked(key, HashEncoding::Hashtable, 0);
        key.reencode(NewValue::Object(Value::Hash(hash)));
    }
}

/// Removes fields of a key that was checked; expired fields stay. Returns the number of removed fields. The key stays
/// even if no field is left.
pub fn remove_fields<'a>(key: &mut KeyWrite<'_>, names: impl Iterator<Item = &'a [u8]> + Clone, now_ms: u64) -> usize {
    let removed = key.change_hash(|hash| {
        let removed = names
            .clone()
            .filter(|name| hash.remove(name, now_ms) == PreviousField::Present);
        removed.count()
    });
    if let Some(removed) = removed {
        return removed;
    }
    let Some(packed) = packed_bytes(key) else {
        return 0;
    };
    let run: ElementRun<'_> = run_of(packed);
    if names.clone().all(|name| run.find(name, 2).is_none()) {
        return 0;
    }
    let mut packing = PackedHashBuilder::of(Some(packed), 0);
    let removed = names.filter(|name| packing.remove(name)).count();
    key.set(NewValue::Packed(packing.bytes()), ExpiryUpdate::Keep);
    removed
}

/// Returns the names of fields that exist, if another named field has expired and is still stored; otherwise `None`.
///
/// On replicas nothing has expired. They would change that other field too, so the log names only the fields that the
/// command itself has found.
pub fn live_names_if_any_expired<'a>(
    key: &mut KeyWrite<'_>,
    names: impl Iterator<Item = &'a [u8]> + Clone,
    now_ms: u64,
) -> Option<Vec<&'a [u8]>> {
    if !key.effects().is_logging() {
        return None;
    }
    match key_as_hash(key)? {
        HashRef::Large(hash) if hash.has_expired_fields(now_ms) => {
            let is_live = |name: &&[u8]| hash.find(name, now_ms).is_some();
            let is_stored = |name: &&[u8]| hash.find(name, 0).is_some();
            let any_expired = names.clone().any(|name| is_stored(&name) && !is_live(&name));
            any_expired.then(|| names.filter(is_live).collect())
        }
        HashRef::Large(_) | HashRef::Packed(_) => None,
    }
}

/// Closes a key whose fields were changed `times` times: with `event`, or with the end of a hash that has no fields
/// left.
pub fn close_changed_key(mut key: KeyWrite<'_>, event: KeyspaceEvent, times: u64) {
    if key_as_hash(&key).is_some_and(HashRef::is_empty) {
        key.delete_emptied();
        key.record_event(event);
        key.changed_times(KeyspaceEvent::generic("del"), times);
    } else {
        key.changed_times(event, times);
    }
}
