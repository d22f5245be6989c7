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

/// A bound, listening socket. Dropping it stops listening; a Unix socket's file stays.
#[derive(Debug)]
pub enum Listener {
    /// Listens on a TCP port of one address.
    Tcp(TcpListener),
    /// Listens on a Unix domain socket.
    Unix(UnixListener),
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

impl Listener {
    /// Listens on `port` of `address` (port 0: one the kernel picks, see
    /// [`local_address`](Self::local_address)). The address may be reused at once after a restart. An
    /// IPv6 address accepts only IPv6, so that `0.0.0.0` and `::` can be listened on side by side.
    pub fn tcp(address: IpAddr, port: u16, backlog: u32) -> io::Result<Self> {
        let socket = rustix::net::socket_with(family(address), SocketType::STREAM, FLAGS, None)?;
        Listener::bound(socket, address, port, backlog)
    }

    /// The same for clients that may use several paths (Multipath TCP, RFC 8684). Fails where the kernel has none.
    pub fn multipath_tcp(address: IpAddr, port: u16, backlog: u32) -> io::Result<Self> {
        Listener::bound(multipath_socket(address)?, address, port, backlog)
    }

    fn bound(socket: OwnedFd, address: IpAddr, port: u16, backlog: u32) -> io::Result<Self> {
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddr::new(address, port))?;
        listen(&socket, backlog)?;
        Ok(Self::Tcp(socket.into()))
    }

    /// Listens on a Unix socket at `path`, which must not exist. `permissions` (as in `0o770`) are
    /// given to the file before anybody can connect; `None` leaves them to the umask.
    pub fn unix(path: &Path, permissions: Option<u32>, backlog: u32) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        rustix::net::bind(&socket, &address)?;
        if let Some(mode) = permissions {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        listen(&socket, backlog)?;
        Ok(Self::Unix(socket.into()))
    }

    /// The address and port listened on; `None` for a Unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Takes the next waiting connection, non-blocking and closed on exec, or `WouldBlock`.
    pub(crate) fn accept(&self) -> Result<Socket, rustix::io::Errno> {
        let accepted = rustix::net::accept_with(self, FLAGS)?;
        Ok(match self {
            Self::Tcp(_) => Socket::Tcp(accepted.into()),
            Self::Unix(_) => Socket::Unix(accepted.into()),
        })
    }
}

/// A socket for connections to or from `address` that may use several paths (Multipath TCP, RFC 8684); non-blocking, and
/// closed on exec.
///
/// # Errors
/// Where the kernel has none, among others.
pub fn multipath_socket(address: IpAddr) -> io::Result<OwnedFd> {
    let protocol = Some(rustix::net::ipproto::MPTCP);
    let socket = rustix::net::socket_with(family(address), SocketType::STREAM, FLAGS, protocol)?;
    Ok(socket)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// The kernel cuts a backlog down to `somaxconn` itself.
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
