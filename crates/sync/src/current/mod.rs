//! A value that lives as long as the process, and that is replaced as a whole.

use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

#[cfg(test)]
mod tests;

/// The current one of several values that live as long as the process. Reading it costs one load.
///
/// A replaced value is not freed, so that readers may keep it for as long as they like. This fits values that are
/// replaced rarely.
pub struct Current<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Current<T> {
    /// Returns a place without a value.
    #[must_use]
    pub const fn empty() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the current value; `None` if there was none yet.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null or comes from a reference that lives as long as the process. Nothing changes what
        // it points to, because only shared references to it exist, and `T` is `Sync`.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Makes `value` the current one.
    pub fn set(&self, value: &'static T) {
        self.0.swap(std::ptr::from_ref(value).cast_mut(), AcqRel);
    }

    /// Makes `value` the current one unless there is one already. Returns the current one.
    pub fn set_if_empty(&self, value: &'static T) -> &'static T {
        let new = std::ptr::from_ref(value).cast_mut();
        match self.0.compare_exchange(std::ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => value,
            Err(_) => self.get().unwrap_or(value),
        }
    }
}
