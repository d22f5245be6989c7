//! The descriptions of a worker's clients, which modules read in the directory of clients.

use weft_base::ClientId;
use weft_modules::module::loading;

use super::Worker;
use crate::dispatch::batch::BatchConnections as _;
use crate::net::client_info::{DescribedState, describe};
use crate::state::Message;

impl Worker {
    /// Describes a client after commands of it, if there are modules, and if it has changed.
    #[inline]
    pub(crate) fn describe_client_if_changed(&mut self, token: usize) {
        if loading::generation() > 0 {
            self.describe_client(token);
        }
    }

    #[cold]
    fn describe_client(&mut self, token: usize) {
        let server = self.thread.server.clone();
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let client = &connection.client;
        let is_same = connection
            .described
            .as_deref()
            .is_some_and(|described| described.is_still_true_of(client));
        if !is_same {
            connection.described = Some(Box::new(DescribedState::of(client)));
            server
                .clients
                .directory
                .describe(client.id, describe(client, &server.acl));
        }
    }

    /// Describes all clients.
    pub(crate) fn describe_clients(&mut self) {
        for token in 0..self.clients.slots.len() {
            self.describe_client(token);
        }
    }

    /// Gives a client the name that a module has chosen.
    pub(crate) fn rename_client(&mut self, client: ClientId, name: Box<[u8]>) {
        let Some(token) = self.clients.by_id.get(&client).copied() else {
            let server = self.server();
            if let Some(worker) = server.clients.directory.worker_of(client) {
                server.worker(worker).send(Message::RenameClient(client, name));
            }
            return;
        };
        if let Some(connection) = self.clients.connection(token) {
            connection.client.name = name.into_vec();
            self.describe_client(token);
        }
    }
}
