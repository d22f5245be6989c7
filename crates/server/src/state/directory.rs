//! The directory of clients: the worker of each client, found by the client's id.
//!
//! It is written when a connection starts, moves and ends. While a connection moves, its old worker stays in the
//! directory until the connection is in the new worker's mailbox. So mail for the client goes to a worker that has the
//! connection, or that had it and forwards the mail, and never arrives before the connection.
//!
//! A worker that reads mail for a client that it does not have forwards it to the worker that the directory names. That
//! may be the worker itself: the connection has left it and returned, and is behind the mail in its mailbox. So the
//! directory holds no client whose connection belongs to no worker: such mail would be forwarded for ever.

use std::collections::HashMap;

use super::WorkerId;

use weft_os::sync::Mutex;

const SHARD_COUNT: usize = 64;

/// The worker of each client.
pub struct ClientDirectory([Mutex<HashMap<u64, WorkerId>>; SHARD_COUNT]);

impl Default for ClientDirectory {
    fn default() -> Self {
        ClientDirectory(std::array::from_fn(|_| Mutex::default()))
    }
}

impl ClientDirectory {
    /// Records the worker of a client.
    pub fn set_worker(&self, client: u64, worker: WorkerId) {
        self.shard(client).lock().insert(client, worker);
    }

    /// Removes a client that has disconnected.
    pub fn remove(&self, client: u64) {
        self.shard(client).lock().remove(&client);
    }

    /// Returns the worker of a client, or `None` if the client has disconnected.
    pub fn worker_of(&self, client: u64) -> Option<WorkerId> {
        self.shard(client).lock().get(&client).copied()
    }

    fn shard(&self, client: u64) -> &Mutex<HashMap<u64, WorkerId>> {
        &self.0[client as usize % SHARD_COUNT]
    }
}
