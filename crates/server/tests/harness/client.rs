//! A client for a test whose data is text.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::server::open;

/// A client that sends words and gets replies as text.
pub struct Client(pub BufReader<TcpStream>);

impl Client {
    /// A client of the server at this port.
    pub fn connect(port: u16) -> Client {
        Client(open(port))
    }

    /// Sends a request.
    pub fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).expect("sends");
    }

    /// The next reply, in one line: `(a b c)` for an array, `-` for null.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("receives");
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "*" | "$" if rest == "-1" => "-".to_owned(),
            "*" => {
                let elements: Vec<String> = (0..rest.parse().expect("a length")).map(|_| self.answer()).collect();
                format!("({})", elements.join(" "))
            }
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("receives");
                bytes.truncate(bytes.len() - 2);
                String::from_utf8(bytes).expect("text")
            }
            _ => rest.to_owned(),
        }
    }

    /// Sends a request and waits for the reply.
    pub fn call(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }
}
