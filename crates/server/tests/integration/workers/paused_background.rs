//! Tests commands that are held back by a pause after they have left their worker: they occupy no thread.

use std::thread;
use std::time::Duration;

use super::{Client, Server};

/// Lasts much longer than the test needs, which ends it.
const PAUSE_MS: &str = "20000";
/// The number of threads for long commands.
const THREADS: usize = 2;

/// The rounds of a loop with which a test is tried until it lasts long enough. Code that runs for half a second ends
/// with an error, so the first loops are short enough for a slow machine.
const ROUNDS: [u32; 6] = [1_000_000, 2_500_000, 5_000_000, 10_000_000, 20_000_000, 40_000_000];

/// Returns a library whose code runs for a while.
fn library(number: usize, rounds: u32) -> String {
    format!(
        "#!lua name=library{number}\nfor i = 1, {rounds} do end\n\
         server.register_function('function{number}', function() return {number} end)"
    )
}

/// Begins to load libraries, and pauses writes while their code runs. Returns the clients that load them.
fn pause_during_loads(server: &Server, admin: &mut Client, count: usize) -> Vec<Client> {
    for rounds in ROUNDS {
        let mut loaders: Vec<Client> = (0..count).map(|_| Client::connect(server.port)).collect();
        let before: usize = admin.info("weft_background_commands").parse().expect("a number");
        for (number, loader) in loaders.iter_mut().enumerate() {
            loader.send(&["FUNCTION", "LOAD", &library(number, rounds)]);
        }
        admin.wait_for_info("weft_background_commands", &(before + count).to_string());
        assert_eq!(admin.call(&["CLIENT", "PAUSE", PAUSE_MS, "WRITE"]), "OK");
        if loaders.iter().all(Client::is_waiting) {
            // Their code has run by then.
            thread::sleep(Duration::from_millis(1000));
            // A library that was loaded before the pause may have been answered late.
            if loaders.iter().all(Client::is_waiting) {
                return loaders;
            }
        }
        assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
        loaders.iter_mut().for_each(|loader| drop(loader.answer()));
        assert_eq!(admin.call(&["FUNCTION", "FLUSH"]), "OK");
    }
    panic!("the libraries were loaded too fast");
}

#[test]
fn changes_of_libraries_wait_for_the_end_of_a_pause_without_a_thread() {
    let server = Server::start(&["--enable-debug-command", "local"]);
    let mut admin = Client::connect(server.port);
    let mut loaders = pause_during_loads(&server, &mut admin, THREADS);
    for (number, loader) in loaders.iter_mut().enumerate() {
        loader.send(&["FUNCTION", "LIST", "LIBRARYNAME", &format!("library{number}")]);
    }
    assert_eq!(admin.call(&["DEBUG", "DIGEST"]), "0".repeat(40));
    assert!(
        loaders.iter().all(Client::is_waiting),
        "they wait for the end of the pause"
    );
    assert_eq!(admin.call(&["FUNCTION", "LIST"]), "()", "nothing changes meanwhile");
    assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
    for (number, loader) in loaders.iter_mut().enumerate() {
        assert_eq!(loader.answer(), format!("library{number}"));
        let list = loader.answer();
        assert!(list.contains(&format!("function{number}")), "in order: {list}");
    }
}

#[test]
fn a_killed_client_changes_no_library_after_a_pause() {
    let server = Server::start(&[]);
    let mut admin = Client::connect(server.port);
    let _loaders = pause_during_loads(&server, &mut admin, 1);
    assert_eq!(admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]), "1");
    assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
    // The queue of the threads has an order.
    for number in 1..=2 * THREADS {
        let name = format!("library{number}");
        assert_eq!(admin.call(&["FUNCTION", "LOAD", &library(number, 1)]), name);
    }
    let list = admin.call(&["FUNCTION", "LIST"]);
    assert!(!list.contains("library0"), "{list}");
}

/// A command on a large value leaves its worker, and is admitted again when it stores its result.
#[test]
fn long_commands_wait_for_the_end_of_a_pause_without_a_thread() {
    const WRITERS: usize = 6;
    let server = Server::start(&["--enable-debug-command", "local"]);
    let mut admin = Client::connect(server.port);
    assert_eq!(
        admin.call(&[
            "EVAL",
            "for i = 1, 400000 do redis.call('SADD', KEYS[1], i) end return redis.call('SCARD', KEYS[1])",
            "1",
            "set",
        ]),
        "400000"
    );
    let mut writers: Vec<Client> = (0..WRITERS).map(|_| Client::connect(server.port)).collect();
    let before: usize = admin.info("weft_background_commands").parse().expect("a number");
    for (number, writer) in writers.iter_mut().enumerate() {
        writer.send(&["SUNIONSTORE", &format!("copy{number}"), "set"]);
    }
    admin.wait_for_info("weft_background_commands", &(before + WRITERS).to_string());
    assert_eq!(admin.call(&["CLIENT", "PAUSE", PAUSE_MS, "WRITE"]), "OK");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(admin.call(&["DEBUG", "DIGEST"]).len(), 40);
    assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
    for writer in &mut writers {
        assert_eq!(writer.answer(), "400000");
    }
}
