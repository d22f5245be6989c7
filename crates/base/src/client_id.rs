//! Ids of clients.

use std::fmt;

/// The id of a client, as CLIENT ID returns it. A process numbers its connections from 1 on and never uses an id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ClientId(u64);

impl ClientId {
    /// Creates the id with this number.
    pub const fn new(number: u64) -> ClientId {
        ClientId(number)
    }

    /// Returns the number of the client.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
