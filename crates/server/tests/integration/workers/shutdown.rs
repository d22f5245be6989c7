//! Tests the end of the process while commands are under way.

use std::io::{BufRead as _, Read as _};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Client, Server, is_waiting};
use crate::harness::wait_until;

/// Runs `story` with the arguments for one, two and eight active workers.
fn with_workers(story: impl Fn(&[&str])) {
    for threads in ["1", "2", "8"] {
        story(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
    }
}

/// A script that writes `first`, runs for long, and writes `second`.
const SCRIPT: &str =
    "redis.call('SET', 'first', '1') redis.call('RPUSH', 'list', '1') redis.call('PUBLISH', 'begun', '1')
    for i = 1, 1e10 do end redis.call('SET', 'second', '1')";

/// Ends the process by a signal, starts it again, and returns how many keys there are.
fn restart(server: &mut Server, arguments: &[&str]) -> String {
    server.signal(Signal::SIGTERM);
    server.start_again_with(arguments);
    Client::connect(server.port).call(&["DBSIZE"])
}

#[test]
fn the_end_of_the_process_leaves_nothing_of_a_script_that_it_stops() {
    with_workers(|arguments| {
        let durable = [arguments, &["--appendonly", "yes", "--appendfsync", "always"]].concat();
        for _ in 0..8 {
            let mut server = Server::start(&durable);
            let mut subscriber = Client::connect(server.port);
            subscriber.call(&["SUBSCRIBE", "begun"]);
            let mut waiting = Client::connect(server.port);
            waiting.send(&["BLPOP", "list", "0"]);
            let mut runner = Client::connect(server.port);
            runner.send(&["EVAL", SCRIPT, "0"]);
            assert_eq!(subscriber.answer(), "(message begun 1)");
            assert_eq!(restart(&mut server, &durable), "0");
        }
    });
}

#[test]
fn the_end_of_the_process_leaves_nothing_of_a_transaction_whose_script_it_stops() {
    let plain: &[&[&str]] = &[&["SET", "before", "1"]];
    let exclusive: &[&[&str]] = &[&["KEYS", "*"], &["SET", "before", "1"]];
    for others in [plain, exclusive] {
        with_workers(|arguments| {
            let durable = [arguments, &["--appendonly", "yes", "--appendfsync", "always"]].concat();
            let mut server = Server::start(&durable);
            let mut runner = Client::connect(server.port);
            runner.call(&["MULTI"]);
            for command in others {
                runner.call(command);
            }
            runner.call(&["EVAL", SCRIPT, "0"]);
            runner.call(&["SET", "behind", "1"]);
            runner.send(&["EXEC"]);
            // The worker runs the script, so no command could tell that it has begun.
            thread::sleep(Duration::from_millis(500));
            assert!(is_waiting(&mut runner));
            assert_eq!(restart(&mut server, &durable), "0");
        });
    }
}

/// A transaction in exclusive mode that the end of the process stops leaves its changes in memory. The commands that
/// wait at the gate must not see them, and nothing that they would do with them may be logged.
#[test]
fn no_client_sees_a_part_of_a_transaction_that_the_end_of_the_process_stops() {
    const ENDLESS: &str = "redis.call('SET', KEYS[1], 'part') while true do end";
    const TICKS: u64 = 5;
    const REQUESTS: [&[&str]; 3] = [&["GET", "key"], &["COPY", "key", "copied"], &["EXEC"]];
    with_workers(|arguments| {
        let options = ["--busy-reply-threshold", "600000", "--appendonly", "yes"];
        let options = [arguments, &options].concat();
        let mut server = Server::start(&options);
        let mut waiting: Vec<Client> = (0..9).map(|_| Client::connect(server.port)).collect();
        for client in waiting.iter_mut().skip(2).step_by(REQUESTS.len()) {
            for words in [&["MULTI"][..], &["KEYS", "*"], &["GET", "key"]] {
                client.call(words);
            }
        }
        let mut runner = Client::connect(server.port);
        for words in [&["MULTI"][..], &["FUNCTION", "FLUSH"], &["EVAL", ENDLESS, "1", "key"]] {
            runner.call(words);
        }
        let before = server.thread_ticks("weft-");
        runner.send(&["EXEC"]);
        wait_until("the script runs", || server.thread_ticks("weft-") >= before + TICKS);
        for (client, words) in waiting.iter_mut().zip(REQUESTS.into_iter().cycle()) {
            client.send(words);
        }
        // Their workers wait at the gate then, which nothing shows.
        thread::sleep(Duration::from_millis(100));
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait_for_exit(), Some(0));
        for client in &mut waiting {
            let mut replies = Vec::new();
            // A connection that is closed before its request was read is reset.
            let _ = client.0.read_to_end(&mut replies);
            assert_eq!(String::from_utf8_lossy(&replies), "");
        }
        server.start_again_with(&options);
        assert_eq!(Client::connect(server.port).call(&["DBSIZE"]), "0");
    });
}

/// A shutdown that waits for a replica ends the wait of its client itself.
#[test]
fn a_client_that_waits_for_a_shutdown_is_not_unblocked() {
    with_workers(|arguments| {
        let server = Server::start(&[arguments, &["--shutdown-timeout", "1000"]].concat());
        let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", server.port)]);
        Client::connect(replica.port).wait_for_info("master_link_status", "up");
        let mut admin = Client::connect(server.port);
        let mut ending = Client::connect(server.port);
        let id = ending.call(&["CLIENT", "ID"]);
        replica.signal(Signal::SIGSTOP);
        assert_eq!(admin.call(&["SET", "key", "value"]), "OK");
        ending.send(&["SHUTDOWN"]);
        admin.wait_for_info("blocked_clients", "1");
        assert_eq!(admin.call(&["CLIENT", "UNBLOCK", &id]), "0");
        assert_eq!(admin.call(&["CLIENT", "UNBLOCK", &id, "ERROR"]), "0");
        assert_eq!(admin.transact(&[&["CLIENT", "UNBLOCK", &id]]), "(0)");
        assert!(is_waiting(&mut ending));
        assert_eq!(admin.call(&["SHUTDOWN", "ABORT"]), "OK");
        assert_eq!(ending.answer(), "ERR Errors trying to SHUTDOWN. Check logs.");
        replica.signal(Signal::SIGCONT);
    });
}

/// A script that has written and never ends by itself.
const ENDLESS_SCRIPT: &str = "redis.call('SET', 'first', '1') redis.call('PUBLISH', 'begun', '1') while true do end";

/// The dump at the end waits for the script. That wait can be aborted, and a later request can forgo the dump.
#[test]
fn a_shutdown_that_waits_for_a_script_hears_of_later_requests() {
    with_workers(|arguments| {
        let options = ["--save", "3600 1", "--busy-reply-threshold", "600000"];
        let mut server = Server::start(&[arguments, &options].concat());
        let mut subscriber = Client::connect(server.port);
        subscriber.call(&["SUBSCRIBE", "begun"]);
        let mut runner = Client::connect(server.port);
        runner.send(&["EVAL", ENDLESS_SCRIPT, "0"]);
        assert_eq!(subscriber.answer(), "(message begun 1)");
        let mut admin = Client::connect(server.port);
        server.signal(Signal::SIGTERM);
        wait_until("the shutdown is aborted", || admin.call(&["SHUTDOWN", "ABORT"]) == "OK");
        // Writes are not paused any more.
        let mut writer = Client::connect(server.port);
        assert_eq!(writer.call(&["SET", "other", "value"]), "OK");
        server.signal(Signal::SIGTERM);
        // The end of the aborted shutdown may still refuse the first of these requests.
        let mut line = String::from("-ERR");
        while line.starts_with("-ERR") && admin.try_send(&["SHUTDOWN", "NOSAVE"]).is_ok() {
            line.clear();
            let _ = admin.0.read_line(&mut line);
        }
        assert_eq!(server.wait_for_exit(), Some(0));
    });
}
