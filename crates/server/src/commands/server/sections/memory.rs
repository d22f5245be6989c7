//! The memory section of INFO, and the figures that it shares with MEMORY STATS and MEMORY DOCTOR.

use crate::observability::{memory, process};
use crate::state::Server;
use weft_base::DbIndex;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_scripting::ScriptKind;

use super::lines::{ClientFigures, InfoLines, format_bytes};

/// The figures that INFO, MEMORY STATS and MEMORY DOCTOR share. All are of one moment, except the memory of
/// connections, which only the workers know.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFigures {
    /// The allocator's figures.
    pub allocator: memory::AllocatorFigures,
    /// The resident set size of the process, in bytes.
    pub resident_bytes: u64,
    /// The peak of the used memory, in bytes.
    pub peak_bytes: u64,
    /// The used memory when the server had started, in bytes.
    pub startup_bytes: u64,
    /// The memory that is neither data nor belongs to connections (startup, buffers, buckets of tables), in bytes.
    pub server_overhead_bytes: u64,
    /// The memory of connections, also of those of replicas, in bytes.
    pub client_bytes: u64,
    /// The number of keys in all databases.
    pub keys: u64,
    /// The memory of cached scripts, in bytes.
    pub script_bytes: u64,
    /// The memory of function libraries, in bytes.
    pub library_bytes: u64,
    /// The memory of the replication backlog up to its configured size, in bytes.
    pub backlog_bytes: u64,
    /// The memory of the data beyond that size, which replicas still need, in bytes.
    pub excess_backlog_bytes: u64,
    /// The copies of the stream that are on their way to replicas, in bytes.
    pub replica_output_bytes: u64,
    /// The memory of the stream that a replica buffers while it loads a dump, in bytes.
    pub loading_stream_bytes: u64,
    /// The data that is not yet written to the append-only file, in bytes.
    pub aof_bytes: u64,
    /// The memory of links to other cluster nodes and of their unsent messages, in bytes.
    pub link_bytes: u64,
    /// The data that imports of slots have received and not executed yet, in bytes.
    pub slot_import_bytes: u64,
    /// The data that exports of slots have not sent yet, in bytes.
    pub slot_export_bytes: u64,
    /// The memory that does not count for eviction, in bytes.
    pub uncounted_bytes: u64,
}

/// The size of a table's bucket in bytes, and its average number of entries.
const BUCKET_BYTES_AND_ENTRIES: (u64, u64) = (64, 6);

/// Returns the allocator's current figures. As for eviction, memory that workers keep for reuse does not count as used.
fn allocator_figures(server: &Server) -> memory::AllocatorFigures {
    let mut figures = memory::figures().unwrap_or_default();
    figures.used = figures.used.saturating_sub(server.memory.reusable_bytes());
    figures
}

impl MemoryFigures {
    /// Returns the current figures, without the memory of connections.
    pub fn from_server(server: &Server) -> Self {
        let allocator = allocator_figures(server);
        let held = server.replication.replicas.backlog_bytes();
        let size = server.config.unsigned(id::REPL_BACKLOG_SIZE);
        // Without replicas all of it is backlog, including the rest of its last block.
        let backlog_bytes = if server.replication.replicas.infos().is_empty() {
            held
        } else {
            held.min(size)
        };
        let aof_bytes = server.persistence.aof.buffered_bytes.load(Ordering::Relaxed);
        let counts = &server.keyspace.counts;
        let keys = DbIndex::all(counts.databases()).map(|db| counts.keys(db)).sum();
        let startup_bytes = server.stats.history.startup_memory.load(Ordering::Relaxed);
        let script_bytes = server.scripting.cache.bytes();
        let library_bytes = server.scripting.libraries.bytes();
        let link_bytes = server.cluster.as_ref().map_or(0, |cluster| cluster.link_bytes() as u64);
        let loading_stream_bytes = server.replication.buffered_stream_bytes.load(Ordering::Relaxed);
        let replica_output_bytes = server.replication.replicas.in_flight_bytes();
        let replication = held + replica_output_bytes + loading_stream_bytes;
        let migrations = &server.slot_migrations;
        let (slot_import_bytes, slot_export_bytes) = (migrations.unexecuted_bytes(), migrations.unsent_bytes());
        let buffers = replication + aof_bytes + link_bytes + slot_import_bytes + slot_export_bytes;
        let server_overhead_bytes = startup_bytes
            + buffers
            + script_bytes
            + library_bytes
            + keys * BUCKET_BYTES_AND_ENTRIES.0 / BUCKET_BYTES_AND_ENTRIES.1;
        MemoryFigures {
            allocator,
            resident_bytes: process::resident_bytes().unwrap_or(allocator.resident),
            peak_bytes: server.memory.note_peak(allocator.used),
            startup_bytes,
            server_overhead_bytes,
            client_bytes: 0,
            keys,
            script_bytes,
            library_bytes,
            backlog_bytes,
            excess_backlog_bytes: held - backlog_bytes,
            replica_output_bytes,
            loading_stream_bytes,
            aof_bytes,
            link_bytes,
            slot_import_bytes,
            slot_export_bytes,
            uncounted_bytes: server.uncounted_memory(),
        }
    }

    /// Returns the figures with this many bytes in connections.
    pub fn with_clients(self, client_bytes: u64) -> Self {
        MemoryFigures { client_bytes, ..self }
    }

    /// Returns the memory that replicas need in addition to the backlog and to their connections, in bytes.
    pub fn replica_stream_bytes(&self) -> u64 {
        self.excess_backlog_bytes + self.replica_output_bytes
    }

    /// Returns the memory that is not data, in bytes. Each of its parts is allocated separately, so nothing counts
    /// twice.
    ///
    /// Other threads go on while its parts are added up, and the part of the tables is an estimate. So the sum may
    /// exceed the used memory of a server that has hardly any data. Valkey's figure for the data would be huge then.
    pub fn overhead_bytes(&self) -> u64 {
        self.allocator.used.min(self.server_overhead_bytes + self.client_bytes)
    }

    /// Returns the used memory without the overhead, in bytes.
    pub fn dataset_bytes(&self) -> u64 {
        self.allocator.used - self.overhead_bytes()
    }

    /// Returns the dataset's share of the memory that was allocated since the start, in percent.
    pub fn dataset_percentage(&self) -> f64 {
        let grown = self.allocator.used.saturating_sub(self.startup_bytes);
        ratio(self.dataset_bytes(), grown) * 100.0
    }

    /// Returns the used memory as a share of its peak, in percent.
    pub fn peak_percentage(&self) -> f64 {
        ratio(self.allocator.used, self.peak_bytes) * 100.0
    }
}

/// Returns `number` divided by `by`; 1 if `by` is 0.
pub fn ratio(number: u64, divisor: u64) -> f64 {
    if divisor == 0 {
        1.0
    } else {
        number as f64 / divisor as f64
    }
}

pub(super) fn memory_lines(server: &Server, memory: &MemoryFigures, clients: &ClientFigures, lines: &mut InfoLines) {
    let figures = memory.with_clients(clients.allocated_bytes + clients.replica_bytes);
    let allocator = figures.allocator;
    let resident = figures.resident_bytes;
    let difference = |one: u64, other: u64| one as i64 - other as i64;
    lines.push_size_fields("used_memory", allocator.used);
    lines.push_size_fields("used_memory_rss", resident);
    lines.push_size_fields("used_memory_peak", figures.peak_bytes);
    lines.push_field("used_memory_peak_perc", format!("{:.2}%", figures.peak_percentage()));
    lines.push_field("used_memory_overhead", figures.overhead_bytes());
    lines.push_field("used_memory_startup", figures.startup_bytes);
    lines.push_field("used_memory_dataset", figures.dataset_bytes());
    lines.push_field(
        "used_memory_dataset_perc",
        format!("{:.2}%", figures.dataset_percentage()),
    );
    lines.push_field("allocator_allocated", allocator.allocated);
    lines.push_field("allocator_active", allocator.active);
    lines.push_field("allocator_resident", allocator.resident);
    lines.push_field("allocator_muzzy", 0);
    lines.push_size_fields("total_system_memory", process::machine_bytes().unwrap_or(0));
    script_memory_lines(server, &figures, lines);
    lines.push_size_fields("maxmemory", server.config.unsigned(id::MAXMEMORY));
    lines.push_field("maxmemory_policy", server.config.choice(id::MAXMEMORY_POLICY));
    let pair = |lines: &mut InfoLines, name: &str, number: u64, by: u64| {
        lines.push_field(&format!("{name}_ratio"), format!("{:.2}", ratio(number, by)));
        lines.push_field(&format!("{name}_bytes"), difference(number, by));
    };
    lines.push_field(
        "allocator_frag_ratio",
        format!("{:.2}", allocator.fragmentation_ratio()),
    );
    lines.push_field("allocator_frag_bytes", allocator.fragmented);
    pair(lines, "allocator_rss", allocator.resident, allocator.active);
    pair(lines, "rss_overhead", resident, allocator.resident);
    pair(lines, "mem_fragmentation", resident, allocator.used);
    let (backlog, excess) = (figures.backlog_bytes, figures.excess_backlog_bytes);
    lines.push_field("mem_not_counted_for_evict", figures.uncounted_bytes);
    lines.push_field("mem_replication_backlog", backlog);
    lines.push_field(
        "mem_total_replication_buffers",
        backlog + excess + figures.loading_stream_bytes,
    );
    lines.push_field("mem_replicas_repl_buffer", figures.loading_stream_bytes);
    lines.push_field(
        "mem_clients_slaves",
        figures.replica_stream_bytes() + clients.replica_bytes,
    );
    lines.push_field("mem_clients_normal", clients.memory_bytes);
    lines.push_field("mem_cluster_links", figures.link_bytes);
    lines.push_field("mem_cluster_slot_import", figures.slot_import_bytes);
    lines.push_field("mem_cluster_slot_export", figures.slot_export_bytes);
    lines.push_field("mem_aof_buffer", figures.aof_bytes);
    lines.push_field("mem_allocator", "jemalloc");
    lines.push_field("mem_overhead_db_hashtable_rehashing", 0);
    lines.push_field("active_defrag_running", server.stats.defragmentation.running_percent());
    lines.push_field("lazyfree_pending_objects", server.background.lazyfree.pending());
    lines.push_field("lazyfreed_objects", server.background.lazyfree.freed());
}

fn script_memory_lines(server: &Server, figures: &MemoryFigures, lines: &mut InfoLines) {
    let scripts = &server.scripting;
    let eval_bytes = scripts.interpreter_bytes(ScriptKind::Eval);
    let function_bytes = scripts.interpreter_bytes(ScriptKind::Function);
    let libraries = scripts.libraries.current();
    lines.push_field("used_memory_lua", eval_bytes);
    lines.push_field("used_memory_vm_eval", eval_bytes);
    lines.push_field("used_memory_lua_human", format_bytes(eval_bytes));
    lines.push_field("used_memory_scripts_eval", figures.script_bytes);
    lines.push_field("number_of_cached_scripts", scripts.cache.script_count());
    lines.push_field("number_of_functions", libraries.function_count());
    lines.push_field("number_of_libraries", libraries.libraries().len());
    lines.push_field("used_memory_vm_functions", function_bytes);
    lines.push_size_fields("used_memory_vm_total", eval_bytes + function_bytes);
    lines.push_field("used_memory_functions", figures.library_bytes);
    lines.push_size_fields("used_memory_scripts", figures.script_bytes + figures.library_bytes);
}

/// Valkey's script engine is a module and is listed as one.
pub(super) const SCRIPT_ENGINE: &str = "name=lua,ver=1,api=1,filters=0,usedby=[],using=[],\
                             options=[handle-repl-async-load|handle-atomic-slot-migration]";

pub(super) fn engine_lines(server: &Server, lines: &mut InfoLines) {
    let scripts = &server.scripting;
    let bytes = scripts.interpreter_bytes(ScriptKind::Eval) + scripts.interpreter_bytes(ScriptKind::Function);
    let engines = weft_modules::module::engines::all();
    let memory: Vec<(usize, usize)> = engines.iter().map(|engine| engine.memory()).collect();
    lines.push_field("engines_count", 1 + engines.len());
    lines.push_field(
        "engines_total_used_memory",
        bytes + memory.iter().map(|(used, _)| *used as u64).sum::<u64>(),
    );
    lines.push_field(
        "engines_total_memory_overhead",
        memory.iter().map(|(_, overhead)| overhead).sum::<usize>(),
    );
    lines.push_field(
        "engine_0",
        format!("name=LUA,module=lua,abi_version=4,used_memory={bytes},memory_overhead=0"),
    );
    for (index, (engine, (used, overhead))) in engines.iter().zip(memory).enumerate() {
        let (name, module, version) = (&engine.name, engine.module.name(), engine.version());
        let line =
            format!("name={name},module={module},abi_version={version},used_memory={used},memory_overhead={overhead}");
        lines.push_field(&format!("engine_{}", index + 1), line);
    }
}

#[cfg(test)]
mod tests;
