//! A handle of an object: whoever has one sees the object as it was when the handle was given out.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, fence};

/// A reference-counted object, which does not change as long as anybody else shares it.
///
/// The essay of the crate has the rule (8) that makes it so; here is the little that relies on it. The entry that holds
/// an object owns one of these, as a bare pointer to the object itself, so that a lookup follows it as it would a box.
#[derive(Debug)]
pub struct Shared<V>(Arc<V>);

impl<V> Shared<V> {
    /// A handle of an object that nobody else shares.
    #[must_use]
    pub fn new(object: V) -> Self {
        Self(Arc::new(object))
    }

    /// Whether nobody else shares the object.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether both are handles of one object. As long as the first one lives, the object is what it was.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this is a handle of that very object.
    #[must_use]
    pub fn is_of(&self, object: &V) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0), object)
    }

    /// The bytes that an object takes, without what it owns.
    pub(crate) const fn allocated_bytes() -> usize {
        crate::size_class(size_of::<[usize; 2]>() + size_of::<V>())
    }

    /// The handle as the pointer that an entry holds.
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

    /// Another handle of an entry's object.
    ///
    /// # Safety
    /// Rule 8: the pointer came from [`into_raw`](Self::into_raw), and its owner lets the object live meanwhile.
    pub(crate) unsafe fn another(object: NonNull<V>) -> Self {
        // SAFETY: rule 8, by the caller: the reference that the pointer stands for stays with its owner.
        let owned = ManuallyDrop::new(unsafe { Self::from_raw(object) });
        Self(Arc::clone(&owned.0))
    }

    /// Whether the owner of this pointer is the only one who shares the object; if so, it may be changed.
    ///
    /// # Safety
    /// Rule 8: the pointer came from [`into_raw`](Self::into_raw), and its owner lets the object live meanwhile.
    #[inline]
    pub(crate) unsafe fn is_unique_behind(object: NonNull<V>) -> bool {
        // SAFETY: rule 8, by the caller: the reference that the pointer stands for stays with its owner.
        let owned = ManuallyDrop::new(unsafe { Self::from_raw(object) });
        let unique = owned.is_unique();
        // What others did with their handles happened before the count fell to one.
        fence(Acquire);
        unique
    }
}

impl<V: Clone> Shared<V> {
    /// The object if nobody else shares it, or a copy.
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
