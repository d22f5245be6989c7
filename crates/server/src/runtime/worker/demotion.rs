//! Ends waits of clients when this server begins to follow a primary.

use weft_base::ClientId;

use super::Worker;
use super::waits::ClientWait;
use crate::commands::error::CommandError;
use crate::dispatch::batch::BatchConnections;
use crate::net::client::ClientFlags;

/// The reply to a client that is disconnected.
pub(super) const DEMOTED_REPLY: &[u8] =
    b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n";
/// The same error.
const DEMOTED_ERROR: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl Worker {
    /// Ends the waits that a replica does not serve, because this server has begun to follow a primary.
    pub(crate) fn end_waits_of_demoted(&mut self) {
        for client in self.waits.waiting_clients() {
            self.end_wait_of_demoted(client);
        }
    }

    /// Ends the wait of a client, because this server has begun to follow a primary. In a cluster, the client is
    /// redirected if another node serves its keys, and disconnected if this server has become a primary again
    /// meanwhile. Otherwise it is redirected to the primary if it can be, or disconnected. A client that accepts reads
    /// of a replica (READONLY) goes on waiting, unless its command writes.
    pub(super) fn end_wait_of_demoted(&mut self, client: ClientId) {
        let wait = self.waits.client_wait(client);
        let is_of_module = matches!(wait, Some(ClientWait::Module(_)));
        let waiter = wait.and_then(ClientWait::waiter).cloned();
        if let Some(cluster) = &self.server().cluster {
            let view = cluster.view();
            self.redirect_blocked_client(client, &view);
            // The threads that make its keys ready do not serve it any more.
            let demotions = self.server().replication.demotions();
            if waiter.is_some_and(|waiter| waiter.is_ended_by_demotion(demotions)) {
                self.disconnect_demoted(client);
            }
            return;
        }
        let token = self.clients.by_id.get(&client).copied();
        let connection = token.and_then(|token| self.clients.connection(token));
        let flags = connection.map_or(ClientFlags::empty(), |connection| connection.client.flags);
        let outlasts = match &waiter {
            Some(waiter) => waiter.outlasts_demotion(),
            // WAIT and WAITAOF write nothing.
            None => flags.contains(ClientFlags::READONLY),
        };
        if outlasts {
            return;
        }
        let redirects = flags.contains(ClientFlags::CAPA_REDIRECT);
        let redirection = self.server().replication.redirection();
        match (waiter, redirection.filter(|_| redirects)) {
            (Some(_), Some(redirection)) => self.reply_error_to_waiter(client, &CommandError::from_text(redirection)),
            // As in Valkey: the module ends the wait, and the next command is redirected.
            (None, Some(_)) if is_of_module => {}
            _ => self.disconnect_demoted(client),
        }
    }

    /// Ends the wait of a client with the error of a demotion, and disconnects the client. Has no effect on a client
    /// that does not wait any more.
    fn disconnect_demoted(&mut self, client: ClientId) {
        if let Some(ClientWait::Module(wait)) = self.waits.client_wait(client)
            && wait.waiter.is_some()
        {
            self.reply_error_to_waiter(client, &CommandError::constant(DEMOTED_ERROR));
            return;
        }
        let token = self.clients.by_id.get(&client).copied();
        if self.end_wait_with_error(client, Some(DEMOTED_REPLY))
            && let Some(connection) = token.and_then(|token| self.clients.connection(token))
        {
            connection.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
        }
        if let Some(token) = token {
            self.flush_output(token);
        }
    }
}
