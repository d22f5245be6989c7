//! The parameters of memory: limits, eviction, expiry, freeing, defragmentation.

use super::ChangeAction::{CheckMemoryLimit, Evict, RecountClients};
use super::{Choices, I32_MAX, MIB, U64_MAX, boolean, choice, integer, memory, memory_or_percent};

const MAXMEMORY_POLICIES: Choices = &[
    ("volatile-lru", 1),
    ("volatile-lfu", 258),
    ("volatile-random", 768),
    ("volatile-ttl", 512),
    ("allkeys-lru", 1029),
    ("allkeys-lfu", 1286),
    ("allkeys-random", 1540),
    ("noeviction", 1792),
];

super::table! {
    MAXMEMORY "maxmemory" = memory(0, 0, U64_MAX).unsigned().on_change(&[CheckMemoryLimit, Evict, RecountClients]),
        Active, "Bytes of data above which writes are refused or keys are evicted; 0 sets no limit.";
    MAXMEMORY_POLICY "maxmemory-policy" = choice(MAXMEMORY_POLICIES, "noeviction").on_change(&[Evict]),
        Active, "Keys evicted above the limit: none (noeviction), or chosen by LRU, LFU, TTL or at random.";
    MAXMEMORY_SAMPLES "maxmemory-samples" = integer(5, 1, 64),
        Active, "Keys compared to find the best one to evict.";
    MAXMEMORY_EVICTION_TENACITY "maxmemory-eviction-tenacity" = integer(10, 0, 100),
        Active, "Duration of one eviction run: 0 yields often, 100 continues until memory is below the limit.";
    MAXMEMORY_CLIENTS "maxmemory-clients" = memory_or_percent(0, -100, i64::MAX).on_change(&[RecountClients]),
        Active, "Memory all clients together may use, in bytes or per cent of maxmemory; 0 sets no limit.";
    LFU_LOG_FACTOR "lfu-log-factor" = integer(10, 0, I32_MAX),
        Active, "Accesses needed to raise the access counter; higher values need more.";
    LFU_DECAY_TIME "lfu-decay-time" = integer(1, 0, I32_MAX),
        Active, "Minutes after which an unused key's access counter falls by one; 0 never lowers it.";
    ACTIVE_EXPIRE_EFFORT "active-expire-effort" = integer(1, 1, 10),
        NotImplemented, "Effort spent on finding expired keys in the background, 1 to 10.";
    LAZYFREE_LAZY_EVICTION "lazyfree-lazy-eviction" = boolean(true).debug(),
        Active, "Free evicted values on a background thread.";
    LAZYFREE_LAZY_EXPIRE "lazyfree-lazy-expire" = boolean(true).debug(),
        Active, "Free expired values on a background thread.";
    LAZYFREE_LAZY_SERVER_DEL "lazyfree-lazy-server-del" = boolean(true).debug(),
        Active, "Free values that commands overwrite or move on a background thread.";
    LAZYFREE_LAZY_USER_DEL "lazyfree-lazy-user-del" = boolean(true).debug(),
        Active, "Let DEL free in the background, as UNLINK does.";
    LAZYFREE_LAZY_USER_FLUSH "lazyfree-lazy-user-flush" = boolean(true).debug(),
        Active, "Let FLUSHALL and FLUSHDB free in the background unless they specify otherwise.";
    ACTIVEDEFRAG "activedefrag" = boolean(false).debug(),
        Active, "Move keys and values together while much memory lies in gaps between them, and return it.";
    ACTIVE_DEFRAG_IGNORE_BYTES "active-defrag-ignore-bytes" = memory(100 * MIB, 1, i64::MAX).unsigned(),
        Active, "Bytes of fragmentation that are ignored.";
    ACTIVE_DEFRAG_THRESHOLD_LOWER "active-defrag-threshold-lower" = integer(10, 0, 1000),
        Active, "Per cent of fragmentation at which defragmentation starts.";
    ACTIVE_DEFRAG_THRESHOLD_UPPER "active-defrag-threshold-upper" = integer(100, 0, 1000),
        Active, "Per cent of fragmentation at which it works at full effort.";
    ACTIVE_DEFRAG_CYCLE_MIN "active-defrag-cycle-min" = integer(1, 1, 99),
        Active, "Per cent of the time of one CPU that it takes at the lower threshold.";
    ACTIVE_DEFRAG_CYCLE_MAX "active-defrag-cycle-max" = integer(25, 1, 99),
        Active, "Per cent of the time of one CPU that it takes at the upper threshold.";
    ACTIVE_DEFRAG_CYCLE_US "active-defrag-cycle-us" = integer(500, 0, 100_000),
        Active, "Microseconds one cycle of defragmentation takes; it sleeps between cycles.";
    ACTIVE_DEFRAG_MAX_SCAN_FIELDS "active-defrag-max-scan-fields" = integer(1000, 1, i64::MAX).unsigned(),
        Active, "Parts of one collection that are looked at in a single step, at most 800.";
    TRACKING_TABLE_MAX_KEYS "tracking-table-max-keys" = integer(1_000_000, 0, i64::MAX).unsigned(),
        Active, "Keys remembered for clients that cache on their side; 0 sets no limit.";
}
