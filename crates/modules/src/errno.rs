//! The error number of the C library, by which functions of the API say why they failed.

use std::ffi::c_int;

/// Sets the error number of the calling thread.
pub fn set(number: c_int) {
    // SAFETY: the function returns the thread's own error number, which lives as long as the thread.
    unsafe { *libc::__errno_location() = number };
}
