//! A connection: its client, the received bytes that are not executed yet, and the bytes to be sent.
//!
//! A connection is an owned value. It belongs to one worker, and moves to another worker with its buffers.

use std::sync::Arc;

use weft_reactor::{DetachedConnection, Output, OutputMark};
use weft_resp::Parser;

use crate::clients_waiting::blocking::Waiter;

use super::client::{Buffers, Client, Flags};
use super::tls::Tls;
use super::usage::Usage;

/// The state of a connection with regard to its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Received requests are planned at once.
    Ready,
    /// Requests wait in the input for a later turn, since a slot was leased or the turn was full.
    Deferred,
    /// The reply of the current command arrives as a message, with this id.
    Parked(u64),
    /// CLIENT PAUSE delays the next command.
    Paused,
}

/// One connection.
pub struct Connection {
    /// The client.
    pub client: Client,
    /// The received bytes; those before `consumed` are executed.
    pub input: Vec<u8>,
    /// The start of the first request that was not executed.
    pub consumed: usize,
    /// The value of `consumed` at the end of the last batch.
    pub settled: usize,
    /// The state of the parser in the request at `planned`.
    pub parser: Parser,
    /// The start of the first request that is in no plan.
    pub planned: usize,
    /// The replies that were not handed to the reactor yet.
    pub output: Output,
    /// Output that is not a reply and must follow the reply that another thread is producing.
    pub postponed: Output,
    /// The entry in the wait queues of keys, while the client is blocked on keys.
    pub waiter: Option<Arc<Waiter>>,
    /// The state with regard to the next request.
    pub state: State,
    /// `true` if the batch that is being collected contains plans of this connection.
    pub in_batch: bool,
    /// `true` if the input may hold further complete requests.
    pub has_more: bool,
    /// `true` if the peer has closed its sending side. Bytes that it sent before may still be in transit.
    pub peer_ended: bool,
    /// `true` if all bytes that the peer sent were received. The connection is closed once they are executed and
    /// answered.
    pub input_ended: bool,
    /// `true` if the reactor was told to stop receiving.
    pub receive_paused: bool,
    /// The number of bytes that the request at `consumed` still lacks, if it is known.
    pub wanted: usize,
    /// The number of failed attempts to lease the slots of the request at `consumed`.
    pub lease_failures: u32,
    /// `true` while the output waits until the propagation log has passed the client's writes.
    pub is_withheld: bool,
    /// The TLS layer, for a connection with TLS.
    pub tls: Option<Tls>,
    /// The socket and its unsent output, while the connection moves between two workers and no reactor has them.
    pub in_transit: Option<DetachedConnection>,
    /// The time since when the output is above the soft limit, in milliseconds since the Unix epoch.
    pub over_soft_limit_since_ms: u64,
    /// The memory with which the worker has counted the connection.
    pub usage: Usage,
}

impl Connection {
    /// Creates the connection of a new client.
    pub fn new(client: Client) -> Self {
        Connection {
            client,
            input: Vec::new(),
            consumed: 0,
            settled: 0,
            parser: Parser::default(),
            planned: 0,
            output: Output::new(),
            postponed: Output::new(),
            waiter: None,
            state: State::Ready,
            in_batch: false,
            has_more: false,
            peer_ended: false,
            input_ended: false,
            receive_paused: false,
            wanted: 0,
            lease_failures: 0,
            is_withheld: false,
            tls: None,
            in_transit: None,
            over_soft_limit_since_ms: 0,
            usage: Usage::default(),
        }
    }

    /// Returns the number of bytes that are received and not executed.
    pub fn pending(&self) -> usize {
        self.input.len() - self.consumed
    }

    /// Does the same as [`Self::discard_consumed`], unless that would move more bytes than it frees. So each byte of a
    /// long pipeline is moved at most once, however few of its requests run in a turn.
    pub fn settle_consumed(&mut self) {
        if self.consumed >= self.pending() {
            self.discard_consumed();
        } else if self.planned != self.consumed {
            self.parser.reset();
            self.planned = self.consumed;
        }
        self.settled = self.consumed;
    }

    /// Removes executed bytes, and discards the plans of later requests: they are planned again.
    pub fn discard_consumed(&mut self) {
        if self.planned != self.consumed {
            self.parser.reset();
        }
        self.planned = 0;
        if self.consumed == self.input.len() {
            self.input.clear();
        } else if self.consumed > 0 {
            self.input.drain(..self.consumed);
        }
        self.consumed = 0;
        self.settled = 0;
    }

    /// Applies CLIENT REPLY to the reply that began at `before`.
    #[inline]
    pub fn settle_reply(&mut self, before: OutputMark) {
        let silent = Flags::REPLY_OFF.with(Flags::REPLY_SKIP);
        let flags = &mut self.client.flags;
        if !flags.has_any(silent.with(Flags::REPLY_SKIP_NEXT)) {
            return;
        }
        if flags.has_any(silent) {
            self.output.truncate(before);
        }
        let next = flags.has(Flags::REPLY_SKIP_NEXT);
        flags.put(Flags::REPLY_SKIP, next);
        flags.put(Flags::REPLY_SKIP_NEXT, false);
    }

    /// Returns the bytes of output that are not encrypted yet.
    pub fn waiting_to_be_sealed(&self) -> usize {
        self.tls.as_ref().map_or(0, Tls::waiting)
    }

    /// Returns `true` if the connection is to be closed once its output is sent: not while a reply is still to come.
    pub fn closes_after_output(&self) -> bool {
        let is_told = self.client.flags.has(Flags::CLOSE_AFTER_REPLY) && !matches!(self.state, State::Parked(_));
        is_told || (self.input_ended && !self.has_work())
    }

    /// Returns `true` if received requests are not executed yet, or not answered.
    pub fn has_work(&self) -> bool {
        self.has_more || self.in_batch || self.state != State::Ready
    }

    /// Returns `true` if another thread is producing a reply. A client that is blocked on keys may wait for ever; a
    /// reply is being produced for it only once a writer has claimed its entry.
    pub fn awaits_reply(&self) -> bool {
        match &self.waiter {
            Some(waiter) => waiter.is_claimed(),
            None => matches!(self.state, State::Parked(_)) && !self.client.flags.has(Flags::BLOCKED),
        }
    }

    /// Returns the buffer figures for CLIENT LIST. `in_flight` is the output that the reactor still has to send. The
    /// buffers themselves belong to the worker, so only their contents count as the client's, and the expected size of
    /// an argument that is being received.
    pub fn buffers(&self, in_flight: usize) -> Buffers {
        let output_capacity = self.output.bytes.capacity();
        Buffers {
            input: self.pending(),
            input_free: self.input.capacity() - self.input.len(),
            arguments: 0,
            output: self.output.len(),
            output_capacity,
            in_flight,
            total: self
                .client
                .transaction
                .as_ref()
                .map_or(0, |transaction| transaction.allocated_bytes())
                + self.pending()
                + self.wanted
                + self.output.len()
                + in_flight
                + self.client.held_bytes()
                + std::mem::size_of::<Connection>(),
            // If requests are left, receiving resumes within a few turns.
            receiving: !self.receive_paused || self.has_more,
        }
    }
}
