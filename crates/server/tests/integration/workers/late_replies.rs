//! Tests replies that come later than the turn of their command: they wait for the log, for a slot, or for a socket,
//! and the connection ends meanwhile.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use super::{Client, PATIENCE, Server};
use crate::harness::wait_until;

/// Starts a server whose workers are all active, with an append-only file.
fn start(threads: &str, arguments: &[&str]) -> Server {
    let own = [
        "--io-threads",
        threads,
        "--io-threads-always-active",
        "yes",
        "--appendonly",
        "yes",
        "--enable-debug-command",
        "yes",
    ];
    Server::start(&[&own, arguments].concat())
}

/// The log thread sleeps while nothing is written. An element that is moved in a later turn, because a script was
/// reading the destination, must wake it.
#[test]
fn an_element_moved_after_a_script_is_logged_at_once() {
    for threads in ["2", "8"] {
        let server = start(threads, &["--appendfsync", "always", "--busy-reply-threshold", "0"]);
        let mut mover = Client::connect(server.port);
        mover.send(&["BLMOVE", "from", "to", "LEFT", "LEFT", "0"]);
        Client::connect(server.port).wait_for_info("blocked_clients", "1");
        let script = "redis.call('EXISTS', KEYS[1]); for i = 1, 100000000 do end; return 1";
        let mut reader = Client::connect(server.port);
        server.run_script(&mut reader, &["EVAL_RO", script, "1", "to"]);
        let mut writer = Client::connect(server.port);
        writer.send(&["RPUSH", "from", "element"]);
        assert_eq!(mover.answer(), "element");
        assert_eq!(writer.answer(), "1");
        assert_eq!(reader.answer(), "1");
    }
}

/// Until the first base is begun, nothing is logged to a file, so no reply waits for it.
#[test]
fn replies_do_not_wait_for_a_file_that_has_yet_to_be_begun() {
    let primary = Server::start(&["--enable-debug-command", "yes", "--appendfsync", "no"]);
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
    Client::connect(replica.port).wait_for_info("master_link_status", "up");
    let mut client = Client::connect(primary.port);
    assert_eq!(client.call(&["DEBUG", "POPULATE", "1000"]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]), "OK");
    // The dump for the replica may end a moment after the replica has it.
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "appendfsync", "always"]), "OK");
    assert_eq!(client.call(&["SET", "key", "value"]), "OK");
    assert_eq!(client.call(&["GET", "key"]), "value");
    assert_eq!(
        client.info("rdb_bgsave_in_progress"),
        "1",
        "the file waits for the end of the dump"
    );
    assert_eq!(client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]), "OK");
    client.wait_for_info("aof_rewrite_scheduled", "0");
    client.wait_for_info("aof_rewrite_in_progress", "0");
    assert_eq!(client.call(&["SET", "key", "other"]), "OK");
    assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "(1 0)");
}

/// Returns how often the thread of this name has given up the processor by itself (`proc(5)`).
fn voluntary_switches(pid: &str, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("lists the threads");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.lines().next().is_some_and(|line| line.ends_with(name)))
        .filter_map(|status| {
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
}

/// While a client waits for the disks of replicas, the thread that serves them looks every few milliseconds. It stops
/// when the client has gone, also if it was gone before the wait began.
#[test]
fn a_client_that_half_closes_before_waitaof_leaves_nothing_behind() {
    let server = start("2", &[]);
    let mut client = Client::connect(server.port);
    let pid = client.info("process_id");
    let requests = "PING\r\n".repeat(300) + "WAITAOF 0 1000 100\r\n";
    for _ in 0..20 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
        stream.write_all(requests.as_bytes()).expect("sends");
        stream.shutdown(Shutdown::Write).expect("ends its side");
        let mut replies = String::new();
        stream.read_to_string(&mut replies).expect("reads to the end");
        assert_eq!(replies.matches("PONG").count(), 300, "replies of the requests in front");
    }
    client.wait_for_info("blocked_clients", "0");
    let before = voluntary_switches(&pid, "weft-supply");
    thread::sleep(Duration::from_secs(1));
    let switches = voluntary_switches(&pid, "weft-supply") - before;
    assert!(before > 0, "the thread exists");
    assert!(
        switches < 60,
        "{switches} times in a second, as if a client were waiting"
    );
}

/// A reply that waits for the log is sent although earlier output of a client that ends has just been accepted.
#[test]
fn a_withheld_reply_follows_large_output_of_a_client_that_quits() {
    for threads in ["2", "8"] {
        let server = start(threads, &["--appendfsync", "everysec"]);
        let mut admin = Client::connect(server.port);
        let size = 48 << 20;
        assert_eq!(
            admin.call(&["SETRANGE", "large", &(size - 1).to_string(), "x"]),
            size.to_string()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
        stream.write_all(b"GET large\r\n").expect("sends");
        wait_until("the output is in flight", || {
            admin
                .call(&["CLIENT", "LIST"])
                .lines()
                .any(|line| line.contains("events=rw"))
        });
        // Every write to the file takes two seconds.
        assert_eq!(admin.call(&["DEBUG", "AOF-FLUSH-SLEEP", "2000000"]), "OK");
        stream.write_all(b"SET key value\r\nQUIT\r\n").expect("sends");
        thread::sleep(Duration::from_millis(200));
        let mut replies = Vec::new();
        stream.read_to_end(&mut replies).expect("reads to the end");
        assert_eq!(admin.call(&["DEBUG", "AOF-FLUSH-SLEEP", "0"]), "OK");
        assert!(replies.len() > size, "the value");
        assert!(replies.ends_with(b"\r\n+OK\r\n+OK\r\n"), "the replies to SET and QUIT");
    }
}

/// Messages for a client whose script runs are kept until the script's reply. The output limit applies to them.
#[test]
fn messages_behind_a_running_script_count_for_the_output_limit() {
    let limit = ["--client-output-buffer-limit", "pubsub 1mb 0 0"];
    for threads in ["2", "8"] {
        let server = start(threads, &[&limit[..], &["--busy-reply-threshold", "0"]].concat());
        let mut admin = Client::connect(server.port);
        let mut subscriber = Client::connect(server.port);
        subscriber.send(&["HELLO", "3"]);
        subscriber.send(&["ECHO", "ready"]);
        while subscriber.answer() != "ready" {}
        subscriber.send(&["SUBSCRIBE", "channel"]);
        // The length of the confirmation, and its elements.
        assert_eq!(
            [(); 4].map(|()| subscriber.answer()),
            ["3", "subscribe", "channel", "1"]
        );
        server.run_script(&mut subscriber, &["EVAL", "while true do end", "0"]);
        let message = "m".repeat(100 << 10);
        for _ in 0..40 {
            admin.call(&["PUBLISH", "channel", &message]);
        }
        admin.wait_for_info("client_output_buffer_limit_disconnections", "1");
        assert_eq!(admin.call(&["PUBSUB", "NUMSUB", "channel"]), "(channel 0)");
        assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
    }
}

/// A client that reads all the time, but slowly, is not idle. One that reads nothing is.
#[test]
fn the_timeout_of_idle_clients_spares_those_that_read_slowly() {
    const BYTES: usize = 64 << 20;
    for threads in ["1", "8"] {
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--timeout",
            "2",
        ]);
        let mut admin = Client::connect(server.port);
        assert_eq!(
            admin.call(&["SETRANGE", "large", &(BYTES - 1).to_string(), "x"]),
            BYTES.to_string()
        );
        let request = || {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
            stream.set_read_timeout(Some(PATIENCE)).expect("is set");
            stream.write_all(b"GET large\r\n").expect("sends");
            stream
        };
        let (mut slow, mut stuck) = (request(), request());
        // Requests that the server does not get to are no sign of life.
        stuck.write_all(&b"GET large\r\n".repeat(50)).expect("sends");
        let mut buffer = vec![0; 1 << 20];
        let mut received = 0;
        while received < BYTES {
            // Some six seconds in all.
            if received < BYTES * 3 / 4 {
                thread::sleep(Duration::from_millis(20));
            }
            let length = buffer.len() / 6;
            let count = slow.read(&mut buffer[..length]).expect("receives");
            assert!(count > 0, "{threads} workers: closed after {received} bytes");
            received += count;
        }
        let mut rest = Vec::new();
        // The end may be a reset, since there is input that was never read.
        let _ = stuck.read_to_end(&mut rest);
        assert!(
            rest.len() < BYTES,
            "{threads} workers: the client that did not read got everything"
        );
    }
}
