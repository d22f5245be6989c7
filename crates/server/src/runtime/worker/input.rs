//! A worker's handling of input: receiving, planning, reusing buffers.

use super::{Worker, tls};
use crate::dispatch::admit::must_authenticate;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::plan::InputRest;
use crate::dispatch::plan::Planner;
use crate::dispatch::transaction::discard_client_snapshots;
use crate::net::client::ClientFlags;
use crate::net::connection::{Connection, ConnectionState, MAX_HOLD_UP_MS};
use crate::observability::metrics::Counter;
use weft_config::id;
use weft_reactor::{Output, ReceiveOutcome};

/// The unexecuted input that an unauthenticated client may leave, in bytes.
const UNAUTHENTICATED_QUERY_BYTES: usize = 1 << 20;
/// The space reserved for each receive, in bytes.
const RECEIVE_BYTES: usize = 64 * 1024;
/// The largest space reserved at once for a large argument, in bytes.
const RECEIVE_LARGE_BYTES: usize = 1 << 20;
/// The time without input after which that space is freed, in milliseconds.
const IDLE_INPUT_MS: u64 = 2000;
/// The maximum number of bytes of one receive, except for a large argument. A long request leaves a buffer with space
/// for megabytes, and all other connections would wait while a client fills it. No pooled buffer has more space.
const MAX_RECEIVED_BYTES: usize = POOLED_BYTES;
/// The number of buffers kept for reuse; larger ones are freed.
const POOLED_BUFFERS: usize = 64;
/// The number of buffers that a worker needs for one connection: for its input, and for its output.
const BUFFERS_PER_CONNECTION: usize = 2;
/// The maximum size of a pooled buffer, in bytes.
const POOLED_BYTES: usize = 256 * 1024;
/// The same while memory is limited, since the limit does not count pooled buffers.
const POOLED_BUFFERS_IF_LIMITED: usize = 16;
const POOLED_BYTES_IF_LIMITED: usize = 80 * 1024;

impl Worker {
    pub(crate) fn receive(&mut self, token: usize) {
        self.send_pending_of(token);
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if connection.is_in_batch {
            // The plans point into the input: run them first.
            self.run_batch();
            self.send_pending_if_due();
            return self.receive(token);
        }
        // A connection with requests left is not read further: a client that only sends would fill the memory, and its
        // input would be moved again and again.
        if connection.has_more_requests
            || !matches!(connection.state, ConnectionState::Ready | ConnectionState::Deferred)
        {
            connection.is_receive_paused = true;
            self.reactor.pause(token);
            return;
        }
        if connection.input.capacity() == 0 {
            if let Some(buffer) = self.buffers.pop() {
                self.pooled_bytes -= buffer.capacity();
                connection.input = buffer;
            } else {
                connection.input.reserve_exact(RECEIVE_BYTES);
                self.thread.memory_limit.new_buffer_bytes += RECEIVE_BYTES as u64;
            }
        }
        let (min_capacity, max_bytes) = prepare_receive(connection);
        let max_record_bytes = connection.missing_bytes.clamp(RECEIVE_BYTES, RECEIVE_LARGE_BYTES);
        let received = match connection.tls.clone() {
            None => {
                let input = &mut connection.input;
                self.reactor.receive_at_most(token, input, min_capacity, max_bytes)
            }
            Some(tls) => tls::receive_decrypted(
                &tls,
                connection,
                &mut self.reactor,
                token,
                &self.thread,
                &mut self.handshake_count,
                max_record_bytes,
            ),
        };
        let count = match received {
            Ok(ReceiveOutcome::Bytes { count, .. }) => count,
            Ok(ReceiveOutcome::WouldBlock) => return self.handle_empty_receive(token),
            Ok(ReceiveOutcome::Closed) => return self.handle_end_of_input(token),
            Err(_) => return self.handle_broken_connection(token),
        };
        connection.client.net_input_bytes += count as u64;
        connection.client.last_interaction_ms = self.thread.now_ms;
        // Commands queued for EXEC have not been executed either.
        let queued = connection.client.transaction.as_ref();
        let pending = connection.unexecuted_bytes() + queued.map_or(0, |transaction| transaction.queued_bytes());
        let over_limit = pending > self.thread.tunables.query_buffer_limit
            || (pending > UNAUTHENTICATED_QUERY_BYTES && must_authenticate(&self.thread.server, &connection.client));
        let metrics = &self.thread.server.stats.metrics;
        metrics.add(self.thread.thread_index, Counter::NetInputBytes, count as u64);
        metrics.add(self.thread.thread_index, Counter::Reads, 1);
        if over_limit {
            metrics.add(self.thread.thread_index, Counter::QueryBufferDisconnections, 1);
            let hides_user_data = self.thread.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
            let buffers = connection.buffers(0);
            let line = connection.client.log_line(self.thread.now_ms, buffers, hides_user_data);
            crate::observability::log::warning!("Closing client that reached max query buffer length: {line}");
            return self.close(token);
        }
        if self.thread.tunables.client_memory != 0 {
            self.count_receiving_client(token, count);
        }
        self.plan_requests(token);
    }

    /// Handles a receive without bytes. For a debugger session this may be its end.
    #[cold]
    fn handle_empty_receive(&mut self, token: usize) {
        self.release_input_buffer(token);
        if self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.should_close_after_output())
        {
            self.flush_output(token);
        }
    }

    pub(crate) fn plan_requests(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if connection.is_in_batch {
            return;
        }
        let is_between_requests = matches!(connection.state, ConnectionState::Ready | ConnectionState::Deferred);
        if connection.is_moving_home && is_between_requests {
            return self.move_home(token);
        }
        if let Some(full_mailbox) = connection.full_mailbox.filter(|_| is_between_requests) {
            let link = self.thread.server.worker(full_mailbox.worker);
            let left_ms = full_mailbox.until_ms.saturating_sub(self.thread.now_ms);
            // The clock may have been set back.
            if link.is_mailbox_full() && (1..=MAX_HOLD_UP_MS).contains(&left_ms) {
                // It is not read either. EXEC needs snapshots of the time at which it runs.
                discard_client_snapshots(&mut connection.client);
                connection.has_more_requests = true;
                self.delayed_tokens.push(token);
                return;
            }
            connection.full_mailbox = None;
        }
        if connection.state == ConnectionState::Deferred {
            connection.state = ConnectionState::Ready;
        }
        if connection.state != ConnectionState::Ready
            || connection.client.flags.contains(ClientFlags::CLOSE_AFTER_REPLY)
        {
            return;
        }
        let planner = Planner {
            keyspace: &self.thread.server.keyspace,
            max_bulk_len: self.thread.tunables.max_bulk_len,
            must_authenticate: must_authenticate(&self.thread.server, &connection.client),
            is_prefetch_enabled: self.thread.tunables.prefetch_depth > 1,
            commands: crate::commands::registry(),
        };
        let rest = planner.plan(token, connection, &mut self.plans);
        if connection.is_in_batch
            && connection.output.bytes.capacity() == 0
            && let Some(buffer) = self.buffers.pop()
        {
            self.pooled_bytes -= buffer.capacity();
            connection.output.bytes = buffer;
        }
        connection.has_more_requests = rest == InputRest::More;
        connection.missing_bytes = match rest {
            InputRest::Partial(wanted) => wanted,
            InputRest::Nothing | InputRest::More => 0,
        };
        if !connection.has_more_requests
            && !connection.is_input_complete
            && std::mem::take(&mut connection.is_receive_paused)
        {
            self.reactor.resume(token);
        }
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if !connection.is_in_batch {
            // There is no complete request yet, or only empty requests.
            let ends = connection.should_close_after_output();
            self.release_input_buffer(token);
            match ends {
                true => self.flush_output(token),
                // The connection keeps the buffer with the rest of the input.
                false => self.count_client(token),
            }
        }
    }

    /// Handles the peer's half-close of a connection that is not read at the moment. Requests that were received, or
    /// are still to be received, are executed and answered. A client that is blocked, as in BLPOP, is disconnected.
    pub(crate) fn handle_half_close(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.is_peer_done = true;
        self.thread
            .server
            .clients
            .directory
            .note_end_of_input(connection.client.id);
        let has_work = connection.has_work();
        if self.is_waiting_for_others(token) {
            self.disconnect_blocked(token);
        } else if !has_work {
            self.resume_connection(token);
        }
    }

    /// Disconnects a client that is blocked and will send no more. Its earlier replies, which may wait for the log or
    /// for the socket, are sent first; what it sent behind the command that blocks is not executed.
    pub(crate) fn disconnect_blocked(&mut self, token: usize) {
        let has_unsent = self.in_flight_bytes(token) > 0;
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if connection.output.is_empty() && !has_unsent {
            return self.close(token);
        }
        let client = connection.client.id;
        connection.is_input_complete = true;
        connection.client.flags.insert(ClientFlags::CLOSE_AFTER_REPLY);
        connection.client.flags.remove(ClientFlags::BLOCKED);
        connection.state = ConnectionState::Ready;
        connection.has_more_requests = false;
        self.reactor.pause(token);
        self.abandon_wait(client);
        self.flush_output(token);
    }

    /// Everything that the peer sent was received: the connection is closed once that is executed and answered.
    fn handle_end_of_input(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.is_peer_done = true;
        self.thread
            .server
            .clients
            .directory
            .note_end_of_input(connection.client.id);
        connection.is_input_complete = true;
        let listens = connection
            .client
            .flags
            .intersects(ClientFlags::PUBSUB.union(ClientFlags::MONITOR));
        let is_answered = connection.should_close_after_output() && connection.output.is_empty();
        let listens = listens && !connection.has_work();
        if self.is_waiting_for_others(token) {
            self.disconnect_blocked(token);
        } else if listens || (is_answered && self.in_flight_bytes(token) == 0) {
            self.close(token);
        } else {
            self.reactor.pause(token);
        }
    }

    /// Handles a broken connection, whose replies nothing reads. Requests that were received are executed nevertheless,
    /// but not those behind a request that ends the connection, such as QUIT: nothing would close it after them.
    pub(crate) fn handle_broken_connection(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.is_peer_done = true;
        self.thread
            .server
            .clients
            .directory
            .note_end_of_input(connection.client.id);
        connection.is_input_complete = true;
        connection.output = Output::new();
        let is_over = connection.should_close_after_output() && !connection.is_in_batch;
        if is_over || !connection.has_work() || self.is_waiting_for_others(token) {
            self.close(token);
        } else {
            self.reactor.pause(token);
        }
    }

    /// Returns an emptied input buffer to the pool.
    pub(crate) fn release_input_buffer(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.discard_consumed_if_cheap();
        if connection.input.is_empty() {
            let buffer = std::mem::take(&mut connection.input);
            self.recycle_buffer(buffer);
        } else {
            if connection.has_oversized_input() {
                let needed_bytes = connection.input.len() + connection.missing_bytes;
                let mut rest = Vec::with_capacity(needed_bytes.max(RECEIVE_BYTES));
                rest.extend_from_slice(&connection.input);
                connection.input = rest;
            }
            self.has_unused_input |= has_unused_input(connection);
        }
    }

    /// Frees the space that was reserved for the rest of a large argument, if its client has sent nothing for a while.
    pub(crate) fn shrink_idle_inputs(&mut self) {
        self.has_unused_input = false;
        let now_ms = self.thread.now_ms;
        for token in 0..self.clients.slots.len() {
            let Some(connection) = self.clients.connection(token) else {
                continue;
            };
            if connection.is_in_batch || !has_unused_input(connection) {
                continue;
            }
            if now_ms.saturating_sub(connection.client.last_interaction_ms) > IDLE_INPUT_MS {
                let kept_bytes = connection.input.len().max(RECEIVE_BYTES);
                connection.input.shrink_to(kept_bytes);
            } else {
                self.has_unused_input = true;
            }
        }
    }

    /// Returns the number of buffers that are kept for reuse.
    pub(super) fn max_pooled_buffers(&self) -> usize {
        match self.thread.tunables.max_memory {
            0 => POOLED_BUFFERS,
            _ => POOLED_BUFFERS_IF_LIMITED,
        }
    }

    pub(crate) fn recycle_buffer(&mut self, mut buffer: Vec<u8>) {
        let buffers = self.max_pooled_buffers();
        let bytes = match self.thread.tunables.max_memory {
            0 => POOLED_BYTES,
            _ => POOLED_BYTES_IF_LIMITED,
        };
        if buffer.capacity() == 0 || buffer.capacity() > bytes || self.buffers.len() >= buffers {
            return;
        }
        buffer.clear();
        if buffer.capacity() < RECEIVE_BYTES {
            // A small one would grow as soon as it is used again, and then count as used memory.
            if self.buffers.len() >= BUFFERS_PER_CONNECTION {
                return;
            }
            buffer.reserve_exact(RECEIVE_BYTES);
        }
        self.pooled_bytes += buffer.capacity();
        self.buffers.push(buffer);
    }

    /// Publishes the bytes of kept buffers, if they have changed since the last turn.
    #[inline]
    pub(crate) fn publish_pooled_bytes(&mut self) {
        self.thread.memory_limit.new_buffer_bytes = 0;
        if self.pooled_bytes != self.published_pooled_bytes {
            let change = self.pooled_bytes as i64 - self.published_pooled_bytes as i64;
            self.published_pooled_bytes = self.pooled_bytes;
            self.server().memory.add_reusable(self.id, change);
        }
    }
}

/// Returns `true` if a connection uses less than half of its input buffer, which has more than the usual size.
fn has_unused_input(connection: &Connection) -> bool {
    connection.input.capacity() > 2 * connection.input.len().max(RECEIVE_BYTES)
}

/// Returns the space that the next receive of a connection needs in its input buffer, and the maximum that it takes,
/// both in bytes. A buffer that a large argument has filled grows here, never beyond what the argument lacks: the
/// connection keeps the buffer until all of it has arrived.
fn prepare_receive(connection: &mut Connection) -> (usize, usize) {
    let (input, missing_bytes) = (&mut connection.input, connection.missing_bytes);
    let max_bytes = match missing_bytes > MAX_RECEIVED_BYTES {
        true => usize::MAX,
        false => MAX_RECEIVED_BYTES,
    };
    if missing_bytes == 0 || input.len() < RECEIVE_BYTES {
        return (missing_bytes.clamp(RECEIVE_BYTES, RECEIVE_LARGE_BYTES), max_bytes);
    }
    let min_capacity = missing_bytes.min(RECEIVE_BYTES);
    if input.capacity() - input.len() < min_capacity {
        input.reserve_exact(missing_bytes.min(RECEIVE_LARGE_BYTES.max(input.len() / 8)));
    }
    (min_capacity, max_bytes)
}
