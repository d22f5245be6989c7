//! Hashes: fields with values, and fields that expire.
//!
//! A small hash is *packed*: its table entry contains a run of fields, each followed by its value
//! ([`HashRef::Packed`]). A larger hash, or one with fields that expire, is a [`Hash`]: records of a field, its value
//! and an optional expiry.
//!
//! Fields that expire are also in a queue ordered by time, so that the due ones are found without a scan of the others:
//!
//! ```text
//!   records:  | field value | field expiry value | ...
//!   queue:    (expiry, hash of the field), earliest first; only if some field expires
//! ```
//!
//! An expired field stays in memory until it is removed explicitly. It counts in the length, but no other read
//! operation returns it.

use std::collections::BTreeSet;

use crate::listpack::{self, Element, ElementRun};
use crate::packed::PackedKind;
use crate::records::{Record, RecordId, RecordShape, Records, hash_of};
use crate::relocation::{PartCursor, PartMover};

/// Returns `true` if an expiry time has passed. A field is still valid in the millisecond in which it expires.
#[inline]
fn is_expired(expire_at_ms: Option<u64>, now_ms: u64) -> bool {
    expire_at_ms.is_some_and(|at_ms| now_ms > at_ms)
}

/// The encoding that a hash reports. The actual layout is independent of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashEncoding {
    /// `listpack`
    Listpack,
    /// `hashtable`
    Hashtable,
}

/// The limits within which a hash reports `listpack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLimits {
    /// The maximum number of fields.
    pub fields: usize,
    /// The maximum length of a field name or value in bytes.
    pub value_bytes: usize,
}

/// The treatment of a field's expiry when its value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldExpiry {
    /// Keeps the current expiry.
    Keep,
    /// Removes the expiry.
    Never,
    /// Sets the expiry to this time, in milliseconds since the Unix epoch.
    At(u64),
}

/// The state of a field before it was set or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousField {
    /// The field did not exist.
    Absent,
    /// The field existed but had expired.
    Expired,
    /// The field existed.
    Present,
}

/// A field in its stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashField<'a> {
    /// The name of the field.
    pub name: Element<'a>,
    /// The value of the field.
    pub value: Element<'a>,
}

/// A hash that is stored as records.
#[derive(Clone, Debug)]
pub struct Hash {
    records: Records,
    /// The fields with a property of their own; `None` if the hash never had such a field.
    special: Option<Box<SpecialFields>>,
    encoding: HashEncoding,
}

/// The fields with a property of their own.
#[derive(Clone, Debug, Default)]
struct SpecialFields {
    /// Those that expire, ordered by expiry time in milliseconds and hash of the field.
    times: BTreeSet<(u64, u64)>,
    /// The hashes of those whose value a module has provided as bytes of its own.
    provided: BTreeSet<u64>,
}

/// The average memory of a queue entry in bytes, including the unused parts of tree nodes.
const QUEUE_ENTRY_BYTES: usize = 24;

/// The maximum number of fields up to which their order is kept. Above it, a change would take too long, whatever the
/// configured limit of a listpack is.
const MAX_ORDERED_FIELDS: usize = 512;

fn ignore_move(_: RecordId, _: RecordId, _: Record<'_>) {}

impl Hash {
    /// Creates an empty hash.
    pub fn new(reported: HashEncoding) -> Self {
        Hash::with_capacity(reported, 0, 0)
    }

    /// Creates an empty hash with capacity for `fields` fields, whose names and values take `bytes` bytes in total.
    pub fn with_capacity(reported: HashEncoding, fields: usize, bytes: usize) -> Self {
        Hash {
            records: Records::with_capacity(RecordShape::Fields, fields, bytes),
            special: None,
            encoding: reported,
        }
    }

    /// Creates a hash from the run of a packed hash.
    pub fn from_run(run: ElementRun<'_>, reported: HashEncoding) -> Self {
        let mut hash = Hash::with_capacity(reported, run.count() / 2, run.bytes().len());
        let (mut name_digits, mut value_digits) = ([0; 20], [0; 20]);
        for field in fields_of(run) {
            let name = field.name.text(&mut name_digits);
            let record = Record::field(name, field.value.text(&mut value_digits));
            hash.records.insert(hash_of(name), &record);
        }
        hash
    }

    /// The name of the encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        match self.encoding {
            HashEncoding::Listpack => "listpack",
            HashEncoding::Hashtable => "hashtable",
        }
    }

    /// The encoding that the hash reports.
    pub fn encoding(&self) -> HashEncoding {
        self.encoding
    }

    /// Makes the hash report `hashtable` from now on.
    pub fn set_hashtable_encoding(&mut self) {
        self.encoding = HashEncoding::Hashtable;
    }

    /// The number of bytes allocated in addition to the value itself.
    pub fn allocated_bytes(&self) -> usize {
        let special = self.special.as_ref().map_or(0, |special| {
            let entries = special.times.len() + special.provided.len();
            size_of::<SpecialFields>() + entries * QUEUE_ENTRY_BYTES
        });
        self.records.allocated_bytes() + special
    }

    /// Moves the records; see [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        self.records.move_parts(from, mover)
    }

    /// The number of fields, including expired ones.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns `true` if there are no fields.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns `true` if some field has an expiry.
    #[inline]
    pub fn has_expiring_fields(&self) -> bool {
        self.special.as_ref().is_some_and(|special| !special.times.is_empty())
    }

    /// Returns the earliest expiry of all fields, in milliseconds since the Unix epoch.
    #[inline]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        let first = self.special.as_ref()?.times.first()?;
        Some(first.0)
    }

    /// Returns `true` if some field has expired.
    #[inline]
    pub fn has_expired_fields(&self, now_ms: u64) -> bool {
        is_expired(self.next_expiry_ms(), now_ms)
    }

    /// The records, which contain everything that is stored, including expired fields.
    #[inline]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the record of a field unless it has expired.
    #[inline]
    pub fn find(&self, name: &[u8], now_ms: u64) -> Option<Record<'_>> {
        let id = self.records.find(hash_of(name), name)?;
        let record = self.records.record(id);
        (!is_expired(record.expire_at_ms, now_ms)).then_some(record)
    }

    /// Iterates over the fields that have not expired, in memory order.
    #[inline]
    pub fn iter(&self, now_ms: u64) -> impl Iterator<Item = Record<'_>> {
        self.records
            .iter()
            .map(|(_, record)| record)
            .filter(move |record| !is_expired(record.expire_at_ms, now_ms))
    }

    /// Sets a field. Returns its state before.
    pub fn set(&mut self, name: &[u8], value: &[u8], expiry: FieldExpiry, now_ms: u64) -> PreviousField {
        let hash = hash_of(name);
        let Some(id) = self.records.find(hash, name) else {
            let expire_at_ms = match expiry {
                FieldExpiry::At(at_ms) => Some(at_ms),
                FieldExpiry::Keep | FieldExpiry::Never => None,
            };
            let record = Record {
                key: name,
                value,
                expire_at_ms,
            };
            self.records.insert(hash, &record);
            self.update_expiry_queue(hash, None, expire_at_ms);
            return PreviousField::Absent;
        };
        self.forget_provided(hash);
        let old = self.records.record(id).expire_at_ms;
        let expired = is_expired(old, now_ms);
        let new = match expiry {
            FieldExpiry::Keep if !expired => old,
            FieldExpiry::Keep | FieldExpiry::Never => None,
            FieldExpiry::At(at_ms) => Some(at_ms),
        };
        let record = Record {
            key: name,
            value,
            expire_at_ms: new,
        };
        // The first expiry ends the order.
        if self.is_ordered() && new.is_none() && value.len() != self.records.record(id).value.len() {
            self.rewrite(name, Some(value));
            return PreviousField::Present;
        }
        self.records.replace(hash, id, &record, ignore_move);
        self.update_expiry_queue(hash, old, new);
        if expired {
            PreviousField::Expired
        } else {
            PreviousField::Present
        }
    }

    /// Sets or removes the expiry of a field. Does nothing if the field does not exist.
    pub fn set_expiry(&mut self, name: &[u8], expire_at_ms: Option<u64>) {
        let hash = hash_of(name);
        if let Some(id) = self.records.find(hash, name) {
            let old = self.records.record(id).expire_at_ms;
            self.records.set_expiry(hash, id, expire_at_ms, ignore_move);
            self.update_expiry_queue(hash, old, expire_at_ms);
        }
    }

    fn update_expiry_queue(&mut self, hash: u64, old: Option<u64>, new: Option<u64>) {
        if old == new {
            return;
        }
        let times = &mut self.special.get_or_insert_default().times;
        if let Some(at_ms) = old {
            times.remove(&(at_ms, hash));
        }
        if let Some(at_ms) = new {
            times.insert((at_ms, hash));
            // Valkey's listpacks cannot store an expiry.
            self.encoding = HashEncoding::Hashtable;
        }
    }

    /// Removes a field unless it has expired. Returns its state before.
    pub fn remove(&mut self, name: &[u8], now_ms: u64) -> PreviousField {
        let hash = hash_of(name);
        let Some(id) = self.records.find(hash, name) else {
            return PreviousField::Absent;
        };
        let expire_at_ms = self.records.record(id).expire_at_ms;
        if is_expired(expire_at_ms, now_ms) {
            return PreviousField::Expired;
        }
        if self.is_ordered() {
            self.rewrite(name, None);
        } else {
            self.remove_record(hash, id);
        }
        PreviousField::Present
    }

    /// Returns `true` if the fields stay in insertion order, as in a listpack. In this case no field has an expiry, and
    /// there are few enough fields to rewrite all of them.
    fn is_ordered(&self) -> bool {
        self.encoding == HashEncoding::Listpack && self.special.is_none() && self.len() <= MAX_ORDERED_FIELDS
    }

    /// Rewrites all fields in their order. The field `name` gets another value, or is left out if `value` is `None`.
    fn rewrite(&mut self, name: &[u8], value: Option<&[u8]>) {
        let bytes = self.records.stored_bytes() + value.map_or(0, <[u8]>::len);
        let mut records = Records::with_capacity(RecordShape::Fields, self.len(), bytes);
        for (_, record) in self.records.iter() {
            let record = match value {
                _ if record.key != name => record,
                Some(value) => Record::field(name, value),
                None => continue,
            };
            records.insert(hash_of(record.key), &record);
        }
        self.records = records;
    }

    /// Notes that a module has provided the value of a field as bytes of its own, until the field gets another value or
    /// is removed. Does nothing if the field does not exist.
    pub fn note_provided(&mut self, name: &[u8]) {
        let hash = hash_of(name);
        if self.records.find(hash, name).is_some() {
            self.special.get_or_insert_default().provided.insert(hash);
            // Valkey's listpacks cannot store that.
            self.encoding = HashEncoding::Hashtable;
        }
    }

    /// Returns `true` if a module has provided the value of a field, which has not expired.
    pub fn is_provided(&self, name: &[u8], now_ms: u64) -> bool {
        let is_noted = |special: &SpecialFields| special.provided.contains(&hash_of(name));
        self.special.as_deref().is_some_and(is_noted) && self.find(name, now_ms).is_some()
    }

    fn forget_provided(&mut self, hash: u64) {
        if let Some(special) = &mut self.special {
            special.provided.remove(&hash);
        }
    }

    fn remove_record(&mut self, hash: u64, id: RecordId) {
        self.forget_provided(hash);
        let expire_at_ms = self.records.record(id).expire_at_ms;
        self.records.remove(hash, id, ignore_move);
        self.update_expiry_queue(hash, expire_at_ms, None);
    }

    /// Removes up to `limit` fields that have expired. Calls `visit` with the name of each before its removal.
    /// Returns the number of removed fields.
    pub fn remove_expired(&mut self, now_ms: u64, limit: usize, mut visit: impl FnMut(&[u8])) -> usize {
        let mut removed = 0;
        while removed < limit
            && let Some(&(at_ms, hash)) = self.special.as_ref().and_then(|special| special.times.first())
            && is_expired(Some(at_ms), now_ms)
        {
            let found = self.records.find_where(hash, |record| {
                record.expire_at_ms == Some(at_ms) && hash_of(record.key) == hash
            });
            debug_assert!(found.is_some(), "whatever is queued expires");
            match found {
                Some(id) => {
                    visit(self.records.record(id).key);
                    self.remove_record(hash, id);
                    removed += 1;
                }
                None => self.update_expiry_queue(hash, Some(at_ms), None),
            }
        }
        removed
    }

    /// Visits fields from a cursor on as [`Records::scan`] does, except those that have expired.
    pub fn scan(&self, cursor: u64, at_least: usize, now_ms: u64, visit: &mut dyn FnMut(Record<'_>)) -> u64 {
        self.records.scan(cursor, at_least, &mut |_, record| {
            if !is_expired(record.expire_at_ms, now_ms) {
                visit(record);
            }
        })
    }

    /// Returns a random field, which may have expired.
    pub fn random_field(&self, below: impl FnMut(usize) -> usize) -> Option<Record<'_>> {
        self.records.random_record(below).map(|id| self.records.record(id))
    }
}

/// Iterates over the fields of a packed hash.
#[inline]
pub fn fields_of(run: ElementRun<'_>) -> impl Iterator<Item = HashField<'_>> {
    let mut elements = run.iter();
    std::iter::from_fn(move || {
        let (_, name) = elements.next()?;
        let (_, value) = elements.next()?;
        Some(HashField { name, value })
    })
}

/// Returns the run of a packed hash.
#[inline]
pub fn run_of(packed: &[u8]) -> ElementRun<'_> {
    debug_assert_eq!(PackedKind::of(packed), PackedKind::Hash);
    ElementRun::new(packed.get(1..).unwrap_or_default())
}

/// A packed hash under construction.
#[derive(Clone, Debug)]
pub struct PackedHashBuilder {
    bytes: Vec<u8>,
    fields: usize,
}

impl PackedHashBuilder {
    /// Starts with the fields of a packed hash, or with none, and reserves space for `more_bytes`.
    pub fn of(packed: Option<&[u8]>, more_bytes: usize) -> Self {
        let before = packed.unwrap_or(&[PackedKind::Hash as u8]);
        let mut bytes = Vec::with_capacity(before.len() + more_bytes);
        bytes.extend_from_slice(before);
        let fields = run_of(&bytes).count() / 2;
        PackedHashBuilder { bytes, fields }
    }

    /// Sets a field. Returns `true` if it is new.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let run = run_of(&self.bytes);
        let Some(at) = run.find(name, 2) else {
            listpack::push(&mut self.bytes, name);
            listpack::push(&mut self.bytes, value);
            self.fields += 1;
            return true;
        };
        // The bytes begin with the kind, so their offsets are those of the run plus one.
        let (start, end) = (1 + run.end_of(at), 1 + run.end_of(run.end_of(at)));
        listpack::splice(&mut self.bytes, start..end, Element::of(value));
        false
    }

    /// Removes a field. Returns `true` if it was present.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let run = run_of(&self.bytes);
        let Some(at) = run.find(name, 2) else {
            return false;
        };
        let end = run.end_of(run.end_of(at));
        self.bytes.drain(1 + at..1 + end);
        self.fields -= 1;
        true
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields
    }

    /// Returns `true` if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields == 0
    }

    /// The bytes of the packed hash.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Sets an existing field of a packed hash in place. Returns `None` without a change if the field does not exist or the
/// new value has another encoded size.
pub fn overwrite(packed: &mut [u8], name: &[u8], value: &[u8]) -> Option<()> {
    let run = run_of(packed);
    let at = 1 + run.end_of(run.find(name, 2)?);
    listpack::overwrite(&mut packed[1..], at - 1, Element::of(value)).then_some(())
}

/// A read-only view of a hash in either form.
#[derive(Clone, Copy, Debug)]
pub enum HashRef<'a> {
    /// A hash packed in its table entry.
    Packed(ElementRun<'a>),
    /// A hash stored as a value of its own.
    Large(&'a Hash),
}

impl<'a> HashRef<'a> {
    /// Returns `true` if some field has an expiry.
    #[inline]
    pub fn has_expiring_fields(self) -> bool {
        match self {
            HashRef::Packed(_) => false,
            HashRef::Large(hash) => hash.has_expiring_fields(),
        }
    }

    /// The number of fields, including expired ones.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            HashRef::Packed(run) => run.count() / 2,
            HashRef::Large(hash) => hash.len(),
        }
    }

    /// Returns `true` if there are no fields.
    #[inline]
    pub fn is_empty(self) -> bool {
        match self {
            HashRef::Packed(run) => run.is_empty(),
            HashRef::Large(hash) => hash.is_empty(),
        }
    }

    /// Returns the number of fields that have not expired.
    pub fn live_len(self, now_ms: u64) -> usize {
        match self {
            HashRef::Large(hash) if hash.has_expired_fields(now_ms) => hash.iter(now_ms).count(),
            _ => self.len(),
        }
    }

    /// The approximate number of bytes that names and values take.
    pub fn stored_bytes(self) -> usize {
        match self {
            HashRef::Packed(run) => run.bytes().len(),
            HashRef::Large(hash) => hash.records.stored_bytes(),
        }
    }

    /// Returns the value of a field unless it has expired.
    #[inline]
    pub fn value(self, name: &[u8], now_ms: u64) -> Option<Element<'a>> {
        match self {
            HashRef::Packed(run) => run.at(run.end_of(run.find(name, 2)?)),
            HashRef::Large(hash) => hash.find(name, now_ms).map(|record| Element::Bytes(record.value)),
        }
    }

    /// Calls `visit` for the fields that have not expired, with their values.
    #[inline]
    pub fn for_each(self, now_ms: u64, mut visit: impl FnMut(HashField<'a>)) {
        let stored = |record: Record<'a>| HashField {
            name: Element::Bytes(record.key),
            value: Element::Bytes(record.value),
        };
        match self {
            HashRef::Packed(run) => fields_of(run).for_each(visit),
            HashRef::Large(hash) if hash.has_expired_fields(now_ms) => {
                hash.iter(now_ms).for_each(|record| visit(stored(record)));
            }
            HashRef::Large(hash) => {
                hash.records.for_each(|record| visit(stored(record)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
