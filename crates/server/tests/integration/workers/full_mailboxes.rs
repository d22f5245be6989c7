//! Tests clients that cause more messages than other workers can deliver.

use std::io::{BufRead, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::order::{lines_until, resp3_clients};
use super::{Client, Server};

/// The number of patterns of the subscriber: each message is delivered so many times, by one worker.
const PATTERNS: usize = 5000;
/// The number of messages that each of the clients sends.
const MESSAGES: usize = 100;
/// The number of these clients.
const SENDERS: usize = 4;
/// More than this number of messages are never unread: a mailbox is full with less, and each sender adds one.
const MOST_UNREAD: usize = 64;

/// Starts a server whose workers are all active, which closes no slow subscriber.
fn start(threads: &str) -> Server {
    let limit = "pubsub 0 0 0";
    let active = ["--io-threads", threads, "--io-threads-always-active", "yes"];
    Server::start(&[&active[..], &["--client-output-buffer-limit", limit]].concat())
}

/// Returns a client that receives each message of the channel `channel-x` as often as it has patterns, and each event
/// of the key `key-x`.
fn subscribe(server: &Server) -> Client {
    let mut subscriber = Client::connect(server.port);
    let patterns = (0..PATTERNS).map(|number| format!("*[ly]-*[^{number}]"));
    let words: Vec<String> = std::iter::once("PSUBSCRIBE".to_owned()).chain(patterns).collect();
    subscriber.send(&words);
    (0..PATTERNS).for_each(|_| drop(subscriber.answer()));
    subscriber
}

/// Receives so many messages, and checks that each of them is complete.
fn receive(subscriber: &mut Client, messages: usize, text: &str) {
    let mut line = String::new();
    for _ in 0..messages * PATTERNS {
        let mut parts = Vec::new();
        line.clear();
        subscriber.0.read_line(&mut line).expect("receives");
        assert_eq!(line, "*4\r\n");
        for _ in 0..4 {
            line.clear();
            subscriber.0.read_line(&mut line).expect("receives");
            let length: usize = line.trim_end()[1..].parse().expect("a length");
            let mut bytes = vec![0; length + 2];
            subscriber.0.read_exact(&mut bytes).expect("receives");
            parts.push(bytes);
        }
        let expected = format!("{text}\r\n");
        assert_eq!(
            (&parts[0][..], &parts[3][..]),
            (&b"pmessage\r\n"[..], expected.as_bytes())
        );
    }
}

/// Returns the number of messages that workers have not read.
fn unread_messages(client: &mut Client) -> usize {
    let info = client.call(&["INFO", "weft"]);
    let counts = info
        .lines()
        .filter_map(|line| line.split_once("unread_messages=")?.1.trim().parse::<usize>().ok());
    counts.sum()
}

/// Returns the largest number of messages that one worker has not read.
fn most_unread(client: &mut Client) -> usize {
    let info = client.call(&["INFO", "weft"]);
    let counts = info
        .lines()
        .filter_map(|line| line.split_once("unread_messages=")?.1.trim().parse::<usize>().ok());
    counts.max().unwrap_or(0)
}

/// Runs `send` while a subscriber of the server receives its messages, and checks that only so many of them are unread
/// at any time.
fn check_unread(server: &Server, (messages, text): (usize, &str), limit: usize, send: impl FnOnce()) {
    let mut subscriber = subscribe(server);
    let has_ended = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&mut subscriber, messages, text));
        let watch = scope.spawn(|| {
            let mut observer = Client::connect(server.port);
            let mut most = 0;
            while !has_ended.load(Ordering::Relaxed) {
                most = most.max(unread_messages(&mut observer));
            }
            most
        });
        send();
        receiver.join().expect("receives");
        has_ended.store(true, Ordering::Relaxed);
        watch.join().expect("observes")
    });
    assert!(most <= limit, "{most} messages were unread");
}

/// Sends the request from several clients, again and again, and checks the replies.
fn send_from_clients(server: &Server, request: &[&str], expected: &str) {
    let mut senders: Vec<Client> = (0..SENDERS).map(|_| Client::connect(server.port)).collect();
    for sender in &mut senders {
        (0..MESSAGES).for_each(|_| sender.send(request));
    }
    for sender in &mut senders {
        (0..MESSAGES).for_each(|_| assert_eq!(sender.answer(), expected));
    }
}

#[test]
fn clients_publish_no_faster_than_messages_are_delivered() {
    for threads in ["2", "8"] {
        let server = start(threads);
        check_unread(&server, (SENDERS * MESSAGES, "text"), MOST_UNREAD, || {
            send_from_clients(&server, &["PUBLISH", "channel-x", "text"], &PATTERNS.to_string());
        });
    }
}

#[test]
fn clients_write_no_faster_than_events_are_delivered() {
    for threads in ["2", "8"] {
        let server = start(threads);
        let classes = ["CONFIG", "SET", "notify-keyspace-events", "K$"];
        assert_eq!(Client::connect(server.port).call(&classes), "OK");
        check_unread(&server, (SENDERS * MESSAGES, "set"), MOST_UNREAD, || {
            send_from_clients(&server, &["SET", "key-x", "value"], "OK");
        });
    }
}

#[test]
fn scripts_publish_no_faster_than_messages_are_delivered() {
    for threads in ["2", "8"] {
        let server = start(threads);
        check_unread(&server, (SENDERS * MESSAGES, "text"), MOST_UNREAD, || {
            let script = "for i = 1, 400 do redis.call('PUBLISH', 'channel-x', 'text') end return 'sent'";
            assert_eq!(Client::connect(server.port).call(&["EVAL", script, "0"]), "sent");
        });
    }
}

/// A replica waits between the batches of its stream, so that the limit is higher.
#[test]
fn replicas_apply_no_faster_than_messages_are_delivered() {
    for threads in ["2", "8"] {
        let primary = start(threads);
        let replica = start(threads);
        let mut client = Client::connect(replica.port);
        assert_eq!(
            client.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]),
            "OK"
        );
        client.wait_for_info("master_link_status", "up");
        check_unread(&replica, (4 * SENDERS * MESSAGES, "text"), 4 * MOST_UNREAD, || {
            for _ in 0..4 {
                send_from_clients(&primary, &["PUBLISH", "channel-x", "text"], "0");
            }
        });
    }
}

/// Returns clients on all workers that have read these keys and redirect their invalidations to one client, which is
/// returned first.
fn redirect_to_one(server: &Server, trackers: usize, keys: &[String]) -> (Client, Vec<Client>) {
    let mut receiver = Client::connect(server.port);
    let id = receiver.call(&["CLIENT", "ID"]);
    receiver.call(&["SUBSCRIBE", "__redis__:invalidate"]);
    let words = ["CLIENT", "TRACKING", "ON", "REDIRECT", &id];
    let read: Vec<&str> = std::iter::once("EXISTS")
        .chain(keys.iter().map(String::as_str))
        .collect();
    let trackers = (0..trackers).map(|_| {
        let mut tracker = Client::connect(server.port);
        assert_eq!(tracker.call(&words), "OK");
        assert_eq!(tracker.call(&read), "0");
        tracker
    });
    (receiver, trackers.collect())
}

/// The invalidations of many clients are redirected to one. Each change of a key sends one message.
#[test]
fn redirected_invalidations_leave_room_in_the_mailbox() {
    // The delivery of a message to 1500 clients takes as long as 1500 times 1 KiB take to copy. So a mailbox is full
    // with 44 of them, and each of the 16 writers may add one.
    let limit = 2 * MOST_UNREAD;
    let mut keys: Vec<String> = (0..600).map(|number| format!("key-{number}")).collect();
    keys.push("key-last".to_owned());
    for threads in ["2", "8"] {
        let server = start(threads);
        let (mut receiver, _trackers) = redirect_to_one(&server, 1500, &keys);
        let has_ended = AtomicBool::new(false);
        let most = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut observer = Client::connect(server.port);
                let mut most = 0;
                while !has_ended.load(Ordering::Relaxed) {
                    most = most.max(most_unread(&mut observer));
                }
                most
            });
            let reads = scope.spawn(|| while !receiver.answer().contains("key-last") {});
            let mut writers = resp3_clients(&server);
            let count = writers.len();
            for (number, key) in keys.iter().enumerate().filter(|(_, key)| *key != "key-last") {
                writers[number % count].send(&["SET", key, "value"]);
            }
            for writer in &mut writers {
                writer.send(&["PING"]);
                lines_until(writer, "+PONG");
            }
            has_ended.store(true, Ordering::Relaxed);
            let mut last = Client::connect(server.port);
            assert_eq!(last.call(&["SET", "key-last", "value"]), "OK");
            reads.join().expect("receives");
            watch.join().expect("observes")
        });
        assert!(most <= limit, "{most} messages were unread by one worker");
    }
}
