//! Tests active expiry while a slot is leased for long.

use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// Keys of other slots expire while a script holds a due slot.
#[test]
fn keys_expire_while_a_script_holds_a_slot_that_is_due() {
    for workers in ["1", "2", "8"] {
        let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        // With this seed no other key is in the slot of the held one.
        let arguments = ["--busy-reply-threshold", "1000000", "--hash-seed", "weft"];
        let server = Server::start(&[&threads[..], &arguments].concat());
        let mut script = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        // The script must hold the key before it expires, which takes a busy machine longer.
        let mut due = Instant::now();
        let is_held_in_time = |life_ms: u64| {
            due = Instant::now() + Duration::from_millis(life_ms);
            assert_eq!(client.call(&["SET", "held", "v", "PX", &life_ms.to_string()]), "OK");
            server.run_script(&mut script, &["EVAL", "while true do end", "1", "held"]);
            let is_in_time = Instant::now() < due;
            if !is_in_time {
                assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
                script.answer();
                while client.call(&["EXISTS", "held"]) == "1" {}
                assert_eq!(client.call(&["CONFIG", "RESETSTAT"]), "OK");
            }
            is_in_time
        };
        assert!(
            [1000, 5000, 20_000].into_iter().any(is_held_in_time),
            "the key is never held in time"
        );
        thread::sleep(due.saturating_duration_since(Instant::now()));
        for number in 0..300 {
            assert_eq!(client.call(&["SET", &format!("key-{number}"), "v", "PX", "100"]), "OK");
        }
        let start = Instant::now();
        while client.info("expired_keys") != "300" {
            assert!(start.elapsed() < PATIENCE, "{workers} workers: the due keys stay");
            thread::sleep(Duration::from_millis(10));
        }
        // Only the leased slot is left, and the workers do not retry continuously: there is a moment with little expiry
        // work.
        let spent_ms = |client: &mut Client| -> u128 {
            let spent = client.info("expire_cycle_cpu_milliseconds");
            spent.parse().expect("a number")
        };
        let start = Instant::now();
        loop {
            let (before, window) = (spent_ms(&mut client), Instant::now());
            thread::sleep(Duration::from_millis(100));
            if spent_ms(&mut client) - before < window.elapsed().as_millis() / 2 {
                break;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{workers} workers: expiry takes all the time"
            );
        }
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        let start = Instant::now();
        while client.info("expired_keys") != "301" {
            assert!(start.elapsed() < PATIENCE, "{workers} workers: the held key stays");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
