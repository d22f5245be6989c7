//! Adding values of modules to the digest of DEBUG DIGEST.

use std::ffi::{c_char, c_int, c_longlong};
use std::ptr::null;

use crate::api::Functions;
use crate::functions;
use crate::objects::digest::ModuleDigest;
use crate::objects::string::ModuleString;

/// The functions of this subject.
pub const FUNCTIONS: Functions = functions![
    ("DigestAddStringBuffer", digest_add_string_buffer),
    ("DigestAddLongLong", digest_add_long_long),
    ("DigestEndSequence", digest_end_sequence),
    ("GetKeyNameFromDigest", key_name_from_digest),
    ("GetDbIdFromDigest", db_id_from_digest),
];

/// Adds bytes to the sequence (`DigestAddStringBuffer`).
///
/// # Safety
/// Rule 1, and there are `length` bytes.
unsafe extern "C" fn digest_add_string_buffer(digest: *mut ModuleDigest, bytes: *const c_char, length: usize) {
    // SAFETY: the caller promises it.
    unsafe {
        let bytes: &[u8] = match length {
            0 => &[],
            _ => std::slice::from_raw_parts(bytes.cast(), length),
        };
        (*digest).add(bytes);
    }
}

/// Adds the decimal form of a number to the sequence (`DigestAddLongLong`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn digest_add_long_long(digest: *mut ModuleDigest, number: c_longlong) {
    // SAFETY: the caller promises it.
    unsafe { (*digest).add(number.to_string().as_bytes()) }
}

/// Ends the sequence (`DigestEndSequence`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn digest_end_sequence(digest: *mut ModuleDigest) {
    // SAFETY: the caller promises it.
    unsafe { (*digest).end_sequence() }
}

/// Returns the name of the key (`GetKeyNameFromDigest`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn key_name_from_digest(digest: *const ModuleDigest) -> *const ModuleString {
    // SAFETY: the caller promises it.
    unsafe { digest.as_ref() }.map_or(null(), |digest| digest.key.cast_const())
}

/// Returns the database of the key (`GetDbIdFromDigest`).
///
/// # Safety
/// Rule 1.
unsafe extern "C" fn db_id_from_digest(digest: *const ModuleDigest) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { digest.as_ref() }.map_or(-1, |digest| digest.db)
}
