//! The stream of a load's connection: plain TCP, or TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use crate::tls::TlsStream;

/// A connected, non-blocking stream.
#[derive(Debug)]
pub enum LoadStream {
    /// TCP without encryption.
    Plain(TcpStream),
    /// TLS, after the handshake.
    Tls(Box<TlsStream>),
}

impl LoadStream {
    /// Reads available bytes.
    ///
    /// # Errors
    /// Fails with `WouldBlock` if nothing is available, and if the connection breaks.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LoadStream::Plain(stream) => stream.read(buffer),
            LoadStream::Tls(stream) => stream.read(buffer),
        }
    }

    /// Takes bytes to send. Returns their number.
    ///
    /// # Errors
    /// Fails with `WouldBlock` if none are taken now, and if the connection breaks.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            LoadStream::Plain(stream) => stream.write(bytes),
            LoadStream::Tls(stream) => stream.write(bytes),
        }
    }

    /// Sends what [`LoadStream::write`] took. Returns `true` if nothing is left.
    ///
    /// # Errors
    /// Fails if the connection breaks.
    #[inline]
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            LoadStream::Plain(_) => Ok(true),
            LoadStream::Tls(stream) => stream.flush(),
        }
    }

    /// The TCP connection.
    pub fn socket(&self) -> &TcpStream {
        match self {
            LoadStream::Plain(stream) => stream,
            LoadStream::Tls(stream) => &stream.socket,
        }
    }
}

impl AsFd for LoadStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
