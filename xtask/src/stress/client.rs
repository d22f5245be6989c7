//! A blocking client that implements the part of the protocol that the scenarios need.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::watchdog::{PendingRequest, RequestRegistry};
use crate::tls::TlsConnection;

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StressReply {
    /// A simple string.
    Simple(String),
    /// An error.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string; `None` for a null.
    Bulk(Option<Vec<u8>>),
    /// An array.
    Array(Vec<StressReply>),
}

impl StressReply {
    /// The text of a bulk string, simple string, error or integer; empty for a null or an array.
    pub fn text(&self) -> String {
        match self {
            StressReply::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            StressReply::Simple(text) | StressReply::Error(text) => text.clone(),
            StressReply::Integer(number) => number.to_string(),
            StressReply::Bulk(None) | StressReply::Array(_) => String::new(),
        }
    }

    /// The elements of an array; empty for other replies.
    pub fn items(&self) -> &[StressReply] {
        match self {
            StressReply::Array(items) => items,
            _ => &[],
        }
    }
}

/// The reason why a call failed.
#[derive(Debug)]
pub enum CallError {
    /// The server closed the connection, for example because of CLIENT KILL.
    Closed,
    /// The reply did not arrive in time, was not a valid reply, or was an error that a healthy server does not send.
    Protocol(String),
}

impl From<CallError> for String {
    fn from(failure: CallError) -> String {
        match failure {
            CallError::Closed => "the server closed the connection".to_owned(),
            CallError::Protocol(why) => why,
        }
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => CallError::Closed,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                CallError::Protocol("no reply: the server hangs".to_owned())
            }
            _ => CallError::Protocol(error.to_string()),
        }
    }
}

/// The socket of a connection.
pub enum ClientSocket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection over a Unix socket.
    Unix(UnixStream),
    /// A TCP connection with TLS.
    Tls(TlsConnection),
}

impl ClientSocket {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tls(stream) => Self::Tls(stream.try_clone()?),
        })
    }

    /// Shuts down one direction or both.
    ///
    /// # Errors
    /// Fails if the connection has ended.
    pub fn shutdown(&self, direction: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(direction),
            Self::Unix(stream) => stream.shutdown(direction),
            Self::Tls(stream) => stream.shutdown(direction),
        }
    }
}

impl Read for ClientSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A connection to the server.
pub struct StressClient {
    reader: BufReader<ClientSocket>,
    writer: ClientSocket,
    pending: PendingRequest,
}

/// Appends a request of these words.
pub fn append_request<W: AsRef<str>>(bytes: &mut Vec<u8>, words: &[W]) {
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

/// Returns the words of a command, which are separated by blanks.
fn split(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

impl StressClient {
    /// Connects. A reply that takes longer than `patience` is a failure.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect(address: SocketAddr, patience: Duration, registry: &RequestRegistry) -> Result<Self, String> {
        let connect = || -> io::Result<Self> {
            let writer = TcpStream::connect_timeout(&address, patience)?;
            writer.set_nodelay(true)?;
            writer.set_read_timeout(Some(patience))?;
            writer.set_write_timeout(Some(patience))?;
            Self::new(ClientSocket::Tcp(writer), registry)
        };
        connect().map_err(|error| format!("cannot connect: {error}"))
    }

    /// Connects to a Unix socket. A reply that takes longer than `patience` is a failure.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect_unix(path: &Path, patience: Duration) -> Result<Self, String> {
        let connect = || -> io::Result<Self> {
            let writer = UnixStream::connect(path)?;
            writer.set_read_timeout(Some(patience))?;
            writer.set_write_timeout(Some(patience))?;
            Self::new(ClientSocket::Unix(writer), &RequestRegistry::default())
        };
        connect().map_err(|error| format!("cannot connect: {error}"))
    }

    /// Connects with TLS. A reply that takes longer than `patience` is a failure.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection, or if the handshake fails.
    pub fn connect_tls(address: SocketAddr, patience: Duration, config: &Arc<ClientConfig>) -> Result<Self, String> {
        let connect = || -> io::Result<Self> {
            let writer = TlsConnection::connect(address, patience, config)?;
            Self::new(ClientSocket::Tls(writer), &RequestRegistry::default())
        };
        connect().map_err(|error| format!("cannot connect: {error}"))
    }

    fn new(writer: ClientSocket, registry: &RequestRegistry) -> io::Result<Self> {
        Ok(Self {
            reader: BufReader::with_capacity(16 * 1024, writer.try_clone()?),
            writer,
            pending: registry.register(),
        })
    }

    /// Returns another handle of the socket, with which another thread can shut it down.
    ///
    /// # Errors
    /// Fails if the process has no file descriptor left.
    pub fn socket(&self) -> io::Result<ClientSocket> {
        self.writer.try_clone()
    }

    /// Sends several commands at once and reads their replies.
    ///
    /// # Errors
    /// Fails if the connection is closed, or if a reply is late or unreadable.
    pub fn pipeline(&mut self, commands: &[Vec<String>]) -> Result<Vec<StressReply>, CallError> {
        let mut bytes = Vec::new();
        for command in commands {
            append_request(&mut bytes, command);
        }
        self.pending.begin(commands);
        self.writer.write_all(&bytes)?;
        let replies = commands.iter().map(|_| self.read_reply()).collect();
        self.pending.end();
        replies
    }

    /// Sends a command of words separated by blanks and reads its reply.
    ///
    /// # Errors
    /// Fails like [`Self::pipeline`].
    pub fn call(&mut self, command: &str) -> Result<StressReply, CallError> {
        self.call_words(split(command))
    }

    /// Sends a command that a healthy server executes, and reads its reply.
    ///
    /// # Errors
    /// Fails like [`Self::pipeline`], and if the reply is an error.
    pub fn execute(&mut self, command: &str) -> Result<StressReply, CallError> {
        match self.call(command)? {
            StressReply::Error(error) => Err(CallError::Protocol(format!("{command} was answered by {error}"))),
            reply => Ok(reply),
        }
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// Fails like [`Self::pipeline`].
    pub fn call_words(&mut self, words: Vec<String>) -> Result<StressReply, CallError> {
        let mut replies = self.pipeline(&[words])?;
        replies.pop().ok_or_else(|| CallError::Protocol("no reply".to_owned()))
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// Fails if the connection is closed.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        Ok(self.writer.write_all(bytes)?)
    }

    /// Sends bytes whose replies [`Self::next_reply`] will read. The server has to answer in time.
    ///
    /// # Errors
    /// Fails if the connection is closed.
    pub fn send_watched(&mut self, command: &str, bytes: &[u8]) -> Result<(), CallError> {
        self.pending.begin(&[split(command)]);
        self.send_raw(bytes)
    }

    /// Closes the sending side of the connection.
    ///
    /// # Errors
    /// Fails if the connection is closed.
    pub fn half_close(&mut self) -> Result<(), CallError> {
        Ok(self.writer.shutdown(Shutdown::Write)?)
    }

    /// Reads everything until the server closes the connection, which it has to do in time.
    ///
    /// # Errors
    /// Fails like [`Self::pipeline`].
    pub fn read_to_end(&mut self) -> Result<Vec<u8>, CallError> {
        self.watch("end of the connection");
        let mut received = Vec::new();
        self.reader.read_to_end(&mut received)?;
        self.pending.end();
        Ok(received)
    }

    /// Reads the next reply, or a message that is not a reply to a command. It has to come in time.
    ///
    /// # Errors
    /// Fails like [`Self::pipeline`].
    pub fn next_reply(&mut self) -> Result<StressReply, CallError> {
        self.watch("message or further reply");
        let reply = self.read_reply();
        self.pending.end();
        reply
    }

    /// Lets the watchdog know what this connection waits for, unless it knows already.
    fn watch(&self, awaited: &str) {
        if !self.pending.is_watched() {
            self.pending.begin(&[split(awaited)]);
        }
    }

    fn read_line(&mut self) -> Result<String, CallError> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0u8];
            self.reader.read_exact(&mut byte)?;
            if byte[0] == b'\n' {
                line.pop();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            line.push(byte[0]);
        }
    }

    fn read_reply(&mut self) -> Result<StressReply, CallError> {
        let line = self.read_line()?;
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        let number = || {
            rest.parse::<i64>()
                .map_err(|_| CallError::Protocol(format!("unreadable reply {line:?}")))
        };
        match kind {
            "+" => Ok(StressReply::Simple(rest.to_owned())),
            "-" => Ok(StressReply::Error(rest.to_owned())),
            ":" => Ok(StressReply::Integer(number()?)),
            "$" => match number()? {
                -1 => Ok(StressReply::Bulk(None)),
                length => {
                    let mut bytes = vec![0; length as usize + 2];
                    self.reader.read_exact(&mut bytes)?;
                    bytes.truncate(length as usize);
                    Ok(StressReply::Bulk(Some(bytes)))
                }
            },
            "_" => Ok(StressReply::Bulk(None)),
            "%" => (0..number()?.max(0) * 2)
                .map(|_| self.read_reply())
                .collect::<Result<_, _>>()
                .map(StressReply::Array),
            "*" | ">" | "~" => (0..number()?.max(0))
                .map(|_| self.read_reply())
                .collect::<Result<_, _>>()
                .map(StressReply::Array),
            _ => Err(CallError::Protocol(format!("unreadable reply {line:?}"))),
        }
    }
}
