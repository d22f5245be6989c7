//! Automatic memory: what a context frees when the call into the module ends.
//!
//! A module asks for it with `AutoMemory`. From then on, each object that a function of the API creates with this
//! context belongs to the context, until the module frees or retains it.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

/// An object that automatic memory can own.
pub trait AutomaticObject {
    /// Frees the object, as the function of the API does by which the module frees it.
    ///
    /// # Safety
    /// The pointer is that of an object of this type, which is not used after this call.
    unsafe fn free(pointer: *mut Self);
}

/// An object that a context owns.
struct Owned {
    pointer: *mut c_void,
    free: unsafe fn(*mut c_void),
}

/// The automatic memory of a context.
#[derive(Default)]
pub struct AutomaticMemory {
    is_enabled: Cell<bool>,
    objects: RefCell<Vec<Owned>>,
}

/// Frees an object of a type that the caller has forgotten.
///
/// # Safety
/// The pointer is that of a `T`, which is not used after this call.
unsafe fn free_as<T: AutomaticObject>(pointer: *mut c_void) {
    // SAFETY: the caller promises it.
    unsafe { T::free(pointer.cast()) }
}

impl AutomaticMemory {
    /// Lets the context own objects from now on.
    pub fn enable(&self) {
        self.is_enabled.set(true);
    }

    /// Returns `true` if the context owns objects.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.get()
    }

    /// Gives an object to the context, if automatic memory is enabled.
    pub fn own<T: AutomaticObject>(&self, pointer: *mut T) {
        if self.is_enabled.get() && !pointer.is_null() {
            self.objects.borrow_mut().push(Owned {
                pointer: pointer.cast(),
                free: free_as::<T>,
            });
        }
    }

    /// Takes an object from the context, once if the context owns it several times. Returns `true` if the context owned
    /// it; the caller owns it then.
    pub fn disown<T: AutomaticObject>(&self, pointer: *mut T) -> bool {
        let mut objects = self.objects.borrow_mut();
        // Modules mostly free what they have created last, or what they have created first.
        let found = objects.iter().rposition(|owned| owned.pointer == pointer.cast());
        if let Some(index) = found {
            objects.swap_remove(index);
        }
        found.is_some()
    }

    /// Frees all objects of the context. The context can own new ones afterwards.
    pub fn free_all(&self) {
        // Freeing an object may call into the module, which may create further ones with this context.
        loop {
            let objects = self.objects.take();
            if objects.is_empty() {
                return;
            }
            for owned in objects {
                // SAFETY: the context owns the object, and has just given it up.
                unsafe { (owned.free)(owned.pointer) };
            }
        }
    }
}

impl Drop for AutomaticMemory {
    fn drop(&mut self) {
        self.free_all();
    }
}

#[cfg(test)]
mod tests;
