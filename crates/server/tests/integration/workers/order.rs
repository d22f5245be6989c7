//! Tests the order in which clients of different workers see what happens: a client that has heard of a reply to
//! another client sees the effects of that command, also if its own worker is busy.

use std::io::{BufRead, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::moving::StopOnDrop;
use super::{Client, Server};

/// The connections that keep the workers busy.
const BUSY_CONNECTIONS: usize = 48;
/// The elements of the list that they read, and the requests that each of them sends together.
const ELEMENTS: usize = 64;
const REQUESTS: usize = 40;

/// Runs `story` while all workers execute long pipelines.
fn while_workers_are_busy(server: &Server, story: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let mut admin = Client::connect(server.port);
    let elements = vec!["x"; ELEMENTS];
    admin.call(&[&["RPUSH", "busy"][..], &elements].concat());
    let request = "*4\r\n$6\r\nLRANGE\r\n$4\r\nbusy\r\n$1\r\n0\r\n$2\r\n-1\r\n".repeat(REQUESTS);
    let reply_bytes = (format!("*{ELEMENTS}\r\n").len() + ELEMENTS * "$1\r\nx\r\n".len()) * REQUESTS;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut busy: Vec<Client> = (0..BUSY_CONNECTIONS).map(|_| Client::connect(server.port)).collect();
            let mut replies = vec![0; reply_bytes];
            while !stop.load(Ordering::Relaxed) {
                for client in &mut busy {
                    client.0.get_mut().write_all(request.as_bytes()).expect("sends");
                }
                for client in &mut busy {
                    client.0.read_exact(&mut replies).expect("receives");
                }
            }
        });
        let guard = StopOnDrop(&stop);
        story();
        drop(guard);
    });
}

/// Returns the lines that a client receives up to `last`.
pub(super) fn lines_until(client: &mut Client, last: &str) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        client.0.read_line(&mut line).expect("receives");
        assert!(!line.is_empty(), "the connection ended after {lines:?}");
        lines.push(line.trim_end().to_owned());
        if lines.last().is_some_and(|line| line == last) {
            return lines;
        }
    }
}

fn start(threads: &str) -> Server {
    Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"])
}

/// Returns clients that speak RESP3, enough that every worker has some.
pub(super) fn resp3_clients(server: &Server) -> Vec<Client> {
    (0..16)
        .map(|_| {
            let mut client = Client::connect(server.port);
            client.send(&["HELLO", "3"]);
            client.send(&["PING"]);
            lines_until(&mut client, "+PONG");
            client
        })
        .collect()
}

#[test]
fn a_message_comes_before_replies_to_later_requests() {
    for threads in ["1", "2", "8"] {
        let server = start(threads);
        let mut listeners = resp3_clients(&server);
        for listener in &mut listeners {
            listener.send(&["CLIENT", "TRACKING", "ON"]);
            listener.send(&["SUBSCRIBE", "channel"]);
            listener.send(&["PING"]);
            lines_until(listener, "+PONG");
        }
        let mut writer = Client::connect(server.port);
        while_workers_are_busy(&server, || {
            let start = Instant::now();
            let mut round = 0;
            while start.elapsed() < Duration::from_secs(3) || round <= 10 {
                round += 1;
                for listener in &mut listeners {
                    listener.send(&["GET", "key"]);
                    listener.send(&["PING"]);
                    lines_until(listener, "+PONG");
                }
                // The workers are at the beginning of their turns.
                listeners
                    .iter_mut()
                    .for_each(|listener| listener.send(&["ECHO", "turn"]));
                assert_eq!(writer.call(&["SET", "key", "value"]), "OK");
                writer.call(&["PUBLISH", "channel", "message"]);
                listeners.iter_mut().for_each(|listener| listener.send(&["PING"]));
                for listener in &mut listeners {
                    let lines = lines_until(listener, "+PONG");
                    for kind in ["invalidate", "message"] {
                        assert!(
                            lines.iter().any(|line| line == kind),
                            "round {round}: no {kind} in {lines:?}"
                        );
                    }
                }
            }
        });
    }
}

/// The client that tracks the key, the one that gets its invalidations and the one that changes it are on all workers.
#[test]
fn a_redirected_invalidation_comes_before_later_messages() {
    for threads in ["1", "2", "8"] {
        let server = start(threads);
        let mut groups: Vec<[Client; 3]> = (0..16)
            .map(|number: usize| {
                let mut clients: [Client; 3] = std::array::from_fn(|_| Client::connect(server.port));
                clients.rotate_left(number % 3);
                let [tracker, informed, _] = &mut clients;
                let id = informed.call(&["CLIENT", "ID"]);
                informed.call(&["SUBSCRIBE", "__redis__:invalidate"]);
                informed.call(&["SUBSCRIBE", &format!("channel-{number}")]);
                assert_eq!(tracker.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
                clients
            })
            .collect();
        while_workers_are_busy(&server, || {
            let start = Instant::now();
            let mut round = 0;
            while start.elapsed() < Duration::from_secs(3) || round <= 10 {
                round += 1;
                for (number, [tracker, informed, writer]) in groups.iter_mut().enumerate() {
                    let channel = format!("channel-{number}");
                    tracker.call(&["GET", "key"]);
                    assert_eq!(writer.call(&["SET", "key", "value"]), "OK");
                    writer.call(&["PUBLISH", &channel, "later"]);
                    let messages = [informed.answer(), informed.answer()];
                    let later = format!("(message {channel} later)");
                    assert_eq!(
                        messages,
                        ["(message __redis__:invalidate (key))", &later],
                        "round {round}, {threads} threads"
                    );
                }
            }
        });
    }
}

/// Writes are paused, so that expired keys are not deleted: each worker sees by its own clock that they have expired.
#[test]
fn a_key_that_has_expired_for_one_client_has_expired_for_all() {
    for threads in ["1", "2", "8"] {
        let server = start(threads);
        let mut admin = Client::connect(server.port);
        let mut readers: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
        while_workers_are_busy(&server, || {
            let start = Instant::now();
            let mut round = 0;
            while start.elapsed() < Duration::from_secs(3) || round <= 10 {
                round += 1;
                assert_eq!(admin.call(&["SET", "key", "value", "PX", "20"]), "OK");
                assert_eq!(admin.call(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "OK");
                let mut has_expired = false;
                while !has_expired {
                    // The other workers are at the beginning of their turns.
                    readers.iter_mut().for_each(|reader| reader.send(&["PING"]));
                    has_expired = admin.call(&["GET", "key"]) == "-";
                    readers.iter_mut().for_each(|reader| reader.send(&["GET", "key"]));
                    for reader in &mut readers {
                        assert_eq!(reader.answer(), "PONG");
                        let value = reader.answer();
                        assert!(!has_expired || value == "-", "round {round}: {value}");
                    }
                }
                assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
            }
        });
    }
}

/// The request that serves a client is followed by long ones in the same batch, whose end the broadcast must not await.
#[test]
fn a_broadcast_comes_before_replies_to_what_a_served_client_causes() {
    for threads in ["2", "8"] {
        let server = start(threads);
        let mut listeners = resp3_clients(&server);
        for listener in &mut listeners {
            listener.send(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "list"]);
            listener.send(&["PING"]);
            lines_until(listener, "+PONG");
        }
        let (mut waiting, mut writer) = (Client::connect(server.port), Client::connect(server.port));
        writer.call(&[&["RPUSH", "long"][..], &["element"; 10_000]].concat());
        for round in 0..20 {
            let key = format!("list-{round}");
            waiting.send(&["BLPOP", &key, "0"]);
            writer.wait_for_info("blocked_clients", "1");
            let mut batch = format!("LPUSH {key} element\r\n").into_bytes();
            batch.extend_from_slice("LRANGE long 0 -1\r\n".repeat(30).as_bytes());
            writer.0.get_mut().write_all(&batch).expect("sends");
            assert_eq!(waiting.answer(), format!("({key} element)"));
            listeners.iter_mut().for_each(|listener| listener.send(&["PING"]));
            for listener in &mut listeners {
                let lines = lines_until(listener, "+PONG");
                assert!(lines.contains(&key), "no invalidation of {key} in {lines:?}");
            }
            (0..31).for_each(|_| drop(writer.answer()));
        }
    }
}
