//! Clients as modules see them, by their ids.
//!
//! A client belongs to its worker, which describes it in the directory of clients after each batch with commands of it,
//! once there are modules. So a module sees other clients as they were when they got their last reply.

use weft_base::ClientId;
use weft_modules::session::clients::{ClientHost, ClientSession, KnownClient, RenameError, client_flags};

use super::{ModuleHost, ModuleSession};
use crate::commands::connection::client::attributes::is_valid_name;
use crate::net::client::ClientFlags;
use crate::net::client_info::describe;
use crate::state::Message;

impl ClientSession for ModuleSession<'_, '_> {
    fn known_client(&mut self, id: u64) -> Option<KnownClient> {
        if id != 0 && self.client.id.get() == id {
            let mut known = describe(self.client, &self.thread.server.acl);
            if self.client.flags.contains(ClientFlags::EXECUTING) {
                known.info.flags |= client_flags::MULTI;
            }
            return Some(known);
        }
        self.thread.server.clients.directory.description(ClientId::new(id))
    }

    fn rename_client(&mut self, id: u64, name: &[u8]) -> Result<(), RenameError> {
        let (server, client) = (&self.thread.server, ClientId::new(id));
        let is_own = id != 0 && self.client.id == client;
        let worker = server.clients.directory.worker_of(client);
        if !is_own && worker.is_none() {
            return Err(RenameError::NoClient);
        }
        if !is_valid_name(name) {
            return Err(RenameError::InvalidName);
        }
        if is_own {
            self.client.name = name.to_vec();
        } else if let Some(worker) = worker {
            if let Some(mut known) = server.clients.directory.description(client) {
                known.name = name.to_vec();
                server.clients.directory.describe(client, known);
            }
            server.worker(worker).send(Message::RenameClient(client, name.into()));
        }
        Ok(())
    }
}

impl ClientHost for ModuleHost {
    fn describe_clients(&self) {
        for worker in &self.server.workers {
            worker.send(Message::DescribeClients);
        }
    }
}
