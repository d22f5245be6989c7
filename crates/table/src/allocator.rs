//! Figures and controls of the allocator, by the names in its documentation, and its arenas.
//!
//! Any number may be read. Only controls that hold plain numbers may be written: other names take addresses, or release
//! memory that is in use.

use std::ffi::{CStr, CString, c_uint, c_void};
use std::io;
use std::ptr;

use tikv_jemalloc_sys::mallctl;

use crate::unused_pages;

/// The error for a name that does not exist.
pub const NO_SUCH_NAME: i32 = 2;
/// The error for a name that may not be read, or not be written.
pub const NOT_PERMITTED: i32 = 1;
/// The error for a value of another type.
pub const INVALID: i32 = 22;

/// Names, or suffixes of names, under which numbers may be written.
const WRITABLE: [&str; 7] = [
    "epoch",
    "background_thread",
    "max_background_threads",
    "thread.tcache.enabled",
    "_decay_ms",
    ".retain_grow_limit",
    ".oversize_threshold",
];

/// Sizes of numbers: 64 bits, 32 bits, and booleans.
const SIZES: [usize; 3] = [8, 4, 1];

/// Reads a number, and writes `new` if given; returns the number that was read.
///
/// # Errors
/// The system's error number.
pub fn number(name: &[u8], new: Option<i64>) -> Result<i64, i32> {
    let name = CString::new(name).map_err(|_| NO_SUCH_NAME)?;
    let text = name.to_str().map_err(|_| NO_SUCH_NAME)?;
    if new.is_some() && !WRITABLE.iter().any(|end| text.ends_with(end)) {
        return Err(NOT_PERMITTED);
    }
    for size in SIZES {
        let new = match (new, size) {
            // A boolean has two values.
            (Some(new), 1) => Some(i64::from(new != 0)),
            (new, _) => new,
        };
        match exchange(&name, new, size) {
            Err(INVALID) => {}
            other => return other,
        }
    }
    Err(INVALID)
}

/// Reads a number of `size` bytes, and writes another if given.
fn exchange(name: &CStr, new: Option<i64>, size: usize) -> Result<i64, i32> {
    let (mut old, mut length) = (0i64, size);
    let mut new = new;
    let (new, new_length): (*mut c_void, usize) = match &mut new {
        Some(new) => (ptr::from_mut(new).cast(), size),
        None => (ptr::null_mut(), 0),
    };
    // SAFETY: rule 9: the writable names hold plain numbers; both buffers have 8 bytes, of which the first `size` are
    // used, which on a little-endian machine are the low bytes of the number.
    let result = unsafe {
        mallctl(
            name.as_ptr(),
            ptr::from_mut(&mut old).cast(),
            &raw mut length,
            new,
            new_length,
        )
    };
    match result {
        0 => Ok(old),
        error => Err(error),
    }
}

#[cfg(target_endian = "big")]
compile_error!("numbers of the allocator are read into the first bytes of larger ones");

/// Runs a control without a value: `thread.tcache.flush`, `thread.idle`, `arena.<n>.purge`, `arena.<n>.decay`.
///
/// # Errors
/// The system's error number.
pub fn command(name: &[u8]) -> Result<(), i32> {
    let name = CString::new(name).map_err(|_| NO_SUCH_NAME)?;
    let text = name.to_str().map_err(|_| NO_SUCH_NAME)?;
    let of_arena = |text: &str| text.starts_with("arena.") && (text.ends_with(".purge") || text.ends_with(".decay"));
    if !matches!(text, "thread.tcache.flush" | "thread.idle") && !of_arena(text) {
        return Err(NOT_PERMITTED);
    }
    // SAFETY: rule 9: these names take no value, and their result is not used.
    let result = unsafe { mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0) };
    match result {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Creates an arena, of which the unused pages are recorded ([`unused_pages`]). Returns its number.
///
/// # Errors
/// The system's error, if there is no memory.
pub fn create_arena() -> io::Result<u32> {
    let mut arena: c_uint = 0;
    let mut bytes = size_of::<c_uint>();
    // SAFETY: rule 9: the control writes one `unsigned`, for which there is room.
    let result = unsafe {
        mallctl(
            c"arenas.create".as_ptr(),
            ptr::from_mut(&mut arena).cast(),
            &raw mut bytes,
            ptr::null_mut(),
            0,
        )
    };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    // The control also takes hooks, but would use them for the arena's own data, too.
    unused_pages::track(arena);
    Ok(arena)
}

#[cfg(test)]
mod tests;
