//! The configuration parameters that commands read, copied from the configuration when it changes.

use std::time::Duration;

use crate::keyspace::clock::AccessClock;
use crate::keyspace::eviction::EvictionPolicy;
use crate::state::Server;
use weft_config::{ClientClass, Config, OutputBufferLimit, id};
use weft_os::atomic::Ordering;

/// A thread's copy of the parameters.
#[derive(Clone, Debug, Default)]
pub struct Tunables {
    /// The configuration's generation that this copy reflects; `None` before the first refresh. That one reports a
    /// change, so that its caller derives what depends on parameters, also from those of the start.
    pub generation: Option<u64>,
    /// `prefetch-batch-max-size`. 0 and 1 disable prefetching.
    pub prefetch_depth: usize,
    /// `proto-max-bulk-len`, in bytes.
    pub max_bulk_len: u64,
    /// `client-query-buffer-limit`, in bytes.
    pub query_buffer_limit: usize,
    /// `client-output-buffer-limit` of normal clients.
    pub output_limit: OutputBufferLimit,
    /// `client-output-buffer-limit` of subscribers.
    pub pubsub_output_limit: OutputBufferLimit,
    /// `true` if outputs count before they are sent, as if they were reply lists (DEBUG CLIENT-ENFORCE-REPLY-LIST).
    pub enforces_reply_list: bool,
    /// `min-string-size-avoid-copy-reply`, in bytes; `usize::MAX` if every reply is copied.
    pub min_shared_reply_bytes: usize,
    /// `lazyfree-lazy-expire`.
    pub lazy_expire: bool,
    /// `true` if any rule on memory or data may refuse a command.
    pub has_write_restrictions: bool,
    /// `maxmemory`, in bytes; 0 for no limit.
    pub max_memory: u64,
    /// `maxmemory-clients`, in bytes; 0 for no limit.
    pub client_memory: u64,
    /// `maxmemory-policy`; `None` if nothing is evicted.
    pub eviction_policy: Option<EvictionPolicy>,
    /// `maxmemory-samples`.
    pub eviction_samples: usize,
    /// `maxmemory-eviction-tenacity`, as the time that eviction may take before a command.
    pub eviction_time: Duration,
    /// `lazyfree-lazy-eviction`.
    pub lazy_eviction: bool,
    /// `true` if writes are refused because the append-only file cannot be written.
    pub is_aof_failing: bool,
    /// `true` if writes are refused because the last RDB save has failed (`stop-writes-on-bgsave-error`).
    pub refuses_writes: bool,
    /// `timeout`, in seconds; 0 for none.
    pub timeout_s: u64,
    /// `connection-move-interval`, in milliseconds; 0 for no random moves.
    pub connection_move_interval_ms: u64,
    /// The access clock, without the current time.
    pub clock: AccessClock,
    /// `latency-tracking`.
    pub latency_tracking: bool,
    /// `cluster-slot-stats-enabled`, in cluster mode.
    pub slot_stats: bool,
    /// `commandlog-execution-slower-than`, in nanoseconds; `u64::MAX` when disabled.
    pub slow_ns: u64,
    /// `commandlog-request-larger-than`, in bytes; `usize::MAX` when disabled.
    pub large_request_bytes: usize,
    /// `commandlog-reply-larger-than`, in bytes; `usize::MAX` when disabled.
    pub large_reply_bytes: usize,
    /// `latency-monitor-threshold`, in nanoseconds; `u64::MAX` when disabled.
    pub latency_event_ns: u64,
}

/// The smallest effective limit of clients' memory, in bytes. Below it, clients could not even raise the limit.
const MIN_CLIENT_MEMORY: u64 = 128 * 1024;

/// Returns the limit of all clients' memory in bytes; 0 without a limit.
fn max_client_memory(config: &Config, max_memory: u64) -> u64 {
    let bytes = match config.integer(id::MAXMEMORY_CLIENTS) {
        0 => return 0,
        percent if percent < 0 && max_memory > 0 => (max_memory as f64 * -(percent as f64) / 100.0) as u64,
        percent if percent < 0 => u64::MAX,
        bytes => bytes as u64,
    };
    bytes.max(MIN_CLIENT_MEMORY)
}

/// Returns `true` if writes must be refused, so that an operator who relies on dumps notices that they fail.
pub(super) fn must_refuse_writes(server: &Server) -> bool {
    server.persistence.dumps.has_last_save_failed.load(Ordering::Relaxed)
        && server.config.boolean(id::STOP_WRITES_ON_BGSAVE_ERROR)
        && !server.config.save_points().is_empty()
}

impl Tunables {
    /// Copies the parameters again if they have changed since the last copy. Returns `true` if they have changed.
    #[inline]
    pub fn refresh(&mut self, server: &Server) -> bool {
        let generation = Some(server.config.generation());
        debug_assert!(
            generation >= self.generation,
            "the generation of the configuration does not go back"
        );
        let changed = generation != self.generation;
        if changed {
            *self = Self::from_server(server);
            self.generation = generation;
        }
        changed
    }

    /// Reads a new copy of the parameters.
    pub fn from_server(server: &Server) -> Self {
        let config = &server.config;
        let bytes = |parameter| usize::try_from(config.integer(parameter)).unwrap_or(usize::MAX);
        // A negative threshold disables a log.
        let threshold_ns =
            |parameter| u64::try_from(config.integer(parameter)).map_or(u64::MAX, |us| us.saturating_mul(1000));
        let policy = config.choice(id::MAXMEMORY_POLICY);
        let max_memory = config.unsigned(id::MAXMEMORY);
        let refuses_writes = must_refuse_writes(server);
        let is_aof_failing = server.persistence.aof.refuses_writes();
        Tunables {
            has_write_restrictions: max_memory > 0 || refuses_writes || is_aof_failing,
            is_aof_failing,
            refuses_writes,
            generation: None,
            prefetch_depth: bytes(id::PREFETCH_BATCH_MAX_SIZE),
            max_bulk_len: config.integer(id::PROTO_MAX_BULK_LEN).max(0) as u64,
            query_buffer_limit: bytes(id::CLIENT_QUERY_BUFFER_LIMIT),
            output_limit: config.output_buffer_limits()[ClientClass::Normal as usize],
            enforces_reply_list: server.stats.history.enforces_reply_list.load(Ordering::Relaxed),
            pubsub_output_limit: config.output_buffer_limits()[ClientClass::Pubsub as usize],
            min_shared_reply_bytes: match bytes(id::MIN_STRING_SIZE_AVOID_COPY_REPLY) {
                0 => usize::MAX,
                bytes => bytes,
            },
            lazy_expire: config.boolean(id::LAZYFREE_LAZY_EXPIRE),
            max_memory,
            client_memory: max_client_memory(config, max_memory),
            eviction_policy: EvictionPolicy::from_name(policy),
            eviction_samples: bytes(id::MAXMEMORY_SAMPLES),
            eviction_time: eviction_time_limit(config.integer(id::MAXMEMORY_EVICTION_TENACITY)),
            lazy_eviction: config.boolean(id::LAZYFREE_LAZY_EVICTION),
            timeout_s: config.integer(id::TIMEOUT).max(0) as u64,
            connection_move_interval_ms: config.unsigned(id::CONNECTION_MOVE_INTERVAL),
            clock: AccessClock {
                now_s: 0,
                is_lfu: policy.ends_with("lfu"),
                lfu_log_factor: config.integer(id::LFU_LOG_FACTOR),
                lfu_decay_minutes: config.integer(id::LFU_DECAY_TIME),
            },
            latency_tracking: config.boolean(id::LATENCY_TRACKING),
            slot_stats: server.cluster.is_some() && config.boolean(id::CLUSTER_SLOT_STATS_ENABLED),
            slow_ns: threshold_ns(id::COMMANDLOG_EXECUTION_SLOWER_THAN),
            large_request_bytes: bytes(id::COMMANDLOG_REQUEST_LARGER_THAN),
            large_reply_bytes: bytes(id::COMMANDLOG_REPLY_LARGER_THAN),
            latency_event_ns: match config.integer(id::LATENCY_MONITOR_THRESHOLD) {
                0 => u64::MAX,
                ms => (ms as u64).saturating_mul(1_000_000),
            },
        }
    }
}

/// Returns how long eviction may take before a command, on Valkey's scale. The highest tenacity has no limit.
fn eviction_time_limit(tenacity: i64) -> Duration {
    match tenacity {
        ..=10 => Duration::from_micros(50 * tenacity.max(0) as u64),
        11..=99 => Duration::from_micros((500.0 * 1.15f64.powi(tenacity as i32 - 10)) as u64),
        _ => Duration::MAX,
    }
}

#[cfg(test)]
mod tests;
