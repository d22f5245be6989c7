//! A connection to a server under test.

use std::io::BufReader;
use std::net::TcpStream;

use super::server::PATIENCE;

/// Connects to the server at this port, for reading by lines.
pub fn open(port: u16) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    stream.set_nodelay(true).expect("sets an option");
    BufReader::new(stream)
}
