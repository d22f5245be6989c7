//! Client eviction: disconnects the largest clients when all clients exceed `maxmemory-clients`.
//!
//! Clients are counted after each receive, before the input runs, and after each write. A worker that finds the sum
//! above the limit evicts its own clients in the bucket of the largest ones; if other workers have those, it wakes
//! them.
//!
//! The input buffer of a small request that runs is the worker's. A client that leaves a part of a request in it keeps
//! it, and is counted with all of it.

use super::Worker;
use crate::dispatch::batch::BatchConnections as _;
use crate::net::client::ClientFlags;
use crate::net::connection::Connection;
use crate::net::usage::ClientUsage;
use crate::observability::metrics::Counter;
use weft_config::id;

/// Clients that are never evicted.
const NEVER_EVICTED: ClientFlags = ClientFlags::NO_EVICT
    .union(ClientFlags::PRIMARY)
    .union(ClientFlags::REPLICA);

/// The size in bytes up to which a completely received request is not counted: it is executed soon, and its buffer is
/// the worker's.
const SMALL_REQUEST_BYTES: usize = 16 * 1024;

/// Returns the memory of a client without a small request that is about to run.
fn accountable_bytes(connection: &Connection, in_flight: usize) -> usize {
    let buffers = connection.buffers(in_flight);
    let is_small = connection.missing_bytes == 0 && connection.unexecuted_bytes() <= SMALL_REQUEST_BYTES;
    match connection.is_in_batch && is_small {
        true => buffers.total - connection.input_memory(),
        false => buffers.total,
    }
}

impl Worker {
    /// Counts the current memory of a client, if there is a limit.
    #[inline]
    pub(crate) fn count_client(&mut self, token: usize) {
        if self.thread.tunables.client_memory != 0 {
            self.update_client_usage(token);
        }
    }

    /// Counts the memory of a client from which `received` bytes have come, and evicts clients if they exceed the
    /// limit. A small request without an earlier part is not counted: if it turns out to be a part itself, the client
    /// is counted once that is planned.
    #[inline(never)]
    pub(crate) fn count_receiving_client(&mut self, token: usize, received: usize) {
        let is_new = self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.unexecuted_bytes() == received);
        if !is_new || received > SMALL_REQUEST_BYTES {
            self.update_client_usage(token);
        }
        self.evict_clients();
    }

    #[inline(never)]
    fn update_client_usage(&mut self, token: usize) {
        let in_flight = self.in_flight_bytes(token);
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let flags = connection.client.flags;
        let usage = match flags.contains(ClientFlags::CLOSE_ASAP) {
            true => ClientUsage::default(),
            false => ClientUsage::new(
                accountable_bytes(connection, in_flight),
                !flags.intersects(NEVER_EVICTED),
            ),
        };
        let before = std::mem::replace(&mut connection.usage, usage);
        if usage != before {
            self.thread.server.clients.memory.update(self.id, before, usage);
        }
    }

    /// Stops counting a client that has left this worker.
    pub(crate) fn uncount_client(&mut self, before: ClientUsage) {
        if before != ClientUsage::default() {
            let memory = &self.thread.server.clients.memory;
            memory.update(self.id, before, ClientUsage::default());
        }
    }

    /// Counts all clients, and evicts some if they exceed the limit.
    pub(crate) fn recount_clients(&mut self) {
        // The limit may have changed since the last batch began.
        self.thread.refresh_tunables();
        for token in 0..self.clients.slots.len() {
            self.count_client(token);
        }
        self.evict_clients();
    }

    /// Evicts clients, the largest first, until all together are below the limit.
    #[inline]
    pub(crate) fn evict_clients(&mut self) {
        let limit = self.thread.tunables.client_memory;
        if limit != 0 && self.thread.server.clients.memory.bytes() >= limit {
            self.evict_largest(limit);
        }
    }

    #[cold]
    fn evict_largest(&mut self, limit: u64) {
        let server = self.thread.server.clone();
        // What can be sent does not count.
        self.send_pending();
        while server.clients.memory.bytes() >= limit {
            let Some(bucket) = server.clients.memory.largest_bucket() else {
                return;
            };
            let is_in = |worker: &mut Worker, token| {
                let connection = worker.clients.connection(token);
                connection.is_some_and(|connection| connection.usage.is_in(bucket))
            };
            match (0..self.clients.slots.len()).find(|token| is_in(self, *token)) {
                Some(token) => self.evict_client(token),
                None => {
                    for owner in server
                        .clients
                        .memory
                        .workers_in(bucket)
                        .filter(|owner| *owner != self.id)
                    {
                        server.worker(owner).request_client_recount();
                    }
                    return;
                }
            }
        }
    }

    fn evict_client(&mut self, token: usize) {
        let in_flight = self.in_flight_bytes(token);
        let now_ms = self.thread.now_ms;
        let hides_user_data = self.thread.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let buffers = connection.buffers(in_flight);
        let line = connection.client.log_line(now_ms, buffers, hides_user_data);
        crate::observability::log::notice!("Evicting client: {line}");
        // A connection in a batch is closed at the end of the turn.
        let before = std::mem::take(&mut connection.usage);
        self.uncount_client(before);
        let metrics = &self.thread.server.stats.metrics;
        metrics.add(self.thread.thread_index, Counter::EvictedClients, 1);
        self.close(token);
    }
}
