//! A plain blocking connection for the commands around a run: PING, INFO, CONFIG SET, DBSIZE.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::{Error, ErrorContext, Result};
use crate::reply::ReplyScanner;

/// The time limit of each read and write, so that no client waits forever for a server that hangs. FLUSHALL of a large
/// keyspace is the slowest control command.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection that sends one command at a time and waits for its reply.
#[derive(Debug)]
pub struct ControlConnection {
    stream: TcpStream,
}

impl ControlConnection {
    /// Connects, and switches to RESP3 if `protocol` is 3. The socket sends small requests at once (TCP_NODELAY), also
    /// when a load uses it.
    ///
    /// # Errors
    /// Fails if the server refuses the connection or the protocol.
    pub fn connect(address: SocketAddr, protocol: u8) -> Result<ControlConnection> {
        let stream = TcpStream::connect(address).context(format!("connecting to {address}"))?;
        stream
            .set_read_timeout(Some(CONTROL_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(CONTROL_TIMEOUT)))
            .and_then(|()| stream.set_nodelay(true))
            .context("setting the options of a socket")?;
        let mut control = ControlConnection { stream };
        if protocol == 3 {
            control.call(&["HELLO", "3"])?;
        }
        Ok(control)
    }

    /// Returns the connection's socket, for use by a load.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a command and returns its reply in wire format.
    ///
    /// # Errors
    /// Fails if the connection breaks, the reply is malformed, or the reply is an error.
    pub fn call(&mut self, words: &[&str]) -> Result<String> {
        let doing = || format!("sending {}", words.join(" "));
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.write_all(request.as_bytes()).context(doing())?;
        let mut scanner = ReplyScanner::default();
        let mut reply = Vec::new();
        let mut chunk = [0; 16 * 1024];
        let broken = |text: &str| Error::Server(format!("{}: {text}", words.join(" ")));
        while scanner.advance(&reply).map_err(|error| broken(error.0))?.is_none() {
            match self.stream.read(&mut chunk).context(doing())? {
                0 => return Err(broken("the server closed the connection")),
                count => reply.extend_from_slice(&chunk[..count]),
            }
        }
        let text = String::from_utf8_lossy(&reply).trim_end().to_string();
        if text.starts_with(['-', '!']) {
            Err(broken(&text))
        } else {
            Ok(text)
        }
    }

    /// Sends a command line whose words are separated by blanks.
    ///
    /// # Errors
    /// Fails like [`ControlConnection::call`].
    pub fn call_line(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.call(&words)
    }

    /// Returns the number of keys in the database.
    ///
    /// # Errors
    /// Fails like [`ControlConnection::call`], or if the reply is not an integer.
    pub fn key_count(&mut self) -> Result<u64> {
        let reply = self.call(&["DBSIZE"])?;
        let count = reply.strip_prefix(':').and_then(|number| number.parse().ok());
        count.ok_or_else(|| Error::Server(format!("DBSIZE answered {reply:?}")))
    }

    /// Returns one field of INFO, if the server has it.
    ///
    /// # Errors
    /// Fails like [`ControlConnection::call`].
    pub fn info_field(&mut self, field: &str) -> Result<Option<String>> {
        let reply = self.call(&["INFO"])?;
        let value = reply
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.map(|value| value.trim().to_string()))
    }

    /// Returns numbers of INFO, all of one moment, in the order of `fields`.
    ///
    /// # Errors
    /// Fails like [`ControlConnection::call`], or if a field is missing or is not a whole number.
    pub fn info_numbers<const N: usize>(&mut self, fields: [&str; N]) -> Result<[u64; N]> {
        let reply = self.call(&["INFO"])?;
        let mut numbers = [0; N];
        for (field, number) in fields.into_iter().zip(&mut numbers) {
            let mut lines = reply.lines();
            let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            let parsed = value.and_then(|value| value.trim().parse().ok());
            *number = parsed.ok_or_else(|| Error::Server(format!("INFO has no number {field}")))?;
        }
        Ok(numbers)
    }
}
