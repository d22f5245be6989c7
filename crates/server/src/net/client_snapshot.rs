//! Snapshots of clients: the state of a client at one moment, for replies about clients.

use std::sync::Arc;

use weft_base::ParkId;

use super::client::{BufferFigures, Client};
use crate::clients_waiting::blocking::Waiter;

/// The event for which a client was waiting.
pub enum WaitState {
    /// Keys.
    Keys(Arc<Waiter>),
    /// Another event, with this id of the parked connection.
    Other(ParkId),
}

/// The state of a client at one moment.
pub struct ClientSnapshot {
    /// The client.
    pub client: Client,
    /// The figures of its connection.
    pub buffers: BufferFigures,
    /// The event for which the client was waiting.
    pub wait_state: Option<WaitState>,
}

/// Figures of a client's transaction and watches, for use where those themselves are not available.
#[derive(Clone, Copy, Debug)]
pub struct TransactionFigures {
    /// The number of commands that are queued, or that EXEC is running.
    pub queued: i64,
    /// The bytes of memory that the transaction takes.
    pub queued_bytes: usize,
    /// The number of watched keys.
    pub watched: usize,
    /// `true` if a watched key has changed.
    pub is_dirty: bool,
}
