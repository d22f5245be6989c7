//! The calls of modules that are blocked: the module has a promise of their replies.
//!
//! A call has no connection. It is known by its park id, under which it waits in the queues of keys or among the waits
//! for replicas. The home worker ends it, in exclusive mode.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use weft_base::ParkId;
use weft_modules::objects::blocked_client::BlockedClient;
use weft_modules::objects::promise::Promise;
use weft_os::sync::Mutex;

use super::Server;
use crate::clients_waiting::blocking::Waiter;
use crate::keyspace::ready_keys::ReadyKey;
use crate::replication::ReplicaWait;

/// What a call waits for.
#[derive(Clone)]
pub enum CallWait {
    /// Keys.
    Keys(Arc<Waiter>),
    /// Replicas, or the disk.
    Replicas(ReplicaWait),
    /// Another module, or the same one: its command has blocked the client of the call. With a waiter, it waits for
    /// keys.
    Module(Arc<BlockedClient>, Option<Arc<Waiter>>),
}

/// A blocked call.
#[derive(Clone)]
pub struct BlockedCall {
    /// The promise of its reply.
    pub promise: Arc<Promise>,
    /// What it waits for.
    pub wait: CallWait,
    /// `true` if what it writes is propagated.
    pub is_propagated: bool,
    /// The index of its command.
    pub command: usize,
}

/// The blocked calls.
#[derive(Default)]
pub struct BlockedCalls(Mutex<HashMap<ParkId, BlockedCall>>);

impl BlockedCalls {
    /// Adds a call. The caller is in exclusive mode, so that it does not end before.
    pub fn add(&self, park_id: ParkId, call: BlockedCall) {
        self.0.lock().insert(park_id, call);
    }

    /// Removes a call; returns `None` if it has ended already.
    pub fn remove(&self, park_id: ParkId) -> Option<BlockedCall> {
        self.0.lock().remove(&park_id)
    }

    /// Returns what a call waits for; `None` if it has ended already.
    pub fn wait_of(&self, park_id: ParkId) -> Option<CallWait> {
        self.0.lock().get(&park_id).map(|call| call.wait.clone())
    }

    /// Returns `true` if what the call writes is propagated.
    pub fn is_propagated(&self, park_id: ParkId) -> bool {
        self.0.lock().get(&park_id).is_some_and(|call| call.is_propagated)
    }
}

impl Server {
    /// Lets the home worker serve the calls of modules that wait for these keys.
    pub fn serve_module_calls_at_home(&self, keys: VecDeque<ReadyKey>) {
        self.run_at_home(Box::new(move |home| home.serve_module_calls(keys)));
    }

    /// Lets the home worker end a blocked call of a module with this reply; `None` if its time is over.
    pub fn end_module_call_at_home(&self, park_id: ParkId, reply: Option<Vec<u8>>) {
        self.run_at_home(Box::new(move |home| home.end_module_call(park_id, reply)));
    }
}
