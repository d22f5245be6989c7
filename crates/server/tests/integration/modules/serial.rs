//! Commands of the serial way: on all workers, one at a time.

use std::thread;
use std::time::Duration;

use super::{start, start_with};
use crate::harness::client::Client;

/// Returns the total, the most commands at the same time, and the number of threads.
fn figures(client: &mut Client) -> [u64; 3] {
    let text = client.call(&["serial.figures"]);
    let mut numbers = text.trim_matches(['(', ')']).split(' ').map(|number| number.parse());
    std::array::from_fn(|_| numbers.next().expect("three numbers").expect("a number"))
}

#[test]
fn no_two_commands_run_at_the_same_time() {
    const ROUNDS: u64 = 400;
    for workers in [1, 4, 8] {
        let server = start(workers, "serial");
        let port = server.port;
        let client = |number: u64| {
            move || {
                let mut client = Client::connect(port);
                let key = format!("k{}", number % 5);
                let script = "return redis.call('serial.add', KEYS[1])";
                for _ in 0..ROUNDS {
                    match number {
                        0 => drop(client.transact(&[&["serial.add", &key], &["INCR", &key]])),
                        1 => drop(client.call(&["EVAL", script, "1", &key])),
                        2 => {
                            client.call(&["serial.add", &key]);
                            client.call(&["serial.figures"]);
                        }
                        _ => {
                            client.send(&["serial.add", &key]);
                            client.send(&["GET", &key]);
                            client.send(&["serial.add", &key]);
                            (0..3).for_each(|_| assert!(!client.answer().starts_with("ERR")));
                        }
                    }
                }
            }
        };
        let clients: Vec<_> = (0..10).map(|number| thread::spawn(client(number))).collect();
        clients
            .into_iter()
            .for_each(|client| client.join().expect("no reply is an error"));
        let mut client = Client::connect(port);
        let [total, most, threads] = figures(&mut client);
        // Seven clients add two in each round, two one, and one adds one and asks for the figures.
        assert_eq!(total, ROUNDS * (7 * 2 + 2 + 2) + 1, "{workers} workers");
        assert_eq!(most, 1);
        assert_eq!(threads > 1, workers > 1, "{threads} threads");
        let keys = (0..5).map(|number| client.call(&["GET", &format!("k{number}")]));
        let sum: u64 = keys.map(|text| text.parse::<u64>().expect("a number")).sum();
        assert_eq!(sum, ROUNDS * (7 * 2 + 2 + 1 + 1));
    }
}

#[test]
fn commands_on_other_slots_go_on() {
    let server = start(4, "serial");
    let port = server.port;
    let slow = thread::spawn(move || Client::connect(port).call(&["serial.sleep", "a", "1500"]));
    // Connections of all workers, one of which is busy: the others get their replies.
    let mut clients: Vec<Client> = (0..12).map(|_| Client::connect(port)).collect();
    thread::sleep(Duration::from_millis(100));
    for client in &mut clients {
        client.send(&["INCR", "b"]);
    }
    thread::sleep(Duration::from_millis(300));
    let quick = clients.iter().filter(|client| !client.is_waiting()).count();
    assert!(quick >= 6, "{quick} of 12 clients had their replies at once");
    clients.iter_mut().for_each(|client| drop(client.answer()));
    assert_eq!(clients[0].call(&["GET", "b"]), "12");
    assert_eq!(slow.join().expect("ends"), "1", "no other serial command ran meanwhile");
}

#[test]
fn a_client_that_goes_ends_nothing_else() {
    for workers in [1, 4] {
        let server = start(workers, "serial");
        for round in 0..20 {
            let mut gone = Client::connect(server.port);
            gone.send(&["serial.sleep", &format!("k{round}"), "5"]);
            gone.send(&["serial.add", "k"]);
            drop(gone);
            let mut client = Client::connect(server.port);
            assert_eq!(client.call(&["serial.add", &format!("own{round}")]), "1");
        }
        let mut client = Client::connect(server.port);
        assert_eq!(figures(&mut client)[1], 1);
    }
}

#[test]
fn a_key_that_is_not_declared_is_an_error() {
    for workers in [1, 4] {
        let server = start(workers, "serial");
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["serial.open", "{a}1", "b"]), "0");
        assert_eq!(client.call(&["serial.open", "a", "a"]), "1");
        // In a transaction there is exclusive mode.
        assert_eq!(client.transact(&[&["serial.open", "{a}1", "b"]]), "(1)");
    }
}

#[test]
fn the_operator_makes_a_module_serial() {
    let arguments = ["--module-concurrency", "concurrency serial"];
    let server = start_with(4, &[&["concurrency"]], &arguments);
    let port = server.port;
    let clients: Vec<_> = (0..8)
        .map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                let command = ["concurrency.meet", "concurrency.meet-home"][number % 2];
                (0..5).all(|_| client.call(&[command, &format!("k{number}")]) == "1")
            })
        })
        .collect();
    assert!(
        clients.into_iter().all(|client| client.join().expect("a client ends")),
        "two commands have run at the same time"
    );
}
