//! The connection to a primary: lines, requests, bytes; and why it ends.

use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::config::{error_text, id};
use crate::net::tls::BlockingStream;
use crate::observability::log;
use crate::state::Server;

/// The longest line of an introduction, bytes.
const LINE_BYTES: usize = 1024;
/// The longest sleep between two looks at whether the term is over.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// The shortest sleep that a socket takes.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// Why a link ends.
#[derive(Debug)]
pub enum Failure {
    /// Another primary is followed, or none.
    TermOver,
    /// The other side has closed it, or somebody here wanted that.
    Closed,
    /// Nothing came for too long; the line for the log.
    Timeout(&'static str),
    /// What came makes no sense; the line for the log.
    Protocol(String),
    /// Something else; the line for the log.
    Told(String),
}

impl Failure {
    /// A failed operation.
    pub fn of(what: impl Display, error: &std::io::Error) -> Failure {
        Failure::Told(format!("{what}: {}", error_text(error)))
    }

    /// Tells the log.
    pub fn tell(&self) {
        match self {
            Failure::TermOver | Failure::Closed => {}
            Failure::Timeout(line) => log::warning!("{line}"),
            Failure::Protocol(line) | Failure::Told(line) => log::warning!("{line}"),
        }
    }
}

/// Whether a socket only has nothing yet.
fn is_pause(error: &std::io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// What a connection that fails before it stands looks like.
fn no_agreement(reason: String) -> Failure {
    Failure::Told(format!("Error condition on socket for SYNC: {reason}"))
}

/// A connection to a primary.
pub struct Link {
    wire: BlockingStream,
    server: Arc<Server>,
    term: u64,
    /// What was received and not looked at.
    pub ahead: Vec<u8>,
    /// Whether the primary gets signs of life over it while a dump is loaded.
    pub beats: bool,
}

impl Link {
    /// Takes a connection to `host` that was made for `term`.
    ///
    /// # Errors
    /// When the socket cannot be set up, the two sides do not agree on TLS, or the term is over.
    pub fn new(socket: TcpStream, server: Arc<Server>, term: u64, host: &str) -> Result<Link, Failure> {
        let setup = |error: std::io::Error| Failure::of("Setting up the link to the PRIMARY", &error);
        socket.set_nodelay(true).map_err(setup)?;
        let timeout = Duration::from_secs(server.config.unsigned(id::REPL_TIMEOUT).max(1));
        socket.set_write_timeout(Some(timeout)).map_err(setup)?;
        let spare = socket.try_clone().map_err(setup)?;
        if !server.repl.keep_socket(term, spare) {
            return Err(Failure::TermOver);
        }
        let session = match server.config.boolean(id::TLS_REPLICATION) {
            false => None,
            true => Some(server.tls.create_client_session(host).map_err(no_agreement)?),
        };
        let mut link = Link {
            wire: BlockingStream::new(socket, session),
            server,
            term,
            ahead: Vec::new(),
            beats: true,
        };
        link.agree(timeout)?;
        Ok(link)
    }

    /// Waits until both sides have agreed on TLS, if there is any.
    fn agree(&mut self, patience: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        let timeout = Some(LOOK_PERIOD);
        let set = self.wire.socket().set_read_timeout(timeout);
        set.map_err(|error| no_agreement(error.to_string()))?;
        loop {
            match self.wire.complete_handshake() {
                Ok(()) => return Ok(()),
                Err(_) if self.is_over() => return Err(Failure::TermOver),
                Err(error) if !is_pause(&error) => return Err(no_agreement(error.to_string())),
                Err(_) if Instant::now() >= deadline => {
                    return Err(Failure::Timeout("Timeout connecting to the PRIMARY..."));
                }
                Err(_) => {}
            }
        }
    }

    /// The server that this link is for.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The term that it is for.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The primary's address.
    pub fn peer(&self) -> String {
        self.wire
            .socket()
            .peer_addr()
            .map(|addr| addr.to_string())
            .unwrap_or_default()
    }

    /// This server's address.
    pub fn local(&self) -> String {
        self.wire
            .socket()
            .local_addr()
            .map(|addr| addr.to_string())
            .unwrap_or_default()
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.wire.socket().as_raw_fd()
    }

    fn is_over(&self) -> bool {
        self.server.repl.term() != self.term
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn send(&mut self, words: &[&[u8]]) -> Result<(), Failure> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.send_raw(&request)
    }

    /// Sends a sign of life.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = self.wire.write_all(bytes).and_then(|()| self.wire.flush());
        sent.map_err(|error| match self.is_over() {
            true => Failure::TermOver,
            false => Failure::of("I/O error writing to PRIMARY", &error),
        })
    }

    /// Receives up to `most` bytes behind those in `buffer`, within `patience`; how many, 0 if none came in time.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn receive(&mut self, buffer: &mut Vec<u8>, most: usize, patience: Duration) -> Result<usize, Failure> {
        let deadline = Instant::now() + patience;
        let filled = buffer.len();
        buffer.resize(filled + most, 0);
        let received = loop {
            let left = deadline.saturating_duration_since(Instant::now()).min(LOOK_PERIOD);
            if let Err(error) = self.wire.socket().set_read_timeout(Some(left.max(SHORTEST_SLEEP))) {
                break Err(Failure::of("I/O error reading from PRIMARY", &error));
            }
            match self.wire.read(&mut buffer[filled..]) {
                Ok(0) if self.is_over() => break Err(Failure::TermOver),
                Ok(0) => break Err(Failure::Closed),
                Ok(count) => break Ok(count),
                Err(_) if self.is_over() => break Err(Failure::TermOver),
                Err(error) if is_pause(&error) => {
                    if Instant::now() >= deadline {
                        break Ok(0);
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break Err(Failure::Closed),
                Err(error) => break Err(Failure::of("I/O error reading from PRIMARY", &error)),
            }
        };
        let count = *received.as_ref().unwrap_or(&0);
        buffer.truncate(filled + count);
        self.server.repl.input_bytes.fetch_add(count as u64, Ordering::Relaxed);
        received
    }

    /// Receives up to `most` bytes behind those in `buffer`; how many, 0 if nothing came for `repl-timeout`, whatever that
    /// is by then.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn receive_in_time(&mut self, buffer: &mut Vec<u8>, most: usize) -> Result<usize, Failure> {
        let since = Instant::now();
        loop {
            let received = self.receive(buffer, most, LOOK_PERIOD)?;
            let timeout = Duration::from_secs(self.server.config.unsigned(id::REPL_TIMEOUT).max(1));
            if received > 0 || since.elapsed() > timeout {
                return Ok(received);
            }
        }
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// When nothing comes for `repl-timeout`, or it is too long.
    pub fn line(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.ahead.drain(..=end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
            }
            if self.ahead.len() > LINE_BYTES {
                return Err(Failure::Protocol(
                    "Bad protocol from PRIMARY: a line without an end".into(),
                ));
            }
            let mut ahead = std::mem::take(&mut self.ahead);
            let received = self.receive_in_time(&mut ahead, LINE_BYTES);
            self.ahead = ahead;
            if received? == 0 {
                return Err(Failure::Timeout("Timeout connecting to the PRIMARY..."));
            }
        }
    }

    /// The next line that is not empty: primaries send empty ones while they are busy.
    ///
    /// # Errors
    /// As [`Link::line`].
    pub fn full_line(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            let line = self.line()?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }
}
