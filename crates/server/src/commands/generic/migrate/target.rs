//! The connection to the target of MIGRATE. It is cached for a while, because the next keys often go to the same
//! target.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::LazyLock;
use std::time::Duration;

use crate::state::Server;
use weft_config::id;
use weft_os::sync::Mutex;
use weft_os::time::Instant;
use weft_tls::BlockingConnection;

/// The time for which an idle connection is kept.
const MAX_IDLE_TIME: Duration = Duration::from_secs(10);
/// The maximum number of idle connections.
const MAX_CACHED_CONNECTIONS: usize = 64;
/// The maximum length of a reply line in bytes; a longer line is not a valid reply.
const MAX_LINE_BYTES: u64 = 4096;

/// The operation that failed.
#[derive(Debug)]
pub enum MigrateIoError {
    /// The host cannot be reached.
    Connecting,
    /// Sending the requests failed.
    Writing(ErrorKind),
    /// Reading a reply failed.
    Reading(ErrorKind),
}

impl MigrateIoError {
    /// Returns the verb of the operation.
    pub fn verb(&self) -> &'static str {
        match self {
            MigrateIoError::Connecting => "connecting",
            MigrateIoError::Writing(_) => "writing",
            MigrateIoError::Reading(_) => "reading",
        }
    }

    /// Returns `true` if it timed out.
    pub fn is_timeout(&self) -> bool {
        let is_timeout = |kind: &ErrorKind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        match self {
            MigrateIoError::Connecting => true,
            MigrateIoError::Writing(kind) | MigrateIoError::Reading(kind) => is_timeout(kind),
        }
    }
}

/// The address of a target, as the client sent it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TargetAddress {
    host: Vec<u8>,
    port: Vec<u8>,
}

struct CachedConnection {
    stream: BufReader<BlockingConnection>,
    db: i64,
    idle_since: Instant,
}

/// Returns the number of cached connections.
pub fn cached_connections() -> usize {
    let mut kept = CONNECTION_CACHE.lock();
    kept.retain(|_, connection| connection.idle_since.elapsed() < MAX_IDLE_TIME);
    kept.len()
}

static CONNECTION_CACHE: LazyLock<Mutex<HashMap<TargetAddress, CachedConnection>>> = LazyLock::new(Mutex::default);

/// A connection.
pub struct MigrateTarget {
    address: TargetAddress,
    stream: BufReader<BlockingConnection>,
    db: Option<i64>,
}

impl MigrateTarget {
    /// Returns a cached connection or a new one; the second part is `true` for a cached one.
    pub fn connect(
        server: &Server,
        host: &[u8],
        port: &[u8],
        timeout: Duration,
    ) -> Result<(Self, bool), MigrateIoError> {
        let address = TargetAddress {
            host: host.to_vec(),
            port: port.to_vec(),
        };
        let kept = {
            let mut kept = CONNECTION_CACHE.lock();
            kept.retain(|_, connection| connection.idle_since.elapsed() < MAX_IDLE_TIME);
            kept.remove(&address)
        };
        let (stream, db, cached) = match kept {
            Some(kept) => (kept.stream, Some(kept.db), true),
            None => (
                BufReader::new(open_connection(server, host, port, timeout)?),
                None,
                false,
            ),
        };
        let mut target = MigrateTarget { address, stream, db };
        let set = |stream: &TcpStream| {
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))
        };
        set(target.stream.get_ref().socket()).map_err(|error| MigrateIoError::Writing(error.kind()))?;
        target
            .stream
            .get_mut()
            .complete_handshake()
            .map_err(|_| MigrateIoError::Connecting)?;
        Ok((target, cached))
    }

    /// Returns the database that is selected on the target, if known.
    pub fn db(&self) -> Option<i64> {
        self.db
    }

    /// Sends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), MigrateIoError> {
        let wire = self.stream.get_mut();
        wire.write_all(bytes)
            .and_then(|()| wire.flush())
            .map_err(|error| MigrateIoError::Writing(error.kind()))
    }

    /// Reads the next line of a reply, without its end.
    pub fn read_line(&mut self) -> Result<Vec<u8>, MigrateIoError> {
        use std::io::Read;
        let mut line = Vec::new();
        let read = (&mut self.stream).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        match read {
            Ok(_) if line.ends_with(b"\r\n") => {
                line.truncate(line.len() - 2);
                Ok(line)
            }
            Ok(_) => Err(MigrateIoError::Reading(ErrorKind::UnexpectedEof)),
            Err(error) => Err(MigrateIoError::Reading(error.kind())),
        }
    }

    /// Caches the connection, on which database `db` is selected.
    pub fn return_to_cache(self, db: i64) {
        let mut kept = CONNECTION_CACHE.lock();
        if kept.len() >= MAX_CACHED_CONNECTIONS
            && let Some(oldest) = kept
                .iter()
                .min_by_key(|(_, kept)| kept.idle_since)
                .map(|(address, _)| address.clone())
        {
            kept.remove(&oldest);
        }
        let connection = CachedConnection {
            stream: self.stream,
            db,
            idle_since: Instant::now(),
        };
        kept.insert(self.address, connection);
    }
}

/// Opens a connection. Fails only if the host has no address; other errors appear at the first write.
fn open_connection(
    server: &Server,
    host: &[u8],
    port: &[u8],
    timeout: Duration,
) -> Result<BlockingConnection, MigrateIoError> {
    let host = std::str::from_utf8(host).map_err(|_| MigrateIoError::Connecting)?;
    let port = std::str::from_utf8(port)
        .ok()
        .and_then(|port| port.parse::<u16>().ok())
        .unwrap_or(0);
    let addresses = (host, port).to_socket_addrs().map_err(|_| MigrateIoError::Connecting)?;
    let mut failure = MigrateIoError::Connecting;
    for address in addresses {
        match connect_to_address(address, timeout) {
            Ok(stream) => {
                // Only an optimisation: without it small requests may wait for each other.
                let _ = stream.set_nodelay(true);
                let session = match server.config.boolean(id::TLS_CLUSTER) {
                    false => None,
                    true => Some(
                        server
                            .tls
                            .create_client_session(host)
                            .map_err(|_| MigrateIoError::Connecting)?,
                    ),
                };
                return Ok(BlockingConnection::new(stream, session));
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => failure = MigrateIoError::Connecting,
            Err(error) => failure = MigrateIoError::Writing(error.kind()),
        }
    }
    Err(failure)
}

fn connect_to_address(address: SocketAddr, timeout: Duration) -> std::io::Result<TcpStream> {
    let simulated = weft_os::net::simulated_connection(address);
    simulated.unwrap_or_else(|| TcpStream::connect_timeout(&address, timeout))
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
