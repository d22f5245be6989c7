//! The directory of clients: the worker of each client, found by the client's id, and if a transaction has killed it.
//!
//! It is written when a connection starts, moves and ends. While a connection moves, its old worker stays in the
//! directory until the connection is in the new worker's mailbox. So mail for the client goes to a worker that has the
//! connection, or that had it and forwards the mail, and never arrives before the connection.
//!
//! A worker that reads mail for a client that it does not have forwards it to the worker that the directory names. That
//! may be the worker itself: the connection has left it and returned, and is behind the mail in its mailbox. So the
//! directory holds no client whose connection belongs to no worker: such mail would be forwarded for ever. A worker
//! that gives a connection to another thread removes the client before it reads mail again.
//!
//! A transaction kills clients by mail to their workers, which read it later. Until then the directory names them as
//! killed. So no command of such a client runs after the transaction, and no wait of it is served. A command that
//! another thread runs later, when the worker has closed the client, finds that in its view of the client.

use std::collections::HashMap;
use std::sync::Arc;

use crate::net::client::Client;

use weft_base::{ClientId, ThreadIndex};
use weft_modules::session::clients::KnownClient;
use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::Mutex;

const SHARD_COUNT: usize = 64;

struct DirectoryEntry {
    worker: ThreadIndex,
    /// `true` if a transaction has killed the client, and its worker has not closed it yet.
    is_killed: bool,
    /// `true` if the client sends nothing more.
    has_ended_input: bool,
    /// The certificate of the client, in DER.
    certificate: Option<Arc<[u8]>>,
    /// The client as modules see it; `None` before its worker has described it.
    known: Option<Box<KnownClient>>,
}

/// The worker of each client.
pub struct ClientDirectory {
    shards: [Mutex<HashMap<ClientId, DirectoryEntry>>; SHARD_COUNT],
    /// The number of clients that are killed and not closed yet. It is nearly always zero.
    killed: AtomicUsize,
}

impl Default for ClientDirectory {
    fn default() -> Self {
        ClientDirectory {
            shards: std::array::from_fn(|_| Mutex::default()),
            killed: AtomicUsize::new(0),
        }
    }
}

impl ClientDirectory {
    /// Records the worker of a new client.
    pub fn add(&self, client: ClientId, worker: ThreadIndex) {
        let entry = DirectoryEntry {
            worker,
            is_killed: false,
            has_ended_input: false,
            certificate: None,
            known: None,
        };
        self.shard(client).lock().insert(client, entry);
    }

    /// Records that a client sends nothing more, because it has closed its side of the connection.
    pub fn note_end_of_input(&self, client: ClientId) {
        if let Some(entry) = self.shard(client).lock().get_mut(&client) {
            entry.has_ended_input = true;
        }
    }

    /// Records the certificate of a client, in DER.
    pub fn note_certificate(&self, client: ClientId, certificate: Vec<u8>) {
        if let Some(entry) = self.shard(client).lock().get_mut(&client) {
            entry.certificate = Some(certificate.into());
        }
    }

    /// Returns the certificate of a client, in DER; `None` if it has disconnected or has none.
    pub fn certificate(&self, client: ClientId) -> Option<Arc<[u8]>> {
        self.shard(client).lock().get(&client)?.certificate.clone()
    }

    /// Records the description of a client for modules.
    pub fn describe(&self, client: ClientId, known: KnownClient) {
        if let Some(entry) = self.shard(client).lock().get_mut(&client) {
            entry.known = Some(Box::new(known));
        }
    }

    /// Returns the description of a client for modules; `None` if it has disconnected, or its worker has not described
    /// it yet.
    pub fn description(&self, client: ClientId) -> Option<KnownClient> {
        self.shard(client).lock().get(&client)?.known.as_deref().cloned()
    }

    /// Returns `true` if a client has disconnected, or sends nothing more. A client that waits for the reply of another
    /// thread stays connected until then.
    pub fn has_left(&self, client: ClientId) -> bool {
        (self.shard(client).lock().get(&client)).is_none_or(|entry| entry.has_ended_input)
    }

    /// Calls `send`, which mails the connection of a client to another worker, and records that worker. The new worker
    /// can neither move nor remove the client before that is recorded, so no entry outlives its client.
    pub fn move_client(&self, client: ClientId, worker: ThreadIndex, send: impl FnOnce()) {
        let mut shard = self.shard(client).lock();
        send();
        let entry = shard.get_mut(&client);
        debug_assert!(entry.is_some(), "a client whose connection moves is in the directory");
        if let Some(entry) = entry {
            entry.worker = worker;
        }
    }

    /// Removes a client that has disconnected.
    pub fn remove(&self, client: ClientId) {
        self.remove_entry(client, || ());
    }

    /// Removes a client that has disconnected. If a transaction has killed it, its commands that wait on other threads
    /// do not run any more.
    pub fn remove_client(&self, client: &Client) {
        self.remove_entry(client.id, || client.stop_detached_commands());
    }

    /// Removes a client whose connection has left the workers. Returns `true` if a transaction has killed the client:
    /// its worker cannot close it any more.
    #[must_use]
    pub fn remove_departed(&self, client: ClientId) -> bool {
        self.remove_entry(client, || ())
    }

    /// Removes an entry. Calls `before` first if a transaction has killed the client: one of both is always visible.
    /// Returns `true` if one has.
    fn remove_entry(&self, client: ClientId, before: impl FnOnce()) -> bool {
        let mut shard = self.shard(client).lock();
        let is_killed = shard.get(&client).is_some_and(|entry| entry.is_killed);
        if is_killed {
            before();
            self.killed.fetch_sub(1, Ordering::AcqRel);
        }
        shard.remove(&client);
        is_killed
    }

    /// Records that a transaction kills a client. The caller holds exclusive mode, so that every command of the client
    /// has run before the transaction or finds the client killed. Returns the client's worker, which must close it;
    /// `None` if the client has disconnected.
    pub fn mark_killed(&self, client: ClientId) -> Option<ThreadIndex> {
        let mut shard = self.shard(client).lock();
        let entry = shard.get_mut(&client)?;
        if !entry.is_killed {
            entry.is_killed = true;
            self.killed.fetch_add(1, Ordering::AcqRel);
        }
        Some(entry.worker)
    }

    /// Returns `true` if some client is killed and not closed yet. No client is killed while the caller is within the
    /// gate.
    #[inline]
    pub fn has_killed_clients(&self) -> bool {
        self.killed.load(Ordering::Acquire) > 0
    }

    /// Returns `true` if a transaction has killed a client.
    #[inline]
    pub fn is_killed(&self, client: ClientId) -> bool {
        self.has_killed_clients() && self.is_listed_as_killed(client)
    }

    /// Returns `true` if a client was killed: by a transaction, or, if this is a view that was detached for another
    /// thread, by CLIENT KILL.
    pub fn was_killed(&self, client: &Client) -> bool {
        // In this order, see `remove_client`.
        self.is_killed(client.id) || client.was_killed()
    }

    #[cold]
    fn is_listed_as_killed(&self, client: ClientId) -> bool {
        self.shard(client)
            .lock()
            .get(&client)
            .is_some_and(|entry| entry.is_killed)
    }

    /// Returns the worker of a client, or `None` if the client has disconnected.
    pub fn worker_of(&self, client: ClientId) -> Option<ThreadIndex> {
        self.shard(client).lock().get(&client).map(|entry| entry.worker)
    }

    fn shard(&self, client: ClientId) -> &Mutex<HashMap<ClientId, DirectoryEntry>> {
        &self.shards[client.get() as usize % SHARD_COUNT]
    }
}

#[cfg(test)]
mod tests;
