//! Strings that modules hold (`ValkeyModuleString`).
//!
//! A string is counted by its holders: the module, automatic memory, and objects that the module has passed it to. The
//! module may append to a string that has one holder.

use std::cell::UnsafeCell;
use std::ffi::c_char;

use smallvec::SmallVec;
use weft_os::atomic::{AtomicU32, Ordering};

use super::automatic::AutomaticObject;

mod spare;

pub use spare::{release_spare_list, take_spare_list};

/// The length, with the byte behind the string, up to which a string is one allocation. With it, a string has 64 bytes.
const INLINE_LEN: usize = 48;

/// Returns the bytes of a buffer of a module; none for null.
///
/// # Safety
/// The pointer is null, or that of `len` bytes, which do not change for `'a`.
pub unsafe fn buffer_bytes<'a>(pointer: *const c_char, len: usize) -> &'a [u8] {
    if pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller promises it.
    unsafe { std::slice::from_raw_parts(pointer.cast(), len) }
}

/// A string that modules hold.
pub struct ModuleString {
    holders: AtomicU32,
    /// The bytes, and a zero byte behind them that is not counted, because modules print strings as C strings.
    bytes: UnsafeCell<SmallVec<[u8; INLINE_LEN]>>,
}

const _: () = assert!(size_of::<ModuleString>() == 64);

impl ModuleString {
    /// Creates a string with one holder and returns its pointer.
    pub fn create(bytes: &[u8]) -> *mut ModuleString {
        let mut terminated = SmallVec::with_capacity(bytes.len() + 1);
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
        let string = unsafe { &*pointer };
        if string.holders.load(Ordering::Acquire) == 1 {
            // Nobody else can add a holder, so this need not be an atomic change. It shows that the string is freed.
            string.holders.store(0, Ordering::Relaxed);
        } else {
            let holders = string.holders.fetch_sub(1, Ordering::AcqRel);
            assert!(holders > 0, "a module has freed a string twice");
            if holders > 1 {
                return;
            }
        }
        // SAFETY: this was the last holder.
        drop(unsafe { Box::from_raw(pointer) });
    }

    /// Appends bytes. Returns `false`, and changes nothing, if the string has several holders.
    ///
    /// # Safety
    /// The pointer is that of a string, and nothing uses its bytes during this call. The bytes are not those of the
    /// string itself (rule 1).
    pub unsafe fn append(pointer: *mut ModuleString, appended: &[u8]) -> bool {
        // SAFETY: the caller promises it.
        let string = unsafe { &*pointer };
        if string.holders.load(Ordering::Acquire) != 1 {
            return false;
        }
        // SAFETY: the caller is the only holder, and uses the bytes only here.
        let bytes = unsafe { &mut *string.bytes.get() };
        bytes.pop();
        bytes.reserve(appended.len() + 1);
        bytes.extend_from_slice(appended);
        bytes.push(0);
        true
    }

    /// Gives back memory that the string does not need.
    ///
    /// # Safety
    /// As for [`Self::append`].
    pub unsafe fn trim(pointer: *mut ModuleString) {
        // SAFETY: the caller promises it.
        let bytes = unsafe { &mut *(*pointer).bytes.get() };
        if bytes.spilled() {
            bytes.shrink_to_fit();
        }
    }

    /// Returns the memory of a string in bytes.
    ///
    /// # Safety
    /// The pointer is that of a string, to which nobody appends during this call (rule 1).
    pub unsafe fn memory(pointer: *const ModuleString) -> usize {
        // SAFETY: the caller promises it.
        let bytes = unsafe { &*(*pointer).bytes.get() };
        size_of::<ModuleString>() + if bytes.spilled() { bytes.capacity() } else { 0 }
    }
}

impl AutomaticObject for ModuleString {
    unsafe fn free(pointer: *mut Self) {
        // SAFETY: the caller promises that automatic memory was a holder of the string.
        unsafe { Self::release(pointer) };
    }
}

#[cfg(test)]
mod tests;
