//! The working directory, which is where the value of `dir` lives, and the words of a failing system call.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

/// Makes a directory the working directory.
///
/// # Errors
/// The operating system's reason.
pub fn enter(directory: &[u8]) -> Result<(), String> {
    std::env::set_current_dir(OsStr::from_bytes(directory)).map_err(|error| error_text(&error))
}

/// What the operating system says about an error, without its number.
pub fn error_text(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(
        || error.to_string(),
        |number| Errno::from_raw(number).desc().to_string(),
    )
}
