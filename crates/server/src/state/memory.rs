//! The memory that counts as used, and the actions when it exceeds the limit.

use super::{Message, Server};
use weft_base::DbIndex;
use weft_config::id;
use weft_os::atomic::Ordering;

impl Server {
    /// Returns the bytes that do not count for eviction: data that replicas still need beyond the size of the backlog,
    /// data that the append-only file has not received yet, before-images of a snapshot, and writes that the targets of
    /// slot migrations have not accepted yet. Evicting keys because of them would add to them.
    pub fn uncounted_memory(&self) -> u64 {
        let backlog_size = self.config.unsigned(id::REPL_BACKLOG_SIZE);
        let for_replicas = self.replication.replicas.excess_stream_bytes(backlog_size);
        let for_snapshot = self.keyspace.before_images.held_bytes();
        let for_log =
            self.propagation.unread_memory() as u64 + self.persistence.aof.buffered_bytes.load(Ordering::Relaxed);
        for_replicas + for_snapshot + for_log + self.slot_migrations.unsent_bytes()
    }

    /// Returns the used memory in bytes, as far as it counts for eviction.
    ///
    /// Other threads change both numbers. What does not count grows before the used memory does, and shrinks after it.
    /// So the larger value, of those before and after the used memory was read, contains all of it that is used.
    pub fn counted_memory(&self) -> u64 {
        let before = self.uncounted_memory();
        let used = self.memory.used_bytes();
        used.saturating_sub(before.max(self.uncounted_memory()))
    }

    /// Records the used memory as that of the start. Called before data is loaded, and before there are threads that
    /// allocate. The allocator counts the free memory in the caches of threads one by one, and a thread that fills its
    /// cache meanwhile would add hundreds of kilobytes to this figure for ever.
    pub fn record_startup_memory(&self) {
        // Without the allocator's count, there are no figures of memory at all.
        if let Some(bytes) = self.memory.calibrate() {
            self.stats.history.startup_memory.store(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the approximate size of `keys` keys that have just been removed from the keyspace, in bytes.
    pub fn estimated_bytes_of_keys(&self, keys: u64) -> usize {
        let counts = &self.keyspace.counts;
        let left: u64 = DbIndex::all(counts.databases()).map(|db| counts.keys(db)).sum();
        let startup = self.stats.history.startup_memory.load(Ordering::Relaxed);
        let data = self.memory.used_bytes().saturating_sub(startup);
        (data as f64 * keys as f64 / (keys + left).max(1) as f64) as usize
    }

    /// Requests that a worker reads the allocator's count.
    pub fn request_memory_sample(&self) {
        if let Some(worker) = self.workers.first() {
            worker.send(Message::SampleMemory);
        }
    }

    /// Makes the workers evict keys if memory is above its limit.
    pub fn request_eviction(&self) {
        let limit = self.config.unsigned(id::MAXMEMORY);
        if limit == 0 || self.counted_memory() <= limit {
            return;
        }
        let active = self.lifecycle.active_workers.load(Ordering::Relaxed).max(1);
        for worker in self.workers.iter().take(active) {
            worker.send(Message::EvictDue);
        }
    }
}
