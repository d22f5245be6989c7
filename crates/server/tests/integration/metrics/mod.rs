//! Tests of the metrics endpoint: what it serves, how it ends, and that no client can disturb it.

mod contents;
mod exposition;
mod hostile;
mod packaging;
mod settings;

use std::io::{Read, Write};
use std::net::TcpStream;

use super::harness::client::Client;
use super::harness::port::free_port;
use super::harness::server::{PATIENCE, Server};
use super::harness::wait_until;
use exposition::Scrape;

/// Starts a server with the endpoint on a free port.
fn start(arguments: &[&str]) -> (Server, u16) {
    let port = free_port();
    let endpoint = ["--metrics-port", &port.to_string()].map(str::to_owned);
    let all: Vec<&str> = endpoint
        .iter()
        .map(String::as_str)
        .chain(arguments.iter().copied())
        .collect();
    let server = Server::start(&all);
    (server, port)
}

/// A response: its status, head and body.
struct Response {
    status: u16,
    head: String,
    body: String,
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    stream
}

/// Reads until the server closes the connection.
fn read_response(mut stream: impl Read) -> Response {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the response arrives");
    let text = String::from_utf8(bytes).expect("the response is UTF-8");
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Response {
        status: status.unwrap_or_else(|| panic!("no status: {head}")),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// Sends bytes and reads the response.
fn exchange(port: u16, request: &[u8]) -> Response {
    let mut stream = connect(port);
    stream.write_all(request).expect("sends");
    read_response(stream)
}

fn request(port: u16, method: &str, target: &str) -> Response {
    exchange(
        port,
        format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes(),
    )
}

/// Reads the metrics, and checks every line of them.
fn scrape(port: u16) -> Scrape {
    let response = request(port, "GET", "/metrics");
    assert_eq!(response.status, 200);
    assert!(
        response.head.contains("Content-Type: text/plain; version=0.0.4"),
        "{}",
        response.head
    );
    assert!(
        response
            .head
            .contains(&format!("Content-Length: {}\r\n", response.body.len())),
        "{}",
        response.head
    );
    Scrape::parse(&response.body)
}

/// Returns the process of a server.
fn process_id(server: &Server) -> String {
    Client::connect(server.port).info("process_id")
}

/// Returns `true` if the process has the thread of the endpoint.
fn has_thread(process: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("lists the threads");
    let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name.trim() == "weft-metrics")
}

/// Returns the number of sockets that the process has open.
fn socket_count(process: &str) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).expect("lists the descriptors");
    let targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}
