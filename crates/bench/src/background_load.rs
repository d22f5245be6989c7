//! Background clients of a load, which are not measured themselves: one with long commands, or many that wait or have
//! subscribed.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::control::ControlConnection;
use crate::error::{Error, ErrorContext, Result};
use crate::process;
use crate::reply::{ReplyHeader, ReplyScanner};
use crate::run::Measurement;
use crate::server::BenchServer;
use crate::subscribers::{SubscriberProgress, Subscribers};

#[cfg(test)]
mod tests;

/// The background clients of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackgroundLoad {
    /// No other clients.
    None,
    /// A client that repeats these commands, one at a time.
    LongCommands(&'static [LongCommand]),
    /// A client that sends this command, one at a time, at a rate.
    PacedCommand {
        /// The command.
        command: LongCommand,
        /// The number of commands per second.
        per_second: u32,
    },
    /// Clients that wait for elements of lists, and wait again after each element.
    Waiting {
        /// The number of clients.
        clients: usize,
        /// `true` if all wait for the list `awaited`, instead of each for a list of its own that stays empty.
        same_list: bool,
    },
    /// Subscribers of the channel to which the load publishes.
    Subscribers {
        /// The number of subscribers.
        count: usize,
    },
}

/// A command that takes long, with its correct reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongCommand {
    /// The command; words are separated by blanks.
    pub line: &'static str,
    /// The integer in the reply, or its number of elements.
    pub expected: u64,
}

/// The time limit until all clients wait, and until all have disconnected.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest sleep without a check of the stop flag.
const MAX_WAIT_MS: i64 = 20;

/// The size of each read of a long reply, in bytes.
const READ_BYTES: usize = 1 << 20;

impl BackgroundLoad {
    /// Returns the text after a load's name in tables.
    pub fn note(self) -> String {
        match self {
            BackgroundLoad::None => String::new(),
            BackgroundLoad::LongCommands(_) => ", with long commands in parallel".into(),
            BackgroundLoad::PacedCommand { command, per_second } => {
                format!(", with {per_second} {} per second", command.line)
            }
            BackgroundLoad::Waiting { clients, same_list } => {
                let place = if same_list { "the same list" } else { "other lists" };
                format!(", {clients} wait for {place}")
            }
            BackgroundLoad::Subscribers { count } => format!(", {count} subscribed"),
        }
    }
}

/// Runs `load` together with `background_load`. `load` is given the progress of the subscribers, if there are any.
/// Messages have `value_size` bytes. Returns the result of the load and a text about the activity of the background
/// clients.
///
/// # Errors
/// Fails if the load or the background clients do.
///
/// # Panics
/// Panics if the thread of the background clients does.
pub fn run_with_background_load(
    background_load: BackgroundLoad,
    server: &BenchServer,
    cores: &[usize],
    value_size: usize,
    load: impl FnOnce(Option<Arc<SubscriberProgress>>) -> Result<Measurement>,
) -> Result<(Measurement, String)> {
    let stop = AtomicBool::new(false);
    let stop = &stop;
    thread::scope(|scope| {
        let mut progress = None;
        let worker = match background_load {
            BackgroundLoad::None => return Ok((load(None)?, String::new())),
            BackgroundLoad::LongCommands(commands) => {
                let mut client = LongCommandClient::connect(server.address)?;
                scope.spawn(move || client.run(commands, stop))
            }
            BackgroundLoad::PacedCommand { command, per_second } => {
                let mut client = LongCommandClient::connect(server.address)?;
                scope.spawn(move || client.run_paced(&command, per_second, stop))
            }
            BackgroundLoad::Waiting { clients, same_list } => {
                let mut waiting = WaitingClients::connect(server, clients, same_list)?;
                let cores = cores.to_vec();
                scope.spawn(move || waiting.run(stop, &cores))
            }
            BackgroundLoad::Subscribers { count } => {
                let mut subscribers = Subscribers::connect(server, count, value_size)?;
                let shared = Arc::new(SubscriberProgress::new());
                progress = Some(Arc::clone(&shared));
                let cores = cores.to_vec();
                scope.spawn(move || subscribers.run(&shared, stop, &cores))
            }
        };
        let outcome = load(progress.clone());
        match (&progress, &outcome) {
            (Some(progress), Ok(measurement)) => progress.published.store(measurement.all_replies, Ordering::Relaxed),
            _ => stop.store(true, Ordering::Relaxed),
        }
        let done = worker.join().expect("the background clients do not panic");
        let outcome = outcome?;
        wait_until_disconnected(server)?;
        Ok((outcome, done?))
    })
}

/// Waits until the server has processed the disconnection of the background clients, so that this work does not affect
/// the next load.
fn wait_until_disconnected(server: &BenchServer) -> Result<()> {
    let begin = Instant::now();
    let mut control = server.control()?;
    loop {
        let connected = control.info_field("connected_clients")?;
        // This connection, and the one that `Server` may keep.
        if connected.as_deref().and_then(|count| count.parse().ok()) <= Some(2) {
            return Ok(());
        }
        if begin.elapsed() > BACKGROUND_TIMEOUT {
            return Err(Error::Server(format!("connected_clients is still {connected:?}")));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn encode(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    request.into_bytes()
}

/// A client that repeats commands.
struct LongCommandClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl LongCommandClient {
    fn connect(address: SocketAddr) -> Result<LongCommandClient> {
        let stream = ControlConnection::connect(address, 2)?.into_stream();
        let buffer = Vec::new();
        Ok(LongCommandClient { stream, buffer })
    }

    /// Repeats the commands until the stop flag is set. Returns a text with the number of replies and the longest
    /// duration.
    fn run(&mut self, commands: &[LongCommand], stop: &AtomicBool) -> Result<String> {
        let (mut done, mut slowest) = (0, Duration::ZERO);
        for command in commands.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let begin = Instant::now();
            self.call(command)?;
            slowest = slowest.max(begin.elapsed());
            done += 1;
        }
        Ok(format!(
            "{done} long commands, the slowest {:.2} s",
            slowest.as_secs_f64()
        ))
    }

    /// Sends the command at a rate until the stop flag is set; after a late reply, without a pause until the rate is
    /// reached again. Returns a text with the number of replies and the longest time from when one was due.
    fn run_paced(&mut self, command: &LongCommand, per_second: u32, stop: &AtomicBool) -> Result<String> {
        let (begin, interval) = (Instant::now(), Duration::from_secs(1) / per_second);
        let (mut done, mut slowest) = (0, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let due = begin + interval * done;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.call(command)?;
            slowest = slowest.max(due.elapsed());
            done += 1;
        }
        Ok(format!(
            "{done} {} in {:.1} s, the latest reply after {:.1} ms",
            command.line,
            begin.elapsed().as_secs_f64(),
            slowest.as_secs_f64() * 1000.0
        ))
    }

    fn call(&mut self, command: &LongCommand) -> Result<()> {
        let doing = || format!("sending {}", command.line);
        self.stream.write_all(&encode(command.line)).context(doing())?;
        self.buffer.clear();
        let mut filled = 0;
        let mut scanner = ReplyScanner::default();
        loop {
            if self.buffer.len() < filled + READ_BYTES {
                self.buffer.resize(filled + READ_BYTES, 0);
            }
            let count = self.stream.read(&mut self.buffer[filled..]).context(doing())?;
            filled += count;
            let bytes = &self.buffer[..filled];
            let broken = |text: &str| Error::WrongReply(format!("{}: {text}", command.line));
            if scanner.advance(bytes).map_err(|error| broken(error.0))?.is_some() {
                return self.check(command, filled);
            }
            if count == 0 {
                return Err(broken("the server closed the connection"));
            }
        }
    }

    fn check(&self, command: &LongCommand, filled: usize) -> Result<()> {
        let bytes = &self.buffer[..filled];
        let header = ReplyHeader::parse(bytes).ok().flatten();
        let right = match header {
            Some(header) if header.kind == b':' => bytes == format!(":{}\r\n", command.expected).as_bytes(),
            Some(header) => matches!(header.kind, b'*' | b'~' | b'%') && header.children == command.expected,
            None => false,
        };
        if right {
            return Ok(());
        }
        let shown = bytes.get(..80).unwrap_or(bytes).escape_ascii();
        Err(Error::WrongReply(format!("{} answered \"{shown}\"", command.line)))
    }
}

/// A waiting client and the request it repeats.
struct WaitingClient {
    stream: TcpStream,
    request: Vec<u8>,
    received: Vec<u8>,
}

/// Many clients that wait for elements.
struct WaitingClients {
    epoll: OwnedFd,
    waiters: Vec<WaitingClient>,
}

impl WaitingClients {
    /// Connects the clients and returns when the server reports that all of them wait.
    fn connect(server: &BenchServer, clients: usize, same_list: bool) -> Result<WaitingClients> {
        process::raise_open_file_limit();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll instance")?;
        let mut waiters = Vec::with_capacity(clients);
        for number in 0..clients {
            let mut stream = ControlConnection::connect(server.address, 2)?.into_stream();
            let list = if same_list {
                "awaited".to_string()
            } else {
                format!("waiting:{number}")
            };
            let request = encode(&format!("BLPOP {list} 0"));
            stream.write_all(&request).context("sending BLPOP")?;
            stream
                .set_nonblocking(true)
                .context("making a connection non-blocking")?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).context("watching a connection")?;
            waiters.push(WaitingClient {
                stream,
                request,
                received: Vec::new(),
            });
        }
        let begin = Instant::now();
        let mut control = server.control()?;
        loop {
            let blocked = control.info_field("blocked_clients")?;
            if blocked.as_deref().and_then(|count| count.parse().ok()) >= Some(clients) {
                return Ok(WaitingClients { epoll, waiters });
            }
            if begin.elapsed() > BACKGROUND_TIMEOUT {
                return Err(Error::Server(format!(
                    "blocked_clients is {blocked:?} and not {clients}"
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes every client that received an element wait again, until the stop flag is set. Returns a text with the
    /// number of elements.
    fn run(&mut self, stop: &AtomicBool, cores: &[usize]) -> Result<String> {
        if !cores.is_empty() {
            process::pin_this_thread(cores)?;
        }
        let mut served = 0u64;
        let mut events = Vec::with_capacity(256);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: MAX_WAIT_MS * 1_000_000,
        };
        while !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for elements"),
            }
            for event in &events {
                let data: u64 = event.data.u64();
                served += u64::from(self.waiters[data as usize].receive()?);
            }
        }
        Ok(format!("{served} elements to waiting clients"))
    }
}

impl WaitingClient {
    /// Reads the available input. Returns `true` if it completed an element, after which the client waits again.
    fn receive(&mut self) -> Result<bool> {
        let mut chunk = [0; 512];
        match self.stream.read(&mut chunk) {
            Ok(0) => {
                return Err(Error::Server(
                    "the server closed the connection of a waiting client".into(),
                ));
            }
            Ok(count) => self.received.extend_from_slice(&chunk[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(source) => {
                return Err(Error::System {
                    operation: "reading an element".into(),
                    source,
                });
            }
        }
        let broken = |bytes: &[u8]| Error::WrongReply(format!("BLPOP answered \"{}\"", bytes.escape_ascii()));
        match ReplyScanner::default().advance(&self.received) {
            Ok(None) => return Ok(false),
            Ok(Some(length)) if length == self.received.len() && self.received.starts_with(b"*2\r\n") => {}
            _ => return Err(broken(&self.received)),
        }
        self.received.clear();
        self.stream.write_all(&self.request).context("sending BLPOP")?;
        Ok(true)
    }
}
