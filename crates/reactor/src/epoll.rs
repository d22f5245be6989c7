//! The reactor over epoll: who is ready, receiving, sending, what is in flight.
//!
//! # Why edges, and why one `recv` is enough
//!
//! A connection is added once, edge-triggered, for input and the peer's end (`IN | RDHUP`); `OUT` is
//! added only while output is in flight (a Unix socket reports an edge whenever its peer reads, which
//! would wake us for every reply). The kernel says "there is input" once; *we* remember it:
//!
//! ```text
//!              edge, or added with input waiting                   receive: less than asked for,
//!            ┌──────────────────────────────────┐                  and the peer has not ended
//!   quiet ───┘                                  ▼                ┌─────────────────────────────▶ quiet
//!                    readable, in the ready queue ──▶ Readable ──┤
//!                               ▲                                │ buffer filled, or not received
//!                               └──── start of the next wait ────┘ at all, or the peer has ended
//! ```
//!
//! A stream socket that gives less than it was asked for is empty, and input that comes later is a
//! new edge, also if it comes between the wait and the receive. Two things are no edge of their own,
//! because they came together with the input: the end of the stream and an error. They are seen in
//! the event's flags (`ended`) and keep the connection readable until the caller has received them.
//! (A peer that sends urgent data or passes descriptors ends our `recv` early; the rest of its input
//! is found with its next bytes. It delays nobody but itself.)
//!
//! To the caller `Readable` is therefore a level: it comes again each turn until everything was
//! received or the token is paused. The ready queue is first in, first out, and the kernel is asked in
//! every wait, so that connections with deep pipelines cannot keep quiet ones waiting. Pausing and
//! resuming only set a flag.
//!
//! # Stale events
//!
//! The kernel's event carries the entry's index and the generation the entry was registered under; an
//! event of another generation is dropped. A token names an entry by its low 32 bits (a small, dense
//! index; the rest is the caller's, for instance a generation) and must match as a whole.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::{Listener, Output, Socket, Unsent, Waker};

/// The caller's name for a connection or listener: a small, dense index in the low 32 bits, anything
/// (a generation) above.
pub type Token = usize;

/// How many events the kernel is asked for at once.
pub const MOST_EVENTS: usize = 128;

/// Indexes from here on are refused: the table is dense, and no process has as many descriptors.
const MOST_ENTRIES: usize = 1 << 26;

/// The event data of the waker, which no entry can have.
const WAKE: u64 = u64::MAX;

const INPUT: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);
const INPUT_AND_OUTPUT: epoll::EventFlags = INPUT.union(epoll::EventFlags::OUT);

/// The peer will send no more, or the connection is broken.
const ENDED: epoll::EventFlags = epoll::EventFlags::RDHUP
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

/// What a wait found.
#[derive(Debug)]
pub enum Event {
    /// Input, the end of the stream or an error can be taken with [`Reactor::receive`]. Comes again
    /// in every turn until all of it was taken.
    Readable(Token),
    /// All output that was in flight has been sent.
    Writable(Token),
    /// A connection arrived at a listener, non-blocking, not registered anywhere.
    Accepted(Token, Socket),
    /// A listener could not accept, most likely for want of descriptors. It is tried again after the
    /// next wait; the connection stays in the backlog.
    AcceptFailed(Token, io::Error),
    /// Sending what was in flight failed; the rest of it was dropped.
    SendFailed(Token),
    /// The peer of a *paused* connection ended the stream or broke the connection. Said once. Input
    /// that came before may still wait, and a peer that only closed its sending half may still wait
    /// for replies: after [`Reactor::resume`], receiving tells.
    Closed(Token),
}

/// What [`Reactor::receive`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// `count` bytes were appended. If `more`, there may be more (or the end) to take at once; the
    /// token will be reported readable again. Otherwise the socket was emptied.
    Bytes {
        /// How many.
        count: usize,
        /// Whether another receive could find something.
        more: bool,
    },
    /// Nothing was there.
    WouldBlock,
    /// The peer has ended the stream and everything was received.
    Closed,
}

/// What became of output given to [`Reactor::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel has it.
    Done,
    /// So many bytes wait for the socket; [`Event::Writable`] says when the last has gone.
    InFlight(usize),
}

/// A connection taken out of a reactor. To move it, give it to another one's [`Reactor::adopt`]; to
/// close it, drop it.
#[derive(Debug)]
pub struct DetachedConnection {
    /// The connection.
    pub socket: Socket,
    /// Output the kernel did not take yet.
    pub unsent: Unsent,
}

struct Connection {
    token: Token,
    generation: u32,
    /// Input may wait in the kernel.
    readable: bool,
    /// In the ready queue.
    queued: bool,
    paused: bool,
    /// The peer will send no more: a short receive does not mean that nothing is left to notice.
    ended: bool,
    /// `Closed` has been said.
    end_told: bool,
    /// `Writable` is to be said when the socket takes something, though nothing is in flight.
    asks_writable: bool,
    socket: Socket,
    unsent: Unsent,
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

/// One worker's sockets. Not shared: other threads reach it by its [`Waker`].
pub struct Reactor {
    epoll: OwnedFd,
    waker: Waker,
    entries: Vec<Entry>,
    generation: u32,
    /// Entries with something to take, in the order they became so.
    ready: VecDeque<u32>,
    /// Connections reported readable in the last turn: still so if not emptied since.
    reported: Vec<u32>,
    /// Listeners whose last accept failed; tried again once per wait, which they do not shorten.
    starved: Vec<u32>,
}

// Reactors are made on one thread and used on another, and connections change reactors.
const _: () = {
    const fn travels<T: Send>() {}
    travels::<Reactor>();
    travels::<DetachedConnection>();
};

impl Reactor {
    /// A reactor with nothing registered. Fails if descriptors are exhausted.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(WAKE), edges)?;
        Ok(Self {
            epoll,
            waker,
            entries: Vec::new(),
            generation: 0,
            ready: VecDeque::new(),
            reported: Vec::new(),
            starved: Vec::new(),
        })
    }

    /// A handle by which other threads end this reactor's wait.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits until something happens, `timeout` has passed (rounded up to milliseconds; `None`:
    /// forever), a waker was used or a signal was handled, and replaces `events` by what happened. At
    /// most `at_most` tokens are reported readable and connections accepted; the rest comes in the
    /// next turns. Returns whether a waker was used.
    pub fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>, at_most: usize) -> io::Result<bool> {
        events.clear();
        self.requeue_reported();
        let timeout = if self.ready.is_empty() {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        // A timeout beyond the range of a timespec is forever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut buffer = [const { MaybeUninit::uninit() }; MOST_EVENTS];
        let from_kernel = match epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        for starved in std::mem::take(&mut self.starved) {
            self.enqueue(starved);
        }
        let woken = self.take_from_kernel(from_kernel, events);
        self.report_ready(events, at_most);
        Ok(woken)
    }

    /// Watches a connection and starts to report its input. Fails with `InvalidInput` if the token's
    /// index is unreasonable, `AlreadyExists` if it is taken; the socket is closed then.
    pub fn register(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        self.adopt(
            token,
            DetachedConnection {
                socket,
                unsent: Unsent::default(),
            },
        )
    }

    /// Goes on with a connection taken out of a reactor: input that waits in the kernel is reported,
    /// and what was unsent is in flight again. Fails like [`register`](Self::register).
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
            ended: false,
            end_told: false,
            asks_writable: false,
            socket,
            unsent,
        });
        Ok(())
    }

    /// Accepts connections of `listener` from now on. Fails like [`register`](Self::register).
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

    /// Stops accepting and gives the listener back; `None` if the token is no listener.
    pub fn deregister_listener(&mut self, token: Token) -> Option<Listener> {
        let entry = self.entries.get_mut(index_of(token))?;
        if !matches!(entry, Entry::Listening(listening) if listening.token == token) {
            return None;
        }
        let Entry::Listening(listening) = std::mem::replace(entry, Entry::Vacant) else {
            return None;
        };
        self.forget(&listening.listener);
        Some(listening.listener)
    }

    /// Stops watching a connection and gives it back with its unsent output; `None` if the token is
    /// none. The token can be used again at once.
    pub fn deregister(&mut self, token: Token) -> Option<DetachedConnection> {
        self.connection(token)?;
        let entry = std::mem::replace(&mut self.entries[index_of(token)], Entry::Vacant);
        let Entry::Connection(Connection { socket, unsent, .. }) = entry else {
            return None;
        };
        self.forget(&socket);
        Some(DetachedConnection { socket, unsent })
    }

    /// The socket of a registered connection, to name it or set its options.
    pub fn socket(&self, token: Token) -> Option<&Socket> {
        self.connection(token).map(|connection| &connection.socket)
    }

    /// Reports no input of this token until [`resume`](Self::resume). Output in flight goes on, and
    /// the peer's end is reported as [`Event::Closed`].
    pub fn pause(&mut self, token: Token) {
        if let Some(connection) = self.connection_mut(token) {
            connection.paused = true;
            if connection.ended && !connection.end_told {
                self.enqueue(index_of(token) as u32);
            }
        }
    }

    /// Reports input again, beginning with what came meanwhile.
    pub fn resume(&mut self, token: Token) {
        if let Some(connection) = self.connection_mut(token) {
            connection.paused = false;
            if connection.readable {
                self.enqueue(index_of(token) as u32);
            }
        }
    }

    /// Whether a registered connection is paused.
    pub fn is_paused(&self, token: Token) -> bool {
        self.connection(token).is_some_and(|connection| connection.paused)
    }

    /// Appends to `into` what the socket has, as far as `into`'s spare capacity goes, which is first
    /// made at least `room` bytes. Also works without an event and while paused. Fails as the
    /// connection did (reset, refused), or with `NotFound` for an unknown token.
    pub fn receive(&mut self, token: Token, into: &mut Vec<u8>, room: usize) -> io::Result<Received> {
        let connection = self.connection_mut(token).ok_or(io::ErrorKind::NotFound)?;
        into.reserve(room.max(1));
        let asked = into.capacity() - into.len();
        let count = loop {
            match rustix::net::recv(&connection.socket, spare_capacity(into), RecvFlags::empty()) {
                Ok((count, _)) => break count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    connection.readable = false;
                    return Ok(Received::WouldBlock);
                }
                Err(error) => return Err(error.into()),
            }
        };
        if count == 0 {
            return Ok(Received::Closed);
        }
        connection.readable = count == asked || connection.ended;
        Ok(Received::Bytes {
            count,
            more: connection.readable,
        })
    }

    /// Sends `output`, behind what is in flight already, and keeps in flight what the socket does not
    /// take now. `output` is empty afterwards; if everything was sent, it still has its allocation.
    ///
    /// Fails if the connection is broken (the output is lost) or with `NotFound` if the token is
    /// unknown (the output is untouched).
    pub fn send(&mut self, token: Token, output: &mut Output) -> io::Result<Sent> {
        let index = index_of(token);
        let Some(Entry::Connection(connection)) = self.entries.get_mut(index) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if connection.token != token {
            return Err(io::ErrorKind::NotFound.into());
        }
        if output.is_empty() {
            return Ok(sent(&connection.unsent));
        }
        if !connection.unsent.is_empty() {
            connection.unsent.enqueue(output);
            return Ok(sent(&connection.unsent));
        }
        connection.unsent.send(&connection.socket, output)?;
        if !connection.unsent.is_empty() {
            let data = event_data(index, connection.generation);
            epoll::modify(&self.epoll, &connection.socket, data, INPUT_AND_OUTPUT)?;
        }
        Ok(sent(&connection.unsent))
    }

    /// Has [`Event::Writable`] reported once the socket takes more and nothing is in flight: in the next turn at the
    /// earliest. For who has more to send than one turn shall.
    ///
    /// Fails if the system refuses it, or with `NotFound` for an unknown token.
    pub fn ask_writable(&mut self, token: Token) -> io::Result<()> {
        let index = index_of(token);
        let Some(Entry::Connection(connection)) = self.entries.get_mut(index) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if connection.token != token {
            return Err(io::ErrorKind::NotFound.into());
        }
        if connection.unsent.is_empty() && !connection.asks_writable {
            connection.asks_writable = true;
            let data = event_data(index, connection.generation);
            epoll::modify(&self.epoll, &connection.socket, data, INPUT_AND_OUTPUT)?;
        }
        Ok(())
    }

    /// Has a connection reported readable in the next turn, whatever the socket has: somebody above it has more to give.
    pub fn report_again(&mut self, token: Token) {
        if let Some(connection) = self.connection_mut(token) {
            connection.readable = true;
            self.enqueue(index_of(token) as u32);
        }
    }

    /// How many bytes given to [`send`](Self::send) the kernel has not taken; 0 for unknown tokens.
    pub fn in_flight(&self, token: Token) -> usize {
        self.connection(token).map_or(0, |connection| connection.unsent.len())
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
        if index >= MOST_ENTRIES {
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

    /// Takes a descriptor out of the interest list. It is in there, so this cannot fail; if it did,
    /// closing the descriptor would do the same.
    fn forget(&self, source: &impl std::os::fd::AsFd) {
        let deleted = epoll::delete(&self.epoll, source);
        debug_assert!(
            deleted.is_ok(),
            "a registered descriptor was not in the epoll set: {deleted:?}"
        );
    }

    /// Puts an entry at the end of the ready queue, unless it is in there. (It may then be in there
    /// twice, from an entry that was here before it; the second one finds the flag down.)
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

    /// Queues again what was reported in the last turn and not emptied since.
    fn requeue_reported(&mut self) {
        let mut reported = std::mem::take(&mut self.reported);
        for index in reported.drain(..) {
            if let Some(Entry::Connection(connection)) = self.entries.get(index as usize)
                && connection.readable
                && !connection.paused
            {
                self.enqueue(index);
            }
        }
        self.reported = reported;
    }

    /// Notes what the kernel said and finishes what was in flight. Returns whether a waker was used.
    fn take_from_kernel(&mut self, from_kernel: &[epoll::Event], events: &mut Vec<Event>) -> bool {
        let mut woken = false;
        for event in from_kernel {
            let (flags, data) = (event.flags, event.data.u64());
            if data == WAKE {
                woken = true;
            } else {
                self.take_event(data as u32, (data >> 32) as u32, flags, events);
            }
        }
        woken
    }

    fn take_event(&mut self, index: u32, generation: u32, flags: epoll::EventFlags, events: &mut Vec<Event>) {
        match self.entries.get_mut(index as usize) {
            Some(Entry::Listening(listening)) if listening.generation == generation => self.enqueue(index),
            Some(Entry::Connection(connection)) if connection.generation == generation => {
                let ended = flags.intersects(ENDED);
                connection.ended |= ended;
                let readable = ended || flags.contains(epoll::EventFlags::IN);
                connection.readable |= readable;
                let sendable = flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::ERR);
                if sendable && (!connection.unsent.is_empty() || connection.asks_writable) {
                    events.extend(finish_sending(&self.epoll, index, connection));
                }
                if readable {
                    self.enqueue(index);
                }
            }
            _ => {}
        }
    }

    /// Reports from the front of the ready queue, at most `at_most` times.
    fn report_ready(&mut self, events: &mut Vec<Event>, at_most: usize) {
        // Entries put back while reporting wait for the next turn.
        let mut left = self.ready.len();
        let mut room = at_most;
        while left > 0 && room > 0 {
            left -= 1;
            let Some(index) = self.ready.pop_front() else {
                return;
            };
            match self.entries.get_mut(index as usize) {
                Some(Entry::Connection(connection)) if connection.queued => {
                    connection.queued = false;
                    if let Some(event) = connection.report() {
                        self.reported.push(index);
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

    /// Accepts up to `room` connections; returns how many events came of it.
    fn accept(&mut self, index: u32, room: usize, events: &mut Vec<Event>) -> usize {
        let Some(Entry::Listening(Listening { token, listener, .. })) = self.entries.get(index as usize) else {
            return 0;
        };
        let mut accepted = 0;
        while accepted < room {
            match listener.accept() {
                Ok(socket) => events.push(Event::Accepted(*token, socket)),
                Err(Errno::AGAIN) => return accepted,
                // The connection died in the backlog, or its network did: on to the next one.
                Err(error) if is_the_connections_own(error) => continue,
                Err(error) => {
                    events.push(Event::AcceptFailed(*token, error.into()));
                    self.starved.push(index);
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
    /// What there is to say about a connection whose turn has come.
    fn report(&mut self) -> Option<Event> {
        if !self.paused {
            return self.readable.then_some(Event::Readable(self.token));
        }
        let told = std::mem::replace(&mut self.end_told, self.ended);
        (self.ended && !told).then_some(Event::Closed(self.token))
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

/// Sends what is in flight; an event if that came to an end.
fn finish_sending(epoll: &OwnedFd, index: u32, connection: &mut Connection) -> Option<Event> {
    let data = event_data(index as usize, connection.generation);
    let mut result = connection.unsent.flush(&connection.socket);
    if matches!(result, Ok(false)) && !connection.unsent.is_empty() {
        // The rest is for the next turn: asked for anew, the edge is reported again.
        let asked = epoll::modify(epoll, &connection.socket, data, INPUT_AND_OUTPUT);
        result = asked.map(|()| true).map_err(io::Error::from);
    }
    if result.is_ok() && !connection.unsent.is_empty() {
        return None;
    }
    connection.unsent = Unsent::default();
    connection.asks_writable = false;
    let modified = epoll::modify(epoll, &connection.socket, data, INPUT);
    let succeeded = result.is_ok() && modified.is_ok();
    Some(if succeeded {
        Event::Writable(connection.token)
    } else {
        Event::SendFailed(connection.token)
    })
}

/// Errors of `accept` that are about the connection that would have been accepted.
fn is_the_connections_own(error: Errno) -> bool {
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

fn sent(unsent: &Unsent) -> Sent {
    match unsent.len() {
        0 => Sent::Done,
        bytes => Sent::InFlight(bytes),
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
