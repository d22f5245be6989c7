//! Connections over loopback addresses, which a simulation replaces by Unix sockets of the process.
//!
//! The kernel delivers what is sent over TCP in the background, and late on a busy machine: such a run would not repeat
//! itself. What is written to a Unix socket can be read at once, and a connection is made, or refused, at once. The
//! ports are no ports of the machine, so any number of simulations may use the same ones.
//!
//! Each socket has an abstract name that ends with its address. The end that connects has a port of its own, in the
//! order in which connections are made. These sockets have the types of TCP sockets; the functions of the standard
//! library find no address for them, so the addresses are asked for here.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use super::scheduler;

/// The beginning of the names. The id of the process and the address follow.
const NAME_PREFIX: &str = "weft-sim-";
/// The first port of the ends that connect. All of them have five digits: the length of a number in a message may
/// change the order of a run.
const FIRST_CLIENT_PORT: u16 = 40_000;
/// The number of these ports.
const CLIENT_PORTS: u16 = u16::MAX - FIRST_CLIENT_PORT;

/// Listens on an address inside the simulation. Returns `None` unless the address is a loopback address and the calling
/// thread is simulated. The socket is non-blocking. Port 0 stands for any free port.
///
/// # Errors
/// If the port is in use, or descriptors are exhausted.
pub fn simulated_listener(address: SocketAddr, backlog: u32) -> Option<io::Result<TcpListener>> {
    is_simulated_address(address).then(|| listen(address, backlog))
}

/// Connects to an address inside a simulation. Returns `None` if the kernel is to make the connection. The socket is
/// blocking.
///
/// # Errors
/// If no server listens there, or too many connections wait to be accepted, or descriptors are exhausted.
pub fn simulated_connection(to: SocketAddr) -> Option<io::Result<TcpStream>> {
    is_simulated_address(to).then(|| connect(to))
}

/// Returns the address of this end of a connection.
///
/// # Errors
/// Those of the system call.
pub fn local_addr(stream: &TcpStream) -> io::Result<SocketAddr> {
    own_address(stream).map_or_else(|| stream.local_addr(), Ok)
}

/// Returns the address of the other end of a connection.
///
/// # Errors
/// If the connection has ended.
pub fn peer_addr(stream: &TcpStream) -> io::Result<SocketAddr> {
    let name = rustix::net::getpeername(stream).ok().flatten();
    name.and_then(address_of).map_or_else(|| stream.peer_addr(), Ok)
}

/// Returns the address on which a socket listens.
///
/// # Errors
/// Those of the system call.
pub fn listener_addr(listener: &TcpListener) -> io::Result<SocketAddr> {
    own_address(listener).map_or_else(|| listener.local_addr(), Ok)
}

/// Returns `true` if the socket has the options of TCP. Those of a simulation have none.
pub fn is_tcp(socket: &impl AsFd) -> bool {
    own_address(socket).is_none()
}

fn is_simulated_address(address: SocketAddr) -> bool {
    scheduler::is_simulated() && address.ip().is_loopback()
}

fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = match address.port() {
        0 => bind_to_client_port(address.ip())?,
        _ => {
            let socket = new_socket()?;
            rustix::net::bind(&socket, &name_of(address)?)?;
            socket
        }
    };
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = bind_to_client_port(to.ip())?;
    // The socket is non-blocking: a thread that waits in the kernel would keep all other threads from running.
    rustix::net::connect(&socket, &name_of(to)?)?;
    scheduler::activity();
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Creates a socket with the next free port of those for the ends that connect.
fn bind_to_client_port(ip: IpAddr) -> io::Result<OwnedFd> {
    static BOUND_SOCKETS: AtomicU32 = AtomicU32::new(0);
    let socket = new_socket()?;
    for _ in 0..CLIENT_PORTS {
        let number = BOUND_SOCKETS.fetch_add(1, Ordering::Relaxed) % u32::from(CLIENT_PORTS);
        let address = SocketAddr::new(ip, FIRST_CLIENT_PORT + number as u16);
        match rustix::net::bind(&socket, &name_of(address)?) {
            Ok(()) => return Ok(socket),
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::ADDRNOTAVAIL.into())
}

fn name_of(address: SocketAddr) -> Result<SocketAddrUnix, Errno> {
    let name = format!("{NAME_PREFIX}{}/{address}", std::process::id());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Returns the address in the name of a socket; `None` if the socket is none of a simulation.
fn own_address(socket: &impl AsFd) -> Option<SocketAddr> {
    address_of(rustix::net::getsockname(socket).ok()?)
}

fn address_of(name: SocketAddrAny) -> Option<SocketAddr> {
    let name = SocketAddrUnix::try_from(name).ok()?;
    let text = std::str::from_utf8(name.abstract_name()?).ok()?;
    let (_, address) = text.strip_prefix(NAME_PREFIX)?.split_once('/')?;
    address.parse().ok()
}
