//! A connection: its client, the received bytes that are not executed yet, and the bytes to be sent.
//!
//! A connection is an owned value. It belongs to one worker, and moves to another worker with its buffers.

use std::ops::Range;
use std::sync::Arc;

use weft_base::{LogSequence, ParkId, ThreadIndex};
use weft_reactor::{DetachedConnection, Output, OutputMark};
use weft_resp::{ArgRange, Parser};

use crate::clients_waiting::blocking::Waiter;

use super::client::{BufferFigures, Client, ClientFlags};
use super::client_info::DescribedState;
use super::usage::ClientUsage;
use weft_tls::TlsLayer;

/// The state of a connection with regard to its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Received requests are planned at once.
    Ready,
    /// Requests wait in the input for a later turn, since a slot was leased or the turn was full.
    Deferred,
    /// The reply of the current command arrives as a message, with this id.
    Parked(ParkId),
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
    pub consumed_before_batch: usize,
    /// The state of the parser in the request at `planned`.
    pub parser: Parser,
    /// The start of the first request that is in no plan.
    pub planned_to: usize,
    /// The bytes of the inline request at `consumed` as the client sent them, if its arguments have replaced them.
    pub quoted_line: Option<Box<[u8]>>,
    /// The replies that were not handed to the reactor yet.
    pub output: Output,
    /// Output that is not a reply and must follow the reply that another thread is producing.
    pub deferred_output: Output,
    /// `true` if the operation that the client waits for was performed: its reply comes before any further message.
    pub is_reply_next: bool,
    /// The entry in the wait queues of keys, while the client is blocked on keys.
    pub waiter: Option<Arc<Waiter>>,
    /// The state with regard to the next request.
    pub state: ConnectionState,
    /// `true` if the batch that is being collected contains plans of this connection.
    pub is_in_batch: bool,
    /// `true` if the request at `consumed` runs code of a module, for which the connection moves to the home worker.
    pub is_moving_home: bool,
    /// `true` if the filters of modules have seen the request at `consumed`.
    pub is_filtered: bool,
    /// What the client's description for modules was made from; `None` if there is none.
    pub described: Option<Box<DescribedState>>,
    /// `true` once a request has run code of a module. The connection then stays on the home worker.
    pub has_used_modules: bool,
    /// `true` if the input may hold further complete requests.
    pub has_more_requests: bool,
    /// The number of bytes in flight to the client when idle clients were last looked for.
    pub unsent_at_sweep: usize,
    /// `true` if the peer has closed its sending side. Bytes that it sent before may still be in transit.
    pub is_peer_done: bool,
    /// `true` if all bytes that the peer sent were received. The connection is closed once they are executed and
    /// answered.
    pub is_input_complete: bool,
    /// `true` if the reactor was told to stop receiving.
    pub is_receive_paused: bool,
    /// The number of bytes that the request at `consumed` still lacks, if it is known.
    pub missing_bytes: usize,
    /// The number of failed attempts to lease the slots of the request at `consumed`.
    pub lease_failures: u32,
    /// Set if the last request has sent a message to a worker that had too much mail: the next one waits for it.
    pub full_mailbox: Option<FullMailbox>,
    /// `true` if clients were paused after one of them.
    pub was_refused_before_pause: bool,
    /// Set if that request waits for a key that MIGRATE is sending: the value of `PinnedSlots::thaws` that has to
    /// change first.
    pub awaited_thaw: Option<u64>,
    /// Set if that request needs the exact replication offset: the last write before its first attempt.
    pub awaited_sequence: Option<LogSequence>,
    /// `true` while the output waits until the propagation log has passed the client's writes, or until it is certain
    /// that another cluster node has not taken over without them.
    pub is_output_withheld: bool,
    /// The TLS layer, for a connection with TLS.
    pub tls: Option<TlsLayer>,
    /// The socket and its unsent output, while the connection moves between two workers and no reactor has them.
    pub in_transit: Option<DetachedConnection>,
    /// The time since when the output is above the soft limit, in milliseconds since the Unix epoch.
    pub over_soft_limit_since_ms: u64,
    /// The memory with which the worker has counted the connection.
    pub usage: ClientUsage,
}

/// The longest time for which a connection waits, between two requests, for a worker with too much mail. Others may
/// keep that mailbox full.
pub const MAX_HOLD_UP_MS: u64 = 1000;

/// The size of an input buffer up to which a connection keeps it for the rest of a pipeline, in bytes.
const MAX_SPARE_INPUT_BYTES: usize = 2 << 20;

/// The mailbox for which a connection waits.
#[derive(Clone, Copy, Debug)]
pub struct FullMailbox {
    /// The worker that reads it.
    pub worker: ThreadIndex,
    /// The time at which the connection continues in any case.
    pub until_ms: u64,
}

impl Connection {
    /// Creates the connection of a new client.
    pub fn new(client: Client) -> Self {
        Connection {
            client,
            input: Vec::new(),
            consumed: 0,
            consumed_before_batch: 0,
            parser: Parser::default(),
            planned_to: 0,
            quoted_line: None,
            output: Output::new(),
            deferred_output: Output::new(),
            is_reply_next: false,
            waiter: None,
            state: ConnectionState::Ready,
            is_in_batch: false,
            is_moving_home: false,
            is_filtered: false,
            described: None,
            has_used_modules: false,
            has_more_requests: false,
            unsent_at_sweep: 0,
            is_peer_done: false,
            is_input_complete: false,
            is_receive_paused: false,
            missing_bytes: 0,
            lease_failures: 0,
            full_mailbox: None,
            was_refused_before_pause: false,
            awaited_sequence: None,
            awaited_thaw: None,
            is_output_withheld: false,
            tls: None,
            in_transit: None,
            over_soft_limit_since_ms: 0,
            usage: ClientUsage::default(),
        }
    }

    /// Puts off all further requests until a worker has read its mail. The connection is not read meanwhile.
    pub fn hold_up(&mut self, full_mailbox: FullMailbox) {
        self.full_mailbox = Some(full_mailbox);
        if self.state == ConnectionState::Ready && !self.client.flags.intersects(ClientFlags::CLOSING) {
            self.state = ConnectionState::Deferred;
            self.has_more_requests = true;
        }
    }

    /// Returns the number of bytes that are received and not executed.
    pub fn unexecuted_bytes(&self) -> usize {
        self.input.len() - self.consumed
    }

    /// Returns the memory for the input, in bytes: the input buffer, or what it will grow to until the argument that is
    /// being received is complete.
    pub fn input_memory(&self) -> usize {
        self.input.capacity().max(self.unexecuted_bytes() + self.missing_bytes) + self.quoted_bytes()
    }

    /// Returns the memory that is allocated for this client alone, in bytes: the input buffer without what it will grow
    /// to, and the output without shared values. `in_flight` is the memory of the output that the reactor still has to
    /// send.
    pub fn allocated_bytes(&self, in_flight: usize) -> usize {
        self.state_bytes() + self.allocated_buffers() + in_flight
    }

    fn allocated_buffers(&self) -> usize {
        self.quoted_bytes() + self.input.capacity() + self.output.bytes.len() + self.deferred_output.bytes.len()
    }

    /// Returns the memory of the connection without its buffers, in bytes.
    fn state_bytes(&self) -> usize {
        let transaction = self.client.transaction.as_ref();
        transaction.map_or(0, |transaction| transaction.allocated_bytes())
            + self.client.registration_bytes()
            + std::mem::size_of::<Connection>()
    }

    fn quoted_bytes(&self) -> usize {
        self.quoted_line.as_ref().map_or(0, |line| line.len())
    }

    /// Replaces the inline request at `consumed`, which is `len` bytes long and has quotes, by its arguments, and
    /// appends their ranges to `ranges`. If the request does not run now, [`Self::restore_quoted_line`] undoes this.
    ///
    /// # Panics
    /// If the arguments are longer than the request. Those that the parser has read of it are not.
    pub fn unquote_line(&mut self, len: usize, args: &[Vec<u8>], ranges: &mut Vec<ArgRange>) {
        let unquoted_bytes: usize = args.iter().map(Vec::len).sum();
        assert!(
            unquoted_bytes <= len,
            "quotes and escape sequences only make a line longer"
        );
        let line = &mut self.input[self.consumed..][..len];
        self.quoted_line = Some(Box::from(&*line));
        let mut start = 0;
        for arg in args {
            line[start..][..arg.len()].copy_from_slice(arg);
            // A line is at most 64 KiB long.
            ranges.push(ArgRange {
                start: start as u32,
                len: arg.len() as u32,
            });
            start += arg.len();
        }
    }

    /// Restores the inline request at `consumed`, which is to be planned again, if its arguments have replaced it.
    #[inline]
    pub fn restore_quoted_line(&mut self) {
        if let Some(line) = self.quoted_line.take() {
            let range = self.consumed..self.consumed + line.len();
            if let Some(place) = self.input.get_mut(range) {
                place.copy_from_slice(&line);
            }
        }
    }

    /// Returns `true` if the input buffer is much larger than the rest of the input, which a long request has left
    /// behind. A client that sends nothing more would keep that memory.
    pub fn has_oversized_input(&self) -> bool {
        let needed_bytes = self.input.len() + self.missing_bytes;
        self.input.capacity() > MAX_SPARE_INPUT_BYTES.max(needed_bytes.saturating_mul(4))
    }

    /// Does the same as [`Self::discard_consumed`], unless that would move more bytes than it frees. So each byte of a
    /// long pipeline is moved at most once, however few of its requests run in a turn.
    pub fn discard_consumed_if_cheap(&mut self) {
        if self.consumed >= self.unexecuted_bytes() {
            self.discard_consumed();
        } else if self.planned_to != self.consumed {
            self.parser.reset();
            self.planned_to = self.consumed;
        }
        self.consumed_before_batch = self.consumed;
    }

    /// Ends a request: it was executed, refused, or goes on elsewhere. `end` is its end in the input, and `is_asking`
    /// returns `true` if it is ASKING, which applies to the next command, or to the transaction that this one begins.
    /// What is known of the attempts of this request does not apply to the next one.
    pub fn end_request(&mut self, end: usize, is_asking: impl FnOnce() -> bool) {
        self.consumed = end;
        self.quoted_line = None;
        self.is_filtered = false;
        self.lease_failures = 0;
        self.was_refused_before_pause = false;
        self.awaited_thaw = None;
        self.awaited_sequence = None;
        if self.client.flags.contains(ClientFlags::ASKING) && self.client.transaction.is_none() && !is_asking() {
            self.client.flags.set(ClientFlags::ASKING, false);
        }
    }

    /// Replaces a request in the input, which has not run, by another one. It and all requests behind it are to be
    /// planned again.
    pub fn replace_request(&mut self, range: Range<usize>, request: Vec<u8>) {
        debug_assert_eq!(range.start, self.consumed, "the next request is replaced");
        self.quoted_line = None;
        self.input.splice(range, request);
        self.planned_to = self.planned_to.min(self.input.len());
    }

    /// Removes executed bytes, and discards the plans of later requests: they are planned again.
    pub fn discard_consumed(&mut self) {
        if self.planned_to != self.consumed {
            self.parser.reset();
        }
        self.planned_to = 0;
        if self.consumed == self.input.len() {
            self.input.clear();
        } else if self.consumed > 0 {
            self.input.drain(..self.consumed);
        }
        self.consumed = 0;
        self.consumed_before_batch = 0;
    }

    /// Applies CLIENT REPLY to the reply that began at `before`.
    #[inline]
    pub fn apply_reply_mode(&mut self, before: OutputMark) {
        let silent = ClientFlags::REPLY_OFF.union(ClientFlags::REPLY_SKIP);
        let flags = &mut self.client.flags;
        if !flags.intersects(silent.union(ClientFlags::REPLY_SKIP_NEXT)) {
            return;
        }
        if flags.intersects(silent) {
            self.output.truncate(before);
        }
        let next = flags.contains(ClientFlags::REPLY_SKIP_NEXT);
        flags.set(ClientFlags::REPLY_SKIP, next);
        flags.set(ClientFlags::REPLY_SKIP_NEXT, false);
    }

    /// Returns the bytes of output that are not encrypted yet.
    pub fn unencrypted_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, TlsLayer::unencrypted_bytes)
    }

    /// Returns `true` if the connection is to be closed once its output is sent: not while a reply is still to come.
    pub fn should_close_after_output(&self) -> bool {
        let is_told = self.client.flags.contains(ClientFlags::CLOSE_AFTER_REPLY)
            && !matches!(self.state, ConnectionState::Parked(_));
        is_told || (self.is_input_complete && !self.has_work())
    }

    /// Returns `true` if received requests are not executed yet, or not answered.
    pub fn has_work(&self) -> bool {
        self.has_more_requests || self.is_in_batch || self.state != ConnectionState::Ready
    }

    /// Returns `true` if another thread is producing a reply. A client that is blocked on keys may wait for ever; a
    /// reply is being produced for it only once a writer has claimed its entry.
    pub fn is_awaiting_reply(&self) -> bool {
        match &self.waiter {
            Some(waiter) => waiter.is_claimed(),
            None => {
                matches!(self.state, ConnectionState::Parked(_)) && !self.client.flags.contains(ClientFlags::BLOCKED)
            }
        }
    }

    /// Returns `true` if messages wait for the reply that is being produced.
    pub fn defers_messages(&self) -> bool {
        match &self.waiter {
            Some(_) => self.is_reply_next,
            None => self.is_awaiting_reply(),
        }
    }

    /// Returns the buffer figures for CLIENT LIST. `in_flight` is the output that the reactor still has to send. The
    /// input buffer counts with its free space, and with the expected size of an argument that is being received. Of
    /// the output buffer, which belongs to the worker, only the contents count.
    pub fn buffers(&self, in_flight: usize) -> BufferFigures {
        let output_capacity = self.output.bytes.capacity();
        let state_bytes = self.state_bytes();
        BufferFigures {
            input: self.unexecuted_bytes().saturating_sub(self.parser.parsed_bytes()),
            input_free: self.input.capacity() - self.input.len(),
            arguments: self.parser.argument_bytes(),
            output: self.output.len(),
            output_capacity,
            in_flight,
            total: state_bytes + self.input_memory() + self.output.len() + self.deferred_output.len() + in_flight,
            allocated: state_bytes + self.allocated_buffers() + in_flight,
            // If requests are left, receiving resumes within a few turns.
            is_receiving: !self.is_receive_paused || self.has_more_requests,
        }
    }
}
