//! Strings that modules hold (`ValkeyModuleString`).
//!
//! A string is counted by its holders: the module, automatic memory, and objects that the module has passed it to. The
//! module may append to a string that has one holder.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A string that modules hold.
pub struct ModuleString {
    holders: AtomicU32,
    /// The bytes, and a zero byte behind them that is not counted, because modules print strings as C strings.
    bytes: UnsafeCell<Vec<u8>>,
}

impl ModuleString {
    /// Creates a string with one holder and returns its pointer.
    pub fn create(bytes: &[u8]) -> *mut ModuleString {
        let mut terminated = Vec::with_capacity(bytes.len() + 1);
        terminated.extend_from_slice(bytes);
        terminated.push(0);
        Box::into_raw(Box::new(ModuleString {
            holders: AtomicU32::new(1),
            bytes: UnsafeCell::new(terminated),
        }))
    }

    /// Returns the bytes of a string; none for null.
    ///
    /// # Safety
    /// The pointer is null or that of a string, which nobody appends to or releases for `'a` (rule 1).
    pub unsafe fn bytes_of<'a>(pointer: *const ModuleString) -> &'a [u8] {
        // SAFETY: the caller promises it.
        match unsafe { pointer.as_ref() } {
            // SAFETY: as above. There always is the byte behind the string.
            Some(string) => unsafe {
                let bytes = &*string.bytes.get();
                &bytes[..bytes.len() - 1]
            },
            None => &[],
        }
    }

    /// Adds a holder.
    ///
    /// # Safety
    /// The pointer is that of a string (rule 1).
    pub unsafe fn retain(pointer: *const ModuleString) {
        // SAFETY: the caller promises it.
        unsafe { &*pointer }.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a holder. The last one frees the string.
    ///
    /// # Safety
    /// The pointer is that of a string of which the caller is a holder (rule 1).
    pub unsafe fn release(pointer: *mut ModuleString) {
        // SAFETY: the caller promises it.
        let holders = unsafe { &*pointer }.holders.fetch_sub(1, Ordering::AcqRel);
        assert!(holders > 0, "a module has freed a string twice");
        if holders == 1 {
            // SAFETY: this was the last holder.
            drop(unsafe { Box::from_raw(pointer) });
        }
    }
}
