//! One client thread: an epoll loop that keeps its connections loaded and accounts for every reply.
//!
//! Two ways to pace a load:
//!
//! - **Closed loop.** A connection sends a batch of `pipeline` requests in one write and the next
//!   batch when the last reply of this one is in. Latency is counted from the batch's write.
//! - **Open loop.** Requests are due at fixed times, whatever the server does: request `k` of the
//!   connection in place `p` of `n` is due at `(k * n + p) * interval`. At most `pipeline` are on
//!   their way per connection; the others wait here. Latency is counted from the *due time*, so a
//!   server that stalls for a second adds a second to every request that came due meanwhile, not
//!   just to the one it was working on ("coordinated omission").
//!
//! ```text
//!            begin           from                          until          drained
//!   warm-up    |--------------|=========== window ============|-- no new ---|
//! ```
//!
//! Closed-loop replies are recorded if they arrive in the window, open-loop requests if they come
//! due in it. After the window, requests already due are still sent and awaited, for a limited time;
//! what is unanswered then counts with the time it has waited so far.
//!
//! The sleep until the next due time is ended by a timer: `epoll_wait` counts in milliseconds, and requests that are sent a
//! millisecond late, all at once, measure the client. (`epoll_pwait2` counts finer, on kernels that know it.)
//!
//! Cheapness: all connections share one receive buffer that stays in the cache; a connection keeps
//! bytes of its own only while a reply is incomplete. Nothing is stored per request (see `draw`).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::error::{Error, ErrorContext, Result};
use crate::load::Workload;
use crate::reply::Scanner;

#[cfg(test)]
mod tests;

/// Room for each read.
const READ_BYTES: usize = 256 * 1024;

/// Longest sleep without looking at the clock and the stop flag.
const LONGEST_WAIT_NS: u64 = 20_000_000;

/// The token of the timer among those of the connections.
const TIMER: u64 = u64::MAX;

/// Connections handled per wake-up.
const EVENTS_PER_TURN: usize = 256;

/// Longest latency the histogram tells apart; longer ones count as this.
const HIGHEST_LATENCY_NS: u64 = 600_000_000_000;

/// A histogram for latencies in nanoseconds with three significant digits.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, HIGHEST_LATENCY_NS, 3).expect("the bounds are constants")
}

/// How requests are spaced.
#[derive(Debug, Clone, Copy)]
pub enum RequestPace {
    /// As fast as replies come.
    Closed,
    /// One request of this thread every `interval_ns`, the first at `offset_ns`.
    Open {
        /// Time between two requests of the thread.
        interval_ns: f64,
        /// Due time of the thread's first request.
        offset_ns: f64,
    },
}

/// The measured part of a run, in nanoseconds after its beginning.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// The instant from which all times are counted.
    pub begin: Instant,
    /// Where measuring starts.
    pub from_ns: u64,
    /// Where measuring and sending end.
    pub until_ns: u64,
    /// How long after `until_ns` replies are awaited.
    pub drain_ns: u64,
}

/// What a thread needs to know about its run.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The requests.
    pub workload: &'a Workload,
    /// Most requests on their way per connection.
    pub pipeline: u64,
    /// Their spacing.
    pub pace: RequestPace,
    /// When to measure.
    pub window: Window,
    /// Set by a thread that fails, to stop the others.
    pub stop: &'a AtomicBool,
}

/// What a thread counted.
#[derive(Debug)]
pub struct Tally {
    /// Replies that arrived in the window.
    pub replies: u64,
    /// All replies, warm-up included.
    pub all_replies: u64,
    /// Nil replies to requests that may miss, warm-up included.
    pub misses: u64,
    /// Requests that got no reply before the thread gave up waiting.
    pub unanswered: u64,
    /// Latencies of the measured requests in nanoseconds.
    pub latencies: Histogram<u64>,
}

impl Tally {
    /// An empty tally.
    pub fn new() -> Tally {
        Tally {
            replies: 0,
            all_replies: 0,
            misses: 0,
            unanswered: 0,
            latencies: latency_histogram(),
        }
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &Tally) {
        self.replies += other.replies;
        self.all_replies += other.all_replies;
        self.misses += other.misses;
        self.unanswered += other.unanswered;
        self.latencies
            .add(&other.latencies)
            .expect("all histograms have the same bounds");
    }
}

/// One connection and the requests on their way.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Seed of the connection's draws (the first key of a sequential load).
    seed: u64,
    /// Requests it may send in its life.
    budget: u64,
    sent: u64,
    received: u64,
    /// Open loop: requests that came due.
    due: u64,
    /// When the batch on its way was written.
    batch_ns: u64,
    /// Requests encoded, of which the first `written` bytes are in the socket.
    out: Vec<u8>,
    written: usize,
    /// The beginning of a reply whose end has not arrived.
    tail: Vec<u8>,
    scanner: Scanner,
    awaits_room: bool,
}

impl Connection {
    /// Takes a connected stream. The connection sends at most `budget` requests drawn from `seed`.
    pub fn new(stream: TcpStream, seed: u64, budget: u64) -> Result<Connection> {
        stream.set_nonblocking(true).doing("making a connection non-blocking")?;
        stream.set_nodelay(true).doing("switching off Nagle's algorithm")?;
        Ok(Connection {
            stream,
            seed,
            budget,
            sent: 0,
            received: 0,
            due: 0,
            batch_ns: 0,
            out: Vec::new(),
            written: 0,
            tail: Vec::new(),
            scanner: Scanner::default(),
            awaits_room: false,
        })
    }

    fn on_their_way(&self) -> u64 {
        self.sent - self.received
    }

    /// Encodes `count` more requests behind those not yet written.
    fn append_requests(&mut self, count: u64, workload: &Workload) {
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        for index in self.sent..self.sent + count {
            workload.append_request(self.seed, index, &mut self.out);
        }
        self.sent += count;
    }

    /// Writes what the socket takes; whether everything is written.
    fn flush(&mut self) -> Result<bool> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::System {
                        doing: "sending requests".into(),
                        source,
                    });
                }
            }
        }
        Ok(true)
    }

    /// Takes all complete replies out of `bytes`; gives their number and that of the misses.
    fn take_replies(&mut self, bytes: &[u8], workload: &Workload) -> Result<(u64, u64)> {
        let (mut replies, mut misses) = (0, 0);
        let mut rest = bytes;
        while self.received < self.sent {
            let found = workload.check_reply(self.seed, self.received, rest, &mut self.scanner)?;
            let Some(found) = found else { break };
            rest = rest.get(found.length..).unwrap_or_default();
            self.received += 1;
            replies += 1;
            misses += u64::from(found.miss);
        }
        if self.received == self.sent && !rest.is_empty() {
            let text = rest.get(..80).unwrap_or(rest).escape_ascii();
            return Err(Error::WrongReply(format!(
                "bytes that no request asked for: \"{text}\""
            )));
        }
        self.tail.clear();
        self.tail.extend_from_slice(rest);
        Ok((replies, misses))
    }
}

/// The state of one client thread.
#[derive(Debug)]
pub struct Driver<'a> {
    plan: Plan<'a>,
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    tally: Tally,
    /// Requests sent and not answered, over all connections.
    on_their_way: u64,
    /// Open loop: requests due and not sent, over all connections.
    backlog: u64,
    /// Open loop: requests that came due so far.
    scheduled: u64,
}

impl<'a> Driver<'a> {
    /// A thread's driver over `connections` (at least one).
    pub fn new(plan: Plan<'a>, connections: Vec<Connection>) -> Result<Driver<'a>> {
        assert!(!connections.is_empty() && plan.pipeline > 0);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).doing("creating an epoll instance")?;
        for (token, connection) in connections.iter().enumerate() {
            let data = epoll::EventData::new_u64(token as u64);
            epoll::add(&epoll, &connection.stream, data, epoll::EventFlags::IN).doing("watching a connection")?;
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).doing("creating a timer")?;
        let data = epoll::EventData::new_u64(TIMER);
        epoll::add(&epoll, &timer, data, epoll::EventFlags::IN).doing("watching the timer")?;
        Ok(Driver {
            plan,
            epoll,
            timer,
            connections,
            buffer: vec![0; READ_BYTES],
            tally: Tally::new(),
            on_their_way: 0,
            backlog: 0,
            scheduled: 0,
        })
    }

    /// Runs the load to its end. On failure the other threads are told to stop.
    pub fn run(mut self) -> Result<Tally> {
        let outcome = self.turn_until_done();
        if outcome.is_err() {
            self.plan.stop.store(true, Ordering::Relaxed);
        }
        outcome.map(|()| self.tally)
    }

    fn turn_until_done(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        self.start()?;
        loop {
            let now_ns = self.now_ns();
            if self.is_done(now_ns)? || self.plan.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            events.clear();
            let timeout = self.wait_at_most(self.wait_ns(now_ns))?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).doing("waiting for replies"),
            }
            for event in events.iter().filter(|event| event.data.u64() != TIMER) {
                let token = event.data.u64() as usize;
                let flags = event.flags;
                if flags.contains(epoll::EventFlags::OUT) {
                    self.flush(token)?;
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.receive(token)?;
                }
            }
            self.send_what_came_due()?;
        }
    }

    /// Closed loop: gives every connection its first batch.
    fn start(&mut self) -> Result<()> {
        if matches!(self.plan.pace, RequestPace::Closed) {
            let now_ns = self.now_ns();
            for token in 0..self.connections.len() {
                self.send_batch(token, now_ns)?;
            }
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.plan.window.begin.elapsed().as_nanos() as u64
    }

    /// Whether the run is over: nothing left to send, and every reply in or given up.
    fn is_done(&mut self, now_ns: u64) -> Result<bool> {
        let window = self.plan.window;
        if self.on_their_way == 0 && self.backlog == 0 {
            let ended = now_ns >= window.until_ns;
            return Ok(ended || self.connections.iter().all(|each| each.sent == each.budget));
        }
        if now_ns < window.until_ns.saturating_add(window.drain_ns) {
            return Ok(false);
        }
        match self.plan.pace {
            RequestPace::Closed => Err(Error::Server(format!(
                "the server left {} requests unanswered for {} s",
                self.on_their_way,
                window.drain_ns / 1_000_000_000
            ))),
            RequestPace::Open { .. } => {
                self.record_unanswered(now_ns);
                Ok(true)
            }
        }
    }

    /// Sees to it that the next wait ends in time, and returns its timeout.
    fn wait_at_most(&self, wait_ns: u64) -> Result<Timespec> {
        if wait_ns == 0 || matches!(self.plan.pace, RequestPace::Closed) {
            return Ok(timespec(wait_ns));
        }
        let once = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(wait_ns),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).doing("setting the timer")?;
        Ok(timespec(LONGEST_WAIT_NS))
    }

    /// How long the thread may sleep.
    fn wait_ns(&self, now_ns: u64) -> u64 {
        let mut wake_ns = now_ns + LONGEST_WAIT_NS;
        if now_ns < self.plan.window.until_ns {
            wake_ns = wake_ns.min(self.plan.window.until_ns);
            if let Some(due_ns) = self.due_ns(self.scheduled) {
                wake_ns = wake_ns.min(due_ns);
            }
        }
        wake_ns.saturating_sub(now_ns)
    }

    /// Open loop: when the thread's request number `index` is due.
    fn due_ns(&self, index: u64) -> Option<u64> {
        match self.plan.pace {
            RequestPace::Closed => None,
            RequestPace::Open { interval_ns, offset_ns } => Some((offset_ns + index as f64 * interval_ns) as u64),
        }
    }

    /// Open loop: when request number `index` of the connection `token` was due.
    fn connection_due_ns(&self, token: usize, index: u64) -> Option<u64> {
        self.due_ns(index * self.connections.len() as u64 + token as u64)
    }

    /// Closed loop: sends a connection's next batch.
    fn send_batch(&mut self, token: usize, now_ns: u64) -> Result<()> {
        if now_ns >= self.plan.window.until_ns {
            return Ok(());
        }
        let connection = &mut self.connections[token];
        let count = self.plan.pipeline.min(connection.budget - connection.sent);
        if count == 0 {
            return Ok(());
        }
        connection.append_requests(count, self.plan.workload);
        connection.batch_ns = now_ns;
        self.on_their_way += count;
        self.flush(token)
    }

    /// Open loop: moves every request whose time has come to its connection, and sends.
    fn send_what_came_due(&mut self) -> Result<()> {
        if matches!(self.plan.pace, RequestPace::Closed) {
            return Ok(());
        }
        let until_ns = self.plan.window.until_ns;
        let now_ns = self.now_ns();
        let mut touched = Vec::new();
        while let Some(due_ns) = self.due_ns(self.scheduled) {
            if due_ns > now_ns || due_ns >= until_ns {
                break;
            }
            let token = (self.scheduled % self.connections.len() as u64) as usize;
            self.connections[token].due += 1;
            self.scheduled += 1;
            self.backlog += 1;
            if touched.len() < self.connections.len() {
                touched.push(token);
            }
        }
        touched.into_iter().try_for_each(|token| self.send_due(token))
    }

    /// Open loop: sends as many due requests of one connection as its pipeline has room for.
    fn send_due(&mut self, token: usize) -> Result<()> {
        let connection = &mut self.connections[token];
        let room = self.plan.pipeline - connection.on_their_way();
        let count = room.min(connection.due - connection.sent);
        if count == 0 {
            return Ok(());
        }
        connection.append_requests(count, self.plan.workload);
        self.on_their_way += count;
        self.backlog -= count;
        self.flush(token)
    }

    /// Writes what the socket takes, and watches for room if it did not take everything.
    fn flush(&mut self, token: usize) -> Result<()> {
        let connection = &mut self.connections[token];
        let awaits_room = !connection.flush()?;
        if awaits_room != connection.awaits_room {
            connection.awaits_room = awaits_room;
            let mut interest = epoll::EventFlags::IN;
            interest.set(epoll::EventFlags::OUT, awaits_room);
            let data = epoll::EventData::new_u64(token as u64);
            epoll::modify(&self.epoll, &connection.stream, data, interest).doing("changing what is watched")?;
        }
        Ok(())
    }

    /// Reads what has arrived for a connection, accounts for it, and sends on.
    fn receive(&mut self, token: usize) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = self.receive_into(token, &mut buffer);
        self.buffer = buffer;
        outcome
    }

    fn receive_into(&mut self, token: usize, buffer: &mut Vec<u8>) -> Result<()> {
        loop {
            let connection = &mut self.connections[token];
            let kept = connection.tail.len();
            if buffer.len() < kept + READ_BYTES / 2 {
                buffer.resize(kept + READ_BYTES, 0);
            }
            buffer[..kept].copy_from_slice(&connection.tail);
            let count = match connection.stream.read(&mut buffer[kept..]) {
                Ok(0) => return Err(Error::Server("the server closed a connection".into())),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(Error::System {
                        doing: "reading replies".into(),
                        source,
                    });
                }
            };
            let first = connection.received;
            let bytes = &buffer[..kept + count];
            let (replies, misses) = connection.take_replies(bytes, self.plan.workload)?;
            self.tally.misses += misses;
            self.account(token, first, replies)?;
            if kept + count < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Records `replies` replies from number `first` on, which have just arrived.
    fn account(&mut self, token: usize, first: u64, replies: u64) -> Result<()> {
        if replies == 0 {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let window = self.plan.window;
        let in_window = (window.from_ns..window.until_ns).contains(&now_ns);
        self.on_their_way -= replies;
        self.tally.all_replies += replies;
        if in_window {
            self.tally.replies += replies;
        }
        if matches!(self.plan.pace, RequestPace::Open { .. }) {
            for index in first..first + replies {
                self.record_from_due(token, index, now_ns);
            }
            return self.send_due(token);
        }
        let connection = &self.connections[token];
        if in_window {
            let latency_ns = now_ns - connection.batch_ns;
            self.tally.latencies.saturating_record_n(latency_ns, replies);
        }
        if connection.on_their_way() == 0 {
            return self.send_batch(token, now_ns);
        }
        Ok(())
    }

    /// Open loop: records the time from a request's due time until now, if it came due in the window.
    fn record_from_due(&mut self, token: usize, index: u64, now_ns: u64) {
        let window = self.plan.window;
        let due_ns = self.connection_due_ns(token, index).unwrap_or(now_ns);
        if (window.from_ns..window.until_ns).contains(&due_ns) {
            self.tally.latencies.saturating_record(now_ns.saturating_sub(due_ns));
        }
    }

    /// Open loop: counts what nobody answered with the time it has waited.
    fn record_unanswered(&mut self, now_ns: u64) {
        for token in 0..self.connections.len() {
            let (received, due) = (self.connections[token].received, self.connections[token].due);
            self.tally.unanswered += due - received;
            for index in received..due {
                self.record_from_due(token, index, now_ns);
            }
        }
    }
}

fn timespec(nanoseconds: u64) -> Timespec {
    let wait = Duration::from_nanos(nanoseconds);
    Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    }
}
