//! A blocking connection that sends requests in batches, for loads in which requests depend on earlier replies.
//!
//! [`crate::driver`] measures more exactly, but its requests are functions of their number only.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::control::ControlConnection;
use crate::error::{Error, ErrorContext, Result};
use crate::reply::ReplyScanner;

#[cfg(test)]
mod tests;

/// The size of each read, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// A connection that sends a batch of requests, and then reads their replies.
///
/// It does not read while it sends. So that neither side waits for the other one forever, the requests behind the first
/// long reply of a batch must fit into the buffers of a socket.
#[derive(Debug)]
pub struct BatchConnection {
    stream: TcpStream,
    requests: Vec<u8>,
    /// The number of requests that have no reply yet.
    outstanding: usize,
    received: Vec<u8>,
    chunk: Box<[u8]>,
}

impl BatchConnection {
    /// Connects to a server.
    ///
    /// # Errors
    /// Fails if the server refuses the connection.
    pub fn connect(address: SocketAddr) -> Result<BatchConnection> {
        Ok(BatchConnection {
            stream: ControlConnection::connect(address, 2)?.into_stream(),
            requests: Vec::new(),
            outstanding: 0,
            received: Vec::new(),
            chunk: vec![0; READ_BYTES].into_boxed_slice(),
        })
    }

    /// Begins the next request of the batch. It consists of `words` calls of [`BatchConnection::word`].
    pub fn begin(&mut self, words: usize) {
        self.requests.extend_from_slice(format!("*{words}\r\n").as_bytes());
        self.outstanding += 1;
    }

    /// Appends a word to the request that was begun last.
    pub fn word(&mut self, word: &[u8]) {
        self.requests
            .extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        self.requests.extend_from_slice(word);
        self.requests.extend_from_slice(b"\r\n");
    }

    /// Appends a request of these words to the batch.
    pub fn append(&mut self, words: &[&[u8]]) {
        self.begin(words.len());
        for word in words {
            self.word(word);
        }
    }

    /// Sends the batch.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    pub fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.requests).context("sending requests")?;
        self.requests.clear();
        Ok(())
    }

    /// Reads the replies to the batch. `check` is given the number of each reply, from 0 on, and its bytes.
    ///
    /// # Errors
    /// Fails if the connection breaks, if a reply is malformed, if `check` fails, or if there are more bytes than
    /// replies.
    pub fn receive(&mut self, mut check: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut start = 0;
        let mut scanner = ReplyScanner::default();
        for number in 0..std::mem::take(&mut self.outstanding) {
            let length = loop {
                let scanned = scanner.advance(self.received.get(start..).unwrap_or_default());
                if let Some(length) = scanned.map_err(|error| Error::WrongReply(error.0.to_string()))? {
                    break length;
                }
                let count = self.stream.read(&mut self.chunk).context("reading replies")?;
                if count == 0 {
                    return Err(Error::Server("the server closed a connection".into()));
                }
                self.received.extend_from_slice(&self.chunk[..count]);
            };
            check(number, &self.received[start..start + length])?;
            start += length;
        }
        if start < self.received.len() {
            let rest = &self.received[start..];
            let text = rest.get(..80).unwrap_or(rest).escape_ascii();
            return Err(Error::WrongReply(format!("unexpected bytes: \"{text}\"")));
        }
        self.received.clear();
        Ok(())
    }
}

/// Returns `true` if a reply says that the server is out of memory and found no key to evict.
pub fn is_out_of_memory(reply: &[u8]) -> bool {
    reply.starts_with(b"-OOM ")
}

/// Returns `true` if a reply is the bulk string `value`.
pub fn is_bulk_string(reply: &[u8], value: &[u8]) -> bool {
    let head = format!("${}\r\n", value.len());
    let text = reply
        .strip_prefix(head.as_bytes())
        .and_then(|rest| rest.strip_suffix(b"\r\n"));
    text == Some(value)
}

/// Returns the error for a reply that is not the right one to `request`.
pub fn wrong_reply(request: &str, reply: &[u8]) -> Error {
    let shown = reply.get(..80).unwrap_or(reply).escape_ascii();
    Error::WrongReply(format!("{request} answered \"{shown}\""))
}
