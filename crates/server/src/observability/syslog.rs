//! The system log: one datagram a line, in the form local syslog daemons read.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Mutex;

use super::lock;
use super::log::Level;

/// Where the daemon listens.
pub const SOCKET: &str = "/dev/log";

/// A way to the syslog daemon.
pub struct Syslog {
    path: PathBuf,
    ident: String,
    /// The facility's number, already in the place it has in a priority.
    facility: u32,
    socket: Mutex<Option<UnixDatagram>>,
}

impl Syslog {
    /// Sends as `ident` under `facility` (as `syslog-facility` numbers them) to the daemon at `path`.
    pub fn new(path: PathBuf, ident: String, facility: u32) -> Self {
        Syslog {
            path,
            ident,
            facility,
            socket: Mutex::new(None),
        }
    }

    /// Sends one message. It is lost if the daemon is not there, or too slow to take it at once: a server
    /// must not wait for its log. A daemon that was restarted is found again.
    pub fn send(&self, level: Level, message: &str) {
        // debug, info, notice, warning
        let severity = [7, 6, 5, 4][level as usize];
        let datagram = format!(
            "<{}>{} {}[{}]: {message}",
            self.facility | severity,
            jiff::Zoned::now().strftime("%b %e %H:%M:%S"),
            self.ident,
            std::process::id()
        );
        let mut socket = lock(&self.socket);
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
