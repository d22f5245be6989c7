//! Strings for the words of commands, which a thread uses again from command to command.

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;
use weft_os::atomic::Ordering;

use super::ModuleString;

/// The number of strings that a thread keeps.
const MAX_STRINGS: usize = 16;
/// The size in bytes, with the zero byte, up to which the memory of a string is kept.
const MAX_BYTES: usize = 256;

/// The number of strings up to which the memory of a list is kept.
const MAX_LISTED: usize = 256;

thread_local! {
    /// An empty list of strings.
    static SPARE_LIST: Cell<Vec<*mut ModuleString>> = const { Cell::new(Vec::new()) };
    /// Strings with one holder, this list.
    static SPARE: RefCell<SmallVec<[Box<ModuleString>; MAX_STRINGS]>> = RefCell::default();
}

/// Returns an empty list for the words of a command.
pub fn take_spare_list() -> Vec<*mut ModuleString> {
    SPARE_LIST.take()
}

/// Releases the strings of a list, and keeps their memory and that of the list.
///
/// # Safety
/// The caller is a holder of each string (rule 1).
pub unsafe fn release_spare_list(mut strings: Vec<*mut ModuleString>) {
    for string in strings.drain(..) {
        // SAFETY: the caller promises it.
        unsafe { ModuleString::release_spare(string) };
    }
    if strings.capacity() <= MAX_LISTED {
        SPARE_LIST.set(strings);
    }
}

impl ModuleString {
    /// Like [`Self::create`], but uses a string again that [`Self::release_spare`] has kept.
    pub fn create_again(bytes: &[u8]) -> *mut ModuleString {
        if bytes.len() >= MAX_BYTES {
            return ModuleString::create(bytes);
        }
        let Some(mut string) = SPARE.with_borrow_mut(SmallVec::pop) else {
            return ModuleString::create(bytes);
        };
        let target = string.bytes.get_mut();
        target.clear();
        target.extend_from_slice(bytes);
        target.push(0);
        Box::into_raw(string)
    }

    /// Like [`Self::release`], but keeps the string for [`Self::create_again`] if this was its last holder.
    ///
    /// # Safety
    /// As for [`Self::release`].
    pub unsafe fn release_spare(pointer: *mut ModuleString) {
        // SAFETY: the caller promises it.
        let string = unsafe { &*pointer };
        // SAFETY: a single holder, which the caller is, may look at the bytes.
        let is_spare =
            string.holders.load(Ordering::Acquire) == 1 && unsafe { &*string.bytes.get() }.capacity() <= MAX_BYTES;
        if !is_spare {
            // SAFETY: as above.
            return unsafe { ModuleString::release(pointer) };
        }
        // SAFETY: the caller is the only holder, and gives that up.
        let string = unsafe { Box::from_raw(pointer) };
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAX_STRINGS {
                spare.push(string);
            }
        });
    }
}
