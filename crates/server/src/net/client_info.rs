//! Clients as modules see them.

use weft_base::DbIndex;
use weft_modules::module::server_events::{self, EventKind, ServerEvent};
use weft_modules::session::clients::{ClientInfo, KnownClient, client_flags as flags};

use super::client::{Client, ClientFlags};
use weft_acl::Acl;

/// Splits an address into its host, without the brackets of IPv6, and its port.
fn host_and_port(address: &str) -> (&str, u16) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    (bare.unwrap_or(host), port.parse().unwrap_or(0))
}

/// Describes a client. `is_authenticated` is `true` if it has authenticated, or need not.
pub fn info_of(client: &Client, is_authenticated: bool) -> ClientInfo {
    let pairs = [
        (ClientFlags::TLS, flags::TLS),
        (ClientFlags::PUBSUB, flags::PUBSUB),
        (ClientFlags::BLOCKED, flags::BLOCKED),
        (ClientFlags::UNIX_SOCKET, flags::UNIX_SOCKET),
        (ClientFlags::MULTI, flags::MULTI),
        (ClientFlags::READONLY, flags::READ_ONLY),
        (ClientFlags::PRIMARY, flags::PRIMARY),
        (ClientFlags::REPLICA, flags::REPLICA),
        (ClientFlags::MONITOR, flags::MONITOR),
        (ClientFlags::HAS_AUTHENTICATED, flags::EVER_AUTHENTICATED),
    ];
    let of_pair = |(flag, shown): &(ClientFlags, u64)| if client.flags.contains(*flag) { *shown } else { 0 };
    let mut shown = pairs.iter().map(of_pair).fold(0, |all, one| all | one);
    if client.tracking.is_some() {
        shown |= flags::TRACKING;
    }
    if is_authenticated {
        shown |= flags::AUTHENTICATED | flags::EVER_AUTHENTICATED;
    }
    let (host, port) = host_and_port(&client.address);
    ClientInfo {
        id: client.id.get(),
        flags: shown,
        address: host.to_owned(),
        port,
        db: client.db.get() as u16,
    }
}

/// What a description of a client was made from.
pub struct DescribedState {
    db: DbIndex,
    flags: ClientFlags,
    is_authenticated: bool,
    is_tracking: bool,
    user: Vec<u8>,
    name: Vec<u8>,
}

impl DescribedState {
    /// Copies the state of a client.
    pub fn of(client: &Client) -> DescribedState {
        DescribedState {
            db: client.db,
            flags: client.flags,
            is_authenticated: client.login.is_authenticated(),
            is_tracking: client.tracking.is_some(),
            user: client.login.name().to_vec(),
            name: client.name.clone(),
        }
    }

    /// Returns `true` if the client has not changed since.
    pub fn is_still_true_of(&self, client: &Client) -> bool {
        self.db == client.db
            && self.flags == client.flags
            && self.is_authenticated == client.login.is_authenticated()
            && self.is_tracking == client.tracking.is_some()
            && self.user == client.login.name()
            && self.name == client.name
    }
}

/// Describes a client with its names.
pub fn describe(client: &Client, acl: &Acl) -> KnownClient {
    KnownClient {
        info: info_of(client, client.login.is_authenticated() || acl.is_open()),
        name: client.name.clone(),
        user: client.login.name().to_vec(),
    }
}

/// Lets modules know that a client has connected, or has disconnected.
pub fn send_client_event(client: &Client, is_connected: bool) {
    server_events::send(EventKind::ClientChange, || ServerEvent::ClientChanged {
        is_connected,
        client: Box::new(info_of(client, client.login.is_authenticated())),
    });
}

#[cfg(test)]
mod tests {
    //! Tests of addresses.

    use super::host_and_port;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(host_and_port("127.0.0.1:6379"), ("127.0.0.1", 6379));
        assert_eq!(host_and_port("[::1]:1"), ("::1", 1));
        assert_eq!(host_and_port("/tmp/socket:0"), ("/tmp/socket", 0));
        assert_eq!(host_and_port("?"), ("?", 0));
    }
}
