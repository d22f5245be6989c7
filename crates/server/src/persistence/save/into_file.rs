//! A snapshot that is written to a temporary file, which is renamed when it is complete.

use std::path::PathBuf;

use crate::persistence::rdb_file::DumpFile;
use crate::persistence::snapshot::{Consumer, ConsumerError};
use crate::persistence::snapshot_state::Running;

/// An action on the renamed file.
pub type OnFileComplete = Box<dyn FnOnce() -> Result<(), ConsumerError> + Send>;

/// Writes a snapshot to a file.
pub struct FileConsumer {
    file: DumpFile,
    target: PathBuf,
    afterwards: OnFileComplete,
}

impl FileConsumer {
    /// Creates the file under a `temporary` name. If `incremental` is set, it is synced while it is written. Once it is
    /// complete and on the disk, it is renamed to `target`, and `afterwards` is called.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(
        temporary: PathBuf,
        target: PathBuf,
        incremental: bool,
        afterwards: OnFileComplete,
    ) -> Result<Box<dyn Consumer>, ConsumerError> {
        let file = DumpFile::create(temporary, incremental)?;
        Ok(Box::new(FileConsumer {
            file,
            target,
            afterwards,
        }))
    }
}

impl Consumer for FileConsumer {
    fn take(&mut self, bytes: &[u8], _running: &Running) -> Result<(), ConsumerError> {
        Ok(self.file.write(bytes)?)
    }

    fn finish(self: Box<Self>, running: &Running) -> Result<(), ConsumerError> {
        self.file.sync()?;
        if running.is_cancelled() {
            return Err("it was cancelled".into());
        }
        self.file.publish(&self.target)?;
        (self.afterwards)()
    }
}
