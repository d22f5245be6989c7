//! A server process on a free loopback port, and a client that uses RESP2.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::collections::model::{Operation, Reply};
use crate::harness;
use crate::harness::port::free_port;
use crate::harness::server::{MANY_WORKERS, PATIENCE};

/// A running server; killed at the end of the test.
pub struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts the server and waits until it listens.
    pub fn start() -> Server {
        let port = free_port();
        let binary = std::env::var("WEFT_SERVER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_weft-server").into());
        let is_weft = binary == env!("CARGO_BIN_EXE_weft-server");
        let child = Command::new(binary)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(MANY_WORKERS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let server = Server { child, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < PATIENCE, "the server does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        if is_weft {
            let active = harness::client::Client::connect(port).info("weft_workers_active");
            assert_eq!(active, MANY_WORKERS[1], "active workers");
        }
        server
    }

    /// Opens a new connection.
    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
        Client(BufReader::new(stream))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the server has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection.
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Sends an operation and returns its reply.
    pub fn call(&mut self, operation: &Operation) -> Reply {
        self.send(operation);
        self.answer()
    }

    /// Sends an operation.
    pub fn send(&mut self, operation: &Operation) {
        let mut request = format!("*{}\r\n", operation.words.len()).into_bytes();
        for word in &operation.words {
            request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.0.get_mut().write_all(&request).expect("sends");
    }

    /// Returns the next reply.
    pub fn answer(&mut self) -> Reply {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("receives");
        let line = line.strip_suffix("\r\n").expect("a line end");
        let (kind, rest) = line.split_at(1);
        let length = || rest.parse::<i64>().expect("a length");
        match kind {
            "+" => Reply::Status(rest.into()),
            "-" => Reply::Error(rest.split(' ').next().unwrap_or_default().into()),
            ":" => Reply::Integer(rest.parse().expect("an integer")),
            "$" | "*" if length() < 0 => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; length() as usize + 2];
                self.0.read_exact(&mut bytes).expect("receives");
                bytes.truncate(bytes.len() - 2);
                Reply::Text(String::from_utf8(bytes).expect("the test sends text"))
            }
            "*" => Reply::Array((0..length()).map(|_| self.answer()).collect()),
            other => panic!("unknown type {other:?}"),
        }
    }
}
