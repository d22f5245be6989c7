//! The sections of INFO: their names, and their fields with Valkey's names.
//!
//! A field that describes something that Weft does not have (forks) shows the value that Valkey shows
//! while it does not use it.

mod activity;
mod lines;
mod memory;
mod replication;
mod section;

use std::sync::Arc;

use crate::observability::process;
use crate::state::Server;
use activity::{
    command_lines, cpu_lines, debug_lines, error_lines, latency_lines, persistence_lines, stats_lines, weft_lines,
};
use lines::InfoLines;
pub use lines::{ClientFigures, format_bytes};
pub use memory::{MemoryFigures, ratio};
use memory::{SCRIPT_ENGINE, engine_lines, memory_lines};
pub use section::InfoSection;
use weft_base::DbIndex;
use weft_base::clock::unix_ms;
use weft_config::{REDIS_VERSION, id};
use weft_modules::module::{command_filters, loading, options, shared};
use weft_os::atomic::Ordering;

/// Figures of the keyspace that are sampled under leases, by database.
#[derive(Default)]
pub struct KeyspaceSamples {
    /// The estimated mean times to live in milliseconds.
    pub mean_ttls_ms: Vec<u64>,
    /// The numbers of keys, and of keys with an expiry, that clients may see; empty if they may see all.
    pub visible_keys: Vec<(u64, u64)>,
}

/// Returns the text of a section. `samples` were taken for the section Keyspace.
pub fn render_section(server: &Server, section: InfoSection, samples: &KeyspaceSamples) -> Vec<u8> {
    let mut lines = InfoLines::with_title(section);
    match section {
        InfoSection::Server => server_lines(server, &mut lines),
        InfoSection::Tls => tls_lines(server, &mut lines),
        InfoSection::Clients | InfoSection::Memory => {
            let memory = MemoryFigures::from_server(server);
            return render_client_section(server, section, &memory, &ClientFigures::default());
        }
        InfoSection::Persistence => persistence_lines(server, &mut lines),
        InfoSection::Stats => stats_lines(server, &mut lines),
        InfoSection::Replication => replication::replication_lines(server, &mut lines),
        InfoSection::Cpu => cpu_lines(server, &mut lines),
        InfoSection::Modules => module_lines(&mut lines),
        InfoSection::ClusterInfo => {
            if let Some(cluster) = &server.cluster {
                let up = cluster.view().is_up;
                let state = cluster.lock(&server.config);
                lines
                    .0
                    .extend_from_slice(weft_cluster::nodes_text::info_text(&state, up).as_bytes());
            }
        }
        InfoSection::CommandStats => command_lines(server, &mut lines),
        InfoSection::ErrorStats => error_lines(server, &mut lines),
        InfoSection::LatencyStats => latency_lines(server, &mut lines),
        InfoSection::Cluster => lines.push_field("cluster_enabled", u8::from(server.cluster.is_some())),
        InfoSection::ScriptingEngines => engine_lines(server, &mut lines),
        InfoSection::Weft => weft_lines(server, &mut lines),
        InfoSection::Keyspace => keyspace_lines(server, samples, &mut lines),
        InfoSection::Debug => debug_lines(server, &mut lines),
    }
    lines.0
}

/// Returns the text of a section that needs figures from the workers.
pub fn render_client_section(
    server: &Server,
    section: InfoSection,
    memory: &MemoryFigures,
    clients: &ClientFigures,
) -> Vec<u8> {
    let mut lines = InfoLines::with_title(section);
    match section {
        InfoSection::Clients => client_lines(server, clients, &mut lines),
        _ => memory_lines(server, memory, clients, &mut lines),
    }
    lines.0
}

fn server_lines(server: &Server, lines: &mut InfoLines) {
    let config = &server.config;
    let uptime_s = server.lifecycle.started.elapsed().as_secs();
    let now_us = weft_os::time::SystemTime::now()
        .duration_since(weft_os::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros());
    lines.push_field("redis_version", REDIS_VERSION);
    lines.push_field("server_name", "valkey");
    lines.push_field("valkey_version", weft_config::COMPATIBLE_VERSION);
    lines.push_field("valkey_release_stage", "ga");
    lines.push_field("weft_version", env!("CARGO_PKG_VERSION"));
    lines.push_field("redis_git_sha1", "00000000");
    lines.push_field("redis_git_dirty", 0);
    lines.push_field("redis_build_id", "0000000000000000");
    let is_redis = config.boolean(id::EXTENDED_REDIS_COMPATIBILITY);
    lines.push_field(
        if is_redis { "redis_mode" } else { "server_mode" },
        if server.cluster.is_some() {
            "cluster"
        } else {
            "standalone"
        },
    );
    lines.push_field("os", process::operating_system());
    lines.push_field("arch_bits", usize::BITS);
    lines.push_field("monotonic_clock", "quanta");
    lines.push_field("multiplexing_api", "epoll");
    lines.push_field("gcc_version", "0.0.0");
    lines.push_field("process_id", process::id());
    lines.push_field("process_supervised", config.choice(id::SUPERVISED));
    lines.push_field("run_id", &server.lifecycle.run_id);
    lines.push_field("tcp_port", config.port());
    lines.push_field("server_time_usec", now_us);
    lines.push_field("uptime_in_seconds", uptime_s);
    lines.push_field("uptime_in_days", uptime_s / 86_400);
    for name in ["hz", "configured_hz", "clients_hz"] {
        lines.push_field(name, config.integer(id::HZ));
    }
    lines.push_field("lru_clock", (unix_ms() / 1000) & ((1 << 24) - 1));
    lines.push_field("executable", process::executable().display());
    lines.push_field(
        "config_file",
        config.file().unwrap_or(std::path::Path::new("")).display(),
    );
    let active = server.lifecycle.active_workers.load(Ordering::Relaxed);
    lines.push_field("io_threads_active", u8::from(active > 1));
    lines.push_bytes_field("availability_zone", &config.text(id::AVAILABILITY_ZONE));
    listener_lines(server, lines);
    match server.lifecycle.shutdown.replica_deadline_ms.load(Ordering::Relaxed) {
        0 => {}
        until_ms => lines.push_field(
            "shutdown_in_milliseconds",
            until_ms.saturating_sub(weft_base::clock::unix_ms()),
        ),
    }
}

fn listener_lines(server: &Server, lines: &mut InfoLines) {
    let config = &server.config;
    let mut listeners: Vec<Vec<u8>> = Vec::new();
    let addresses = config.addresses(id::BIND);
    let bound: String = addresses.iter().map(|address| format!(",bind={address}")).collect();
    let listener = |name: &str, port: i64| (port != 0).then(|| format!("name={name}{bound},port={port}").into_bytes());
    listeners.extend(listener("tcp", config.integer(id::PORT)));
    let path = config.text(id::UNIXSOCKET);
    if !path.is_empty() {
        listeners.push([b"name=unix,bind=", &path[..]].concat());
    }
    listeners.extend(listener("tls", config.integer(id::TLS_PORT)));
    for (index, listener) in listeners.iter().enumerate() {
        lines.push_bytes_field(&format!("listener{index}"), listener);
    }
}

fn tls_lines(server: &Server, lines: &mut InfoLines) {
    let figures = server
        .tls
        .current()
        .map(|material| material.figures.clone())
        .unwrap_or_default();
    let now_s = i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX);
    for (name, label) in [
        ("server", figures.server),
        ("client", figures.client),
        ("ca", figures.authority),
    ] {
        let serial = label.as_ref().map_or("none", |label| label.serial.as_str());
        let left_s = label.as_ref().map_or(0, |label| (label.expires_s - now_s).max(0));
        lines.push_field(&format!("tls_{name}_cert_serial"), serial);
        lines.push_field(&format!("tls_{name}_cert_expires_in_seconds"), left_s);
    }
}

fn client_lines(server: &Server, clients: &ClientFigures, lines: &mut InfoLines) {
    let now_ms = unix_ms();
    let replicas = server.replication.replicas.infos().len();
    let others = replicas + clients.closing as usize;
    let clients_alone = server
        .clients
        .connections
        .load(Ordering::Relaxed)
        .saturating_sub(others);
    lines.push_field("connected_clients", clients_alone);
    let links = server.cluster.as_ref();
    let links = links.map_or(0, |cluster| cluster.connection_count());
    lines.push_field("cluster_connections", links);
    lines.push_field("maxclients", server.config.integer(id::MAXCLIENTS));
    lines.push_field("client_recent_max_input_buffer", clients.max_input_bytes);
    lines.push_field("client_recent_max_output_buffer", clients.max_output_bytes);
    lines.push_field("blocked_clients", clients.blocked);
    lines.push_field("tracking_clients", server.clients.tracking.client_count());
    lines.push_field("pubsub_clients", server.clients.pubsub.clients.load(Ordering::Relaxed));
    lines.push_field("watching_clients", clients.watching);
    lines.push_field("clients_in_timeout_table", server.clients.blocked.timeouts());
    lines.push_field("total_watched_keys", server.clients.watched.watched_keys());
    lines.push_field("total_blocking_keys", server.clients.blocked.keys());
    lines.push_field("total_blocking_keys_on_nokey", server.clients.blocked.group_keys());
    let pause = |only_reads| server.clients.pause.longest(now_ms, only_reads);
    let held_until_ms = server.clients.pause.held_slots.until_ms();
    let (actions, reason, end_ms) = match (pause(true), pause(false), held_until_ms) {
        (Some((reason, end_ms)), _, _) => ("all", reason.name(), end_ms),
        (None, Some((reason, end_ms)), _) => ("write", reason.name(), end_ms),
        (None, None, Some(end_ms)) => ("write", "slot_migration_in_progress", end_ms),
        (None, None, None) => ("none", "none", now_ms),
    };
    let left_ms = end_ms.min(i64::MAX as u64).saturating_sub(now_ms);
    lines.push_field("paused_reason", reason);
    lines.push_field("paused_actions", actions);
    lines.push_field("paused_timeout_milliseconds", left_ms);
}

fn keyspace_lines(server: &Server, samples: &KeyspaceSamples, lines: &mut InfoLines) {
    let counts = &server.keyspace.counts;
    for db in DbIndex::all(counts.databases()) {
        let visible = samples.visible_keys.get(db.get()).copied();
        let (keys, expires) = visible.unwrap_or_else(|| (counts.keys(db), counts.with_expiry(db)));
        if keys > 0 {
            let ttl_ms = samples.mean_ttls_ms.get(db.get()).copied().unwrap_or(0);
            let volatile = counts.volatile_values(db);
            lines.push_field(
                &format!("db{db}"),
                format_args!("keys={keys},expires={expires},avg_ttl={ttl_ms},keys_with_volatile_items={volatile}"),
            );
        }
    }
}

/// Appends one line for each module.
fn module_lines(lines: &mut InfoLines) {
    lines.push_field("module", SCRIPT_ENGINE);
    let joined = |names: Vec<Arc<str>>| format!("[{}]", names.join("|"));
    for module in loading::loaded() {
        let options = [
            (options::HANDLE_IO_ERRORS, "handle-io-errors"),
            (options::HANDLE_REPL_ASYNC_LOAD, "handle-repl-async-load"),
            (options::NO_IMPLICIT_SIGNAL_MODIFIED, "no-implicit-signal-modified"),
            (options::HANDLE_ATOMIC_SLOT_MIGRATION, "handle-atomic-slot-migration"),
        ];
        let options = options.into_iter().filter(|(option, _)| module.has_option(*option));
        let options: Vec<Arc<str>> = options.map(|(_, name)| Arc::from(name)).collect();
        let line = format!(
            "name={},ver={},api={},filters={},usedby={},using={},options={}",
            module.name(),
            module.version.load(Ordering::Relaxed),
            module.api_version.load(Ordering::Relaxed),
            command_filters::count_of(&module),
            joined(shared::users_of(&module)),
            joined(shared::used_by(&module)),
            joined(options),
        );
        lines.push_field("module", line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (1_068_208, "1.02M"),
            (25_276_502_016, "23.54G"),
            (u64::MAX, "16.00E"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }
}
