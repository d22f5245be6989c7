//! Background dumps: BGSAVE, save points, and cancellation.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_reactor::{thread_id, unix_ms};

use super::into_file::FileConsumer;
use super::path;
use crate::config::id;
use crate::config::specials::SavePoint;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::persistence::rdb_file::Format;
use crate::persistence::snapshot;
use crate::persistence::snapshot::{SnapshotOutcome, SnapshotRefusal, SnapshotRequest, Summary};
use crate::persistence::snapshot_state::Purpose;
use crate::replication::backlog_writer;
use crate::state::{Job, Server};

/// The time after a failed dump during which no dump starts automatically, in seconds.
const RETRY_S: u64 = 5;
/// The time that a shutdown waits for a cancelled snapshot to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// The reason why no dump was started; if necessary it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotStart {
    /// Another snapshot is being written.
    Busy(Purpose),
    /// The operating system or the keyspace lacks a resource, such as a thread.
    Failed,
}

/// Starts a background save. It waits for exclusive mode, so workers must not call it.
///
/// # Errors
/// If it cannot start now.
pub fn begin_now(server: &Arc<Server>) -> Result<(), CannotStart> {
    let (config, target) = (&server.config, path(&server.config));
    let incremental = config.boolean(id::RDB_SAVE_INCREMENTAL_FSYNC);
    let order = SnapshotRequest {
        purpose: Purpose::Dump,
        format: Format::Newest,
        consumer: Box::new(move || {
            let temporary = PathBuf::from(format!("temp-{}.rdb", thread_id()));
            let afterwards = Box::new(|| {
                log::notice!("DB saved on disk");
                Ok(())
            });
            FileConsumer::create(temporary, target, incremental, afterwards)
        }),
        at_moment: Box::new(|moment| {
            let dumps = &moment.server.dumps;
            dumps.saves.fetch_add(1, Ordering::Relaxed);
            dumps.last_try_s.store(unix_ms() / 1000, Ordering::Relaxed);
            let place = backlog_writer::current_position(moment.server);
            Box::new(|| place.aux_fields())
        }),
        at_end: Box::new(conclude),
    };
    match snapshot::start(server, order) {
        Ok(thread) => {
            log::notice!("Background saving started by pid {thread}");
            Ok(())
        }
        Err(SnapshotRefusal::Busy(purpose)) => Err(CannotStart::Busy(purpose)),
        Err(SnapshotRefusal::System(error)) => {
            log::warning!("Can't save in background: {error}");
            server.dumps.last_failed.store(true, Ordering::Relaxed);
            server.dumps.last_try_s.store(unix_ms() / 1000, Ordering::Relaxed);
            server.config.invalidate_caches();
            Err(CannotStart::Failed)
        }
    }
}

fn conclude(server: &Arc<Server>, summary: &Summary, ending: SnapshotOutcome) {
    let dumps = &server.dumps;
    let now_s = unix_ms() / 1000;
    match ending {
        SnapshotOutcome::Done => {
            let took_s = summary.began.elapsed().as_secs_f64();
            let (keys, kept_bytes) = (summary.keys, summary.kept_bytes);
            log::debug!("{keys} keys written in {took_s:.3} seconds, {kept_bytes} bytes kept meanwhile");
            log::notice!("Background saving terminated with success");
            dumps.saved(now_s, summary.changes);
        }
        SnapshotOutcome::Cancelled => log::warning!("Background saving terminated by request"),
        SnapshotOutcome::Failed(error) => {
            log::warning!("{error}");
            log::warning!("Background saving error");
            dumps.last_failed.store(true, Ordering::Relaxed);
        }
    }
    dumps
        .last_took_s
        .store(now_s.saturating_sub(summary.began_s) as i64, Ordering::Relaxed);
    dumps.last_kept_bytes.store(summary.kept_bytes, Ordering::Relaxed);
    // Threads that cache if writes are refused must check again.
    server.config.invalidate_caches();
}

/// Performs BGSAVE CANCEL: cancels a running or a scheduled save. Returns the reply; `None` if there is neither.
pub fn cancel(server: &Server) -> Option<&'static str> {
    if server.snapshot.cancel(&[Purpose::Dump, Purpose::Replicas]) {
        log::notice!("Background saving will be aborted due to user request");
        return Some("Background saving cancelled");
    }
    if server.dumps.scheduled.swap(false, Ordering::Relaxed) {
        log::notice!("Scheduled background saving will be cancelled due to user request");
        return Some("Scheduled background saving cancelled");
    }
    None
}

/// Cancels a running save because all data is about to be deleted. The caller holds exclusive mode. From now on no
/// before-images are kept for it.
pub fn end_for_flush(server: &Server) {
    if server.snapshot.cancel(&[Purpose::Dump, Purpose::Replicas]) {
        server.keyspace.before_images.abandon();
    }
}

/// Cancels a running snapshot because the process ends. The files that it created are removed.
pub fn end_for_shutdown(server: &Server) {
    let all = [Purpose::Dump, Purpose::LogBase, Purpose::Replicas];
    if server.snapshot.cancel(&all) {
        match server.snapshot.purpose() {
            Some(Purpose::LogBase) => log::warning!("There is a child rewriting the AOF. Killing it!"),
            _ => log::warning!("There is a child saving an .rdb. Killing it!"),
        }
        if !server.snapshot.wait_for_end(FAREWELL) {
            log::warning!("What was being written does not end: its files may be left over.");
        }
    }
}

/// Starts a save if one is due, because it was scheduled or a save point is reached. Called by the cron. A background
/// thread performs the save.
pub fn begin_due(server: &Arc<Server>) {
    let dumps = &server.dumps;
    if server.snapshot.purpose().is_some() || dumps.asked.load(Ordering::Relaxed) || !is_due(server) {
        return;
    }
    dumps.asked.store(true, Ordering::Relaxed);
    let job: Job = Box::new(|server, _| {
        // If another snapshot is running, the save stays due. Failures have been logged.
        if begin_now(server).is_ok() {
            server.dumps.scheduled.store(false, Ordering::Relaxed);
        }
        server.dumps.asked.store(false, Ordering::Relaxed);
    });
    // The receiving threads end only at shutdown.
    let _ = server.background.send(job);
}

fn is_due(server: &Server) -> bool {
    let dumps = &server.dumps;
    let now_s = unix_ms() / 1000;
    let since_try_s = now_s.saturating_sub(dumps.last_try_s.load(Ordering::Relaxed));
    if dumps.last_failed.load(Ordering::Relaxed) && since_try_s <= RETRY_S {
        return false;
    }
    let changes = dumps.unsaved(server.metrics.sum(Counter::Dirty));
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
    reached.is_some() || dumps.scheduled.load(Ordering::Relaxed)
}
