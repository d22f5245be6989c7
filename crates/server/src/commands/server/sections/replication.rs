//! The replication section of INFO, and the fields about loading.

use weft_base::clock::unix_ms;

use super::lines::InfoLines;
use crate::replication::backlog::BacklogRange;
use crate::replication::{Endpoint, LinkState, ReplicaSyncState, RoleState};
use crate::state::Server;
use weft_config::id;
use weft_os::atomic::Ordering;

/// Writes the whole section.
pub(super) fn replication_lines(server: &Server, lines: &mut InfoLines) {
    let repl = &server.replication;
    let state = repl.state();
    lines.push_field("role", if state.primary.is_some() { "slave" } else { "master" });
    if let Some(primary) = &state.primary {
        link_lines(server, &state, primary, lines);
    }
    replica_lines(server, lines);
    lines.push_field("replicas_waiting_psync", repl.replicas.awaited_dumps().len());
    lines.push_field("master_failover_state", repl.failover().state.as_str());
    lines.push_field("master_replid", &state.history.id);
    lines.push_field("master_replid2", &state.history.second_id);
    lines.push_field("master_repl_offset", repl.offset());
    lines.push_field("second_repl_offset", state.history.second_offset());
    let extent = repl.replicas.backlog().range();
    lines.push_field("repl_backlog_active", u8::from(extent.is_some()));
    lines.push_field("repl_backlog_size", server.config.integer(id::REPL_BACKLOG_SIZE));
    lines.push_field(
        "repl_backlog_first_byte_offset",
        extent.map_or(0, |extent| extent.start.next_byte()),
    );
    lines.push_field("repl_backlog_histlen", extent.map_or(0, BacklogRange::bytes));
}

/// Writes the fields about the replicas of this server.
fn replica_lines(server: &Server, lines: &mut InfoLines) {
    let replicas = &server.replication.replicas;
    let now_s = unix_ms() / 1000;
    let known = replicas.connected();
    lines.push_field("connected_slaves", known.len());
    let most_lag_s = server.config.unsigned(id::MIN_REPLICAS_MAX_LAG);
    if server.config.integer(id::MIN_REPLICAS_TO_WRITE) > 0 && most_lag_s > 0 {
        lines.push_field("min_slaves_good_slaves", replicas.up_to_date_count(now_s, most_lag_s));
    }
    for (index, replica) in known.iter().enumerate() {
        let lag_s = match replica.progress {
            ReplicaSyncState::Online => now_s.saturating_sub(replica.last_heard_s),
            _ => 0,
        };
        lines.push_field(
            &format!("slave{index}"),
            format_args!(
                "ip={},port={},state={},offset={},lag={lag_s},type={}",
                replica.host,
                replica.port,
                replica.progress.as_str(),
                replica.acknowledged_offset,
                replica.channel_name()
            ),
        );
    }
}

/// Writes the fields about a replica's link to its primary.
fn link_lines(server: &Server, state: &RoleState, primary: &Endpoint, lines: &mut InfoLines) {
    let repl = &server.replication;
    let now_s = unix_ms() / 1000;
    let is_up = state.phase == LinkState::Connected;
    let silent_s = is_up.then(|| now_s.saturating_sub(repl.last_heard_s.load(Ordering::Relaxed)) as i64);
    let (received, applied) = match is_up || state.resumable {
        true => (repl.received_offset().get(), repl.offset().get()),
        false => (1, 1),
    };
    lines.push_field("master_host", &primary.host);
    lines.push_field("master_port", primary.port);
    lines.push_field("master_link_status", if is_up { "up" } else { "down" });
    lines.push_field("master_last_io_seconds_ago", silent_s.unwrap_or(-1));
    lines.push_field("master_sync_in_progress", u8::from(state.phase == LinkState::Transfer));
    lines.push_field("slave_read_repl_offset", received);
    lines.push_field("slave_repl_offset", applied);
    lines.push_field(
        "replicas_repl_buffer_size",
        repl.buffered_stream_bytes.load(Ordering::Relaxed),
    );
    lines.push_field(
        "replicas_repl_buffer_peak",
        repl.buffered_stream_peak_bytes.load(Ordering::Relaxed),
    );
    if state.phase == LinkState::Transfer {
        let transfer = &state.transfer;
        let (total, read) = (transfer.total_bytes, transfer.read_bytes as i64);
        let percent = if total == 0 {
            0.0
        } else {
            read as f64 / total as f64 * 100.0
        };
        lines.push_field("master_sync_total_bytes", total);
        lines.push_field("master_sync_read_bytes", read);
        lines.push_field("master_sync_left_bytes", total - read);
        lines.push_field("master_sync_perc", format!("{percent:.2}"));
        lines.push_field(
            "master_sync_last_io_seconds_ago",
            now_s.saturating_sub(transfer.last_io_s),
        );
    }
    if !is_up {
        let down_s = state
            .down_since_s
            .map_or(-1, |since_s| now_s.saturating_sub(since_s) as i64);
        lines.push_field("master_link_down_since_seconds", down_s);
    }
    lines.push_field("slave_priority", server.config.integer(id::REPLICA_PRIORITY));
    lines.push_field(
        "slave_read_only",
        u8::from(server.config.boolean(id::REPLICA_READ_ONLY)),
    );
    lines.push_field(
        "replica_announced",
        u8::from(server.config.boolean(id::REPLICA_ANNOUNCED)),
    );
}

/// Writes the fields about the progress of a load. If the size of the dump is unknown, it is assumed to be the size of
/// the memory that its writer used.
pub(super) fn loading_lines(server: &Server, lines: &mut InfoLines) {
    let loading = &server.replication.loading;
    let started_s = loading.started_s.load(Ordering::Relaxed);
    let loaded = loading.loaded_bytes.load(Ordering::Relaxed);
    let total = loading.total_bytes.load(Ordering::Relaxed);
    let used_memory = loading.used_memory_bytes.load(Ordering::Relaxed);
    let of = |size: u64| loaded as f64 / size as f64 * 100.0;
    let (percent, left) = match (total, used_memory) {
        (0, 0) => (0.0, 1),
        (0, used) => (of(used).min(99.99), used.saturating_sub(loaded).max(1)),
        (total, _) => (of(total), total.saturating_sub(loaded)),
    };
    let left_s = match (unix_ms() / 1000).saturating_sub(started_s) {
        0 => 1,
        elapsed_s => elapsed_s * left / (loaded + 1),
    };
    lines.push_field("loading_start_time", started_s);
    lines.push_field("loading_total_bytes", total);
    lines.push_field("loading_rdb_used_mem", used_memory);
    lines.push_field("loading_loaded_bytes", loaded);
    lines.push_field("loading_loaded_perc", format!("{percent:.2}"));
    lines.push_field("loading_eta_seconds", left_s);
}
