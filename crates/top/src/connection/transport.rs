//! The stream below the protocol: TCP, a Unix socket or TLS, with a deadline for each request.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::certificate;
use crate::error::{Result, TopError};
use crate::options::ServerAddress;

/// A TCP or Unix socket whose reads and writes end at a deadline.
#[derive(Debug)]
pub struct DeadlineSocket {
    socket: Socket,
    deadline: Instant,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl DeadlineSocket {
    fn connect(address: &ServerAddress, timeout: Duration) -> io::Result<DeadlineSocket> {
        let deadline = Instant::now() + timeout;
        let socket = match address {
            ServerAddress::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            ServerAddress::Tcp { host, port } => Socket::Tcp(connect_tcp(host, *port, deadline)?),
        };
        Ok(DeadlineSocket { socket, deadline })
    }

    /// Limits the next read or write to the time until the deadline.
    fn arm(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out());
        }
        match &self.socket {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(Some(left))?;
                socket.set_write_timeout(Some(left))
            }
            Socket::Unix(socket) => {
                socket.set_read_timeout(Some(left))?;
                socket.set_write_timeout(Some(left))
            }
        }
    }
}

/// Connects to the first address of the host that accepts.
fn connect_tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name of the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        let result = match &mut self.socket {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        };
        result.map_err(name_timeout)
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        let result = match &mut self.socket {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        };
        result.map_err(name_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces the error of a socket whose time limit expired, whose text says nothing about time.
fn name_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => timed_out(),
        _ => error,
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server did not reply in time")
}

/// A stream to the server.
#[derive(Debug)]
pub enum Transport {
    /// Without encryption.
    Plain(DeadlineSocket),
    /// With TLS.
    Tls(Box<StreamOwned<ClientConnection, DeadlineSocket>>),
}

impl Transport {
    /// Connects, and performs the handshake if there is a configuration of TLS.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection within the timeout.
    pub fn connect(
        address: &ServerAddress,
        tls: Option<(&Arc<ClientConfig>, &str)>,
        timeout: Duration,
    ) -> Result<Transport> {
        let operation = || TopError::system(format!("connecting to {address}"));
        let mut socket = DeadlineSocket::connect(address, timeout).map_err(operation())?;
        let Some((config, name)) = tls else {
            return Ok(Transport::Plain(socket));
        };
        let name = ServerName::try_from(name.to_owned()).map_err(|error| TopError::Tls(error.to_string()))?;
        let mut session =
            ClientConnection::new(Arc::clone(config), name).map_err(|error| TopError::Tls(error.to_string()))?;
        while session.is_handshaking() {
            let done = session.complete_io(&mut socket);
            done.map_err(certificate::plain_error).map_err(operation())?;
        }
        Ok(Transport::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// Sets the time at which reads and writes end.
    pub fn set_deadline(&mut self, deadline: Instant) {
        match self {
            Transport::Plain(socket) => socket.deadline = deadline,
            Transport::Tls(stream) => stream.sock.deadline = deadline,
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.read(buffer),
            Transport::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.flush(),
            Transport::Tls(stream) => stream.flush(),
        }
    }
}
