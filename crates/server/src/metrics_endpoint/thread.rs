//! The thread of the metrics endpoint: accepts connections, answers requests, renders the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weft_os::sync::mpsc;
use weft_os::time::Instant;
use weft_reactor::{AlternateStack, Event, Reactor, Socket, Token, thread_cpu_us};

use super::EndpointCommand;
use super::connection::{HttpConnection, HttpPhase, HttpProgress, MAX_CONNECTIONS};
use super::exposition::Exposition;
use super::groups::{self, EndpointFigures};
use super::http::{self, HttpRequest, HttpResponse, Resource};
use crate::net::listeners::Listeners;
use crate::observability::log;
use crate::state::Server;

/// After a rendering, the thread renders nothing for this many times the CPU time of the rendering.
pub const PAUSE_PER_RENDERING: u32 = 19;
/// The longest of these pauses.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of connections accepted in one turn.
const MAX_EVENTS_PER_TURN: usize = 8;
/// The pause after a turn that has accepted connections, so that a flood of them does not occupy a CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(2);
/// The time after which accepting is tried again when it has failed.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// The tokens of connections, behind those of the listeners.
const CONNECTION_TOKENS: std::ops::Range<Token> = 256..1280;

/// The state of the thread.
pub struct EndpointThread {
    server: Arc<Server>,
    reactor: Reactor,
    listeners: Listeners,
    commands: mpsc::Receiver<EndpointCommand>,
    connections: BTreeMap<Token, HttpConnection>,
    /// The tokens of the connections, in the order in which they were accepted.
    arrivals: Vec<Token>,
    next_token: Token,
    /// The time before which nothing is rendered.
    next_rendering: Instant,
    figures: EndpointFigures,
    /// `true` if the last attempt to accept a connection has failed.
    is_accept_failing: bool,
    has_accepted: bool,
}

impl EndpointThread {
    /// Creates the state. The sockets of `listeners` are in `reactor`.
    pub fn new(
        server: Arc<Server>,
        reactor: Reactor,
        listeners: Listeners,
        commands: mpsc::Receiver<EndpointCommand>,
    ) -> EndpointThread {
        EndpointThread {
            server,
            reactor,
            listeners,
            commands,
            connections: BTreeMap::new(),
            arrivals: Vec::new(),
            next_token: CONNECTION_TOKENS.start,
            next_rendering: Instant::now(),
            figures: EndpointFigures::default(),
            is_accept_failing: false,
            has_accepted: false,
        }
    }

    /// Runs until [`EndpointCommand::Stop`], or until the coordinator is gone.
    pub fn run(mut self) {
        // Without a stack of its own, a crash on this thread is reported without the backtrace.
        let _stack = AlternateStack::install();
        let mut events = Vec::new();
        let stop_answer = loop {
            let timeout = self.next_timeout();
            events.clear();
            if let Err(error) = self.reactor.wait(timeout, &mut events, MAX_EVENTS_PER_TURN) {
                log::warning!("The metrics endpoint cannot wait for events: {error}");
                weft_os::thread::sleep(RETRY_TIME);
            }
            for event in events.drain(..) {
                self.handle(event);
            }
            match self.execute_commands() {
                Ok(()) => {}
                Err(answer) => break answer,
            }
            self.serve_metrics();
            self.close_overdue();
            if std::mem::take(&mut self.has_accepted) {
                weft_os::thread::sleep(ACCEPT_PAUSE);
            }
        };
        // The sockets are closed before the answer, so that the port can be used again.
        drop(self);
        if let Some(answer) = stop_answer {
            let _ = answer.send(true);
        }
    }

    /// Returns the time until the next connection is overdue or the next rendering is due.
    fn next_timeout(&self) -> Option<Duration> {
        let deadlines = self.connections.values().map(HttpConnection::deadline);
        let rendering = self.has_waiting_requests().then_some(self.next_rendering);
        let retry = self.is_accept_failing.then(|| Instant::now() + RETRY_TIME);
        let next = deadlines.chain(rendering).chain(retry).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Executes the commands that have arrived.
    ///
    /// # Errors
    /// When the thread has to end, with the sender of the answer to the command that ends it.
    fn execute_commands(&mut self) -> Result<(), Option<mpsc::SyncSender<bool>>> {
        loop {
            match self.commands.try_recv() {
                Ok(EndpointCommand::Listen(answer)) => {
                    let is_open = self
                        .listeners
                        .listen_tcp(&self.server.config, &mut self.reactor)
                        .is_ok();
                    // The requesting thread may have given up waiting.
                    let _ = answer.send(is_open && self.listeners.tcp_count() > 0);
                }
                Ok(EndpointCommand::Stop(answer)) => return Err(Some(answer)),
                Err(mpsc::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::TryRecvError::Disconnected) => return Err(None),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted(_, socket) => self.add(socket),
            Event::AcceptFailed(_, error) => {
                if !std::mem::replace(&mut self.is_accept_failing, true) {
                    log::warning!("Accepting a connection to the metrics endpoint: {error}");
                }
            }
            Event::Readable(token) => {
                let server = self.server.clone();
                let respond = |request: &HttpRequest| respond(&server, request);
                self.advance(token, |connection, reactor| connection.receive(reactor, respond));
            }
            Event::Writable(token) => self.advance(token, HttpConnection::finish_sending),
            Event::SendFailed(token) => self.remove(token),
            // The peer has closed its sending half, and may still receive the response.
            Event::Closed(_) => {}
        }
    }

    fn advance(&mut self, token: Token, step: impl FnOnce(&mut HttpConnection, &mut Reactor) -> HttpProgress) {
        if let Some(connection) = self.connections.get_mut(&token)
            && step(connection, &mut self.reactor) == HttpProgress::Ended
        {
            self.remove(token);
        }
    }

    /// Adds a connection. If there are too many, the oldest one is closed, and rather one that has not sent its request
    /// or has its response: clients that are silent or slow do not keep others away.
    fn add(&mut self, socket: Socket) {
        self.is_accept_failing = false;
        self.has_accepted = true;
        if self.connections.len() >= MAX_CONNECTIONS {
            let is_idle = |token: &&Token| {
                let phase = self.connections.get(token).map(HttpConnection::phase);
                matches!(phase, Some(HttpPhase::Receiving | HttpPhase::Closing))
            };
            let idle = self.arrivals.iter().find(is_idle);
            if let Some(victim) = idle.or(self.arrivals.first()).copied() {
                let phase = self.connections.get(&victim).map(HttpConnection::phase);
                self.figures.closed_early += u64::from(phase != Some(HttpPhase::Closing));
                self.remove(victim);
            }
        }
        let token = self.free_token();
        if self.reactor.register(token, socket).is_ok() {
            self.connections
                .insert(token, HttpConnection::new(token, Instant::now()));
            self.arrivals.push(token);
        }
    }

    /// Returns a token that was not used recently: events of this turn may still belong to closed connections.
    fn free_token(&mut self) -> Token {
        loop {
            let token = self.next_token;
            self.next_token = match token + 1 {
                next if next < CONNECTION_TOKENS.end => next,
                _ => CONNECTION_TOKENS.start,
            };
            if !self.connections.contains_key(&token) {
                return token;
            }
        }
    }

    fn remove(&mut self, token: Token) {
        self.arrivals.retain(|arrival| *arrival != token);
        if let Some(connection) = self.connections.remove(&token) {
            connection.close(&mut self.reactor);
        }
    }

    fn close_overdue(&mut self) {
        let now = Instant::now();
        let overdue = |(token, connection): (&Token, &HttpConnection)| {
            (connection.deadline() <= now).then(|| (*token, connection.phase()))
        };
        let overdue: Vec<(Token, HttpPhase)> = self.connections.iter().filter_map(overdue).collect();
        for (token, phase) in overdue {
            self.figures.closed_early += u64::from(phase != HttpPhase::Closing);
            self.remove(token);
        }
    }

    fn has_waiting_requests(&self) -> bool {
        self.connections
            .values()
            .any(|connection| matches!(connection.phase(), HttpPhase::AwaitingMetrics(_)))
    }

    /// Renders the metrics for all requests that wait for them, unless the last rendering was too recent.
    fn serve_metrics(&mut self) {
        if Instant::now() < self.next_rendering || !self.has_waiting_requests() {
            return;
        }
        let cpu_us_before = thread_cpu_us();
        let mut exposition = Exposition::with_capacity(self.figures.rendered_bytes);
        groups::write_all(&mut exposition, &self.server, &self.figures);
        let response = http::metrics(exposition.into_text());
        let cpu_time = Duration::from_micros(thread_cpu_us().saturating_sub(cpu_us_before));
        self.figures.record_rendering(cpu_time, response.body_bytes());
        self.next_rendering = Instant::now() + (cpu_time * PAUSE_PER_RENDERING).min(MAX_PAUSE);
        for token in self.arrivals.clone() {
            self.advance(token, |connection, reactor| match connection.phase() {
                HttpPhase::AwaitingMetrics(with_body) => connection.respond(reactor, &response, with_body),
                _ => HttpProgress::Open,
            });
        }
    }
}

/// Returns the response to a request; `None` if it has to wait for the metrics.
fn respond(server: &Server, request: &HttpRequest) -> Option<HttpResponse> {
    if !request.is_read {
        return Some(http::method_not_allowed());
    }
    match request.path {
        Resource::Metrics => None,
        Resource::Root => Some(http::root()),
        Resource::Health => Some(http::health(groups::is_loading(server))),
        Resource::Other => Some(http::not_found()),
    }
}
