//! One client thread: an epoll loop that keeps its connections loaded and accounts for every reply.
//!
//! There are two ways to pace a load:
//!
//! - **Closed loop.** A connection sends a batch of `pipeline` requests in one write. It sends the next batch when the
//!   last reply of this one has arrived. Latency is counted from the batch's write.
//! - **Open loop.** Requests are due at fixed times, independently of the server: request `k` of the connection with
//!   index `p` of `n` is due at `(k * n + p) * interval`. At most `pipeline` requests are outstanding per connection;
//!   the rest wait in the client. Latency is counted from the *due time*. A server that stalls for a second therefore
//!   adds up to a second to every request that came due meanwhile, and not only to the request it was processing
//!   ("coordinated omission").
//!
//! ```text
//!            begin           from                          until          drained
//!   warm-up    |--------------|=========== window ============|-- no new ---|
//! ```
//!
//! Closed-loop replies are recorded if they arrive in the window; open-loop requests, if they come due in it. After the
//! window, requests already due are still sent and awaited for a limited time. A request that is unanswered then counts
//! with the time it has waited so far.
//!
//! A timer ends the sleep until the next due time: `epoll_wait` counts in milliseconds, and requests that are sent
//! together up to a millisecond late would measure the client. (`epoll_pwait2` has a finer resolution, on kernels that
//! support it.)
//!
//! For low overhead, all connections share one receive buffer that stays in the cache. A connection keeps bytes of its
//! own only while a reply is incomplete. Nothing is stored per request (see `draw`).

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::error::{Error, ErrorContext, Result};
use crate::interruption::Interruption;
use crate::load::Workload;
use crate::load_stream::LoadStream;
use crate::reply::ReplyScanner;

#[cfg(test)]
mod tests;

/// The size of each read, in bytes.
const READ_BUFFER_BYTES: usize = 256 * 1024;

/// The longest sleep without a check of the clock and the stop flag.
const MAX_WAIT_NS: u64 = 20_000_000;

/// The token of the timer. No connection has it.
const TIMER_TOKEN: u64 = u64::MAX;

/// The maximum number of events handled per wake-up.
const EVENTS_PER_TURN: usize = 256;

/// The highest latency that the histogram distinguishes. Longer latencies are recorded as this one.
const MAX_LATENCY_NS: u64 = 600_000_000_000;

/// Creates a histogram for latencies in nanoseconds with three significant digits.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, MAX_LATENCY_NS, 3).expect("the bounds are constants")
}

/// The pacing of requests.
#[derive(Debug, Clone, Copy)]
pub enum RequestPace {
    /// Closed loop: a batch is sent as soon as the previous one is answered.
    Closed,
    /// Open loop: one request of this thread every `interval_ns`, the first at `offset_ns`.
    Open {
        /// The time between two requests of the thread.
        interval_ns: f64,
        /// The due time of the thread's first request.
        offset_ns: f64,
    },
}

/// The measured part of a run, in nanoseconds after its beginning.
#[derive(Debug, Clone, Copy)]
pub struct MeasurementWindow {
    /// The instant from which all times are counted.
    pub begin: Instant,
    /// The start of the measurement.
    pub from_ns: u64,
    /// The end of measuring and sending.
    pub until_ns: u64,
    /// The time after `until_ns` for which replies are awaited.
    pub drain_ns: u64,
}

/// The parameters of a thread's run.
#[derive(Debug, Clone, Copy)]
pub struct ThreadPlan<'a> {
    /// The requests.
    pub workload: &'a Workload,
    /// The maximum number of outstanding requests per connection.
    pub pipeline: u64,
    /// The pacing of the requests.
    pub pace: RequestPace,
    /// The times of the measurement.
    pub window: MeasurementWindow,
    /// Set by a thread that fails, to stop the other threads.
    pub stop: &'a AtomicBool,
    /// The request to end the run, which stops all threads.
    pub interruption: &'a Interruption,
}

/// The counts of a thread.
#[derive(Debug)]
pub struct LoadTally {
    /// The number of replies that arrived in the window.
    pub replies: u64,
    /// The number of all replies, including the warm-up.
    pub all_replies: u64,
    /// The number of nil replies to requests that may miss, including the warm-up.
    pub misses: u64,
    /// The number of requests without a reply when the thread stopped waiting.
    pub unanswered: u64,
    /// Latencies of the measured requests in nanoseconds.
    pub latencies: Histogram<u64>,
}

impl LoadTally {
    /// Creates an empty tally.
    pub fn new() -> LoadTally {
        LoadTally {
            replies: 0,
            all_replies: 0,
            misses: 0,
            unanswered: 0,
            latencies: latency_histogram(),
        }
    }

    /// Adds the counts of another thread.
    pub fn merge(&mut self, other: &LoadTally) {
        self.replies += other.replies;
        self.all_replies += other.all_replies;
        self.misses += other.misses;
        self.unanswered += other.unanswered;
        self.latencies
            .add(&other.latencies)
            .expect("all histograms have the same bounds");
    }
}

/// One connection and its outstanding requests.
#[derive(Debug)]
pub struct LoadConnection {
    stream: LoadStream,
    /// The seed of the connection's draws (the first key of a sequential load).
    seed: u64,
    /// The maximum number of requests that it sends in total.
    max_requests: u64,
    sent: u64,
    received: u64,
    /// Open loop: the number of requests that came due.
    due: u64,
    /// The time at which the outstanding batch was written.
    batch_ns: u64,
    /// Encoded requests. The first `written` bytes are in the socket.
    out: Vec<u8>,
    written: usize,
    /// The beginning of an incomplete reply.
    partial_reply: Vec<u8>,
    scanner: ReplyScanner,
    is_waiting_for_writable: bool,
}

impl LoadConnection {
    /// Wraps a connected stream. The connection sends at most `budget` requests drawn from `seed`.
    ///
    /// # Errors
    /// Fails if a socket option cannot be set.
    pub fn new(stream: LoadStream, seed: u64, budget: u64) -> Result<LoadConnection> {
        let socket = stream.socket();
        socket
            .set_nonblocking(true)
            .context("making a connection non-blocking")?;
        socket.set_nodelay(true).context("switching off Nagle's algorithm")?;
        Ok(LoadConnection {
            stream,
            seed,
            max_requests: budget,
            sent: 0,
            received: 0,
            due: 0,
            batch_ns: 0,
            out: Vec::new(),
            written: 0,
            partial_reply: Vec::new(),
            scanner: ReplyScanner::default(),
            is_waiting_for_writable: false,
        })
    }

    fn outstanding(&self) -> u64 {
        self.sent - self.received
    }

    /// Encodes `count` more requests after those not yet written.
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

    /// Writes as much as the socket accepts. Returns `true` if everything is written.
    fn flush(&mut self) -> Result<bool> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::System {
                        operation: "sending requests".into(),
                        source,
                    });
                }
            }
        }
        self.stream.flush().context("sending requests")
    }

    /// Consumes all complete replies in `bytes`. Returns their number and the number of misses among them.
    fn consume_replies(&mut self, bytes: &[u8], workload: &Workload) -> Result<(u64, u64)> {
        let (mut replies, mut misses) = (0, 0);
        let mut rest = bytes;
        while self.received < self.sent {
            let found = workload.check_reply(self.seed, self.received, rest, &mut self.scanner)?;
            let Some(found) = found else { break };
            rest = rest.get(found.length..).unwrap_or_default();
            self.received += 1;
            replies += 1;
            misses += u64::from(found.is_miss);
        }
        if self.received == self.sent && !rest.is_empty() {
            let text = rest.get(..80).unwrap_or(rest).escape_ascii();
            return Err(Error::WrongReply(format!("unexpected bytes: \"{text}\"")));
        }
        self.partial_reply.clear();
        self.partial_reply.extend_from_slice(rest);
        Ok((replies, misses))
    }
}

/// The state of one client thread.
#[derive(Debug)]
pub struct Driver<'a> {
    plan: ThreadPlan<'a>,
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<LoadConnection>,
    buffer: Vec<u8>,
    tally: LoadTally,
    /// The number of outstanding requests over all connections.
    outstanding: u64,
    /// Open loop: the number of requests that are due and not sent, over all connections.
    backlog: u64,
    /// Open loop: the number of requests that came due so far.
    scheduled: u64,
}

impl<'a> Driver<'a> {
    /// Creates a thread's driver over `connections`.
    ///
    /// # Errors
    /// Fails if the system refuses the epoll instance or the timer.
    ///
    /// # Panics
    /// Panics if there are no connections or if the pipeline is 0.
    pub fn new(plan: ThreadPlan<'a>, connections: Vec<LoadConnection>) -> Result<Driver<'a>> {
        assert!(!connections.is_empty() && plan.pipeline > 0);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll instance")?;
        for (token, connection) in connections.iter().enumerate() {
            let data = epoll::EventData::new_u64(token as u64);
            epoll::add(&epoll, &connection.stream, data, epoll::EventFlags::IN).context("watching a connection")?;
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).context("creating a timer")?;
        let data = epoll::EventData::new_u64(TIMER_TOKEN);
        epoll::add(&epoll, &timer, data, epoll::EventFlags::IN).context("watching the timer")?;
        Ok(Driver {
            plan,
            epoll,
            timer,
            connections,
            buffer: vec![0; READ_BUFFER_BYTES],
            tally: LoadTally::new(),
            outstanding: 0,
            backlog: 0,
            scheduled: 0,
        })
    }

    /// Runs the load to its end, or until it is interrupted. On failure, it sets the stop flag of the other threads.
    ///
    /// # Errors
    /// Fails if a reply is wrong, a connection breaks, or a closed loop gets no replies in time.
    pub fn run(mut self) -> Result<LoadTally> {
        let outcome = self.run_until_done();
        if outcome.is_err() {
            self.plan.stop.store(true, Ordering::Relaxed);
        }
        outcome.map(|()| self.tally)
    }

    fn run_until_done(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        self.send_first_batches()?;
        loop {
            let now_ns = self.now_ns();
            let is_stopped = self.plan.stop.load(Ordering::Relaxed) || self.plan.interruption.is_requested();
            if self.is_done(now_ns)? || is_stopped {
                return Ok(());
            }
            events.clear();
            let timeout = self.arm_timer(self.wait_ns(now_ns))?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for replies"),
            }
            for event in events.iter().filter(|event| event.data.u64() != TIMER_TOKEN) {
                let token = event.data.u64() as usize;
                let flags = event.flags;
                if flags.contains(epoll::EventFlags::OUT) {
                    self.flush(token)?;
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.receive(token)?;
                }
            }
            self.send_due_requests()?;
        }
    }

    /// Closed loop: sends the first batch of every connection.
    fn send_first_batches(&mut self) -> Result<()> {
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

    /// Returns `true` if the run is over: nothing is left to send, and every reply has arrived or is no longer awaited.
    fn is_done(&mut self, now_ns: u64) -> Result<bool> {
        let window = self.plan.window;
        if self.outstanding == 0 && self.backlog == 0 {
            let ended = now_ns >= window.until_ns;
            return Ok(ended || self.connections.iter().all(|each| each.sent == each.max_requests));
        }
        if now_ns < window.until_ns.saturating_add(window.drain_ns) {
            return Ok(false);
        }
        match self.plan.pace {
            RequestPace::Closed => Err(Error::Server(format!(
                "the server left {} requests unanswered for {} s",
                self.outstanding,
                window.drain_ns / 1_000_000_000
            ))),
            RequestPace::Open { .. } => {
                self.record_unanswered(now_ns);
                Ok(true)
            }
        }
    }

    /// Ensures that the next wait ends in time, and returns its timeout.
    fn arm_timer(&self, wait_ns: u64) -> Result<Timespec> {
        if wait_ns == 0 || matches!(self.plan.pace, RequestPace::Closed) {
            return Ok(timespec(wait_ns));
        }
        let once = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(wait_ns),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).context("setting the timer")?;
        Ok(timespec(MAX_WAIT_NS))
    }

    /// The time that the thread may sleep, in nanoseconds.
    fn wait_ns(&self, now_ns: u64) -> u64 {
        let mut wake_ns = now_ns + MAX_WAIT_NS;
        if now_ns < self.plan.window.until_ns {
            wake_ns = wake_ns.min(self.plan.window.until_ns);
            if let Some(due_ns) = self.due_ns(self.scheduled) {
                wake_ns = wake_ns.min(due_ns);
            }
        }
        wake_ns.saturating_sub(now_ns)
    }

    /// Open loop: the due time of the thread's request number `index`.
    fn due_ns(&self, index: u64) -> Option<u64> {
        match self.plan.pace {
            RequestPace::Closed => None,
            RequestPace::Open { interval_ns, offset_ns } => Some((offset_ns + index as f64 * interval_ns) as u64),
        }
    }

    /// Open loop: the due time of request number `index` of the connection `token`.
    fn connection_due_ns(&self, token: usize, index: u64) -> Option<u64> {
        self.due_ns(index * self.connections.len() as u64 + token as u64)
    }

    /// Closed loop: sends a connection's next batch.
    fn send_batch(&mut self, token: usize, now_ns: u64) -> Result<()> {
        if now_ns >= self.plan.window.until_ns {
            return Ok(());
        }
        let connection = &mut self.connections[token];
        let count = self.plan.pipeline.min(connection.max_requests - connection.sent);
        if count == 0 {
            return Ok(());
        }
        connection.append_requests(count, self.plan.workload);
        connection.batch_ns = now_ns;
        self.outstanding += count;
        self.flush(token)
    }

    /// Open loop: assigns every request that came due to its connection, and sends.
    fn send_due_requests(&mut self) -> Result<()> {
        if matches!(self.plan.pace, RequestPace::Closed) {
            return Ok(());
        }
        let until_ns = self.plan.window.until_ns;
        let now_ns = self.now_ns();
        let mut connections_with_due = Vec::new();
        while let Some(due_ns) = self.due_ns(self.scheduled) {
            if due_ns > now_ns || due_ns >= until_ns {
                break;
            }
            let token = (self.scheduled % self.connections.len() as u64) as usize;
            self.connections[token].due += 1;
            self.scheduled += 1;
            self.backlog += 1;
            if connections_with_due.len() < self.connections.len() {
                connections_with_due.push(token);
            }
        }
        connections_with_due
            .into_iter()
            .try_for_each(|token| self.send_due_on(token))
    }

    /// Open loop: sends as many due requests of one connection as its pipeline allows.
    fn send_due_on(&mut self, token: usize) -> Result<()> {
        let connection = &mut self.connections[token];
        let room = self.plan.pipeline - connection.outstanding();
        let count = room.min(connection.due - connection.sent);
        if count == 0 {
            return Ok(());
        }
        connection.append_requests(count, self.plan.workload);
        self.outstanding += count;
        self.backlog -= count;
        self.flush(token)
    }

    /// Writes as much as the socket accepts. Watches for writability if it did not accept everything.
    fn flush(&mut self, token: usize) -> Result<()> {
        let connection = &mut self.connections[token];
        let awaits_room = !connection.flush()?;
        if awaits_room != connection.is_waiting_for_writable {
            connection.is_waiting_for_writable = awaits_room;
            let mut interest = epoll::EventFlags::IN;
            interest.set(epoll::EventFlags::OUT, awaits_room);
            let data = epoll::EventData::new_u64(token as u64);
            epoll::modify(&self.epoll, &connection.stream, data, interest).context("changing the epoll interest")?;
        }
        Ok(())
    }

    /// Receives the input of a connection, accounts for it, and sends more requests.
    fn receive(&mut self, token: usize) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = self.receive_into(token, &mut buffer);
        self.buffer = buffer;
        outcome
    }

    fn receive_into(&mut self, token: usize, buffer: &mut Vec<u8>) -> Result<()> {
        loop {
            let connection = &mut self.connections[token];
            let kept = connection.partial_reply.len();
            if buffer.len() < kept + READ_BUFFER_BYTES / 2 {
                buffer.resize(kept + READ_BUFFER_BYTES, 0);
            }
            buffer[..kept].copy_from_slice(&connection.partial_reply);
            let count = match connection.stream.read(&mut buffer[kept..]) {
                Ok(0) => return Err(Error::Server("the server closed a connection".into())),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(Error::System {
                        operation: "reading replies".into(),
                        source,
                    });
                }
            };
            let first = connection.received;
            let bytes = &buffer[..kept + count];
            let (replies, misses) = connection.consume_replies(bytes, self.plan.workload)?;
            self.tally.misses += misses;
            self.record_replies(token, first, replies)?;
            if kept + count < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Records `replies` replies, from number `first` on, that have just arrived.
    fn record_replies(&mut self, token: usize, first: u64, replies: u64) -> Result<()> {
        if replies == 0 {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let window = self.plan.window;
        let in_window = (window.from_ns..window.until_ns).contains(&now_ns);
        self.outstanding -= replies;
        self.tally.all_replies += replies;
        if in_window {
            self.tally.replies += replies;
        }
        if matches!(self.plan.pace, RequestPace::Open { .. }) {
            for index in first..first + replies {
                self.record_from_due(token, index, now_ns);
            }
            return self.send_due_on(token);
        }
        let connection = &self.connections[token];
        if in_window {
            let latency_ns = now_ns - connection.batch_ns;
            self.tally.latencies.saturating_record_n(latency_ns, replies);
        }
        if connection.outstanding() == 0 {
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

    /// Open loop: records unanswered requests with the time they have waited.
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
