//! Listening sockets.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::Socket;
use weft_os::net;

/// A bound, listening socket. Dropping it stops listening; the file of a Unix socket remains.
#[derive(Debug)]
pub enum Listener {
    /// A TCP listener on a port of one address.
    Tcp(TcpListener),
    /// A listener on a Unix domain socket.
    Unix(UnixListener),
}

const SOCKET_FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

impl Listener {
    /// Listens on `port` of `address`. For port 0 the kernel picks a port, see [`local_address`](Self::local_address).
    /// The address may be reused at once after a restart. An IPv6 address accepts only IPv6, so that a server can
    /// listen on `0.0.0.0` and `::` at the same time.
    ///
    /// # Errors
    /// Fails as the system calls do, for example if the address is in use.
    pub fn tcp(address: IpAddr, port: u16, backlog: u32) -> io::Result<Self> {
        if let Some(simulated) = net::simulated_listener(SocketAddr::new(address, port), backlog) {
            return simulated.map(Self::Tcp);
        }
        let socket = rustix::net::socket_with(family(address), SocketType::STREAM, SOCKET_FLAGS, None)?;
        Listener::bind_and_listen(socket, address, port, backlog)
    }

    /// Listens like [`tcp`](Self::tcp), for clients that may use several paths (Multipath TCP, RFC 8684).
    ///
    /// # Errors
    /// Fails also if the kernel does not support Multipath TCP.
    pub fn multipath_tcp(address: IpAddr, port: u16, backlog: u32) -> io::Result<Self> {
        if let Some(simulated) = net::simulated_listener(SocketAddr::new(address, port), backlog) {
            return simulated.map(Self::Tcp);
        }
        Listener::bind_and_listen(new_multipath_socket(address)?, address, port, backlog)
    }

    fn bind_and_listen(socket: OwnedFd, address: IpAddr, port: u16, backlog: u32) -> io::Result<Self> {
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddr::new(address, port))?;
        listen(&socket, backlog)?;
        Ok(Self::Tcp(socket.into()))
    }

    /// Listens on a Unix socket at `path`, which must not exist. `permissions` (as in `0o770`) are given to the file
    /// before any client can connect; `None` leaves them to the umask.
    ///
    /// # Errors
    /// Fails as the system calls do, for example if `path` exists.
    pub fn unix(path: &Path, permissions: Option<u32>, backlog: u32) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET_FLAGS, None)?;
        rustix::net::bind(&socket, &address)?;
        if let Some(mode) = permissions {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        listen(&socket, backlog)?;
        Ok(Self::Unix(socket.into()))
    }

    /// The address and port on which this listens; `None` for a Unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => net::listener_addr(listener).ok(),
            Self::Unix(_) => None,
        }
    }

    /// Accepts the next waiting connection as non-blocking and close-on-exec.
    ///
    /// # Errors
    /// Fails with `AGAIN` if no connection is waiting.
    pub(crate) fn accept(&self) -> Result<Socket, rustix::io::Errno> {
        let accepted = rustix::net::accept_with(self, SOCKET_FLAGS)?;
        Ok(match self {
            Self::Tcp(_) => Socket::Tcp(accepted.into()),
            Self::Unix(_) => Socket::Unix(accepted.into()),
        })
    }
}

/// Creates a socket for connections to or from `address` that may use several paths (Multipath TCP, RFC 8684). It is
/// non-blocking and close-on-exec.
///
/// # Errors
/// Fails if the kernel does not support Multipath TCP, or if descriptors are exhausted.
pub fn new_multipath_socket(address: IpAddr) -> io::Result<OwnedFd> {
    let protocol = Some(rustix::net::ipproto::MPTCP);
    let socket = rustix::net::socket_with(family(address), SocketType::STREAM, SOCKET_FLAGS, protocol)?;
    Ok(socket)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Starts listening. The kernel itself limits the backlog to `somaxconn`.
fn listen(socket: &OwnedFd, backlog: u32) -> io::Result<()> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    Ok(rustix::net::listen(socket, backlog)?)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}
