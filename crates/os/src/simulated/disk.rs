//! A disk that takes its time for a sync, and what a loss of power leaves of its files.
//!
//! Files are real ones. Of each file the simulation knows the bytes that syncs have covered: those that it had when a
//! sync began that has ended. A loss of power keeps no others. Entries of directories count as synced at once; a
//! recorded disk without them is what `cargo xtask power-loss` tests.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::scheduler;

/// The number of synced bytes of each file, by device and inode: a file keeps them when it is renamed.
static SYNCED_BYTES: Mutex<Option<HashMap<(u64, u64), u64>>> = Mutex::new(None);

/// Syncs the data of a file, and what is needed to read it.
///
/// # Errors
/// Those of the system call.
pub fn sync_data(file: &File) -> io::Result<()> {
    sync(file, File::sync_data)
}

/// Syncs a file with all its metadata, or a directory.
///
/// # Errors
/// Those of the system call.
pub fn sync_all(file: &File) -> io::Result<()> {
    sync(file, File::sync_all)
}

fn sync(file: &File, call: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let metadata = file.metadata()?;
    scheduler::wait_for_disk();
    call(file)?;
    let mut synced = SYNCED_BYTES.lock().unwrap_or_else(PoisonError::into_inner);
    synced
        .get_or_insert_default()
        .insert(identity(&metadata), metadata.len());
    Ok(())
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Copies the files of a directory to a new one as a loss of power at this moment would leave them. No other thread
/// runs meanwhile.
///
/// # Errors
/// If a file cannot be copied.
pub fn copy_synced(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let synced = SYNCED_BYTES.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let kept = synced.as_ref().and_then(|files| files.get(&identity(&metadata)));
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        let copy = File::options().write(true).open(copy)?;
        copy.set_len(metadata.len().min(kept.copied().unwrap_or(0)))?;
    }
    Ok(())
}
