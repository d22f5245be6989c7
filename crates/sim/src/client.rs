//! A client: sends pipelines, cut anywhere, and records what it sees.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use weft_os::descriptor::{self, Interest};
use weft_os::scheduler;
use weft_os::thread;

use crate::history::{ConnectionHistory, Event, PipelineWait};
use crate::operation::Operation;
use crate::reply::SeenReply;

/// The simulated time after which a reply counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The size of a write that a writable socket takes without blocking: the scheduler does not see a thread that blocks.
const MAX_WRITE: usize = 32 * 1024;

/// Returns the time after which a reply counts as lost. `WEFT_SIM_PATIENCE_MS` shortens it, to see what every thread
/// waits for meanwhile.
fn patience() -> Duration {
    let given = std::env::var("WEFT_SIM_PATIENCE_MS").ok();
    given
        .and_then(|text| text.parse().ok())
        .map_or(REPLY_TIMEOUT, Duration::from_millis)
}

/// Starts a thread of the scheduler.
pub fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .expect("the operating system can create a thread")
}

/// Connects to a server's socket.
///
/// # Errors
/// If there is no server after some seconds.
pub fn connect(path: &str, seed: u64) -> Result<Client, String> {
    Client::connect(Path::new(path), seed)
}

/// A connection, or its end.
pub struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    history: ConnectionHistory,
    random: Rng,
    /// `true` if requests are sent in many pieces.
    pub sends_pieces: bool,
}

/// The reason why a client received nothing more.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientEnd {
    /// The server closed the connection.
    Closed,
    /// No reply came, or bytes that are no reply.
    Failed(String),
}

impl Client {
    /// Connects to a server's socket. Waits for a server that is starting.
    ///
    /// # Errors
    /// If there is no server after some seconds.
    pub fn connect(path: &Path, seed: u64) -> Result<Client, String> {
        for _ in 0..2000 {
            descriptor::activity();
            if let Ok(stream) = UnixStream::connect(path) {
                descriptor::activity();
                stream
                    .set_read_timeout(Some(patience()))
                    .map_err(|error| error.to_string())?;
                return Ok(Client {
                    stream,
                    received: Vec::new(),
                    history: ConnectionHistory::default(),
                    random: Rng::with_seed(seed),
                    sends_pieces: false,
                });
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err("no server listens".to_owned())
    }

    /// Returns the history so far.
    pub fn into_history(self) -> ConnectionHistory {
        self.history
    }

    /// Sends operations in one pipeline, and receives all replies.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn run(&mut self, operations: Vec<Operation>) -> Result<(), ClientEnd> {
        let first = self.history.events.len();
        self.send(operations)?;
        // Not earlier: the client itself pauses between the pieces of its requests.
        let from_idle_ns = scheduler::figures().idle_ns;
        self.receive_all(first)?;
        let events = &self.history.events;
        if !events[first..].iter().any(|event| event.operation.is_blocking()) && events.len() > first {
            let wait = PipelineWait {
                from_idle_ns,
                until_idle_ns: scheduler::figures().idle_ns,
                last_event: events.len() - 1,
            };
            self.history.waits.push(wait);
        }
        Ok(())
    }

    /// Returns `true` if the last reply sends the client to another node.
    pub fn was_redirected(&self) -> bool {
        self.history.events.last().is_some_and(Event::was_redirected)
    }

    /// Returns `true` if a replica refused the last request.
    pub fn was_refused_by_replica(&self) -> bool {
        self.history.events.last().is_some_and(Event::was_refused_by_replica)
    }

    /// Returns `true` if this is the reply to the last request.
    pub fn last_reply_is(&self, expected: &SeenReply) -> bool {
        let answer = self.history.events.last().and_then(|event| event.answer.as_ref());
        answer.is_some_and(|(replies, _)| replies.last() == Some(expected))
    }

    /// Sends one request that the model does not know, and returns its reply.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn ask(&mut self, words: &[&'static str]) -> Result<SeenReply, ClientEnd> {
        self.run(vec![Operation::Ignored(words.to_vec())])?;
        let event = self.history.events.last();
        match event.and_then(|event| event.answer.as_ref()) {
            Some((replies, _)) => Ok(replies[0].clone()),
            None => Err(ClientEnd::Closed),
        }
    }

    /// Sends a request whose words are separated by blanks. Its reply is no part of the history.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn request(&mut self, request: &str) -> Result<(), ClientEnd> {
        let words: Vec<&'static str> = request.split(' ').map(|word| &*String::leak(word.to_owned())).collect();
        self.send(vec![Operation::Ignored(words)])
    }

    /// Sends such a request, and returns its reply. Skips push messages.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn ask_text(&mut self, request: &str) -> Result<SeenReply, ClientEnd> {
        self.request(request)?;
        loop {
            match self.receive_message()? {
                SeenReply::Push(_) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Receives a reply that belongs to no request: a message for a subscriber.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn receive_message(&mut self) -> Result<SeenReply, ClientEnd> {
        loop {
            if let Some((reply, length)) = SeenReply::parse(&self.received).map_err(ClientEnd::Failed)? {
                self.received.drain(..length);
                return Ok(reply);
            }
            self.receive()?;
        }
    }

    /// Sends operations, closes the sending half, and receives all replies up to the end of the stream.
    ///
    /// # Errors
    /// If a reply is missing, or the stream does not end.
    pub fn run_and_half_close(&mut self, operations: Vec<Operation>) -> Result<(), ClientEnd> {
        let first = self.history.events.len();
        self.send(operations)?;
        self.half_close();
        match self.receive_all(first) {
            // A client that is blocked is closed with its sending half, as in Valkey.
            Err(ClientEnd::Closed) if self.first_unanswered(first).is_some_and(Operation::blocks_client) => {
                return Ok(());
            }
            Err(ClientEnd::Closed) => {
                let events = &self.history.events[first..];
                let text = format!("a half-closed connection did not get all replies: {events:?}");
                return Err(ClientEnd::Failed(text));
            }
            other => other?,
        }
        match self.receive() {
            Err(ClientEnd::Closed) => Ok(()),
            Err(other) => Err(other),
            Ok(()) => Err(ClientEnd::Failed("replies without requests".to_owned())),
        }
    }

    /// Closes the sending half.
    pub fn half_close(&mut self) {
        descriptor::activity();
        let _ = self.stream.shutdown(Shutdown::Write);
        descriptor::activity();
    }

    /// Sends operations and closes the connection without waiting for replies.
    pub fn run_and_close(mut self, operations: Vec<Operation>) -> ConnectionHistory {
        let _ = self.send(operations);
        self.history.closed_step = Some(scheduler::figures().steps);
        drop(self.stream);
        descriptor::activity();
        self.history
    }

    fn first_unanswered(&self, from: usize) -> Option<&Operation> {
        let unanswered = |event: &&Event| event.answer.is_none();
        self.history.events[from..]
            .iter()
            .find(unanswered)
            .map(|event| &event.operation)
    }

    /// Sends operations in one pipeline.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn send(&mut self, operations: Vec<Operation>) -> Result<(), ClientEnd> {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let first = self.history.events.len();
        for operation in operations {
            bytes.extend(operation.encode());
            ends.push(bytes.len());
            self.history.events.push(Event {
                operation,
                sent_step: u64::MAX,
                sent_ns: u64::MAX,
                sent_idle_ns: u64::MAX,
                answer_ns: u64::MAX,
                answer_idle_ns: u64::MAX,
                answer: None,
            });
        }
        let mut from = 0;
        while from < bytes.len() {
            let is_whole = match self.sends_pieces {
                true => self.random.u32(..4) == 0,
                false => self.random.u32(..3) > 0,
            };
            let to = if is_whole {
                bytes.len().min(from + MAX_WRITE)
            } else {
                self.random.usize(from + 1..=bytes.len().min(from + MAX_WRITE))
            };
            let now = scheduler::figures();
            for (index, end) in ends.iter().enumerate() {
                if *end > from && *end <= to {
                    let event = &mut self.history.events[first + index];
                    (event.sent_step, event.sent_ns) = (now.steps, now.now_ns);
                    event.sent_idle_ns = now.idle_ns;
                }
            }
            from += self.write(&bytes[from..to])?;
            if from < bytes.len() && self.random.bool() {
                // Now and then as long as a key lives.
                let is_long = self.sends_pieces && self.random.u32(..3) == 0;
                let longest_us = if is_long { 5000 } else { 300 };
                thread::sleep(Duration::from_micros(self.random.u64(..longest_us)));
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, ClientEnd> {
        let _ = descriptor::before_blocking(&self.stream, Interest::Output);
        let written = self.stream.write(bytes);
        descriptor::activity();
        match written {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(ClientEnd::Closed),
        }
    }

    /// Receives the replies of all events from `first` on.
    fn receive_all(&mut self, first: usize) -> Result<(), ClientEnd> {
        for index in first..self.history.events.len() {
            let count = self.history.events[index].operation.reply_count();
            let mut replies = Vec::new();
            while replies.len() < count {
                match SeenReply::parse(&self.received).map_err(ClientEnd::Failed)? {
                    Some((reply, length)) => {
                        self.received.drain(..length);
                        replies.push(reply);
                    }
                    None => self.receive()?,
                }
            }
            // An error in place of a reply to MULTI and what follows still comes with all other replies.
            let now = scheduler::figures();
            let event = &mut self.history.events[index];
            (event.answer_ns, event.answer_idle_ns) = (now.now_ns, now.idle_ns);
            event.answer = Some((replies, now.steps));
        }
        Ok(())
    }

    /// Receives replies to the last request without waiting for them. Returns `true` once it has all.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn try_receive_last(&mut self) -> Result<bool, ClientEnd> {
        self.receive_without_waiting()?;
        if SeenReply::parse(&self.received).map_err(ClientEnd::Failed)?.is_none() {
            return Ok(false);
        }
        self.receive_all(self.history.events.len() - 1)?;
        Ok(true)
    }

    /// Like [`Self::receive_message`], without waiting.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn try_receive_message(&mut self) -> Result<Option<SeenReply>, ClientEnd> {
        self.receive_without_waiting()?;
        let parsed = SeenReply::parse(&self.received).map_err(ClientEnd::Failed)?;
        Ok(parsed.map(|(reply, length)| {
            self.received.drain(..length);
            reply
        }))
    }

    /// Receives what has arrived. The end of the stream counts once everything before it was used.
    fn receive_without_waiting(&mut self) -> Result<(), ClientEnd> {
        let mut buffer = [0; 4096];
        descriptor::activity();
        let failed = |error: std::io::Error| ClientEnd::Failed(error.to_string());
        self.stream.set_nonblocking(true).map_err(failed)?;
        let received = self.stream.read(&mut buffer);
        self.stream.set_nonblocking(false).map_err(failed)?;
        match received {
            Ok(0) if self.received.is_empty() => Err(ClientEnd::Closed),
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(ClientEnd::Closed),
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns the first reply to the last request.
    pub fn last_reply(&self) -> Option<SeenReply> {
        let (replies, _) = self.history.events.last()?.answer.as_ref()?;
        replies.first().cloned()
    }

    fn receive(&mut self) -> Result<(), ClientEnd> {
        let mut buffer = [0; 4096];
        let room = if self.random.u32(..4) == 0 {
            self.random.usize(1..20)
        } else {
            buffer.len()
        };
        if descriptor::before_blocking(&self.stream, Interest::Input).is_err() {
            let unanswered = self.first_unanswered(0);
            return Err(ClientEnd::Failed(format!(
                "no reply in {REPLY_TIMEOUT:?} of simulated time to {unanswered:?}"
            )));
        }
        let received = self.stream.read(&mut buffer[..room]);
        descriptor::activity();
        match received {
            Ok(0) => Err(ClientEnd::Closed),
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(ClientEnd::Closed),
            Err(error) => Err(ClientEnd::Failed(error.to_string())),
        }
    }
}
