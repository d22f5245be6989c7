//! The connection of a session's user, which belongs to the session's thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_reactor::{DetachedConnection, Event, Output, Reactor, ReceiveOutcome, Token};

use crate::state::Server;
use weft_scripting::Console;

/// The only connection.
const TOKEN: Token = 0;
/// The bytes read at a time. One command is taken from them and the rest is dropped, so the size matters.
const PIECE: usize = 1024;
/// The interval at which the console checks if the process ends.
const LOOK: Duration = Duration::from_millis(100);
/// The time that the user may take to receive what is sent.
const SEND_PATIENCE: Duration = Duration::from_secs(5);

/// The connection of a debugger's user.
pub struct Line {
    reactor: Reactor,
    events: Vec<Event>,
    /// Bytes received and not parsed yet.
    received: Vec<u8>,
    is_closed: bool,
    server: Arc<Server>,
    /// `true` if the script's writes are kept, so that it continues without its user.
    stays: bool,
}

impl Line {
    /// Takes a connection over.
    ///
    /// # Errors
    /// When descriptors are exhausted.
    pub fn open(registered: DetachedConnection, server: Arc<Server>, stays: bool) -> std::io::Result<Self> {
        let mut reactor = Reactor::new()?;
        reactor.adopt(TOKEN, registered)?;
        Ok(Line {
            reactor,
            events: Vec::new(),
            received: Vec::new(),
            is_closed: false,
            server,
            stays,
        })
    }

    /// Waits for something to happen, and takes what came.
    fn wait(&mut self, timeout: Duration) {
        if self.reactor.wait(Some(timeout), &mut self.events, 1).is_err() {
            self.is_closed = true;
        }
        for event in self.events.drain(..) {
            match event {
                Event::Readable(_) => match self.reactor.receive(TOKEN, &mut self.received, PIECE) {
                    Ok(ReceiveOutcome::Bytes { .. } | ReceiveOutcome::WouldBlock) => {}
                    Ok(ReceiveOutcome::Closed) | Err(_) => self.is_closed = true,
                },
                Event::Closed(_) | Event::SendFailed(_) => self.is_closed = true,
                Event::Writable(_) | Event::Accepted(..) | Event::AcceptFailed(..) => {}
            }
        }
    }

    /// Returns `true` if the process ends, or waits for this session because it is about to end.
    fn process_ends(&self) -> bool {
        self.server.scripting.running.is_shutting_down() || (self.stays && self.server.lifecycle.shutdown.is_wanted())
    }
}

impl Console for Line {
    fn send(&mut self, bytes: &[u8]) {
        let mut output = Output::new();
        output.bytes.extend_from_slice(bytes);
        if self.reactor.send(TOKEN, &mut output).is_err() {
            self.is_closed = true;
        }
        let since = Instant::now();
        while self.reactor.in_flight(TOKEN) > 0 && !self.is_closed && since.elapsed() < SEND_PATIENCE {
            self.wait(LOOK);
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        while self.received.is_empty() {
            if self.is_closed || self.process_ends() {
                return false;
            }
            self.wait(LOOK);
        }
        let piece = self.received.len().min(PIECE);
        into.extend(self.received.drain(..piece));
        true
    }

    fn is_over(&mut self) -> bool {
        if !self.stays && !self.is_closed {
            self.wait(Duration::ZERO);
        }
        self.process_ends() || (self.is_closed && !self.stays)
    }
}
