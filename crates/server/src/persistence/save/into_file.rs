//! A snapshot that is written to a temporary file, which is renamed when it is complete.

use weft_base::files::FixedPath;

use crate::persistence::rdb_file::{RdbFile, RdbFilePurpose};
use crate::persistence::snapshot::{ConsumerError, SnapshotConsumer};
use crate::persistence::snapshot_state::SnapshotState;

/// An action on the renamed file.
pub type OnFileComplete = Box<dyn FnOnce() -> Result<(), ConsumerError> + Send>;

/// Writes a snapshot to a file.
pub struct FileConsumer {
    file: RdbFile,
    target: FixedPath,
    after_rename: OnFileComplete,
}

impl FileConsumer {
    /// Creates the file under a `temporary` name. If `is_incremental` is set, it is synced while it is written. Once it
    /// is complete and on the disk, it is renamed to `target`, and `afterwards` is called.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(
        temporary: FixedPath,
        target: FixedPath,
        purpose: RdbFilePurpose,
        is_incremental: bool,
        afterwards: OnFileComplete,
    ) -> Result<Box<dyn SnapshotConsumer>, ConsumerError> {
        let file = RdbFile::create(temporary, purpose, is_incremental)?;
        Ok(Box::new(FileConsumer {
            file,
            target,
            after_rename: afterwards,
        }))
    }
}

impl SnapshotConsumer for FileConsumer {
    fn write(&mut self, bytes: &[u8], _running: &SnapshotState) -> Result<(), ConsumerError> {
        Ok(self.file.write(bytes)?)
    }

    fn finish(mut self: Box<Self>, running: &SnapshotState) -> Result<(), ConsumerError> {
        self.file.sync()?;
        {
            // Not beyond the renaming: what follows may wait for exclusive mode, in which others wait for this lock.
            let Some(_publication) = running.begin_publication() else {
                return Err("the snapshot was cancelled".into());
            };
            self.file.publish(&self.target)?;
        }
        (self.after_rename)()
    }
}
