//! Scenarios about clients that receive messages: no message is lost, repeated or out of order, and no cached copy
//! stays valid after its key has changed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;

use super::client::{CallError, StressClient, StressReply};
use super::run::StressRun;

/// The number of threads that exchange messages; each is a publisher and a subscriber.
pub const PUBLISHER_THREADS: usize = 24;
const CHANNELS: usize = 4;
/// The maximum number of messages that a subscriber waits for before it unsubscribes.
const MAX_MESSAGES: usize = 60;

/// The last message that each publisher has begun to publish, and the last one that was certainly published.
static LAST_BEGUN: [AtomicU64; PUBLISHER_THREADS] = [const { AtomicU64::new(0) }; PUBLISHER_THREADS];
static LAST_PUBLISHED: [AtomicU64; PUBLISHER_THREADS] = [const { AtomicU64::new(0) }; PUBLISHER_THREADS];

/// A subscriber's knowledge of one publisher.
#[derive(Clone, Copy)]
struct PublisherView {
    /// The last message begun when the subscription was confirmed. Every later message was published after that.
    begun: u64,
    /// The last message that arrived.
    last: u64,
}

/// Publishes and subscribes. A message is `publisher:number:certain`. `certain` is the last of the publisher's earlier
/// messages that was certainly published. A subscriber that receives this message must have received that one, if it
/// was subscribed then.
pub fn publish_and_subscribe(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut speaker = run.connect()?;
    while run.is_running() {
        match run_subscription(run, thread, &mut speaker, &mut rng) {
            Ok(()) => {}
            // Another scenario killed one of the connections.
            Err(CallError::Closed) => speaker = run.connect()?,
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn run_subscription(
    run: &StressRun,
    thread: usize,
    publisher: &mut StressClient,
    rng: &mut Rng,
) -> Result<(), CallError> {
    let mut subscriber = run.connect().map_err(CallError::Protocol)?;
    let before: Vec<u64> = LAST_PUBLISHED
        .iter()
        .map(|certain| certain.load(Ordering::SeqCst))
        .collect();
    let by_pattern = rng.bool();
    let names: Vec<String> = (0..CHANNELS).map(|channel| format!("talk:{channel}")).collect();
    if by_pattern {
        subscriber.call("PSUBSCRIBE talk:*")?;
    } else {
        subscriber.call(&format!("SUBSCRIBE {}", names.join(" ")))?;
        for _ in 1..CHANNELS {
            await_confirmation(&mut subscriber, thread)?;
        }
    }
    let mut heard: Vec<PublisherView> = LAST_BEGUN
        .iter()
        .zip(&before)
        .map(|(begun, before)| PublisherView {
            begun: begun.load(Ordering::SeqCst),
            last: *before,
        })
        .collect();
    for _ in 0..rng.usize(1..MAX_MESSAGES) {
        let number = publish(thread, publisher)?;
        run.count_commands(1);
        while heard[thread].last < number {
            let message = subscriber.next_reply()?;
            check_message(&message, &mut heard)?;
        }
    }
    let word = if by_pattern { "PUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
    subscriber.send_raw(format!("{word}\r\nPING\r\n").as_bytes())?;
    let mut ended = 0;
    loop {
        let message = subscriber.next_reply()?;
        let first = message.items().first().map(StressReply::text).unwrap_or_default();
        match (message.text().as_str(), first.as_str()) {
            ("PONG", _) => {
                run.succeed();
                return Ok(());
            }
            (_, "unsubscribe" | "punsubscribe") => ended += 1,
            _ if ended == 0 || (!by_pattern && ended < CHANNELS) => check_message(&message, &mut heard)?,
            _ => {
                return Err(CallError::Protocol(format!(
                    "{message:?} arrived after the last subscription ended"
                )));
            }
        }
    }
}

/// Skips messages that arrive between the confirmations of several channels.
fn await_confirmation(ear: &mut StressClient, _thread: usize) -> Result<(), CallError> {
    loop {
        let reply = ear.next_reply()?;
        if reply.items().first().map(StressReply::text).as_deref() == Some("subscribe") {
            return Ok(());
        }
    }
}

/// Publishes the thread's next message and returns its number.
fn publish(thread: usize, publisher: &mut StressClient) -> Result<u64, CallError> {
    let number = LAST_BEGUN[thread].fetch_add(1, Ordering::SeqCst) + 1;
    let certain = LAST_PUBLISHED[thread].load(Ordering::SeqCst);
    let channel = thread % CHANNELS;
    match publisher.call(&format!("PUBLISH talk:{channel} {thread}:{number}:{certain}"))? {
        StressReply::Integer(count) if count >= 1 => {
            LAST_PUBLISHED[thread].store(number, Ordering::SeqCst);
            Ok(number)
        }
        other => Err(CallError::Protocol(format!("a subscriber was not counted: {other:?}"))),
    }
}

fn check_message(message: &StressReply, heard: &mut [PublisherView]) -> Result<(), CallError> {
    let broken = |story: String| Err(CallError::Protocol(story));
    let text = message.items().last().map(StressReply::text).unwrap_or_default();
    let numbers: Vec<u64> = text.split(':').filter_map(|word| word.parse().ok()).collect();
    let &[publisher, number, certain] = numbers.as_slice() else {
        return broken(format!("{message:?} is not a message of this scenario"));
    };
    let heard = &mut heard[publisher as usize];
    if number <= heard.last {
        return broken(format!(
            "message {number} of {publisher} came after {} of it, or was published before the subscription",
            heard.last
        ));
    }
    if certain > heard.last.max(heard.begun) {
        return broken(format!("message {certain} of {publisher} is missing before {number}"));
    }
    heard.last = number;
    Ok(())
}

/// Checks that no state of the subscribers is left.
pub fn check_subscriptions_ended(run: &StressRun) -> Result<(), String> {
    for counter in LAST_BEGUN.iter().chain(&LAST_PUBLISHED) {
        counter.store(0, Ordering::SeqCst);
    }
    let mut client = run.connect()?;
    let mut left = String::new();
    for _ in 0..100 {
        left = client.call("INFO")?.text();
        let fields: HashMap<&str, &str> = left.lines().filter_map(|line| line.split_once(':')).collect();
        let names = [
            "pubsub_clients",
            "pubsub_channels",
            "pubsub_patterns",
            "tracking_clients",
        ];
        if names.iter().all(|name| fields.get(name) == Some(&"0")) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Err(format!("subscriptions of disconnected clients are left:\n{left}"))
}

/// Keeps copies of keys that all threads change. After a change, the copy must be invalidated.
pub fn cached_copies(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    while run.is_running() {
        match check_copies(run, thread, &mut rng) {
            Ok(()) | Err(CallError::Closed) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn check_copies(run: &StressRun, thread: usize, rng: &mut Rng) -> Result<(), CallError> {
    let mut reader = run.connect().map_err(CallError::Protocol)?;
    let mut writer = run.connect().map_err(CallError::Protocol)?;
    reader.call("HELLO 3")?;
    let mode = if rng.bool() { "BCAST PREFIX copied:" } else { "" };
    reader.call(format!("CLIENT TRACKING ON {mode}").trim_end())?;
    for round in 0..rng.usize(1..200) {
        // Few keys, so that the tracking table has many readers for each.
        let key = format!("copied:{}", rng.usize(..6));
        let mut invalid = false;
        let read = format!("GET {key}");
        reader.send_watched(&read, format!("{read}\r\n").as_bytes())?;
        while invalidates(&reader.next_reply()?, &key).is_some() {}
        reader.send_watched(&format!("the invalidation of {key}"), b"")?;
        writer.call(&format!("SET {key} {thread}:{round}"))?;
        run.count_commands(2);
        while !invalid {
            invalid = invalidates(&reader.next_reply()?, &key) == Some(true);
        }
        run.succeed();
    }
    Ok(())
}

/// Returns `None` if a reply is not a message about invalid keys, else `true` if `key` is among them.
fn invalidates(reply: &StressReply, key: &str) -> Option<bool> {
    let [first, keys] = reply.items() else {
        return None;
    };
    (first.text() == "invalidate").then(|| match keys {
        StressReply::Array(keys) => keys.iter().any(|name| name.text() == key),
        // The message invalidates all keys.
        _ => true,
    })
}
