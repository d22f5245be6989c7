//! Files that are replaced as a whole, and the error texts of system calls.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces a file atomically: a reader, even after a crash, sees either the whole old text or the whole new one.
///
/// # Errors
/// When the new file cannot be written or renamed. The old file is unchanged then.
pub fn replace_file(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(format!(".{:08x}", fastrand::u32(..)));
    let temporary = PathBuf::from(temporary);
    let written = write_new(&temporary, file, text).and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        // The error above is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let directory = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Writes a new file to disk with the permissions of the file that it replaces.
fn write_new(path: &Path, model: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    if let Ok(model) = fs::metadata(model) {
        file.set_permissions(model.permissions())?;
    }
    file.write_all(text)?;
    file.sync_all()
}

/// Returns the operating system's text for an error, without its number: what `strerror` returns, which clients and
/// logs see in Valkey.
pub fn error_text(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(number) = error.raw_os_error() {
        // The standard library appends the number to the text of `strerror`.
        let suffix = format!(" (os error {number})");
        text.truncate(text.strip_suffix(&suffix).map_or(text.len(), str::len));
    }
    text
}

/// Returns the operating system's text for an error number.
pub fn errno_text(number: i32) -> String {
    error_text(&io::Error::from_raw_os_error(number))
}

#[cfg(test)]
mod tests;
