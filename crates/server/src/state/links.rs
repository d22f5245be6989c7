//! Connections that belong to threads other than workers: those of the primary, of replicas, of slot migrations, and of
//! debugging sessions.
//!
//! 1. A worker registers a connection before it gives the connection away, and the thread that has the connection
//!    removes it at its end. So each connection of a client belongs to a worker or is registered. A connection with
//!    withheld replies stays with its worker, unregistered, until these are sent.
//! 2. A query about all clients visits the links after all workers have answered ([`LinkVisitor`]). Connections move
//!    from workers to other threads and never back, so the query misses none.
//! 3. A user is marked as deleted before the links are visited. A thread that gets a connection checks its user. So a
//!    deleted user has no connection left: the connection is registered when the links are visited, or the thread finds
//!    the user deleted.
//! 4. The order to close a connection goes to the thread that has it, behind the connection itself.
//! 5. A transaction kills the clients of workers at its end, by mail to their workers. A client is registered here
//!    before its worker removes it from the directory, so it is found in one of both ([`Server::close_link`]).
//! 6. Replies about clients show no debugging sessions, as in Valkey, where each is a process of its own. CLIENT KILL
//!    ends them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ClientVisitor, PrimaryThreadCommand, Server, SlotMigrationCommand};
use crate::net::client::{BufferFigures, Client, ClientFlags};
use crate::net::connection::Connection;
use crate::net::kill_mark::KillMark;
use weft_base::ClientId;
use weft_os::sync::Mutex;

/// The clients in debugging sessions, by ID.
#[derive(Default)]
pub struct DebuggedClients(Mutex<BTreeMap<ClientId, Client>>);

/// The registration of a debugging session, which ends with this value.
pub struct SessionRegistration {
    server: Arc<Server>,
    client: ClientId,
    mark: Arc<KillMark>,
}

impl SessionRegistration {
    /// Registers the session of a client, whose worker gives the connection away and still has the client in the
    /// directory.
    pub fn new(server: &Arc<Server>, client: &Client) -> SessionRegistration {
        let mark = Arc::new(KillMark::default());
        let mut view = client.client_snapshot();
        view.kill_mark = Some(mark.clone());
        server.clients.debugged.0.lock().insert(client.id, view);
        SessionRegistration {
            server: server.clone(),
            client: client.id,
            mark,
        }
    }

    /// Returns the mark that is set once the client is killed.
    pub fn kill_mark(&self) -> &Arc<KillMark> {
        &self.mark
    }
}

impl Drop for SessionRegistration {
    fn drop(&mut self) {
        self.server.clients.debugged.0.lock().remove(&self.client);
    }
}

impl Server {
    /// Registers a connection that leaves its worker for good, and gives it away with `send`.
    pub fn hand_over(&self, connection: Box<Connection>, send: impl FnOnce(Box<Connection>)) {
        let (client, buffers) = (connection.client.link_snapshot(), connection.buffers(0));
        let socket = connection
            .in_transit
            .as_ref()
            .map(|registered| registered.socket.duplicate());
        if let Some(Ok(socket)) = socket {
            self.clients.link_sockets.lock().insert(client.id, socket);
        }
        // Held meanwhile: an order to close the connection comes behind it.
        let mut linked = self.clients.linked.lock();
        linked.insert(client.id, (client, buffers));
        send(connection);
    }

    /// Removes the registration of a connection that is closed.
    pub fn forget_link(&self, client: ClientId) {
        self.clients.linked.lock().remove(&client);
        self.clients.link_sockets.lock().remove(&client);
        self.replication.replicas.forget_killed(client);
    }

    /// Publishes the present state of links. Those that are about to be closed remain so.
    pub fn publish_links(&self, links: impl Iterator<Item = (Client, BufferFigures)>) {
        let mut linked = self.clients.linked.lock();
        for (mut client, buffers) in links {
            let known = linked.get(&client.id);
            let is_closing = known.is_some_and(|(known, _)| known.flags.contains(ClientFlags::CLOSE_ASAP));
            client.flags.set(ClientFlags::CLOSE_ASAP, is_closing);
            linked.insert(client.id, (client, buffers));
        }
    }

    /// Visits the links to the primary, to the replicas and of slot migrations, which belong to no worker, and closes
    /// the links that are marked for closing.
    pub fn visit_linked(&self, visit: &mut dyn FnMut(&mut Client, BufferFigures)) {
        for (client, buffers) in self.clients.linked.lock().values_mut() {
            visit(client, *buffers);
            if client.flags.contains(ClientFlags::CLOSE_ASAP) {
                self.order_to_close(client);
            }
        }
    }

    /// Closes the link of a client, or ends its session, if its connection has left its worker.
    pub fn close_link(&self, client: ClientId) {
        if let Some((client, _)) = self.clients.linked.lock().get_mut(&client) {
            client.kill();
            self.order_to_close(client);
        }
        if let Some(client) = self.clients.debugged.0.lock().get_mut(&client) {
            client.kill();
        }
    }

    /// Orders the thread that has the connection of this link to close it.
    fn order_to_close(&self, client: &Client) {
        let migrates = ClientFlags::SLOT_IMPORT.union(ClientFlags::SLOT_EXPORT);
        if client.flags.contains(ClientFlags::PRIMARY) {
            self.replication.shut_link_down();
        } else if client.flags.intersects(migrates) {
            self.background
                .send_to_migration_thread(SlotMigrationCommand::Disconnect(client.id));
        } else {
            self.replication.replicas.mark_killed(client.id);
            // At once: a client that has read the reply to CLIENT KILL finds the connection closed.
            if let Some(socket) = self.clients.link_sockets.lock().get(&client.id) {
                // It may be closed already.
                let _ = socket.shutdown_both();
            }
            self.background
                .send_to_primary_thread(PrimaryThreadCommand::Disconnect(client.id));
        }
    }

    /// Visits the clients in debugging sessions. A session whose client is killed ends.
    pub fn visit_sessions(&self, visit: &mut dyn FnMut(&mut Client)) {
        self.clients.debugged.0.lock().values_mut().for_each(visit);
    }

    /// Closes the links, and ends the sessions, whose users are deleted.
    pub fn close_links_of_deleted_users(&self) {
        let mut close = |client: &mut Client| {
            if client.login.account().is_deleted() {
                client.kill();
            }
        };
        self.visit_linked(&mut |client: &mut Client, _: BufferFigures| close(client));
        self.visit_sessions(&mut close);
    }
}

/// Visits the clients whose connections belong to no worker.
pub(super) struct LinkVisitor<'a>(pub(super) &'a Server);

impl ClientVisitor for LinkVisitor<'_> {
    fn visit_clients(&mut self, visit: &mut dyn FnMut(&mut Client, BufferFigures)) {
        self.0.visit_linked(visit);
    }

    fn visit_sessions(&mut self, visit: &mut dyn FnMut(&mut Client)) {
        self.0.visit_sessions(visit);
    }

    fn unblock_client(&mut self, _: ClientId, _: bool) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
