//! The system log: one datagram per line, in the form that local syslog daemons read.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use super::log::Level;

use weft_os::sync::Mutex;

/// The socket of the daemon.
pub const SOCKET: &str = "/dev/log";

/// A connection to the syslog daemon.
pub struct Syslog {
    path: PathBuf,
    ident: String,
    /// The facility's number, shifted to its position in a priority.
    facility: u32,
    socket: Mutex<Option<UnixDatagram>>,
}

impl Syslog {
    /// Creates a sender with the name `ident` and `facility` (as `syslog-facility` numbers them) to the daemon at
    /// `path`.
    pub fn new(path: PathBuf, ident: String, facility: u32) -> Self {
        Syslog {
            path,
            ident,
            facility,
            socket: Mutex::new(None),
        }
    }

    /// Sends one message. It is lost if the daemon is absent, or too slow to accept it at once: the server must not
    /// wait for its log. After a restart of the daemon the sender connects again.
    pub fn send(&self, level: Level, message: &str) {
        // The severities of debug, verbose, notice and warning.
        let severity = [7, 6, 5, 4][level as usize];
        let datagram = format!(
            "<{}>{} {}[{}]: {message}",
            self.facility | severity,
            jiff::Zoned::now().strftime("%b %e %H:%M:%S"),
            self.ident,
            std::process::id()
        );
        let mut socket = self.socket.lock();
        let sent = socket
            .as_ref()
            .is_some_and(|socket| socket.send(datagram.as_bytes()).is_ok());
        if !sent {
            *socket = self.connect().ok();
            if let Some(socket) = socket.as_ref() {
                let _ = socket.send(datagram.as_bytes());
            }
        }
    }

    fn connect(&self) -> std::io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(&self.path)?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests;
