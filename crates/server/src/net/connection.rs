//! A connection: its client, the bytes that came in and were not executed, and the bytes that go out.
//!
//! A connection is an owned value. It belongs to one worker and travels to another with its buffers.

use std::sync::Arc;

use weft_reactor::{DetachedConnection, Output, OutputMark};
use weft_resp::Parser;

use crate::clients_waiting::blocking::Waiter;

use super::client::{Buffers, Client, Flags};
use super::tls::Tls;
use super::usage::Usage;

/// Why a connection's input is not being executed at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is: whatever arrives is planned.
    Ready,
    /// Requests wait in the input for a later turn (a slot was leased, or the turn was full).
    Deferred,
    /// The reply of the running command comes by mail, under this ticket.
    Parked(u64),
    /// CLIENT PAUSE holds the next command.
    Paused,
}

/// One connection.
pub struct Connection {
    /// Its client.
    pub client: Client,
    /// Bytes received; those before `consumed` are done with.
    pub input: Vec<u8>,
    /// Start of the first request that was not executed.
    pub consumed: usize,
    /// What `consumed` was when a batch had ended the last time.
    pub settled: usize,
    /// Where the parser stopped in the request at `planned`.
    pub parser: Parser,
    /// Start of the first request that is in no plan.
    pub planned: usize,
    /// Replies not yet handed to the reactor.
    pub output: Output,
    /// What is not a reply and comes behind the one that is being made elsewhere.
    pub postponed: Output,
    /// What stands in the queues of keys for it, while it waits for them.
    pub waiter: Option<Arc<Waiter>>,
    /// What it waits for.
    pub state: State,
    /// Whether the batch that is being put together has plans of it.
    pub in_batch: bool,
    /// Whether its input may hold further complete requests.
    pub has_more: bool,
    /// Whether the peer has ended its side; bytes that it sent before may still be on their way here.
    pub peer_ended: bool,
    /// Whether everything that the peer sent was received. The connection is closed once that is executed and answered.
    pub input_ended: bool,
    /// Whether the reactor was told not to receive.
    pub receive_paused: bool,
    /// Bytes that the request at `consumed` still misses, if that is known.
    pub wanted: usize,
    /// Failed attempts to take leases for the request at `consumed`.
    pub lease_failures: u32,
    /// Whether its output waits until the log has passed its writes.
    pub is_withheld: bool,
    /// Its layer of TLS, if it has one.
    pub tls: Option<Tls>,
    /// The socket and what it did not take yet, while no reactor has them: between two workers.
    pub in_transit: Option<DetachedConnection>,
    /// Since when it is above the soft output limit, ms since the epoch.
    pub over_soft_limit_since_ms: u64,
    /// With what memory its worker has counted it.
    pub usage: Usage,
}

impl Connection {
    /// A connection of a new client.
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

    /// Bytes received and not executed.
    pub fn pending(&self) -> usize {
        self.input.len() - self.consumed
    }

    /// As [`Self::discard_consumed`], unless that would move more bytes than it frees: then they stay for now. So each byte
    /// of a long pipeline is moved once at most, however few requests of it run in a turn.
    pub fn settle_consumed(&mut self) {
        if self.consumed >= self.pending() {
            self.discard_consumed();
        } else if self.planned != self.consumed {
            self.parser.reset();
            self.planned = self.consumed;
        }
        self.settled = self.consumed;
    }

    /// Forgets executed bytes, and what was planned beyond them: it is planned again.
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

    /// Bytes of its output that wait to be sealed.
    pub fn waiting_to_be_sealed(&self) -> usize {
        self.tls.as_ref().map_or(0, Tls::waiting)
    }

    /// Returns `true` if it is to be closed as soon as its output is sent: not while a reply is still to come.
    pub fn closes_after_output(&self) -> bool {
        let is_told = self.client.flags.has(Flags::CLOSE_AFTER_REPLY) && !matches!(self.state, State::Parked(_));
        is_told || (self.input_ended && !self.has_work())
    }

    /// Returns `true` if requests that were received are not executed yet, or not answered.
    pub fn has_work(&self) -> bool {
        self.has_more || self.in_batch || self.state != State::Ready
    }

    /// Whether a reply is being made elsewhere. One that waits for keys may have to wait for ever; it has a reply under way
    /// once somebody serves it.
    pub fn awaits_reply(&self) -> bool {
        match &self.waiter {
            Some(waiter) => waiter.is_claimed(),
            None => matches!(self.state, State::Parked(_)) && !self.client.flags.has(Flags::BLOCKED),
        }
    }

    /// Buffer figures for CLIENT LIST; `in_flight` is what the reactor still has to send. The buffers themselves are the
    /// worker's, so what is in them counts as the client's, and what the argument that is arriving will take.
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
            // With requests left it is a matter of a few turns.
            receiving: !self.receive_paused || self.has_more,
        }
    }
}
