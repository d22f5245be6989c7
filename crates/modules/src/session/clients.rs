//! What functions about clients need from the server, by the ids of clients.

/// The flags of a client, as modules see them (`VALKEYMODULE_CLIENTINFO_FLAG_*`).
pub mod client_flags {
    /// The connection uses TLS.
    pub const TLS: u64 = 1;
    /// It is subscribed to channels, and speaks RESP2.
    pub const PUBSUB: u64 = 1 << 1;
    /// It is blocked.
    pub const BLOCKED: u64 = 1 << 2;
    /// It uses client-side caching.
    pub const TRACKING: u64 = 1 << 3;
    /// The connection is a Unix socket.
    pub const UNIX_SOCKET: u64 = 1 << 4;
    /// It is in a transaction.
    pub const MULTI: u64 = 1 << 5;
    /// It reads from a replica in cluster mode.
    pub const READ_ONLY: u64 = 1 << 6;
    /// It is the primary of this server.
    pub const PRIMARY: u64 = 1 << 7;
    /// It is a replica of this server.
    pub const REPLICA: u64 = 1 << 8;
    /// It monitors commands.
    pub const MONITOR: u64 = 1 << 9;
    /// It has authenticated, or need not.
    pub const AUTHENTICATED: u64 = 1 << 11;
    /// It has authenticated by itself at least once.
    pub const EVER_AUTHENTICATED: u64 = 1 << 12;
}

/// The reason why a client has not got a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameError {
    /// There is no such client.
    NoClient,
    /// The name has spaces or characters that cannot be printed.
    InvalidName,
}

/// A client with its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownClient {
    /// The client.
    pub info: ClientInfo,
    /// Its name; empty if it has none.
    pub name: Vec<u8>,
    /// The name of its user.
    pub user: Vec<u8>,
}

/// The part of [`super::Session`] for clients.
pub trait ClientSession {
    /// Returns a client. That of the session is described as it is now, others as they were after their last command.
    fn known_client(&mut self, id: u64) -> Option<KnownClient>;

    /// Gives a client a name; an empty one takes it away.
    ///
    /// # Errors
    /// If there is no such client, or the name is invalid.
    fn rename_client(&mut self, id: u64, name: &[u8]) -> Result<(), RenameError>;
}

/// The part of [`super::Host`] for clients.
pub trait ClientHost {
    /// Lets the workers describe their clients from now on, because there are modules.
    fn describe_clients(&self);
}

#[cfg(test)]
impl ClientSession for super::fake::FakeSession {
    fn known_client(&mut self, _id: u64) -> Option<KnownClient> {
        None
    }

    fn rename_client(&mut self, _id: u64, _name: &[u8]) -> Result<(), RenameError> {
        Err(RenameError::NoClient)
    }
}

/// A client, as modules see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its id.
    pub id: u64,
    /// Its flags, of [`client_flags`].
    pub flags: u64,
    /// Its address, or the path of its Unix socket.
    pub address: String,
    /// Its port; 0 for a Unix socket.
    pub port: u16,
    /// Its database.
    pub db: u16,
}
