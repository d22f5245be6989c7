//! The parameters that the path of a command reads, copied out of the configuration when it changes.

use std::sync::atomic::Ordering;

use crate::config::{ClientClass, OutputBufferLimit, id};
use crate::keyspace::clock::AccessClock;
use crate::state::Server;

/// One worker's copy.
#[derive(Clone, Debug, Default)]
pub struct Tunables {
    /// The configuration's generation that this copy shows.
    pub generation: u64,
    /// `prefetch-batch-max-size`; 0 and 1 switch prefetching off.
    pub prefetch_depth: usize,
    /// `proto-max-bulk-len`, bytes.
    pub max_bulk_len: u64,
    /// `client-query-buffer-limit`, bytes.
    pub query_buffer_limit: usize,
    /// `client-output-buffer-limit` of normal clients.
    pub output_limit: OutputBufferLimit,
    /// The same of subscribers.
    pub pubsub_output_limit: OutputBufferLimit,
    /// `lazyfree-lazy-expire`.
    pub lazy_expire: bool,
    /// Whether there is any reason to look closer at what a command would do to memory or to data.
    pub guarded: bool,
    /// `maxmemory`, bytes; 0 for none.
    pub max_memory: u64,
    /// Whether writes are refused because the append-only file cannot be written.
    pub aof_fails: bool,
    /// Whether writes are refused because the last dump has failed (`stop-writes-on-bgsave-error`).
    pub refuses_writes: bool,
    /// `timeout`, seconds; 0 for none.
    pub timeout_s: u64,
    /// The access clock, without the time.
    pub clock: AccessClock,
    /// `latency-tracking`.
    pub latency_tracking: bool,
    /// Whether all clients are told that a script is busy (`busy-reply-scope`).
    pub busy_for_all: bool,
    /// `commandlog-execution-slower-than`, ns; `u64::MAX` when off.
    pub slow_ns: u64,
    /// `commandlog-request-larger-than`, bytes; `usize::MAX` when off.
    pub large_request: usize,
    /// `commandlog-reply-larger-than`, bytes; `usize::MAX` when off.
    pub large_reply: usize,
    /// `latency-monitor-threshold`, ns; `u64::MAX` when off.
    pub latency_event_ns: u64,
}

/// Whoever relies on dumps shall notice that there are none.
fn refuses_writes(server: &Server) -> bool {
    server.dumps.last_failed.load(Ordering::Relaxed)
        && server.config.boolean(id::STOP_WRITES_ON_BGSAVE_ERROR)
        && !server.config.save_points().is_empty()
}

impl Tunables {
    /// Copies the parameters if they changed since this copy was made.
    #[inline]
    pub fn refresh(&mut self, server: &Server) {
        let generation = server.config.generation();
        if generation != self.generation {
            *self = Self::read(server);
            self.generation = generation;
        }
    }

    /// A fresh copy.
    pub fn read(server: &Server) -> Self {
        let config = &server.config;
        let bytes = |parameter| usize::try_from(config.integer(parameter)).unwrap_or(usize::MAX);
        // Negative thresholds switch a log off.
        let threshold_ns =
            |parameter| u64::try_from(config.integer(parameter)).map_or(u64::MAX, |us| us.saturating_mul(1000));
        let policy = config.choice(id::MAXMEMORY_POLICY);
        let max_memory = config.integer(id::MAXMEMORY).max(0) as u64;
        let refuses_writes = refuses_writes(server);
        Tunables {
            guarded: max_memory > 0 || refuses_writes || server.aof.fails.load(Ordering::Relaxed),
            aof_fails: server.aof.fails.load(Ordering::Relaxed),
            refuses_writes,
            generation: config.generation(),
            prefetch_depth: bytes(id::PREFETCH_BATCH_MAX_SIZE),
            max_bulk_len: config.integer(id::PROTO_MAX_BULK_LEN).max(0) as u64,
            query_buffer_limit: bytes(id::CLIENT_QUERY_BUFFER_LIMIT),
            output_limit: config.output_buffer_limits()[ClientClass::Normal as usize],
            pubsub_output_limit: config.output_buffer_limits()[ClientClass::Pubsub as usize],
            lazy_expire: config.boolean(id::LAZYFREE_LAZY_EXPIRE),
            max_memory,
            timeout_s: config.integer(id::TIMEOUT).max(0) as u64,
            clock: AccessClock {
                now_s: 0,
                lfu: policy.ends_with("lfu"),
                lfu_log_factor: config.integer(id::LFU_LOG_FACTOR),
                lfu_decay_minutes: config.integer(id::LFU_DECAY_TIME),
            },
            latency_tracking: config.boolean(id::LATENCY_TRACKING),
            busy_for_all: config.choice(id::BUSY_REPLY_SCOPE) == "all",
            slow_ns: threshold_ns(id::COMMANDLOG_EXECUTION_SLOWER_THAN),
            large_request: bytes(id::COMMANDLOG_REQUEST_LARGER_THAN),
            large_reply: bytes(id::COMMANDLOG_REPLY_LARGER_THAN),
            latency_event_ns: match config.integer(id::LATENCY_MONITOR_THRESHOLD) {
                0 => u64::MAX,
                ms => (ms as u64).saturating_mul(1_000_000),
            },
        }
    }
}
