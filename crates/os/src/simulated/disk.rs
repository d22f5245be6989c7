//! A disk that takes its time for a sync, and what a loss of power leaves of its files.
//!
//! Files are real ones. Of each file the simulation knows the bytes that syncs have covered: those that it had when a
//! sync began that has ended. A loss of power keeps no others. Several threads may sync a file at the same time, and
//! their syncs may end in another order than they began. Of the syncs that have ended, the one that began last counts:
//! it covers all that the others do, and a file that was truncated before it began has lost its end.
//!
//! Entries of directories count as synced at once; a recorded disk without them is what `cargo xtask power-loss` tests.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::scheduler;

/// The syncs of all files.
static SYNCS: Mutex<SyncRecords> = Mutex::new(SyncRecords::new());

/// What syncs have covered of each file.
struct SyncRecords {
    /// The number of syncs that have begun.
    begun: u64,
    /// Of the syncs of a file that have ended, the one that began last.
    ended: BTreeMap<FileIdentity, SyncCoverage>,
}

/// The device and the inode of a file. It keeps them when it is renamed.
type FileIdentity = (u64, u64);

/// What a sync covers.
#[derive(Clone, Copy)]
struct SyncCoverage {
    /// The position of its beginning among the beginnings of all syncs.
    position: u64,
    /// The size that the file had then, in bytes.
    bytes: u64,
}

impl SyncRecords {
    const fn new() -> Self {
        SyncRecords {
            begun: 0,
            ended: BTreeMap::new(),
        }
    }

    /// Begins a sync of a file that has this size.
    fn begin(&mut self, bytes: u64) -> SyncCoverage {
        self.begun += 1;
        SyncCoverage {
            position: self.begun,
            bytes,
        }
    }

    /// Ends a sync of a file.
    fn end(&mut self, file: FileIdentity, coverage: SyncCoverage) {
        let latest = self.ended.entry(file).or_insert(coverage);
        if latest.position < coverage.position {
            *latest = coverage;
        }
    }

    /// The number of bytes of a file that a loss of power keeps.
    fn synced_bytes(&self, file: FileIdentity) -> u64 {
        self.ended.get(&file).map_or(0, |latest| latest.bytes)
    }
}

fn lock() -> MutexGuard<'static, SyncRecords> {
    SYNCS.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let coverage = lock().begin(metadata.len());
    scheduler::wait_for_disk();
    call(file)?;
    lock().end(identity(&metadata), coverage);
    Ok(())
}

fn identity(metadata: &Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino())
}

/// Copies the files of a directory to a new one as a loss of power at this moment would leave them. No other thread
/// runs meanwhile.
///
/// # Errors
/// If a file cannot be copied.
pub fn copy_synced(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let syncs = lock();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        let copy = File::options().write(true).open(copy)?;
        copy.set_len(metadata.len().min(syncs.synced_bytes(identity(&metadata))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
