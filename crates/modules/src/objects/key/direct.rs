//! Direct access to the bytes of strings.

use std::cell::{Cell, RefCell};
use std::ffi::c_char;
use std::ptr::NonNull;

use crate::session::keys::StringBytes;
use crate::session::{self, before_end};

use super::ModuleKey;

/// The memory that a module's pointer leads to.
#[derive(Default)]
pub enum DirectAccess {
    /// There is none.
    #[default]
    None,
    /// For reading: the length, and the bytes, which are shared with the value, or a copy.
    Reading(usize, StringBytes),
    /// For writing: a copy, and the bytes that were stored last.
    Writing { copy: WritableCopy, stored: Vec<u8> },
}

/// Bytes that a module may write at any time, with a zero byte behind them.
pub struct WritableCopy {
    /// The memory of a boxed slice, which only this pointer and those of the module lead to.
    memory: NonNull<[u8]>,
}

impl WritableCopy {
    fn new(bytes: &[u8]) -> WritableCopy {
        let terminated: Box<[u8]> = bytes.iter().copied().chain(std::iter::once(0)).collect();
        WritableCopy {
            memory: NonNull::from(Box::leak(terminated)),
        }
    }

    fn len(&self) -> usize {
        self.memory.len() - 1
    }

    fn as_pointer(&self) -> *mut c_char {
        self.memory.as_ptr().cast()
    }

    /// The bytes at present. They must not be used any more when code of the module runs again.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised and lives as long as `self`. The module writes it only while its code runs.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len()) }
    }
}

impl Drop for WritableCopy {
    fn drop(&mut self) {
        // SAFETY: the memory is that of a box, and is freed once.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// The size in bytes up to which the memory of a copy is used again.
const MAX_SPARE_BYTES: usize = 16 << 10;

thread_local! {
    /// The memory of an earlier copy for a reader.
    static SPARE_COPY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// The keys of this thread of which a module may write the string.
    static WRITTEN_KEYS: RefCell<Vec<*const ModuleKey>> = const { RefCell::new(Vec::new()) };
}

/// Stores the strings of this thread's keys that a module has changed by its pointer. The functions of the API that use
/// the thread's session call this first.
#[inline]
pub fn store_direct_changes() {
    before_end::run();
}

#[cold]
fn store_all() {
    let keys = WRITTEN_KEYS.with_borrow(|keys| keys.clone());
    for key in keys {
        // SAFETY: a key leaves the list before it is closed.
        unsafe { &*key }.store_direct_change();
    }
}

impl ModuleKey {
    /// Returns a pointer to the bytes of the string, and their number. `None` if the key holds no string.
    pub fn access_directly(&self, for_writing: bool) -> Option<(*mut c_char, usize)> {
        let for_writing = for_writing && self.is_writable();
        match &*self.direct.borrow() {
            DirectAccess::Writing { copy, .. } => return Some((copy.as_pointer(), copy.len())),
            DirectAccess::Reading(length, bytes) if !for_writing => return Some((pointer_to(bytes), *length)),
            DirectAccess::Reading(..) | DirectAccess::None => {}
        }
        // The handle of a reader would make the writer copy the value.
        self.end_direct_access();
        let (length, bytes) = self.with_keys(|session, key| session.read_string(key, SPARE_COPY.take()))??;
        let mut direct = self.direct.borrow_mut();
        if !for_writing {
            let pointer = pointer_to(&bytes);
            *direct = DirectAccess::Reading(length, bytes);
            return Some((pointer, length));
        }
        let stored = bytes.as_ref()[..length].to_vec();
        let copy = WritableCopy::new(&stored);
        let pointer = copy.as_pointer();
        *direct = DirectAccess::Writing { copy, stored };
        WRITTEN_KEYS.with_borrow_mut(|keys| keys.push(self));
        before_end::set(Some(store_all));
        Some((pointer, length))
    }

    /// Stores the string if the module has changed it by its pointer.
    fn store_direct_change(&self) {
        let mut direct = self.direct.borrow_mut();
        let DirectAccess::Writing { copy, stored } = &mut *direct else {
            return;
        };
        let present = copy.bytes();
        if present != stored.as_slice() {
            // The session is used without this key's other functions, which would come back here.
            let is_stored = session::current(|session| session.overwrite_string(self.session_key(), present)).is_some();
            if is_stored {
                stored.copy_from_slice(present);
            }
        }
    }

    /// Stores what the module has written by its pointer, which is invalid afterwards.
    pub fn end_direct_access(&self) {
        if matches!(*self.direct.borrow(), DirectAccess::None) {
            return;
        }
        self.store_direct_change();
        match self.direct.take() {
            DirectAccess::None => {}
            DirectAccess::Reading(_, bytes) => keep_memory(bytes),
            DirectAccess::Writing { .. } => self.forget_writing(),
        }
    }

    /// Removes the key from those of which a module may write the string.
    fn forget_writing(&self) {
        let is_last = WRITTEN_KEYS.with_borrow_mut(|keys| {
            keys.retain(|key| !std::ptr::eq(*key, self));
            keys.is_empty()
        });
        if is_last {
            before_end::set(None);
        }
    }
}

/// Keeps the memory of a copy for the next one on this thread.
fn keep_memory(bytes: StringBytes) {
    if let StringBytes::Copied(mut memory) = bytes
        && memory.capacity() <= MAX_SPARE_BYTES
    {
        memory.clear();
        SPARE_COPY.set(memory);
    }
}

fn pointer_to(bytes: &StringBytes) -> *mut c_char {
    bytes.as_ref().as_ptr().cast_mut().cast()
}
