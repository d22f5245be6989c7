//! Functions on keys and their values.

mod expiry;
mod hash;
mod key;
mod list;
mod scan;
mod sorted_set;
mod stream;
mod string;

pub use expiry::FUNCTIONS as EXPIRY_FUNCTIONS;
pub use hash::FUNCTIONS as HASH_FUNCTIONS;
pub use key::FUNCTIONS as KEY_FUNCTIONS;
pub use list::FUNCTIONS as LIST_FUNCTIONS;
pub use scan::FUNCTIONS as SCAN_FUNCTIONS;
pub use sorted_set::FUNCTIONS as SORTED_SET_FUNCTIONS;
pub use stream::FUNCTIONS as STREAM_FUNCTIONS;
pub use string::FUNCTIONS as STRING_FUNCTIONS;

use std::ffi::c_int;

use super::ERR;
use crate::errno;
use crate::objects::key::{KeyMode, ModuleKey};
use crate::session::keys::KeyKind;

/// Sets the error number, and returns [`ERR`].
fn fail(error: c_int) -> c_int {
    errno::set(error);
    ERR
}

/// Returns the key if its value has a type and it is open in a mode.
///
/// # Errors
/// The error number: no key, another type, or another mode.
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn key_of_kind<'a>(pointer: *mut ModuleKey, kind: KeyKind, mode: KeyMode) -> Result<&'a ModuleKey, c_int> {
    // SAFETY: the caller promises it.
    let key = unsafe { ModuleKey::from_pointer(pointer) }.ok_or(libc::EINVAL)?;
    if key.kind() != kind {
        return Err(libc::ENOTSUP);
    }
    if !mode.is_empty() && !key.is_open_for(mode) {
        return Err(libc::EBADF);
    }
    Ok(key)
}

/// Returns the key if it is open for writing, and is empty or has a value of a type.
///
/// # Errors
/// As for [`key_of_kind`].
///
/// # Safety
/// As for [`ModuleKey::from_pointer`].
unsafe fn writable_key<'a>(pointer: *mut ModuleKey, kind: KeyKind) -> Result<&'a ModuleKey, c_int> {
    // SAFETY: the caller promises it.
    let key = unsafe { ModuleKey::from_pointer(pointer) }.ok_or(libc::EINVAL)?;
    if key.kind() != kind && key.kind() != KeyKind::Empty {
        return Err(libc::ENOTSUP);
    }
    if !key.is_writable() {
        return Err(libc::EBADF);
    }
    Ok(key)
}

#[cfg(test)]
mod tests;
