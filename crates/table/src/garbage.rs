//! Memory that leaves a table and is freed by its new owner after the lease, perhaps on another thread.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::entry::{Entry, EntryRef, External, free_allocation};
use crate::value::{OwnedValue, Shared, ValueRef};

/// An entry that was removed from a table. Dropping it frees it.
pub struct Removed<V> {
    entry: Entry,
    owned: PhantomData<Box<V>>,
}

// SAFETY: rules 1 and 8: the entry is owned, so its value decides what may be sent with it; other threads may hold
// handles of the value.
unsafe impl<V: Send + Sync> Send for Removed<V> {}
// SAFETY: rules 1, 3 and 8: shared readers change only atomics, and create handles.
unsafe impl<V: Send + Sync> Sync for Removed<V> {}

impl<V> Removed<V> {
    /// # Safety
    /// Rule 1: the caller owned the entry and gives it up.
    pub(crate) unsafe fn new(entry: Entry) -> Self {
        Self {
            entry,
            owned: PhantomData,
        }
    }

    /// Gives up the ownership.
    pub(crate) fn into_entry(self) -> Entry {
        ManuallyDrop::new(self).entry
    }

    /// Returns the entry for reading.
    #[must_use]
    pub fn as_ref(&self) -> EntryRef<'_, V> {
        // SAFETY: rule 1: owned by `self`, which is borrowed.
        unsafe { EntryRef::new(self.entry) }
    }

    /// Returns the key that the entry had.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.as_ref().key()
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> ValueRef<'_, V> {
        self.as_ref().value()
    }

    /// Returns the time at which the key would have expired, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn expire_at_ms(&self) -> Option<u64> {
        self.as_ref().expire_at_ms()
    }

    /// Returns the 24-bit LRU or LFU clock.
    #[must_use]
    pub fn clock(&self) -> u32 {
        self.as_ref().clock()
    }

    /// Returns `true` if the string was modified in place.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.as_ref().is_raw()
    }

    /// Returns the bytes that entry and value take from the allocator; of an object only its own size.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        self.as_ref().allocated_bytes()
    }

    /// Returns the value and frees the rest; external values are not copied.
    #[must_use]
    pub fn into_value(self) -> OwnedValue<V> {
        let inline = match self.value() {
            ValueRef::Int(number) => OwnedValue::Int(number),
            ValueRef::Bytes(bytes) if !self.entry.is_external() => OwnedValue::Bytes(bytes.to_vec()),
            ValueRef::Packed(bytes) if !self.entry.is_external() => OwnedValue::Packed(bytes.to_vec()),
            _ => OwnedValue::Int(0),
        };
        let entry = self.into_entry();
        let (class, packed) = (entry.shape().class(), entry.is_packed());
        // SAFETY: rules 1, 2 and 5: `self` owned the entry; after its external value was taken out, only an empty
        // allocation is left.
        let external = unsafe {
            let external = entry.take_external();
            free_allocation(entry.into_raw(), class);
            external
        };
        match external {
            External::None => inline,
            External::Exact(string) if packed => OwnedValue::Packed(string.into_vec()),
            External::Exact(string) => OwnedValue::Bytes(string.into_vec()),
            External::Blob(blob) => OwnedValue::Blob(blob),
            External::Object(object) => OwnedValue::Object(object),
        }
    }
}

impl<V> Drop for Removed<V> {
    fn drop(&mut self) {
        // SAFETY: rule 1: owned, and not used again.
        unsafe { self.entry.free::<V>() }
    }
}

impl<V: fmt::Debug> fmt::Debug for Removed<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Removed")
            .field("key", &self.key())
            .field("value", &self.value())
            .field("expire_at_ms", &self.expire_at_ms())
            .finish()
    }
}

/// Allocations that a write replaced, if any, to be dropped once the lease is released.
#[must_use = "drop it after the lease, large garbage on a background thread"]
pub struct Garbage<V>(GarbageItem<V>);

enum GarbageItem<V> {
    Nothing,
    Shell(EmptyAllocation),
    Entry(Removed<V>),
    External(External<V>),
}

/// The allocation of an entry whose value was moved elsewhere.
struct EmptyAllocation {
    entry: NonNull<u8>,
    class: usize,
}

// SAFETY: rule 1: an owned allocation without contents.
unsafe impl Send for EmptyAllocation {}
// SAFETY: rule 1: the allocation has no contents to read.
unsafe impl Sync for EmptyAllocation {}

impl Drop for EmptyAllocation {
    fn drop(&mut self) {
        // SAFETY: rules 1 and 2: owned, of this class.
        unsafe { free_allocation(self.entry.as_ptr(), self.class) }
    }
}

impl<V> Default for Garbage<V> {
    fn default() -> Self {
        Self(GarbageItem::Nothing)
    }
}

impl<V> Garbage<V> {
    /// # Safety
    /// Rules 1 and 2: the caller owned this allocation of `class` bytes and gives it up.
    pub(crate) unsafe fn empty_allocation(entry: Entry, class: usize) -> Self {
        match NonNull::new(entry.into_raw()) {
            Some(entry) => Self(GarbageItem::Shell(EmptyAllocation { entry, class })),
            None => Self::default(),
        }
    }

    pub(crate) fn external(external: External<V>) -> Self {
        match external {
            External::None => Self::default(),
            external => Self(GarbageItem::External(external)),
        }
    }

    /// Returns `true` if there is nothing to free.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self.0, GarbageItem::Nothing)
    }

    /// Returns the bytes that dropping this returns to the allocator; of an object only its own size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            GarbageItem::Nothing | GarbageItem::External(External::None) => 0,
            GarbageItem::Shell(empty_allocation) => empty_allocation.class,
            GarbageItem::Entry(removed) => removed.allocated_bytes(),
            GarbageItem::External(External::Exact(string)) => string.allocated_bytes(),
            GarbageItem::External(External::Blob(blob)) => blob.allocated_bytes(),
            GarbageItem::External(External::Object(_)) => Shared::<V>::allocated_bytes(),
        }
    }

    /// Returns the object that dropping this drops, if any, so that the caller can estimate the work.
    #[must_use]
    pub fn object(&self) -> Option<&V> {
        match &self.0 {
            GarbageItem::External(External::Object(object)) => Some(object),
            GarbageItem::Entry(removed) => match removed.value() {
                ValueRef::Object(object) => Some(object),
                _ => None,
            },
            _ => None,
        }
    }
}

impl<V> From<Removed<V>> for Garbage<V> {
    fn from(removed: Removed<V>) -> Self {
        Self(GarbageItem::Entry(removed))
    }
}

impl<V> fmt::Debug for Garbage<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Garbage").field("bytes", &self.bytes()).finish()
    }
}
