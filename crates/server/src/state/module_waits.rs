//! Clients that modules have blocked: what their worker and the home worker know of them.
//!
//! ```text
//!   worker of the client: parked, ModuleWait ──(time is over, client gone, CLIENT UNBLOCK)──▶ BlockedClientEvent
//!   any thread: UnblockClient ─────────────────────────────────────────────────────────────▶      │
//!   any thread: a key is ready ────────────────────────────────────────────────────────────▶      ▼
//!   worker of the client ◀── EndedModuleWait ──────────── home worker, in exclusive mode: callbacks of the module
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use weft_base::{ClientId, LogSequence, ParkId};
use weft_modules::objects::blocked_client::BlockedClient;

use super::Server;
use crate::clients_waiting::blocking::Waiter;
use crate::keyspace::ready_keys::ReadyKey;
use crate::observability::commandlog::LoggedCommand;
use weft_reactor::Output;

/// The wait of a client that a module has blocked.
pub struct ModuleWait {
    /// The blocked client.
    pub blocked: Arc<BlockedClient>,
    /// The park id of its connection.
    pub park_id: ParkId,
    /// The waiter in the queues, if it waits for keys.
    pub waiter: Option<Arc<Waiter>>,
    /// The end of the wait, in milliseconds since the Unix epoch; `None` for never.
    pub deadline_ms: Option<u64>,
    /// The index of its command, which ends with the wait.
    pub command: usize,
    /// The run time of the command so far, in nanoseconds.
    pub nanoseconds: u64,
    /// The size of its request in bytes.
    pub request_bytes: usize,
    /// The form in which logs show the command, if a log may need it.
    pub logged_command: Option<LoggedCommand>,
    /// The reply of a command during which a module has blocked its client because of a keyspace event.
    pub withheld: Option<DeferredReply>,
}

/// The reply of a command that has run, which the client gets when its wait ends.
pub struct DeferredReply {
    /// The reply.
    pub output: Output,
    /// `true` if it is an error.
    pub failed: bool,
}

/// The end of such a wait, for the worker of the client.
pub struct EndedModuleWait {
    /// The client.
    pub client: ClientId,
    /// The park id of its connection.
    pub park_id: ParkId,
    /// The reply.
    pub reply: Vec<u8>,
    /// `true` if it has an error.
    pub failed: bool,
    /// `true` if the connection is closed after the reply.
    pub closes_connection: bool,
    /// What the module has taken in the meantime, in nanoseconds.
    pub nanoseconds: u64,
    /// The last write in the log that the reply may depend on.
    pub log_sequence: LogSequence,
    /// The client does not continue, but waits again: its authentication was blocked by another module.
    pub next_wait: Option<Box<ModuleWait>>,
}

/// What happens to clients that modules have blocked.
pub enum BlockedClientEvent {
    /// The module has unblocked it.
    Unblocked(Arc<BlockedClient>),
    /// Its time is over.
    TimedOut(Arc<BlockedClient>),
    /// It has gone, or another reply has ended its wait.
    Disconnected(Arc<BlockedClient>),
    /// This server does not serve its keys any more: it gets an error with this text instead.
    Refused(Arc<BlockedClient>, Cow<'static, [u8]>),
    /// A key is ready.
    KeyReady(ReadyKey),
}

impl Server {
    /// Lets the home worker handle what has happened to a client that a module has blocked.
    pub fn handle_blocked_client_at_home(&self, event: BlockedClientEvent) {
        self.run_at_home(Box::new(move |home| home.handle_blocked_client(event)));
    }
}
