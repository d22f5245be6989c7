//! Tests single features of Valkey 8.1, 9.0 and 9.1 that belong to no other module. `docs/compat.md` lists all of them,
//! each with its test.

use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

#[test]
fn info_names_the_pause_and_the_time_left() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let fields = ["paused_reason", "paused_actions", "paused_timeout_milliseconds"];
    let none = ["none", "none", "0"];
    assert_eq!(fields.map(|field| client.info(field)), none);
    assert_eq!(client.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "OK");
    let [reason, actions, left_ms] = fields.map(|field| client.info(field));
    assert_eq!([reason, actions], ["client_pause", "write"]);
    let left_ms: u64 = left_ms.parse().expect("a number");
    assert!((1..=100_000).contains(&left_ms), "{left_ms}");
    assert_eq!(client.call(&["CLIENT", "UNPAUSE"]), "OK");
    assert_eq!(fields.map(|field| client.info(field)), none);
}

/// Returns the threads whose active time INFO shows, and if each has been active.
fn active_threads(client: &mut Client) -> Vec<(String, bool)> {
    let text = client.call(&["INFO", "cpu"]);
    let times = text
        .lines()
        .filter_map(|line| line.strip_prefix("used_active_time_")?.split_once(':'));
    times
        .map(|(thread, seconds)| {
            let seconds: f64 = seconds.trim().parse().expect("a number");
            (thread.to_owned(), seconds > 0.0)
        })
        .collect()
}

#[test]
fn info_has_the_active_time_of_each_worker() {
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "yes"]);
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients {
        assert_eq!(client.call(&["PING"]), "PONG");
    }
    // As many threads are listed as may be active, and their times are not forgotten.
    for number in ["4", "1", "2", "4"] {
        assert_eq!(clients[0].call(&["CONFIG", "SET", "io-threads", number]), "OK");
        let all = ["main_thread", "io_thread_1", "io_thread_2", "io_thread_3"];
        let count: usize = number.parse().expect("a number");
        let expected: Vec<(String, bool)> = all[..count].iter().map(|name| ((*name).to_owned(), true)).collect();
        assert_eq!(active_threads(&mut clients[0]), expected);
    }
}

/// The periodic tasks of an idle server are cycles, too.
#[test]
fn info_counts_the_cycles_of_an_idle_server() {
    const PER_READING: u64 = 5;
    let server = Server::start(&["--hz", "100"]);
    let mut client = Client::connect(server.port);
    let mut number = |field: &str| -> u64 { client.info(field).parse().expect("a number") };
    let before = number("eventloop_cycles");
    let mut readings = 0;
    wait_until("there are more cycles than requests", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        readings += 1;
        number("eventloop_cycles") > before + PER_READING * readings
    });
    wait_until("rates are seen", || {
        number("instantaneous_eventloop_cycles_per_sec") > 0 && number("instantaneous_eventloop_duration_usec") > 0
    });
}

/// A kernel without Multipath TCP makes plain connections of them.
#[test]
fn servers_listen_and_connect_with_multipath_tcp_or_without_it() {
    let primary = Server::start(&["--mptcp", "yes", "--repl-diskless-sync-delay", "0"]);
    let mut client = Client::connect(primary.port);
    assert_eq!(client.call(&["SET", "key", "value"]), "OK");
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = Server::start(&["--repl-mptcp", "yes", "--replicaof", &of]);
    let mut reader = Client::connect(replica.port);
    wait_until("the replica has the key", || reader.call(&["GET", "key"]) == "value");
}

#[test]
fn keys_that_get_a_time_in_the_past_count_as_expired() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let commands: [&[&str]; 4] = [
        &["EXPIRE", "key", "-1"],
        &["PEXPIREAT", "key", "1"],
        &["GETEX", "key", "PXAT", "1"],
        &["SET", "key", "other", "PXAT", "1"],
    ];
    for (before, command) in commands.iter().enumerate() {
        assert_eq!(client.call(&["SET", "key", "value"]), "OK");
        client.call(command);
        assert_eq!(client.call(&["EXISTS", "key"]), "0", "{command:?}");
        assert_eq!(client.info("expired_keys"), (before + 1).to_string(), "{command:?}");
    }
}

#[test]
fn fields_that_expire_are_counted() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    for (field, time_ms) in [("a", "1"), ("b", "2"), ("c", "100000")] {
        let set = ["HSETEX", "hash", "PX", time_ms, "FIELDS", "1", field, "value"];
        assert_eq!(client.call(&set), "1");
    }
    client.wait_for_info("expired_fields", "2");
    assert_eq!(client.call(&["HKEYS", "hash"]), "(c)");
    assert_eq!(client.info("expired_keys"), "0");
}
