//! Hashes: fields with values, and fields that expire.
//!
//! A small hash is *packed*: a run of fields, each followed by its value, in its table entry ([`Fields::Packed`]). A
//! larger one, or one with fields that expire, is a [`Hash`]: records of field, value and perhaps expiry.
//!
//! Fields that expire are also in a queue by time, so that those which are due are found without looking at the others:
//!
//! ```text
//!   records:  | field value | field expiry value | ...
//!   queue:    (expiry, hash of the field), earliest first; only if some field expires
//! ```
//!
//! An expired field remains until somebody removes it: it counts in the length, and nothing else shows it.

use std::collections::BTreeSet;

use crate::listpack::{self, Element, Run};
use crate::packed::PackedKind;
use crate::records::{Id, Record, Records, Shape, hash_of};

/// Whether something that expires at a time is gone at another: it lives through the millisecond it expires in.
#[inline]
fn is_expired(expire_at_ms: Option<u64>, now_ms: u64) -> bool {
    expire_at_ms.is_some_and(|at_ms| now_ms > at_ms)
}

/// The form that a hash reports; what it is laid out as is another matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// `listpack`
    Listpack,
    /// `hashtable`
    Hashtable,
}

/// How far a hash may grow while it reports `listpack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fields.
    pub fields: usize,
    /// Bytes of a name or value.
    pub value_bytes: usize,
}

/// What becomes of the expiry of a field whose value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldExpiry {
    /// As it was.
    Keep,
    /// None.
    Never,
    /// At this time, ms since the Unix epoch.
    At(u64),
}

/// What a field was before it was set or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousField {
    /// Not there.
    Absent,
    /// There, but expired.
    Expired,
    /// There.
    Present,
}

/// A field as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name.
    pub name: Element<'a>,
    /// Its value.
    pub value: Element<'a>,
}

/// Records that are a hash.
#[derive(Clone, Debug)]
pub struct Hash {
    records: Records,
    /// The fields that expire; `None` if there never was one.
    expiring: Option<Box<Queue>>,
    reported: Reported,
}

/// Fields that expire, by time and hash of the field.
#[derive(Clone, Debug, Default)]
struct Queue {
    times: BTreeSet<(u64, u64)>,
}

/// Bytes of an entry of the queue, with what a tree leaves unused.
const QUEUE_ENTRY_BYTES: usize = 24;

/// More fields do not keep their order, however many a listpack may have: a change would take too long.
const ORDERED_FIELDS: usize = 512;

fn ignore_moves(_: Id, _: Id, _: Record<'_>) {}

impl Hash {
    /// An empty hash.
    pub fn new(reported: Reported) -> Self {
        Hash::with_capacity(reported, 0, 0)
    }

    /// An empty hash prepared for so many fields, whose names and values take so many bytes in all.
    pub fn with_capacity(reported: Reported, fields: usize, bytes: usize) -> Self {
        Hash {
            records: Records::with_capacity(Shape::Fields, fields, bytes),
            expiring: None,
            reported,
        }
    }

    /// What a packed hash becomes.
    pub fn from_run(run: Run<'_>, reported: Reported) -> Self {
        let mut hash = Hash::with_capacity(reported, run.count() / 2, run.bytes().len());
        let (mut name_digits, mut value_digits) = ([0; 20], [0; 20]);
        for field in fields_of(run) {
            let name = field.name.text(&mut name_digits);
            let record = Record::field(name, field.value.text(&mut value_digits));
            hash.records.insert(hash_of(name), &record);
        }
        hash
    }

    /// The encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        match self.reported {
            Reported::Listpack => "listpack",
            Reported::Hashtable => "hashtable",
        }
    }

    /// The form that it reports.
    pub fn reported(&self) -> Reported {
        self.reported
    }

    /// Reports `hashtable` from now on.
    pub fn report_hashtable(&mut self) {
        self.reported = Reported::Hashtable;
    }

    /// Bytes allocated behind the value itself.
    pub fn allocated_bytes(&self) -> usize {
        let queue = self
            .expiring
            .as_ref()
            .map_or(0, |queue| size_of::<Queue>() + queue.times.len() * QUEUE_ENTRY_BYTES);
        self.records.allocated_bytes() + queue
    }

    /// Number of fields, expired ones included.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no fields.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether some field expires.
    #[inline]
    pub fn is_volatile(&self) -> bool {
        self.expiring.as_ref().is_some_and(|queue| !queue.times.is_empty())
    }

    /// When the first field expires, ms since the Unix epoch.
    #[inline]
    pub fn next_due_ms(&self) -> Option<u64> {
        let first = self.expiring.as_ref()?.times.first()?;
        Some(first.0)
    }

    /// Whether some field has expired.
    #[inline]
    pub fn has_expired_fields(&self, now_ms: u64) -> bool {
        is_expired(self.next_due_ms(), now_ms)
    }

    /// The records: everything that is stored, expired fields included.
    #[inline]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The field as it is stored, unless it has expired.
    #[inline]
    pub fn find(&self, name: &[u8], now_ms: u64) -> Option<Record<'_>> {
        let id = self.records.find(hash_of(name), name)?;
        let record = self.records.record(id);
        (!is_expired(record.expire_at_ms, now_ms)).then_some(record)
    }

    /// The fields that have not expired, in the order of memory.
    #[inline]
    pub fn iter(&self, now_ms: u64) -> impl Iterator<Item = Record<'_>> {
        self.records
            .iter()
            .map(|(_, record)| record)
            .filter(move |record| !is_expired(record.expire_at_ms, now_ms))
    }

    /// Sets a field.
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
            self.requeue(hash, None, expire_at_ms);
            return PreviousField::Absent;
        };
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
        if self.keeps_order() && value.len() != self.records.record(id).value.len() {
            self.rewrite(name, Some(value));
            return PreviousField::Present;
        }
        self.records.replace(hash, id, &record, ignore_moves);
        self.requeue(hash, old, new);
        if expired {
            PreviousField::Expired
        } else {
            PreviousField::Present
        }
    }

    /// Sets or removes the expiry of a field, which must be there.
    pub fn set_expiry(&mut self, name: &[u8], expire_at_ms: Option<u64>) {
        let hash = hash_of(name);
        if let Some(id) = self.records.find(hash, name) {
            let old = self.records.record(id).expire_at_ms;
            self.records.set_expiry(hash, id, expire_at_ms, ignore_moves);
            self.requeue(hash, old, expire_at_ms);
        }
    }

    fn requeue(&mut self, hash: u64, old: Option<u64>, new: Option<u64>) {
        if old == new {
            return;
        }
        let times = &mut self.expiring.get_or_insert_default().times;
        if let Some(at_ms) = old {
            times.remove(&(at_ms, hash));
        }
        if let Some(at_ms) = new {
            times.insert((at_ms, hash));
            // Valkey's listpacks know no expiry.
            self.reported = Reported::Hashtable;
        }
    }

    /// Removes a field. One that has expired stays.
    pub fn remove(&mut self, name: &[u8], now_ms: u64) -> PreviousField {
        let hash = hash_of(name);
        let Some(id) = self.records.find(hash, name) else {
            return PreviousField::Absent;
        };
        let expire_at_ms = self.records.record(id).expire_at_ms;
        if is_expired(expire_at_ms, now_ms) {
            return PreviousField::Expired;
        }
        if self.keeps_order() {
            self.rewrite(name, None);
        } else {
            self.take_out(hash, id);
        }
        PreviousField::Present
    }

    /// Whether the fields stay in the order in which they were added, as in a listpack. Then none expires, and there are
    /// so few that they can be written anew.
    fn keeps_order(&self) -> bool {
        self.reported == Reported::Listpack && self.expiring.is_none() && self.len() <= ORDERED_FIELDS
    }

    /// Writes all fields anew in their order, one of them with another value or not at all.
    fn rewrite(&mut self, name: &[u8], value: Option<&[u8]>) {
        let bytes = self.records.stored_bytes() + value.map_or(0, <[u8]>::len);
        let mut records = Records::with_capacity(Shape::Fields, self.len(), bytes);
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

    fn take_out(&mut self, hash: u64, id: Id) {
        let expire_at_ms = self.records.record(id).expire_at_ms;
        self.records.remove(hash, id, ignore_moves);
        self.requeue(hash, expire_at_ms, None);
    }

    /// Removes fields that have expired, at most so many, and shows each to `visit` before. Returns how many there were.
    pub fn remove_expired(&mut self, now_ms: u64, at_most: usize, mut visit: impl FnMut(&[u8])) -> usize {
        let mut removed = 0;
        while removed < at_most
            && let Some(&(at_ms, hash)) = self.expiring.as_ref().and_then(|queue| queue.times.first())
            && is_expired(Some(at_ms), now_ms)
        {
            let found = self.records.find_where(hash, |record| {
                record.expire_at_ms == Some(at_ms) && hash_of(record.key) == hash
            });
            debug_assert!(found.is_some(), "whatever is queued expires");
            match found {
                Some(id) => {
                    visit(self.records.record(id).key);
                    self.take_out(hash, id);
                    removed += 1;
                }
                None => self.requeue(hash, Some(at_ms), None),
            }
        }
        removed
    }

    /// Visits fields from a cursor on, as [`Records::scan`], except those that have expired.
    pub fn scan(&self, cursor: u64, at_least: usize, now_ms: u64, visit: &mut dyn FnMut(Record<'_>)) -> u64 {
        self.records.scan(cursor, at_least, &mut |_, record| {
            if !is_expired(record.expire_at_ms, now_ms) {
                visit(record);
            }
        })
    }

    /// A field chosen at random, perhaps one that has expired.
    pub fn random(&self, below: impl FnMut(usize) -> usize) -> Option<Record<'_>> {
        self.records.random(below).map(|id| self.records.record(id))
    }
}

/// The fields of a packed hash.
#[inline]
pub fn fields_of(run: Run<'_>) -> impl Iterator<Item = Field<'_>> {
    let mut elements = run.iter();
    std::iter::from_fn(move || {
        let (_, name) = elements.next()?;
        let (_, value) = elements.next()?;
        Some(Field { name, value })
    })
}

/// The run of a packed hash.
#[inline]
pub fn run_of(packed: &[u8]) -> Run<'_> {
    debug_assert_eq!(PackedKind::of(packed), PackedKind::Hash);
    Run::new(packed.get(1..).unwrap_or_default())
}

/// A packed hash under construction.
#[derive(Clone, Debug)]
pub struct Packing {
    bytes: Vec<u8>,
    fields: usize,
}

impl Packing {
    /// Begins with the fields of a packed hash, or none.
    pub fn of(packed: Option<&[u8]>, more_bytes: usize) -> Self {
        let before = packed.unwrap_or(&[PackedKind::Hash as u8]);
        let mut bytes = Vec::with_capacity(before.len() + more_bytes);
        bytes.extend_from_slice(before);
        let fields = run_of(&bytes).count() / 2;
        Packing { bytes, fields }
    }

    /// Sets a field; whether it is new.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let run = run_of(&self.bytes);
        let Some(at) = run.find(name, 2) else {
            listpack::push(&mut self.bytes, name);
            listpack::push(&mut self.bytes, value);
            self.fields += 1;
            return true;
        };
        // The offsets of the run are those of the bytes but for the kind in front.
        let (start, end) = (1 + run.end_of(at), 1 + run.end_of(run.end_of(at)));
        listpack::splice(&mut self.bytes, start..end, Element::of(value));
        false
    }

    /// Removes a field; whether it was there.
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

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields == 0
    }

    /// The packed hash.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Sets an existing field of a packed hash where it is. `None` if that needs other bytes; else the field was there.
pub fn overwrite(packed: &mut [u8], name: &[u8], value: &[u8]) -> Option<()> {
    let run = run_of(packed);
    let at = 1 + run.end_of(run.find(name, 2)?);
    listpack::overwrite(&mut packed[1..], at - 1, Element::of(value)).then_some(())
}

/// A hash in either form, to be looked at.
#[derive(Clone, Copy, Debug)]
pub enum HashRef<'a> {
    /// In its table entry.
    Packed(Run<'a>),
    /// A value of its own.
    Large(&'a Hash),
}

impl<'a> HashRef<'a> {
    /// Whether some field expires.
    #[inline]
    pub fn is_volatile(self) -> bool {
        match self {
            HashRef::Packed(_) => false,
            HashRef::Large(hash) => hash.is_volatile(),
        }
    }

    /// Number of fields, expired ones included.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            HashRef::Packed(run) => run.count() / 2,
            HashRef::Large(hash) => hash.len(),
        }
    }

    /// Whether there are no fields.
    #[inline]
    pub fn is_empty(self) -> bool {
        match self {
            HashRef::Packed(run) => run.is_empty(),
            HashRef::Large(hash) => hash.is_empty(),
        }
    }

    /// Number of fields that have not expired.
    pub fn live_len(self, now_ms: u64) -> usize {
        match self {
            HashRef::Large(hash) if hash.has_expired_fields(now_ms) => hash.iter(now_ms).count(),
            _ => self.len(),
        }
    }

    /// Bytes that names and values take, roughly.
    pub fn stored_bytes(self) -> usize {
        match self {
            HashRef::Packed(run) => run.bytes().len(),
            HashRef::Large(hash) => hash.records.stored_bytes(),
        }
    }

    /// The value of a field, unless it has expired.
    #[inline]
    pub fn value(self, name: &[u8], now_ms: u64) -> Option<Element<'a>> {
        match self {
            HashRef::Packed(run) => run.at(run.end_of(run.find(name, 2)?)),
            HashRef::Large(hash) => hash.find(name, now_ms).map(|record| Element::Bytes(record.value)),
        }
    }

    /// Visits the fields that have not expired, with their values.
    #[inline]
    pub fn for_each(self, now_ms: u64, mut visit: impl FnMut(Field<'a>)) {
        let stored = |record: Record<'a>| Field {
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
