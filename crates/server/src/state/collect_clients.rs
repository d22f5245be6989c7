//! Collects snapshots of all clients for a transaction, and applies the transaction's actions on clients.
//!
//! Clients belong to their workers, and a transaction cannot query a worker: a thread that waits for a worker while it
//! holds leases or the gate may deadlock with itself. So EXEC collects the snapshots beforehand, if one of its commands
//! reports on clients:
//!
//! ```text
//!   EXEC ─▶ commands on clients? ─▶ snapshots of all clients ─▶ EXEC once more: runs with the snapshots
//! ```
//!
//! 1. To all other clients a transaction is one step. So the state of the clients right before it is their state
//!    throughout, except for the changes that the transaction makes itself. Those are applied to the snapshots at once,
//!    and mailed to the workers.
//! 2. A wait for keys is ended by claiming its waiter, as everywhere, so that a client is never both served and
//!    unblocked.
//! 3. The client that runs the transaction is read directly, in its state at that command. So are links, which belong
//!    to no worker. A connection that has become a link, or that of a debugging session, since the snapshots counts as
//!    that only.

use std::collections::HashSet;

use std::sync::Arc;

use super::moving_connections::AllWorkersQuery;
use super::{ClientVisitor, Message, NextStep, Server, WorkerLink, WorkerQuery};
use crate::net::client::{BufferFigures, Client, ClientFlags};
use crate::net::client_snapshot::{ClientSnapshot, WaitState};
use crate::net::kill_mark::KillMark;
use weft_base::{ClientId, ParkedClient};
use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::Mutex;

/// Client snapshots on their way to the worker that requested them.
pub struct ClientCollection {
    requester: ParkedClient,
    client_snapshots: Mutex<Vec<ClientSnapshot>>,
    /// The number of workers whose clients are missing.
    pending_workers: AtomicUsize,
}

impl Server {
    /// Requests snapshots of the clients of all workers. They reach the requesting worker as
    /// [`Message::ClientsCollected`].
    pub fn collect_clients(&self, requester: ParkedClient) {
        let gathering = Arc::new(ClientCollection {
            requester,
            client_snapshots: Mutex::default(),
            pending_workers: AtomicUsize::new(self.workers.len()),
        });
        self.begin_query(AllWorkersQuery::ClientCollection(gathering));
    }
}

impl ClientCollection {
    /// Returns the id of the client whose snapshot is left out: the one that runs the transaction.
    pub fn requesting_client(&self) -> ClientId {
        self.requester.client
    }

    /// Adds the clients of one worker. With the last worker's clients, all are sent to the requesting worker.
    pub fn add_worker(&self, server: &Server, client_snapshots: Vec<ClientSnapshot>) {
        let mut all = self.client_snapshots.lock();
        all.extend(client_snapshots);
        if self.pending_workers.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut client_snapshots = std::mem::take(&mut *all);
        drop(all);
        server.end_query();
        // A connection that moved between two workers may have been seen by both.
        let mut seen = HashSet::new();
        client_snapshots.retain(|client_snapshot| seen.insert(client_snapshot.client.id));
        server.worker(self.requester.worker).send(Message::ClientsCollected {
            client: self.requester.client,
            park_id: self.requester.park_id,
            client_snapshots,
        });
    }
}

/// Closes the clients that a transaction has killed, at its end: until then INFO counts them as connected and closing.
/// The caller holds exclusive mode. Returns the step after which their workers have closed them, if there are any: the
/// reply waits for it, so that a client that has read it finds their connections closed.
pub fn close_killed_clients(server: &Server, client_snapshots: &[ClientSnapshot]) -> Option<NextStep> {
    let mut has_killed = false;
    let killed = client_snapshots
        .iter()
        .filter(|client_snapshot| ClientVisitorHost::is_gone(client_snapshot));
    for ClientSnapshot { client, .. } in killed {
        match server.clients.directory.mark_killed(client.id) {
            Some(worker) => {
                server.worker(worker).send(Message::CloseClient(client.id));
                has_killed = true;
            }
            // The connection may have left its worker since the snapshot.
            None => server.close_link(client.id),
        }
    }
    // The workers read this query after those messages.
    let query = || WorkerQuery {
        task: Box::new(|_| Vec::new()),
        combine: Box::new(|_| Vec::new()),
        awaits_killed_commands: false,
    };
    has_killed.then(|| NextStep::QueryWorkers(Box::new(query())))
}

impl Server {
    /// Records the end of a command that could not be stopped, and of all its effects. The answers of workers to CLIENT
    /// KILL may wait for it, of whichever worker had the connection when it was killed.
    pub fn end_lasting(&self, mark: &KillMark) {
        mark.end_lasting();
        if mark.is_killed() {
            self.workers.iter().for_each(WorkerLink::wake);
        }
    }
}

/// Visits all clients from within a transaction.
pub struct ClientVisitorHost<'a> {
    /// The server.
    pub server: &'a Server,
    /// The other clients.
    pub client_snapshots: &'a mut Vec<ClientSnapshot>,
    /// The client that runs the transaction.
    pub requesting_client: &'a mut Client,
    /// The buffer figures of that client.
    pub requesting_client_buffers: BufferFigures,
}

impl ClientVisitorHost<'_> {
    fn is_gone(client_snapshot: &ClientSnapshot) -> bool {
        client_snapshot.client.flags.contains(ClientFlags::CLOSE_ASAP)
    }
}

impl ClientVisitor for ClientVisitorHost<'_> {
    fn visit_clients(&mut self, visit: &mut dyn FnMut(&mut Client, BufferFigures)) {
        visit(self.requesting_client, self.requesting_client_buffers);
        let mut without_worker = HashSet::new();
        self.server.visit_sessions(&mut |client| {
            without_worker.insert(client.id);
        });
        self.server.visit_linked(&mut |client, buffers| {
            without_worker.insert(client.id);
            visit(client, buffers);
        });
        let is_present = |client_snapshot: &&mut ClientSnapshot| {
            !ClientVisitorHost::is_gone(client_snapshot) && !without_worker.contains(&client_snapshot.client.id)
        };
        for client_snapshot in self.client_snapshots.iter_mut().filter(is_present) {
            visit(&mut client_snapshot.client, client_snapshot.buffers);
        }
    }

    fn visit_sessions(&mut self, visit: &mut dyn FnMut(&mut Client)) {
        self.server.visit_sessions(visit);
    }

    fn unblock_client(&mut self, id: ClientId, with_error: bool) -> bool {
        let client_snapshots = &mut *self.client_snapshots;
        let Some(client_snapshot) = client_snapshots
            .iter_mut()
            .find(|client_snapshot| client_snapshot.client.id == id)
        else {
            return false;
        };
        let Some(waiting) = client_snapshot.wait_state.take() else {
            return false;
        };
        let worker = match &waiting {
            // The client was served or its timeout passed since the snapshot.
            WaitState::Keys(waiter) if !waiter.try_claim() => return false,
            WaitState::Keys(waiter) => waiter.worker(),
            WaitState::Other(_) => client_snapshot.client.worker,
        };
        client_snapshot.client.flags.set(ClientFlags::BLOCKED, false);
        self.server.worker(worker).send(Message::EndWait {
            client: id,
            wait_state: waiting,
            with_error,
        });
        true
    }

    fn closing_count(&self) -> u64 {
        let closing = self
            .client_snapshots
            .iter()
            .filter(|client_snapshot| ClientVisitorHost::is_gone(client_snapshot));
        closing.count() as u64
    }
}

#[cfg(test)]
mod tests;
