//! Checks, without a start, that the configured addresses and the path of the Unix socket can be used. A server that
//! runs is not disturbed: no port of the configuration is opened, and no file is created or removed.

use std::ffi::OsStr;
use std::io;
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, eaccess};

use super::{
    BindAddress, ListenError, ListenPort, ListenPurpose, Listeners, VALID_ADDRESSES, find_group, log_no_listener,
    log_unix_failure,
};
use crate::observability::log;
use weft_config::{Config, id};

/// The maximum length of the path of a Unix socket, in bytes: `sun_path` holds 108, the last of which is 0.
const MAX_SOCKET_PATH_BYTES: usize = 107;

impl Listeners {
    /// Checks the addresses of `bind` and `metrics-bind`, if their ports are set, and `unixsocket`. Another server may
    /// use the ports: this is not checked.
    ///
    /// # Errors
    /// If a start would fail for another reason than a port in use. The reason has been logged as by a start.
    pub fn check(config: &Config) -> Result<(), ListenError> {
        let tcp = check_addresses(ListenPurpose::Clients, config)?;
        check_unix(config)?;
        if tcp.unwrap_or(0) == 0 && config.text(id::UNIXSOCKET).is_empty() {
            log_no_listener(config);
            return Err(ListenError);
        }
        if check_addresses(ListenPurpose::Metrics, config)? == Some(0) {
            log::warning!("No address of metrics-bind is available, exiting.");
            log::warning!("{}", config.advice(id::METRICS_BIND, VALID_ADDRESSES));
            return Err(ListenError);
        }
        Ok(())
    }
}

/// Returns the number of available addresses, or `None` if no port is set.
fn check_addresses(purpose: ListenPurpose, config: &Config) -> Result<Option<usize>, ListenError> {
    let Some(port) = purpose.ports(config).into_iter().find(|port| port.number != 0) else {
        return Ok(None);
    };
    let mut available = 0;
    for word in config.addresses(purpose.bind_parameter()).iter() {
        let address = BindAddress::parse(word);
        match check_address(&address, port) {
            Ok(()) => available += 1,
            Err(error) if address.tolerates(&error) => {}
            Err(error) => return Err(purpose.log_failure(port, &error, config)),
        }
    }
    Ok(Some(available))
}

/// Checks that the address is one of this machine. The socket is closed at once, has a port that the system chooses,
/// and is one of UDP, so no client can connect to it.
fn check_address(address: &BindAddress<'_>, port: ListenPort) -> io::Result<()> {
    let bound = address.address().and_then(|address| UdpSocket::bind((address, 0)));
    bound
        .map(drop)
        .inspect_err(|error| address.log_failure(port.number, error))
}

fn check_unix(config: &Config) -> Result<(), ListenError> {
    let path = config.text(id::UNIXSOCKET);
    if path.is_empty() {
        return Ok(());
    }
    check_socket_path(&path).map_err(|error| log_unix_failure(&error, id::UNIXSOCKET, config))?;
    let group = config.text(id::UNIXSOCKETGROUP);
    if !group.is_empty() {
        find_group(&group).map_err(|error| log_unix_failure(&error, id::UNIXSOCKETGROUP, config))?;
    }
    Ok(())
}

/// Checks that a socket can be created at `path`. An existing socket there is replaced by a start.
fn check_socket_path(path: &[u8]) -> io::Result<()> {
    if path.len() > MAX_SOCKET_PATH_BYTES {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let path = Path::new(OsStr::from_bytes(path));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    eaccess(directory, AccessFlags::W_OK | AccessFlags::X_OK)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(Errno::EADDRINUSE.into()),
        _ => Ok(()),
    }
}
