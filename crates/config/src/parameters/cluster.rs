//! The parameters of the cluster.

use super::{
    Choices, I32_MAX, TextCheck, U64_MAX, boolean, choice, integer, memory, optional_text, signed_memory, text,
};

const SAVE_BEHAVIOR: Choices = &[("sync", 0), ("best-effort", 1)];

const ENDPOINT_TYPES: Choices = &[("ip", 0), ("hostname", 1), ("unknown-endpoint", 2)];

super::table! {
    CLUSTER_ENABLED "cluster-enabled" = boolean(false).immutable(),
        Active, "Run as a node of a cluster.";
    CLUSTER_CONFIG_FILE "cluster-config-file" = text("nodes.conf").checked(TextCheck::NotEmpty).immutable(),
        Active, "File in which a node keeps its view of the cluster.";
    CLUSTER_CONFIG_SAVE_BEHAVIOR "cluster-config-save-behavior" = choice(SAVE_BEHAVIOR, "sync"),
        Active, "Exit when that file cannot be saved (sync), or continue (best-effort).";
    CLUSTER_DATABASES "cluster-databases" = integer(1, 1, I32_MAX).immutable(),
        Active, "Number of databases in cluster mode.";
    CLUSTER_NODE_TIMEOUT "cluster-node-timeout" = integer(15_000, 0, i64::MAX),
        Active, "Milliseconds without an answer after which a node is considered failing.";
    CLUSTER_PING_INTERVAL "cluster-ping-interval" = integer(0, 0, i64::MAX).hidden(),
        Active, "Milliseconds between pings to a node; 0 derives them from the timeout.";
    CLUSTER_MESSAGE_GOSSIP_PERC "cluster-message-gossip-perc" = integer(10, 1, 100).hidden(),
        Active, "Percentage of the known nodes in the gossip of each message.";
    CLUSTER_PORT "cluster-port" = integer(0, 0, 65535).immutable(),
        Active, "Port of the cluster bus; 0 adds 10000 to the client port.";
    CLUSTER_REPLICA_VALIDITY_FACTOR "cluster-replica-validity-factor" = integer(10, 0, I32_MAX).alias("cluster-slave-validity-factor"),
        Active, "Node timeouts a replica may have been disconnected and still be promoted; 0 sets no limit.";
    CLUSTER_REPLICA_NO_FAILOVER "cluster-replica-no-failover" = boolean(false).alias("cluster-slave-no-failover"),
        Active, "Keep replicas from promoting themselves.";
    CLUSTER_MIGRATION_BARRIER "cluster-migration-barrier" = integer(1, 0, I32_MAX),
        Active, "Replicas a primary keeps before one may move to another primary.";
    CLUSTER_ALLOW_REPLICA_MIGRATION "cluster-allow-replica-migration" = boolean(true),
        Active, "Let replicas move to primaries without one.";
    CLUSTER_REQUIRE_FULL_COVERAGE "cluster-require-full-coverage" = boolean(true),
        Active, "Refuse commands while some slot has no node.";
    CLUSTER_ALLOW_READS_WHEN_DOWN "cluster-allow-reads-when-down" = boolean(false),
        Active, "Serve reads while the cluster is down.";
    CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN "cluster-allow-pubsubshard-when-down" = boolean(true),
        Active, "Serve shard channels while the cluster is down.";
    CLUSTER_MANUAL_FAILOVER_TIMEOUT "cluster-manual-failover-timeout" = integer(5000, 1, I32_MAX),
        Active, "Milliseconds a manual failover may take.";
    CLUSTER_LINK_SENDBUF_LIMIT "cluster-link-sendbuf-limit" = memory(0, 0, U64_MAX).unsigned(),
        Active, "Bytes queued to one node after which the link is dropped; 0 sets no limit.";
    CLUSTER_BLACKLIST_TTL "cluster-blacklist-ttl" = integer(60, 0, U64_MAX).unsigned(),
        Active, "Seconds for which a forgotten node is not added again.";
    CLUSTER_SLOT_STATS_ENABLED "cluster-slot-stats-enabled" = boolean(false),
        Active, "Count keys, CPU time and traffic for each slot.";
    CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN "cluster-slot-migration-log-max-len" = integer(1000, 0, i64::MAX).unsigned(),
        Active, "Finished slot migrations that are remembered.";
    SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES "slot-migration-max-failover-repl-bytes" = signed_memory(0, -1, i64::MAX),
        Active, "Bytes that may be outstanding when a slot changes hands; -1 sets no limit.";
    CLUSTER_PREFERRED_ENDPOINT_TYPE "cluster-preferred-endpoint-type" = choice(ENDPOINT_TYPES, "ip"),
        Active, "Endpoint type in redirects: ip, hostname or unknown-endpoint.";
    CLUSTER_ANNOUNCE_IP "cluster-announce-ip" = optional_text().checked(TextCheck::AnnouncedAddress),
        Active, "Address announced to other nodes.";
    CLUSTER_ANNOUNCE_CLIENT_IPV4 "cluster-announce-client-ipv4" = optional_text().checked(TextCheck::Ipv4),
        Active, "IPv4 address announced to clients.";
    CLUSTER_ANNOUNCE_CLIENT_IPV6 "cluster-announce-client-ipv6" = optional_text().checked(TextCheck::Ipv6),
        Active, "IPv6 address announced to clients.";
    CLUSTER_ANNOUNCE_HOSTNAME "cluster-announce-hostname" = optional_text().checked(TextCheck::HostName),
        Active, "Hostname announced to other nodes and clients.";
    CLUSTER_ANNOUNCE_HUMAN_NODENAME "cluster-announce-human-nodename" = optional_text().checked(TextCheck::NodeName),
        Active, "Name of this node in logs.";
    CLUSTER_ANNOUNCE_PORT "cluster-announce-port" = integer(0, 0, 65535),
        Active, "Port announced to other nodes; 0 announces the real one.";
    CLUSTER_ANNOUNCE_TLS_PORT "cluster-announce-tls-port" = integer(0, 0, 65535),
        Active, "TLS port announced to other nodes; 0 announces the real one.";
    CLUSTER_ANNOUNCE_CLIENT_PORT "cluster-announce-client-port" = integer(0, 0, 65535),
        Active, "Port announced to clients; 0 announces the one for nodes.";
    CLUSTER_ANNOUNCE_CLIENT_TLS_PORT "cluster-announce-client-tls-port" = integer(0, 0, 65535),
        Active, "TLS port announced to clients; 0 announces the one for nodes.";
    CLUSTER_ANNOUNCE_BUS_PORT "cluster-announce-bus-port" = integer(0, 0, 65535),
        Active, "Bus port announced to other nodes; 0 announces the real one.";
}
