//! The connection to the server that keys are sent to; kept for a while, for the next keys mostly go there too.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::state::Server;
use weft_config::id;
use weft_tls::BlockingStream;

/// The time for which an idle connection is kept.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// The maximum number of idle connections.
const KEPT_MOST: usize = 64;
/// A longer line is no reply to what was asked.
const LONGEST_LINE: u64 = 4096;

/// The operation that failed.
#[derive(Debug)]
pub enum Failure {
    /// There is no way to the host.
    Connecting,
    /// The target did not take what was sent.
    Writing(ErrorKind),
    /// The target did not answer.
    Reading(ErrorKind),
}

impl Failure {
    /// Returns the verb of the operation.
    pub fn verb(&self) -> &'static str {
        match self {
            Failure::Connecting => "connecting",
            Failure::Writing(_) => "writing",
            Failure::Reading(_) => "reading",
        }
    }

    /// Returns `true` if it timed out.
    pub fn timed_out(&self) -> bool {
        let is_timeout = |kind: &ErrorKind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        match self {
            Failure::Connecting => true,
            Failure::Writing(kind) | Failure::Reading(kind) => is_timeout(kind),
        }
    }
}

/// Host and port.
type Name = (Vec<u8>, Vec<u8>);

struct CachedConnection {
    stream: BufReader<BlockingStream>,
    db: i64,
    since: Instant,
}

/// Connections that are kept.
pub fn kept() -> usize {
    let mut kept = KEPT.lock();
    kept.retain(|_, connection| connection.since.elapsed() < KEPT_FOR);
    kept.len()
}

static KEPT: LazyLock<Mutex<HashMap<Name, CachedConnection>>> = LazyLock::new(Mutex::default);

/// A connection.
pub struct Target {
    name: Name,
    stream: BufReader<BlockingStream>,
    db: Option<i64>,
}

impl Target {
    /// Returns a cached connection or a new one; the second part is `true` for a cached one.
    pub fn connect(server: &Server, host: &[u8], port: &[u8], timeout: Duration) -> Result<(Self, bool), Failure> {
        let name = (host.to_vec(), port.to_vec());
        let kept = {
            let mut kept = KEPT.lock();
            kept.retain(|_, connection| connection.since.elapsed() < KEPT_FOR);
            kept.remove(&name)
        };
        let (stream, db, cached) = match kept {
            Some(kept) => (kept.stream, Some(kept.db), true),
            None => (BufReader::new(open(server, host, port, timeout)?), None, false),
        };
        let mut target = Target { name, stream, db };
        let set = |stream: &TcpStream| {
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))
        };
        set(target.stream.get_ref().socket()).map_err(|error| Failure::Writing(error.kind()))?;
        target
            .stream
            .get_mut()
            .complete_handshake()
            .map_err(|_| Failure::Connecting)?;
        Ok((target, cached))
    }

    /// The database that is selected there, if that is known.
    pub fn db(&self) -> Option<i64> {
        self.db
    }

    /// Sends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let wire = self.stream.get_mut();
        wire.write_all(bytes)
            .and_then(|()| wire.flush())
            .map_err(|error| Failure::Writing(error.kind()))
    }

    /// The next line of a reply, without its end.
    pub fn read_line(&mut self) -> Result<Vec<u8>, Failure> {
        use std::io::Read;
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LONGEST_LINE).read_until(b'\n', &mut line);
        match read {
            Ok(_) if line.ends_with(b"\r\n") => {
                line.truncate(line.len() - 2);
                Ok(line)
            }
            Ok(_) => Err(Failure::Reading(ErrorKind::UnexpectedEof)),
            Err(error) => Err(Failure::Reading(error.kind())),
        }
    }

    /// Keeps the connection, on which database `db` is selected.
    pub fn keep(self, db: i64) {
        let mut kept = KEPT.lock();
        if kept.len() >= KEPT_MOST
            && let Some(oldest) = kept
                .iter()
                .min_by_key(|(_, kept)| kept.since)
                .map(|(name, _)| name.clone())
        {
            kept.remove(&oldest);
        }
        let connection = CachedConnection {
            stream: self.stream,
            db,
            since: Instant::now(),
        };
        kept.insert(self.name, connection);
    }
}

/// A host without an address cannot be connected to; everything else is noticed when something is written.
fn open(server: &Server, host: &[u8], port: &[u8], timeout: Duration) -> Result<BlockingStream, Failure> {
    let host = std::str::from_utf8(host).map_err(|_| Failure::Connecting)?;
    let port = std::str::from_utf8(port)
        .ok()
        .and_then(|port| port.parse::<u16>().ok())
        .unwrap_or(0);
    let addresses = (host, port).to_socket_addrs().map_err(|_| Failure::Connecting)?;
    let mut failure = Failure::Connecting;
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                // Small requests must not wait for each other; without this they only take longer.
                let _ = stream.set_nodelay(true);
                let session = match server.config.boolean(id::TLS_CLUSTER) {
                    false => None,
                    true => Some(
                        server
                            .tls
                            .create_client_session(host)
                            .map_err(|_| Failure::Connecting)?,
                    ),
                };
                return Ok(BlockingStream::new(stream, session));
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => failure = Failure::Connecting,
            Err(error) => failure = Failure::Writing(error.kind()),
        }
    }
    Err(failure)
}

/// Appends a request.
pub fn write_command<'w>(out: &mut Vec<u8>, words: impl Iterator<Item = &'w [u8]> + Clone) {
    out.extend_from_slice(format!("*{}\r\n", words.clone().count()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}
