//! Metrics of memory, from the allocator and from the operating system.

use super::table::metrics;
use crate::metrics_endpoint::exposition::{Exposition, Metric};
use crate::observability::{memory, process};
use crate::state::Server;
use weft_config::id;
use weft_os::atomic::Ordering;

metrics! {
    USED = Metric::gauge("weft_memory_used_bytes", "Used memory, as in INFO (used_memory).");
    PEAK = Metric::gauge("weft_memory_used_peak_bytes", "Peak of the used memory.");
    STARTUP = Metric::gauge("weft_memory_startup_bytes", "Used memory when the server had started.");
    LIMIT = Metric::gauge("weft_memory_max_bytes", "Limit of the used memory (maxmemory); 0 for none.");
    NOT_COUNTED = Metric::gauge("weft_memory_not_counted_for_eviction_bytes", "Used memory that does not count for eviction: data on its way to replicas, to the append-only file, to a snapshot or to another node.");
    RESIDENT = Metric::gauge("weft_memory_resident_bytes", "Resident memory of the process, as the operating system counts it.");
    ALLOCATED = Metric::gauge("weft_allocator_allocated_bytes", "Allocated bytes, including the free memory in thread caches.");
    FRAGMENTED = Metric::gauge("weft_allocator_fragmented_bytes", "Bytes of free places in slabs that also hold allocations.");
    ACTIVE = Metric::gauge("weft_allocator_active_bytes", "Bytes of pages that hold allocated bytes.");
    ALLOCATOR_RESIDENT = Metric::gauge("weft_allocator_resident_bytes", "Resident bytes of the allocator: active pages, its own data, and free pages that it keeps.");
    RETAINED = Metric::gauge("weft_allocator_retained_bytes", "Address space that the allocator keeps although it has returned the pages.");
    METADATA = Metric::gauge("weft_allocator_metadata_bytes", "Bytes that the allocator uses itself.");
    LAZYFREE_PENDING = Metric::gauge("weft_lazyfree_pending_objects", "Values that wait to be freed in the background.");
    LAZYFREED = Metric::counter("weft_lazyfreed_objects_total", "Values that were freed in the background.");
    DEFRAG_MOVED = Metric::counter("weft_defrag_moved_allocations_total", "Allocations that active defragmentation has moved.");
    DEFRAG_KEPT = Metric::counter("weft_defrag_kept_allocations_total", "Allocations that active defragmentation has looked at and left where they are.");
    DEFRAG_SECONDS = Metric::counter("weft_defrag_running_seconds_total", "Time for which active defragmentation was running, including its pauses.");
    DEFRAG_CPU = Metric::gauge("weft_defrag_cpu_ratio", "Share of a CPU that active defragmentation may take at the moment; 0 while it is not running.");
}

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    // A build without jemalloc counts no memory.
    if let Some(allocator) = memory::figures() {
        let used = allocator.used.saturating_sub(server.memory.reusable_bytes());
        for (metric, bytes) in [
            (&USED, used),
            (&PEAK, server.memory.note_peak(used)),
            (&STARTUP, server.stats.history.startup_memory.load(Ordering::Relaxed)),
            (&ALLOCATED, allocator.allocated),
            (&FRAGMENTED, allocator.fragmented),
            (&ACTIVE, allocator.active),
            (&ALLOCATOR_RESIDENT, allocator.resident),
            (&RETAINED, allocator.retained),
            (&METADATA, allocator.metadata),
        ] {
            out.single(metric, bytes);
        }
    }
    out.single(&LIMIT, server.config.unsigned(id::MAXMEMORY));
    out.single(&NOT_COUNTED, server.uncounted_memory());
    if let Some(bytes) = process::resident_bytes() {
        out.single(&RESIDENT, bytes);
    }
    out.single(&LAZYFREE_PENDING, server.background.lazyfree.pending());
    out.single(&LAZYFREED, server.background.lazyfree.freed());
    let defragmentation = &server.stats.defragmentation;
    out.single(&DEFRAG_MOVED, defragmentation.moved.load(Ordering::Relaxed));
    out.single(&DEFRAG_KEPT, defragmentation.kept.load(Ordering::Relaxed));
    out.single(&DEFRAG_SECONDS, defragmentation.total().as_secs_f64());
    out.single(&DEFRAG_CPU, f64::from(defragmentation.running_percent()) / 100.0);
}
