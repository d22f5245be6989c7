//! A blocking connection from this server, with or without TLS: to a primary, or to the target of MIGRATE.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustls::{ClientConnection, StreamOwned};

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
pub enum BlockingStream {
    /// A connection without TLS.
    Plain(TcpStream),
    /// A connection with TLS.
    Tls(Box<StreamOwned<ClientConnection, BufferedSocket>>),
}

impl BlockingStream {
    /// Wraps a socket, with TLS if there is a session.
    pub fn new(socket: TcpStream, session: Option<ClientConnection>) -> BlockingStream {
        match session {
            None => BlockingStream::Plain(socket),
            Some(session) => {
                let socket = BufferedSocket(BufReader::with_capacity(RECEIVE_BYTES, socket));
                BlockingStream::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        }
    }

    /// Returns the socket, for its addresses and options.
    pub fn socket(&self) -> &TcpStream {
        match self {
            BlockingStream::Plain(socket) => socket,
            BlockingStream::Tls(stream) => stream.sock.0.get_ref(),
        }
    }

    /// Completes the handshake, or fails when the socket's timeout expires.
    ///
    /// # Errors
    /// If the handshake fails, the peer disconnects, or (`WouldBlock`) the peer has not sent anything yet.
    pub fn complete_handshake(&mut self) -> io::Result<()> {
        let BlockingStream::Tls(stream) = self else {
            return Ok(());
        };
        while stream.conn.is_handshaking() {
            let (read, written) = stream.conn.complete_io(&mut stream.sock)?;
            if read == 0 && written == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Read for BlockingStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            BlockingStream::Plain(socket) => socket.read(into),
            BlockingStream::Tls(stream) => match stream.read(into) {
                // The peer closed the connection without `close_notify`. The data itself shows if it is incomplete.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
                other => other,
            },
        }
    }
}

impl Write for BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            BlockingStream::Plain(socket) => socket.write(bytes),
            BlockingStream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            BlockingStream::Plain(socket) => socket.flush(),
            BlockingStream::Tls(stream) => stream.flush(),
        }
    }
}
