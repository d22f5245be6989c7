//! The parameters of replication.

use super::ChangeAction::{CountReplicas, ResizeBacklog, SetLocalExpiry};
use super::{
    Choices, I32_MAX, KIB, MIB, SpecialKind, boolean, choice, integer, memory, optional_bytes, optional_text, special,
};

const DISKLESS_LOAD: Choices = &[
    ("disabled", 0),
    ("on-empty-db", 1),
    ("swapdb", 2),
    ("flush-before-load", 3),
];

const PROPAGATION_ERROR: Choices = &[("ignore", 0), ("panic", 1), ("panic-on-replicas", 2)];

super::table! {
    REPLICAOF "replicaof" = special(SpecialKind::Primary).alias("slaveof").immutable().multi_arg(),
        Active, "Host and port of the primary this server replicates.";
    PRIMARYUSER "primaryuser" = optional_text().alias("masteruser").sensitive(),
        Active, "User name for the primary.";
    PRIMARYAUTH "primaryauth" = optional_bytes().alias("masterauth").sensitive(),
        Active, "Password for the primary.";
    REPLICA_SERVE_STALE_DATA "replica-serve-stale-data" = boolean(true).alias("slave-serve-stale-data"),
        Active, "Answer from old data while the link to the primary is down.";
    REPLICA_READ_ONLY "replica-read-only" = boolean(true).alias("slave-read-only").debug().on_change(&[SetLocalExpiry]),
        Active, "Refuse writes of clients on a replica.";
    REPLICA_LAZY_FLUSH "replica-lazy-flush" = boolean(true).alias("slave-lazy-flush"),
        Active, "Drop the old data of a replica in the background before a full sync.";
    REPLICA_IGNORE_MAXMEMORY "replica-ignore-maxmemory" = boolean(true).alias("slave-ignore-maxmemory"),
        Active, "Leave eviction on a replica to its primary.";
    REPLICA_IGNORE_DISK_WRITE_ERRORS "replica-ignore-disk-write-errors" = boolean(false),
        Active, "Continue as a replica when its disk fails.";
    REPLICA_PRIORITY "replica-priority" = integer(100, 0, I32_MAX).alias("slave-priority"),
        Active, "Rank for promotion, lower first; 0 is never promoted.";
    REPLICA_ANNOUNCED "replica-announced" = boolean(true),
        Active, "Let Sentinel report this replica.";
    REPLICA_ANNOUNCE_IP "replica-announce-ip" = optional_text().alias("slave-announce-ip"),
        Active, "Address that a replica announces to its primary.";
    REPLICA_ANNOUNCE_PORT "replica-announce-port" = integer(0, 0, 65535).alias("slave-announce-port"),
        Active, "Port that a replica announces to its primary; 0 announces the real one.";
    REPL_DISKLESS_SYNC "repl-diskless-sync" = boolean(true).debug(),
        Active, "Send a full sync straight to the sockets.";
    REPL_DISKLESS_SYNC_DELAY "repl-diskless-sync-delay" = integer(5, 0, I32_MAX),
        Active, "Seconds a full sync waits for more replicas to join.";
    REPL_DISKLESS_SYNC_MAX_REPLICAS "repl-diskless-sync-max-replicas" = integer(0, 0, I32_MAX),
        Active, "Number of waiting replicas that ends this delay early; 0 never ends it.";
    REPL_DISKLESS_LOAD "repl-diskless-load" = choice(DISKLESS_LOAD, "disabled").debug().deny_loading(),
        Active, "Load a full sync directly from the socket, and when to drop the old data.";
    DUAL_CHANNEL_REPLICATION_ENABLED "dual-channel-replication-enabled" = boolean(false).debug(),
        Active, "Use a second connection for the dump of a full sync.";
    REPL_DISABLE_TCP_NODELAY "repl-disable-tcp-nodelay" = boolean(false),
        Active, "Let the kernel combine small packets to replicas.";
    REPL_MPTCP "repl-mptcp" = boolean(false).immutable(),
        Active, "Connect to the primary with Multipath TCP.";
    REPL_PING_REPLICA_PERIOD "repl-ping-replica-period" = integer(10, 1, I32_MAX).alias("repl-ping-slave-period"),
        Active, "Seconds between the pings a primary sends.";
    REPLICA_APPLY_THREADS "replica-apply-threads" = integer(0, 0, 16).hidden().immutable(),
        Active, "Threads that apply a primary's stream; 0 means as many as I/O threads and CPUs, at most 4.";
    REPL_TIMEOUT "repl-timeout" = integer(60, 1, I32_MAX),
        Active, "Seconds of silence after which a replication link counts as broken.";
    REPL_BACKLOG_SIZE "repl-backlog-size" = memory(10 * MIB, 1, i64::MAX).clamped(16 * KIB, i64::MAX).on_change(&[ResizeBacklog]),
        Active, "Bytes of the stream kept for replicas that come back.";
    REPL_BACKLOG_TTL "repl-backlog-ttl" = integer(3600, 0, i64::MAX),
        Active, "Seconds after the last replica left until the backlog is freed; 0 keeps it.";
    MIN_REPLICAS_TO_WRITE "min-replicas-to-write" = integer(0, 0, I32_MAX).alias("min-slaves-to-write").on_change(&[CountReplicas]),
        Active, "Up-to-date replicas required for writes to be accepted; 0 requires none.";
    MIN_REPLICAS_MAX_LAG "min-replicas-max-lag" = integer(10, 0, I32_MAX).alias("min-slaves-max-lag").on_change(&[CountReplicas]),
        Active, "Seconds of lag up to which a replica counts as up to date.";
    PROPAGATION_ERROR_BEHAVIOR "propagation-error-behavior" = choice(PROPAGATION_ERROR, "ignore"),
        Active, "Reaction to an error while applying the replication stream.";
}
