//! Background dumps: BGSAVE, save points, and cancellation.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_reactor::thread_id;

use super::into_file::FileConsumer;
use super::rdb_path;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::persistence::rdb_file::{ModuleRecordForm, RdbFilePurpose, RdbFormat};
use crate::persistence::snapshot::{
    SnapshotClaim, SnapshotOutcome, SnapshotRefusal, SnapshotRequest, SnapshotStartError, SnapshotSummary,
};
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::replication::backlog_writer;
use crate::state::{BackgroundJob, Server};
use weft_config::id;
use weft_config::specials::SavePoint;
use weft_modules::module::server_events::{EventKind, PersistenceStep, ServerEvent};
use weft_os::atomic::Ordering;

/// The time after a failed dump during which no dump starts automatically, in seconds.
const RETRY_S: u64 = 5;
/// The time that a shutdown waits for a cancelled snapshot to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why no dump was started; if necessary it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundSaveError {
    /// Another snapshot is being written.
    Busy(SnapshotPurpose),
    /// A script, or a function, is overdue, and may never end.
    ScriptBusy {
        /// `true` for a function.
        is_function: bool,
    },
    /// The operating system or the keyspace lacks a resource, such as a thread.
    Failed,
}

/// Starts a background save for a client. It waits for exclusive mode, so workers must not call it.
///
/// # Errors
/// If it cannot start now.
pub fn start_background_save(server: &Arc<Server>) -> Result<(), BackgroundSaveError> {
    let mut claim = SnapshotClaim::new(server, SnapshotPurpose::RdbFile).map_err(BackgroundSaveError::Busy)?;
    let running = &server.scripting.running;
    if let Err(run) = running.exclude_runs_for_client() {
        let is_function = run.is_function;
        return Err(BackgroundSaveError::ScriptBusy { is_function });
    }
    let started = claim.start_without_scripts(save_request(server));
    running.end_exclusion();
    record_start(server, started.map_err(SnapshotRefusal::System))
}

/// Returns the request for a background save.
fn save_request(server: &Server) -> SnapshotRequest {
    let (config, target) = (&server.config, rdb_path(&server.config));
    let incremental = config.boolean(id::RDB_SAVE_INCREMENTAL_FSYNC);
    SnapshotRequest {
        purpose: SnapshotPurpose::RdbFile,
        slots: None,
        module_form: ModuleRecordForm::Values,
        format: RdbFormat::Newest,
        consumer: Box::new(move || {
            let temporary = target.directory().file(format!("temp-{}.rdb", thread_id()));
            let afterwards = Box::new(|| {
                log::notice!("DB saved on disk");
                Ok(())
            });
            FileConsumer::create(temporary, target, RdbFilePurpose::Dump, incremental, afterwards)
        }),
        at_moment: Box::new(|moment| {
            record_moment(moment.server);
            let place = backlog_writer::current_position(moment.server);
            Box::new(|| place.aux_fields())
        }),
        at_end: Box::new(finish_background_save),
    }
}

/// Records that a background save to the dump file has begun. Called at the moment of its snapshot.
pub fn record_moment(server: &Server) {
    note_background_start(server, PersistenceStep::RdbStart);
    let dumps = &server.persistence.dumps;
    dumps.saves.fetch_add(1, Ordering::Relaxed);
    dumps.last_try_s.store(unix_ms() / 1000, Ordering::Relaxed);
}

/// Lets modules know that a file is written in the background.
pub fn note_background_start(server: &Server, step: PersistenceStep) {
    server.send_module_event(EventKind::ForkChild, || ServerEvent::ForkChild { is_born: true });
    server.send_module_event(EventKind::Persistence, || ServerEvent::Persistence(step));
}

/// Lets modules know that it is written, or cannot be written.
pub fn note_background_end(server: &Server, is_written: bool) {
    server.send_module_event(EventKind::Persistence, || {
        ServerEvent::Persistence(super::ended(is_written))
    });
    server.send_module_event(EventKind::ForkChild, || ServerEvent::ForkChild { is_born: false });
}

/// Logs and records that a background save has started, or why it has not.
fn record_start(server: &Server, started: Result<i32, SnapshotRefusal>) -> Result<(), BackgroundSaveError> {
    match started {
        Ok(thread) => {
            log::notice!("Background saving started by pid {thread}");
            Ok(())
        }
        Err(SnapshotRefusal::Busy(purpose)) => Err(BackgroundSaveError::Busy(purpose)),
        Err(SnapshotRefusal::System(error)) => {
            record_failed_start(server, &error);
            Err(BackgroundSaveError::Failed)
        }
    }
}

/// Logs and records why a background save to the dump file has not started.
pub fn record_failed_start(server: &Server, error: &io::Error) {
    log::warning!("Can't save in background: {error}");
    let dumps = &server.persistence.dumps;
    dumps.has_last_save_failed.store(true, Ordering::Relaxed);
    dumps.last_try_s.store(unix_ms() / 1000, Ordering::Relaxed);
    server.config.invalidate_caches();
}

/// Returns `true` if a background dump is being written, for a file or for replicas.
pub fn is_background_save_running(server: &Server) -> bool {
    matches!(
        server.persistence.snapshot.purpose(),
        Some(SnapshotPurpose::RdbFile | SnapshotPurpose::Replicas)
    )
}

/// Logs and records the end of a background save to the dump file, for a client, a save point or replicas.
pub fn finish_background_save(server: &Arc<Server>, summary: &SnapshotSummary, outcome: SnapshotOutcome) {
    let dumps = &server.persistence.dumps;
    note_background_end(server, matches!(outcome, SnapshotOutcome::Done));
    match outcome {
        SnapshotOutcome::Done => {
            let took_s = summary.started_at.elapsed().as_secs_f64();
            let (keys, kept_bytes) = (summary.keys, summary.before_image_bytes);
            log::debug!("{keys} keys written in {took_s:.3} seconds, {kept_bytes} bytes of before-images");
            log::notice!("Background saving terminated with success");
            dumps.record_save(unix_ms() / 1000, summary.changes);
        }
        SnapshotOutcome::Cancelled => log::warning!("Background saving terminated by request"),
        SnapshotOutcome::Failed(error) => {
            log::warning!("{error}");
            log::warning!("Background saving error");
            dumps.has_last_save_failed.store(true, Ordering::Relaxed);
        }
    }
    record_figures(server, summary);
    // Threads that cache if writes are refused must check again.
    server.config.invalidate_caches();
}

/// Records the figures of a dump that has ended, which INFO shows whatever the dump was made for.
pub fn record_figures(server: &Server, summary: &SnapshotSummary) {
    let dumps = &server.persistence.dumps;
    let duration_s = (unix_ms() / 1000).saturating_sub(summary.started_s);
    dumps.last_duration_s.store(duration_s as i64, Ordering::Relaxed);
    let kept_bytes = summary.before_image_bytes;
    dumps.last_before_image_bytes.store(kept_bytes, Ordering::Relaxed);
}

/// Performs BGSAVE CANCEL: cancels a running or a scheduled save. Returns the reply; `None` if there is neither.
pub fn cancel_background_save(server: &Server) -> Option<&'static str> {
    if server
        .persistence
        .snapshot
        .cancel(&[SnapshotPurpose::RdbFile, SnapshotPurpose::Replicas])
    {
        log::notice!("Background saving will be aborted due to user request");
        return Some("Background saving cancelled");
    }
    if server.persistence.dumps.is_scheduled.swap(false, Ordering::Relaxed) {
        log::notice!("Scheduled background saving will be cancelled due to user request");
        return Some("Scheduled background saving cancelled");
    }
    None
}

/// Cancels a running save because all data is about to be deleted, or saved by the caller. The caller holds exclusive
/// mode. From now on no before-images are kept for it.
pub fn cancel_for_flush(server: &Server) {
    if server
        .persistence
        .snapshot
        .cancel(&[SnapshotPurpose::RdbFile, SnapshotPurpose::Replicas])
    {
        server.keyspace.before_images.cancel();
    }
}

/// Cancels a running snapshot because the process ends. The files that it created are removed.
pub fn cancel_for_shutdown(server: &Server) {
    let all = [
        SnapshotPurpose::RdbFile,
        SnapshotPurpose::AofBase,
        SnapshotPurpose::Replicas,
        SnapshotPurpose::SlotMigration,
    ];
    if server.persistence.snapshot.cancel(&all) {
        match server.persistence.snapshot.purpose() {
            Some(SnapshotPurpose::AofBase) => log::warning!("There is a child rewriting the AOF. Killing it!"),
            Some(SnapshotPurpose::SlotMigration) => log::warning!("There is a slot migration child. Killing it!"),
            _ => log::warning!("There is a child saving an .rdb. Killing it!"),
        }
        if !server.persistence.snapshot.wait_for_end(CANCEL_TIMEOUT) {
            log::warning!("The running snapshot did not end in time: its temporary files may be left behind.");
        }
    }
}

/// Starts a save if one is due, because it was scheduled or a save point is reached. Called by the cron. A background
/// thread starts it. While a script is overdue the save stays due: it would keep that thread, and all other snapshots,
/// waiting for a script that may never end.
pub fn start_due_save(server: &Arc<Server>) {
    let dumps = &server.persistence.dumps;
    if server.persistence.snapshot.purpose().is_some()
        || dumps.is_requested.load(Ordering::Relaxed)
        || server.scripting.running.has_overdue()
        || !is_save_due(server)
    {
        return;
    }
    dumps.is_requested.store(true, Ordering::Relaxed);
    let job: BackgroundJob = Box::new(|server, _| {
        // If another snapshot is running, data is missing or a script is overdue since the cron checked, the save stays
        // due. Failures have been logged. A client may schedule the next save as soon as this one has started.
        let is_scheduled = &server.persistence.dumps.is_scheduled;
        let was_scheduled = is_scheduled.swap(false, Ordering::Relaxed);
        let started = match SnapshotClaim::new(server, SnapshotPurpose::RdbFile) {
            Ok(mut claim) if !server.must_keep_data_files() => match claim.start(save_request(server)) {
                Ok(thread) => record_start(server, Ok(thread)).is_ok(),
                Err(SnapshotStartError::System(error)) => {
                    record_start(server, Err(SnapshotRefusal::System(error))).is_ok()
                }
                Err(SnapshotStartError::ScriptBusy(_)) => false,
            },
            Ok(_) | Err(_) => false,
        };
        if !started {
            is_scheduled.fetch_or(was_scheduled, Ordering::Relaxed);
        }
        server.persistence.dumps.is_requested.store(false, Ordering::Relaxed);
    });
    // The receiving threads end only at shutdown.
    let _ = server.background.long_commands.send(job);
}

fn is_save_due(server: &Server) -> bool {
    let dumps = &server.persistence.dumps;
    let now_s = unix_ms() / 1000;
    let since_try_s = now_s.saturating_sub(dumps.last_try_s.load(Ordering::Relaxed));
    if dumps.has_last_save_failed.load(Ordering::Relaxed) && since_try_s <= RETRY_S {
        return false;
    }
    let changes = dumps.unsaved_changes(server.stats.metrics.sum(Counter::Dirty));
    let since_save_s = now_s.saturating_sub(dumps.last_save_s.load(Ordering::Relaxed));
    let points = server.config.save_points();
    let is_reached = |point: &&SavePoint| {
        let many = u64::try_from(point.changes).is_ok_and(|wanted| changes >= wanted);
        many && u64::try_from(point.seconds).is_ok_and(|wanted| since_save_s > wanted)
    };
    let reached = points.iter().find(is_reached);
    if let Some(point) = reached {
        log::notice!("{} changes in {} seconds. Saving...", point.changes, point.seconds);
    }
    reached.is_some() || dumps.is_scheduled.load(Ordering::Relaxed)
}
