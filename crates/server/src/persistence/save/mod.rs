//! RDB files of the running server: written, loaded, and written once more before the process ends.
//!
//! SAVE, the final save, and every load run in exclusive mode, which blocks all other threads. A background save
//! (BGSAVE, save points) is a [`super::snapshot`] that is written to a file. So is a dump for replicas that goes
//! through the dump file, which counts as a background save, as in Valkey.

mod ending;
mod in_background;
mod into_file;
mod module_events;

pub use ending::{abort_shutdown, begin_shutdown};
pub use in_background::{
    BackgroundSaveError, cancel_background_save, cancel_for_flush, cancel_for_shutdown, finish_background_save,
    is_background_save_running, note_background_end, note_background_start, record_failed_start, record_figures,
    record_moment, start_background_save, start_due_save,
};
pub use into_file::FileConsumer;
pub(super) use module_events::{deliver_flush, deliver_loading, loading_ended};

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::files::FixedPath;
use weft_base::{DbIndex, ReplicationOffset, ThreadIndex};

use crate::keyspace::access::WholeKeyspace;
use crate::keyspace::effects::Hooks;
use crate::keyspace::flush::take_databases;
use crate::keyspace::walk::WalkAccess;
use crate::keyspace::{Exclusive, Seat};
use crate::notify::messages::invalidate_replaced_data;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::observability::slow_library::SlowLibraryReport;
use crate::persistence::rdb_file;
use crate::persistence::rdb_file::{
    DecodedRecords, KeyDelay, KeyEncodingOptions, LoadDestination, LoadThreads, LoadedFile, ModuleEncodeFailed,
    ModuleRecordForm, OnKeyDropped, ProgressCallback, RdbFault, RdbFilePurpose, RdbHeader, RdbLoadError, RdbLoader,
    SaveContents, StoredReplicationPosition, UndecodedRecord, decode,
};
use crate::persistence::snapshot::{
    AuxField, access_clock, cancel_current, encode_modules, report_loaded_keys, run_with_home,
};
use crate::replication::ReplicationState;
use crate::replication::backlog_writer;
use crate::state::{HomeStandby, NEW_DATA, Server};
use weft_config::{Config, id};
use weft_modules::module::server_events::{EventKind, LoadingStep, PersistenceStep, ServerEvent};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_resp::command::write_command;
use weft_scripting::{ScriptRun, repeat_library_load};

/// The error of an operation that failed; the reason was logged.
#[derive(Debug)]
pub struct SaveFailed;

/// Writes an RDB file.
///
/// # Errors
/// If the file cannot be written.
pub fn save(server: &Arc<Server>, seat: &mut Seat) -> Result<(), SaveFailed> {
    // Scripts are excluded first, because a running script could delay the closing of the gate for as long as it runs.
    server.scripting.running.exclude_runs();
    save_without_scripts(server, seat)
}

/// Writes an RDB file for a caller that has excluded scripts, and ends their exclusion.
fn save_without_scripts(server: &Arc<Server>, seat: &mut Seat) -> Result<(), SaveFailed> {
    let thread_index = ThreadIndex::new(seat.index());
    let written = run_with_home(server, seat, |all, home, _| {
        // A background save that has begun meanwhile is older, and must not replace this file.
        cancel_for_flush(server);
        let _publication = server.persistence.snapshot.hold_publication();
        let path = rdb_path(&server.config);
        write(server, all, thread_index, home, &path, KeyDelay::Configured)
    });
    server.scripting.running.end_exclusion();
    written
}

/// The reason why SAVE wrote no file.
#[derive(Debug)]
pub enum ForegroundSaveError {
    /// A background save is under way.
    Busy,
    /// A script is overdue, and may never end.
    ScriptBusy(Arc<ScriptRun>),
    /// The file cannot be written; the reason was logged.
    Failed,
}

/// Writes an RDB file for SAVE.
///
/// # Errors
/// If the file cannot be written, if a script is overdue, or if a background save has begun since the client asked: the
/// file of that save is older, and would replace this one.
pub fn save_in_foreground(server: &Arc<Server>, seat: &mut Seat) -> Result<(), ForegroundSaveError> {
    let excluded = server.scripting.running.exclude_runs_for_client();
    excluded.map_err(ForegroundSaveError::ScriptBusy)?;
    let thread_index = ThreadIndex::new(seat.index());
    let written = run_with_home(server, seat, |all, home, _| match is_background_save_running(server) {
        true => Err(ForegroundSaveError::Busy),
        false => {
            server.persistence.dumps.saves.fetch_add(1, Ordering::Relaxed);
            // The dump of a primary that was loaded before may still have to get its name.
            let _publication = server.persistence.snapshot.hold_publication();
            let path = rdb_path(&server.config);
            let written = write(server, all, thread_index, home, &path, KeyDelay::Configured);
            written.map_err(|SaveFailed| ForegroundSaveError::Failed)
        }
    });
    server.scripting.running.end_exclusion();
    written
}

fn write(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    path: &FixedPath,
    key_delay: KeyDelay,
) -> Result<(), SaveFailed> {
    if server.lacks_data() {
        log::warning!("The data is not saved while it is being loaded");
        return Err(SaveFailed);
    }
    if server.scripting.running.has_unfinished_unit() {
        log::warning!("The data is not saved: it has a part of a script that the end of the process has stopped");
        return Err(SaveFailed);
    }
    // Nothing changes before the position is known.
    let notes = backlog_writer::current_position(server).aux_fields();
    let file = WrittenFile {
        path,
        purpose: RdbFilePurpose::Dump,
        notes: &notes,
        key_delay,
        module_form: ModuleRecordForm::Values,
    };
    write_file_with_events(server, all, thread_index, home, &file)?;
    log::notice!("DB saved on disk");
    server
        .persistence
        .dumps
        .record_save(unix_ms() / 1000, server.stats.metrics.sum(Counter::Dirty));
    server.config.invalidate_caches();
    Ok(())
}

/// A file that is written in exclusive mode.
struct WrittenFile<'f> {
    path: &'f FixedPath,
    purpose: RdbFilePurpose,
    notes: &'f [AuxField],
    key_delay: KeyDelay,
    module_form: ModuleRecordForm,
}

/// Writes a file, and lets modules know of the beginning and the end.
fn write_file_with_events(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    file: &WrittenFile<'_>,
) -> Result<(), SaveFailed> {
    let begin = match file.purpose {
        RdbFilePurpose::AofBase => PersistenceStep::SyncAofStart,
        _ => PersistenceStep::SyncRdbStart,
    };
    let deliver = |all: &mut Exclusive<'_>, home: &mut Option<HomeStandby>, step| {
        server.deliver_module_event_with(all, thread_index, home, EventKind::Persistence, || {
            ServerEvent::Persistence(step)
        });
    };
    deliver(all, home, begin);
    let written = write_file(server, all, thread_index, home, file);
    deliver(all, home, ended(written.is_ok()));
    written
}

/// Returns the step that ends writing a file.
pub(super) fn ended(is_written: bool) -> PersistenceStep {
    match is_written {
        true => PersistenceStep::Ended,
        false => PersistenceStep::Failed,
    }
}

fn write_file(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    home: &mut Option<HomeStandby>,
    file: &WrittenFile<'_>,
) -> Result<(), SaveFailed> {
    let now_s = unix_ms() / 1000;
    let clock = access_clock(&server.config, now_s);
    let encoding = (KeyEncodingOptions::from_config(&server.config, clock), file.module_form);
    let modules = encode_modules(server, all, thread_index, home, None, encoding);
    let modules = modules.map_err(|ModuleEncodeFailed| SaveFailed)?;
    let functions = server.scripting.libraries.codes();
    let imports = server.slot_migrations.unfinished_imports();
    let contents = SaveContents {
        slots: WalkAccess::Everything(all),
        counts: &server.keyspace.counts,
        head: RdbHeader {
            functions: &functions,
            imports: &imports,
            now_s,
            used_memory_bytes: crate::observability::memory::used().unwrap_or(0),
            aux_fields: file.notes,
            module_data: &modules.before_keys,
            ..RdbHeader::default()
        },
        config: &server.config,
        clock,
        key_delay: file.key_delay,
        modules: &modules,
    };
    rdb_file::save(file.path, file.purpose, &contents).map_err(|error| {
        log::warning!("{error}");
        SaveFailed
    })
}

/// Writes an RDB file after all data was deleted, if there are save points, so that a restart does not bring back the
/// old data.
///
/// # Errors
/// If the file cannot be written.
pub fn save_after_flush(server: &Arc<Server>, seat: &mut Seat) -> Result<(), SaveFailed> {
    // A cancelled background save may be about to rename its file to the same name.
    server.persistence.snapshot.wait_for_cancelled();
    save(server, seat)
}

/// Loads the RDB file at the start of the server, if there is one, and resumes the replication history that it names.
///
/// # Errors
/// If the file cannot be loaded completely.
pub fn load_at_start(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
) -> Result<(), SaveFailed> {
    let started = Instant::now();
    if let Ok(metadata) = std::fs::metadata(rdb_path(&server.config)) {
        reset_load_progress(server, metadata.len());
    }
    let is_replica_of_cluster = server.cluster.as_ref().is_some_and(|cluster| cluster.view().is_replica);
    let is_primary = server.config.primary().is_none() && !is_replica_of_cluster;
    let mut deletions = ExpiredDeletions::default();
    let mut delete = |db: DbIndex, name: &[u8]| deletions.append_deletion(server, db, name);
    let how = match is_primary {
        true => {
            backlog_writer::open_for_load(server);
            LoadMode {
                should_replace: false,
                expiry_ms: unix_ms(),
                on_dropped_key: Some(&mut delete),
            }
        }
        // Expired keys are deleted by the primary.
        false => LoadMode::keep_expired(),
    };
    match load(server, &rdb_path(&server.config), all, thread_index, how) {
        Ok(loaded) => {
            log::notice!("DB loaded from disk: {:.3} seconds", started.elapsed().as_secs_f64());
            resume_replication(server, &loaded.position, is_primary)
        }
        Err(error) if error.is_missing() => {
            resume_replication(server, &StoredReplicationPosition::default(), is_primary)
        }
        Err(error) => {
            log_load_error(&error);
            log::warning!("Fatal error loading the DB, check server logs. Exiting.");
            Err(SaveFailed)
        }
    }
}

/// The deletions to propagate for keys that a dump does not bring back.
#[derive(Default)]
struct ExpiredDeletions {
    selected_db: Option<DbIndex>,
}

impl ExpiredDeletions {
    fn append_deletion(&mut self, server: &Server, db: DbIndex, name: &[u8]) {
        let config = &server.config;
        let mut bytes = Vec::new();
        if self.selected_db != Some(db) {
            self.selected_db = Some(db);
            write_command([&b"SELECT"[..], db.to_string().as_bytes()].into_iter(), &mut bytes);
        }
        let delete: &[u8] = match config.boolean(id::LAZYFREE_LAZY_EXPIRE) {
            true => b"UNLINK",
            false => b"DEL",
        };
        write_command([delete, name].into_iter(), &mut bytes);
        let most_bytes = config.integer(id::REPL_BACKLOG_SIZE);
        server.replication.replicas.backlog().append(&bytes, most_bytes);
    }
}

/// Continues the replication history of the dump, if it contains one.
fn resume_replication(
    server: &Arc<Server>,
    position: &StoredReplicationPosition,
    is_primary: bool,
) -> Result<(), SaveFailed> {
    let offset = position.offset.and_then(ReplicationOffset::from_stated);
    let place = match (String::from_utf8(position.id.clone()), offset, position.db) {
        (Ok(id), Some(offset), Some(db)) if !id.is_empty() => Some(backlog_writer::HistoryPosition { id, offset, db }),
        _ => None,
    };
    match place {
        Some(place) if is_primary => {
            assert!(
                !server.replication.is_replica(),
                "a server that resumes as a primary follows none"
            );
            backlog_writer::resume_as_primary(server, place.id, place.offset).map_err(|error| {
                log::warning!("Fatal error: cannot start the log thread: {error}");
                SaveFailed
            })
        }
        Some(place) => {
            backlog_writer::resume_as_replica(server, &place);
            Ok(())
        }
        None => {
            server.replication.replicas.backlog().close();
            Ok(())
        }
    }
}

/// Records the start of a load of this many bytes, for INFO.
pub fn reset_load_progress(server: &Server, total_bytes: u64) {
    let loading = &server.replication.loading;
    loading.started_s.store(unix_ms() / 1000, Ordering::Relaxed);
    loading.total_bytes.store(total_bytes, Ordering::Relaxed);
    loading.loaded_bytes.store(0, Ordering::Relaxed);
    loading.used_memory_bytes.store(0, Ordering::Relaxed);
}

fn log_load_error(error: &RdbLoadError) {
    if matches!(error.fault, RdbFault::Truncated) {
        log::warning!("Short read or OOM loading DB. Unrecoverable error, aborting now.");
    }
    log::warning!("{error}");
    if matches!(error.fault, RdbFault::Checksum(..)) {
        let (offset, path) = (error.offset, error.path.display());
        log::warning!("Internal error in RDB reading offset {offset} of {path} -> RDB CRC error");
    }
}

/// Loads the RDB preamble of an append-only file. Returns the offset at which it ends. Expired keys are loaded, because
/// later commands in the file may refer to them.
///
/// # Errors
/// If the preamble cannot be loaded. The reason has been logged.
pub fn load_rdb_preamble(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &FixedPath,
) -> Result<u64, SaveFailed> {
    let loaded = load_file(server, path, all, thread_index, LoadMode::keep_expired()).map_err(|error| {
        log_load_error(&error);
        SaveFailed
    })?;
    Ok(loaded.end_offset)
}

/// Writes all data to a file that a module names.
///
/// # Errors
/// If the file cannot be written. The reason has been logged.
pub fn save_to(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &FixedPath,
) -> Result<(), SaveFailed> {
    let file = WrittenFile {
        path,
        purpose: RdbFilePurpose::Dump,
        notes: &[],
        key_delay: KeyDelay::Configured,
        module_form: ModuleRecordForm::Values,
    };
    write_file_with_events(server, all, thread_index, &mut None, &file)?;
    log::notice!("DB saved on disk");
    Ok(())
}

/// Replaces all data with the contents of a file that a module names.
///
/// # Errors
/// If the file cannot be loaded. The reason has been logged.
pub fn load_from(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &FixedPath,
) -> Result<(), SaveFailed> {
    cancel_current(server);
    server.end_migrations_for_load();
    drop_all_data(server, all, thread_index);
    let how = LoadMode {
        should_replace: false,
        expiry_ms: unix_ms(),
        on_dropped_key: None,
    };
    let loaded = load_visibly(server, path, all, thread_index, how);
    server.end_loaded_imports(NEW_DATA);
    loaded.map(drop).map_err(|error| {
        log_load_error(&error);
        SaveFailed
    })
}

/// Deletes all data and function libraries before a load. The memory is freed at once, because it may not suffice for
/// both.
fn drop_all_data(server: &Arc<Server>, all: &mut Exclusive<'_>, thread_index: ThreadIndex) {
    let keyspace = &server.keyspace;
    let databases = DbIndex::all(keyspace.counts.databases());
    deliver_flush(server, all, thread_index, &mut None, false);
    let taken = take_databases(&mut WholeKeyspace::Exclusive(all), databases, keyspace, thread_index);
    deliver_flush(server, all, thread_index, &mut None, true);
    server.scripting.libraries.flush();
    drop(taken);
    invalidate_replaced_data(server, thread_index);
}

/// Writes an RDB file as the base of an append-only file, or as what is converted to one that consists of commands.
///
/// # Errors
/// If the file cannot be written. The reason has been logged.
pub fn write_base_file(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    path: &FixedPath,
    module_form: ModuleRecordForm,
) -> Result<(), SaveFailed> {
    let file = WrittenFile {
        path,
        purpose: RdbFilePurpose::AofBase,
        notes: &[],
        key_delay: KeyDelay::None,
        module_form,
    };
    // The thread that loads data at the start writes this file.
    let mut home = server.modules.exclusive_home.lock().take();
    let written = write_file_with_events(server, all, thread_index, &mut home, &file);
    *server.modules.exclusive_home.lock() = home;
    written
}

/// The options of a load.
struct LoadMode<'h> {
    /// `true` if a key of the file replaces one in memory.
    should_replace: bool,
    /// Keys that have expired at this time are dropped, in ms since the Unix epoch; 0 drops none.
    expiry_ms: u64,
    /// Called for them.
    on_dropped_key: Option<OnKeyDropped<'h>>,
}

impl LoadMode<'_> {
    fn keep_expired() -> Self {
        LoadMode {
            should_replace: false,
            expiry_ms: 0,
            on_dropped_key: None,
        }
    }
}

fn load(
    server: &Arc<Server>,
    path: &FixedPath,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    how: LoadMode<'_>,
) -> Result<LoadedFile, RdbLoadError> {
    let was_loading = server.persistence.dumps.is_loading.swap(true, Ordering::Relaxed);
    assert!(!was_loading, "one file is loaded at a time");
    let exists = path.as_path().exists();
    if exists {
        deliver_loading(server, all, thread_index, LoadingStep::RdbStart);
    }
    let loaded = load_file(server, path, all, thread_index, how);
    server.persistence.dumps.is_loading.store(false, Ordering::Relaxed);
    if loaded.is_ok() {
        let home = server.modules.exclusive_home.lock().take();
        let home = report_loaded_keys(server, all, thread_index, home);
        *server.modules.exclusive_home.lock() = home;
    }
    if exists {
        deliver_loading(server, all, thread_index, loading_ended(loaded.is_ok()));
    }
    loaded
}

/// Does the same for a thread that excludes runs on script threads. The gate opens for moments, in which clients learn
/// that data are loaded; not in a cluster, where other nodes would regard this one as failed.
fn load_visibly(
    server: &Arc<Server>,
    path: &FixedPath,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    how: LoadMode<'_>,
) -> Result<LoadedFile, RdbLoadError> {
    let size = std::fs::metadata(path.as_path()).map_or(0, |metadata| metadata.len());
    reset_load_progress(server, size);
    server
        .replication
        .set_state_bits(ReplicationState::LOADING, server.cluster.is_none());
    server.modules.load_excludes_runs.store(true, Ordering::Relaxed);
    let loaded = load(server, path, all, thread_index, how);
    server.modules.load_excludes_runs.store(false, Ordering::Relaxed);
    server.replication.set_state_bits(ReplicationState::LOADING, false);
    loaded
}

/// Loads a file.
fn load_file(
    server: &Arc<Server>,
    path: &FixedPath,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    mode: LoadMode<'_>,
) -> Result<LoadedFile, RdbLoadError> {
    let replace = mode.should_replace;
    let now_ms = unix_ms();
    let progress = &server.replication.loading;
    let before = progress.loaded_bytes.load(Ordering::Relaxed);
    let report = |bytes| {
        progress.loaded_bytes.store(before + bytes, Ordering::Relaxed);
        server.send_loading_progress(true);
    };
    let used_memory = |bytes| progress.used_memory_bytes.store(bytes, Ordering::Relaxed);
    let meanwhile = || server.serve_while_loading();
    let decode_modules = |records, all: Option<&mut Exclusive<'_>>| match all {
        Some(all) => decode_in_exclusive_mode(server, all, thread_index, records),
        None => decode(records),
    };
    let mut loader = RdbLoader {
        destination: LoadDestination::Keyspace(all),
        hasher: &server.keyspace.hasher,
        counts: &server.keyspace.counts,
        before_images: &server.keyspace.before_images,
        thread_index,
        config: &server.config,
        clock: access_clock(&server.config, now_ms / 1000),
        now_ms: mode.expiry_ms,
        should_replace: replace,
        threads: LoadThreads::for_workers(server.workers.len()),
        on_dropped_key: match mode.on_dropped_key {
            Some(tell) => Some(tell),
            None => None,
        },
        decode_modules: &decode_modules,
        // Other clients get `-LOADING` meanwhile only at the start, and if modules take part.
        progress: server
            .replication
            .state_bits()
            .contains(ReplicationState::LOADING)
            .then_some(ProgressCallback {
                every_bytes: server.config.unsigned(id::LOADING_PROCESS_EVENTS_INTERVAL_BYTES),
                report: &report,
                meanwhile: &meanwhile,
                used_memory: &used_memory,
            }),
    };
    let loaded = rdb_file::load(path, &mut loader)?;
    assert!(
        loaded.end_offset >= rdb_file::MAGIC_BYTES as u64,
        "the offset behind a loaded file lies behind its header"
    );
    report(loaded.end_offset);
    match weft_modules::module::engines::any_exist() && !loaded.functions.is_empty() {
        true => {
            let load = || load_functions(server, &loaded, replace);
            server.call_modules_in_exclusive_mode(all, thread_index, load)?;
        }
        false => load_functions(server, &loaded, replace)?,
    }
    server.track_imports(&loaded.imports);
    let empty = match loaded.empty_keys {
        0 => String::new(),
        empty => format!(", empty keys skipped: {empty}"),
    };
    log::notice!(
        "Done loading RDB, keys loaded: {}, keys expired: {}{empty}, all fields expired hashes: {}.",
        loaded.keys,
        loaded.expired,
        loaded.expired_hashes
    );
    server.persistence.dumps.record_load(&loaded);
    Ok(loaded)
}

/// Has modules decode the records of a file that this thread loads in exclusive mode.
fn decode_in_exclusive_mode(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    records: Vec<UndecodedRecord>,
) -> DecodedRecords {
    server.call_modules_in_exclusive_mode(all, thread_index, move || decode(records))
}

/// Loads the function libraries of an RDB file. If `replace` is set, a library replaces one of the same name, as keys
/// do.
fn load_functions(server: &Server, loaded: &LoadedFile, replace: bool) -> Result<(), RdbLoadError> {
    let report = Rc::new(SlowLibraryReport::new("The load of the RDB file"));
    for code in &loaded.functions {
        let report = report.clone();
        // Only the end of the process stops the code: it has run before.
        let is_obsolete = move || {
            report.write_if_due();
            false
        };
        let library = repeat_library_load(&server.scripting, code, is_obsolete)
            .unwrap_or_else(|| Err(b"The server is about to end".to_vec()));
        let added = library.and_then(|library| server.scripting.libraries.add(&library, replace));
        if let Err(reason) = added {
            let reason = String::from_utf8_lossy(&reason);
            return Err(RdbLoadError {
                path: rdb_path(&server.config).name().to_owned(),
                offset: 0,
                fault: RdbFault::damaged(format!("Failed creating the library: {reason}")),
            });
        }
    }
    Ok(())
}

/// The options of writing and loading all data.
#[derive(Clone, Copy, Debug)]
pub struct ReloadOptions {
    /// `true` if an RDB file is written first.
    pub should_save: bool,
    /// `true` if the data in memory is deleted before loading.
    pub should_flush: bool,
    /// `true` if a key of the file replaces one in memory.
    pub replace: bool,
}

/// The reason why data was not reloaded.
#[derive(Debug)]
pub enum ReloadError {
    /// Data is being loaded already.
    Loading,
    /// A script is overdue, and may never end.
    ScriptBusy(Arc<ScriptRun>),
    /// The end of the process has stopped a script that has written. Its slots stay leased, and a load would wait for
    /// them for ever. Nothing changed.
    ProcessEnds,
    /// The file could not be written. Nothing changed.
    Save,
    /// The file could not be loaded.
    Load,
}

/// Writes all data and loads it again, as one atomic step.
///
/// # Errors
/// If writing or loading fails. The reason has been logged.
pub fn reload(server: &Arc<Server>, seat: &mut Seat, how: ReloadOptions) -> Result<(), ReloadError> {
    let excluded = server.scripting.running.exclude_runs_for_client();
    excluded.map_err(ReloadError::ScriptBusy)?;
    let thread_index = ThreadIndex::new(seat.index());
    let reloaded = run_with_home(server, seat, |all, home, _| {
        reload_in_exclusive_mode(server, all, thread_index, home.take(), how)
    });
    server.scripting.running.end_exclusion();
    reloaded
}

fn reload_in_exclusive_mode(
    server: &Arc<Server>,
    all: &mut Exclusive<'_>,
    thread_index: ThreadIndex,
    mut home: Option<HomeStandby>,
    how: ReloadOptions,
) -> Result<(), ReloadError> {
    if server.is_loading() {
        return Err(ReloadError::Loading);
    }
    if server.scripting.running.has_unfinished_unit() {
        return Err(ReloadError::ProcessEnds);
    }
    server.end_migrations_for_load();
    // A background save that ends now must not rename its file, which is older, to the one that is loaded.
    let no_publication = server.persistence.snapshot.hold_publication();
    // CONFIG SET may change the name or the directory before the file is loaded.
    let path = rdb_path(&server.config);
    if how.should_save {
        // A file that is written at the same time in the background may be delayed, to be observed.
        let written = write(server, all, thread_index, &mut home, &path, KeyDelay::None);
        written.map_err(|SaveFailed| ReloadError::Save)?;
    }
    let keyspace = &server.keyspace;
    let databases = DbIndex::all(keyspace.counts.databases());
    let taken = how.should_flush.then(|| {
        deliver_flush(server, all, thread_index, &mut home, false);
        let whole = &mut WholeKeyspace::Exclusive(all);
        let taken = take_databases(whole, databases, keyspace, thread_index);
        deliver_flush(server, all, thread_index, &mut home, true);
        taken
    });
    if how.should_flush {
        server.scripting.libraries.flush();
    }
    // Freed before loading, because the memory may not suffice for both.
    drop(taken);
    // Without the flush, too: the file may replace keys that clients have read.
    invalidate_replaced_data(server, thread_index);
    // Replicas and the append-only file still have the expired keys. They stay until they are deleted, which is logged.
    let is_repeated = keyspace.hooks.current().intersects(Hooks::LOG);
    let expiry_ms = match server.replication.is_replica() || is_repeated {
        true => 0,
        false => unix_ms(),
    };
    let how = LoadMode {
        should_replace: how.replace,
        expiry_ms,
        on_dropped_key: None,
    };
    let loaded = match home {
        // The code of modules may take long, and let clients learn that data are loaded.
        Some(home) if server.cluster.is_none() => {
            drop(home);
            // A thread that enters exclusive mode while the gate is open may wait for that.
            cancel_current(server);
            drop(no_publication);
            load_visibly(server, &path, all, thread_index, how)
        }
        home => {
            *server.modules.exclusive_home.lock() = home;
            let loaded = load(server, &path, all, thread_index, how);
            server.modules.exclusive_home.lock().take();
            loaded
        }
    };
    loaded.map_err(|error| {
        log_load_error(&error);
        ReloadError::Load
    })?;
    server.end_loaded_imports(NEW_DATA);
    log::notice!("DB reloaded by DEBUG RELOAD");
    Ok(())
}

/// Returns the path of the RDB file in the present working directory.
pub fn rdb_path(config: &Config) -> FixedPath {
    FixedPath::new(OsString::from_vec(config.text(id::DBFILENAME).to_vec()))
}
