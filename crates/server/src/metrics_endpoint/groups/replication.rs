//! Metrics of replication, in both roles.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric, SampleValue};
use crate::replication::backlog::BacklogRange;
use crate::replication::{LinkState, ReplicaInfo, ReplicaSyncState};
use crate::state::Server;
use weft_base::clock::unix_ms;
use weft_config::id;
use weft_os::atomic::Ordering;

metrics! {
    ROLE = Metric::gauge("weft_replication_role", "1 for the role that the server has, 0 for the other one.").labelled(&["role"]);
    OFFSET = Metric::gauge("weft_replication_offset_bytes", "Replication offset of the data.");
    REPLICAS = Metric::gauge("weft_connected_replicas", "Connections of replicas.");
    REPLICA_ONLINE = Metric::gauge("weft_replica_online", "1 if the replica receives the replication stream, 0 while it is synchronized.")
        .labelled(&["replica", "id"]);
    REPLICA_OFFSET = Metric::gauge("weft_replica_acknowledged_offset_bytes", "Replication offset that the replica has acknowledged.")
        .labelled(&["replica", "id"]);
    REPLICA_LAG = Metric::gauge("weft_replica_lag_seconds", "Whole seconds since the replica's last message; only if it is online.")
        .labelled(&["replica", "id"]);
    BACKLOG_SIZE = Metric::gauge("weft_replication_backlog_size_bytes", "Configured size of the replication backlog.");
    BACKLOG_BYTES = Metric::gauge("weft_replication_backlog_bytes", "Bytes of the stream that the replication backlog holds; 0 if there is none.");
    FULL_SYNCS = Metric::counter("weft_full_syncs_total", "Full synchronizations of replicas.");
    PARTIAL_SYNCS = Metric::counter("weft_partial_syncs_total", "Requests of replicas to resume the stream, by result.")
        .labelled(&["result"]);
    LINK_UP = Metric::gauge("weft_replication_link_up", "1 if the link to the primary is up, otherwise 0; only on a replica.");
    LINK_SILENCE = Metric::gauge("weft_replication_link_last_io_seconds", "Whole seconds since the primary's last data; only on a replica whose link is up.");
    LINK_DOWN = Metric::gauge("weft_replication_link_down_seconds", "Whole seconds since the link to the primary was lost; only on a replica that has lost it.");
    SYNC = Metric::gauge("weft_replication_sync_in_progress", "1 while a dump of the primary is received, otherwise 0; only on a replica.");
    RECEIVED_OFFSET = Metric::gauge("weft_replication_received_offset_bytes", "Replication offset up to which the stream was received; only on a replica whose link is up.");
    STREAM_BUFFER = Metric::gauge("weft_replication_stream_buffer_bytes", "Bytes of the stream that wait until the dump is loaded.");
}

/// Returns a figure of a replica, if it has one.
type ReplicaFigure<'f> = dyn Fn(&ReplicaInfo) -> Option<SampleValue> + 'f;

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let replication = &server.replication;
    let is_replica = replication.state().primary.is_some();
    let mut role = out.family(&ROLE);
    role.add(&["primary"], !is_replica);
    role.add(&["replica"], is_replica);
    out.single(&OFFSET, replication.offset().get());
    write_replicas(out, server);
    out.single(&BACKLOG_SIZE, server.config.unsigned(id::REPL_BACKLOG_SIZE));
    let range = replication.replicas.backlog().range();
    out.single(&BACKLOG_BYTES, range.map_or(0, BacklogRange::bytes));
    let replicas = &replication.replicas;
    out.single(&FULL_SYNCS, replicas.full_syncs.load(Ordering::Relaxed));
    let mut partial = out.family(&PARTIAL_SYNCS);
    partial.add(&["accepted"], replicas.partial_syncs.load(Ordering::Relaxed));
    partial.add(&["refused"], replicas.partial_syncs_refused.load(Ordering::Relaxed));
    write_link(out, server);
    out.single(
        &STREAM_BUFFER,
        replication.buffered_stream_bytes.load(Ordering::Relaxed),
    );
}

fn write_replicas(out: &mut Exposition, server: &Server) {
    let now_s = unix_ms() / 1000;
    let replicas = server.replication.replicas.connected();
    out.single(&REPLICAS, replicas.len());
    // Several replicas may announce the same address, so the id of the connection distinguishes them.
    let labels = |replica: &ReplicaInfo| (format!("{}:{}", replica.host, replica.port), replica.id.to_string());
    let is_online = |replica: &ReplicaInfo| replica.progress == ReplicaSyncState::Online;
    let families: [(&Metric, &ReplicaFigure<'_>); 3] = [
        (&REPLICA_ONLINE, &|replica| Some(is_online(replica).into())),
        (&REPLICA_OFFSET, &|replica| {
            Some(replica.acknowledged_offset.get().into())
        }),
        (&REPLICA_LAG, &|replica| {
            is_online(replica).then(|| now_s.saturating_sub(replica.last_heard_s).into())
        }),
    ];
    for (metric, value) in families {
        let mut family = out.family(metric);
        for replica in &replicas {
            if let Some(value) = value(replica) {
                let (address, id) = labels(replica);
                family.add(&[&address, &id], value);
            }
        }
    }
}

fn write_link(out: &mut Exposition, server: &Server) {
    let replication = &server.replication;
    let (phase, down_since_s) = {
        let state = replication.state();
        if state.primary.is_none() {
            return;
        }
        (state.phase, state.down_since_s)
    };
    let now_s = unix_ms() / 1000;
    let is_up = phase == LinkState::Connected;
    out.single(&LINK_UP, is_up);
    out.single(&SYNC, phase == LinkState::Transfer);
    if is_up {
        let last_s = replication.last_heard_s.load(Ordering::Relaxed);
        out.single(&LINK_SILENCE, now_s.saturating_sub(last_s));
        out.single(&RECEIVED_OFFSET, replication.received_offset().get());
    } else if let Some(since_s) = down_since_s {
        out.single(&LINK_DOWN, now_s.saturating_sub(since_s));
    }
}
