//! Which worker a client is on, for those who know nothing of it but its id.
//!
//! Written when a connection begins, moves and ends. While a connection moves, its old worker stays in the directory
//! until the connection is in the new one's mailbox: mail for it goes to a worker that has it, or had it and sends the
//! mail on, and never arrives before it.

use std::collections::HashMap;
use std::sync::Mutex;

use super::WorkerId;
use crate::observability::lock;

const SHARDS: usize = 64;

/// Workers by client.
pub struct Directory([Mutex<HashMap<u64, WorkerId>>; SHARDS]);

impl Default for Directory {
    fn default() -> Self {
        Directory(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Directory {
    /// A client is there now.
    pub fn put(&self, client: u64, worker: WorkerId) {
        lock(self.shard(client)).insert(client, worker);
    }

    /// A client is gone.
    pub fn remove(&self, client: u64) {
        lock(self.shard(client)).remove(&client);
    }

    /// The worker of a client; `None` if it is gone.
    pub fn worker_of(&self, client: u64) -> Option<WorkerId> {
        lock(self.shard(client)).get(&client).copied()
    }

    fn shard(&self, client: u64) -> &Mutex<HashMap<u64, WorkerId>> {
        &self.0[client as usize % SHARDS]
    }
}
