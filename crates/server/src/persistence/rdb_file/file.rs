//! An RDB file while it is written. It has a temporary name until it is complete, so a complete file exists at any
//! moment.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::{SaveError, Step};

/// The number of bytes written between two syncs, which keeps the final sync short.
const SYNC_BYTES: u64 = 32 * 1024 * 1024;

/// An RDB file that is being written. Dropping it removes it unless it was published.
pub struct DumpFile {
    file: File,
    path: PathBuf,
    written: u64,
    synced: u64,
    incremental: bool,
    published: bool,
}

impl DumpFile {
    /// Creates an empty file with this name. `incremental` is `true` if it is synced in steps.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: PathBuf, incremental: bool) -> Result<Self, SaveError> {
        let file = File::create(&path).map_err(|reason| SaveError {
            path: path.clone(),
            step: Step::Open,
            reason,
        })?;
        Ok(DumpFile {
            file,
            path,
            written: 0,
            synced: 0,
            incremental,
            published: false,
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If the bytes cannot be written or synced.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SaveError> {
        if let Err(reason) = self.append(bytes) {
            return Err(self.error(Step::Write(self.written), reason));
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.incremental && self.written - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Syncs the file to the disk.
    ///
    /// # Errors
    /// If the sync fails.
    pub fn sync(&self) -> Result<(), SaveError> {
        self.file.sync_all().map_err(|reason| self.error(Step::Sync, reason))
    }

    /// Renames the file, which has been synced, to its final path.
    ///
    /// # Errors
    /// If a step fails. The previous file at `path` still exists then, unless the sync of the directory is the step
    /// that failed.
    pub fn publish(mut self, path: &Path) -> Result<(), SaveError> {
        std::fs::rename(&self.path, path).map_err(|reason| self.error(Step::Rename(path.to_owned()), reason))?;
        self.published = true;
        sync_directory().map_err(|reason| SaveError {
            path: path.to_owned(),
            step: Step::SyncDirectory,
            reason,
        })
    }

    fn error(&self, step: Step, reason: io::Error) -> SaveError {
        SaveError {
            path: self.path.clone(),
            step,
            reason,
        }
    }
}

impl Drop for DumpFile {
    fn drop(&mut self) {
        if !self.published {
            // The file is useless. If it cannot be removed, the next one replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn sync_directory() -> io::Result<()> {
    File::open(".")?.sync_all()
}
