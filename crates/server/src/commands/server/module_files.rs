//! Loading and saving all data in files that modules name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use weft_base::ThreadIndex;
use weft_base::files::FixedPath;
use weft_modules::session::types::RdbFileError;
use weft_os::atomic::Ordering;

use crate::keyspace::Exclusive;
use crate::observability::log;
use crate::persistence::aof_files::AofState;
use crate::persistence::save;
use crate::replication::role;
use crate::state::Server;

fn file_at(path: &[u8]) -> FixedPath {
    FixedPath::new(OsString::from_vec(path.to_vec()))
}

/// Writes all data to a file.
///
/// # Errors
/// If the file cannot be written; the reason has been logged.
pub fn save(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &[u8],
) -> Result<(), RdbFileError> {
    save::save_to(server, all, thread_index, &file_at(path)).map_err(|save::SaveFailed| RdbFileError::Failed)
}

/// Replaces all data with the contents of a file. Replicas synchronize again, and the append-only file is rewritten.
///
/// # Errors
/// If the file does not exist, which changes nothing, or is damaged.
pub fn load(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &[u8],
) -> Result<(), RdbFileError> {
    if server.replication.is_replica() {
        return Err(RdbFileError::NotPrimary);
    }
    if server.is_loading() {
        // A module that is called by a load.
        return Err(RdbFileError::Failed);
    }
    let path = file_at(path);
    if !path.as_path().exists() {
        return Err(RdbFileError::Missing);
    }
    // No replica continues from here: the new data is not in the stream.
    role::disconnect_replicas(server);
    server.replication.change_replication_id();
    let is_logged = server.persistence.aof.state() != AofState::Off;
    if is_logged {
        log::notice!("Killing AOF child, if there is one, because the data is replaced");
    }
    let loaded = save::load_from(server, all, thread_index, &path);
    if is_logged {
        server
            .persistence
            .aof
            .is_rewrite_scheduled
            .store(true, Ordering::Relaxed);
    }
    loaded.map_err(|save::SaveFailed| RdbFileError::Failed)
}
