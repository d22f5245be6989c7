//! A primary that a test plays itself.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use super::server::PATIENCE;

/// An RDB file that Valkey wrote.
pub const DUMP: &[u8] = include_bytes!("../../../src/persistence/rdb_file/tests/valkey.rdb");
/// An RDB file without data or checksum.
pub const EMPTY: &[u8] = b"REDIS0011\xff\0\0\0\0\0\0\0\0";
/// The replication id of the primary.
pub const ID: &str = "1111111111111111111111111111111111111111";

/// Answers the handshake of a replica up to its PSYNC request. A replica that gives up before is not the last one.
pub fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        let (stream, _) = listener.accept().expect("accepts");
        if let Some(link) = shake_hands(stream) {
            return link;
        }
    }
}

fn shake_hands(stream: TcpStream) -> Option<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let upper = line.trim_end().to_uppercase();
        let reply: &[u8] = match upper.as_str() {
            "PING" => b"+PONG\r\n",
            "REPLCONF" | "AUTH" => b"+OK\r\n",
            "PSYNC" => {
                // The two arguments that follow are of no interest.
                for _ in 0..4 {
                    reader.read_line(&mut line).ok()?;
                }
                return Some(reader.into_inner());
            }
            _ => continue,
        };
        reader.get_mut().write_all(reply).ok()?;
    }
}
