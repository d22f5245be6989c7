//! One connection to the metrics endpoint: its phases, their time limits, and its input.

use std::net::Shutdown;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use weft_os::time::Instant;
use weft_reactor::{Output, Reactor, ReceiveOutcome, SendOutcome, Socket, Token};

use super::http::{self, HttpRequest, HttpResponse, ParsedRequest};

/// The maximum number of connections.
pub const MAX_CONNECTIONS: usize = 32;
/// The time that a client has to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// The time that a client has to receive the response.
const RESPONSE_TIME: Duration = Duration::from_secs(5);
/// The time that a client has to close the connection after the response.
const CLOSING_TIME: Duration = Duration::from_secs(1);
/// The maximum number of bytes that are received and ignored after the request.
const MAX_IGNORED_BYTES: usize = 64 * 1024;

/// The phases of a connection, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpPhase {
    /// The request is being received.
    Receiving,
    /// The request waits for the next rendering. The value is `true` if the response has a body.
    AwaitingMetrics(bool),
    /// The response is being sent.
    Sending,
    /// The response was sent. Input is ignored until the client closes the connection: if input were left in the socket
    /// when it is closed, the client's system would drop the end of the response.
    Closing,
}

/// A connection.
pub struct HttpConnection {
    token: Token,
    phase: HttpPhase,
    input: Vec<u8>,
    ignored_bytes: usize,
    /// The end of the current phase.
    deadline: Instant,
}

/// The result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpProgress {
    /// The connection stays open.
    Open,
    /// The connection has ended and must be removed.
    Ended,
}

impl HttpConnection {
    /// Creates a connection that is registered under this token.
    pub fn new(token: Token, now: Instant) -> HttpConnection {
        HttpConnection {
            token,
            phase: HttpPhase::Receiving,
            input: Vec::new(),
            ignored_bytes: 0,
            deadline: now + REQUEST_TIME,
        }
    }

    /// Returns the phase.
    pub fn phase(&self) -> HttpPhase {
        self.phase
    }

    /// Returns the time at which the connection is closed unless it gets into another phase.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Receives input. A complete request is answered by `respond`, or waits for the metrics if that returns `None`.
    pub fn receive(
        &mut self,
        reactor: &mut Reactor,
        respond: impl FnOnce(&HttpRequest) -> Option<HttpResponse>,
    ) -> HttpProgress {
        match self.phase {
            HttpPhase::Receiving => self.receive_request(reactor, respond),
            HttpPhase::Closing => self.ignore_input(reactor),
            HttpPhase::AwaitingMetrics(_) | HttpPhase::Sending => HttpProgress::Open,
        }
    }

    fn receive_request(
        &mut self,
        reactor: &mut Reactor,
        respond: impl FnOnce(&HttpRequest) -> Option<HttpResponse>,
    ) -> HttpProgress {
        let capacity = (http::MAX_REQUEST_BYTES + 1).saturating_sub(self.input.len());
        match reactor.receive(self.token, &mut self.input, capacity) {
            Ok(ReceiveOutcome::Bytes { .. }) => {}
            Ok(ReceiveOutcome::WouldBlock) => return HttpProgress::Open,
            Ok(ReceiveOutcome::Closed) | Err(_) => return HttpProgress::Ended,
        }
        match http::parse(&self.input) {
            ParsedRequest::Incomplete => HttpProgress::Open,
            ParsedRequest::Invalid => self.respond(reactor, &http::bad_request(), true),
            ParsedRequest::Complete(request) => match respond(&request) {
                Some(response) => self.respond(reactor, &response, request.wants_body),
                None => {
                    reactor.pause(self.token);
                    self.enter(HttpPhase::AwaitingMetrics(request.wants_body), RESPONSE_TIME);
                    HttpProgress::Open
                }
            },
        }
    }

    fn ignore_input(&mut self, reactor: &mut Reactor) -> HttpProgress {
        self.input.clear();
        match reactor.receive(self.token, &mut self.input, 1) {
            Ok(ReceiveOutcome::Bytes { count, .. }) => {
                self.ignored_bytes += count;
                match self.ignored_bytes > MAX_IGNORED_BYTES {
                    true => HttpProgress::Ended,
                    false => HttpProgress::Open,
                }
            }
            Ok(ReceiveOutcome::WouldBlock) => HttpProgress::Open,
            Ok(ReceiveOutcome::Closed) | Err(_) => HttpProgress::Ended,
        }
    }

    /// Begins to send a response.
    pub fn respond(&mut self, reactor: &mut Reactor, response: &HttpResponse, with_body: bool) -> HttpProgress {
        reactor.pause(self.token);
        self.enter(HttpPhase::Sending, RESPONSE_TIME);
        let mut output = Output::new();
        response.write_to(&mut output, with_body);
        match reactor.send(self.token, &mut output) {
            Ok(SendOutcome::Done) => self.finish_sending(reactor),
            Ok(SendOutcome::InFlight(_)) => HttpProgress::Open,
            Err(_) => HttpProgress::Ended,
        }
    }

    /// Continues after the whole response was sent.
    pub fn finish_sending(&mut self, reactor: &mut Reactor) -> HttpProgress {
        if self.phase != HttpPhase::Sending || reactor.in_flight(self.token) > 0 {
            return HttpProgress::Open;
        }
        let Some(Socket::Tcp(stream)) = reactor.socket(self.token) else {
            return HttpProgress::Ended;
        };
        if stream.shutdown(Shutdown::Write).is_err() {
            return HttpProgress::Ended;
        }
        self.enter(HttpPhase::Closing, CLOSING_TIME);
        reactor.resume(self.token);
        HttpProgress::Open
    }

    fn enter(&mut self, phase: HttpPhase, time: Duration) {
        self.phase = phase;
        self.deadline = Instant::now() + time;
    }

    /// Closes the connection. A response that the client has not received is discarded at once: otherwise the kernel
    /// would keep it for minutes.
    pub fn close(self, reactor: &mut Reactor) {
        if self.phase == HttpPhase::Sending
            && let Some(socket) = reactor.socket(self.token)
        {
            let at_once = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            // Without the option the kernel keeps the response a while longer.
            let _ = setsockopt(socket, sockopt::Linger, &at_once);
        }
        drop(reactor.deregister(self.token));
    }
}
