//! Tests how the process ends while clients still wait for replies.

use std::io::{Read, Write};
use std::net::TcpStream;

use nix::sys::signal::Signal;

use super::{Server, TestDirectory, assert_in_order, exchange, wait_until};

/// Returns a client whose pending reply does not fit into the socket buffers.
fn client_of_a_large_reply(server: &Server, length: usize) -> TcpStream {
    let mut client = server.connect();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n");
    let request = [head.as_bytes(), &vec![b'x'; length], b"\r\n"].concat();
    exchange(&mut client, &request, b"+OK\r\n");
    client.write_all(b"GET k\r\n").expect("sends");
    let head = format!("${length}\r\n");
    exchange(&mut client, b"", head.as_bytes());
    client
}

/// Ends a server while a client reads a large reply. Returns `true` if the client got all of it.
fn is_sent_before_the_end() -> bool {
    const LENGTH: usize = 16 << 20;
    let place = TestDirectory::new();
    let server = place.start(&[]);
    let mut client = client_of_a_large_reply(&server, LENGTH);
    server.signal(Signal::SIGTERM);
    wait_until("the shutdown", || {
        place.read("log").contains("User requested shutdown...")
    });
    let mut rest = Vec::new();
    let is_read_to_the_end = client.read_to_end(&mut rest).is_ok();
    assert_eq!(server.wait().code(), Some(0));
    is_read_to_the_end && rest.len() == LENGTH + 2
}

#[test]
fn pending_replies_arrive_before_the_process_ends() {
    // The server waits for half a second, in which a busy machine may not let the client read everything.
    let is_sent = (0..20).any(|_| is_sent_before_the_end());
    assert!(is_sent, "the pending reply is always cut off");
}

/// Returns `true` if a second SIGINT arrived during the shutdown caused by the first one, and ended the process.
fn is_ended_by_second_sigint(place: &TestDirectory) -> bool {
    let server = place.start(&[]);
    // The client does not read its reply, so the shutdown takes a while.
    let _client = client_of_a_large_reply(&server, 64 << 20);
    server.signal(Signal::SIGINT);
    wait_until("the shutdown", || {
        place.read("log").contains("User requested shutdown...")
    });
    server.signal(Signal::SIGINT);
    server.wait().code() == Some(1)
}

#[test]
fn a_second_sigint_ends_the_process_at_once() {
    // On a busy machine the shutdown may end before the second signal is sent.
    for _ in 0..20 {
        let place = TestDirectory::new();
        if is_ended_by_second_sigint(&place) {
            let log = place.read("log");
            assert_in_order(
                &log,
                &["Received SIGINT scheduling shutdown...", "You insist... exiting now."],
            );
            assert!(!log.contains("bye bye"), "{log}");
            return;
        }
    }
    panic!("the second SIGINT does nothing");
}

#[test]
fn a_client_that_does_not_read_cannot_delay_the_shutdown() {
    const LENGTH: usize = 64 << 20;
    for options in [&[][..], &["--shutdown-on-sigterm", "nosave now"]] {
        let place = TestDirectory::new();
        let server = place.start(options);
        let mut client = client_of_a_large_reply(&server, LENGTH);
        server.stop();
        assert!(place.read("log").contains("bye bye..."));
        let mut rest = Vec::new();
        // Bytes that the kernel had accepted arrive, perhaps followed by an error.
        let _ = client.read_to_end(&mut rest);
        assert!(rest.len() < LENGTH);
    }
}
