//! Listening sockets: which ones the configuration asks for, opening them, and opening others at run time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use weft_reactor::{Listener, Reactor, Socket, Token};

use crate::config::{Config, error_text, id};
use crate::observability::log;

/// A connection that somebody has made.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// Its socket.
    pub socket: Socket,
    /// Whether it was made to the port for TLS.
    pub is_tls: bool,
    /// What the client is told instead of being served, once both sides have agreed on keys.
    pub refusal: Option<&'static str>,
}

/// The server cannot listen where it shall; the log has told why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotListen;

/// What is listened on. The sockets are in a reactor.
#[derive(Debug, Default)]
pub struct Listeners {
    tcp: Vec<OpenListener>,
    unix: Option<SocketFile>,
    /// Whether new ones offer Multipath TCP.
    is_multipath: bool,
}

#[derive(Debug)]
struct OpenListener {
    address: IpAddr,
    port: u16,
    is_tls: bool,
    token: Token,
}

/// What kinds of sockets there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// TCP.
    pub tcp: bool,
    /// TCP with TLS.
    pub tls: bool,
    /// A Unix socket.
    pub unix: bool,
}

/// One word of `bind`.
struct BindAddress<'config> {
    /// As configured, without the sign.
    name: &'config str,
    /// It may be missing.
    optional: bool,
}

impl Listeners {
    /// Opens everything the configuration asks for.
    ///
    /// # Errors
    /// When something cannot be opened, or there is nothing to open.
    pub fn open(config: &Config, reactor: &mut Reactor) -> Result<Listeners, CannotListen> {
        let mut listeners = Listeners::default();
        listeners.listen_ports(config, reactor).map_err(|(port, is_tls)| {
            log::warning!("Failed listening on port {port} ({}), aborting.", kind_name(is_tls));
            CannotListen
        })?;
        listeners.listen_unix(config, reactor)?;
        if listeners.tcp.is_empty() && listeners.unix.is_none() {
            log::warning!("Configured to not listen anywhere, exiting.");
            return Err(CannotListen);
        }
        Ok(listeners)
    }

    /// Makes the TCP sockets those that the configuration asks for now: closes the others, then opens what
    /// is missing. A socket that stays loses no connection.
    ///
    /// # Errors
    /// When one cannot be opened; then none of the missing ones is.
    pub fn listen_tcp(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), CannotListen> {
        self.listen_ports(config, reactor).map_err(|_| CannotListen)
    }

    /// The same; the error is the port where it failed, and whether that is for TLS.
    fn listen_ports(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), (u16, bool)> {
        let ports = [(id::PORT, false), (id::TLS_PORT, true)].map(|(id, is_tls)| (config.integer(id) as u16, is_tls));
        let addresses = config.addresses(id::BIND);
        let places: Vec<BindAddress<'_>> = addresses.iter().map(|word| BindAddress::read(word)).collect();
        let wanted: Vec<IpAddr> = places.iter().filter_map(|place| place.address().ok()).collect();
        self.close_tcp(reactor, |open| {
            !ports.contains(&(open.port, open.is_tls)) || !wanted.contains(&open.address)
        });
        self.is_multipath = config.boolean(id::MPTCP);
        let kept = self.tcp.len();
        for (port, is_tls) in ports.into_iter().filter(|(port, _)| *port != 0) {
            let listens = places
                .iter()
                .try_for_each(|place| self.listen_at_place(place, (port, is_tls), config, reactor));
            if listens.is_err() {
                let last = self.tcp.split_off(kept);
                last.iter()
                    .for_each(|open| drop(reactor.deregister_listener(open.token)));
                return Err((port, is_tls));
            }
        }
        Ok(())
    }

    fn listen_at_place(
        &mut self,
        place: &BindAddress<'_>,
        (port, is_tls): (u16, bool),
        config: &Config,
        reactor: &mut Reactor,
    ) -> Result<(), CannotListen> {
        let Err(error) = self.listen_at(place, (port, is_tls), config, reactor) else {
            return Ok(());
        };
        log::warning!(
            "Warning: Could not create server TCP listening socket {}:{port}: {}",
            place.name,
            reason(&error)
        );
        match place.forgives(&error) {
            true => Ok(()),
            false => Err(CannotListen),
        }
    }

    /// What kinds of sockets there are.
    pub fn kinds(&self) -> Kinds {
        Kinds {
            tcp: self.tcp.iter().any(|open| !open.is_tls),
            tls: self.tcp.iter().any(|open| open.is_tls),
            unix: self.unix.is_some(),
        }
    }

    /// Whether who connects there has to speak TLS.
    pub fn is_tls(&self, token: Token) -> bool {
        self.tcp.iter().any(|open| open.token == token && open.is_tls)
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
        place: &BindAddress<'_>,
        (port, is_tls): (u16, bool),
        config: &Config,
        reactor: &mut Reactor,
    ) -> io::Result<()> {
        let address = place.address()?;
        let is_same = |open: &OpenListener| (open.address, open.port, open.is_tls) == (address, port, is_tls);
        if self.tcp.iter().any(is_same) {
            return Ok(());
        }
        let backlog = config.unsigned(id::TCP_BACKLOG) as u32;
        let listener = match self.is_multipath {
            true => Listener::multipath_tcp(address, port, backlog).or_else(|error| {
                log::warning!("Listening without Multipath TCP: {}", reason(&error));
                Listener::tcp(address, port, backlog)
            })?,
            false => Listener::tcp(address, port, backlog)?,
        };
        mark(&listener, config);
        let token = self.register(listener, reactor)?;
        self.tcp.push(OpenListener {
            address,
            port,
            is_tls,
            token,
        });
        Ok(())
    }

    fn listen_unix(&mut self, config: &Config, reactor: &mut Reactor) -> Result<(), CannotListen> {
        let path = config.text(id::UNIXSOCKET);
        if path.is_empty() {
            return Ok(());
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&path));
        let permissions = match config.unsigned(id::UNIXSOCKETPERM) as u32 {
            0 => None,
            mode => Some(mode),
        };
        let opened = SocketFile::bind(path, permissions, config.unsigned(id::TCP_BACKLOG) as u32).and_then(
            |(file, listener)| {
                file.give_to(&config.text(id::UNIXSOCKETGROUP))?;
                self.register(listener, reactor)?;
                Ok(file)
            },
        );
        match opened {
            Ok(file) => {
                self.unix = Some(file);
                Ok(())
            }
            Err(error) => {
                log::warning!("Failed opening Unix socket: {}", reason(&error));
                Err(CannotListen)
            }
        }
    }

    /// Tokens go up only so far: the reactor's table is dense, so a free one is used first.
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

impl<'config> BindAddress<'config> {
    fn read(word: &'config str) -> BindAddress<'config> {
        match word.strip_prefix('-') {
            Some(name) => BindAddress { name, optional: true },
            None => BindAddress {
                name: word,
                optional: false,
            },
        }
    }

    /// The address: a colon makes it IPv6, anything else is IPv4, as an address or as a name of this machine.
    fn address(&self) -> io::Result<IpAddr> {
        match self.name {
            "*" => Ok(Ipv4Addr::UNSPECIFIED.into()),
            "::*" => Ok(Ipv6Addr::UNSPECIFIED.into()),
            name => {
                let is_ipv6 = name.contains(':');
                (name, 0)
                    .to_socket_addrs()?
                    .map(|address| address.ip())
                    .find(|address| address.is_ipv6() == is_ipv6)
                    .ok_or_else(|| io::Error::other("Name or service not known"))
            }
        }
    }

    /// Whether the server listens without it: an optional address this machine does not have, or a protocol
    /// the kernel does not speak.
    fn forgives(&self, error: &io::Error) -> bool {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EADDRNOTAVAIL) => self.optional,
            Some(
                Errno::ENOPROTOOPT
                | Errno::EPROTONOSUPPORT
                | Errno::ESOCKTNOSUPPORT
                | Errno::EPFNOSUPPORT
                | Errno::EAFNOSUPPORT,
            ) => true,
            _ => false,
        }
    }
}

/// Puts the mark of `socket-mark-id` on a listening socket, from which connections have theirs. That is for the privileged;
/// a server that may not do it serves without.
pub fn mark(listener: &Listener, config: &Config) {
    let mark = config.unsigned(id::SOCKET_MARK_ID) as u32;
    if mark == 0 {
        return;
    }
    if let Err(errno) = setsockopt(listener, sockopt::Mark, &mark) {
        log::warning!("The mark of a socket could not be set: {}", errno.desc());
    }
}

fn kind_name(is_tls: bool) -> &'static str {
    if is_tls { "tls" } else { "tcp" }
}

/// An error with the step it comes from, where that is certain.
fn reason(error: &io::Error) -> String {
    let text = error_text(error);
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EADDRINUSE | Errno::EADDRNOTAVAIL | Errno::EACCES | Errno::ENOENT) => format!("bind: {text}"),
        Some(Errno::EAFNOSUPPORT) => format!("socket: {text}"),
        _ => text,
    }
}

/// The file of a Unix socket; removed when dropped, unless somebody else has taken the path.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Listens at `path`. A socket that lies there already is a leftover, and makes room; any other file does
    /// not.
    fn bind(path: &Path, permissions: Option<u32>, backlog: u32) -> io::Result<(SocketFile, Listener)> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = Listener::unix(path, permissions, backlog)?;
        let metadata = std::fs::symlink_metadata(path)?;
        let file = SocketFile {
            // The working directory may change before it is removed.
            path: std::path::absolute(path)?,
            identity: (metadata.dev(), metadata.ino()),
        };
        Ok((file, listener))
    }

    /// Makes a group the owner; an empty name leaves it.
    fn give_to(&self, group: &[u8]) -> io::Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        let name = String::from_utf8_lossy(group);
        let group = nix::unistd::Group::from_name(&name)?
            .ok_or_else(|| io::Error::other(format!("there is no group '{name}'")))?;
        Ok(nix::unistd::chown(&self.path, None, Some(group.gid))?)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours =
            std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            log::warning!("Error removing the unix socket file: {}", error_text(&error));
        }
    }
}

#[cfg(test)]
mod tests;
