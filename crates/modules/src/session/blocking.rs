//! What functions about blocked clients, timers and events need from the server.

use std::sync::Arc;

use crate::objects::blocked_client::BlockedClient;

/// The answer to the question if a client may be blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockingPermission {
    /// It may.
    Granted,
    /// It is blocked already, or is no ordinary client.
    NotSupported,
    /// The session acts for no client, or for another one.
    NoClient,
    /// Its command runs in a script.
    InScript,
    /// Its command runs in a transaction.
    InTransaction,
    /// Its command was called by a module that does not let it block.
    Denied,
}

/// How a client waits.
pub struct BlockRequest<'a> {
    /// The blocked client.
    pub client: &'a Arc<BlockedClient>,
    /// The keys that it waits for; none if it waits for the module.
    pub keys: Vec<&'a [u8]>,
    /// `true` if the deletion of a key counts as a change, too.
    pub includes_deletion: bool,
    /// The end of the wait, in milliseconds since the Unix epoch; `None` for never.
    pub deadline_ms: Option<u64>,
}

/// What a thread with a session may do with blocked clients.
pub trait BlockingSession {
    /// Returns `Granted` if the client of the running command may be blocked.
    fn blocking_permission(&self, client_id: u64) -> BlockingPermission;

    /// Lets the client of the running command wait. It may be blocked, see [`Self::blocking_permission`].
    fn block_client(&mut self, request: BlockRequest<'_>);

    /// Lets modules serve the clients that wait for a key.
    fn signal_key_as_ready(&mut self, db: u32, name: &[u8]);
}

/// What any thread may do with blocked clients.
pub trait BlockingHost {
    /// Ends a client that a module has unblocked, on the home worker.
    fn end_blocked_client(&self, client: Arc<BlockedClient>);

    /// Wakes the home worker, because a timer is due earlier than all others.
    fn wake_home(&self);

    /// Returns `true` if writes may not follow events: data are loaded, or the server is a replica that accepts no
    /// writes.
    fn refuses_post_notification_jobs(&self) -> bool;

    /// Returns the number of file descriptors that the server may watch.
    fn max_watched_fds(&self) -> usize;
}

#[cfg(test)]
impl BlockingSession for super::fake::FakeSession {
    fn blocking_permission(&self, _client_id: u64) -> BlockingPermission {
        BlockingPermission::Granted
    }

    fn block_client(&mut self, request: BlockRequest<'_>) {
        use crate::objects::blocked_client::Waiting;
        request.client.set_waiting(Waiting::Connection(1));
    }

    fn signal_key_as_ready(&mut self, _db: u32, _name: &[u8]) {}
}
