//! Parked connections and their workers.

use crate::{ClientId, ParkId, ThreadIndex};

/// A client whose connection is parked until another thread replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedClient {
    /// The worker that parked the connection.
    pub worker: ThreadIndex,
    /// The id of the client.
    pub client: ClientId,
    /// The id under which the connection is parked.
    pub park_id: ParkId,
}
