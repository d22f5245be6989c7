//! `supervised`: reports the state of the server to an init system.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sys::signal::{Signal, raise};

use crate::observability::log;

/// The variable in which systemd names the socket it listens on.
const SYSTEMD_VARIABLE: &str = "NOTIFY_SOCKET";
/// The variable that upstart sets for its jobs.
const UPSTART_VARIABLE: &str = "UPSTART_JOB";

/// The supervisor of this process.
#[derive(Debug)]
pub enum Supervisor {
    /// No supervisor.
    None,
    /// Upstart, which was notified by a stop signal.
    Upstart,
    /// systemd, which listens on this address.
    Systemd(SocketAddr),
}

impl Supervisor {
    /// Finds the supervisor that the parameter (`no`, `upstart`, `systemd` or `auto`) names, and reports that the
    /// server is starting. If it does not exist, the server logs a warning and runs without one.
    pub fn find(supervised: &str) -> Supervisor {
        match supervised {
            "upstart" => Supervisor::from_upstart(),
            "systemd" => Supervisor::from_systemd(),
            "auto" if std::env::var_os(UPSTART_VARIABLE).is_some() => {
                log::verbose!("Upstart supervision detected.");
                Supervisor::from_upstart()
            }
            "auto" if std::env::var_os(SYSTEMD_VARIABLE).is_some() => {
                log::verbose!("Systemd supervision detected.");
                Supervisor::from_systemd()
            }
            _ => Supervisor::None,
        }
    }

    /// Returns `true` if there is a supervisor.
    pub fn is_supervised(&self) -> bool {
        !matches!(self, Supervisor::None)
    }

    /// Reports that clients are served from now on.
    pub fn notify_ready(&self) {
        self.notify_state("STATUS=Ready to accept connections\nREADY=1\n");
    }

    /// Reports that the server is about to end.
    pub fn notify_stopping(&self) {
        self.notify_state("STOPPING=1\n");
    }

    fn notify_state(&self, state: &str) {
        if let Supervisor::Systemd(address) = self
            && let Err(error) = send_notification(address, state)
        {
            log::warning!("systemd supervision error: {error}");
        }
    }

    /// Upstart considers a job started once it has stopped itself, and continues it immediately.
    fn from_upstart() -> Supervisor {
        if std::env::var_os(UPSTART_VARIABLE).is_none() {
            log::warning!("upstart supervision requested, but {UPSTART_VARIABLE} not found!");
            return Supervisor::None;
        }
        log::notice!("supervised by upstart, will stop to signal readiness.");
        if let Err(error) = raise(Signal::SIGSTOP) {
            log::warning!("upstart supervision error: {error}");
        }
        Supervisor::Upstart
    }

    fn from_systemd() -> Supervisor {
        let Some(name) = std::env::var_os(SYSTEMD_VARIABLE) else {
            log::warning!("systemd supervision requested, but {SYSTEMD_VARIABLE} not found!");
            return Supervisor::None;
        };
        let told = parse_address(&name).and_then(|address| {
            send_notification(&address, "STATUS=Weft is loading...\n")?;
            Ok(address)
        });
        match told {
            Ok(address) => {
                log::notice!(
                    "Supervised by systemd. Please make sure you set appropriate values for TimeoutStartSec and \
                     TimeoutStopSec in your service unit."
                );
                Supervisor::Systemd(address)
            }
            Err(error) => {
                log::warning!("systemd supervision error: {error}");
                Supervisor::None
            }
        }
    }
}

/// Returns the address of the socket that the variable names: a path, or a name in the abstract namespace after an `@`.
fn parse_address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

fn send_notification(address: &SocketAddr, state: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(state.as_bytes(), address)?;
    Ok(())
}
