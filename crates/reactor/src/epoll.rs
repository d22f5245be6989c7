//! The reactor over epoll: readiness, receiving, sending, and output in flight.
//!
//! # Why edge-triggered, and why one `recv` is enough
//!
//! A connection is added once, edge-triggered, for input and the peer's end (`IN | RDHUP`). `OUT` is added only while
//! output is in flight: a Unix socket reports an edge whenever its peer reads, which would wake the worker for every
//! reply. The kernel reports "there is input" once, and the reactor remembers it:
//!
//! ```text
//!              edge, or added with input waiting                   receive: less than requested,
//!            ┌──────────────────────────────────┐                  and the peer has not ended
//!   quiet ───┘                                  ▼                ┌─────────────────────────────▶ quiet
//!                    readable, in the ready queue ──▶ Readable ──┤
//!                               ▲                                │ buffer filled, or not received
//!                               └──── start of the next wait ────┘ at all, or the peer has ended
//! ```
//!
//! A stream socket that returns less than was requested is empty. Input that comes later is a new edge, even if it
//! comes between the wait and the receive. Two things cause no edge of their own if they came together with the input:
//! the end of the stream and an error. The event's flags show them (`ended`), and they keep the connection readable
//! until the caller has received them. (A peer that sends urgent data or passes descriptors ends a `recv` early. The
//! rest of its input is found with its next bytes. This delays only that peer.)
//!
//! For the caller, `Readable` is therefore level-triggered: it is reported in each turn until everything was received
//! or the token is paused. The ready queue is first in, first out, and every wait polls the kernel. Connections with
//! deep pipelines therefore cannot delay quiet ones. Pausing and resuming only set a flag.
//!
//! # Stale events
//!
//! The kernel's event carries the entry's index and the generation with which the entry was registered. An event of
//! another generation is dropped. A token names an entry by its low 32 bits, a small, dense index. The caller chooses
//! the upper bits, for instance as a generation. The whole token must match.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::{Listener, Output, SendQueue, Socket, Waker};
use weft_os::descriptor::{self, Interest};

/// The caller's identifier of a connection or listener: a small, dense index in the low 32 bits, and any value (such as
/// a generation) in the upper bits.
pub type Token = usize;

/// The maximum number of events taken from the kernel in one wait.
pub const MAX_EVENTS: usize = 128;

/// Indexes from here on are refused: the table is dense, and no process has as many descriptors.
const MAX_ENTRIES: usize = 1 << 26;

/// The event data of the waker. No entry has this value.
const WAKER_DATA: u64 = u64::MAX;

const INPUT: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);
const INPUT_AND_OUTPUT: epoll::EventFlags = INPUT.union(epoll::EventFlags::OUT);

/// Event flags which mean that the peer will send no more, or that the connection is broken.
const ENDED: epoll::EventFlags = epoll::EventFlags::RDHUP
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

/// An event that a wait reports.
#[derive(Debug)]
pub enum Event {
    /// Input, the end of the stream or an error can be received with [`Reactor::receive`]. Reported in every turn until
    /// all of it was received.
    Readable(Token),
    /// All output that was in flight has been sent.
    Writable(Token),
    /// A listener accepted a connection. It is non-blocking and not yet registered with a reactor.
    Accepted(Token, Socket),
    /// A listener could not accept a connection, most likely because descriptors are exhausted. The reactor tries again
    /// after the next wait; the connection stays in the backlog.
    AcceptFailed(Token, io::Error),
    /// Sending the output in flight failed; the rest of it was dropped.
    SendFailed(Token),
    /// The peer of a *paused* connection ended the stream or broke the connection. Reported once. Input that came
    /// before may still wait, and a peer that only closed its sending half may still wait for replies. After
    /// [`Reactor::resume`], receiving shows which is the case.
    Closed(Token),
}

/// The result of [`Reactor::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// `count` bytes were appended. If `more` is set, more input (or the end) may be available at once, and the token
    /// will be reported readable again. Otherwise the socket was emptied.
    Bytes {
        /// The number of bytes.
        count: usize,
        /// `true` if another receive may return something.
        more: bool,
    },
    /// No input was available.
    WouldBlock,
    /// The peer has ended the stream and everything was received.
    Closed,
}

/// The result of [`Reactor::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The kernel has accepted all output.
    Done,
    /// This many bytes wait for the socket. [`Event::Writable`] is reported when the last of them has been sent.
    InFlight(usize),
}

/// A connection removed from a reactor. To move it, pass it to [`Reactor::adopt`] of another reactor; to close it, drop
/// it.
#[derive(Debug)]
pub struct DetachedConnection {
    /// The connection.
    pub socket: Socket,
    /// Output that the kernel has not accepted yet.
    pub unsent: SendQueue,
}

struct Connection {
    token: Token,
    generation: u32,
    /// Set while input may wait in the kernel.
    readable: bool,
    /// Set while the connection is in the ready queue.
    queued: bool,
    paused: bool,
    /// Set once the peer will send no more. A short receive then does not mean that nothing is left to report.
    has_ended: bool,
    /// Set once `Closed` has been reported.
    is_end_reported: bool,
    /// Set while the caller has requested `Writable` for the time when the socket accepts more, although nothing is in
    /// flight.
    is_writable_requested: bool,
    socket: Socket,
    unsent: SendQueue,
}

struct Listening {
    token: Token,
    generation: u32,
    queued: bool,
    listener: Listener,
}

enum Entry {
    Vacant,
    Connection(Connection),
    Listening(Listening),
}

/// One worker's sockets. Not shared: other threads reach it through its [`Waker`].
pub struct Reactor {
    epoll: OwnedFd,
    waker: Waker,
    entries: Vec<Entry>,
    generation: u32,
    /// Indexes of entries that have something to report, in the order in which they became ready.
    ready: VecDeque<u32>,
    /// Connections reported readable in the last turn. They are still readable if they were not emptied since.
    last_reported: Vec<u32>,
    /// Listeners whose last accept failed. They are tried again once per wait, and do not shorten the wait.
    accept_retries: Vec<u32>,
    /// The space for input that must be less than the spare capacity of the buffer it is for.
    bounded_input: Vec<u8>,
}

// Reactors are created on one thread and used on another, and connections move between reactors.
const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<Reactor>();
    assert_send::<DetachedConnection>();
};

/// The content in bytes above which a buffer of received bytes grows in small steps.
const MIN_BYTES_OF_SMALL_GROWTH: usize = 64 * 1024;

impl Reactor {
    /// Creates a reactor without any registered socket.
    ///
    /// # Errors
    /// Fails if descriptors are exhausted.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(WAKER_DATA), edges)?;
        Ok(Self {
            epoll,
            waker,
            entries: Vec::new(),
            generation: 0,
            ready: VecDeque::new(),
            last_reported: Vec::new(),
            accept_retries: Vec::new(),
            bounded_input: Vec::new(),
        })
    }

    /// Returns a handle with which other threads end this reactor's wait.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits for events and replaces the content of `events` with them. The wait ends when an event occurs, when
    /// `timeout` has passed (rounded up to milliseconds; `None` waits indefinitely), when a waker was used, or when a
    /// signal was handled. At most `max_events` readable tokens and accepted connections are reported; the rest is
    /// reported in the next turns. Returns `true` if a waker was used.
    ///
    /// # Errors
    /// Fails if `epoll_wait` does.
    pub fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>, max_events: usize) -> io::Result<bool> {
        events.clear();
        self.requeue_last_reported();
        let timeout = if self.ready.is_empty() {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        let timeout = descriptor::before_wait(&self.epoll, Interest::Input, timeout);
        // A timeout beyond the range of a timespec means an indefinite wait.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut buffer = [const { MaybeUninit::uninit() }; MAX_EVENTS];
        let from_kernel = match epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        for starved in std::mem::take(&mut self.accept_retries) {
            self.enqueue(starved);
        }
        let woken = self.process_kernel_events(from_kernel, events);
        self.report_ready(events, max_events);
        Ok(woken)
    }

    /// Registers a connection and starts to report its input.
    ///
    /// # Errors
    /// Fails with `InvalidInput` if the token's index is too large, with `AlreadyExists` if it is in use, and as the
    /// kernel does. The socket is closed then.
    pub fn register(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        self.adopt(
            token,
            DetachedConnection {
                socket,
                unsent: SendQueue::default(),
            },
        )
    }

    /// Registers a connection that was removed from a reactor. Input that waits in the kernel is reported, and unsent
    /// output is in flight again.
    ///
    /// # Errors
    /// Fails like [`register`](Self::register).
    pub fn adopt(&mut self, token: Token, connection: DetachedConnection) -> io::Result<()> {
        let index = self.vacant_index(token)?;
        let DetachedConnection { socket, unsent } = connection;
        socket.set_nonblocking()?;
        let generation = self.next_generation();
        let interest = if unsent.is_empty() { INPUT } else { INPUT_AND_OUTPUT };
        epoll::add(&self.epoll, &socket, event_data(index, generation), interest)?;
        self.entries[index] = Entry::Connection(Connection {
            token,
            generation,
            readable: false,
            queued: false,
            paused: false,
            has_ended: false,
            is_end_reported: false,
            is_writable_requested: false,
            socket,
            unsent,
        });
        Ok(())
    }

    /// Registers a listener and starts to accept its connections.
    ///
    /// # Errors
    /// Fails like [`register`](Self::register).
    pub fn register_listener(&mut self, token: Token, listener: Listener) -> io::Result<()> {
        let index = self.vacant_index(token)?;
        let generation = self.next_generation();
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &listener, event_data(index, generation), edges)?;
        self.entries[index] = Entry::Listening(Listening {
            token,
            generation,
            queued: false,
            listener,
        });
        Ok(())
    }

    /// Stops accepting connections and returns the listener; `None` if the token is not that of a listener.
    pub fn deregister_listener(&mut self, token: Token) -> Option<Listener> {
        let entry = self.entries.get_mut(index_of(token))?;
        if !matches!(entry, Entry::Listening(listening) if listening.token == token) {
            return None;
        }
        let Entry::Listening(listening) = std::mem::replace(entry, Entry::Vacant) else {
            return None;
        };
        self.remove_interest(&listening.listener);
        Some(listening.listener)
    }

    /// Removes a connection and returns it with its unsent output; `None` if the token is not that of a connection. The
    /// token can be used again at once.
    pub fn deregister(&mut self, token: Token) -> Option<DetachedConnection> {
        self.connection(token)?;
        let entry = std::mem::replace(&mut self.entries[index_of(token)], Entry::Vacant);
        let Entry::Connection(Connection { socket, unsent, .. }) = entry else {
            return None;
        };
        self.remove_interest(&socket);
        Some(DetachedConnection { socket, unsent })
    }

    /// The socket of a registered connection, for its name and options.
    pub fn socket(&self, token: Token) -> Option<&Socket> {
        self.connection(token).map(|connection| &connection.socket)
    }

    /// Suspends reports of this token's input until [`resume`](Self::resume). Output in flight is still sent, and the
    /// end of the peer is reported as [`Event::Closed`].
    pub fn pause(&mut self, token: Token) {
        if let Some(connection) = self.connection_mut(token) {
            connection.paused = true;
            if connection.has_ended && !connection.is_end_reported {
                self.enqueue(index_of(token) as u32);
            }
        }
    }

    /// Resumes reports of input, including input that came while the connection was paused.
    pub fn resume(&mut self, token: Token) {
        if let Some(connection) = self.connection_mut(token) {
            connection.paused = false;
            if connection.readable {
                self.enqueue(index_of(token) as u32);
            }
        }
    }

    /// Returns `true` if the token is that of a registered connection that is paused.
    pub fn is_paused(&self, token: Token) -> bool {
        self.connection(token).is_some_and(|connection| connection.paused)
    }

    /// Receives input from the socket and appends it to `into`, up to the spare capacity of `into`. The spare capacity
    /// is first grown to at least `min_capacity` bytes. The call also works without an event and while the connection
    /// is paused.
    ///
    /// # Errors
    /// Fails with the error of the connection (reset, refused), or with `NotFound` for an unknown token.
    pub fn receive(&mut self, token: Token, into: &mut Vec<u8>, min_capacity: usize) -> io::Result<ReceiveOutcome> {
        self.receive_at_most(token, into, min_capacity, usize::MAX)
    }

    /// Receives as [`receive`](Self::receive) does, but at most `max_bytes` bytes. Input that must not fill the spare
    /// capacity is copied once more, so `max_bytes` should rarely be less than that.
    ///
    /// # Errors
    /// Fails like [`receive`](Self::receive).
    pub fn receive_at_most(
        &mut self,
        token: Token,
        into: &mut Vec<u8>,
        min_capacity: usize,
        max_bytes: usize,
    ) -> io::Result<ReceiveOutcome> {
        let connection = match self.entries.get_mut(index_of(token)) {
            Some(Entry::Connection(connection)) if connection.token == token => connection,
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        reserve_for_receive(into, min_capacity.max(1));
        let spare_bytes = into.capacity() - into.len();
        let requested = spare_bytes.min(max_bytes.max(1));
        descriptor::activity();
        let count = loop {
            let received = match requested == spare_bytes {
                true => rustix::net::recv(&connection.socket, spare_capacity(into), RecvFlags::empty())
                    .map(|(count, _)| count),
                false => receive_copy(&connection.socket, &mut self.bounded_input, requested, into),
            };
            match received {
                Ok(count) => break count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    connection.readable = false;
                    return Ok(ReceiveOutcome::WouldBlock);
                }
                Err(error) => return Err(error.into()),
            }
        };
        // Once more: the peer may have looked for space in between.
        descriptor::activity();
        if count == 0 {
            return Ok(ReceiveOutcome::Closed);
        }
        connection.readable = count == requested || connection.has_ended;
        Ok(ReceiveOutcome::Bytes {
            count,
            more: connection.readable,
        })
    }

    /// Sends `output`, after the output that is already in flight. The part that the socket does not accept now stays
    /// in flight. `output` is empty afterwards. If everything was sent, it keeps its allocation.
    ///
    /// # Errors
    /// Fails if the connection is broken (the output is lost), or with `NotFound` if the token is unknown (the output
    /// is unchanged).
    pub fn send(&mut self, token: Token, output: &mut Output) -> io::Result<SendOutcome> {
        let index = index_of(token);
        let Some(Entry::Connection(connection)) = self.entries.get_mut(index) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if connection.token != token {
            return Err(io::ErrorKind::NotFound.into());
        }
        if output.is_empty() {
            return Ok(send_outcome(&connection.unsent));
        }
        if !connection.unsent.is_empty() {
            connection.unsent.enqueue(output);
            return Ok(send_outcome(&connection.unsent));
        }
        connection.unsent.send(&connection.socket, output)?;
        if !connection.unsent.is_empty() {
            let data = event_data(index, connection.generation);
            epoll::modify(&self.epoll, &connection.socket, data, INPUT_AND_OUTPUT)?;
        }
        Ok(send_outcome(&connection.unsent))
    }

    /// Requests that [`Event::Writable`] is reported once the socket accepts more and nothing is in flight, in the next
    /// turn at the earliest. It is for a caller that has more to send than one turn should send.
    ///
    /// # Errors
    /// Fails if the system refuses the request, or with `NotFound` for an unknown token.
    pub fn request_writable(&mut self, token: Token) -> io::Result<()> {
        let index = index_of(token);
        let Some(Entry::Connection(connection)) = self.entries.get_mut(index) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if connection.token != token {
            return Err(io::ErrorKind::NotFound.into());
        }
        if connection.unsent.is_empty() && !connection.is_writable_requested {
            connection.is_writable_requested = true;
            let data = event_data(index, connection.generation);
            epoll::modify(&self.epoll, &connection.socket, data, INPUT_AND_OUTPUT)?;
        }
        Ok(())
    }

    /// Requests that a connection is reported readable in the next turn, even if its socket has no input. It is for a
    /// layer above the socket that still holds input.
    pub fn request_readable(&mut self, token: Token) {
        if let Some(connection) = self.connection_mut(token) {
            connection.readable = true;
            self.enqueue(index_of(token) as u32);
        }
    }

    /// The number of bytes given to [`send`](Self::send) that the kernel has not accepted; 0 for unknown tokens.
    pub fn in_flight(&self, token: Token) -> usize {
        self.connection(token).map_or(0, |connection| connection.unsent.len())
    }

    /// The memory of the copied bytes that are in flight, in bytes; 0 for unknown tokens.
    pub fn in_flight_memory(&self, token: Token) -> usize {
        self.connection(token)
            .map_or(0, |connection| connection.unsent.memory_bytes())
    }

    fn connection(&self, token: Token) -> Option<&Connection> {
        match self.entries.get(index_of(token)) {
            Some(Entry::Connection(connection)) if connection.token == token => Some(connection),
            _ => None,
        }
    }

    fn connection_mut(&mut self, token: Token) -> Option<&mut Connection> {
        match self.entries.get_mut(index_of(token)) {
            Some(Entry::Connection(connection)) if connection.token == token => Some(connection),
            _ => None,
        }
    }

    fn vacant_index(&mut self, token: Token) -> io::Result<usize> {
        let index = index_of(token);
        if index >= MAX_ENTRIES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || Entry::Vacant);
        }
        match self.entries[index] {
            Entry::Vacant => Ok(index),
            _ => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Removes a descriptor from the interest list. The descriptor is in the list, so this cannot fail. If it did,
    /// closing the descriptor would have the same effect.
    fn remove_interest(&self, source: &impl std::os::fd::AsFd) {
        let deleted = epoll::delete(&self.epoll, source);
        debug_assert!(
            deleted.is_ok(),
            "a registered descriptor was not in the epoll set: {deleted:?}"
        );
    }

    /// Appends an entry to the ready queue, unless it is in there. (The index may then be in the queue twice, if an
    /// earlier entry had the same index. The second occurrence finds the flag cleared.)
    fn enqueue(&mut self, index: u32) {
        let queued = match self.entries.get_mut(index as usize) {
            Some(Entry::Connection(connection)) => &mut connection.queued,
            Some(Entry::Listening(listening)) => &mut listening.queued,
            _ => return,
        };
        if !std::mem::replace(queued, true) {
            self.ready.push_back(index);
        }
    }

    /// Queues again the connections that were reported in the last turn and not emptied since.
    fn requeue_last_reported(&mut self) {
        let mut reported = std::mem::take(&mut self.last_reported);
        for index in reported.drain(..) {
            if let Some(Entry::Connection(connection)) = self.entries.get(index as usize)
                && connection.readable
                && !connection.paused
            {
                self.enqueue(index);
            }
        }
        self.last_reported = reported;
    }

    /// Processes the kernel's events and finishes sends in flight. Returns `true` if a waker was used.
    fn process_kernel_events(&mut self, from_kernel: &[epoll::Event], events: &mut Vec<Event>) -> bool {
        let mut woken = false;
        for event in from_kernel {
            let (flags, data) = (event.flags, event.data.u64());
            if data == WAKER_DATA {
                woken = true;
            } else {
                self.process_event(data as u32, (data >> 32) as u32, flags, events);
            }
        }
        woken
    }

    fn process_event(&mut self, index: u32, generation: u32, flags: epoll::EventFlags, events: &mut Vec<Event>) {
        match self.entries.get_mut(index as usize) {
            Some(Entry::Listening(listening)) if listening.generation == generation => self.enqueue(index),
            Some(Entry::Connection(connection)) if connection.generation == generation => {
                let ended = flags.intersects(ENDED);
                connection.has_ended |= ended;
                let readable = ended || flags.contains(epoll::EventFlags::IN);
                connection.readable |= readable;
                let sendable = flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::ERR);
                if sendable && (!connection.unsent.is_empty() || connection.is_writable_requested) {
                    events.extend(flush_in_flight(&self.epoll, index, connection));
                }
                if readable {
                    self.enqueue(index);
                }
            }
            _ => {}
        }
    }

    /// Reports entries from the front of the ready queue, with at most `max_events` events.
    fn report_ready(&mut self, events: &mut Vec<Event>, max_events: usize) {
        // Entries queued again while reporting wait for the next turn.
        let mut remaining = self.ready.len();
        let mut room = max_events;
        while remaining > 0 && room > 0 {
            remaining -= 1;
            let Some(index) = self.ready.pop_front() else {
                return;
            };
            match self.entries.get_mut(index as usize) {
                Some(Entry::Connection(connection)) if connection.queued => {
                    connection.queued = false;
                    if let Some(event) = connection.next_event() {
                        self.last_reported.push(index);
                        events.push(event);
                        room -= 1;
                    }
                }
                Some(Entry::Listening(listening)) if listening.queued => {
                    listening.queued = false;
                    room -= self.accept(index, room, events);
                }
                _ => {}
            }
        }
    }

    /// Accepts up to `room` connections. Returns the number of events added.
    fn accept(&mut self, index: u32, room: usize, events: &mut Vec<Event>) -> usize {
        let Some(Entry::Listening(Listening { token, listener, .. })) = self.entries.get(index as usize) else {
            return 0;
        };
        let mut accepted = 0;
        while accepted < room {
            match listener.accept() {
                Ok(socket) => events.push(Event::Accepted(*token, socket)),
                Err(Errno::AGAIN) => return accepted,
                // The connection failed while it was in the backlog, or its network did: accept the next one.
                Err(error) if is_connection_error(error) => continue,
                Err(error) => {
                    events.push(Event::AcceptFailed(*token, error.into()));
                    self.accept_retries.push(index);
                    return accepted + 1;
                }
            }
            accepted += 1;
        }
        self.enqueue(index);
        accepted
    }
}

impl Connection {
    /// Returns the event to report for a connection taken from the ready queue, if any.
    fn next_event(&mut self) -> Option<Event> {
        if !self.paused {
            return self.readable.then_some(Event::Readable(self.token));
        }
        let was_reported = std::mem::replace(&mut self.is_end_reported, self.has_ended);
        (self.has_ended && !was_reported).then_some(Event::Closed(self.token))
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reactor")
            .field("epoll", &self.epoll)
            .field("entries", &self.entries.len())
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}

/// Makes room for `additional` bytes. A long content grows by an eighth, not to the double: thousands of clients with
/// incomplete requests occupy little more than they have sent.
fn reserve_for_receive(into: &mut Vec<u8>, additional: usize) {
    if into.capacity() - into.len() >= additional {
        return;
    }
    match into.len() >= MIN_BYTES_OF_SMALL_GROWTH {
        true => into.reserve_exact(additional.max(into.len() / 8)),
        false => into.reserve(additional),
    }
}

/// Receives at most `max_bytes` bytes through `copy` and appends them to `into`. Returns their number.
fn receive_copy(socket: &Socket, copy: &mut Vec<u8>, max_bytes: usize, into: &mut Vec<u8>) -> Result<usize, Errno> {
    if copy.len() < max_bytes {
        copy.resize(max_bytes, 0);
    }
    let (count, _) = rustix::net::recv(socket, &mut copy[..max_bytes], RecvFlags::empty())?;
    into.extend_from_slice(&copy[..count]);
    Ok(count)
}

/// Sends output in flight. Returns an event if all of it was sent or if sending failed.
fn flush_in_flight(epoll: &OwnedFd, index: u32, connection: &mut Connection) -> Option<Event> {
    let data = event_data(index as usize, connection.generation);
    let mut result = connection.unsent.flush(&connection.socket);
    if matches!(result, Ok(false)) && !connection.unsent.is_empty() {
        // The rest is sent in the next turn: modifying the interest makes the kernel report the edge again.
        let asked = epoll::modify(epoll, &connection.socket, data, INPUT_AND_OUTPUT);
        result = asked.map(|()| true).map_err(io::Error::from);
    }
    if result.is_ok() && !connection.unsent.is_empty() {
        return None;
    }
    connection.unsent = SendQueue::default();
    connection.is_writable_requested = false;
    let modified = epoll::modify(epoll, &connection.socket, data, INPUT);
    let succeeded = result.is_ok() && modified.is_ok();
    Some(if succeeded {
        Event::Writable(connection.token)
    } else {
        Event::SendFailed(connection.token)
    })
}

/// Returns `true` for errors of `accept` that concern only the connection that would have been accepted.
fn is_connection_error(error: Errno) -> bool {
    use Errno as E;
    matches!(
        error,
        E::INTR
            | E::CONNABORTED
            | E::PERM
            | E::PROTO
            | E::NOPROTOOPT
            | E::NETDOWN
            | E::NETUNREACH
            | E::HOSTDOWN
            | E::HOSTUNREACH
            | E::NONET
            | E::OPNOTSUPP
    )
}

fn send_outcome(unsent: &SendQueue) -> SendOutcome {
    match unsent.len() {
        0 => SendOutcome::Done,
        bytes => SendOutcome::InFlight(bytes),
    }
}

fn index_of(token: Token) -> usize {
    token as u32 as usize
}

fn event_data(index: usize, generation: u32) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(generation) << 32 | index as u64)
}

#[cfg(test)]
mod tests;
