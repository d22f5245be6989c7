//! Functions on strings.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use crate::api::{ERR, Functions, OK};
use crate::functions;
use crate::objects::key::{KeyCursor, KeyMode, ModuleKey};
use crate::objects::string::ModuleString;
use crate::session::keys::KeyKind;

/// The functions of this file.
pub const FUNCTIONS: Functions = functions![
    ("StringSet", string_set),
    ("StringDMA", string_dma),
    ("StringTruncate", string_truncate),
];

/// The longest string that `StringTruncate` makes, in bytes.
const MAX_STRING_BYTES: usize = 512 << 20;

/// What a pointer to the bytes of a missing string leads to. A module may not use even a single byte of it.
const NO_BYTES: &[u8; 1] = b"\0";

/// `StringSet`: sets a string in place of whatever the key holds. The key does not expire afterwards.
///
/// # Safety
/// The arguments are an open key and a string (rule 1).
unsafe extern "C" fn string_set(key: *mut ModuleKey, value: *mut ModuleString) -> c_int {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { ModuleKey::from_pointer(key) }).filter(|key| key.is_writable()) else {
        return ERR;
    };
    if matches!(*key.cursor.borrow(), KeyCursor::List | KeyCursor::Stream(_)) {
        return ERR;
    }
    key.end_direct_access();
    // SAFETY: the caller promises it; the string is not changed during this call.
    let value = unsafe { ModuleString::bytes_of(value) };
    if key.with_keys(|session, key| session.set_string(key, value)).is_none() {
        return ERR;
    }
    key.set_kind(KeyKind::String);
    OK
}

/// `StringDMA`: returns a pointer to the bytes of a string, for reading or writing, and stores their number. Returns
/// null if the key holds another type.
///
/// # Safety
/// The key is open, and `length` a place for a number (rule 1).
unsafe extern "C" fn string_dma(key: *mut ModuleKey, length: *mut usize, mode: c_int) -> *mut c_char {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { ModuleKey::from_pointer(key) }) else {
        return null_mut();
    };
    let (pointer, bytes) = match key.kind() {
        KeyKind::Empty => (NO_BYTES.as_ptr().cast_mut().cast(), 0),
        KeyKind::String => match key.access_directly(mode & KeyMode::WRITE.bits() != 0) {
            Some(direct) => direct,
            None => return null_mut(),
        },
        _ => return null_mut(),
    };
    if !length.is_null() {
        // SAFETY: the caller promises it.
        unsafe { length.write(bytes) };
    }
    pointer
}

/// `StringTruncate`: cuts a string, or extends it with zero bytes. A missing one is created.
///
/// # Safety
/// The key is open (rule 1).
unsafe extern "C" fn string_truncate(key: *mut ModuleKey, length: usize) -> c_int {
    // SAFETY: the caller promises it.
    let Some(key) = (unsafe { ModuleKey::from_pointer(key) }).filter(|key| key.is_writable()) else {
        return ERR;
    };
    match key.kind() {
        KeyKind::String | KeyKind::Empty if length > MAX_STRING_BYTES => return ERR,
        KeyKind::Empty if length == 0 => return OK,
        KeyKind::String | KeyKind::Empty => {}
        _ => return ERR,
    }
    key.end_direct_access();
    let done = key.with_keys(|session, key| session.truncate_string(key, length));
    if done != Some(true) {
        return ERR;
    }
    key.set_kind(KeyKind::String);
    OK
}
