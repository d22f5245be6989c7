//! The figures of the whole server, from INFO.

use crate::model::{OverviewFigures, PersistenceFigures, ServerIdentity};
use crate::sampling::info::{InfoFields, InfoPair, part_count};

/// Reads the identity of the server.
pub fn identity(info: &InfoFields, address: &str) -> ServerIdentity {
    let names = [
        ("weft", "weft_version"),
        ("valkey", "valkey_version"),
        ("redis", "redis_version"),
    ];
    let known = names
        .iter()
        .find_map(|(name, field)| Some((*name, info.text(field)?)))
        .unwrap_or_default();
    let mode = info.text("server_mode").or(info.text("redis_mode"));
    ServerIdentity {
        name: known.0.to_owned(),
        version: known.1.to_owned(),
        mode: mode.unwrap_or_default().to_owned(),
        address: address.to_owned(),
        process_id: info.count("process_id"),
        uptime_s: info.count("uptime_in_seconds"),
        run_id: info.text("run_id").unwrap_or_default().to_owned(),
    }
}

/// Computes the figures of the overview.
pub fn figures(pair: &InfoPair<'_>) -> OverviewFigures {
    let info = pair.later;
    let text = |name: &str| info.text(name).map(str::to_owned);
    let cpu_s = sum(pair.increase("used_cpu_user"), pair.increase("used_cpu_sys"));
    let commands = pair.increase("total_commands_processed");
    let lookups = sum(pair.increase("keyspace_hits"), pair.increase("keyspace_misses"));
    let keyspace = |name: &str| {
        let databases = info.with_prefix("db").filter(|(index, _)| index.parse::<u64>().is_ok());
        databases
            .map(|(_, value)| part_count(value, name).unwrap_or(0))
            .fold(0, u64::saturating_add)
    };
    // INFO of a restricted user may lack the section; a server without keys has it, but empty.
    let has_statistics = info.text("keyspace_hits").is_some();
    OverviewFigures {
        operations_per_s: pair.rate("total_commands_processed"),
        // The histograms of latencies have them.
        latency_p50_us: None,
        latency_p99_us: None,
        latency_p999_us: None,
        cpu_cores: quotient(cpu_s, pair.seconds()),
        cpu_us_per_command: quotient(cpu_s.map(|seconds| seconds * 1e6), commands),
        network_in_bytes_per_s: pair.rate("total_net_input_bytes"),
        network_out_bytes_per_s: pair.rate("total_net_output_bytes"),
        connected_clients: info.count("connected_clients"),
        blocked_clients: info.count("blocked_clients"),
        max_clients: info.count("maxclients"),
        connections_per_s: pair.rate("total_connections_received"),
        rejected_connections: info.count("rejected_connections"),
        hit_ratio: quotient(pair.increase("keyspace_hits"), lookups),
        evicted_keys_per_s: pair.rate("evicted_keys"),
        expired_keys_per_s: pair.rate("expired_keys"),
        error_replies_per_s: pair.rate("total_error_replies"),
        used_memory_bytes: info.count("used_memory"),
        resident_memory_bytes: info.count("used_memory_rss"),
        max_memory_bytes: info.count("maxmemory"),
        max_memory_policy: text("maxmemory_policy"),
        keys: has_statistics.then(|| keyspace("keys")),
        keys_with_expiry: has_statistics.then(|| keyspace("expires")),
        persistence: persistence(info),
        role: text("role"),
        connected_replicas: info.count("connected_slaves"),
        primary_link: text("master_link_status"),
    }
}

fn persistence(info: &InfoFields) -> PersistenceFigures {
    let text = |name: &str| info.text(name).map(str::to_owned);
    PersistenceFigures {
        loading: info.flag("loading"),
        rdb_save_in_progress: info.flag("rdb_bgsave_in_progress"),
        rdb_changes_since_save: info.count("rdb_changes_since_last_save"),
        rdb_last_save_time_s: info.count("rdb_last_save_time"),
        rdb_last_status: text("rdb_last_bgsave_status"),
        aof_enabled: info.flag("aof_enabled"),
        aof_rewrite_in_progress: info.flag("aof_rewrite_in_progress"),
        aof_last_write_status: text("aof_last_write_status"),
        aof_size_bytes: info.count("aof_current_size"),
    }
}

fn sum(first: Option<f64>, second: Option<f64>) -> Option<f64> {
    Some(first? + second?)
}

/// Divides; `None` if the divisor is 0.
fn quotient(dividend: Option<f64>, divisor: Option<f64>) -> Option<f64> {
    let divisor = divisor.filter(|divisor| *divisor > 0.0)?;
    Some(dividend? / divisor)
}
