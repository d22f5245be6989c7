//! A small server inside a test: it reads requests, and a function of the test answers them.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

/// Reads one request; `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let count: usize = line.trim_end().strip_prefix('*')?.parse().ok()?;
    let mut words = Vec::new();
    for _ in 0..count {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let length: usize = line.trim_end().strip_prefix('$')?.parse().ok()?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(length);
        words.push(word);
    }
    Some(words)
}

/// Starts a server that serves any number of connections, with a thread for each, and sends what `answer` returns.
pub fn serve(answer: impl Fn(&[Vec<u8>]) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("the client connects");
            // Each reply is a write of its own. The second one of a batch would wait for the client's delayed ACK.
            stream.set_nodelay(true).expect("a socket option");
            let answer = Arc::clone(&answer);
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
                while let Some(request) = read_request(&mut reader) {
                    if stream.write_all(&answer(&request)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}
