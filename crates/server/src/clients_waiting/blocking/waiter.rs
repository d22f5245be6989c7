//! One blocked client, as the keys that it waits for see it: its operation, and the claim that ends its wait.

use std::sync::{Arc, OnceLock};

use weft_base::{ClientId, DbIndex, LogSequence, ParkId, SlotIndex, ThreadIndex};
use weft_resp::Protocol;
use weft_sync::Claim;

use super::operation::BlockingOperation;
use weft_acl::{AclAccount, CommandId, DeniedAccess};
use weft_os::atomic::{AtomicUsize, Ordering};

/// A key that a client waits for, or moves an element to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitKey {
    /// The hash of its name.
    pub hash: u64,
    /// The slot.
    pub slot: SlotIndex,
    /// The name.
    pub name: Box<[u8]>,
}

/// The permission under which a client waits; its user may be changed meanwhile.
pub struct WaiterPermission {
    /// The user.
    pub account: Arc<AclAccount>,
    /// The version of the users when the wait began.
    pub acl_version: u64,
    /// The command.
    pub command: CommandId,
    /// The argument after the command's name.
    pub first_argument: Box<[u8]>,
}

/// The reason why a waiter's command was refused instead of served.
pub enum WaiterRefusal {
    /// The client lost a permission; this is the ACL log's entry.
    Denied(Box<DeniedAccess>),
    /// The state of the server forbids the command.
    ServerState,
}

/// The result of serving a waiter.
pub struct ServeResult {
    /// The reply, in the protocol of the client.
    pub reply: Vec<u8>,
    /// The time of serving in nanoseconds; it counts as a part of the command.
    pub nanoseconds: u64,
    /// `true` if the reply is an error.
    pub is_error: bool,
    /// The reason, if the command was refused.
    pub refusal: Option<WaiterRefusal>,
    /// The log sequence number of the served operation.
    pub log_sequence: LogSequence,
}

/// A blocked client. Shared by the queues of its keys, its connection, and the thread that serves it.
pub struct Waiter {
    claim: Claim,
    served: OnceLock<ServeResult>,
    worker: AtomicUsize,
    /// The number of attempts to serve it that have to be repeated.
    held_up: AtomicUsize,
    /// The client.
    pub client: ClientId,
    /// The park id of its connection; also its order in every queue.
    pub park_id: ParkId,
    /// The client's database.
    pub db: DbIndex,
    /// The protocol of its reply.
    pub protocol: Protocol,
    /// The keys it waits for, in the order in which it named them.
    pub keys: Box<[WaitKey]>,
    /// The operation on the first key that is ready.
    pub operation: BlockingOperation,
    /// The time at which the wait ends, in milliseconds since the Unix epoch; `None` for never.
    pub deadline_ms: Option<u64>,
    /// The number of times that this server had begun to follow a primary when the wait began. A higher number ends the
    /// wait: the waiter must not be served. `None` for a wait that a replica may serve, too.
    demotions: Option<u64>,
    /// `true` if the client caches what it reads (client-side caching), so that the keys it reads are tracked.
    pub tracks_reads: bool,
    /// `true` if a module has called the command. Then the home worker serves it, in exclusive mode, because the module
    /// gets the reply as a part of the same unit.
    pub is_module_call: bool,
    /// The permission under which it waits.
    pub permission: WaiterPermission,
}

/// The arguments of a new [`Waiter`].
pub struct WaiterParameters {
    /// The client.
    pub client: ClientId,
    /// The worker that has its connection.
    pub worker: ThreadIndex,
    /// The park id.
    pub park_id: ParkId,
    /// The database.
    pub db: DbIndex,
    /// The protocol of the reply.
    pub protocol: Protocol,
    /// The keys it waits for.
    pub keys: Box<[WaitKey]>,
    /// The operation.
    pub operation: BlockingOperation,
    /// The time at which the wait ends, in milliseconds since the Unix epoch; `None` for never.
    pub deadline_ms: Option<u64>,
    /// The number of times that this server had begun to follow a primary when the wait began; `None` if the wait is a
    /// read of a client that accepts reads of a replica.
    pub demotions: Option<u64>,
    /// `true` if the keys that the client reads are tracked.
    pub tracks_reads: bool,
    /// `true` if a module has called the command.
    pub is_module_call: bool,
    /// The permission under which it waits.
    pub permission: WaiterPermission,
}

impl Waiter {
    /// Returns `true` if its keys are in several slots.
    pub fn spans_slots(&self) -> bool {
        self.keys.iter().any(|key| key.slot != self.keys[0].slot)
    }

    /// Returns `true` if the wait goes on when this server begins to follow a primary.
    pub fn outlasts_demotion(&self) -> bool {
        self.demotions.is_none()
    }

    /// Returns `true` if this server has begun to follow a primary since the wait began, and the wait ends with that.
    /// `now` is the number of times that it has.
    pub fn is_ended_by_demotion(&self, now: u64) -> bool {
        self.demotions.is_some_and(|then| then != now)
    }

    /// Creates an unclaimed waiter.
    pub fn new(wait: WaiterParameters) -> Self {
        Waiter {
            claim: Claim::new(),
            served: OnceLock::new(),
            worker: AtomicUsize::new(wait.worker.get()),
            held_up: AtomicUsize::new(0),
            client: wait.client,
            park_id: wait.park_id,
            db: wait.db,
            protocol: wait.protocol,
            keys: wait.keys,
            operation: wait.operation,
            deadline_ms: wait.deadline_ms,
            demotions: wait.demotions,
            tracks_reads: wait.tracks_reads,
            is_module_call: wait.is_module_call,
            permission: wait.permission,
        }
    }

    /// Claims the wait. Returns `true` for the caller that ends it, and so at most once.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        self.claim.try_claim()
    }

    /// Returns `true` if the wait was claimed already and the waiter must be removed from its queues.
    pub fn is_claimed(&self) -> bool {
        self.claim.is_claimed()
    }

    /// Stores the reply for the client's worker. Called by the thread that claimed the waiter to serve it.
    pub fn set_served(&self, served: ServeResult) {
        let first = self.served.set(served).is_ok();
        assert!(first, "a waiter is served once");
    }

    /// Returns the result of serving, if the waiter was served.
    pub fn serve_result(&self) -> Option<&ServeResult> {
        self.served.get()
    }

    /// Returns the worker that has the connection, or is about to get it by mail.
    pub fn worker(&self) -> ThreadIndex {
        ThreadIndex::new(self.worker.load(Ordering::Acquire))
    }

    /// Returns `true` while one of its keys is ready, and its queue is not served because a slot is leased by another
    /// thread, or because of a pause. Its wait does not time out then: others have seen the element that it waits for.
    pub fn is_held_up(&self) -> bool {
        self.held_up.load(Ordering::Acquire) > 0
    }

    /// Records that the connection was mailed to another worker, which gets its mail from now on.
    pub fn move_to(&self, worker: ThreadIndex) {
        self.worker.store(worker.get(), Ordering::Release);
    }
}

/// Waiters for keys that are ready, but cannot be served yet. They count as held up until this is dropped.
#[derive(Default)]
pub struct HeldUpWaiters(Vec<Arc<Waiter>>);

impl HeldUpWaiters {
    /// Marks these waiters as held up. Call it under the leases under which their keys became ready.
    pub fn new(waiters: Vec<Arc<Waiter>>) -> Self {
        for waiter in &waiters {
            waiter.held_up.fetch_add(1, Ordering::AcqRel);
        }
        Self(waiters)
    }
}

impl Drop for HeldUpWaiters {
    fn drop(&mut self) {
        for waiter in &self.0 {
            waiter.held_up.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
