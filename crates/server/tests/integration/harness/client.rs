//! A test client that sends arbitrary words and returns replies as text.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::connection::open;
use super::wait_until;

/// A client that sends words and returns replies as text.
pub struct Client<Stream = TcpStream>(pub BufReader<Stream>);

impl Client {
    /// Connects to the server at this port.
    pub fn connect(port: u16) -> Client {
        Client(open(port))
    }

    /// Returns `true` if nothing has arrived for the client yet.
    pub fn is_waiting(&self) -> bool {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).expect("sets the mode");
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).expect("sets the mode");
        self.0.buffer().is_empty() && matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

impl<Stream: Read + Write> Client<Stream> {
    /// Sends a request.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        self.try_send(words).expect("sends");
    }

    /// Sends a request on a connection that the server may close meanwhile.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn try_send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words.iter().map(AsRef::as_ref) {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)
    }

    /// Returns the next reply on one line: `(a b c)` for an array, `-` for null. Bytes that are not UTF-8 are replaced.
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
                String::from_utf8_lossy(&bytes).into_owned()
            }
            _ => rest.to_owned(),
        }
    }

    /// Sends a request and waits for the reply.
    pub fn call(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }

    /// Returns a field of INFO.
    pub fn info(&mut self, field: &str) -> String {
        let text = self.call(&["INFO", "everything"]);
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no {field}")).trim().to_owned()
    }

    /// Waits until a field of INFO has this value.
    pub fn wait_for_info(&mut self, field: &str, value: &str) {
        wait_until(&format!("{field} is {value}"), || self.info(field) == value);
    }

    /// Returns the reply to EXEC of a transaction whose commands are all sent together.
    pub fn transact(&mut self, commands: &[&[&str]]) -> String {
        self.send(&["MULTI"]);
        commands.iter().for_each(|command| self.send(command));
        self.send(&["EXEC"]);
        (0..=commands.len()).for_each(|_| drop(self.answer()));
        self.answer()
    }
}
