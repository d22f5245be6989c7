//! A handle of an object: its holder sees the object as it was when the handle was created.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, fence};

use crate::relocation::Mover;

/// A reference-counted object, which does not change while it is shared.
///
/// Rule 8 of the crate guarantees that; this module is the code that relies on it. The entry that holds an object owns
/// one of these as a bare pointer to the object itself, so that a lookup follows it as it would a box.
#[derive(Debug)]
pub struct Shared<V>(Arc<V>);

impl<V> Shared<V> {
    /// Creates the only handle of an object.
    #[must_use]
    pub fn new(object: V) -> Self {
        Self(Arc::new(object))
    }

    /// Returns `true` if this is the only handle of the object.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns `true` if both are handles of one object. As long as the first one lives, the object is unchanged.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns `true` if this is a handle of `object` itself.
    #[must_use]
    pub fn is_of(&self, object: &V) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0), object)
    }

    /// Returns the size of an object's allocation, without what the object owns.
    pub(crate) const fn allocated_bytes() -> usize {
        crate::size_class(size_of::<[usize; 2]>() + size_of::<V>())
    }

    /// Moves the object if this is its only handle. Returns the handle.
    pub(crate) fn relocated(self, mover: &mut Mover) -> Self {
        Self(mover.shared(self.0))
    }

    /// Converts the handle to the pointer that an entry holds.
    pub(crate) fn into_raw(self) -> NonNull<V> {
        let object = Arc::into_raw(self.0).cast_mut();
        // SAFETY: rule 8: an object behind a reference count has an address.
        unsafe { NonNull::new_unchecked(object) }
    }

    /// # Safety
    /// Rule 8: the pointer came from [`into_raw`](Self::into_raw), and the caller gives it up.
    pub(crate) unsafe fn from_raw(object: NonNull<V>) -> Self {
        // SAFETY: rule 8, by the caller.
        Self(unsafe { Arc::from_raw(object.as_ptr()) })
    }

    /// Returns another handle of an entry's object.
    ///
    /// # Safety
    /// Rule 8: the pointer came from [`into_raw`](Self::into_raw), and its owner keeps the object alive meanwhile.
    pub(crate) unsafe fn clone_raw(object: NonNull<V>) -> Self {
        // SAFETY: rule 8, by the caller: the reference that the pointer stands for stays with its owner.
        let owned = ManuallyDrop::new(unsafe { Self::from_raw(object) });
        Self(Arc::clone(&owned.0))
    }

    /// Returns `true` if the owner of this pointer is the only one that shares the object; if so, the object may be
    /// changed.
    ///
    /// # Safety
    /// Rule 8: the pointer came from [`into_raw`](Self::into_raw), and its owner keeps the object alive meanwhile.
    #[inline]
    pub(crate) unsafe fn is_unique_raw(object: NonNull<V>) -> bool {
        // SAFETY: rule 8, by the caller: the reference that the pointer stands for stays with its owner.
        let mut owned = ManuallyDrop::new(unsafe { Self::from_raw(object) });
        let unique = owned.is_unique();
        // The accesses of other threads through their handles happened before the count fell to one.
        acquire(&mut owned.0);
        unique
    }
}

impl<V: Clone> Shared<V> {
    /// Returns the object, or a copy of it if it is shared.
    #[must_use]
    pub fn into_inner(self) -> V {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<V> Clone for Shared<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> Deref for Shared<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.0
    }
}

/// Makes visible what happened before other references to the object ended.
#[cfg(not(thread_sanitizer))]
#[inline]
fn acquire<V>(_: &mut Arc<V>) {
    fence(Acquire);
}

/// Does the same for the thread sanitizer, which knows no fences, by a function that loads the count.
#[cfg(thread_sanitizer)]
fn acquire<V>(object: &mut Arc<V>) {
    fence(Acquire);
    let _ = Arc::get_mut(object);
}
