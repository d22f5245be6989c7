//! Tests the limits of the memory that one client can make the server use.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};
use crate::harness::wait_until;

/// Writes `piece` repeatedly without reading, until the server closes the connection. Returns the number of bytes that
/// the server accepted.
fn write_until_closed(port: u16, piece: &[u8]) -> usize {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .expect("sets the timeout");
    let (start, mut taken) = (Instant::now(), 0);
    loop {
        match stream.write(piece) {
            Ok(count) => taken += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return taken,
        }
        assert!(taken < 64 << 20, "still open after {taken} bytes");
        assert!(start.elapsed() < PATIENCE, "still open after {taken} bytes");
    }
}

/// The kernel's buffers take some megabytes before the server has unread output of the client.
#[test]
fn an_unauthenticated_client_cannot_accumulate_output() {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
        let garbage = "garbage\r\n".repeat(1000);
        write_until_closed(server.port, garbage.as_bytes());
        let info = admin.call(&["INFO", "stats"]);
        let line = info
            .lines()
            .find(|line| line.starts_with("client_output_buffer_limit_disconnections"));
        assert_eq!(line, Some("client_output_buffer_limit_disconnections:1"));
        // A client that has authenticated once counts as a user, also after RESET.
        let mut user = Client::connect(server.port);
        assert_eq!(user.call(&["AUTH", "secret"]), "OK");
        let value = "x".repeat(8 << 20);
        assert_eq!(user.call(&["SET", "large", &value]), "OK");
        user.send(&["GET", "large"]);
        user.send(&["RESET"]);
        user.send(&["PING"]);
        assert_eq!(user.answer().len(), value.len());
        assert_eq!(user.answer(), "RESET");
        assert_eq!(user.answer(), "NOAUTH Authentication required.");
    }
}

/// Otherwise only an output that the kernel's buffers do not take counts, which takes megabytes.
#[test]
fn every_output_counts_if_reply_lists_are_enforced() {
    let server = Server::start(&["--enable-debug-command", "yes"]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
    let denied = "NOAUTH Authentication required.";
    let (mut stranger, mut user) = (Client::connect(server.port), Client::connect(server.port));
    assert_eq!(stranger.call(&["PING"]), denied);
    assert_eq!(user.call(&["AUTH", "secret"]), "OK");
    assert_eq!(admin.call(&["DEBUG", "CLIENT-ENFORCE-REPLY-LIST", "1"]), "OK");
    stranger.send(&["PING"]);
    let mut received = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stranger.0, &mut received);
    assert_eq!(received, b"");
    // A client that has authenticated once counts as a user, also after RESET.
    assert_eq!(user.call(&["RESET"]), "RESET");
    assert_eq!(user.call(&["PING"]), denied);
    assert_eq!(admin.call(&["DEBUG", "CLIENT-ENFORCE-REPLY-LIST", "0"]), "OK");
    assert_eq!(Client::connect(server.port).call(&["PING"]), denied);
    let info = admin.call(&["INFO", "stats"]);
    assert!(info.contains("client_output_buffer_limit_disconnections:1\r\n"));
}

#[test]
fn queued_commands_count_as_unexecuted_input() {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CONFIG", "SET", "client-query-buffer-limit", "1mb"]), "OK");
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["MULTI"]), "OK");
        let value = "x".repeat(100_000);
        for _ in 0..9 {
            assert_eq!(client.call(&["SET", "key", &value]), "QUEUED");
        }
        client.send(&["SET", "key", &value]);
        client.send(&["SET", "key", &value]);
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut client.0, &mut rest);
        assert_eq!(admin.call(&["EXISTS", "key"]), "0");
        let info = admin.call(&["INFO", "stats"]);
        assert!(
            info.contains("client_query_buffer_limit_disconnections:1\r\n"),
            "{info}"
        );
    }
}

/// Returns the resident memory of the server process, in MiB.
fn resident_mib(admin: &mut Client) -> usize {
    let info = admin.call(&["INFO", "server"]);
    let process = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .expect("a line");
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("reads");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 1024
}

/// Without the limit such a reply would take gigabytes.
#[test]
fn a_reply_stops_growing_at_the_limit_of_its_client() {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 1000000 0 0"];
        assert_eq!(admin.call(&limit), "OK");
        admin.call(&["HSET", "hash", "a", "1", "b", "2"]);
        admin.call(&["HSETEX", "expiring", "EX", "1000", "FIELDS", "2", "a", "1", "b", "2"]);
        admin.call(&["SADD", "set", "a", "b"]);
        admin.call(&["ZADD", "sorted", "1", "a", "2", "b"]);
        let shared = "local t = {1} for i = 1, 32 do t = {t, t} end return t";
        let requests: [&[&[&str]]; 7] = [
            &[&["HRANDFIELD", "hash", "-999999999"]],
            &[&["HRANDFIELD", "hash", "-999999999", "WITHVALUES"]],
            &[&["HRANDFIELD", "expiring", "-999999999"]],
            &[&["SRANDMEMBER", "set", "-999999999"]],
            &[&["ZRANDMEMBER", "sorted", "-999999999", "WITHSCORES"]],
            &[&["EVAL", shared, "0"]],
            &[&["MULTI"], &["SRANDMEMBER", "set", "-999999999"], &["EXEC"]],
        ];
        for (index, words) in requests.iter().enumerate() {
            let mut client = Client::connect(server.port);
            let start = Instant::now();
            for words in *words {
                client.send(words);
            }
            let mut received = Vec::new();
            let _ = std::io::Read::read_to_end(&mut client.0, &mut received);
            assert!(received.len() < 100, "{words:?}: a part of the reply");
            assert!(start.elapsed() < PATIENCE, "{words:?}");
            let resident = resident_mib(&mut admin);
            assert!(resident < 200, "{words:?}: {resident} MiB");
            let line = format!("client_output_buffer_limit_disconnections:{}\r\n", index + 1);
            let info = admin.call(&["INFO", "stats"]);
            assert!(info.contains(&line), "{words:?}");
        }
        assert_eq!(admin.call(&["SRANDMEMBER", "set", "-3"]).split(' ').count(), 3);
    }
}

/// With `min-string-size-avoid-copy-reply 0`, or above its size, a value is copied, and the copy counts as output.
#[test]
fn a_value_that_is_copied_counts_as_output() {
    let server = Server::start(&[]);
    let mut admin = Client::connect(server.port);
    let value = "v".repeat(100_000);
    assert_eq!(admin.call(&["SET", "key", &value]), "OK");
    let limit = |limit| ["CONFIG", "SET", "client-output-buffer-limit", limit];
    let share_from = |bytes| ["CONFIG", "SET", "min-string-size-avoid-copy-reply", bytes];
    assert_eq!(admin.call(&limit("normal 10 0 0")), "OK");
    for (index, bytes) in ["0", "100001"].into_iter().enumerate() {
        assert_eq!(admin.call(&share_from(bytes)), "OK");
        for words in [&["GET", "key"][..], &["GETRANGE", "key", "0", "-1"]] {
            let mut client = Client::connect(server.port);
            client.send(words);
            let mut received = Vec::new();
            let _ = std::io::Read::read_to_end(&mut client.0, &mut received);
            assert!(received.is_empty(), "{words:?} with {bytes}: {} bytes", received.len());
        }
        let line = format!("client_output_buffer_limit_disconnections:{}\r\n", 2 * index + 2);
        assert!(admin.call(&["INFO", "stats"]).contains(&line), "{line}");
    }
    assert_eq!(admin.call(&limit("normal 0 0 0")), "OK");
    for bytes in ["0", "1", "100000"] {
        assert_eq!(admin.call(&share_from(bytes)), "OK");
        assert_eq!(admin.call(&["MGET", "key", "key"]), format!("({value} {value})"));
        assert_eq!(admin.call(&["GETRANGE", "key", "1", "-1"]), value[1..]);
    }
}

/// The worker rewrites inline requests with quotes, whatever lies between them.
#[test]
fn a_long_pipeline_of_quoted_inline_requests_is_answered_in_order() {
    const REQUESTS: usize = 60_000;
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let mut requests = String::new();
    for number in 0..REQUESTS {
        let word = format!("{number:06}");
        requests += &match number % 7 {
            0 => format!("*2\r\n$4\r\nECHO\r\n$6\r\n{word}\r\n"),
            1 => format!("ECHO {word}\r\n"),
            2 => format!("ECHO '{word}'\n"),
            _ => format!("ECHO \"{word}\"\r\n"),
        };
    }
    let mut sender = client.0.get_ref().try_clone().expect("a handle");
    let sent = thread::spawn(move || sender.write_all(requests.as_bytes()).expect("sends"));
    for number in 0..REQUESTS {
        assert_eq!(client.answer(), format!("{number:06}"));
    }
    sent.join().expect("sends all");
}

/// The last receive of the request also takes the first byte of the next one.
#[test]
fn the_start_of_a_request_does_not_keep_the_buffer_of_a_long_one() {
    const ARGUMENT_BYTES: usize = 20_000_000;
    let server = Server::start(&[]);
    let (mut client, mut admin) = (Client::connect(server.port), Client::connect(server.port));
    let id = client.call(&["CLIENT", "ID"]);
    let mut request = format!("*2\r\n$4\r\nECHO\r\n${ARGUMENT_BYTES}\r\n").into_bytes();
    request.resize(request.len() + ARGUMENT_BYTES, b'x');
    request.extend_from_slice(b"\r\n*");
    client.0.get_mut().write_all(&request).expect("sends");
    assert_eq!(client.answer().len(), ARGUMENT_BYTES);
    wait_until("the buffer is small", || {
        let line = admin.call(&["CLIENT", "LIST", "ID", &id]);
        let free = line
            .split_once("qbuf-free=")
            .and_then(|(_, rest)| rest.split(' ').next());
        free.is_some_and(|bytes| bytes.parse::<usize>().is_ok_and(|bytes| bytes < ARGUMENT_BYTES / 4))
    });
    // The rest of the next request arrives in the smaller buffer.
    client.0.get_mut().write_all(b"1\r\n$4\r\nPING\r\n").expect("sends");
    assert_eq!(client.answer(), "PONG");
}
