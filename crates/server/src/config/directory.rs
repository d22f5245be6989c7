//! The working directory, which holds the value of `dir`, and the error texts of system calls.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

/// Changes the working directory.
///
/// # Errors
/// The reason of the operating system.
pub fn change_directory(directory: &[u8]) -> Result<(), String> {
    std::env::set_current_dir(OsStr::from_bytes(directory)).map_err(|error| error_text(&error))
}

/// Returns the operating system's text for an error, without its number.
pub fn error_text(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(
        || error.to_string(),
        |number| Errno::from_raw(number).desc().to_string(),
    )
}
