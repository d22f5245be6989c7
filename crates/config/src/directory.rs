//! The working directory, which holds the value of `dir`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use weft_base::files::error_text;

/// Changes the working directory.
///
/// # Errors
/// The reason of the operating system.
pub fn change_directory(directory: &[u8]) -> Result<(), String> {
    std::env::set_current_dir(OsStr::from_bytes(directory)).map_err(|error| error_text(&error))
}
