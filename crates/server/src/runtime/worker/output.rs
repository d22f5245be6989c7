//! A worker's handling of output: one write per connection and turn, and the limits of the output in flight.

use super::Worker;
use crate::commands::reply_limit::UNCHECKED_OUTPUT_BYTES;
use crate::dispatch::admit::must_authenticate;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::tunables::Tunables;
use crate::net::client::ClientFlags;
use crate::observability::metrics::Counter;
use weft_base::LogSequence;
use weft_cluster::WriteFate;
use weft_config::{OutputBufferLimit, id};
use weft_os::time::Instant;
use weft_reactor::SendOutcome;

/// The size of the reply buffer that a client of Valkey has, and of a block of its reply list, in bytes.
const REPLY_BUFFER_BYTES: usize = 16 * 1024;
/// The output that an unauthenticated client may leave unread in addition to its reply buffer, in bytes
/// (CVE-2025-21605).
const UNAUTHENTICATED_LIST_BYTES: usize = 1024;

/// Returns the limits of a client's class.
fn output_limit(tunables: &Tunables, flags: ClientFlags) -> &OutputBufferLimit {
    if flags.contains(ClientFlags::PUBSUB) {
        &tunables.pubsub_output_limit
    } else {
        &tunables.output_limit
    }
}

impl Worker {
    /// Sends the replies of the batches that have run.
    pub(super) fn send_pending(&mut self) {
        let tokens = self.pending_sends.take();
        for token in &tokens {
            self.flush_output(*token);
        }
        self.pending_sends.give_back(tokens);
    }

    /// Sends them if the next batch must not keep them waiting, or if they have too many bytes or buffers.
    pub(super) fn send_pending_if_due(&mut self) {
        let now = Instant::now();
        if self.pending_sends.are_due(now, self.max_pending_connections()) {
            self.send_pending();
            self.pending_sends.since = now;
        }
    }

    /// Sends them if a command of the planned batch may have to wait at the gate: for exclusive mode, or for the end of
    /// another thread's. A transaction of which the batch has both the first command and EXEC is not recognized.
    pub(super) fn send_pending_before_gate(&mut self) {
        if self.pending_sends.is_empty() {
            return;
        }
        let may_need_exclusive_mode = self.may_need_exclusive_mode();
        let clients = &mut self.clients;
        let is_exclusive = |token: &usize| {
            let connection = clients.connection(*token);
            let transaction = connection.and_then(|connection| connection.client.transaction.as_ref());
            transaction.is_some_and(|transaction| transaction.needs_exclusive)
        };
        if self.seat.gate_is_closing() || may_need_exclusive_mode || self.plans.tokens.iter().any(is_exclusive) {
            self.send_pending();
        }
    }

    /// Sends the replies of one connection before its next input is received, which may end it. The replies to that
    /// input then have limits of their own.
    #[inline]
    pub(super) fn send_pending_of(&mut self, token: usize) {
        let has_pending = self.clients.connection(token).is_some_and(|connection| {
            !connection.is_in_batch && !connection.is_output_withheld && !connection.output.is_empty()
        });
        if has_pending {
            self.flush_output(token);
        }
    }

    /// Returns the number of connections with pending replies after which these are sent: each of them holds a buffer,
    /// and no more are kept for reuse.
    pub(super) fn max_pending_connections(&self) -> usize {
        match cfg!(feature = "simulated") {
            true => 2,
            false => self.max_pooled_buffers(),
        }
    }

    pub(crate) fn flush_output(&mut self, token: usize) {
        self.send_output(token);
        self.count_client(token);
    }

    fn send_output(&mut self, token: usize) {
        if self.thread.tunables.enforces_reply_list && self.exceeds_limit_of_reply_list(token) {
            return;
        }
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let closing = connection.client.flags;
        if closing.contains(ClientFlags::CLOSE_ASAP) {
            return self.close(token);
        }
        let length = connection.output.len();
        let limit_bytes = output_limit(&self.thread.tunables, closing).hard_bytes;
        // Shared values that are sent now do not count: they take no additional memory. Messages behind a reply that is
        // still to come may wait for long.
        let copied = connection.output.bytes.len() + connection.deferred_output.len();
        if limit_bytes > 0 && copied > UNCHECKED_OUTPUT_BYTES && copied as u64 > limit_bytes {
            return self.close_over_output_limit(token, copied);
        }
        let (first, last) = (
            connection.client.unacknowledged_write,
            connection.client.last_write_sequence,
        );
        let may_be_lost = !first.is_none()
            && (self.thread.server.cluster.as_ref())
                .is_some_and(|cluster| cluster.fate_of_write(first) != WriteFate::Kept);
        if (may_be_lost && self.withhold_doubtful_output(token, first))
            || (self.thread.server.propagation.must_withhold_reply(last) && self.withhold_output_if_unlogged(token))
        {
            return self.check_withheld_output(token, limit_bytes);
        }
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if !connection.is_awaiting_reply() {
            // What is sent now has the replies to all its writes.
            connection.client.unacknowledged_write = LogSequence::NONE;
        }
        if length > 0 {
            connection.client.largest_output = connection.client.largest_output.max(length);
            connection.client.last_interaction_ms = self.thread.now_ms;
            let sent = match &connection.tls {
                None => self.reactor.send(token, &mut connection.output),
                Some(tls) => tls.send(&mut self.reactor, token, &mut connection.output),
            };
            connection.client.net_output_bytes += length as u64;
            let buffer = std::mem::take(&mut connection.output.bytes);
            let metrics = &self.thread.server.stats.metrics;
            metrics.add(self.thread.thread_index, Counter::NetOutputBytes, length as u64);
            metrics.add(self.thread.thread_index, Counter::Writes, 1);
            self.recycle_buffer(buffer);
            match sent {
                Ok(SendOutcome::Done) => self.handle_all_sent(token),
                Ok(SendOutcome::InFlight(bytes)) => {
                    self.check_output_limit(token, bytes);
                    return;
                }
                Err(_) => return self.handle_broken_connection(token),
            }
        } else {
            // A client that waits for others holds no empty buffer.
            let buffer = std::mem::take(&mut connection.output.bytes);
            self.recycle_buffer(buffer);
        }
        let done = self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.should_close_after_output());
        if done && self.in_flight_bytes(token) == 0 {
            self.close(token);
        }
    }

    /// Withholds a connection's output until its writes are on disk. Returns `true` if they are not yet.
    #[cold]
    fn withhold_output_if_unlogged(&mut self, token: usize) -> bool {
        let server = self.thread.server.clone();
        let Some(connection) = self.clients.connection(token) else {
            return false;
        };
        let sequence = connection.client.last_write_sequence;
        server.propagation.request_milestone_notice(self.id);
        // The log may have reached the sequence number before it was requested.
        if !server.propagation.must_withhold_reply(sequence) {
            return false;
        }
        self.withhold_output(token);
        true
    }

    /// Withholds a connection's output because a replica may have taken over without the client's writes, of which
    /// `first` is the first whose reply is not sent. If another node has taken over, the connection is closed: an error
    /// would say that the write was not made, and the new primary may have it. Returns `false` if the output may be
    /// sent after all.
    #[cold]
    fn withhold_doubtful_output(&mut self, token: usize, first: LogSequence) -> bool {
        let server = self.thread.server.clone();
        let Some(cluster) = &server.cluster else {
            return false;
        };
        server.propagation.request_milestone_notice(self.id);
        // The fate of the write may have been decided before the notice was requested.
        match cluster.fate_of_write(first) {
            WriteFate::Kept => return false,
            WriteFate::Doubtful => self.withhold_output(token),
            WriteFate::Lost => self.close(token),
        }
        true
    }

    fn withhold_output(&mut self, token: usize) {
        if let Some(connection) = self.clients.connection(token)
            && !std::mem::replace(&mut connection.is_output_withheld, true)
        {
            self.withheld_tokens.push(token);
        }
    }

    /// Closes a client whose withheld output exceeds its limit. The disk may stall for long, and shared values count
    /// too: messages keep them in memory.
    #[cold]
    fn check_withheld_output(&mut self, token: usize, limit_bytes: u64) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let withheld = connection.output.len() + connection.deferred_output.len();
        if limit_bytes > 0 && withheld > UNCHECKED_OUTPUT_BYTES && withheld as u64 > limit_bytes {
            self.close_over_output_limit(token, withheld);
        }
    }

    /// Sends withheld output as far as the log has advanced, and as it is certain that writes are not lost. Connections
    /// that were to leave this worker after that leave it.
    pub(crate) fn send_withheld(&mut self) {
        self.resume_logged_clients();
        for token in std::mem::take(&mut self.withheld_tokens) {
            if let Some(connection) = self.clients.connection(token) {
                connection.is_output_withheld = false;
            }
            self.flush_output(token);
        }
        self.retry_departures();
    }

    /// Records that another thread has logged a write of a connection's command, whose reply follows. The sequence
    /// number may be the one of an earlier write if the command has written nothing.
    pub(crate) fn record_write(&mut self, token: usize, sequence: LogSequence) {
        if let Some(connection) = self.clients.connection(token)
            && sequence > connection.client.last_write_sequence
        {
            connection.client.record_write(sequence);
        }
    }

    /// Records that everything in the log up to `last` counts as written by a connection's client. `first` is the first
    /// write of its command, whose reply follows, or none.
    pub(crate) fn record_log_sequence(&mut self, token: usize, first: LogSequence, last: LogSequence) {
        if let Some(connection) = self.clients.connection(token) {
            connection.client.record_log_sequence(first, last);
        }
    }

    pub(crate) fn handle_all_sent(&mut self, token: usize) {
        if let Some(connection) = self.clients.connection(token) {
            connection.over_soft_limit_since_ms = 0;
        }
    }

    /// Handles the completion of an output that was left in flight.
    pub(crate) fn handle_write_completion(&mut self, token: usize) {
        if !self.continue_encrypting(token) {
            return;
        }
        self.handle_all_sent(token);
        self.count_client(token);
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if !connection.should_close_after_output() {
            return;
        }
        if connection.output.is_empty() {
            self.close(token);
        } else {
            // Later replies were withheld until the log has their writes, or wait for the end of the turn.
            self.flush_output(token);
        }
    }

    /// Checks an output that is about to be sent as Valkey checks one in a reply list, which consists of blocks.
    /// Returns `true` if the client is closed.
    #[cold]
    fn exceeds_limit_of_reply_list(&mut self, token: usize) -> bool {
        let Some(connection) = self.clients.connection(token) else {
            return false;
        };
        let length = connection.output.len();
        let is_closing = connection.client.flags.contains(ClientFlags::CLOSE_ASAP);
        length > 0 && !is_closing && self.check_output_limit(token, length.next_multiple_of(REPLY_BUFFER_BYTES))
    }

    /// Closes a client whose unread output exceeds a limit. Returns `true` if the client is closed.
    pub(crate) fn check_output_limit(&mut self, token: usize, in_flight: usize) -> bool {
        let now_ms = self.thread.now_ms;
        let Some(connection) = self.clients.connection(token) else {
            return true;
        };
        let limits = *output_limit(&self.thread.tunables, connection.client.flags);
        let hard = limits.hard_bytes > 0 && in_flight as u64 > limits.hard_bytes;
        let above_soft = limits.soft_bytes > 0 && in_flight as u64 > limits.soft_bytes;
        if !above_soft {
            connection.over_soft_limit_since_ms = 0;
        } else if connection.over_soft_limit_since_ms == 0 {
            connection.over_soft_limit_since_ms = now_ms;
        }
        self.has_clients_over_soft_limit |= above_soft;
        let above_ms = now_ms.saturating_sub(connection.over_soft_limit_since_ms);
        let soft = above_soft && above_ms > limits.soft_seconds.max(0) as u64 * 1000;
        let in_buffer = match self.thread.tunables.enforces_reply_list {
            true => 0,
            false => REPLY_BUFFER_BYTES,
        };
        let stranger = in_flight > in_buffer + UNAUTHENTICATED_LIST_BYTES
            && !connection.client.flags.contains(ClientFlags::HAS_AUTHENTICATED)
            && must_authenticate(&self.thread.server, &connection.client);
        let is_closed = hard || soft || stranger;
        if is_closed {
            self.close_over_output_limit(token, in_flight);
        }
        is_closed
    }

    pub(crate) fn close_over_output_limit(&mut self, token: usize, in_flight: usize) {
        if let Some(connection) = self.clients.connection(token) {
            let hides_user_data = self.thread.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
            let buffers = connection.buffers(in_flight);
            let line = connection.client.log_line(self.thread.now_ms, buffers, hides_user_data);
            crate::observability::log::warning!("Client {line} closed for overcoming of output buffer limits.");
        }
        let metrics = &self.thread.server.stats.metrics;
        metrics.add(self.thread.thread_index, Counter::OutputBufferDisconnections, 1);
        self.close(token);
    }

    /// Checks the clients above the soft limit again: they may stay there without a further reply.
    pub(crate) fn check_soft_limits(&mut self) {
        self.has_clients_over_soft_limit = false;
        for token in 0..self.clients.slots.len() {
            let over = self
                .clients
                .connection(token)
                .is_some_and(|connection| connection.over_soft_limit_since_ms > 0);
            if over {
                let in_flight = self.in_flight_bytes(token);
                self.check_output_limit(token, in_flight);
            }
        }
    }
}

#[cfg(test)]
mod tests;
