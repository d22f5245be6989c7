//! Ids of clients.

use std::fmt;

/// The id of a client, as CLIENT ID returns it. A process numbers its connections from 1 on and never uses an id twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ClientId(u64);

impl ClientId {
    /// No connection: a client that the server itself makes to run commands.
    pub const NONE: ClientId = ClientId(0);

    /// Creates the id with this number, or [`ClientId::NONE`] for 0.
    pub const fn new(number: u64) -> ClientId {
        ClientId(number)
    }

    /// Returns the number of the client; 0 if there is none.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
