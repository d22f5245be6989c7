//! The working directory, which holds the value of `dir`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// Changes the working directory.
///
/// # Errors
/// The reason of the operating system.
pub fn change_directory(directory: &[u8]) -> io::Result<()> {
    std::env::set_current_dir(OsStr::from_bytes(directory))
}
