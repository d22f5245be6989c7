//! Makes the dump file that a replica has loaded the base of its append-only file, instead of a rewrite.
//!
//! ```text
//!   prepare        no other snapshot may start; the next increment is created under a temporary name
//!   at_moment      the data is replaced by that of the dump; the log continues in the next increment
//!   finish         the dump and the increment are renamed, and the manifest is stored
//! ```
//!
//! Until the manifest is stored, the next start would load the old files, as during a rewrite.

use std::fs::File;
use std::sync::Arc;

use super::AofLocation;
use super::rewriting::{
    NewBase, NextIncrement, create_temporary_increment, finish_switching_on, is_logged_in, rename_files,
    temporary_increment, use_increment,
};
use crate::keyspace::Exclusive;
use crate::observability::log;
use crate::persistence::aof_files::AofState;
use crate::persistence::snapshot::SnapshotClaim;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::state::Server;
use weft_base::files::FixedPath;
use weft_config::id;
use weft_os::atomic::Ordering;

/// A dump file that is synced to the disk, and that has been loaded.
pub struct LoadedDumpFile {
    /// The path of the file.
    pub path: FixedPath,
    /// The file. Another one may have replaced it under its name.
    pub file: File,
}

/// The change of the base to a dump.
pub struct BaseFromDump<'s> {
    server: &'s Arc<Server>,
    _claim: SnapshotClaim<'s>,
    place: AofLocation,
    base: NewBase,
    /// The increment, before the log continues in it.
    next: Option<NextIncrement>,
    is_first: bool,
}

impl<'s> BaseFromDump<'s> {
    /// Prepares the change. Returns `None` if the append-only file is off or cannot have this base, or if another
    /// snapshot is being written.
    pub fn prepare(server: &'s Arc<Server>, dump: LoadedDumpFile) -> Option<Self> {
        let status = &server.persistence.aof;
        if status.state() == AofState::Off || !server.config.boolean(id::AOF_USE_RDB_PREAMBLE) {
            return None;
        }
        server.persistence.snapshot.wait_for_cancelled();
        let claim = SnapshotClaim::new(server, SnapshotPurpose::AofBase).ok()?;
        let place = AofLocation::from_config(&server.config);
        place.make_directory().ok()?;
        let files = &mut *server.persistence.aof_files.lock();
        // The appender may still write to a file of this name.
        let _ = std::fs::remove_file(temporary_increment(&place).1);
        let next = create_temporary_increment(server, &place, files.appender.as_ref()).ok()?;
        let is_first = matches!(next, NextIncrement::First(_));
        if let NextIncrement::First(appender) = &next {
            files.appender = Some(appender.clone());
        }
        Some(BaseFromDump {
            server,
            _claim: claim,
            place,
            base: NewBase::loaded(dump.path, dump.file),
            next: Some(next),
            is_first,
        })
    }

    /// Continues the log in the next increment. Called when the data has been replaced by that of the dump.
    pub fn at_moment(&mut self, _all: &Exclusive<'_>) {
        let status = &self.server.persistence.aof;
        let _log_start = status.log_start.lock();
        // The file may have been switched off since the increment was created, and perhaps on again.
        if is_logged_in(self.server, AofState::WritingBase)
            && !self.server.persistence.snapshot.is_cancelled()
            && let Some(next) = self.next.take()
        {
            status.begin_base();
            status.is_rewrite_scheduled.store(false, Ordering::Relaxed);
            use_increment(self.server, next);
        }
    }

    /// Installs the base. Returns `true` if the append-only file is complete, and `false` if it has to be rewritten.
    pub fn finish(self) -> bool {
        let (server, status) = (self.server, &self.server.persistence.aof);
        let installed = match self.next {
            None if status.state() == AofState::WritingBase && !server.persistence.snapshot.is_cancelled() => {
                rename_files(server, &self.place, AofState::WritingBase, true, &self.base).ok()
            }
            _ => None,
        };
        let Some(name) = installed else {
            self.abandon();
            return false;
        };
        status.failures.store(0, Ordering::Relaxed);
        status.last_rewrite_failed.store(false, Ordering::Relaxed);
        status.finish_base();
        let is_complete = finish_switching_on(server);
        server.wake_log_waiters();
        if is_complete {
            log::notice!("Reused RDB file from primary sync as AOF base file: {name}");
        }
        is_complete
    }

    /// Removes what was prepared.
    pub fn abandon(self) {
        // A file that cannot be removed does no harm.
        let _ = std::fs::remove_file(temporary_increment(&self.place).1);
        if self.is_first && self.next.is_some() {
            // The appender is not registered with the log. The next rewrite has to create a first one again.
            self.server.persistence.aof_files.lock().appender = None;
        }
    }
}
