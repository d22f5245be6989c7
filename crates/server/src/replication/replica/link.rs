//! The connection to a primary: lines, requests, bytes, and the reasons for which it ends.

use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::observability::log;
use crate::state::Server;
use weft_base::RoleEpoch;
use weft_base::files::error_text;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::net;
use weft_os::time::Instant;
use weft_tls::BlockingConnection;

/// The maximum length of a handshake line, in bytes.
const LINE_BYTES: usize = 1024;
/// The maximum time between two checks for the end of the role epoch.
const EPOCH_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The minimum read timeout that a socket accepts.
const MIN_READ_TIMEOUT: Duration = Duration::from_millis(1);

/// The reason for which a link ends.
#[derive(Debug)]
pub enum LinkFailure {
    /// The role epoch is over: this server follows another primary, or none.
    EpochOver,
    /// The process is about to end, and the stream cannot go on.
    ShuttingDown,
    /// The primary closed the connection, or another thread of this server shut it down.
    Closed,
    /// Nothing was received for too long. Contains the log line.
    Timeout(&'static str),
    /// The received bytes are invalid. Contains the log line.
    Protocol(String),
    /// Another reason. Contains the log line.
    Other(String),
}

impl LinkFailure {
    /// Creates the failure of an operation.
    pub fn from_io_error(what: impl Display, error: &std::io::Error) -> LinkFailure {
        LinkFailure::Other(format!("{what}: {}", error_text(error)))
    }

    /// Logs the failure.
    pub fn log(&self) {
        match self {
            LinkFailure::EpochOver | LinkFailure::ShuttingDown | LinkFailure::Closed => {}
            LinkFailure::Timeout(line) => log::warning!("{line}"),
            LinkFailure::Protocol(line) | LinkFailure::Other(line) => log::warning!("{line}"),
        }
    }
}

/// Returns `true` if the error only means that a socket has no data yet.
fn is_no_data_yet(error: &std::io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Creates the failure of a connection that breaks before it is established.
fn connection_failure(reason: impl Display) -> LinkFailure {
    LinkFailure::Other(format!("Error condition on socket for SYNC: {reason}"))
}

/// A connection to a primary.
pub struct PrimaryLink {
    wire: BlockingConnection,
    server: Arc<Server>,
    role_epoch: RoleEpoch,
    /// Received bytes that have not been processed.
    pub unread: Vec<u8>,
    /// Set if the primary is sent keepalive newlines over this connection while a dump is loaded.
    pub sends_keepalives: bool,
}

impl PrimaryLink {
    /// Sets up a connection to `host` for the role epoch `term`.
    ///
    /// # Errors
    /// When the socket cannot be set up, the TLS handshake fails, or the role epoch is over.
    pub fn new(
        socket: TcpStream,
        server: Arc<Server>,
        role_epoch: RoleEpoch,
        host: &str,
    ) -> Result<PrimaryLink, LinkFailure> {
        let setup = |error: std::io::Error| LinkFailure::from_io_error("Setting up the link to the PRIMARY", &error);
        if net::is_tcp(&socket) {
            socket.set_nodelay(true).map_err(setup)?;
        }
        let timeout = Duration::from_secs(server.config.unsigned(id::REPL_TIMEOUT).max(1));
        socket.set_write_timeout(Some(timeout)).map_err(setup)?;
        let spare = socket.try_clone().map_err(setup)?;
        if !server.replication.register_socket(role_epoch, spare) {
            return Err(LinkFailure::EpochOver);
        }
        let session = match server.config.boolean(id::TLS_REPLICATION) {
            false => None,
            true => Some(server.tls.create_client_session(host).map_err(connection_failure)?),
        };
        let mut link = PrimaryLink {
            wire: BlockingConnection::new(socket, session),
            server,
            role_epoch,
            unread: Vec::new(),
            sends_keepalives: true,
        };
        link.complete_tls_handshake(timeout)?;
        Ok(link)
    }

    /// Completes the TLS handshake, if TLS is used.
    fn complete_tls_handshake(&mut self, patience: Duration) -> Result<(), LinkFailure> {
        let deadline = Instant::now() + patience;
        let timeout = Some(EPOCH_CHECK_INTERVAL);
        let set = self.wire.socket().set_read_timeout(timeout);
        set.map_err(connection_failure)?;
        loop {
            match self.wire.complete_handshake() {
                Ok(()) => return Ok(()),
                Err(_) if self.is_over() => return Err(LinkFailure::EpochOver),
                Err(error) if !is_no_data_yet(&error) => return Err(connection_failure(error)),
                Err(_) if Instant::now() >= deadline => {
                    return Err(LinkFailure::Timeout("Timeout connecting to the PRIMARY..."));
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the server that this link belongs to.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Returns the role epoch of this link.
    pub fn role_epoch(&self) -> RoleEpoch {
        self.role_epoch
    }

    /// Returns the primary's address.
    pub fn peer(&self) -> String {
        net::peer_addr(self.wire.socket())
            .map(|addr| addr.to_string())
            .unwrap_or_default()
    }

    /// Returns this server's address.
    pub fn local(&self) -> String {
        net::local_addr(self.wire.socket())
            .map(|addr| addr.to_string())
            .unwrap_or_default()
    }

    /// Returns the file descriptor.
    pub fn fd(&self) -> i32 {
        self.wire.socket().as_raw_fd()
    }

    /// Returns `true` if the role epoch of this link is over.
    pub fn is_over(&self) -> bool {
        self.server.replication.role_epoch() != self.role_epoch
    }

    /// Returns `true` if a short request can be sent without waiting.
    pub fn is_writable(&self) -> bool {
        let mut polled = [PollFd::new(self.wire.socket().as_fd(), PollFlags::POLLOUT)];
        poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn send(&mut self, words: &[&[u8]]) -> Result<(), LinkFailure> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.send_raw(&request)
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), LinkFailure> {
        let sent = self.wire.write_all(bytes).and_then(|()| self.wire.flush());
        sent.map_err(|error| match self.is_over() {
            true => LinkFailure::EpochOver,
            false => LinkFailure::from_io_error("I/O error writing to PRIMARY", &error),
        })
    }

    /// Receives up to `most` bytes and appends them to `buffer`. Waits up to `patience`. Returns the number of bytes, 0
    /// if none came in time.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn receive(&mut self, buffer: &mut Vec<u8>, most: usize, timeout: Duration) -> Result<usize, LinkFailure> {
        let deadline = Instant::now() + timeout;
        let filled = buffer.len();
        buffer.resize(filled + most, 0);
        let received = loop {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .min(EPOCH_CHECK_INTERVAL);
            if let Err(error) = self.wire.socket().set_read_timeout(Some(left.max(MIN_READ_TIMEOUT))) {
                break Err(LinkFailure::from_io_error("I/O error reading from PRIMARY", &error));
            }
            match self.wire.read(&mut buffer[filled..]) {
                Ok(0) if self.is_over() => break Err(LinkFailure::EpochOver),
                Ok(0) => break Err(LinkFailure::Closed),
                Ok(count) => break Ok(count),
                Err(_) if self.is_over() => break Err(LinkFailure::EpochOver),
                Err(error) if is_no_data_yet(&error) => {
                    if Instant::now() >= deadline {
                        break Ok(0);
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break Err(LinkFailure::Closed),
                Err(error) => break Err(LinkFailure::from_io_error("I/O error reading from PRIMARY", &error)),
            }
        };
        let count = *received.as_ref().unwrap_or(&0);
        assert!(count <= most, "no more bytes are received than there is space for");
        buffer.truncate(filled + count);
        self.server
            .replication
            .input_bytes
            .fetch_add(count as u64, Ordering::Relaxed);
        received
    }

    /// Receives up to `most` bytes and appends them to `buffer`. Returns the number of bytes, 0 if nothing came for
    /// `repl-timeout`. A change of `repl-timeout` takes effect while waiting.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn receive_within_repl_timeout(&mut self, buffer: &mut Vec<u8>, most: usize) -> Result<usize, LinkFailure> {
        let since = Instant::now();
        loop {
            let received = self.receive(buffer, most, EPOCH_CHECK_INTERVAL)?;
            let timeout = Duration::from_secs(self.server.config.unsigned(id::REPL_TIMEOUT).max(1));
            if received > 0 || since.elapsed() > timeout {
                return Ok(received);
            }
        }
    }

    /// Receives the next line. Returns it without its line end.
    ///
    /// # Errors
    /// When nothing comes for `repl-timeout`, the line is too long, or the link is broken.
    pub fn read_line(&mut self) -> Result<Vec<u8>, LinkFailure> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unread.drain(..=end).collect();
                let last = line.pop();
                debug_assert_eq!(last, Some(b'\n'), "a line ends with its line end");
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(line);
            }
            if self.unread.len() > LINE_BYTES {
                return Err(LinkFailure::Protocol(
                    "Bad protocol from PRIMARY: a line is too long".into(),
                ));
            }
            let mut ahead = std::mem::take(&mut self.unread);
            let received = self.receive_within_repl_timeout(&mut ahead, LINE_BYTES);
            self.unread = ahead;
            if received? == 0 {
                return Err(LinkFailure::Timeout("Timeout connecting to the PRIMARY..."));
            }
        }
    }

    /// Receives the next line that is not empty. Primaries send empty lines as keepalives while they are busy.
    ///
    /// # Errors
    /// The same as [`Self::read_line`].
    pub fn read_nonempty_line(&mut self) -> Result<Vec<u8>, LinkFailure> {
        loop {
            let line = self.read_line()?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }
}
