//! Replies that wait for the end of the turn, and are then sent together.
//!
//! Each send may wake a client that sleeps, which costs more than the send itself. A client that is awake finds the
//! replies of all its connections. So the replies of all batches of a turn are sent together. They do not wait for what
//! may take long: they are sent between two batches if the turn has lasted for a while, if they take much memory, or if
//! the next batch may have to wait at the gate.

use std::time::Duration;

use weft_os::time::Instant;

/// The time after the start of a turn, or after the last sends, from which on replies are sent after each batch.
const MAX_PENDING_TIME: Duration = Duration::from_millis(1);
/// The bytes of replies that are sent after a batch in any case. More would leave the processor's cache before they are
/// sent, and with `maxmemory` keys would be evicted for them.
const MAX_PENDING_BYTES: usize = 1 << 20;

/// The connections with replies that are not sent yet.
pub(super) struct PendingSends {
    tokens: Vec<usize>,
    /// The bytes of their replies.
    bytes: usize,
    /// The start of the turn, or the time of its last sends.
    pub(super) since: Instant,
}

impl PendingSends {
    pub(super) fn new() -> PendingSends {
        PendingSends {
            tokens: Vec::new(),
            bytes: 0,
            since: Instant::now(),
        }
    }

    /// Adds a connection whose batch has run, with the bytes of its output.
    pub(super) fn add(&mut self, token: usize, bytes: usize) {
        self.tokens.push(token);
        self.bytes += bytes;
    }

    /// Returns the connections, in the order in which their batches have run. None is pending then.
    pub(super) fn take(&mut self) -> Vec<usize> {
        self.bytes = 0;
        std::mem::take(&mut self.tokens)
    }

    /// Keeps the memory of the taken connections for the next ones.
    pub(super) fn give_back(&mut self, mut tokens: Vec<usize>) {
        tokens.clear();
        self.tokens = tokens;
    }

    /// Returns `true` if no connection has pending replies.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns `true` if the next batch must not keep the replies waiting, or if they take much memory.
    /// `max_connections` is the number of connections with replies that are sent in any case.
    pub(super) fn are_due(&self, now: Instant, max_connections: usize) -> bool {
        now.duration_since(self.since) >= MAX_PENDING_TIME
            || self.bytes >= MAX_PENDING_BYTES
            || self.tokens.len() >= max_connections
    }
}

#[cfg(test)]
mod tests;
