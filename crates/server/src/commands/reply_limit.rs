//! The limit of a reply while it is written, for replies whose length is not bounded by the data.
//!
//! The worker closes a client whose output exceeds the limit of its class, but only after the reply is complete. Until
//! then HRANDFIELD with a count of minus a billion would take gigabytes of memory.

use std::sync::Arc;

use crate::net::client::{Client, ClientFlags};
use crate::state::Server;
use weft_base::ClientId;
use weft_config::ClientClass;

/// The output size up to which the limit is not checked, in bytes. The worker, too, checks only longer outputs.
pub const UNCHECKED_OUTPUT_BYTES: usize = 16 * 1024;
/// The number of elements written between two checks of the limit.
pub const ELEMENTS_PER_CHECK: usize = 1024;

/// The limit of a reply. Above it, the connection is closed and the client gets no part of the reply.
pub struct ReplyLimit {
    server: Arc<Server>,
    /// The client; `None` if there is no limit because no client waits for the reply.
    client: Option<ClientId>,
    bytes: usize,
}

impl ReplyLimit {
    /// Returns the limit of a client. Scripts, modules, the primary and the replay of the append-only file have no
    /// limit.
    pub fn for_client(server: &Arc<Server>, client: &Client) -> ReplyLimit {
        let is_client = !client.flags.intersects(
            ClientFlags::SCRIPT
                .union(ClientFlags::MODULE_CALL)
                .union(ClientFlags::PRIMARY)
                .union(ClientFlags::REPLAY),
        );
        let class = match client.flags.contains(ClientFlags::PUBSUB) {
            true => ClientClass::Pubsub,
            false => ClientClass::Normal,
        };
        let hard_bytes = server.config.output_buffer_limits()[class as usize].hard_bytes;
        ReplyLimit {
            server: server.clone(),
            client: is_client.then_some(client.id),
            bytes: match usize::try_from(hard_bytes) {
                Ok(bytes) if is_client && bytes > 0 => bytes.max(UNCHECKED_OUTPUT_BYTES),
                _ => usize::MAX,
            },
        }
    }

    /// Returns `true` if a reply of `bytes` bytes will not be sent: it exceeds the limit, its client is closed, or the
    /// server shuts down.
    pub fn is_exceeded(&self, bytes: usize) -> bool {
        bytes > self.bytes
            || self
                .client
                .is_some_and(|client| self.server.clients.directory.worker_of(client).is_none())
            || self.server.scripting.running.is_shutting_down()
    }
}
