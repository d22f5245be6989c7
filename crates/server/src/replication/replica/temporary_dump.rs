//! The file into which a replica receives a dump, until the dump is installed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use weft_base::clock::unix_ms;

use super::link::LinkFailure;
use crate::observability::log;
use crate::persistence::rdb_file::sync_directory_of;
use crate::state::Server;
use weft_base::files::{FixedPath, error_text};
use weft_config::id;

/// The temporary name of a received dump. The file is removed when this is dropped, unless it has got another name.
pub struct TemporaryDump {
    path: FixedPath,
}

impl TemporaryDump {
    /// Chooses a name. The file does not exist yet.
    pub fn choose() -> Self {
        let path = FixedPath::new(format!("temp-{}.{}.rdb", unix_ms() / 1000, std::process::id()));
        TemporaryDump { path }
    }

    /// The path of the file.
    pub fn path(&self) -> &FixedPath {
        &self.path
    }

    /// Returns the path of this server's own dump file, in the directory in which this file lies.
    fn published_path(&self, server: &Server) -> FixedPath {
        let name = OsString::from_vec(server.config.text(id::DBFILENAME).to_vec());
        self.path.directory().file(name)
    }

    /// Checks that the file can become this server's own dump file, before any data is given up for it.
    ///
    /// # Errors
    /// Fails if a directory has the name.
    pub fn check_publishable(&self, server: &Server) -> Result<(), LinkFailure> {
        let path = self.published_path(server);
        match path.as_path().is_dir() {
            true => Err(LinkFailure::Other(unnamed_text(&path, "Is a directory"))),
            false => Ok(()),
        }
    }

    /// Makes the file this server's own dump file, in the directory in which it lies, after its data was installed. The
    /// caller prevents that another dump gets the name meanwhile. A failure is logged: the previous file stays then, as
    /// it does when a dump is loaded from the link.
    pub fn publish(&self, server: &Server) {
        let config = &server.config;
        let path = self.published_path(server);
        if let Err(error) = std::fs::rename(&self.path, &path) {
            log::warning!("{}", unnamed_text(&path, &error_text(&error)));
            return;
        }
        let persists = !config.save_points().is_empty() || config.boolean(id::APPENDONLY);
        if config.boolean(id::RDB_DEL_SYNC_FILES) && !persists {
            log::notice!("Removing the RDB file obtained from the primary. This replica has persistence disabled");
            // The file is no longer needed, and leaving it does no harm.
            let _ = std::fs::remove_file(&path);
        }
        if let Err(error) = sync_directory_of(path.as_path()) {
            log::warning!(
                "Failed trying to sync DB directory {} in PRIMARY <-> REPLICA synchronization: {}",
                path.display(),
                error_text(&error)
            );
        }
    }
}

fn unnamed_text(path: &FixedPath, reason: &str) -> String {
    let path = path.display();
    format!("Failed trying to rename the temp DB into {path} in PRIMARY <-> REPLICA synchronization: {reason}")
}

impl Drop for TemporaryDump {
    fn drop(&mut self) {
        // The file may have another name by now, or not exist. One that cannot be removed does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}
