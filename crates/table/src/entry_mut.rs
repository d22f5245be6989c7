//! Changing one entry: a new value, a new expiry, a string edited in place.

use crate::entry::{Entry, EntryRef};
use crate::garbage::{Garbage, Removed};
use crate::segment::SegmentSlot;
use crate::table::Table;
use crate::value::{Blob, Decimal, NewValue, ValueRef};

/// A key and its value, under an exclusive lease of the table.
pub struct EntryMut<'a, V> {
    table: &'a mut Table<V>,
    index: usize,
    spot: SegmentSlot,
    entry: Entry,
}

impl<'a, V> EntryMut<'a, V> {
    #[inline]
    pub(crate) fn new(table: &'a mut Table<V>, index: usize, spot: SegmentSlot) -> Self {
        let entry = table.segment(index).entry(spot);
        Self {
            table,
            index,
            spot,
            entry,
        }
    }

    /// Returns the same entry for reading.
    #[inline]
    #[must_use]
    pub fn as_ref(&self) -> EntryRef<'_, V> {
        // SAFETY: rule 1: the table is borrowed, through `self`, as long as the result.
        unsafe { EntryRef::new(self.entry) }
    }

    /// Returns the same entry for reading, as long as the table is borrowed.
    #[must_use]
    pub fn into_ref(self) -> EntryRef<'a, V> {
        // SAFETY: rule 1: the table stays borrowed for `'a`, and `self` is consumed.
        unsafe { EntryRef::new(self.entry) }
    }

    /// Returns the key.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.as_ref().key()
    }

    /// Returns the value.
    #[inline]
    #[must_use]
    pub fn value(&self) -> ValueRef<'_, V> {
        self.as_ref().value()
    }

    /// Returns the value if it is an object.
    #[inline]
    #[must_use]
    pub fn object(&self) -> Option<&V> {
        // SAFETY: rules 1 and 5: the object lives as long as the entry, which is borrowed through `self`.
        self.entry.object::<V>().map(|object| unsafe { object.as_ref() })
    }

    /// Returns the time at which the key expires, in milliseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub fn expire_at_ms(&self) -> Option<u64> {
        self.entry.expire_at_ms()
    }

    /// Returns the 24-bit LRU or LFU clock.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> u32 {
        self.entry.clock()
    }

    /// Sets the clock to the low 24 bits of `clock`.
    #[inline]
    pub fn set_clock(&self, clock: u32) {
        self.entry.set_clock(clock);
    }

    /// Returns `true` if the string was modified in place, so that OBJECT ENCODING must call it raw.
    #[inline]
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.entry.is_raw()
    }

    /// Returns the bytes that entry and value take from the allocator; of an object only its own size.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.as_ref().allocated_bytes()
    }

    /// Removes the entry from the table.
    #[must_use]
    pub fn remove(self) -> Removed<V> {
        self.table.remove_at(self.index, self.spot)
    }

    /// Replaces the value. Key, expiry and clock stay; a string is no longer raw.
    #[inline]
    pub fn set_value(&mut self, value: NewValue<'_, V>) -> Garbage<V> {
        let overwritten = match value {
            NewValue::Int(number) => self.entry.overwrite_int(number),
            NewValue::Bytes(bytes) => self.entry.overwrite_string(bytes),
            _ => false,
        };
        if overwritten {
            return Garbage::default();
        }
        self.rewrite(value, self.entry.expire_at_ms(), self.entry.clock())
    }

    /// Replaces value, expiry and clock.
    pub(crate) fn replace(&mut self, value: NewValue<'_, V>, expire_at_ms: Option<u64>, clock: u32) -> Garbage<V> {
        let expired_before = self.entry.expire_at_ms().is_some();
        let garbage = self.rewrite(value, expire_at_ms, clock);
        self.account_expiry(expired_before, expire_at_ms);
        garbage
    }

    /// Sets or removes the expiry.
    pub fn set_expire(&mut self, expire_at_ms: Option<u64>) -> Garbage<V> {
        let expired_before = self.entry.expire_at_ms().is_some();
        let mut garbage = Garbage::default();
        if !self.entry.overwrite_expiry(expire_at_ms) {
            garbage = match self.entry.int() {
                Some(number) => self.rewrite(NewValue::Int(number), expire_at_ms, self.entry.clock()),
                None => self.rebuild(expire_at_ms),
            };
        }
        self.account_expiry(expired_before, expire_at_ms);
        garbage
    }

    /// Records that a part of the value is due at a time, in milliseconds since the Unix epoch: [`Table::expire_due`]
    /// examines the value then. The record cannot be withdrawn; a needless examination costs little.
    pub fn note_value_due(&mut self, due_ms: u64) {
        self.table.root.set_values_due(true);
        self.table.note_expiry(self.index, self.spot, Some(due_ms));
    }

    /// Returns the value for changing if it is an object. If another handle of it exists, it is copied first.
    #[must_use]
    pub fn object_mut(&mut self) -> Option<&mut V>
    where
        V: Clone,
    {
        let (mut object, replaced) = self.entry.unique_object::<V>()?;
        // Other handles exist: this frees nothing, unless they were dropped just now.
        drop(replaced);
        // SAFETY: rules 1, 5 and 8: the table is borrowed exclusively as long as the result, and no other handle of the
        // object exists.
        Some(unsafe { object.as_mut() })
    }

    /// Marks a string as one that was appended to or changed in place.
    pub fn mark_raw(&mut self) {
        self.entry.set_raw();
    }

    /// Returns the bytes of a packed collection for changing in place.
    #[must_use]
    pub fn packed_mut(&mut self) -> Option<&mut [u8]> {
        if !self.entry.is_packed() {
            return None;
        }
        // SAFETY: rules 1, 2 and 5: the table is borrowed exclusively as long as the result; the bytes
        // are initialised.
        self.entry
            .string()
            .map(|(bytes, len)| unsafe { std::slice::from_raw_parts_mut(bytes, len) })
    }

    /// Appends to the string, which becomes raw, and returns its new length in bytes.
    ///
    /// # Panics
    /// If the value is not a string.
    pub fn append(&mut self, tail: &[u8]) -> usize {
        if let Some(blob) = self.blob_mut() {
            blob.extend(tail);
            let len = blob.len();
            self.entry.set_raw();
            return len;
        }
        let old_len = self.string_len();
        let len = old_len + tail.len();
        self.bytes_mut(len)[old_len..len].copy_from_slice(tail);
        len
    }

    /// Returns the string's bytes for changing, extended with zeros to at least `min_len`. The string becomes raw;
    /// shared bytes are copied first.
    ///
    /// # Panics
    /// If the value is not a string.
    pub fn bytes_mut(&mut self, min_len: usize) -> &mut [u8] {
        self.make_string(min_len);
        self.entry.set_raw();
        if let Some(blob) = self.entry.blob() {
            // SAFETY: rules 1 and 5: the table is borrowed exclusively as long as the result.
            return unsafe { (*blob).bytes_mut(min_len) };
        }
        match self.entry.string() {
            // SAFETY: rules 1, 2 and 5: as above; the bytes are initialised.
            Some((bytes, len)) => unsafe { std::slice::from_raw_parts_mut(bytes, len) },
            None => unreachable!("the value was made a string"),
        }
    }

    /// Makes the value a blob, or a string inside or outside the entry that is long enough.
    fn make_string(&mut self, min_len: usize) {
        let blob = match self.value() {
            ValueRef::Blob(_) => return,
            ValueRef::Int(number) => {
                let decimal = Decimal::new(number);
                if min_len <= decimal.as_bytes().len() {
                    drop(self.set_value(NewValue::Bytes(decimal.as_bytes())));
                    return;
                }
                Blob::with_capacity(decimal.as_bytes(), min_len)
            }
            ValueRef::Bytes(bytes) => {
                if min_len <= bytes.len() || self.entry.extend_in_place(min_len) {
                    return;
                }
                Blob::with_capacity(bytes, min_len)
            }
            ValueRef::Packed(_) | ValueRef::Object(_) => panic!("only strings have bytes"),
        };
        drop(self.set_value(NewValue::Blob(blob)));
    }

    fn string_len(&self) -> usize {
        match self.value() {
            ValueRef::Int(number) => Decimal::new(number).as_bytes().len(),
            ValueRef::Bytes(bytes) => bytes.len(),
            ValueRef::Blob(blob) => blob.len(),
            ValueRef::Packed(_) | ValueRef::Object(_) => panic!("only strings have bytes"),
        }
    }

    fn blob_mut(&mut self) -> Option<&mut Blob> {
        // SAFETY: rules 1 and 5: the table is borrowed exclusively as long as the result.
        self.entry.blob().map(|blob| unsafe { &mut *blob })
    }

    /// Overwrites the entry, or replaces it by a new one; does not change the expiry index.
    fn rewrite(&mut self, value: NewValue<'_, V>, expire_at_ms: Option<u64>, clock: u32) -> Garbage<V> {
        match self.entry.overwrite(value, expire_at_ms, clock) {
            Ok(external) => Garbage::external(external),
            Err(value) => {
                let new = Entry::create(self.entry.key(), value, expire_at_ms, clock);
                let old = self.put_in_place(new);
                // SAFETY: rule 1: the table has given up the old entry.
                Garbage::from(unsafe { Removed::new(old) })
            }
        }
    }

    /// Moves key and value into an entry whose expiry field has another width.
    fn rebuild(&mut self, expire_at_ms: Option<u64>) -> Garbage<V> {
        let (new, class) = self.entry.rebuild(self.entry.key(), expire_at_ms);
        let old = self.put_in_place(new);
        // SAFETY: rules 1 and 2: the table has given up the old entry, and its value was moved.
        unsafe { Garbage::empty_allocation(old, class) }
    }

    fn put_in_place(&mut self, new: Entry) -> Entry {
        self.table.segment_mut(self.index).replace(self.spot, new);
        std::mem::replace(&mut self.entry, new)
    }

    fn account_expiry(&mut self, expired_before: bool, expire_at_ms: Option<u64>) {
        match (expired_before, expire_at_ms) {
            (true, None) => self.table.forget_expiry(),
            (false, Some(_)) => self.table.root.with_expiry += 1,
            _ => {}
        }
        self.table.note_expiry(self.index, self.spot, expire_at_ms);
    }
}
