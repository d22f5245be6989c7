//! The append-only file of the running server: opened at the start, switched on and off, and rewritten.
//!
//! The handling of the files themselves is in [`super::aof_files`]. This module decides when it happens.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::Duration;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;

use crate::keyspace::Exclusive;
use crate::keyspace::effects::Hooks;
use crate::observability::log;
use crate::persistence::aof_files::manifest;
use crate::persistence::aof_files::manifest::{Manifest, ManifestStoreError, sync_directory};
use crate::persistence::aof_files::{AofAppender, AofState, AppenderConsumer, AppenderLinks, open, sync_if_possible};
use crate::persistence::rdb_file::{ModuleRecordForm, rewrite_to_commands};
use crate::persistence::save;
use crate::propagation;
use crate::state::{Message, Server};
use weft_base::files::{FixedPath, error_text};
use weft_config::{Config, id};
use weft_os::atomic::Ordering;
use weft_os::sync::Mutex;
use weft_os::sync::mpsc;

mod base_from_dump;
mod loading;
mod rewriting;
mod switching;

pub use base_from_dump::{BaseFromDump, LoadedDumpFile};
pub use loading::{load_at_start, load_threads, read_manifest_at_start, reload};
pub use rewriting::{OverdueScript, RewriteError, start_due_rewrite, start_rewrite};
pub use switching::{SwitchError, apply_appendonly};

/// The error of an operation that failed; the reason was logged.
#[derive(Debug)]
pub struct AofFailed;

/// The time for which a change of the file waits for a free thread index of the keyspace.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of the append-only file as a consumer of the propagation log.
const FILE_CONSUMER: &str = "file";

/// The directory and the base name of the files. Changes of the working directory and of the parameters do not change
/// it. An operation uses one location from its beginning to its end, and each operation starts with the present one.
pub struct AofLocation {
    /// The directory.
    pub directory: FixedPath,
    /// The common prefix of the names of all files.
    pub filename: String,
}

impl AofLocation {
    /// Returns the configured location.
    pub fn from_config(config: &Config) -> Self {
        let text = |id| String::from_utf8_lossy(&config.text(id)).into_owned();
        AofLocation {
            directory: FixedPath::new(text(id::APPENDDIRNAME)),
            filename: text(id::APPENDFILENAME),
        }
    }

    /// Creates the directory if it does not exist, and syncs its name to the disk.
    ///
    /// # Errors
    /// If it cannot be created or its name cannot be synced.
    pub fn make_directory(&self) -> Result<(), AofFailed> {
        let created = std::fs::DirBuilder::new().mode(0o755).create(&self.directory);
        if let Err(error) = created
            && !self.directory.as_path().is_dir()
        {
            let directory = self.directory.display();
            log::warning!(
                "Can't open or create append-only dir {directory}: {}",
                error_text(&error)
            );
            return Err(AofFailed);
        }
        // If the directory's own entry is not on the disk, a power failure loses everything in it. The process that
        // created an existing directory may have been killed before it synced the entry.
        let parent = self.directory.directory().as_path();
        sync_directory(parent).map_err(|error| {
            log::warning!("Fail to fsync the data directory: {}", error_text(&error));
            AofFailed
        })
    }

    /// Syncs the files that a manifest names, the manifest, and the names of all. The process that has written them may
    /// have been killed before it synced them.
    fn sync_files(&self, manifest: &Manifest) -> Result<(), AofFailed> {
        let stored = self.path(&manifest::file_name(&self.filename));
        let data = manifest.files().map(|part| self.path(&part.name));
        for path in data.chain(stored.as_path().exists().then(|| stored.clone())) {
            let synced = File::open(path).and_then(|file| sync_if_possible(&file));
            synced.map_err(|error| {
                log::warning!("Fail to fsync the AOF file: {}", error_text(&error));
                AofFailed
            })?;
        }
        sync_directory(self.directory.as_path()).map_err(|error| {
            let path = stored.name().to_owned();
            log::warning!("{}", ManifestStoreError::SyncDirectory { path, error });
            AofFailed
        })
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &str) -> FixedPath {
        self.directory.join(name)
    }

    fn store(&self, manifest: &mut Manifest) -> Result<(), AofFailed> {
        self.try_store(manifest).map_err(|_| AofFailed)
    }

    /// Stores the manifest, for a caller that has to know the state of the directory after an error.
    fn try_store(&self, manifest: &mut Manifest) -> Result<(), ManifestStoreError> {
        let stored = manifest.store(&self.directory, &self.filename);
        if let Err(error) = &stored {
            log::warning!("{error}");
        }
        stored
    }
}

/// Copies the parameters that the log thread reads, and applies them to pending replies.
pub fn refresh(server: &Server) {
    copy_parameters(server);
    server.update_reply_milestone();
}

/// Copies the parameters that the log thread reads.
fn copy_parameters(server: &Server) {
    let (config, status) = (&server.config, &server.persistence.aof);
    status.set_fsync(config.choice(id::APPENDFSYNC));
    let timestamps = config.boolean(id::AOF_TIMESTAMP_ENABLED);
    status.writes_timestamps.store(timestamps, Ordering::Relaxed);
    let spares = config.boolean(id::NO_APPENDFSYNC_ON_REWRITE);
    status.no_fsync_on_rewrite.store(spares, Ordering::Relaxed);
}

// ---- at the start --------------------------------------------------------------------------------------------------
/// Opens the last increment. If there are no files yet, a base is written first. From then on every write is logged.
///
/// # Errors
/// If a file cannot be written or opened. The reason has been logged.
pub fn open_at_start(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Result<(), AofFailed> {
    let place = AofLocation::from_config(&server.config);
    place.make_directory()?;
    let files = &mut *server.persistence.aof_files.lock();
    assert!(
        files.appender.is_none(),
        "the append-only file is opened once at the start"
    );
    let manifest = &mut files.manifest;
    let had_increments = !manifest.increments.is_empty();
    if manifest.is_empty() {
        let as_dump = server.config.boolean(id::AOF_USE_RDB_PREAMBLE);
        let name = manifest.begin_base(&place.filename, as_dump);
        write_base(server, all, thread_index, &place.path(&name), as_dump)?;
        log::notice!("Creating AOF base file {name} on server start");
    }
    let name = manifest.last_increment(&place.filename);
    // A file that no manifest names may be left from a crash. It is not a part of the data.
    let file = open(place.path(&name).as_path(), !had_increments).map_err(|error| {
        log::warning!("Can't open the append-only file {name}: {}", error_text(&error));
        AofFailed
    })?;
    // The data of an earlier process is on the disk before clients see it.
    place.sync_files(manifest)?;
    place.store(manifest)?;
    let done = if had_increments { "Opening" } else { "Creating" };
    log::notice!("{done} AOF incr file {name} on server start");
    let appender = start_appender(server, file)?;
    begin_logging(server, &appender);
    files.appender = Some(appender);
    server.persistence.aof.set_state(AofState::On);
    refresh(server);
    delete_history(server, &place, &mut files.manifest);
    Ok(())
}

/// Creates the appender of a file.
fn start_appender(server: &Arc<Server>, file: File) -> Result<Arc<Mutex<AofAppender>>, AofFailed> {
    let failed = |error: std::io::Error| {
        log::warning!("Fatal error: cannot start a thread for the append-only file: {error}");
        AofFailed
    };
    propagation::start(&server.propagation).map_err(failed)?;
    Ok(Arc::new(Mutex::new(
        AofAppender::new(file, appender_links(server)).map_err(failed)?,
    )))
}

/// Logs all writes from now on. The caller holds exclusive mode.
fn begin_logging(server: &Server, appender: &Arc<Mutex<AofAppender>>) {
    let feed = Box::new(AppenderConsumer(appender.clone()));
    server
        .propagation
        .schedule_mark(move |consumers| consumers.add(FILE_CONSUMER, feed, 0));
    server.keyspace.hooks.set(Hooks::LOG_FILE, true);
}

fn appender_links(server: &Arc<Server>) -> AppenderLinks {
    let (tells, notes, changes) = (server.clone(), server.clone(), server.clone());
    AppenderLinks {
        propagation: server.propagation.clone(),
        status: server.persistence.aof.clone(),
        notify_worker: Arc::new(move |worker| tells.worker(worker).send(Message::LogAdvanced)),
        record_latency: Arc::new(move |event, time| note_latency(&notes, event, time)),
        changed: Arc::new(move || changes.config.invalidate_caches()),
    }
}

fn note_latency(server: &Server, event: &'static str, time: Duration) {
    let threshold_ms = server.config.unsigned(id::LATENCY_MONITOR_THRESHOLD);
    let ms = time.as_millis() as u64;
    if threshold_ms > 0 && ms >= threshold_ms {
        server.stats.history.latency.add(event, unix_ms() / 1000, ms);
    }
}

/// Writes all data to a new base.
fn write_base(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &FixedPath,
    is_rdb: bool,
) -> Result<(), AofFailed> {
    let write = |all: &mut Exclusive<'_>, path: &FixedPath, form| {
        let written = save::write_base_file(server, all, thread_index, path, form);
        written.map_err(|save::SaveFailed| AofFailed)
    };
    if is_rdb {
        return write(all, path, ModuleRecordForm::Values);
    }
    let dump = path.with_extension("rdb");
    write(all, &dump, ModuleRecordForm::Commands)?;
    let written = rewrite_to_commands(dump.as_path(), path.as_path(), &server.config);
    // No longer needed; if it cannot be removed, it does no harm.
    let _ = std::fs::remove_file(&dump);
    written.map_err(|reason| {
        log::warning!("Write error writing append only file on disk: {reason}");
        AofFailed
    })
}

/// Deletes the files that were replaced.
fn delete_history(server: &Server, place: &AofLocation, manifest: &mut Manifest) {
    if server.config.boolean(id::AOF_DISABLE_AUTO_GC) {
        return;
    }
    let history = manifest.take_history();
    if history.is_empty() {
        return;
    }
    for part in &history {
        log::notice!("Removing the history file {} in the background", part.name);
        // A file that cannot be deleted does no harm.
        let _ = std::fs::remove_file(place.path(&part.name));
    }
    // The error has been logged. The manifest names files that no longer exist, which does no harm.
    let _ = place.store(manifest);
}

// ---- at the end ----------------------------------------------------------------------------------------------------
/// Syncs everything that was logged to the disk. No thread may write at this point.
pub fn finish(server: &Arc<Server>) {
    if server.persistence.aof.state() == AofState::Off {
        return;
    }
    log::notice!("Calling fsync() on the AOF file.");
    wait_until_written(server);
    if let Some(appender) = &server.persistence.aof_files.lock().appender {
        appender.lock().finish();
    }
}

/// Waits until everything that was logged before is written. It is complete only if no thread writes meanwhile.
fn wait_until_written(server: &Server) {
    // The file may have been switched on without a rewrite so far. Then nothing was logged.
    if server.persistence.aof.state() == AofState::Off || !server.propagation.is_started() {
        return;
    }
    let (done, is_done) = mpsc::sync_channel(1);
    server.propagation.schedule_mark(move |_| {
        // The waiting thread may have given up.
        let _ = done.send(());
    });
    // A panic of the log thread ends the process.
    let _ = is_done.recv();
}

#[cfg(test)]
mod tests;
