//! An address to listen at, as the parameter `bind` names it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use nix::errno::Errno;

use crate::observability::log;
use weft_base::files::error_text;

/// One address of the parameter `bind`, or of another one with the same syntax.
pub struct BindAddress<'config> {
    /// The address as configured, without the leading `-`.
    name: &'config str,
    /// `true` if the address may be absent from this machine.
    is_optional: bool,
}

impl<'config> BindAddress<'config> {
    /// Parses a word of the parameter.
    pub fn parse(word: &'config str) -> BindAddress<'config> {
        match word.strip_prefix('-') {
            Some(name) => BindAddress {
                name,
                is_optional: true,
            },
            None => BindAddress {
                name: word,
                is_optional: false,
            },
        }
    }

    /// Resolves the address. A name with a colon is IPv6. Any other name is IPv4, as an address or as a host name.
    ///
    /// # Errors
    /// If the system knows no such name.
    pub fn address(&self) -> io::Result<IpAddr> {
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

    /// Logs that no socket could be opened at this address.
    pub fn log_failure(&self, port: u16, error: &io::Error) {
        log::warning!(
            "Warning: Could not create server TCP listening socket {}:{}: {}",
            self.name,
            port,
            describe_error(error)
        );
    }

    /// Returns `true` if the server may run without this socket: the address is optional and absent from this machine,
    /// or the kernel does not support the protocol.
    pub fn tolerates(&self, error: &io::Error) -> bool {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EADDRNOTAVAIL) => self.is_optional,
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

/// Formats an error with the name of the system call that failed, if the error identifies it.
pub(super) fn describe_error(error: &io::Error) -> String {
    let text = error_text(error);
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EADDRINUSE | Errno::EADDRNOTAVAIL | Errno::EACCES | Errno::ENOENT) => format!("bind: {text}"),
        Some(Errno::EAFNOSUPPORT) => format!("socket: {text}"),
        _ => text,
    }
}
