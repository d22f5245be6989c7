//! What one client may make the server hold.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// Writes `piece` again and again without reading anything, until the server closes the connection; returns how many bytes
/// it took.
fn write_until_closed(port: u16, piece: &[u8]) -> usize {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .expect("sets the timeout");
    let (start, mut taken) = (Instant::now(), 0);
    loop {
        match stream.write(piece) {
            Ok(count) => taken += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                assert!(
                    start.elapsed() < Duration::from_secs(5),
                    "still open after {taken} bytes"
                );
            }
            Err(_) => return taken,
        }
        assert!(taken < 64 << 20, "still open after {taken} bytes");
        assert!(start.elapsed() < PATIENCE, "still open after {taken} bytes");
    }
}

/// The kernel's buffers take some megabytes before the server has any output that the client does not read.
#[test]
fn a_client_that_has_not_logged_in_cannot_pile_up_output() {
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
        // A client that has logged in once is one of the users, also after RESET.
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

#[test]
fn what_waits_for_exec_counts_as_unexecuted_input() {
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
