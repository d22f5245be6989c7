//! Connects to a primary. An attempt notices within [`EPOCH_CHECK_INTERVAL_MS`] that its role epoch is over.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect as begin, socket};

use weft_base::RoleEpoch;
use weft_reactor::new_multipath_socket;

use super::link::LinkFailure;
use crate::observability::log;
use crate::replication::Endpoint;
use crate::state::Server;
use weft_base::files::error_text;
use weft_config::{Config, id};
use weft_os::descriptor::{self, Interest};
use weft_os::time::Instant;

/// The interval at which an attempt checks for the end of its role epoch, in milliseconds.
const EPOCH_CHECK_INTERVAL_MS: u16 = 100;

/// Connects to a primary.
///
/// # Errors
/// When the connection fails, takes longer than `repl-timeout`, or the role epoch is over.
pub fn connect(server: &Server, primary: &Endpoint, role_epoch: RoleEpoch) -> Result<TcpStream, LinkFailure> {
    let unable = |error: &io::Error| LinkFailure::Other(format!("Unable to connect to PRIMARY: {}", error_text(error)));
    let addresses = (&*primary.host, primary.port)
        .to_socket_addrs()
        .map_err(|error| unable(&error))?;
    let timeout = Duration::from_secs(server.config.unsigned(id::REPL_TIMEOUT));
    let deadline = Instant::now() + timeout;
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match connect_to_address(server, address, role_epoch, deadline) {
            Ok(Some(stream)) => return Ok(stream),
            Ok(None) if server.replication.role_epoch() != role_epoch => return Err(LinkFailure::EpochOver),
            Ok(None) => return Err(LinkFailure::Timeout("Timeout connecting to the PRIMARY...")),
            Err(error) => failed = error,
        }
    }
    Err(match failed.raw_os_error() {
        // Valkey logs a refused connection with this line.
        Some(_) => LinkFailure::Other(format!("Error condition on socket for SYNC: {}", error_text(&failed))),
        None => unable(&failed),
    })
}

/// Connects to one address. Returns `None` if the deadline has passed or the role epoch is over. A connection in a
/// simulation is made or refused at once.
fn connect_to_address(
    server: &Server,
    address: SocketAddr,
    role_epoch: RoleEpoch,
    deadline: Instant,
) -> io::Result<Option<TcpStream>> {
    if let Some(simulated) = weft_os::net::simulated_connection(address) {
        return simulated.map(Some);
    }
    let descriptor = new_socket(server, address)?;
    if let Some(source) = source_address(&server.config, &address) {
        bind(descriptor.as_raw_fd(), &SockaddrStorage::from(source))?;
    }
    match begin(descriptor.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => {
            if !wait_until_connected(server, &descriptor, role_epoch, deadline)? {
                return Ok(None);
            }
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(descriptor);
    match stream.take_error()? {
        Some(error) => Err(error),
        None => {
            stream.set_nonblocking(false)?;
            Ok(Some(stream))
        }
    }
}

/// Creates a non-blocking socket. It uses Multipath TCP if that is configured and the kernel supports it.
fn new_socket(server: &Server, address: SocketAddr) -> io::Result<OwnedFd> {
    if server.config.boolean(id::REPL_MPTCP) {
        match new_multipath_socket(address.ip()) {
            Ok(descriptor) => return Ok(descriptor),
            Err(error) => log::warning!("Connecting without Multipath TCP: {}", error_text(&error)),
        }
    }
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    Ok(socket(family, SockType::Stream, flags, None)?)
}

/// Returns the configured source address of outgoing connections (`bind-source-addr`), if it is of the same address
/// family.
fn source_address(config: &Config, to: &SocketAddr) -> Option<SocketAddr> {
    let text = config.text(id::BIND_SOURCE_ADDR);
    let address: IpAddr = std::str::from_utf8(&text).ok()?.parse().ok()?;
    (address.is_ipv4() == to.is_ipv4()).then(|| SocketAddr::new(address, 0))
}

/// Waits for the connection attempt. Returns `true` if the connection was made or refused in time.
fn wait_until_connected(
    server: &Server,
    descriptor: &OwnedFd,
    role_epoch: RoleEpoch,
    deadline: Instant,
) -> io::Result<bool> {
    while server.replication.role_epoch() == role_epoch && Instant::now() < deadline {
        let interval = Duration::from_millis(EPOCH_CHECK_INTERVAL_MS.into());
        let left = descriptor::before_wait(descriptor, Interest::Output, Some(interval));
        let timeout = left.and_then(|left| PollTimeout::try_from(left).ok());
        let mut polled = [PollFd::new(descriptor.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut polled, timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}
