//! Subscribers of the channel to which the publishing loads send. They count and check every message.
//!
//! The subscribers' thread competes with the publishers' thread if both are pinned to one core. A slow subscriber loses
//! no messages, because the sets start both servers without a limit of the output buffers of subscribers. Once the
//! publishers have ended, the thread waits until each subscriber has received every published message.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::content::ValuePool;
use crate::error::{Error, ErrorContext, Result};
use crate::process;
use crate::server::BenchServer;

#[cfg(test)]
mod tests;

/// The channel of the publishing loads.
const CHANNEL: &str = "news";

/// The content of every n-th message of a subscriber is compared.
const VERIFY_EVERY: u64 = 16;

/// The time limit for the messages that are under way when the publishers have ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest sleep without a check of the stop flag.
const MAX_WAIT_MS: i64 = 20;

/// The size of each read, in bytes.
const READ_BYTES: usize = 256 * 1024;

/// The progress of the subscribers, which their thread and the measurement share.
#[derive(Debug)]
pub struct SubscriberProgress {
    /// The number of messages that all subscribers have received.
    pub delivered: AtomicU64,
    /// The number of published messages; `u64::MAX` until the publishers have ended.
    pub published: AtomicU64,
}

impl SubscriberProgress {
    /// Creates the progress before the first message.
    pub fn new() -> SubscriberProgress {
        SubscriberProgress {
            delivered: AtomicU64::new(0),
            published: AtomicU64::new(u64::MAX),
        }
    }
}

/// The form of each message.
#[derive(Debug)]
struct MessageFormat {
    /// The bytes before the payload.
    header: Vec<u8>,
    values: ValuePool,
}

impl MessageFormat {
    fn new(value_size: usize) -> MessageFormat {
        let channel_len = CHANNEL.len();
        let header = format!("*3\r\n$7\r\nmessage\r\n${channel_len}\r\n{CHANNEL}\r\n${value_size}\r\n");
        MessageFormat {
            header: header.into_bytes(),
            values: ValuePool::new(value_size),
        }
    }

    /// The length of a message in bytes.
    fn message_len(&self) -> usize {
        self.header.len() + self.values.size() + 2
    }

    /// Checks message number `number` of a subscriber.
    fn check(&self, message: &[u8], number: u64) -> Result<()> {
        let payload = message
            .strip_prefix(self.header.as_slice())
            .and_then(|rest| rest.strip_suffix(b"\r\n"));
        let is_right = payload.is_some_and(|payload| {
            !number.is_multiple_of(VERIFY_EVERY) || self.values.parse_name(0, payload).is_some()
        });
        if is_right {
            return Ok(());
        }
        let shown = message.escape_ascii();
        Err(Error::WrongReply(format!("a subscriber received \"{shown}\"")))
    }
}

/// One subscriber.
#[derive(Debug)]
struct Subscriber {
    stream: TcpStream,
    received: u64,
    /// The beginning of an incomplete message.
    partial: Vec<u8>,
}

impl Subscriber {
    /// Reads the available input into `buffer` and checks its messages. Returns their number.
    fn receive(&mut self, buffer: &mut [u8], format: &MessageFormat) -> Result<u64> {
        let kept = self.partial.len();
        buffer[..kept].copy_from_slice(&self.partial);
        let count = match self.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(Error::Server("the server closed a subscriber's connection".into())),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(0),
            Err(source) => {
                return Err(Error::System {
                    operation: "reading a message".into(),
                    source,
                });
            }
        };
        let messages = buffer[..kept + count].chunks_exact(format.message_len());
        self.partial.clear();
        self.partial.extend_from_slice(messages.remainder());
        let before = self.received;
        for message in messages {
            format.check(message, self.received)?;
            self.received += 1;
        }
        Ok(self.received - before)
    }
}

/// All subscribers of a load.
#[derive(Debug)]
pub struct Subscribers {
    epoll: OwnedFd,
    subscribers: Vec<Subscriber>,
    format: MessageFormat,
}

impl Subscribers {
    /// Connects `count` subscribers and returns when the server has confirmed all subscriptions. Messages have
    /// `value_size` bytes.
    ///
    /// # Errors
    /// Fails if the server refuses a connection or a subscription.
    pub fn connect(server: &BenchServer, count: usize, value_size: usize) -> Result<Subscribers> {
        let mut streams = Vec::with_capacity(count);
        for _ in 0..count {
            let mut control = server.control()?;
            control.call(&["SUBSCRIBE", CHANNEL])?;
            streams.push(control.into_stream());
        }
        Subscribers::new(streams, value_size)
    }

    /// Wraps connections that have subscribed.
    fn new(streams: Vec<TcpStream>, value_size: usize) -> Result<Subscribers> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll instance")?;
        let mut subscribers = Vec::with_capacity(streams.len());
        for (token, stream) in streams.into_iter().enumerate() {
            stream
                .set_nonblocking(true)
                .context("making a connection non-blocking")?;
            let data = epoll::EventData::new_u64(token as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).context("watching a connection")?;
            subscribers.push(Subscriber {
                stream,
                received: 0,
                partial: Vec::new(),
            });
        }
        Ok(Subscribers {
            epoll,
            subscribers,
            format: MessageFormat::new(value_size),
        })
    }

    /// Receives messages until every subscriber has as many as were published, or until the stop flag is set. Returns a
    /// text with the number of messages.
    ///
    /// # Errors
    /// Fails if a message is wrong, lost or repeated.
    pub fn run(&mut self, progress: &SubscriberProgress, stop: &AtomicBool, cores: &[usize]) -> Result<String> {
        if !cores.is_empty() {
            process::pin_this_thread(cores)?;
        }
        let mut buffer = vec![0; READ_BYTES + self.format.message_len()];
        let mut events = Vec::with_capacity(256);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: MAX_WAIT_MS * 1_000_000,
        };
        let mut drain_began = None;
        while !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for messages"),
            }
            for event in &events {
                let token: u64 = event.data.u64();
                let count = self.subscribers[token as usize].receive(&mut buffer, &self.format)?;
                progress.delivered.fetch_add(count, Ordering::Relaxed);
            }
            let published = progress.published.load(Ordering::Relaxed);
            if published == u64::MAX {
                continue;
            }
            let drain_began = *drain_began.get_or_insert_with(Instant::now);
            // A repeated message would arrive during the wait, so the end is a wait without events.
            if self.have_received(published, drain_began.elapsed() > DRAIN_TIMEOUT)? && events.is_empty() {
                let delivered = progress.delivered.load(Ordering::Relaxed);
                return Ok(format!(
                    "{delivered} messages to {} subscribers",
                    self.subscribers.len()
                ));
            }
        }
        Ok(String::new())
    }

    /// Returns `true` if every subscriber has received `published` messages, and no part of another one.
    ///
    /// # Errors
    /// Fails if a subscriber has received more, or fewer once `is_late`.
    fn have_received(&self, published: u64, is_late: bool) -> Result<bool> {
        let is_complete = |each: &Subscriber| each.received == published && each.partial.is_empty();
        let is_wrong = |each: &&Subscriber| each.received > published || is_late && !is_complete(each);
        if let Some(wrong) = self.subscribers.iter().find(is_wrong) {
            return Err(Error::WrongReply(format!(
                "a subscriber received {} of {published} messages",
                wrong.received
            )));
        }
        Ok(self.subscribers.iter().all(is_complete))
    }
}
