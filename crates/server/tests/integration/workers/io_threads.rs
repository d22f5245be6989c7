//! Tests changes of `io-threads` while clients are in all states: their connections leave the workers that become
//! inactive, and come to those that become active.

use std::io::Read;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::moving::StopOnDrop;
use super::{Client, Server};

/// The number of clients, or of pairs of clients, of a test.
const CLIENTS: usize = 16;
/// The time for which the number of workers changes.
const TIME: Duration = Duration::from_millis(700);
/// The time between two changes. The coordinator looks at the parameter every 10 ms.
const INTERVAL: Duration = Duration::from_millis(15);
const LARGE_BYTES: usize = 200_000;

/// Runs `story` on servers with two and with eight workers, of which more and fewer are active all the time.
fn while_io_threads_change(story: impl Fn(&Server)) {
    for (started, numbers) in [("2", &["1", "2"][..]), ("8", &["1", "8", "3", "2", "6"][..])] {
        let server = Server::start(&["--io-threads", started]);
        let mut admin = Client::connect(server.port);
        let large = "x".repeat(LARGE_BYTES);
        assert_eq!(admin.call(&["SET", "large", &large]), "OK");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in numbers.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    assert_eq!(admin.call(&["CONFIG", "SET", "io-threads", number]), "OK");
                    thread::sleep(INTERVAL);
                }
            });
            let guard = StopOnDrop(&stop);
            story(&server);
            drop(guard);
        });
        let moved = Client::connect(server.port).info("weft_moved_connections");
        assert_ne!(moved, "0", "with {started} workers no connection has moved");
    }
}

/// Calls `play` for several clients, each on a thread of its own, with the number of the client and a function that
/// returns `true` until the time is over.
fn for_each_client(play: impl Fn(usize, &dyn Fn() -> bool) + Sync) {
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let play = &play;
            scope.spawn(move || {
                let start = Instant::now();
                play(number, &|| start.elapsed() < TIME);
            });
        }
    });
}

#[test]
fn transactions_stay_whole() {
    while_io_threads_change(|server| {
        for_each_client(|number, goes_on| {
            let mut client = Client::connect(server.port);
            let key = format!("counter:{number}");
            let (mut count, mut round) = (0, 0);
            while goes_on() {
                round += 1;
                assert_eq!(client.call(&["WATCH", &key]), "OK");
                assert_eq!(client.call(&["MULTI"]), "OK");
                for _ in 0..3 {
                    assert_eq!(client.call(&["INCR", &key]), "QUEUED");
                    thread::sleep(Duration::from_millis(2));
                }
                if round % 4 == 0 {
                    assert_eq!(client.call(&["DISCARD"]), "OK");
                } else {
                    let replies = format!("({} {} {})", count + 1, count + 2, count + 3);
                    assert_eq!(client.call(&["EXEC"]), replies);
                    count += 3;
                }
            }
        });
    });
}

#[test]
fn blocked_clients_get_their_elements_or_time_out() {
    while_io_threads_change(|server| {
        for_each_client(|number, goes_on| {
            let (mut waiting, mut pusher) = (Client::connect(server.port), Client::connect(server.port));
            let list = format!("list:{number}");
            let mut round = 0;
            while goes_on() {
                round += 1;
                let element = round.to_string();
                waiting.send(&["BLPOP", &list, "0"]);
                waiting.send(&["ECHO", "behind"]);
                thread::sleep(Duration::from_millis(round % 3 * 5));
                assert_eq!(pusher.call(&["RPUSH", &list, &element]), "1");
                assert_eq!(waiting.answer(), format!("({list} {element})"));
                assert_eq!(waiting.answer(), "behind");
                assert_eq!(waiting.call(&["BLPOP", &list, "0.01"]), "-");
            }
        });
    });
}

#[test]
fn subscribers_get_every_message_in_order() {
    while_io_threads_change(|server| {
        let mut subscribers: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(server.port)).collect();
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.call(&["SUBSCRIBE", "news"]), "(subscribe news 1)");
        }
        let mut publisher = Client::connect(server.port);
        let (start, mut round) = (Instant::now(), 0);
        while start.elapsed() < TIME {
            round += 1;
            let messages = [format!("first:{round}"), format!("second:{round}")];
            for message in &messages {
                publisher.send(&["PUBLISH", "news", message]);
            }
            for _ in &messages {
                assert_eq!(publisher.answer(), CLIENTS.to_string());
            }
            for subscriber in &mut subscribers {
                for message in &messages {
                    assert_eq!(subscriber.answer(), format!("(message news {message})"));
                }
            }
            // Connections move only while they have no subscription.
            for subscriber in subscribers.iter_mut().skip(round % 3).step_by(3) {
                assert_eq!(subscriber.call(&["UNSUBSCRIBE", "news"]), "(unsubscribe news 0)");
                assert_eq!(subscriber.call(&["ECHO", "between"]), "between");
                assert_eq!(subscriber.call(&["SUBSCRIBE", "news"]), "(subscribe news 1)");
                assert_eq!(subscriber.call(&["PING"]), "(pong )");
            }
        }
    });
}

#[test]
fn a_monitor_sees_the_commands_in_order() {
    while_io_threads_change(|server| {
        let mut monitors: Vec<Client> = (0..3).map(|_| Client::connect(server.port)).collect();
        for monitor in &mut monitors {
            assert_eq!(monitor.call(&["MONITOR"]), "OK");
        }
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(server.port)).collect();
        let (start, mut round) = (Instant::now(), 0);
        while start.elapsed() < TIME {
            round += 1;
            for (number, client) in clients.iter_mut().enumerate() {
                let key = format!("seen:{number}");
                assert_eq!(client.call(&["SET", &key, &round.to_string()]), "OK");
            }
            for monitor in &mut monitors {
                for number in 0..CLIENTS {
                    let mut line = monitor.answer();
                    // Other clients change the number of workers.
                    while !line.contains("\"seen:") {
                        line = monitor.answer();
                    }
                    let expected = format!("\"SET\" \"seen:{number}\" \"{round}\"");
                    assert!(line.ends_with(&expected), "{line} instead of {expected}");
                }
            }
        }
    });
}

#[test]
fn half_closed_clients_get_all_replies() {
    let large = format!("${LARGE_BYTES}\r\n{}\r\n", "x".repeat(LARGE_BYTES));
    while_io_threads_change(|server| {
        for_each_client(|number, goes_on| {
            let mut round = 0;
            while goes_on() {
                round += 1;
                let mut client = Client::connect(server.port);
                assert_eq!(client.call(&["PING"]), "PONG");
                thread::sleep(Duration::from_millis(round % 4 * 5));
                let key = format!("half:{number}:{round}");
                let mut expected = String::new();
                for count in 1..=20 {
                    client.send(&["INCR", &key]);
                    expected += &format!(":{count}\r\n");
                }
                client.send(&["GET", "large"]);
                expected += &large;
                client.0.get_ref().shutdown(Shutdown::Write).expect("half-closes");
                let mut received = String::new();
                client.0.read_to_string(&mut received).expect("receives");
                assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
            }
        });
    });
}

#[test]
fn replies_that_are_read_late_are_complete_and_in_order() {
    let large = "x".repeat(LARGE_BYTES);
    while_io_threads_change(|server| {
        for_each_client(|number, goes_on| {
            let mut client = Client::connect(server.port);
            let key = format!("late:{number}");
            let (mut count, mut round) = (0, 0);
            while goes_on() {
                round += 1;
                for _ in 0..4 {
                    client.send(&["INCR", &key]);
                    client.send(&["GET", "large"]);
                }
                thread::sleep(Duration::from_millis(round % 3 * 10));
                for _ in 0..4 {
                    count += 1;
                    assert_eq!(client.answer(), count.to_string());
                    assert!(client.answer() == large, "the bytes are others");
                }
            }
        });
    });
}
