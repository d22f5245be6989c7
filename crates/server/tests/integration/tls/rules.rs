//! Tests limits, the end of connections, and peers that violate the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use super::{ClientTlsOptions, PATIENCE, Secure, random_bytes, start_tls_server, wait_until};

fn raw(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    socket
}

/// Reads until the other side ends the connection in any way.
fn read_until_closed(mut socket: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    if let Err(error) = socket.read_to_end(&mut all) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it is not closed");
    }
    all
}

#[test]
fn clients_without_tls_are_disconnected() {
    let secured = start_tls_server(&[]);
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..60 {
        let mut socket = raw(secured.port);
        let bytes = match round % 3 {
            0 => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            1 => random_bytes(random.usize(1..40_000)),
            _ => [&[22u8, 3, 1, 63, 0][..], &random_bytes(16_128)].concat(),
        };
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let told = read_until_closed(socket);
        assert!(told.len() < 20 && !told.starts_with(b"-"), "{told:?}");
    }
    // Some clients stop in the middle of the handshake.
    let stuck: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut socket = raw(secured.port);
            socket.write_all(&[22, 3, 1, 1, 0, 1]).expect("sends");
            socket
        })
        .collect();
    assert_eq!(secured.connect().call(&["PING"]), "PONG");
    let mut plain = secured.plain();
    wait_until("they are clients", || {
        plain.call(&["INFO", "clients"]).contains("connected_clients:21")
    });
    drop(stuck);
    wait_until("they are gone", || {
        plain.call(&["INFO", "clients"]).contains("connected_clients:1\r")
    });
}

#[test]
fn a_client_silent_in_the_handshake_is_idle() {
    let secured = start_tls_server(&["--timeout", "1"]);
    let silent = raw(secured.port);
    let mut slow = raw(secured.port);
    slow.write_all(&[22, 3, 1, 1, 0, 1]).expect("sends");
    assert_eq!(read_until_closed(silent), b"");
    assert_eq!(read_until_closed(slow), b"");
}

#[test]
fn requests_sent_before_close_notify_are_executed() {
    let secured = start_tls_server(&[]);
    let mut stream = secured.dial(ClientTlsOptions::default());
    stream.write_all(b"SET said last\r\n").expect("sends");
    stream.conn.send_close_notify();
    stream.flush().expect("sends");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the server says farewell too");
    assert_eq!(rest, b"+OK\r\n");
    assert_eq!(secured.plain().call(&["GET", "said"]), "last");
    // The same with the server closing first.
    let mut stream = secured.dial(ClientTlsOptions::default());
    stream.write_all(b"QUIT\r\n").expect("sends");
    rest.clear();
    stream.read_to_end(&mut rest).expect("the server says farewell");
    assert_eq!(rest, b"+OK\r\n");
}

#[test]
fn traffic_keys_can_be_updated_during_a_session() {
    let secured = start_tls_server(&[]);
    let mut stream = secured.dial(ClientTlsOptions::default());
    for _ in 0..30 {
        stream.write_all(b"PING\r\n").expect("sends");
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).expect("receives");
        assert_eq!(&answer, b"+PONG\r\n");
        stream.conn.refresh_traffic_keys().expect("asks for new keys");
    }
}

#[test]
fn input_and_output_limits_hold_over_tls() {
    let secured = start_tls_server(&["--client-query-buffer-limit", "1mb"]);
    let mut plain = secured.plain();
    let mut stream = secured.dial(ClientTlsOptions::default());
    stream.write_all(b"*2\r\n$4\r\nECHO\r\n$5000000\r\n").expect("sends");
    let _ = stream.write_all(&vec![b'x'; 4_000_000]);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"", "the argument was too much");
    let stats = plain.call(&["INFO", "stats"]);
    assert!(stats.contains("client_query_buffer_limit_disconnections:1"), "{stats}");
    // A client that does not read its replies.
    let set = ["CONFIG", "SET", "client-output-buffer-limit", "normal 40000000 0 0"];
    assert_eq!(plain.call(&set), "OK");
    let value = "v".repeat(900_000);
    assert_eq!(plain.call(&["SET", "value", &value]), "OK");
    let mut stream = secured.dial(ClientTlsOptions::default());
    for _ in 0..100 {
        // The connection may be closed by then.
        if stream.write_all(b"GET value\r\n").is_err() {
            break;
        }
    }
    wait_until("it is closed", || {
        let stats = plain.call(&["INFO", "stats"]);
        stats.contains("client_output_buffer_limit_disconnections:1")
    });
}

#[test]
fn a_slow_reader_gets_everything_in_order() {
    let secured = start_tls_server(&[]);
    let value = String::from_utf8_lossy(&random_bytes(3_000_000)).into_owned();
    let mut plain = secured.plain();
    assert_eq!(plain.call(&["SET", "large", &value]), "OK");
    let mut client = secured.connect();
    for number in 0..20 {
        client.send(&["GET", "large"]);
        client.send(&["ECHO".to_owned(), number.to_string()]);
    }
    wait_until("what waits is counted", || {
        let shown = plain.call(&["CLIENT", "LIST"]);
        let own = format!("laddr=127.0.0.1:{}", secured.port);
        shown
            .lines()
            .any(|line| line.contains(&own) && !line.contains("omem=0"))
    });
    // Meanwhile all other clients are served.
    assert_eq!(secured.connect().call(&["PING"]), "PONG");
    for number in 0..20 {
        assert!(client.answer() == value, "the bytes are others");
        assert_eq!(client.answer(), number.to_string());
    }
}

#[test]
fn many_concurrent_handshakes_do_not_delay_other_clients() {
    let secured = start_tls_server(&[]);
    let config = secured.authority.client(ClientTlsOptions::default());
    let (port, threads) = (secured.port, 8);
    let dialling: Vec<_> = (0..threads)
        .map(|_| {
            let config = config.clone();
            thread::spawn(move || (0..20).all(|_| super::ping(super::dial(port, config.clone())).is_ok()))
        })
        .collect();
    let mut plain = secured.plain();
    for _ in 0..200 {
        assert_eq!(plain.call(&["PING"]), "PONG");
    }
    for thread in dialling {
        assert!(thread.join().expect("no panic"));
    }
}

/// CVE-2026-56684: a client is killed by others while what it sent is decrypted and waits to be executed.
#[test]
fn cve_2026_56684_killed_clients_of_tls_are_not_used_again() {
    let secured = start_tls_server(&["--io-threads", "4", "--io-threads-always-active", "yes"]);
    let mut witness = secured.connect();
    let requests = b"PING\r\n".repeat(3000);
    for _ in 0..15 {
        let mut senders: Vec<Secure> = (0..8).map(|_| secured.connect()).collect();
        let ids: Vec<String> = senders
            .iter_mut()
            .map(|client| client.call(&["CLIENT", "ID"]))
            .collect();
        std::thread::scope(|scope| {
            for (index, mut sender) in senders.into_iter().enumerate() {
                let (requests, ids) = (&requests, &ids);
                scope.spawn(move || {
                    // Each kills the next one in the middle of its own requests, and all of one record.
                    let kill = format!("CLIENT KILL ID {}\r\n", ids[(index + 1) % ids.len()]);
                    let own = format!("CLIENT KILL ID {} SKIPME no\r\n", ids[index]);
                    let all = [&requests[..], kill.as_bytes(), requests, own.as_bytes(), requests].concat();
                    let _ = sender.0.get_mut().write_all(&all);
                    let _ = sender.0.get_mut().flush();
                    let _ = sender.0.read_to_end(&mut Vec::new());
                });
            }
            for _ in 0..10 {
                assert_eq!(witness.call(&["PING"]), "PONG");
            }
        });
    }
    wait_until("only the witness is left", || witness.info("connected_clients") == "1");
}
