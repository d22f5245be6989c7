//! The memory, from INFO.

use crate::model::{MemoryConsumer, MemoryReport};
use crate::sampling::info::{InfoFields, finite_number};

/// What uses memory: the field of INFO and its meaning. Some contain others: the dataset is what no overhead explains.
#[rustfmt::skip]
const CONSUMERS: &[(&str, &str)] = &[
    ("used_memory_dataset",             "keys and values"),
    ("used_memory_startup",             "server at its start"),
    ("mem_clients_normal",              "clients"),
    ("mem_clients_slaves",              "replicas as clients"),
    ("mem_replication_backlog",         "replication backlog"),
    ("mem_total_replication_buffers",   "replication buffers"),
    ("mem_aof_buffer",                  "append-only file buffer"),
    ("mem_cluster_links",               "links of the cluster"),
    ("mem_cluster_slot_import",         "imports of slots"),
    ("mem_cluster_slot_export",         "exports of slots"),
    ("mem_overhead_db_hashtable_rehashing", "hash tables while they grow"),
    ("used_memory_vm_total",            "Lua engine"),
    ("used_memory_scripts",             "scripts and functions"),
    ("allocator_frag_bytes",            "allocator fragmentation"),
    ("allocator_rss_bytes",             "free pages of the allocator"),
    ("rss_overhead_bytes",              "memory outside the allocator"),
];
/// The beginnings of the names of the fields that belong to memory.
const FIELD_PREFIXES: &[&str] = &[
    "used_memory",
    "allocator_",
    "mem_",
    "maxmemory",
    "rss_overhead",
    "total_system_memory",
    "number_of_",
    "lazyfree",
    "active_defrag_running",
];

/// Reads the figures of the memory.
///
/// # Errors
/// Fails if INFO says nothing of it.
pub fn figures(info: &InfoFields) -> Result<MemoryReport, String> {
    if info.text("used_memory").is_none() {
        return Err("INFO of this server has no section memory".to_owned());
    }
    let resident = info.count("used_memory_rss").filter(|bytes| *bytes > 0);
    let mut consumers: Vec<MemoryConsumer> = CONSUMERS
        .iter()
        .filter_map(|(field, title)| {
            let bytes = info.count(field)?;
            Some(MemoryConsumer {
                field,
                title,
                bytes,
                share: resident.map(|resident| bytes as f64 / resident as f64),
            })
        })
        .collect();
    consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.bytes));
    let belongs = |name: &str| FIELD_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let fields = info
        .all()
        .filter(|(name, _)| belongs(name) && !name.ends_with("_human"))
        .filter_map(|(name, value)| Some((name.to_owned(), finite_number(value)?)))
        .collect();
    Ok(MemoryReport {
        consumers,
        fields,
        allocator: info.text("mem_allocator").map(str::to_owned),
    })
}
