//! The sections of INFO about the server's activity: persistence, statistics, CPU time, commands, errors, latencies.

use std::borrow::Cow;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;

use crate::commands::registry;
use crate::notify::pubsub::ChannelNamespace;
use crate::observability::metrics::{Counter, Maximum};
use crate::observability::process;
use crate::observability::rates::Rate;
use crate::persistence::aof_files::AofState;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::replication::ReplicationState;
use crate::state::Server;
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};

use super::lines::InfoLines;
use super::replication;

pub(super) fn persistence_lines(server: &Server, lines: &mut InfoLines) {
    let state = server.replication.state_bits();
    let is_loading =
        state.contains(ReplicationState::LOADING) || server.persistence.dumps.is_loading.load(Ordering::Relaxed);
    lines.push_field("loading", u8::from(is_loading));
    lines.push_field(
        "async_loading",
        u8::from(state.contains(ReplicationState::LOADING_IN_STAGING)),
    );
    snapshot_lines(server, lines);
    append_only_lines(server, lines);
    if is_loading {
        replication::loading_lines(server, lines);
    }
    append_only_size_lines(server, lines);
}

/// Adds the fields of RDB files and of the running snapshot.
fn snapshot_lines(server: &Server, lines: &mut InfoLines) {
    let dumps = &server.persistence.dumps;
    // A snapshot's before-images take the place of Valkey's copy-on-write memory.
    let kept_bytes = server.keyspace.before_images.kept_bytes();
    lines.push_field("current_cow_peak", kept_bytes);
    lines.push_field("current_cow_size", kept_bytes);
    lines.push_field("current_cow_size_age", 0);
    let running = &server.persistence.snapshot;
    let keys_done = running.keys_done.load(Ordering::Relaxed);
    let keys_total = running.keys_total.load(Ordering::Relaxed);
    let fork = weft_modules::module::fork::figures();
    let percent = match fork.is_running {
        true => fork.percent,
        false => 100.0 * keys_done as f64 / keys_total.max(1) as f64,
    };
    lines.push_field("current_fork_perc", format!("{percent:.2}"));
    lines.push_field("current_save_keys_processed", keys_done);
    lines.push_field("current_save_keys_total", keys_total);
    let changes = dumps.unsaved_changes(server.stats.metrics.sum(Counter::Dirty));
    lines.push_field("rdb_changes_since_last_save", changes);
    let dumping = matches!(
        running.purpose(),
        Some(SnapshotPurpose::RdbFile | SnapshotPurpose::Replicas)
    );
    lines.push_field("rdb_bgsave_in_progress", u8::from(dumping));
    lines.push_field("rdb_last_save_time", dumps.last_save_s.load(Ordering::Relaxed));
    let failed = dumps.has_last_save_failed.load(Ordering::Relaxed);
    lines.push_field("rdb_last_bgsave_status", if failed { "err" } else { "ok" });
    lines.push_field(
        "rdb_last_bgsave_time_sec",
        dumps.last_duration_s.load(Ordering::Relaxed),
    );
    let since_s = running
        .started_s(SnapshotPurpose::RdbFile)
        .or(running.started_s(SnapshotPurpose::Replicas));
    let current_s = since_s.map_or(-1, |since_s| (unix_ms() / 1000) as i64 - since_s as i64);
    lines.push_field("rdb_current_bgsave_time_sec", current_s);
    lines.push_field("rdb_saves", dumps.saves.load(Ordering::Relaxed));
    lines.push_field(
        "rdb_last_cow_size",
        dumps.last_before_image_bytes.load(Ordering::Relaxed),
    );
    let (expired, loaded) = (&dumps.keys_expired, &dumps.keys_loaded);
    lines.push_field("rdb_last_load_keys_expired", expired.load(Ordering::Relaxed));
    lines.push_field("rdb_last_load_keys_loaded", loaded.load(Ordering::Relaxed));
}

/// Adds the fields of the append-only file that are there whether it is on or off.
fn append_only_lines(server: &Server, lines: &mut InfoLines) {
    let aof = &server.persistence.aof;
    let number = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let word = |failed: &AtomicBool| if failed.load(Ordering::Relaxed) { "err" } else { "ok" };
    lines.push_field("aof_enabled", u8::from(aof.state() != AofState::Off));
    lines.push_field("aof_rewrite_in_progress", u8::from(number(&aof.rewriting_since_s) > 0));
    lines.push_field(
        "aof_rewrite_scheduled",
        u8::from(aof.is_rewrite_scheduled.load(Ordering::Relaxed)),
    );
    lines.push_field(
        "aof_last_rewrite_time_sec",
        aof.last_rewrite_s.load(Ordering::Relaxed) - 1,
    );
    let rewriting_s = match number(&aof.rewriting_since_s) {
        0 => -1,
        since_s => (unix_ms() / 1000) as i64 - since_s as i64,
    };
    lines.push_field("aof_current_rewrite_time_sec", rewriting_s);
    lines.push_field("aof_last_bgrewrite_status", word(&aof.last_rewrite_failed));
    lines.push_field("aof_rewrites", number(&aof.rewrites));
    lines.push_field("aof_rewrites_consecutive_failures", number(&aof.failures));
    lines.push_field("aof_last_write_status", word(&aof.is_failing));
    lines.push_field("aof_last_cow_size", 0);
    let fork = weft_modules::module::fork::figures();
    lines.push_field("module_fork_in_progress", u8::from(fork.is_running));
    lines.push_field("module_fork_last_cow_size", fork.last_private_bytes);
    let exports = server.persistence.snapshot.purpose() == Some(SnapshotPurpose::SlotMigration);
    lines.push_field("slot_migration_fork_in_progress", u8::from(exports));
}

/// Adds the sizes of the append-only file, if it is on.
fn append_only_size_lines(server: &Server, lines: &mut InfoLines) {
    let aof = &server.persistence.aof;
    let number = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    if aof.state() == AofState::Off {
        return;
    }
    lines.push_field("aof_current_size", number(&aof.current_bytes));
    lines.push_field("aof_base_size", number(&aof.base_bytes));
    lines.push_field("aof_pending_rewrite", 0);
    lines.push_field("aof_buffer_length", number(&aof.buffered_bytes));
    lines.push_field("aof_pending_bio_fsync", number(&aof.pending_syncs));
    // The log thread waits for the disk, and no thread waits for the log thread.
    lines.push_field("aof_delayed_fsync", 0);
}

pub(super) fn stats_lines(server: &Server, lines: &mut InfoLines) {
    traffic_lines(server, lines);
    key_lines(server, lines);
    lines.push_field(
        "pubsub_channels",
        server.clients.pubsub.channel_count(ChannelNamespace::Channels),
    );
    lines.push_field("pubsub_patterns", server.clients.pubsub.pattern_count());
    lines.push_field(
        "pubsubshard_channels",
        server.clients.pubsub.channel_count(ChannelNamespace::ShardChannels),
    );
    // The server forks for modules only. Otherwise, the moment of a snapshot takes the place of a fork.
    lines.push_field(
        "latest_fork_usec",
        server.persistence.snapshot.pause_us.load(Ordering::Relaxed),
    );
    lines.push_field(
        "total_forks",
        server.persistence.snapshot.snapshots_started.load(Ordering::Relaxed),
    );
    lines.push_field(
        "migrate_cached_sockets",
        crate::commands::generic::migrate::cached_connections(),
    );
    lines.push_field("slave_expires_tracked_keys", server.keyspace.local_expiry.len());
    defragmentation_lines(server, lines);
    lines.push_field("tracking_total_keys", server.clients.tracking.key_count());
    lines.push_field("tracking_total_items", server.clients.tracking.pair_count());
    lines.push_field("tracking_total_prefixes", server.clients.tracking.prefix_count());
    let unexpected = &server.replication.unexpected_errors;
    lines.push_field("unexpected_error_replies", unexpected.load(Ordering::Relaxed));
    loop_lines(server, lines);
    let denied = |counter| server.stats.metrics.sum(counter);
    lines.push_field("acl_access_denied_auth", denied(Counter::DeniedAuth));
    lines.push_field("acl_access_denied_cmd", denied(Counter::DeniedCommand));
    lines.push_field("acl_access_denied_key", denied(Counter::DeniedKey));
    lines.push_field("acl_access_denied_channel", denied(Counter::DeniedChannel));
    lines.push_field("acl_access_denied_tls_cert", denied(Counter::DeniedCertificate));
    lines.push_field("acl_access_denied_db", denied(Counter::DeniedDatabase));
}

fn defragmentation_lines(server: &Server, lines: &mut InfoLines) {
    let figures = &server.stats.defragmentation;
    for (name, counter) in [
        ("active_defrag_hits", &figures.moved),
        ("active_defrag_misses", &figures.kept),
        ("active_defrag_key_hits", &figures.moved_keys),
        ("active_defrag_key_misses", &figures.kept_keys),
    ] {
        lines.push_field(name, counter.load(Ordering::Relaxed));
    }
    lines.push_field("total_active_defrag_time", figures.total().as_millis());
    lines.push_field("current_active_defrag_time", figures.current().as_millis());
}

fn traffic_lines(server: &Server, lines: &mut InfoLines) {
    let metrics = &server.stats.metrics;
    let rates = &server.stats.history.rates;
    let kilobytes = |rate| format!("{:.2}", rates.per_second(rate) / 1024.0);
    lines.push_field("total_connections_received", metrics.sum(Counter::ConnectionsReceived));
    lines.push_field("total_commands_processed", metrics.commands_processed());
    lines.push_field(
        "instantaneous_ops_per_sec",
        rates.per_second(Rate::Commands).round() as u64,
    );
    let replication = &server.replication;
    let (replication_input, replication_output) = (
        replication.input_bytes.load(Ordering::Relaxed),
        replication.replicas.output_bytes.load(Ordering::Relaxed),
    );
    let (imported, exported) = (
        metrics.sum(Counter::SlotImportBytes),
        metrics.sum(Counter::SlotExportBytes),
    );
    let input_bytes = metrics.sum(Counter::NetInputBytes) + replication_input + imported;
    let output_bytes = metrics.sum(Counter::NetOutputBytes) + replication_output + exported;
    lines.push_field("total_net_input_bytes", input_bytes);
    lines.push_field("total_net_output_bytes", output_bytes);
    lines.push_field("total_net_repl_input_bytes", replication_input);
    lines.push_field("total_net_repl_output_bytes", replication_output);
    lines.push_field("total_net_cluster_slot_import_bytes", imported);
    lines.push_field("total_net_cluster_slot_export_bytes", exported);
    lines.push_field("instantaneous_input_kbps", kilobytes(Rate::Input));
    lines.push_field("instantaneous_output_kbps", kilobytes(Rate::Output));
    lines.push_field("instantaneous_input_repl_kbps", "0.00");
    lines.push_field("instantaneous_output_repl_kbps", "0.00");
    lines.push_field("rejected_connections", metrics.sum(Counter::ConnectionsRejected));
    let replicas = &server.replication.replicas;
    lines.push_field("sync_full", replicas.full_syncs.load(Ordering::Relaxed));
    lines.push_field("sync_partial_ok", replicas.partial_syncs.load(Ordering::Relaxed));
    lines.push_field(
        "sync_partial_err",
        replicas.partial_syncs_refused.load(Ordering::Relaxed),
    );
}

fn key_lines(server: &Server, lines: &mut InfoLines) {
    let metrics = &server.stats.metrics;
    lines.push_field("expired_keys", metrics.sum(Counter::ExpiredKeys));
    lines.push_field("expired_fields", metrics.sum(Counter::ExpiredFields));
    // Due keys are found by an index, so none is missed and there is no share of stale keys to estimate.
    lines.push_field("expired_stale_perc", "0.00");
    lines.push_field("expired_keys_with_volatile_items_stale_perc", "0.00");
    lines.push_field("expired_time_cap_reached_count", 0);
    lines.push_field(
        "expire_cycle_cpu_milliseconds",
        metrics.sum(Counter::ExpiryNs) / 1_000_000,
    );
    lines.push_field("evicted_keys", metrics.sum(Counter::EvictedKeys));
    lines.push_field("evicted_clients", metrics.sum(Counter::EvictedClients));
    lines.push_field("evicted_scripts", server.scripting.cache.evicted());
    let (total_us, current_us) = server.memory.exceeded_us();
    lines.push_field("total_eviction_exceeded_time", total_us / 1000);
    lines.push_field("current_eviction_exceeded_time", current_us / 1000);
    lines.push_field("keyspace_hits", metrics.sum(Counter::KeyspaceHits));
    lines.push_field("keyspace_misses", metrics.sum(Counter::KeyspaceMisses));
}

fn loop_lines(server: &Server, lines: &mut InfoLines) {
    let metrics = &server.stats.metrics;
    let rates = &server.stats.history.rates;
    let (reads, writes) = (metrics.sum(Counter::Reads), metrics.sum(Counter::Writes));
    lines.push_field("total_error_replies", metrics.sum(Counter::ErrorReplies));
    lines.push_field("dump_payload_sanitizations", 0);
    lines.push_field("total_reads_processed", reads);
    lines.push_field("total_writes_processed", writes);
    // Every worker is an I/O thread, and there are no others.
    lines.push_field("io_threaded_reads_processed", reads);
    lines.push_field("io_threaded_writes_processed", writes);
    lines.push_zero_fields(&[
        "io_threaded_freed_objects",
        "io_threaded_accept_processed",
        "io_threaded_poll_processed",
    ]);
    for (name, counter) in [
        ("io_threaded_total_prefetch_batches", Counter::PrefetchBatches),
        ("io_threaded_total_prefetch_entries", Counter::PrefetchEntries),
        (
            "client_query_buffer_limit_disconnections",
            Counter::QueryBufferDisconnections,
        ),
        (
            "client_output_buffer_limit_disconnections",
            Counter::OutputBufferDisconnections,
        ),
    ] {
        lines.push_field(name, metrics.sum(counter));
    }
    lines.push_zero_fields(&["reply_buffer_shrinks", "reply_buffer_expands"]);
    lines.push_field("eventloop_cycles", metrics.sum(Counter::Turns));
    lines.push_field("eventloop_duration_sum", metrics.sum(Counter::BusyNs) / 1000);
    lines.push_field("eventloop_duration_cmd_sum", metrics.command_nanoseconds() / 1000);
    let turns = rates.per_second(Rate::Turns);
    let busy_us = rates.per_second(Rate::BusyNs) / 1000.0;
    lines.push_field("instantaneous_eventloop_cycles_per_sec", turns.round() as u64);
    let per_turn_us = if turns > 0.0 { busy_us / turns } else { 0.0 };
    lines.push_field("instantaneous_eventloop_duration_usec", per_turn_us.round() as u64);
}

pub(super) fn cpu_lines(server: &Server, lines: &mut InfoLines) {
    let mut put = |name: &str, seconds: f64| lines.push_field(name, format!("{seconds:.6}"));
    let all = process::cpu();
    let children = process::cpu_of_children();
    let main = process::cpu_of_main_thread().unwrap_or_default();
    put("used_cpu_sys", all.system_s);
    put("used_cpu_user", all.user_s);
    put("used_cpu_sys_children", children.system_s);
    put("used_cpu_user_children", children.user_s);
    put("used_cpu_sys_main_thread", main.system_s);
    put("used_cpu_user_main_thread", main.user_s);
    // Every worker counts as an I/O thread, and the first one as the main thread.
    for index in 0..server.usable_workers() {
        let busy_ns = server
            .stats
            .metrics
            .thread_sum(ThreadIndex::new(index), Counter::BusyNs);
        let name = match index {
            0 => "used_active_time_main_thread".to_owned(),
            _ => format!("used_active_time_io_thread_{index}"),
        };
        put(&name, busy_ns as f64 / 1e9);
    }
}

/// Returns a name as a part of the name of a field: without what ends such a name or a line. Modules choose the names
/// of their commands, and scripts the codes of their errors.
fn field_text(name: &str) -> Cow<'_, str> {
    let breaks_line = |letter: char| matches!(letter, '#' | ':' | '\r' | '\n');
    match name.contains(breaks_line) {
        true => Cow::Owned(name.replace(breaks_line, "_")),
        false => Cow::Borrowed(name),
    }
}

pub(super) fn command_lines(server: &Server, lines: &mut InfoLines) {
    for command in registry().commands() {
        let figures = server.stats.metrics.command(command.id as usize);
        if figures.calls + figures.rejected + figures.failed == 0 {
            continue;
        }
        let us = figures.nanoseconds / 1000;
        let us_per_call = match figures.calls {
            0 => 0.0,
            calls => us as f64 / calls as f64,
        };
        lines.push_field(
            &format!("cmdstat_{}", field_text(command.full_name)),
            format_args!(
                "calls={},usec={us},usec_per_call={us_per_call:.2},rejected_calls={},failed_calls={}",
                figures.calls, figures.rejected, figures.failed
            ),
        );
    }
}

pub(super) fn error_lines(server: &Server, lines: &mut InfoLines) {
    for (code, count) in server.stats.errors.all() {
        let name = format!("errorstat_{}", field_text(&String::from_utf8_lossy(&code)));
        lines.push_field(&name, format_args!("count={count}"));
    }
}

pub(super) fn latency_lines(server: &Server, lines: &mut InfoLines) {
    let percentiles = server.config.percentiles();
    for command in registry().commands() {
        let Some(histogram) = server.stats.metrics.histogram(command.id as usize) else {
            continue;
        };
        let values: Vec<String> = percentiles
            .iter()
            .map(|percentile| {
                let us = histogram.percentile_ns(*percentile) as f64 / 1000.0;
                format!("p{percentile}={us:.3}")
            })
            .collect();
        lines.push_field(
            &format!("latency_percentiles_usec_{}", field_text(command.full_name)),
            values.join(","),
        );
    }
}

pub(super) fn weft_lines(server: &Server, lines: &mut InfoLines) {
    let metrics = &server.stats.metrics;
    lines.push_field("weft_workers", server.workers.len());
    lines.push_field(
        "weft_workers_active",
        server.lifecycle.active_workers.load(Ordering::Relaxed),
    );
    let clients = server.workers.iter();
    let clients: Vec<String> = clients
        .map(|worker| worker.connections.load(Ordering::Relaxed).to_string())
        .collect();
    lines.push_field("weft_worker_clients", clients.join(","));
    lines.push_field("weft_tunings", server.lifecycle.tunings.load(Ordering::Relaxed));
    lines.push_field("weft_moved_connections", metrics.sum(Counter::ConnectionsMoved));
    lines.push_field("weft_apply_thread_commands", metrics.sum(Counter::ApplyThreadCommands));
    lines.push_field(
        "weft_scripts_written_in_parallel",
        metrics.sum(Counter::ScriptsWrittenInParallel),
    );
    lines.push_field("weft_scripts_undone", metrics.sum(Counter::ScriptsUndone));
    lines.push_field("weft_batches", metrics.sum(Counter::Batches));
    lines.push_field("weft_prefetch_batches", metrics.sum(Counter::PrefetchBatches));
    lines.push_field("weft_prefetch_entries", metrics.sum(Counter::PrefetchEntries));
    lines.push_field("weft_deferrals", metrics.deferrals());
    lines.push_field("weft_exclusive_commands", metrics.sum(Counter::ExclusiveCommands));
    lines.push_field("weft_background_commands", metrics.sum(Counter::BackgroundCommands));
    lines.push_field("weft_unfinished_jobs", server.background.unfinished_jobs());
    for (index, worker) in server.workers.iter().enumerate() {
        // Workers joined the keyspace first, so a worker's row is its index.
        lines.push_field(
            &format!("weft_worker{index}"),
            format_args!(
                "connections={},requests={},busy_ms={},unread_messages={}",
                worker.connections.load(Ordering::Relaxed),
                worker.executed_commands.load(Ordering::Relaxed),
                metrics.thread_sum(ThreadIndex::new(index), Counter::BusyNs) / 1_000_000,
                worker.mailbox.len()
            ),
        );
    }
}

pub(super) fn debug_lines(server: &Server, lines: &mut InfoLines) {
    let metrics = &server.stats.metrics;
    // Workers do not write the append-only file.
    lines.push_field("eventloop_duration_aof_sum", 0);
    lines.push_field("eventloop_duration_cron_sum", metrics.sum(Counter::CronNs) / 1000);
    lines.push_field("eventloop_duration_max", metrics.highest(Maximum::LongestTurnNs) / 1000);
    lines.push_field("eventloop_cmd_per_cycle_max", metrics.highest(Maximum::FullestBatch));
    // The worker that reads a request executes it: no request waits for another thread.
    lines.push_zero_fields(&["io_threaded_reads_pending", "io_threaded_writes_pending"]);
}
