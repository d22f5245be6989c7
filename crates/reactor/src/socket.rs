//! A connected stream socket, TCP or Unix, with the address format and options of Valkey.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use weft_os::{descriptor, net};

/// The text printed for an address that is not available.
const UNKNOWN_ADDRESS: &str = "?:0";

/// The number of unanswered keep-alive probes after which a connection ends.
const KEEPALIVE_PROBES: u32 = 3;

/// A connected socket. Dropping it closes it.
#[derive(Debug)]
pub enum Socket {
    /// A TCP connection, over IPv4 or IPv6, or one that a simulation puts in its place.
    Tcp(TcpStream),
    /// A connection over a Unix domain socket.
    Unix(UnixStream),
}

impl Socket {
    /// Begins to connect to `address` without waiting for the result.
    ///
    /// The socket can be registered and sent to at once: output waits in flight until the connection is established. A
    /// refused connection is reported as readable, and receiving returns the reason.
    ///
    /// # Errors
    /// Fails if no socket can be created, or if connecting fails at once.
    pub fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        if let Some(simulated) = net::simulated_connection(address) {
            let stream = simulated?;
            stream.set_nonblocking(true)?;
            return Ok(Self::Tcp(stream));
        }
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Self::Tcp(socket.into())),
            Err(error) => Err(error.into()),
        }
    }

    /// The peer's address as Valkey prints it: `127.0.0.1:6379`, `[::1]:6379`, `[/tmp/weft.sock:0]:0`, or `?:0` when
    /// the peer has already disconnected.
    pub fn peer_name(&self) -> String {
        match self {
            Self::Tcp(stream) => tcp_name(net::peer_addr(stream)),
            Self::Unix(stream) => unix_name(stream),
        }
    }

    /// The address of this end, printed like [`peer_name`](Self::peer_name).
    pub fn local_name(&self) -> String {
        match self {
            Self::Tcp(stream) => tcp_name(net::local_addr(stream)),
            Self::Unix(stream) => unix_name(stream),
        }
    }

    /// The number of the file descriptor, as CLIENT LIST shows it.
    pub fn fd(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }

    /// Returns `true` if this is a Unix domain socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Probes an idle peer after `seconds`. Up to three probes follow, each a third of that time apart, before the
    /// connection is closed. Zero disables probing. A Unix socket needs no probes, so the call succeeds without effect.
    ///
    /// # Errors
    /// Fails if the kernel refuses an option.
    pub fn set_keepalive(&self, seconds: u32) -> io::Result<()> {
        let Self::Tcp(stream) = self else {
            return Ok(());
        };
        if !net::is_tcp(stream) {
            return Ok(());
        }
        sockopt::set_socket_keepalive(stream, seconds > 0)?;
        if seconds > 0 {
            sockopt::set_tcp_keepidle(stream, Duration::from_secs(seconds.into()))?;
            let interval = (seconds / KEEPALIVE_PROBES).max(1);
            sockopt::set_tcp_keepintvl(stream, Duration::from_secs(interval.into()))?;
            sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
        }
        Ok(())
    }

    /// Sends small segments at once (`true`) or lets TCP coalesce them (`false`). A Unix socket always sends at once,
    /// so the call succeeds without effect.
    ///
    /// # Errors
    /// Fails if the kernel refuses the option.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) if net::is_tcp(stream) => stream.set_nodelay(nodelay),
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }

    /// Limits the bytes that the kernel keeps for this socket in each direction, instead of letting it choose. The
    /// kernel doubles the number, for its own overhead.
    ///
    /// # Errors
    /// Fails if the kernel refuses the option.
    pub fn set_buffer_sizes(&self, bytes: usize) -> io::Result<()> {
        sockopt::set_socket_send_buffer_size(self, bytes)?;
        sockopt::set_socket_recv_buffer_size(self, bytes)?;
        Ok(())
    }

    /// Returns another handle of the same connection.
    ///
    /// # Errors
    /// When the process has no free file descriptor.
    pub fn duplicate(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Shuts down both directions; the peer sees the end of the stream.
    ///
    /// # Errors
    /// Fails if the peer has already closed the connection.
    pub fn shutdown_both(&self) -> io::Result<()> {
        let shut_down = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
        descriptor::activity();
        shut_down
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

fn tcp_name(address: io::Result<SocketAddr>) -> String {
    match address {
        Ok(SocketAddr::V4(address)) => address.to_string(),
        // Display of the whole address would add a scope, which Valkey does not print.
        Ok(SocketAddr::V6(address)) => format!("[{}]:{}", address.ip(), address.port()),
        Err(_) => UNKNOWN_ADDRESS.to_owned(),
    }
}

/// Returns the name of both ends of a Unix connection. A Unix client has no name of its own, so both ends use the path
/// of the listener: it is the local address of an accepted socket and the peer's address of a connecting one. Valkey
/// takes this path with its port 0 for an address that needs brackets because of its colon.
fn unix_name(stream: &UnixStream) -> String {
    let path_of = |address: UnixAddress| address.as_pathname().map(|path| path.display().to_string());
    let local = stream.local_addr().ok().and_then(path_of);
    match local.or_else(|| stream.peer_addr().ok().and_then(path_of)) {
        Some(path) => format!("[{path}:0]:0"),
        None => UNKNOWN_ADDRESS.to_owned(),
    }
}

#[cfg(test)]
mod tests;
