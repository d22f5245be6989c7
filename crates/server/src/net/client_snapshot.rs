//! Portraits of clients: what others are shown of them as they were at one moment.

use std::sync::Arc;

use super::client::{Buffers, Client};
use crate::clients_waiting::blocking::Waiter;

/// What a client was waiting for.
pub enum WaitState {
    /// Keys.
    Keys(Arc<Waiter>),
    /// Something else, under this ticket.
    Other(u64),
}

/// A client at one moment.
pub struct ClientSnapshot {
    /// What is shown of it.
    pub client: Client,
    /// The figures of its connection.
    pub buffers: Buffers,
    /// What it was waiting for.
    pub waiting: Option<WaitState>,
}

/// What is told of a client's transaction and watches where those themselves are not at hand.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Commands that wait for EXEC, or are run by it.
    pub queued: i64,
    /// What the transaction takes, bytes.
    pub queued_bytes: usize,
    /// Keys that are watched.
    pub watched: usize,
    /// Whether one of them changed.
    pub is_dirty: bool,
}
