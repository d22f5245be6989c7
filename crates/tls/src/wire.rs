//! A blocking connection from this server, with or without TLS: to a primary, or to the target of MIGRATE.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, StreamOwned};
use weft_os::descriptor::{self, Interest};

use super::error::SessionError;

/// The size of the read buffer, in bytes: without it, rustls reads a quarter of a record at a time.
const RECEIVE_BYTES: usize = 64 * 1024;

/// A socket with a large read buffer.
pub struct BufferedSocket(BufReader<TcpStream>);

impl Read for BufferedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for BufferedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

/// A connection; reading and writing may block.
pub enum BlockingConnection {
    /// A connection without TLS.
    Plain(TcpStream),
    /// A connection with TLS.
    Tls(Box<StreamOwned<ClientConnection, BufferedSocket>>),
}

impl BlockingConnection {
    /// Wraps a socket, with TLS if there is a session.
    pub fn new(socket: TcpStream, session: Option<ClientConnection>) -> BlockingConnection {
        match session {
            None => BlockingConnection::Plain(socket),
            Some(session) => {
                let socket = BufferedSocket(BufReader::with_capacity(RECEIVE_BYTES, socket));
                BlockingConnection::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        }
    }

    /// Returns the socket, for its addresses and options.
    pub fn socket(&self) -> &TcpStream {
        match self {
            BlockingConnection::Plain(socket) => socket,
            BlockingConnection::Tls(stream) => stream.sock.0.get_ref(),
        }
    }

    /// Completes the handshake, or fails when the socket's timeout expires.
    ///
    /// # Errors
    /// If the handshake fails, the peer disconnects, or (`WouldBlock`) the peer has not sent anything yet.
    pub fn complete_handshake(&mut self) -> io::Result<()> {
        let BlockingConnection::Tls(stream) = self else {
            return Ok(());
        };
        while stream.conn.is_handshaking() {
            let (read, written) = stream
                .conn
                .complete_io(&mut stream.sock)
                .map_err(SessionError::within)?;
            if read == 0 && written == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Read for BlockingConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            BlockingConnection::Plain(socket) => {
                descriptor::before_blocking(&*socket, Interest::Input)?;
                let received = socket.read(into);
                // The peer may wait for space.
                descriptor::activity();
                received
            }
            BlockingConnection::Tls(stream) => match stream.read(into) {
                // The peer closed the connection without `close_notify`. The data itself shows if it is incomplete.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
                other => other.map_err(SessionError::within),
            },
        }
    }
}

impl Write for BlockingConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            BlockingConnection::Plain(socket) => {
                descriptor::before_blocking(&*socket, Interest::Output)?;
                let written = socket.write(descriptor::writable_part(bytes));
                descriptor::activity();
                written
            }
            BlockingConnection::Tls(stream) => stream.write(bytes).map_err(SessionError::within),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            BlockingConnection::Plain(socket) => socket.flush(),
            BlockingConnection::Tls(stream) => stream.flush().map_err(SessionError::within),
        }
    }
}
