//! Tests which workers are active.

use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// Waits until INFO shows this number of active workers.
fn await_active(client: &mut Client, expected: &str) {
    let line = format!("weft_workers_active:{expected}");
    let start = Instant::now();
    while !client.call(&["INFO", "everything"]).lines().any(|other| other == line) {
        assert!(start.elapsed() < PATIENCE, "never {line}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the number of connections of each worker, as INFO shows it.
fn clients_by_worker(client: &mut Client) -> Vec<usize> {
    let info = client.call(&["INFO", "everything"]);
    let counts = info.lines().find_map(|line| line.strip_prefix("weft_worker_clients:"));
    let counts = counts.expect("the line").split(',');
    counts.map(|count| count.parse().expect("a number")).collect()
}

#[test]
fn always_active_workers_share_connections_from_the_start() {
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "yes"]);
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients {
        assert_eq!(client.call(&["PING"]), "PONG");
    }
    await_active(&mut clients[0], "4");
    // The connection that checked that the server listens may still be open.
    let counts = clients_by_worker(&mut clients[0]);
    assert!(counts.iter().all(|count| (4..=5).contains(count)), "{counts:?}");
}

#[test]
fn workers_become_active_when_the_parameter_is_switched_on() {
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "no"]);
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients {
        assert_eq!(client.call(&["PING"]), "PONG");
    }
    assert_eq!(
        clients[0].call(&["CONFIG", "SET", "io-threads-always-active", "yes"]),
        "OK"
    );
    await_active(&mut clients[0], "4");
    let start = Instant::now();
    while clients_by_worker(&mut clients[0]).contains(&0) {
        assert!(start.elapsed() < PATIENCE, "the connections stay where they were");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        clients[0].call(&["CONFIG", "SET", "io-threads-always-active", "no"]),
        "OK"
    );
    await_active(&mut clients[0], "1");
}

/// CONFIG SET io-threads takes effect at once, up to the number of workers with which the server was started.
#[test]
fn io_threads_limits_the_active_workers_at_run_time() {
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "yes"]);
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients {
        assert_eq!(client.call(&["PING"]), "PONG");
    }
    for (number, active) in [("2", 2), ("1", 1), ("3", 3), ("64", 4)] {
        assert_eq!(clients[0].call(&["CONFIG", "SET", "io-threads", number]), "OK");
        assert_eq!(
            clients[0].call(&["CONFIG", "GET", "io-threads"]),
            format!("(io-threads {number})")
        );
        await_active(&mut clients[0], &active.to_string());
        // Every active worker has connections, and no other one has any.
        let start = Instant::now();
        loop {
            let counts = clients_by_worker(&mut clients[0]);
            let (used, unused) = counts.split_at(active);
            if !used.contains(&0) && unused.iter().all(|count| *count == 0) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{number}: {counts:?}");
            thread::sleep(Duration::from_millis(5));
        }
        for client in &mut clients {
            assert_eq!(client.call(&["PING"]), "PONG");
        }
    }
    // Without the parameter that keeps them active, the limit holds as well.
    for (name, value) in [("io-threads", "2"), ("io-threads-always-active", "no")] {
        assert_eq!(clients[0].call(&["CONFIG", "SET", name, value]), "OK");
    }
    await_active(&mut clients[0], "1");
}

/// The lines are those of Valkey. More threads than at the start are never active.
#[test]
fn changes_of_the_number_of_io_threads_are_logged() {
    let arguments = [
        "--io-threads",
        "4",
        "--io-threads-always-active",
        "yes",
        "--logfile",
        "log",
    ];
    let server = Server::start(&arguments);
    let mut client = Client::connect(server.port);
    for number in ["2", "2", "64", "4"] {
        assert_eq!(client.call(&["CONFIG", "SET", "io-threads", number]), "OK");
    }
    let log = std::fs::read_to_string(server.directory.join("log")).expect("there is a log");
    let texts = log.lines().filter_map(|line| line.split_once(" * "));
    let changes = texts
        .map(|(_, text)| text)
        .filter(|text| text.contains("IO threads from"));
    let expected = [
        "Changing number of IO threads from 4 to 2.",
        "Changing number of IO threads from 2 to 4.",
    ];
    assert_eq!(changes.collect::<Vec<&str>>(), expected);
}
