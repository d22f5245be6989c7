//! The thread that speaks to the server, so that a slow server never delays the keyboard.
//!
//! Requests and events pass through bounded channels. If the receiver of events is slow, the thread waits, and no
//! sample is taken meanwhile. After a failure the thread connects again, with growing pauses.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::connection::{Connector, ServerConnection, accepted};
use crate::error::{Result, TopError};
use crate::model::TopReport;
use crate::sampling::{ServerSampler, WantedParts};

/// The sizes of the channels.
const REQUESTS: usize = 64;
const EVENTS: usize = 4;
/// The first and the longest pause before the thread connects again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A request to the thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollRequest {
    /// Sample these parts from now on, and take a sample at once.
    Want(WantedParts),
    /// Close the connection of the client with this id.
    KillClient(u64),
}

/// An event of the thread.
#[derive(Debug)]
pub enum PollEvent {
    /// A sample.
    Report(Box<TopReport>),
    /// The connection failed; the thread connects again.
    Disconnected(TopError),
    /// The result of [`PollRequest::KillClient`], for the user.
    Message(String),
}

/// The other end of the thread.
#[derive(Debug)]
pub struct Poller {
    /// Accepts requests.
    pub requests: SyncSender<PollRequest>,
    /// Delivers events.
    pub events: Receiver<PollEvent>,
}

/// Starts the thread. It ends when the returned value is dropped.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn start(connector: Connector, interval: Duration, wanted: WantedParts) -> Result<Poller> {
    let (requests, received_requests) = sync_channel(REQUESTS);
    let (sent_events, events) = sync_channel(EVENTS);
    let thread = PollThread {
        connector,
        interval,
        wanted,
        requests: received_requests,
        events: sent_events,
    };
    thread::Builder::new()
        .name("poller".to_owned())
        .spawn(move || thread.run())
        .map_err(TopError::system("starting a thread"))?;
    Ok(Poller { requests, events })
}

/// The reason why a part of the thread's work ended.
enum PollEnd {
    /// The receiver of events is gone.
    Closed,
    /// The connection failed.
    Failed(TopError),
}

impl From<TopError> for PollEnd {
    fn from(error: TopError) -> PollEnd {
        PollEnd::Failed(error)
    }
}

struct PollThread {
    connector: Connector,
    interval: Duration,
    wanted: WantedParts,
    requests: Receiver<PollRequest>,
    events: SyncSender<PollEvent>,
}

impl PollThread {
    fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let start = Instant::now();
            let Err(PollEnd::Failed(error)) = self.serve_connection() else {
                return;
            };
            if self.events.send(PollEvent::Disconnected(error)).is_err() {
                return;
            }
            if start.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            if self.await_retry(pause).is_err() {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits before the next attempt, and keeps what is wanted up to date.
    fn await_retry(&mut self, pause: Duration) -> std::result::Result<(), PollEnd> {
        let end = Instant::now() + pause;
        loop {
            match self
                .requests
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(PollRequest::Want(wanted)) => self.wanted = wanted,
                Ok(PollRequest::KillClient(_)) => self.send(PollEvent::Message("not connected".to_owned()))?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(PollEnd::Closed),
            }
        }
    }

    fn send(&self, event: PollEvent) -> std::result::Result<(), PollEnd> {
        self.events.send(event).map_err(|_| PollEnd::Closed)
    }

    /// Connects and samples until the connection fails.
    fn serve_connection(&mut self) -> std::result::Result<(), PollEnd> {
        let mut connection = self.connector.connect()?;
        let mut sampler = ServerSampler::new(self.connector.address());
        let mut next_sample = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_sample {
                let report = sampler.sample(&mut connection, self.wanted)?;
                self.send(PollEvent::Report(Box::new(report)))?;
                // A slow server gets its whole interval of rest.
                next_sample = (next_sample + self.interval).max(Instant::now());
            }
            let next_page = sampler.next_page();
            if next_page.is_some_and(|time| time <= Instant::now()) {
                sampler.read_page(&mut connection)?;
            }
            let until = next_page.map_or(next_sample, |page| page.min(next_sample));
            if self.handle_requests(&mut connection, until)? {
                next_sample = Instant::now();
            }
        }
    }

    /// Handles requests until the time. Returns `true` if a sample should be taken at once.
    fn handle_requests(
        &mut self,
        connection: &mut ServerConnection,
        until: Instant,
    ) -> std::result::Result<bool, PollEnd> {
        let mut request = match self
            .requests
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => return Err(PollEnd::Closed),
        };
        loop {
            match request {
                PollRequest::Want(wanted) => self.wanted = wanted,
                PollRequest::KillClient(id) => {
                    let text = kill_client(connection, id)?;
                    self.send(PollEvent::Message(text))?;
                }
            }
            request = match self.requests.try_recv() {
                Ok(request) => request,
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Err(PollEnd::Closed),
            };
        }
    }
}

/// Kills a client and returns a text for the user.
fn kill_client(connection: &mut ServerConnection, id: u64) -> Result<String> {
    let reply = connection.call(&["CLIENT", "KILL", "ID", &id.to_string()])?;
    Ok(match accepted(reply) {
        Err(text) => format!("client {id}: {text}"),
        Ok(reply) if reply.integer() == Some(0) => format!("client {id} is already gone"),
        Ok(_) => format!("client {id} killed"),
    })
}
