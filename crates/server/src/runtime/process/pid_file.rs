//! `pidfile`: the file that holds the process id while the server runs.

use std::io;
use std::path::PathBuf;

use crate::observability::log;
use weft_base::files::{FixedPath, error_text};

/// The file of a daemon if none is configured.
const DEFAULT: &str = "/var/run/valkey.pid";

/// The file, while it names this process.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Writes the file, if one is configured or the process is a daemon. If the file cannot be written, the server logs
    /// a warning and starts.
    pub fn create(configured: Option<PathBuf>, is_daemon: bool) -> Option<PidFile> {
        let path = configured.or_else(|| is_daemon.then(|| PathBuf::from(DEFAULT)))?;
        // The working directory may change before the file is removed.
        let path = FixedPath::new(path).as_path().to_owned();
        match std::fs::write(&path, format!("{}\n", std::process::id())) {
            Ok(()) => Some(PidFile { path }),
            Err(error) => {
                log::warning!("Failed to write PID file: {}", error_text(&error));
                None
            }
        }
    }

    /// Removes the file, unless another process has taken it over.
    pub fn remove(self) {
        log::notice!("Removing the pid file.");
        drop(self);
    }

    fn remove_if_ours(&self) -> io::Result<()> {
        let named = std::fs::read_to_string(&self.path)?;
        if named.trim() == std::process::id().to_string() {
            std::fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = self.remove_if_ours() {
            log::warning!("Failed to remove the PID file: {}", error_text(&error));
        }
    }
}
