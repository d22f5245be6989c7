//! Clients that are slow, silent or wrong: each gets its answer or is closed in time, and the next scrape works.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    Client, Scrape, connect, exchange, process_id, read_response, request, scrape, socket_count, start, wait_until,
};
use crate::harness::server::Server;

const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// The time in which every connection must be closed: 5 s for the request, 5 s for the response, 1 s for the end, and
/// as much again for a busy machine.
const CLOSED_WITHIN: Duration = Duration::from_secs(22);

/// Waits until the server has closed the connections of the test. A client must not have closed them before.
fn assert_closed_in_time(server: &Server, port: u16, sockets_before: usize) {
    // Connections are accepted in their order, so those of the test have been accepted then.
    assert_scrape_works(port);
    let process = process_id(server);
    let start = Instant::now();
    wait_until("the connections are closed", || {
        socket_count(&process) <= sockets_before
    });
    assert!(start.elapsed() < CLOSED_WITHIN, "{:?}", start.elapsed());
}

/// Scrapes, and checks that this takes no longer than a busy machine needs.
fn assert_scrape_works(port: u16) -> Scrape {
    let start = Instant::now();
    let scrape = scrape(port);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    scrape
}

fn is_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1024]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn paths_methods_and_wrong_requests_have_their_statuses() {
    let (_server, port) = start(&[]);
    for (method, target, status) in [
        ("GET", "/metrics", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("GET", "/health", 200),
        ("GET", "/metrics?collect[]=cpu", 200),
        ("GET", "/nothing", 404),
        ("HEAD", "/nothing", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/nothing", 405),
        ("GET ", "/metrics", 400),
        ("G\u{1}T", "/metrics", 400),
    ] {
        let response = request(port, method, target);
        assert_eq!(response.status, status, "{method} {target}");
        assert!(response.head.contains("\r\nConnection: close"), "{}", response.head);
        assert_eq!(response.body.is_empty(), method == "HEAD", "{method} {target}");
    }
    assert!(request(port, "GET", "/").body.contains("href=\"/metrics\""));
    for wrong in [
        &b"PING\r\n"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ] {
        assert_eq!(exchange(port, wrong).status, 400);
    }
}

#[test]
fn header_lines_that_are_too_long_are_refused() {
    let (_server, port) = start(&[]);
    let line = format!(
        "GET /metrics HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n",
        "x".repeat(10_000)
    );
    assert_eq!(exchange(port, line.as_bytes()).status, 400);
    // The client sends much more than the server reads, and still gets the response.
    let lines = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(5_000));
    assert_eq!(exchange(port, lines.as_bytes()).status, 400);
    assert_scrape_works(port);
}

#[test]
fn a_half_closed_connection_gets_its_response_and_pipelined_requests_get_one() {
    let (_server, port) = start(&[]);
    let mut half_closed = connect(port);
    half_closed.write_all(METRICS).expect("sends");
    half_closed.shutdown(Shutdown::Write).expect("closes");
    Scrape::parse(&read_response(half_closed).body);

    let pipelined = exchange(port, &METRICS.repeat(50));
    Scrape::parse(&pipelined.body);

    let mut in_pieces = connect(port);
    for byte in METRICS {
        in_pieces.write_all(&[*byte]).expect("sends");
    }
    Scrape::parse(&read_response(in_pieces).body);

    // Without a request there is nothing to answer.
    let mut silent = connect(port);
    silent.shutdown(Shutdown::Write).expect("closes");
    assert!(is_ended(&mut silent));
}

#[test]
fn clients_that_send_a_byte_now_and_then_are_closed() {
    let (server, port) = start(&[]);
    let process = process_id(&server);
    let sockets = socket_count(&process);
    let mut slow: Vec<TcpStream> = (0..20).map(|_| connect(port)).collect();
    for stream in &mut slow {
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: ")
            .expect("sends");
    }
    let start = Instant::now();
    assert_scrape_works(port);
    while socket_count(&process) > sockets {
        for stream in &mut slow {
            // The server may have closed it.
            let _ = stream.write_all(b"x");
        }
        assert_scrape_works(port);
        assert!(start.elapsed() < CLOSED_WITHIN, "{:?}", start.elapsed());
        thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
    assert_scrape_works(port);
}

#[test]
fn clients_that_never_read_are_closed() {
    let (server, port) = start(&[]);
    let mut client = Client::connect(server.port);
    // Every command that was called makes the response longer.
    for command in client.call(&["COMMAND", "LIST"]).trim_matches(['(', ')']).split(' ') {
        if ![
            "shutdown",
            "monitor",
            "sync",
            "psync",
            "quit",
            "reset",
            "subscribe",
            "psubscribe",
            "ssubscribe",
        ]
        .contains(&command)
        {
            client.call(&[command]);
        }
    }
    let sockets = socket_count(&process_id(&server));
    let silent: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect(port);
            stream.write_all(METRICS).expect("sends");
            stream
        })
        .collect();
    assert_scrape_works(port);
    assert_closed_in_time(&server, port, sockets);
    assert_scrape_works(port);
    drop(silent);
}

#[test]
fn two_hundred_silent_connections_keep_no_scraper_away() {
    let (server, port) = start(&[]);
    let sockets = socket_count(&process_id(&server));
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(port)).collect();
    assert_scrape_works(port);
    let process = process_id(&server);
    wait_until("only the last ones are kept", || socket_count(&process) <= sockets + 32);
    for _ in 0..3 {
        assert_scrape_works(port);
    }
    // The oldest ones were closed at once, the last ones after their time.
    assert!(silent[..100].iter_mut().all(is_ended));
    assert_closed_in_time(&server, port, sockets);
    let closed = scrape(port).value("weft_metrics_connections_closed_early_total", &[]);
    assert!(closed >= 190.0, "{closed}");
}

#[test]
fn many_scrapers_at_once_all_get_the_metrics_and_clients_are_served() {
    let (server, port) = start(&[]);
    let mut client = Client::connect(server.port);
    thread::scope(|scope| {
        let scrapers: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(move || {
                    for _ in 0..20 {
                        scrape(port);
                    }
                })
            })
            .collect();
        while !scrapers.iter().all(|scraper| scraper.is_finished()) {
            assert_eq!(client.call(&["PING"]), "PONG");
        }
    });
    let metrics = scrape(port);
    // Requests that wait together share a rendering.
    assert!(metrics.value("weft_metrics_renderings_total", &[]) < 320.0);
    assert_eq!(metrics.value("weft_metrics_connections_closed_early_total", &[]), 0.0);
}

#[test]
fn connections_that_are_reset_leave_nothing() {
    let (server, port) = start(&[]);
    let sockets = socket_count(&process_id(&server));
    for request in [&b""[..], b"GET /met", METRICS, b"wrong\r\n\r\n"] {
        for _ in 0..20 {
            let mut stream = connect(port);
            let _ = stream.write_all(request);
            // A response that is not read makes the system reset the connection.
        }
    }
    assert_closed_in_time(&server, port, sockets);
    assert_scrape_works(port);
}
