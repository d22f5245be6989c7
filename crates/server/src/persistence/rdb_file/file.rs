//! An RDB file while it is written. It has a temporary name until it is complete, so a complete file exists at any
//! moment.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use weft_base::files::FixedPath;
use weft_os::disk;

use super::error::{RdbFilePurpose, RdbSaveError, SaveStep};

/// The number of bytes written between two syncs, which keeps the final sync short.
const SYNC_BYTES: u64 = 32 * 1024 * 1024;

/// An RDB file that is being written. Dropping it removes it unless it was published.
pub struct RdbFile {
    file: File,
    path: FixedPath,
    purpose: RdbFilePurpose,
    written: u64,
    synced: u64,
    /// `true` if all bytes are on the disk.
    is_synced: bool,
    is_incremental: bool,
    is_published: bool,
}

impl RdbFile {
    /// Creates an empty file with this name. `incremental` is `true` if it is synced in steps.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: FixedPath, purpose: RdbFilePurpose, incremental: bool) -> Result<Self, RdbSaveError> {
        let file = File::create(&path).map_err(|reason| RdbSaveError {
            path: Box::new(path.clone()),
            purpose,
            step: SaveStep::Open,
            reason,
        })?;
        Ok(RdbFile {
            file,
            path,
            purpose,
            written: 0,
            synced: 0,
            is_synced: false,
            is_incremental: incremental,
            is_published: false,
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If the bytes cannot be written or synced.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), RdbSaveError> {
        if let Err(reason) = self.append(bytes) {
            return Err(self.error(SaveStep::Write, reason));
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_synced = false;
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.is_incremental && self.written - self.synced >= SYNC_BYTES {
            disk::sync_data(&self.file)?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Syncs the file to the disk.
    ///
    /// # Errors
    /// If the sync fails.
    pub fn sync(&mut self) -> Result<(), RdbSaveError> {
        disk::sync_all(&self.file).map_err(|reason| self.error(SaveStep::Sync, reason))?;
        (self.synced, self.is_synced) = (self.written, true);
        Ok(())
    }

    /// Opens the file once more, for reading from its start.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open_for_reading(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Renames the file, which has been synced, to its final path.
    ///
    /// # Errors
    /// If a step fails. The previous file at `path` still exists then, unless the sync of the directory is the step
    /// that failed.
    ///
    /// # Panics
    /// If the file was not synced after the last write.
    pub fn publish(mut self, path: &FixedPath) -> Result<(), RdbSaveError> {
        assert!(
            self.is_synced && self.synced == self.written,
            "a file gets its final name only when all of its {} bytes are on the disk",
            self.written
        );
        std::fs::rename(&self.path, path)
            .map_err(|reason| self.error(SaveStep::Rename(Box::new(path.clone())), reason))?;
        self.is_published = true;
        sync_directory_of(path.as_path()).map_err(|reason| RdbSaveError {
            path: Box::new(path.clone()),
            purpose: self.purpose,
            step: SaveStep::SyncDirectory,
            reason,
        })
    }

    fn error(&self, step: SaveStep, reason: io::Error) -> RdbSaveError {
        RdbSaveError {
            path: Box::new(self.path.clone()),
            purpose: self.purpose,
            step,
            reason,
        }
    }
}

impl Drop for RdbFile {
    fn drop(&mut self) {
        if !self.is_published {
            // The file is useless. If it cannot be removed, the next one replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Brings the directory of a file to the disk, so that a new name of the file outlasts a power loss.
///
/// # Errors
/// If the directory cannot be opened or synced.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    disk::sync_all(&File::open(directory.unwrap_or(Path::new(".")))?)
}
