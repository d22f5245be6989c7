//! The sections of INFO: their names, and their fields with Valkey's names.
//!
//! A field that describes something Weft does not have (forks, defragmentation, a replication backlog) shows what
//! Valkey shows while it does not use it.

mod replication;

use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::commands::registry;
use crate::config::id;
use crate::observe::metrics::{Counter, Maximum};
use crate::observe::rates::Rate;
use crate::observe::{memory, process};
use crate::persist::aof::Phase;
use crate::persist::running::Purpose;
use crate::pubsub::Space;
use crate::repl::Standing;
use crate::script::Kind;
use crate::state::Server;
use weft_reactor::unix_ms;

/// The version of Redis whose protocol and commands these are, for clients that ask.
const REDIS_VERSION: &str = "7.2.4";

/// A section; the order is that of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The process.
    Server,
    /// Certificates.
    Tls,
    /// Connections.
    Clients,
    /// Memory.
    Memory,
    /// Files.
    Persistence,
    /// Counters.
    Stats,
    /// Primary and replicas.
    Replication,
    /// CPU time.
    Cpu,
    /// Modules.
    Modules,
    /// Figures of each command.
    CommandStats,
    /// Error replies by code.
    ErrorStats,
    /// Latencies of each command.
    LatencyStats,
    /// Cluster mode.
    Cluster,
    /// The cluster's state; empty outside cluster mode.
    ClusterInfo,
    /// Engines that run scripts.
    ScriptingEngines,
    /// What only Weft has: workers and how they share the work.
    Weft,
    /// Keys of each database.
    Keyspace,
    /// Figures for developers; shown only to who asks for them by name.
    Debug,
}

impl Section {
    /// The sections of `all`.
    pub const ALL: &[Section] = &[
        Section::Server,
        Section::Tls,
        Section::Clients,
        Section::Memory,
        Section::Persistence,
        Section::Stats,
        Section::Replication,
        Section::Cpu,
        Section::Modules,
        Section::CommandStats,
        Section::ErrorStats,
        Section::LatencyStats,
        Section::Cluster,
        Section::ClusterInfo,
        Section::ScriptingEngines,
        Section::Weft,
        Section::Keyspace,
    ];

    /// The sections of an INFO without words.
    pub const DEFAULT: &[Section] = &[
        Section::Server,
        Section::Clients,
        Section::Memory,
        Section::Persistence,
        Section::Stats,
        Section::Replication,
        Section::Cpu,
        Section::Modules,
        Section::ErrorStats,
        Section::Cluster,
        Section::Keyspace,
    ];

    /// The section that a word asks for, in small letters.
    pub fn named(word: &[u8]) -> Option<Section> {
        Section::ALL
            .iter()
            .chain(&[Section::Debug])
            .find(|section| section.name().as_bytes() == word)
            .copied()
    }

    /// The word that asks for it.
    pub fn name(self) -> &'static str {
        match self {
            Section::Server => "server",
            Section::Tls => "tls",
            Section::Clients => "clients",
            Section::Memory => "memory",
            Section::Persistence => "persistence",
            Section::Stats => "stats",
            Section::Replication => "replication",
            Section::Cpu => "cpu",
            Section::Modules => "modules",
            Section::CommandStats => "commandstats",
            Section::ErrorStats => "errorstats",
            Section::LatencyStats => "latencystats",
            Section::Cluster => "cluster",
            Section::ClusterInfo => "cluster_info",
            Section::ScriptingEngines => "scriptingengines",
            Section::Weft => "weft",
            Section::Keyspace => "keyspace",
            Section::Debug => "debug",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Section::Server => "Server",
            Section::Tls => "TLS",
            Section::Clients => "Clients",
            Section::Memory => "Memory",
            Section::Persistence => "Persistence",
            Section::Stats => "Stats",
            Section::Replication => "Replication",
            Section::Cpu => "CPU",
            Section::Modules => "Modules",
            Section::CommandStats => "Commandstats",
            Section::ErrorStats => "Errorstats",
            Section::LatencyStats => "Latencystats",
            Section::Cluster => "Cluster",
            Section::ClusterInfo => "Cluster Info",
            Section::ScriptingEngines => "Scripting Engines",
            Section::Weft => "Weft",
            Section::Keyspace => "Keyspace",
            Section::Debug => "Debug",
        }
    }
}

/// What only the workers know of their clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// Clients that wait.
    pub blocked: u64,
    /// Clients that watch keys.
    pub watching: u64,
    /// Memory of all connections, bytes.
    pub memory_bytes: u64,
    /// The largest input buffer, bytes.
    pub max_input_bytes: u64,
    /// The largest output buffer, bytes.
    pub max_output_bytes: u64,
}

/// Lines of `name:value`.
struct Lines(Vec<u8>);

impl Lines {
    fn titled(section: Section) -> Self {
        Lines(format!("# {}\r\n", section.title()).into_bytes())
    }

    fn put(&mut self, name: &str, value: impl Display) {
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = write!(line, "{name}:{value}\r\n");
        self.0.extend_from_slice(line.as_bytes());
    }

    fn put_bytes(&mut self, name: &str, value: &[u8]) {
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b':');
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    /// A number of bytes, and the same for people.
    fn put_size(&mut self, name: &str, bytes: u64) {
        self.put(name, bytes);
        self.put(&format!("{name}_human"), human(bytes));
    }

    fn zeroes(&mut self, names: &[&str]) {
        for name in names {
            self.put(name, 0);
        }
    }
}

/// The text of a section. `ttls_ms` are estimated mean times to live by database.
pub fn render(server: &Server, section: Section, ttls_ms: &[u64]) -> Vec<u8> {
    let mut lines = Lines::titled(section);
    match section {
        Section::Server => server_lines(server, &mut lines),
        Section::Tls => tls_lines(&mut lines),
        Section::Clients | Section::Memory => return render_asked(server, section, &ClientFigures::default()),
        Section::Persistence => persistence_lines(server, &mut lines),
        Section::Stats => stats_lines(server, &mut lines),
        Section::Replication => replication::lines(server, &mut lines),
        Section::Cpu => cpu_lines(server, &mut lines),
        Section::Modules => lines.put("module", SCRIPT_ENGINE),
        Section::ClusterInfo => {
            if let Some(cluster) = &server.cluster {
                let state = cluster.lock(&server.config);
                lines
                    .0
                    .extend_from_slice(crate::cluster::describe::info(&state).as_bytes());
            }
        }
        Section::CommandStats => command_lines(server, &mut lines),
        Section::ErrorStats => error_lines(server, &mut lines),
        Section::LatencyStats => latency_lines(server, &mut lines),
        Section::Cluster => lines.put("cluster_enabled", u8::from(server.cluster.is_some())),
        Section::ScriptingEngines => engine_lines(server, &mut lines),
        Section::Weft => weft_lines(server, &mut lines),
        Section::Keyspace => keyspace_lines(server, ttls_ms, &mut lines),
        Section::Debug => debug_lines(server, &mut lines),
    }
    lines.0
}

/// The text of a section that needs what only the workers know.
pub fn render_asked(server: &Server, section: Section, clients: &ClientFigures) -> Vec<u8> {
    let mut lines = Lines::titled(section);
    match section {
        Section::Clients => client_lines(server, clients, &mut lines),
        _ => memory_lines(server, clients, &mut lines),
    }
    lines.0
}

fn server_lines(server: &Server, lines: &mut Lines) {
    let config = &server.config;
    let uptime_s = server.started.elapsed().as_secs();
    let now_us = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros());
    let executable = std::env::current_exe().unwrap_or_default();
    lines.put("redis_version", REDIS_VERSION);
    lines.put("server_name", "valkey");
    lines.put("valkey_version", crate::config::COMPATIBLE_VERSION);
    lines.put("valkey_release_stage", "ga");
    lines.put("weft_version", env!("CARGO_PKG_VERSION"));
    lines.put("redis_git_sha1", "00000000");
    lines.put("redis_git_dirty", 0);
    lines.put("redis_build_id", "0000000000000000");
    lines.put(
        "server_mode",
        if server.cluster.is_some() {
            "cluster"
        } else {
            "standalone"
        },
    );
    lines.put("os", process::operating_system());
    lines.put("arch_bits", usize::BITS);
    lines.put("monotonic_clock", "quanta");
    lines.put("multiplexing_api", "epoll");
    lines.put("gcc_version", "0.0.0");
    lines.put("process_id", std::process::id());
    lines.put("process_supervised", config.choice(id::SUPERVISED));
    lines.put("run_id", &server.run_id);
    lines.put("tcp_port", config.integer(id::PORT));
    lines.put("server_time_usec", now_us);
    lines.put("uptime_in_seconds", uptime_s);
    lines.put("uptime_in_days", uptime_s / 86_400);
    for name in ["hz", "configured_hz", "clients_hz"] {
        lines.put(name, config.integer(id::HZ));
    }
    lines.put("lru_clock", (unix_ms() / 1000) & ((1 << 24) - 1));
    lines.put("executable", executable.display());
    lines.put(
        "config_file",
        config.file().unwrap_or(std::path::Path::new("")).display(),
    );
    let active = server.active_workers.load(Ordering::Relaxed);
    lines.put("io_threads_active", u8::from(active > 1));
    lines.put_bytes("availability_zone", &config.text(id::AVAILABILITY_ZONE));
    listener_lines(server, lines);
    match server.shutdown.waits_until_ms.load(Ordering::Relaxed) {
        0 => {}
        until_ms => lines.put(
            "shutdown_in_milliseconds",
            until_ms.saturating_sub(weft_reactor::unix_ms()),
        ),
    }
}

fn listener_lines(server: &Server, lines: &mut Lines) {
    let config = &server.config;
    let mut listeners: Vec<Vec<u8>> = Vec::new();
    let port = config.integer(id::PORT);
    if port != 0 {
        let addresses = config.addresses(id::BIND);
        let bound: String = addresses.iter().map(|address| format!(",bind={address}")).collect();
        listeners.push(format!("name=tcp{bound},port={port}").into_bytes());
    }
    let path = config.text(id::UNIXSOCKET);
    if !path.is_empty() {
        listeners.push([b"name=unix,bind=", &path[..]].concat());
    }
    for (index, listener) in listeners.iter().enumerate() {
        lines.put_bytes(&format!("listener{index}"), listener);
    }
}

fn tls_lines(lines: &mut Lines) {
    for name in ["server", "client", "ca"] {
        lines.put(&format!("tls_{name}_cert_serial"), "none");
        lines.put(&format!("tls_{name}_cert_expires_in_seconds"), 0);
    }
}

fn client_lines(server: &Server, clients: &ClientFigures, lines: &mut Lines) {
    let now_ms = unix_ms();
    let holds = |writes| server.pause.holds(now_ms, writes);
    let left_ms = server.pause.end_ms().map_or(0, |end_ms| end_ms.saturating_sub(now_ms));
    let replicas = server.repl.replicas.known().len();
    let clients_alone = server.connections.load(Ordering::Relaxed).saturating_sub(replicas);
    lines.put("connected_clients", clients_alone);
    let links = server
        .cluster
        .as_ref()
        .map_or(0, |cluster| cluster.lock(&server.config).links.len());
    lines.put("cluster_connections", links);
    lines.put("maxclients", server.config.integer(id::MAXCLIENTS));
    lines.put("client_recent_max_input_buffer", clients.max_input_bytes);
    lines.put("client_recent_max_output_buffer", clients.max_output_bytes);
    lines.put("blocked_clients", clients.blocked);
    lines.put("tracking_clients", server.tracking.client_count());
    lines.put("pubsub_clients", server.pubsub.clients.load(Ordering::Relaxed));
    lines.put("watching_clients", clients.watching);
    lines.put("clients_in_timeout_table", server.blocked.timeouts());
    lines.put("total_watched_keys", server.watched.keys());
    lines.put("total_blocking_keys", server.blocked.keys());
    lines.put("total_blocking_keys_on_nokey", server.blocked.keys_of_groups());
    let (reason, actions) = match (holds(false), holds(true)) {
        (true, _) => ("client_pause", "all"),
        (false, true) => ("client_pause", "write"),
        (false, false) => ("none", "none"),
    };
    lines.put("paused_reason", reason);
    lines.put("paused_actions", actions);
    lines.put("paused_timeout_milliseconds", if holds(true) { left_ms } else { 0 });
}

/// Figures of the memory section that MEMORY STATS and DOCTOR use as well.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFigures {
    /// The allocator's own figures.
    pub allocator: memory::Figures,
    /// Resident set of the process, bytes.
    pub resident_bytes: u64,
    /// Most bytes that were ever in use.
    pub peak_bytes: u64,
    /// Bytes in use when the server was ready.
    pub startup_bytes: u64,
    /// What is no data: startup, connections, buckets of tables.
    pub overhead_bytes: u64,
    /// The rest.
    pub dataset_bytes: u64,
    /// Keys in all databases.
    pub keys: u64,
    /// Cached scripts, bytes.
    pub script_bytes: u64,
    /// Libraries of functions, bytes.
    pub library_bytes: u64,
}

/// A bucket of a table, bytes, and how many entries it has on average.
const BUCKET: (u64, u64) = (64, 6);

impl MemoryFigures {
    /// The figures now, with `client_bytes` in connections.
    pub fn now(server: &Server, client_bytes: u64) -> Self {
        let allocator = memory::figures().unwrap_or_default();
        let counts = &server.keyspace.counts;
        let keys = (0..counts.databases()).map(|db| counts.keys(db)).sum();
        let startup_bytes = server.observed.startup_memory.load(Ordering::Relaxed);
        let overhead_bytes = startup_bytes + client_bytes + keys * BUCKET.0 / BUCKET.1;
        MemoryFigures {
            allocator,
            resident_bytes: process::resident_bytes().unwrap_or(allocator.resident),
            peak_bytes: server
                .peak_memory
                .fetch_max(allocator.allocated, Ordering::Relaxed)
                .max(allocator.allocated),
            startup_bytes,
            overhead_bytes,
            dataset_bytes: allocator.allocated.saturating_sub(overhead_bytes),
            keys,
            script_bytes: server.scripts.cache.bytes(),
            library_bytes: server.scripts.libraries.bytes(),
        }
    }

    /// The dataset's share of what was allocated since the start, per cent.
    pub fn dataset_percentage(&self) -> f64 {
        let grown = self.allocator.allocated.saturating_sub(self.startup_bytes);
        ratio(self.dataset_bytes, grown) * 100.0
    }

    /// Memory in use as a share of the peak, per cent.
    pub fn peak_percentage(&self) -> f64 {
        ratio(self.allocator.allocated, self.peak_bytes) * 100.0
    }
}

/// One number divided by another; 1 when there is nothing to divide by.
pub fn ratio(number: u64, by: u64) -> f64 {
    if by == 0 { 1.0 } else { number as f64 / by as f64 }
}

fn memory_lines(server: &Server, clients: &ClientFigures, lines: &mut Lines) {
    let figures = MemoryFigures::now(server, clients.memory_bytes);
    let allocator = figures.allocator;
    let resident = figures.resident_bytes;
    let difference = |one: u64, other: u64| one as i64 - other as i64;
    lines.put_size("used_memory", allocator.allocated);
    lines.put_size("used_memory_rss", resident);
    lines.put_size("used_memory_peak", figures.peak_bytes);
    lines.put("used_memory_peak_perc", format!("{:.2}%", figures.peak_percentage()));
    lines.put("used_memory_overhead", figures.overhead_bytes);
    lines.put("used_memory_startup", figures.startup_bytes);
    lines.put("used_memory_dataset", figures.dataset_bytes);
    lines.put(
        "used_memory_dataset_perc",
        format!("{:.2}%", figures.dataset_percentage()),
    );
    lines.put("allocator_allocated", allocator.allocated);
    lines.put("allocator_active", allocator.active);
    lines.put("allocator_resident", allocator.resident);
    lines.put("allocator_muzzy", 0);
    lines.put_size("total_system_memory", process::machine_bytes().unwrap_or(0));
    script_memory_lines(server, lines);
    lines.put_size("maxmemory", server.config.unsigned(id::MAXMEMORY));
    lines.put("maxmemory_policy", server.config.choice(id::MAXMEMORY_POLICY));
    let pair = |lines: &mut Lines, name: &str, number: u64, by: u64| {
        lines.put(&format!("{name}_ratio"), format!("{:.2}", ratio(number, by)));
        lines.put(&format!("{name}_bytes"), difference(number, by));
    };
    pair(lines, "allocator_frag", allocator.active, allocator.allocated);
    pair(lines, "allocator_rss", allocator.resident, allocator.active);
    pair(lines, "rss_overhead", resident, allocator.resident);
    pair(lines, "mem_fragmentation", resident, allocator.allocated);
    lines.zeroes(&["mem_not_counted_for_evict"]);
    let (backlog_bytes, replica_bytes) = server.repl.replicas.memory_bytes(&server.config);
    lines.put("mem_replication_backlog", backlog_bytes);
    lines.put("mem_total_replication_buffers", backlog_bytes + replica_bytes);
    lines.zeroes(&["mem_replicas_repl_buffer"]);
    lines.put("mem_clients_slaves", replica_bytes);
    lines.put("mem_clients_normal", clients.memory_bytes);
    lines.zeroes(&[
        "mem_cluster_links",
        "mem_cluster_slot_import",
        "mem_cluster_slot_export",
        "mem_aof_buffer",
    ]);
    lines.put("mem_allocator", "jemalloc");
    lines.put("mem_overhead_db_hashtable_rehashing", 0);
    lines.put("active_defrag_running", 0);
    lines.put("lazyfree_pending_objects", server.lazyfree.pending());
    lines.put("lazyfreed_objects", server.lazyfree.freed());
}

fn script_memory_lines(server: &Server, lines: &mut Lines) {
    let scripts = &server.scripts;
    let eval_bytes = scripts.interpreter_bytes(Kind::Eval);
    let function_bytes = scripts.interpreter_bytes(Kind::Function);
    let libraries = scripts.libraries.current();
    lines.put("used_memory_lua", eval_bytes);
    lines.put("used_memory_vm_eval", eval_bytes);
    lines.put("used_memory_lua_human", human(eval_bytes));
    lines.put("used_memory_scripts_eval", scripts.cache.bytes());
    lines.put("number_of_cached_scripts", scripts.cache.len());
    lines.put("number_of_functions", libraries.function_count());
    lines.put("number_of_libraries", libraries.libraries().len());
    lines.put("used_memory_vm_functions", function_bytes);
    lines.put_size("used_memory_vm_total", eval_bytes + function_bytes);
    lines.put("used_memory_functions", scripts.libraries.bytes());
    lines.put_size("used_memory_scripts", scripts.cache.bytes() + scripts.libraries.bytes());
}

/// Valkey's engine for scripts is a module, and shows as one.
const SCRIPT_ENGINE: &str = "name=lua,ver=1,api=1,filters=0,usedby=[],using=[],\
                             options=[handle-repl-async-load|handle-atomic-slot-migration]";

fn engine_lines(server: &Server, lines: &mut Lines) {
    let scripts = &server.scripts;
    let bytes = scripts.interpreter_bytes(Kind::Eval) + scripts.interpreter_bytes(Kind::Function);
    lines.put("engines_count", 1);
    lines.put("engines_total_used_memory", bytes);
    lines.put("engines_total_memory_overhead", 0);
    lines.put(
        "engine_0",
        format!("name=LUA,module=lua,abi_version=4,used_memory={bytes},memory_overhead=0"),
    );
}

fn persistence_lines(server: &Server, lines: &mut Lines) {
    let dumps = &server.dumps;
    let standing = server.repl.standing();
    let aside = standing.has(Standing::LOADING_ASIDE);
    let loads = standing.has(Standing::LOADING) || dumps.loading.load(Ordering::Relaxed);
    lines.put("loading", u8::from(loads));
    lines.put("async_loading", u8::from(aside));
    // What Valkey copies when something changes is what a snapshot keeps.
    let kept_bytes = server.keyspace.preimages.kept_bytes();
    lines.put("current_cow_peak", kept_bytes);
    lines.put("current_cow_size", kept_bytes);
    lines.put("current_cow_size_age", 0);
    let running = &server.snapshot;
    let keys_done = running.keys_done.load(Ordering::Relaxed);
    let keys_total = running.keys_total.load(Ordering::Relaxed);
    let percent = 100.0 * keys_done as f64 / keys_total.max(1) as f64;
    lines.put("current_fork_perc", format!("{percent:.2}"));
    lines.put("current_save_keys_processed", keys_done);
    lines.put("current_save_keys_total", keys_total);
    let changes = dumps.unsaved(server.metrics.sum(Counter::Dirty));
    lines.put("rdb_changes_since_last_save", changes);
    let dumping = matches!(running.purpose(), Some(Purpose::Dump | Purpose::Replicas));
    lines.put("rdb_bgsave_in_progress", u8::from(dumping));
    lines.put("rdb_last_save_time", dumps.last_save_s.load(Ordering::Relaxed));
    let failed = dumps.last_failed.load(Ordering::Relaxed);
    lines.put("rdb_last_bgsave_status", if failed { "err" } else { "ok" });
    lines.put("rdb_last_bgsave_time_sec", dumps.last_took_s.load(Ordering::Relaxed));
    let since_s = running.since_s(Purpose::Dump).or(running.since_s(Purpose::Replicas));
    let current_s = since_s.map_or(-1, |since_s| (unix_ms() / 1000) as i64 - since_s as i64);
    lines.put("rdb_current_bgsave_time_sec", current_s);
    lines.put("rdb_saves", dumps.saves.load(Ordering::Relaxed));
    lines.put("rdb_last_cow_size", dumps.last_kept_bytes.load(Ordering::Relaxed));
    let (expired, loaded) = (&dumps.keys_expired, &dumps.keys_loaded);
    lines.put("rdb_last_load_keys_expired", expired.load(Ordering::Relaxed));
    lines.put("rdb_last_load_keys_loaded", loaded.load(Ordering::Relaxed));
    let aof = &server.aof;
    let number = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let word = |failed: &AtomicBool| if failed.load(Ordering::Relaxed) { "err" } else { "ok" };
    lines.put("aof_enabled", u8::from(aof.phase() != Phase::Off));
    lines.put("aof_rewrite_in_progress", u8::from(number(&aof.rewriting_since_s) > 0));
    lines.put("aof_rewrite_scheduled", u8::from(aof.scheduled.load(Ordering::Relaxed)));
    lines.put(
        "aof_last_rewrite_time_sec",
        aof.last_rewrite_s.load(Ordering::Relaxed) - 1,
    );
    let rewriting_s = match number(&aof.rewriting_since_s) {
        0 => -1,
        since_s => (unix_ms() / 1000) as i64 - since_s as i64,
    };
    lines.put("aof_current_rewrite_time_sec", rewriting_s);
    lines.put("aof_last_bgrewrite_status", word(&aof.last_rewrite_failed));
    lines.put("aof_rewrites", number(&aof.rewrites));
    lines.put("aof_rewrites_consecutive_failures", number(&aof.failures));
    lines.put("aof_last_write_status", word(&aof.fails));
    lines.zeroes(&[
        "aof_last_cow_size",
        "module_fork_in_progress",
        "module_fork_last_cow_size",
        "slot_migration_fork_in_progress",
    ]);
    if loads {
        replication::loading_lines(server, lines);
    }
    if aof.phase() == Phase::Off {
        return;
    }
    lines.put("aof_current_size", number(&aof.current_bytes));
    lines.put("aof_base_size", number(&aof.base_bytes));
    lines.put("aof_pending_rewrite", 0);
    lines.put("aof_buffer_length", number(&aof.buffered_bytes));
    lines.put("aof_pending_bio_fsync", number(&aof.pending_syncs));
    // The log thread waits for the disk, and nobody for the log thread.
    lines.put("aof_delayed_fsync", 0);
}

fn stats_lines(server: &Server, lines: &mut Lines) {
    traffic_lines(server, lines);
    key_lines(server, lines);
    lines.put("pubsub_channels", server.pubsub.channels(Space::Channels));
    lines.put("pubsub_patterns", server.pubsub.patterns());
    lines.put("pubsubshard_channels", server.pubsub.channels(Space::ShardChannels));
    // Nothing forks; what a fork is to clients is the moment of a snapshot.
    lines.put("latest_fork_usec", server.snapshot.moment_us.load(Ordering::Relaxed));
    lines.put("total_forks", server.snapshot.moments.load(Ordering::Relaxed));
    lines.put("migrate_cached_sockets", crate::commands::migrate::kept());
    lines.put("slave_expires_tracked_keys", server.keyspace.local.len());
    lines.zeroes(&[
        "active_defrag_hits",
        "active_defrag_misses",
        "active_defrag_key_hits",
        "active_defrag_key_misses",
        "total_active_defrag_time",
        "current_active_defrag_time",
    ]);
    lines.put("tracking_total_keys", server.tracking.keys());
    lines.put("tracking_total_items", server.tracking.items());
    lines.put("tracking_total_prefixes", server.tracking.prefixes());
    let unexpected = &server.repl.unexpected_errors;
    lines.put("unexpected_error_replies", unexpected.load(Ordering::Relaxed));
    loop_lines(server, lines);
    let denied = |counter| server.metrics.sum(counter);
    lines.put("acl_access_denied_auth", denied(Counter::DeniedAuth));
    lines.put("acl_access_denied_cmd", denied(Counter::DeniedCommand));
    lines.put("acl_access_denied_key", denied(Counter::DeniedKey));
    lines.put("acl_access_denied_channel", denied(Counter::DeniedChannel));
    lines.zeroes(&["acl_access_denied_tls_cert"]);
    lines.put("acl_access_denied_db", denied(Counter::DeniedDatabase));
}

fn traffic_lines(server: &Server, lines: &mut Lines) {
    let metrics = &server.metrics;
    let rates = &server.observed.rates;
    let kilobytes = |rate| format!("{:.2}", rates.per_second(rate) / 1024.0);
    lines.put("total_connections_received", metrics.sum(Counter::ConnectionsReceived));
    lines.put("total_commands_processed", metrics.commands_processed());
    lines.put(
        "instantaneous_ops_per_sec",
        rates.per_second(Rate::Commands).round() as u64,
    );
    lines.put("total_net_input_bytes", metrics.sum(Counter::NetInputBytes));
    lines.put("total_net_output_bytes", metrics.sum(Counter::NetOutputBytes));
    lines.put(
        "total_net_repl_input_bytes",
        server.repl.input_bytes.load(Ordering::Relaxed),
    );
    lines.put(
        "total_net_repl_output_bytes",
        server.repl.replicas.output_bytes.load(Ordering::Relaxed),
    );
    lines.zeroes(&[
        "total_net_cluster_slot_import_bytes",
        "total_net_cluster_slot_export_bytes",
    ]);
    lines.put("instantaneous_input_kbps", kilobytes(Rate::Input));
    lines.put("instantaneous_output_kbps", kilobytes(Rate::Output));
    lines.put("instantaneous_input_repl_kbps", "0.00");
    lines.put("instantaneous_output_repl_kbps", "0.00");
    lines.put("rejected_connections", metrics.sum(Counter::ConnectionsRejected));
    let replicas = &server.repl.replicas;
    lines.put("sync_full", replicas.full.load(Ordering::Relaxed));
    lines.put("sync_partial_ok", replicas.partial.load(Ordering::Relaxed));
    lines.put("sync_partial_err", replicas.partial_refused.load(Ordering::Relaxed));
}

fn key_lines(server: &Server, lines: &mut Lines) {
    let metrics = &server.metrics;
    lines.put("expired_keys", metrics.sum(Counter::ExpiredKeys));
    lines.put("expired_fields", metrics.sum(Counter::ExpiredFields));
    // Due keys are found by an index, so none is missed and no share of stale ones is estimated.
    lines.put("expired_stale_perc", "0.00");
    lines.put("expired_keys_with_volatile_items_stale_perc", "0.00");
    lines.put("expired_time_cap_reached_count", 0);
    lines.put(
        "expire_cycle_cpu_milliseconds",
        metrics.sum(Counter::ExpiryNs) / 1_000_000,
    );
    lines.zeroes(&["evicted_keys", "evicted_clients"]);
    lines.put("evicted_scripts", server.scripts.cache.evicted());
    lines.zeroes(&["total_eviction_exceeded_time", "current_eviction_exceeded_time"]);
    lines.put("keyspace_hits", metrics.sum(Counter::KeyspaceHits));
    lines.put("keyspace_misses", metrics.sum(Counter::KeyspaceMisses));
}

fn loop_lines(server: &Server, lines: &mut Lines) {
    let metrics = &server.metrics;
    let rates = &server.observed.rates;
    let (reads, writes) = (metrics.sum(Counter::Reads), metrics.sum(Counter::Writes));
    lines.put("total_error_replies", metrics.sum(Counter::ErrorReplies));
    lines.put("dump_payload_sanitizations", 0);
    lines.put("total_reads_processed", reads);
    lines.put("total_writes_processed", writes);
    // Every worker is an I/O thread, and there is no other.
    lines.put("io_threaded_reads_processed", reads);
    lines.put("io_threaded_writes_processed", writes);
    lines.zeroes(&[
        "io_threaded_freed_objects",
        "io_threaded_accept_processed",
        "io_threaded_poll_processed",
    ]);
    lines.put(
        "io_threaded_total_prefetch_batches",
        metrics.sum(Counter::PrefetchBatches),
    );
    lines.put(
        "io_threaded_total_prefetch_entries",
        metrics.sum(Counter::PrefetchEntries),
    );
    lines.put(
        "client_query_buffer_limit_disconnections",
        metrics.sum(Counter::QueryBufferDisconnections),
    );
    lines.put(
        "client_output_buffer_limit_disconnections",
        metrics.sum(Counter::OutputBufferDisconnections),
    );
    lines.zeroes(&["reply_buffer_shrinks", "reply_buffer_expands"]);
    lines.put("eventloop_cycles", metrics.sum(Counter::Batches));
    lines.put("eventloop_duration_sum", metrics.sum(Counter::BusyNs) / 1000);
    lines.put("eventloop_duration_cmd_sum", metrics.command_nanoseconds() / 1000);
    let batches = rates.per_second(Rate::Batches);
    let busy_us = rates.per_second(Rate::BusyNs) / 1000.0;
    lines.put("instantaneous_eventloop_cycles_per_sec", batches.round() as u64);
    let per_batch_us = if batches > 0.0 { busy_us / batches } else { 0.0 };
    lines.put("instantaneous_eventloop_duration_usec", per_batch_us.round() as u64);
}

fn cpu_lines(server: &Server, lines: &mut Lines) {
    let mut put = |name: &str, seconds: f64| lines.put(name, format!("{seconds:.6}"));
    let all = process::cpu();
    let children = process::cpu_of_children();
    let main = process::cpu_of_main_thread().unwrap_or_default();
    put("used_cpu_sys", all.system_s);
    put("used_cpu_user", all.user_s);
    put("used_cpu_sys_children", children.system_s);
    put("used_cpu_user_children", children.user_s);
    put("used_cpu_sys_main_thread", main.system_s);
    put("used_cpu_user_main_thread", main.user_s);
    // What the main thread does in Valkey, the workers do here.
    let busy_s = server.metrics.sum(Counter::BusyNs) as f64 / 1e9;
    put("used_active_time_main_thread", busy_s);
}

fn command_lines(server: &Server, lines: &mut Lines) {
    for command in registry().commands() {
        let figures = server.metrics.command(command.id as usize);
        if figures.calls + figures.rejected + figures.failed == 0 {
            continue;
        }
        let us = figures.nanoseconds / 1000;
        let us_per_call = match figures.calls {
            0 => 0.0,
            calls => us as f64 / calls as f64,
        };
        lines.put(
            &format!("cmdstat_{}", command.full_name),
            format_args!(
                "calls={},usec={us},usec_per_call={us_per_call:.2},rejected_calls={},failed_calls={}",
                figures.calls, figures.rejected, figures.failed
            ),
        );
    }
}

fn error_lines(server: &Server, lines: &mut Lines) {
    for (code, count) in server.errors.all() {
        let name = format!("errorstat_{}", String::from_utf8_lossy(&code));
        lines.put(&name, format_args!("count={count}"));
    }
}

fn latency_lines(server: &Server, lines: &mut Lines) {
    let percentiles = server.config.percentiles();
    for command in registry().commands() {
        let Some(histogram) = server.metrics.histogram(command.id as usize) else {
            continue;
        };
        let values: Vec<String> = percentiles
            .iter()
            .map(|percentile| {
                let us = histogram.percentile_ns(*percentile) as f64 / 1000.0;
                format!("p{percentile}={us:.3}")
            })
            .collect();
        lines.put(
            &format!("latency_percentiles_usec_{}", command.full_name),
            values.join(","),
        );
    }
}

fn weft_lines(server: &Server, lines: &mut Lines) {
    let metrics = &server.metrics;
    lines.put("weft_workers", server.workers.len());
    lines.put("weft_workers_active", server.active_workers.load(Ordering::Relaxed));
    lines.put("weft_tunings", server.tunings.load(Ordering::Relaxed));
    lines.put("weft_batches", metrics.sum(Counter::Batches));
    lines.put("weft_prefetch_batches", metrics.sum(Counter::PrefetchBatches));
    lines.put("weft_prefetch_entries", metrics.sum(Counter::PrefetchEntries));
    lines.put("weft_deferrals", metrics.sum(Counter::Deferrals));
    lines.put("weft_exclusive_commands", metrics.sum(Counter::Exclusives));
    lines.put("weft_background_commands", metrics.sum(Counter::BackgroundCommands));
    for (index, worker) in server.workers.iter().enumerate() {
        // Workers joined the keyspace first, so a worker's row is its index.
        lines.put(
            &format!("weft_worker{index}"),
            format_args!(
                "connections={},requests={},busy_ms={}",
                worker.connections.load(Ordering::Relaxed),
                worker.executed.load(Ordering::Relaxed),
                metrics.of_thread(index, Counter::BusyNs) / 1_000_000
            ),
        );
    }
}

fn debug_lines(server: &Server, lines: &mut Lines) {
    let metrics = &server.metrics;
    // No worker writes an append-only file.
    lines.put("eventloop_duration_aof_sum", 0);
    lines.put("eventloop_duration_cron_sum", metrics.sum(Counter::CronNs) / 1000);
    lines.put("eventloop_duration_max", metrics.highest(Maximum::LongestTurnNs) / 1000);
    lines.put("eventloop_cmd_per_cycle_max", metrics.highest(Maximum::FullestBatch));
    // Whoever reads a request executes it: none waits for another thread.
    lines.zeroes(&["io_threaded_reads_pending", "io_threaded_writes_pending"]);
}

fn keyspace_lines(server: &Server, ttls_ms: &[u64], lines: &mut Lines) {
    let counts = &server.keyspace.counts;
    for db in 0..counts.databases() {
        let (keys, expires) = (counts.keys(db), counts.with_expiry(db));
        if keys > 0 {
            let ttl_ms = ttls_ms.get(db).copied().unwrap_or(0);
            let volatile = counts.volatile(db);
            lines.put(
                &format!("db{db}"),
                format_args!("keys={keys},expires={expires},avg_ttl={ttl_ms},keys_with_volatile_items={volatile}"),
            );
        }
    }
}

/// A number of bytes in its largest unit.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut number = bytes as f64;
    let mut unit = 'B';
    for next in ['K', 'M', 'G', 'T', 'P', 'E'] {
        if number < 1024.0 {
            break;
        }
        number /= 1024.0;
        unit = next;
    }
    format!("{number:.2}{unit}")
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
            assert_eq!(human(bytes), text);
        }
    }
}
