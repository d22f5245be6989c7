//! The figures of one moment, as plain data. `--json` prints a [`TopReport`]; docs/book/src/weft-top.md lists the
//! fields.
//!
//! All texts are printable: [`crate::escape::printable`] made them so. A figure that the server does not offer, or that
//! needs an earlier sample which does not exist, is `None` (`null`).

use std::collections::BTreeMap;

use serde::Serialize;

/// All figures of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TopReport {
    /// The time of this machine, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The seconds since the sample with which the rates are computed; `None` if there is none.
    pub interval_s: Option<f64>,
    /// The server.
    pub server: ServerIdentity,
    /// The figures of the whole server.
    pub overview: OverviewFigures,
    /// The threads that execute commands or perform I/O.
    pub workers: Option<WorkersFigures>,
    /// The commands that were called, by CPU time.
    pub commands: Option<Vec<CommandFigures>>,
    /// The connected clients.
    pub clients: Option<ClientsFigures>,
    /// The hottest slots.
    pub slots: Option<SlotsFigures>,
    /// The biggest keys found.
    pub keys: Option<KeysFigures>,
    /// The most used keys.
    pub hot_keys: Option<HotKeysFigures>,
    /// The replication.
    pub replication: Option<ReplicationFigures>,
    /// The memory.
    pub memory: Option<MemoryReport>,
    /// For each part that is `None` although it was asked for: the reason.
    pub unavailable: BTreeMap<&'static str, String>,
}

/// The identity of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ServerIdentity {
    /// `weft`, `valkey` or `redis`.
    pub name: String,
    /// The version of that program.
    pub version: String,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: String,
    /// The address that was connected to.
    pub address: String,
    /// The process id.
    pub process_id: Option<u64>,
    /// The seconds since the server started.
    pub uptime_s: Option<u64>,
    /// The random id of this run of the server.
    pub run_id: String,
}

/// The figures of the whole server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OverviewFigures {
    /// Commands per second.
    pub operations_per_s: Option<f64>,
    /// The median of the latency of all commands since the last sample, in microseconds.
    pub latency_p50_us: Option<f64>,
    /// The 99th percentile of that latency.
    pub latency_p99_us: Option<f64>,
    /// The 99.9th percentile of that latency.
    pub latency_p999_us: Option<f64>,
    /// The CPU time of the process per second: 1.0 is one core.
    pub cpu_cores: Option<f64>,
    /// The CPU time of the process per command, in microseconds.
    pub cpu_us_per_command: Option<f64>,
    /// Bytes received per second.
    pub network_in_bytes_per_s: Option<f64>,
    /// Bytes sent per second.
    pub network_out_bytes_per_s: Option<f64>,
    /// Connected clients.
    pub connected_clients: Option<u64>,
    /// Clients that wait in a blocking command.
    pub blocked_clients: Option<u64>,
    /// The limit of clients.
    pub max_clients: Option<u64>,
    /// Accepted connections per second.
    pub connections_per_s: Option<f64>,
    /// Refused connections since the start.
    pub rejected_connections: Option<u64>,
    /// The share of lookups since the last sample that found their key.
    pub hit_ratio: Option<f64>,
    /// Evicted keys per second.
    pub evicted_keys_per_s: Option<f64>,
    /// Expired keys per second.
    pub expired_keys_per_s: Option<f64>,
    /// Error replies per second.
    pub error_replies_per_s: Option<f64>,
    /// Used memory in bytes.
    pub used_memory_bytes: Option<u64>,
    /// Resident memory of the process in bytes.
    pub resident_memory_bytes: Option<u64>,
    /// The limit of used memory in bytes; 0 for none.
    pub max_memory_bytes: Option<u64>,
    /// The eviction policy.
    pub max_memory_policy: Option<String>,
    /// Keys in all databases.
    pub keys: Option<u64>,
    /// Keys with a time to live.
    pub keys_with_expiry: Option<u64>,
    /// The persistence.
    pub persistence: PersistenceFigures,
    /// `master` or `slave`, as INFO says.
    pub role: Option<String>,
    /// Connected replicas.
    pub connected_replicas: Option<u64>,
    /// The state of the connection to the primary, `up` or `down`; `None` on a primary.
    pub primary_link: Option<String>,
}

/// The state of persistence.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PersistenceFigures {
    /// The server loads its data.
    pub loading: Option<bool>,
    /// An RDB file is being written.
    pub rdb_save_in_progress: Option<bool>,
    /// Changes since the last RDB file.
    pub rdb_changes_since_save: Option<u64>,
    /// The time of the last RDB file, in seconds since the Unix epoch.
    pub rdb_last_save_time_s: Option<u64>,
    /// The result of the last background save.
    pub rdb_last_status: Option<String>,
    /// The append-only file is used.
    pub aof_enabled: Option<bool>,
    /// The append-only file is being rewritten.
    pub aof_rewrite_in_progress: Option<bool>,
    /// The result of the last write to the append-only file.
    pub aof_last_write_status: Option<String>,
    /// The size of the append-only file in bytes.
    pub aof_size_bytes: Option<u64>,
}

/// The threads of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WorkersFigures {
    /// The configured number of threads, if the server says it.
    pub configured: Option<u64>,
    /// The number of threads in use, if the server says it.
    pub active: Option<u64>,
    /// One row per thread.
    pub threads: Vec<WorkerRow>,
    /// Further counters of the server's threads, as rates per second, by the name of their field in INFO.
    pub rates: BTreeMap<String, Option<f64>>,
}

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WorkerRow {
    /// The name, such as `worker 0` or `io thread 1`.
    pub name: String,
    /// The share of time in which the thread was busy.
    pub busy_share: Option<f64>,
    /// The connections that the thread serves.
    pub connections: Option<u64>,
    /// Commands per second.
    pub commands_per_s: Option<f64>,
}

/// One command.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CommandFigures {
    /// The name; a subcommand as `config|get`.
    pub name: String,
    /// Calls since the statistics were reset.
    pub calls: u64,
    /// Calls per second.
    pub calls_per_s: Option<f64>,
    /// Microseconds per call since the last sample, or since the reset if there were no calls.
    pub us_per_call: Option<f64>,
    /// The share of the time of all commands since the last sample.
    pub time_share: Option<f64>,
    /// Failed calls per second.
    pub failed_per_s: Option<f64>,
    /// Rejected calls per second.
    pub rejected_per_s: Option<f64>,
    /// Failed calls since the reset.
    pub failed: u64,
    /// Rejected calls since the reset.
    pub rejected: u64,
    /// The median of the latency in microseconds, since the reset.
    pub p50_us: Option<f64>,
    /// The 99th percentile of the latency.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile of the latency.
    pub p999_us: Option<f64>,
    /// The median of the latency since the last sample in microseconds; `None` if there were no calls.
    pub interval_p50_us: Option<f64>,
    /// The 99th percentile of that latency.
    pub interval_p99_us: Option<f64>,
    /// The 99.9th percentile of that latency.
    pub interval_p999_us: Option<f64>,
}

/// The clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClientsFigures {
    /// The number of clients in the list of the server.
    pub total: usize,
    /// The clients, at most [`crate::sampling::clients::MAX_CLIENTS`].
    pub rows: Vec<ClientRow>,
}

/// One client.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClientRow {
    /// The id.
    pub id: u64,
    /// The address.
    pub address: String,
    /// The name that the client gave itself.
    pub name: String,
    /// The user.
    pub user: String,
    /// The last command.
    pub command: String,
    /// The database.
    pub database: Option<u64>,
    /// The flags, as in CLIENT LIST.
    pub flags: String,
    /// The seconds since the client connected.
    pub age_s: Option<u64>,
    /// The seconds since the last command.
    pub idle_s: Option<u64>,
    /// The memory of the client in bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes received from the client per second.
    pub in_bytes_per_s: Option<f64>,
    /// Bytes sent to the client per second.
    pub out_bytes_per_s: Option<f64>,
    /// Commands of the client per second.
    pub commands_per_s: Option<f64>,
}

/// The hottest slots.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SlotsFigures {
    /// The figure by which the server chose them, as CLUSTER SLOT-STATS calls it.
    pub ordered_by: String,
    /// Why the slots are not ordered as asked for, if they are not.
    pub note: Option<String>,
    /// The slots.
    pub rows: Vec<SlotRow>,
}

/// One slot. The totals count from the start or the last reset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SlotRow {
    /// The slot.
    pub slot: u64,
    /// Keys in the slot.
    pub keys: Option<u64>,
    /// The CPU time of commands on the slot in microseconds.
    pub cpu_us: Option<u64>,
    /// The CPU time per second in microseconds, since the last sample.
    pub cpu_us_per_s: Option<f64>,
    /// Bytes received for the slot.
    pub in_bytes: Option<u64>,
    /// Bytes sent for the slot.
    pub out_bytes: Option<u64>,
}

/// The search for big keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KeysFigures {
    /// Keys looked at in this pass.
    pub sampled: u64,
    /// Keys in all databases.
    pub total: Option<u64>,
    /// Passes over all keys that are complete.
    pub passes: u64,
    /// The share of the server's time that the search took, estimated from the time until the replies arrived.
    pub cost_share: f64,
    /// The biggest keys of this pass and the previous one.
    pub rows: Vec<KeyRow>,
}

/// One key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KeyRow {
    /// The name, escaped.
    pub name: String,
    /// The database.
    pub database: u64,
    /// The type of the value.
    pub kind: String,
    /// The memory of the key and its value in bytes, estimated by the server.
    pub memory_bytes: u64,
    /// The number of elements; of a string, its length in bytes. Only Weft reports it.
    pub elements: Option<u64>,
}

/// The most used keys, of a Weft server that samples them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HotKeysFigures {
    /// The server samples the keys of commands.
    pub is_sampling: bool,
    /// The number of uses for each sample.
    pub sample_ratio: u64,
    /// The seconds for which they were sampled.
    pub duration_s: f64,
    /// The number of samples.
    pub samples: u64,
    /// The most used keys.
    pub rows: Vec<HotKeyRow>,
}

/// A key that is used often. The numbers are estimates.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HotKeyRow {
    /// The name, escaped.
    pub name: String,
    /// The database.
    pub database: u64,
    /// The uses of the key while it was sampled.
    pub uses: u64,
    /// The uses per second in that time.
    pub uses_per_s: Option<f64>,
    /// The uses by which that may be too many.
    pub error: u64,
    /// The share of the uses of all keys.
    pub share: f64,
    /// The share of the key's uses that may write.
    pub write_share: f64,
    /// The share of the time of all commands with keys.
    pub time_share: f64,
}

/// The replication.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ReplicationFigures {
    /// `master` or `slave`, as INFO says.
    pub role: String,
    /// The replication offset of this server.
    pub offset: Option<u64>,
    /// The replication id.
    pub replication_id: Option<String>,
    /// The primary, if this is a replica.
    pub primary: Option<PrimaryLinkFigures>,
    /// The replicas.
    pub replicas: Vec<ReplicaRow>,
    /// The size of the backlog in bytes.
    pub backlog_size_bytes: Option<u64>,
    /// The bytes in the backlog.
    pub backlog_used_bytes: Option<u64>,
    /// Bytes of the replication stream per second.
    pub stream_bytes_per_s: Option<f64>,
    /// Full synchronizations since the start.
    pub full_syncs: Option<u64>,
    /// Partial synchronizations since the start.
    pub partial_syncs: Option<u64>,
    /// Refused partial synchronizations since the start.
    pub partial_syncs_refused: Option<u64>,
}

/// The connection of a replica to its primary.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PrimaryLinkFigures {
    /// Host and port.
    pub address: String,
    /// `up` or `down`.
    pub status: String,
    /// The seconds since the primary sent something.
    pub last_io_s: Option<i64>,
    /// A full synchronization is in progress.
    pub sync_in_progress: bool,
    /// Bytes received but not applied.
    pub behind_bytes: Option<u64>,
}

/// A replica of this server.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ReplicaRow {
    /// Host and port.
    pub address: String,
    /// The state, such as `online`.
    pub state: String,
    /// The offset that the replica acknowledged.
    pub offset: Option<u64>,
    /// Bytes that the replica has not acknowledged.
    pub behind_bytes: Option<u64>,
    /// The seconds since the last acknowledgement.
    pub lag_s: Option<u64>,
}

/// The memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MemoryReport {
    /// What uses the memory, the largest first.
    pub consumers: Vec<MemoryConsumer>,
    /// The figures of INFO memory that are sizes, ratios or counts, by their names there.
    pub fields: BTreeMap<String, f64>,
    /// The name of the allocator.
    pub allocator: Option<String>,
}

/// A consumer of memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MemoryConsumer {
    /// The name of the field in INFO memory.
    pub field: &'static str,
    /// What it is.
    pub title: &'static str,
    /// The bytes.
    pub bytes: u64,
    /// The share of the resident memory.
    pub share: Option<f64>,
}
