//! Metrics of clients, subscriptions, tracking, and of the network.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};
use crate::notify::pubsub::ChannelNamespace;
use crate::observability::metrics::Counter;
use crate::state::{Server, WorkerLink};
use weft_config::id;
use weft_os::atomic::Ordering;

metrics! {
    CONNECTED = Metric::gauge("weft_connected_clients", "Connections of clients, without those of replicas.");
    MAX_CLIENTS = Metric::gauge("weft_max_clients", "Limit of connections (maxclients).");
    BLOCKED = Metric::gauge("weft_blocked_clients", "Clients that wait for keys, for replicas, for the disk or for a point in time. Clients that CLIENT PAUSE holds back do not count.");
    BLOCKING_KEYS = Metric::gauge("weft_blocking_keys", "Keys that clients wait for.");
    WATCHED_KEYS = Metric::gauge("weft_watched_keys", "Keys that clients watch for a transaction.");
    TRACKING = Metric::gauge("weft_tracking_clients", "Clients with CLIENT TRACKING.");
    TRACKED_KEYS = Metric::gauge("weft_tracked_keys", "Keys that tracking clients may have cached.");
    PUBSUB_CLIENTS = Metric::gauge("weft_pubsub_clients", "Clients with a subscription.");
    CHANNELS = Metric::gauge("weft_pubsub_channels", "Channels with subscribers.");
    PATTERNS = Metric::gauge("weft_pubsub_patterns", "Patterns with subscribers.");
    SHARD_CHANNELS = Metric::gauge("weft_pubsub_shard_channels", "Shard channels with subscribers.");
    RECEIVED_CONNECTIONS = Metric::counter("weft_connections_received_total", "Accepted connections, including those that were rejected.");
    REJECTED_CONNECTIONS = Metric::counter("weft_rejected_connections_total", "Connections that were rejected by maxclients or protected mode.");
    EVICTED_CLIENTS = Metric::counter("weft_evicted_clients_total", "Clients that were disconnected because of maxmemory-clients.");
    LIMIT_DISCONNECTIONS = Metric::counter("weft_client_limit_disconnections_total", "Clients that were disconnected because a buffer exceeded its limit.")
        .labelled(&["buffer"]);
    ACL_DENIALS = Metric::counter("weft_acl_denials_total", "Logins and commands that access control denied.")
        .labelled(&["reason"]);
    RECEIVED_BYTES = Metric::counter("weft_network_received_bytes_total", "Bytes received from clients, and from a primary.")
        .labelled(&["peer"]);
    SENT_BYTES = Metric::counter("weft_network_sent_bytes_total", "Bytes sent to clients, and to replicas.")
        .labelled(&["peer"]);
    READS = Metric::counter("weft_socket_reads_total", "Times that a worker received from a client.");
    WRITES = Metric::counter("weft_socket_writes_total", "Times that a worker sent to a client.");
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let metrics = &server.stats.metrics;
    let clients = &server.clients;
    let replicas = server.replication.replicas.infos().len();
    let connections = clients.connections.load(Ordering::Relaxed);
    out.single(&CONNECTED, connections.saturating_sub(replicas));
    out.single(&MAX_CLIENTS, server.config.unsigned(id::MAXCLIENTS));
    let waiting = |worker: &WorkerLink| worker.waiting_clients.load(Ordering::Relaxed);
    out.single(&BLOCKED, server.workers.iter().map(waiting).sum::<usize>());
    out.single(&BLOCKING_KEYS, clients.blocked.keys());
    out.single(&WATCHED_KEYS, clients.watched.watched_keys());
    out.single(&TRACKING, clients.tracking.client_count());
    out.single(&TRACKED_KEYS, clients.tracking.key_count());
    out.single(&PUBSUB_CLIENTS, clients.pubsub.clients.load(Ordering::Relaxed));
    out.single(&CHANNELS, clients.pubsub.channel_count(ChannelNamespace::Channels));
    out.single(&PATTERNS, clients.pubsub.pattern_count());
    out.single(
        &SHARD_CHANNELS,
        clients.pubsub.channel_count(ChannelNamespace::ShardChannels),
    );
    for (metric, counter) in [
        (&RECEIVED_CONNECTIONS, Counter::ConnectionsReceived),
        (&REJECTED_CONNECTIONS, Counter::ConnectionsRejected),
        (&EVICTED_CLIENTS, Counter::EvictedClients),
        (&READS, Counter::Reads),
        (&WRITES, Counter::Writes),
    ] {
        out.single(metric, metrics.sum(counter));
    }
    let mut limits = out.family(&LIMIT_DISCONNECTIONS);
    limits.add(&["query"], metrics.sum(Counter::QueryBufferDisconnections));
    limits.add(&["output"], metrics.sum(Counter::OutputBufferDisconnections));
    write_denials(out, server);
    write_traffic(out, server);
}

fn write_denials(out: &mut Exposition, server: &Server) {
    let mut denials = out.family(&ACL_DENIALS);
    for (reason, counter) in [
        ("auth", Counter::DeniedAuth),
        ("command", Counter::DeniedCommand),
        ("key", Counter::DeniedKey),
        ("channel", Counter::DeniedChannel),
        ("tls_cert", Counter::DeniedCertificate),
        ("database", Counter::DeniedDatabase),
    ] {
        denials.add(&[reason], server.stats.metrics.sum(counter));
    }
}

fn write_traffic(out: &mut Exposition, server: &Server) {
    let metrics = &server.stats.metrics;
    let replication = &server.replication;
    let mut received = out.family(&RECEIVED_BYTES);
    received.add(&["client"], metrics.sum(Counter::NetInputBytes));
    received.add(&["primary"], replication.input_bytes.load(Ordering::Relaxed));
    let mut sent = out.family(&SENT_BYTES);
    sent.add(&["client"], metrics.sum(Counter::NetOutputBytes));
    sent.add(&["replica"], replication.replicas.output_bytes.load(Ordering::Relaxed));
}
