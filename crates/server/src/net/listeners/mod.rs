//! Opens the listening sockets that the configuration names, and changes them at run time.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::{Gid, Group, chown};
use weft_reactor::{Listener, Reactor, Socket, Token};

use crate::observability::log;
use bind_address::describe_error;
use weft_base::files::{errno_text, error_text};
use weft_config::{Config, ParameterId, id};

pub use bind_address::BindAddress;

/// Says which addresses a server can listen at.
pub const VALID_ADDRESSES: &str = "addresses of this machine or names of hosts with such addresses, each with a - in front \
                               if it may be missing; * stands for all IPv4 addresses, ::* for all IPv6 addresses";
/// Says which paths a Unix socket can have.
const VALID_SOCKET_PATH: &str = "a path of at most 107 bytes, of no file or of a socket, in a directory that exists and \
                                 in which the user of the server may create files";
/// Says which groups a Unix socket can have.
const VALID_SOCKET_GROUP: &str = "a group of this machine that the user of the server is a member of";

/// An accepted connection.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The socket.
    pub socket: Socket,
    /// `true` if the connection was made to the TLS port.
    pub is_tls: bool,
    /// The error that the client gets instead of service, once the TLS handshake has ended.
    pub refusal: Option<&'static str>,
}

/// The error that a listening socket cannot be opened; the reason has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenError;

/// The kind of peers that a set of listening sockets serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListenPurpose {
    /// Clients that send commands.
    #[default]
    Clients,
    /// Scrapers of the metrics endpoint.
    Metrics,
}

/// The open listening sockets. The sockets themselves are in a reactor.
#[derive(Debug, Default)]
pub struct Listeners {
    purpose: ListenPurpose,
    tcp: Vec<OpenListener>,
    unix: Option<SocketFile>,
    /// `true` if new sockets offer Multipath TCP.
    is_multipath: bool,
}

/// A configured TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListenPort {
    number: u16,
    kind: PortKind,
}

/// The protocol that is spoken on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortKind {
    Tcp,
    Tls,
    Metrics,
}

#[derive(Debug)]
struct OpenListener {
    address: IpAddr,
    port: ListenPort,
    token: Token,
}

/// The kinds of listening sockets that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerKinds {
    /// TCP without TLS.
    pub tcp: bool,
    /// TCP with TLS.
    pub tls: bool,
    /// A Unix socket.
    pub unix: bool,
}

impl Listeners {
    /// Opens all sockets that the configuration names.
    ///
    /// # Errors
    /// If a socket cannot be opened, or if the configuration names none.
    pub fn open(config: &Config, reactor: &mut Reactor) -> Result<Listeners, ListenError> {
        let mut listeners = Listeners::default();
        listeners.open_ports(config, reactor)?;
        listeners.listen_unix(config, reactor)?;
        if listeners.tcp.is_empty() && listeners.unix.is_none() {
            log_no_listener(config);
            return Err(ListenError);
        }
        Ok(listeners)
    }

    /// Opens the sockets of the metrics endpoint, which `metrics-bind` and `metrics-port` name.
    ///
    /// # Errors
    /// If a socket cannot be opened, or if no address is available.
    pub fn open_for_metrics(config: &Config, reactor: &mut Reactor) -> Result<Listeners, ListenError> {
        let mut listeners = Listeners {
            purpose: ListenPurpose::Metrics,
            ..Listeners::default()
        };
        listeners.open_ports(config, reactor)?;
        if listeners.tcp.is_empty() {
            log::warning!("No address of metrics-bind is available, exiting.");
            log::warning!("{}", config.advice(id::METRICS_BIND, VALID_ADDRESSES));
            return Err(ListenError);
        }
        Ok(listeners)
    }

    fn open_ports(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), ListenError> {
        self.listen_ports(config, reactor)
            .map_err(|(port, error)| self.purpose.log_failure(port, &error, config))
    }

    /// Adapts the TCP sockets to the present configuration: closes those that are not wanted any more, then opens the
    /// missing ones. A socket that stays open loses no connection.
    ///
    /// # Errors
    /// If a socket cannot be opened; then none of the missing ones is opened.
    pub fn listen_tcp(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), ListenError> {
        self.listen_ports(config, reactor).map_err(|_| ListenError)
    }

    /// Does the same as [`Listeners::listen_tcp`]. The error is the port that failed, and the reason.
    fn listen_ports(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), (ListenPort, io::Error)> {
        let ports = self.purpose.ports(config);
        let addresses = config.addresses(self.purpose.bind_parameter());
        let bind_addresses: Vec<BindAddress<'_>> = addresses.iter().map(|word| BindAddress::parse(word)).collect();
        let wanted_addresses: Vec<IpAddr> = bind_addresses.iter().filter_map(|place| place.address().ok()).collect();
        self.close_tcp(reactor, |open| {
            !ports.contains(&open.port) || !wanted_addresses.contains(&open.address)
        });
        self.is_multipath = self.purpose == ListenPurpose::Clients && config.boolean(id::MPTCP);
        let kept = self.tcp.len();
        for port in ports.into_iter().filter(|port| port.number != 0) {
            let listens = bind_addresses
                .iter()
                .try_for_each(|place| self.listen_or_tolerate(place, port, config, reactor));
            if let Err(error) = listens {
                let last = self.tcp.split_off(kept);
                last.iter()
                    .for_each(|open| drop(reactor.deregister_listener(open.token)));
                return Err((port, error));
            }
        }
        Ok(())
    }

    fn listen_or_tolerate(
        &mut self,
        bind_address: &BindAddress<'_>,
        port: ListenPort,
        config: &Config,
        reactor: &mut Reactor,
    ) -> io::Result<()> {
        let Err(error) = self.listen_at(bind_address, port, config, reactor) else {
            return Ok(());
        };
        bind_address.log_failure(port.number, &error);
        match bind_address.tolerates(&error) {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Returns the number of open TCP sockets.
    pub fn tcp_count(&self) -> usize {
        self.tcp.len()
    }

    /// Returns the kinds of sockets that are open.
    pub fn kinds(&self) -> ListenerKinds {
        let has = |kind| self.tcp.iter().any(|open| open.port.kind == kind);
        ListenerKinds {
            tcp: has(PortKind::Tcp),
            tls: has(PortKind::Tls),
            unix: self.unix.is_some(),
        }
    }

    /// Returns `true` if connections of this listening socket must use TLS.
    pub fn is_tls(&self, token: Token) -> bool {
        let is_tls = |open: &OpenListener| open.port.kind == PortKind::Tls;
        self.tcp.iter().any(|open| open.token == token && is_tls(open))
    }

    /// Removes the file of the Unix socket.
    pub fn remove_socket_file(self) {
        if let Some(file) = self.unix {
            log::notice!("Removing the unix socket file.");
            drop(file);
        }
    }

    fn close_tcp(&mut self, reactor: &mut Reactor, unwanted: impl Fn(&OpenListener) -> bool) {
        self.tcp.retain(|open| {
            let closes = unwanted(open);
            if closes {
                drop(reactor.deregister_listener(open.token));
            }
            !closes
        });
    }

    fn listen_at(
        &mut self,
        bind_address: &BindAddress<'_>,
        port: ListenPort,
        config: &Config,
        reactor: &mut Reactor,
    ) -> io::Result<()> {
        let address = bind_address.address()?;
        let is_same = |open: &OpenListener| (open.address, open.port) == (address, port);
        if self.tcp.iter().any(is_same) {
            return Ok(());
        }
        let backlog = config.unsigned(id::TCP_BACKLOG) as u32;
        let listener = match self.is_multipath {
            true => Listener::multipath_tcp(address, port.number, backlog).or_else(|error| {
                log::warning!("Listening without Multipath TCP: {}", describe_error(&error));
                Listener::tcp(address, port.number, backlog)
            })?,
            false => Listener::tcp(address, port.number, backlog)?,
        };
        set_socket_mark(&listener, config);
        let token = self.register(listener, reactor)?;
        self.tcp.push(OpenListener { address, port, token });
        Ok(())
    }

    fn listen_unix(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), ListenError> {
        let path = config.text(id::UNIXSOCKET);
        if path.is_empty() {
            return Ok(());
        }
        let path = Path::new(OsStr::from_bytes(&path));
        let permissions = match config.unsigned(id::UNIXSOCKETPERM) as u32 {
            0 => None,
            mode => Some(mode),
        };
        let (file, listener) = SocketFile::bind(path, permissions, config.unsigned(id::TCP_BACKLOG) as u32)
            .map_err(|error| log_unix_failure(&error, id::UNIXSOCKET, config))?;
        file.set_group(&config.text(id::UNIXSOCKETGROUP))
            .map_err(|error| log_unix_failure(&error, id::UNIXSOCKETGROUP, config))?;
        self.register(listener, reactor)
            .map_err(|error| log_unix_failure(&error, id::UNIXSOCKET, config))?;
        self.unix = Some(file);
        Ok(())
    }

    /// Registers a socket with the reactor. The lowest free token is used, since the reactor's table is dense.
    fn register(&mut self, listener: Listener, reactor: &mut Reactor) -> io::Result<Token> {
        let used = |token: Token| self.tcp.iter().any(|open| open.token == token);
        let unix_token = 0;
        let token = match listener {
            Listener::Unix(_) => unix_token,
            Listener::Tcp(_) => (unix_token + 1..).find(|token| !used(*token)).unwrap_or(unix_token),
        };
        reactor.register_listener(token, listener)?;
        Ok(token)
    }
}

impl ListenPurpose {
    /// Returns the configured ports. Number 0 stands for none.
    fn ports(self, config: &Config) -> Vec<ListenPort> {
        let parameters: &[_] = match self {
            ListenPurpose::Clients => &[(id::PORT, PortKind::Tcp), (id::TLS_PORT, PortKind::Tls)],
            ListenPurpose::Metrics => &[(id::METRICS_PORT, PortKind::Metrics)],
        };
        let port = |&(parameter, kind)| ListenPort {
            number: config.integer(parameter) as u16,
            kind,
        };
        parameters.iter().map(port).collect()
    }

    /// Returns the parameter with the addresses.
    fn bind_parameter(self) -> ParameterId {
        match self {
            ListenPurpose::Clients => id::BIND,
            ListenPurpose::Metrics => id::METRICS_BIND,
        }
    }

    /// Logs that a port cannot be opened, which parameter is the reason, and what would be valid.
    fn log_failure(self, port: ListenPort, error: &io::Error, config: &Config) -> ListenError {
        log::warning!(
            "Failed listening on port {} ({}), aborting.",
            port.number,
            port.kind.name()
        );
        let advice = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EADDRINUSE) => {
                let addresses = self.bind_parameter().parameter().name;
                let valid = format!("a port on which no other process listens at the addresses of {addresses}");
                config.advice(port.kind.parameter(), &valid)
            }
            Some(Errno::EACCES) => config.advice(
                port.kind.parameter(),
                "a port from 1024 to 65535, unless the user of the server may use lower ones (CAP_NET_BIND_SERVICE)",
            ),
            _ => config.advice(self.bind_parameter(), VALID_ADDRESSES),
        };
        log::warning!("{advice}");
        ListenError
    }
}

impl PortKind {
    /// Returns the parameter with the number of the port.
    fn parameter(self) -> ParameterId {
        match self {
            PortKind::Tcp => id::PORT,
            PortKind::Tls => id::TLS_PORT,
            PortKind::Metrics => id::METRICS_PORT,
        }
    }

    fn name(self) -> &'static str {
        match self {
            PortKind::Tcp => "tcp",
            PortKind::Tls => "tls",
            PortKind::Metrics => "metrics",
        }
    }
}

/// Sets the mark of `socket-mark-id` on a listening socket; accepted connections inherit it. Setting it needs a
/// privilege. A server without the privilege logs a warning and continues without the mark.
pub fn set_socket_mark(listener: &Listener, config: &Config) {
    let mark = config.unsigned(id::SOCKET_MARK_ID) as u32;
    if mark == 0 {
        return;
    }
    if let Err(errno) = setsockopt(listener, sockopt::Mark, &mark) {
        log::warning!(
            "Could not set the mark of a listening socket: {}",
            errno_text(errno as i32)
        );
    }
}

/// Logs that the Unix socket cannot be opened because of `parameter`, and what would be valid.
fn log_unix_failure(error: &io::Error, parameter: ParameterId, config: &Config) -> ListenError {
    log::warning!("Failed opening Unix socket: {}", describe_error(error));
    let valid = match parameter == id::UNIXSOCKETGROUP {
        true => VALID_SOCKET_GROUP,
        false => VALID_SOCKET_PATH,
    };
    log::warning!("{}", config.advice(parameter, valid));
    ListenError
}

/// Logs that no socket is open, and which parameters would open one.
fn log_no_listener(config: &Config) {
    log::warning!("Configured to not listen anywhere, exiting.");
    match ListenPurpose::Clients.ports(config).iter().all(|port| port.number == 0) {
        true => log::warning!("port and tls-port are 0, and unixsocket is empty: set one of them."),
        false => log::warning!("{}", config.advice(id::BIND, VALID_ADDRESSES)),
    }
}

/// The file of a Unix socket. It is removed on drop, unless the path now holds a different file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// Listens at `path`. An existing socket there is left over from an earlier process and is removed. Any other file
    /// is an error.
    fn bind(path: &Path, permissions: Option<u32>, backlog: u32) -> io::Result<(SocketFile, Listener)> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = Listener::unix(path, permissions, backlog)?;
        let metadata = std::fs::symlink_metadata(path)?;
        let file = SocketFile {
            // The working directory may change before the file is removed.
            path: std::path::absolute(path)?,
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        Ok((file, listener))
    }

    /// Sets the group of the file; an empty name leaves it unchanged.
    fn set_group(&self, group: &[u8]) -> io::Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        Ok(chown(&self.path, None, Some(find_group(group)?))?)
    }
}

/// Returns the id of the group with that name.
fn find_group(name: &[u8]) -> io::Result<Gid> {
    let name = String::from_utf8_lossy(name);
    let group = Group::from_name(&name)?.ok_or_else(|| io::Error::other(format!("group '{name}' does not exist")))?;
    Ok(group.gid)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| found.dev() == self.device && found.ino() == self.inode);
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            log::warning!("Error removing the unix socket file: {}", error_text(&error));
        }
    }
}

mod bind_address;
mod check;
#[cfg(test)]
mod tests;
