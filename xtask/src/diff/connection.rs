//! One client connection to a server under test.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::reply::{ParseError, Reply};

/// The time limit of a reply. After it, the server counts as silent.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A reply with its bytes on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawReply {
    /// The bytes on the wire.
    pub raw: Vec<u8>,
    /// The parsed reply.
    pub reply: Reply,
}

/// A reply, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAnswer {
    /// A complete reply.
    Reply(RawReply),
    /// The bytes received until the connection was quiet, and `true` if the server then closed it.
    Bytes(Vec<u8>, bool),
    /// The server closed the connection.
    Closed,
    /// No reply came in time.
    Silent,
    /// The received bytes are not RESP.
    Garbage(Vec<u8>),
}

impl ServerAnswer {
    /// Formats the answer in one line.
    pub fn to_line(&self) -> String {
        match self {
            Self::Reply(received) => received.reply.to_line(),
            Self::Bytes(bytes, closed) => {
                let end = if *closed { " then closed" } else { "" };
                format!("\"{}\"{end}", bytes.escape_ascii())
            }
            Self::Closed => "(connection closed)".to_string(),
            Self::Silent => "(no answer)".to_string(),
            Self::Garbage(bytes) => format!("(not RESP: \"{}\")", bytes.escape_ascii()),
        }
    }
}

/// A planted difference: one reply is altered before it is compared. The self-check uses it.
#[derive(Clone, Copy)]
pub struct Alteration {
    /// The number of replies before the one that is altered.
    pub after: usize,
    /// Returns the altered reply.
    pub alter: fn(&Reply) -> Reply,
}

/// A connection with the received bytes that are not yet consumed.
pub struct ServerConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    closed: bool,
    alteration: Option<Alteration>,
}

impl ServerConnection {
    /// Connects to a server.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .map_err(|error| format!("cannot connect to {address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
            closed: false,
            alteration: None,
        })
    }

    /// Lets one of the following replies be altered.
    pub fn alter(&mut self, alteration: Alteration) {
        self.alteration = Some(alteration);
    }

    /// Returns the altered reply if this is the one to alter.
    fn altered(&mut self, reply: &Reply) -> Option<Reply> {
        let alteration = self.alteration.as_mut()?;
        if alteration.after > 0 {
            alteration.after -= 1;
            return None;
        }
        let alter = alteration.alter;
        self.alteration = None;
        Some(alter(reply))
    }

    /// Sends bytes unchanged. A connection that the peer has closed is detected when it is read.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        if self.stream.write_all(bytes).is_err() {
            self.closed = true;
        }
    }

    /// Sends a command as an array of bulk strings.
    pub fn send(&mut self, words: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        encode(words, &mut bytes);
        self.send_bytes(&bytes);
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, words: &[Vec<u8>]) -> ServerAnswer {
        self.send(words);
        self.read_answer()
    }

    /// Waits for the next reply.
    pub fn read_answer(&mut self) -> ServerAnswer {
        loop {
            match Reply::parse(&self.buffer) {
                Ok((reply, used)) => {
                    let raw = self.buffer.drain(..used).collect();
                    return ServerAnswer::Reply(match self.altered(&reply) {
                        Some(reply) => RawReply {
                            raw: reply.to_wire(),
                            reply,
                        },
                        None => RawReply { raw, reply },
                    });
                }
                Err(ParseError::Malformed(_)) => {
                    return ServerAnswer::Garbage(std::mem::take(&mut self.buffer));
                }
                Err(ParseError::Incomplete) => match self.read_some(REPLY_TIMEOUT) {
                    ReadProgress::Bytes => {}
                    ReadProgress::End => return ServerAnswer::Closed,
                    ReadProgress::Nothing => return ServerAnswer::Silent,
                },
            }
        }
    }

    /// Reads until nothing has been received for `quiet`, or the server has closed the connection. The bytes stay in
    /// the buffer; see [`Self::buffered`].
    pub fn read_until_quiet(&mut self, quiet: Duration) {
        while matches!(self.read_some(quiet), ReadProgress::Bytes) {}
    }

    /// Returns the received bytes that are not consumed, and `true` if the server has closed the connection.
    pub fn buffered(&self) -> (&[u8], bool) {
        (&self.buffer, self.closed)
    }

    /// Consumes the bytes that [`Self::buffered`] returns, and returns them.
    pub fn take_buffered(&mut self) -> ServerAnswer {
        ServerAnswer::Bytes(std::mem::take(&mut self.buffer), self.closed)
    }

    fn read_some(&mut self, timeout: Duration) -> ReadProgress {
        // Bytes may be left to read although a write has failed.
        if self.stream.set_read_timeout(Some(timeout)).is_err() {
            return ReadProgress::End;
        }
        let mut chunk = [0u8; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => {
                self.closed = true;
                ReadProgress::End
            }
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                ReadProgress::Bytes
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => ReadProgress::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => ReadProgress::Bytes,
            Err(_) => {
                self.closed = true;
                ReadProgress::End
            }
        }
    }
}

enum ReadProgress {
    Bytes,
    Nothing,
    End,
}

/// Appends a command to `out` as an array of bulk strings.
pub fn encode(words: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Splits a command that contains no quotes into words.
pub fn split_words(text: &str) -> Vec<Vec<u8>> {
    text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}
