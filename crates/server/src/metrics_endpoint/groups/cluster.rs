//! Metrics of a cluster node, and of slot migrations.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};
use crate::slot_migration::job::{JobKind, MigrationJob};
use crate::state::Server;
use weft_cluster::Cluster;
use weft_cluster::nodes_text::{HealthCounts, MESSAGE_NAMES};

metrics! {
    ENABLED = Metric::gauge("weft_cluster_enabled", "1 in cluster mode, otherwise 0. All other metrics of this section exist only in cluster mode.");
    UP = Metric::gauge("weft_cluster_up", "1 if the state of the cluster is ok, so that commands are accepted, otherwise 0.");
    SLOTS = Metric::gauge("weft_cluster_slots", "Slots that have an owner, by the state of the owner: ok, pfail or fail.")
        .labelled(&["state"]);
    NODES = Metric::gauge("weft_cluster_known_nodes", "Known nodes, including this one.");
    FAILING_NODES = Metric::gauge("weft_cluster_failing_nodes", "Nodes that do not reply to this node (pfail), and nodes that have failed (fail).")
        .labelled(&["state"]);
    SIZE = Metric::gauge("weft_cluster_size", "Primaries with slots.");
    EPOCH = Metric::gauge("weft_cluster_current_epoch", "Current epoch of the cluster.");
    MY_EPOCH = Metric::gauge("weft_cluster_my_epoch", "Configuration epoch of this node, or of its primary.");
    LINKS = Metric::gauge("weft_cluster_links", "Connections of the cluster bus.");
    MESSAGES = Metric::counter("weft_cluster_messages_total", "Messages of the cluster bus.").labelled(&["direction", "type"]);
    BUS_BYTES = Metric::counter("weft_cluster_bus_bytes_total", "Bytes of the cluster bus.").labelled(&["direction"]);
    MIGRATIONS = Metric::gauge("weft_slot_migrations_in_progress", "Slot migrations in progress: imports to this node and exports from it.")
        .labelled(&["direction"]);
    MIGRATION_UNSENT = Metric::gauge("weft_slot_migration_unsent_bytes", "Writes that exports have not sent yet.");
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    out.single(&ENABLED, server.cluster.is_some());
    let Some(cluster) = &server.cluster else {
        return;
    };
    write_state(out, server, cluster);
    let counts = {
        let jobs = server.slot_migrations.lock();
        let count = |kind| {
            let is_meant = |job: &&MigrationJob| job.kind == kind && job.state.is_in_progress();
            jobs.iter().filter(is_meant).count()
        };
        [("import", count(JobKind::Import)), ("export", count(JobKind::Export))]
    };
    let mut migrations = out.family(&MIGRATIONS);
    for (direction, count) in counts {
        migrations.add(&[direction], count);
    }
    out.single(&MIGRATION_UNSENT, server.slot_migrations.unsent_bytes());
}

fn write_state(out: &mut Exposition, server: &Server, cluster: &Cluster) {
    out.single(&UP, cluster.view().is_up);
    // Writing takes less than a tenth of a millisecond, also for a thousand nodes, whose slots are counted.
    let state = cluster.lock(&server.config);
    let health = HealthCounts::from_state(&state);
    let (nodes, size, links) = (state.nodes.len(), state.size, state.links.len());
    let (current_epoch, my_epoch) = (state.current_epoch, state.epoch_of(state.me()));
    let statistics = &state.statistics;
    let messages = [("sent", statistics.sent), ("received", statistics.received)];
    let bytes = [("sent", statistics.bytes_sent), ("received", statistics.bytes_received)];
    drop(state);
    let mut slots = out.family(&SLOTS);
    slots.add(&["ok"], health.slots_ok);
    slots.add(&["pfail"], health.slots_pfail);
    slots.add(&["fail"], health.slots_fail);
    let mut failing = out.family(&FAILING_NODES);
    failing.add(&["pfail"], health.nodes_pfail);
    failing.add(&["fail"], health.nodes_fail);
    out.single(&NODES, nodes);
    out.single(&SIZE, size);
    out.single(&EPOCH, current_epoch);
    out.single(&MY_EPOCH, my_epoch);
    out.single(&LINKS, links);
    let mut family = out.family(&MESSAGES);
    for (direction, counts) in messages {
        for (name, count) in MESSAGE_NAMES.iter().zip(counts) {
            family.add(&[direction, name], count);
        }
    }
    let mut family = out.family(&BUS_BYTES);
    for (direction, bytes) in bytes {
        family.add(&[direction], bytes);
    }
}
