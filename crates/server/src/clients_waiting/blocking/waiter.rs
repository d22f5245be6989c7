//! One blocked client as the keys it waits for see it: what it wants, and who ends its wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use weft_resp::Protocol;
use weft_sync::Claim;

use super::operation::Operation;
use crate::acl::{Account, CommandId, Refusal};

/// A key that somebody waits for, or moves an element to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitKey {
    /// The hash of its name.
    pub hash: u64,
    /// Its slot.
    pub slot: u16,
    /// Its name.
    pub name: Box<[u8]>,
}

/// By whose permission a client waits; users may change meanwhile.
pub struct Permit {
    /// The user.
    pub account: Arc<Account>,
    /// The version of the users when the wait began.
    pub version: u64,
    /// The command.
    pub command: CommandId,
    /// What stood behind its name.
    pub first_argument: Box<[u8]>,
}

/// What serving a waiter produced.
pub struct ServeResult {
    /// The reply, in the protocol of the client.
    pub reply: Vec<u8>,
    /// How long serving took, ns: it counts as a part of the command.
    pub nanoseconds: u64,
    /// Whether the reply is an error.
    pub failed: bool,
    /// If the client was not permitted to go on: what the log of refusals says.
    pub refusal: Option<Box<Refusal>>,
    /// The ticket in the log of what was done for it; 0 for none.
    pub log_ticket: u64,
}

/// A blocked client. Shared by the queues of its keys, its connection, and whoever serves it.
pub struct Waiter {
    claim: Claim,
    served: OnceLock<ServeResult>,
    worker: AtomicUsize,
    /// The client.
    pub client: u64,
    /// The ticket under which its connection is parked; also its place in every queue.
    pub ticket: u64,
    /// The client's database.
    pub db: usize,
    /// How it wants its reply.
    pub protocol: Protocol,
    /// The keys it waits for, in the order in which it named them.
    pub keys: Box<[WaitKey]>,
    /// What it wants of the first key that is ready.
    pub operation: Operation,
    /// When it gives up, ms since the epoch; `None` for never.
    pub deadline_ms: Option<u64>,
    /// How often this server had become a replica when the wait began. Later ones end the wait: it must not be served.
    pub demotions: u64,
    /// By whose permission it waits.
    pub permit: Permit,
}

/// What makes a [`Waiter`]: who waits, for what, until when.
pub struct Wait {
    /// The client.
    pub client: u64,
    /// The worker that has its connection.
    pub worker: usize,
    /// The ticket that it parks under.
    pub ticket: u64,
    /// Its database.
    pub db: usize,
    /// How it wants its reply.
    pub protocol: Protocol,
    /// The keys it waits for.
    pub keys: Box<[WaitKey]>,
    /// What it wants of them.
    pub operation: Operation,
    /// When it gives up, ms since the epoch; `None` for never.
    pub deadline_ms: Option<u64>,
    /// How often this server had become a replica when the wait began.
    pub demotions: u64,
    /// By whose permission it waits.
    pub permit: Permit,
}

impl Waiter {
    /// A waiter that nobody has claimed.
    pub fn new(wait: Wait) -> Self {
        Waiter {
            claim: Claim::new(),
            served: OnceLock::new(),
            worker: AtomicUsize::new(wait.worker),
            client: wait.client,
            ticket: wait.ticket,
            db: wait.db,
            protocol: wait.protocol,
            keys: wait.keys,
            operation: wait.operation,
            deadline_ms: wait.deadline_ms,
            demotions: wait.demotions,
            permit: wait.permit,
        }
    }

    /// Whether the caller is the one who ends this wait. Never `true` twice.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        self.claim.try_claim()
    }

    /// Whether somebody ended the wait already: the waiter is to be taken out of its queues.
    pub fn is_claimed(&self) -> bool {
        self.claim.is_claimed()
    }

    /// Leaves the reply for the client's worker. By the one who claimed the waiter in order to serve it.
    pub fn put_served(&self, served: ServeResult) {
        let first = self.served.set(served).is_ok();
        assert!(first, "a waiter is served once");
    }

    /// What the client got, once it is there.
    pub fn served(&self) -> Option<&ServeResult> {
        self.served.get()
    }

    /// The worker that has the connection, or is about to get it by mail.
    pub fn worker(&self) -> usize {
        self.worker.load(Ordering::Acquire)
    }

    /// The connection was mailed to another worker: what is for it goes there from now on, behind it.
    pub fn move_to(&self, worker: usize) {
        self.worker.store(worker, Ordering::Release);
    }
}
