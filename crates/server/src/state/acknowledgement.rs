//! Commands that replicas must acknowledge before they take effect on this node, and acknowledgements at the end of the
//! process.

use std::time::Duration;

use super::{BackgroundJob, Server};
use weft_base::{ClientId, LogSequence, RoleEpoch};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// The longest time for which a command goes on waiting when its client has gone. The replicas may have executed the
/// command by then, and acknowledge it soon.
const ABANDONED_WAIT: Duration = Duration::from_secs(5);

/// The maximum time for the log thread to add a request for acknowledgements to the stream.
const ACK_REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// A command that replicas must acknowledge before it takes effect here.
pub struct PendingAcknowledgement {
    /// The sequence number of the command in the log.
    pub sequence: LogSequence,
    /// The number of replicas that must have it.
    pub replicas: i64,
    /// The limits of the wait.
    pub limits: AcknowledgementLimits,
    /// Creates the job that follows; the argument is `true` if the replicas have the command.
    pub continuation: Box<dyn FnOnce(bool) -> BackgroundJob + Send>,
}

/// The limits of a wait for replicas.
pub struct AcknowledgementLimits {
    deadline: Instant,
    /// The client whose command waits, if there is one, and the role in which it began.
    requester: Option<(ClientId, RoleEpoch)>,
}

impl AcknowledgementLimits {
    /// Creates the limits of a wait of up to `patience` from now on. If a client requested it, it also ends some time
    /// after the client has gone, and with the role epoch.
    pub fn new(patience: Duration, requester: Option<(ClientId, RoleEpoch)>) -> Self {
        AcknowledgementLimits {
            deadline: Instant::now() + patience,
            requester,
        }
    }

    /// Returns `true` if the wait is over.
    pub fn is_over(&mut self, server: &Server) -> bool {
        let now = Instant::now();
        if let Some((client, role_epoch)) = self.requester {
            if server.replication.role_epoch() != role_epoch {
                return true;
            }
            let latest = now + ABANDONED_WAIT;
            if self.deadline > latest && server.clients.directory.has_left(client) {
                self.deadline = latest;
            }
        }
        now >= self.deadline
    }
}

impl Server {
    /// Requests the offsets of the replicas while this server shuts down, when only writes are added to the stream
    /// otherwise. Returns once the request is in the stream, or after [`ACK_REQUEST_TIMEOUT`].
    pub fn request_acks_at_shutdown(&self) {
        let repl = &self.replication;
        repl.is_shutting_down.store(false, Ordering::SeqCst);
        repl.replicas.request_acks();
        self.propagation.request_flush();
        let since = Instant::now();
        while repl.replicas.ack_requested.load(Ordering::SeqCst) && since.elapsed() < ACK_REQUEST_TIMEOUT {
            weft_os::thread::sleep(Duration::from_millis(1));
        }
        repl.is_shutting_down.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
