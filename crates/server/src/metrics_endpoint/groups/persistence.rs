//! Metrics of RDB files, snapshots and the append-only file.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};
use crate::observability::metrics::Counter;
use crate::persistence::aof_files::AofState;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::state::Server;
use weft_os::atomic::{AtomicU64, Ordering};

metrics! {
    CHANGES = Metric::gauge("weft_rdb_changes_since_last_save", "Changes of keys since the last RDB file was saved.");
    LAST_SAVE = Metric::gauge("weft_rdb_last_save_timestamp_seconds", "Time of the last successful save, or of the start, in seconds since the Unix epoch.");
    LAST_SAVE_OK = Metric::gauge("weft_rdb_last_save_ok", "1 if the last background save succeeded or there was none, otherwise 0.");
    LAST_SAVE_TIME = Metric::gauge("weft_rdb_last_save_duration_seconds", "Duration of the last background save in whole seconds; missing before the first one.");
    SAVES = Metric::counter("weft_rdb_saves_total", "Background saves that were started.");
    SNAPSHOT = Metric::gauge("weft_snapshot_in_progress", "1 while a snapshot is written for this purpose, otherwise 0.")
        .labelled(&["purpose"]);
    SNAPSHOTS = Metric::counter("weft_snapshots_total", "Snapshots that were begun, for any purpose.");
    SNAPSHOT_PAUSE = Metric::gauge("weft_snapshot_last_pause_seconds", "Time for which the beginning of the last snapshot stopped all workers.");
    SNAPSHOT_KEYS = Metric::gauge("weft_snapshot_keys_done", "Keys that the current snapshot has written; 0 without one.");
    SNAPSHOT_TOTAL = Metric::gauge("weft_snapshot_keys", "Keys of the current snapshot; 0 without one.");
    BEFORE_IMAGES = Metric::gauge("weft_snapshot_before_image_bytes", "Former values of changed keys that are kept for the current snapshot.");
    AOF_ENABLED = Metric::gauge("weft_aof_enabled", "1 if the append-only file is on, otherwise 0.");
    AOF_SIZE = Metric::gauge("weft_aof_size_bytes", "Size of the append-only file; only if it is on.");
    AOF_BASE_SIZE = Metric::gauge("weft_aof_base_size_bytes", "Size of the append-only file after its last rewrite; only if it is on.");
    AOF_BUFFER = Metric::gauge("weft_aof_buffer_bytes", "Data that is not written to the append-only file yet; only if it is on.");
    AOF_WRITE_OK = Metric::gauge("weft_aof_last_write_ok", "1 if the append-only file is written and synced without errors, otherwise 0.");
    AOF_PENDING_SYNCS = Metric::gauge("weft_aof_pending_fsyncs", "Syncs of the append-only file in progress on another thread.");
    AOF_REWRITE = Metric::gauge("weft_aof_rewrite_in_progress", "1 while the append-only file is rewritten, otherwise 0.");
    AOF_REWRITE_OK = Metric::gauge("weft_aof_last_rewrite_ok", "1 if the last rewrite succeeded or there was none, otherwise 0.");
    AOF_REWRITE_TIME = Metric::gauge("weft_aof_last_rewrite_duration_seconds", "Duration of the last rewrite in whole seconds; missing before the first one.");
    AOF_REWRITES = Metric::counter("weft_aof_rewrites_total", "Rewrites of the append-only file that were started.");
}

const PURPOSES: [(&str, SnapshotPurpose); 4] = [
    ("rdb", SnapshotPurpose::RdbFile),
    ("aof", SnapshotPurpose::AofBase),
    ("replicas", SnapshotPurpose::Replicas),
    ("slot_migration", SnapshotPurpose::SlotMigration),
];

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let dumps = &server.persistence.dumps;
    let changes = dumps.unsaved_changes(server.stats.metrics.sum(Counter::Dirty));
    out.single(&CHANGES, changes);
    out.single(&LAST_SAVE, dumps.last_save_s.load(Ordering::Relaxed));
    out.single(&LAST_SAVE_OK, !dumps.has_last_save_failed.load(Ordering::Relaxed));
    // -1 stands for none.
    if let Ok(duration_s) = u64::try_from(dumps.last_duration_s.load(Ordering::Relaxed)) {
        out.single(&LAST_SAVE_TIME, duration_s);
    }
    out.single(&SAVES, dumps.saves.load(Ordering::Relaxed));
    write_snapshot(out, server);
    write_append_only_file(out, server);
}

fn write_snapshot(out: &mut Exposition, server: &Server) {
    let snapshot = &server.persistence.snapshot;
    let current = snapshot.purpose();
    let mut in_progress = out.family(&SNAPSHOT);
    for (name, purpose) in PURPOSES {
        in_progress.add(&[name], current == Some(purpose));
    }
    out.single(&SNAPSHOTS, snapshot.snapshots_started.load(Ordering::Relaxed));
    out.single(&SNAPSHOT_PAUSE, snapshot.pause_us.load(Ordering::Relaxed) as f64 / 1e6);
    out.single(&SNAPSHOT_KEYS, snapshot.keys_done.load(Ordering::Relaxed));
    out.single(&SNAPSHOT_TOTAL, snapshot.keys_total.load(Ordering::Relaxed));
    out.single(&BEFORE_IMAGES, server.keyspace.before_images.kept_bytes());
}

fn write_append_only_file(out: &mut Exposition, server: &Server) {
    let aof = &server.persistence.aof;
    let number = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let is_enabled = aof.state() != AofState::Off;
    out.single(&AOF_ENABLED, is_enabled);
    if is_enabled {
        out.single(&AOF_SIZE, number(&aof.current_bytes));
        out.single(&AOF_BASE_SIZE, number(&aof.base_bytes));
        out.single(&AOF_BUFFER, number(&aof.buffered_bytes));
        out.single(&AOF_PENDING_SYNCS, number(&aof.pending_syncs));
    }
    out.single(&AOF_WRITE_OK, !aof.is_failing.load(Ordering::Relaxed));
    out.single(&AOF_REWRITE, number(&aof.rewriting_since_s) > 0);
    out.single(&AOF_REWRITE_OK, !aof.last_rewrite_failed.load(Ordering::Relaxed));
    // The stored number is the duration plus one, and 0 stands for none.
    if let Ok(duration_s) = u64::try_from(aof.last_rewrite_s.load(Ordering::Relaxed) - 1) {
        out.single(&AOF_REWRITE_TIME, duration_s);
    }
    out.single(&AOF_REWRITES, number(&aof.rewrites));
}
