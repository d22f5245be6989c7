//! The end of calls that are blocked: the module gets their replies.
//!
//! ```text
//!   LPUSH k     serves the waiters of k up to the first call of a module ─▶ job for the home worker
//!   home        exclusive mode ─▶ pops the element ─▶ calls the module ─▶ the unit ends ─▶ further calls, one by one
//! ```
//!
//! What a call writes, and what the module does with its reply, is one unit. The reply to LPUSH is withheld until then,
//! so its client sees the result.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_base::{ClientId, ParkId, ParkedClient};
use weft_modules::invoke;
use weft_modules::objects::promise::Promise;

use super::ModuleSession;
use crate::clients_waiting::blocking::Waiter;
use crate::commands::generic::wait;
use crate::dispatch::paused_operations::PausedOperations;
use crate::dispatch::serve::{self, ModuleService};
use crate::keyspace::ready_keys::ReadyKey;
use crate::replication::{ReplicaWait, RequiredAcks};
use crate::state::blocked_calls::{BlockedCall, CallWait};
use crate::state::{HOME_WORKER, Message};

impl ModuleSession<'_, '_> {
    /// Serves the calls of modules that wait for these keys, and ends a unit with each.
    pub(super) fn serve_module_calls(&mut self, mut keys: VecDeque<ReadyKey>) {
        while !keys.is_empty() {
            let Some((waiter, reply, remaining)) = self.serve_one_call(std::mem::take(&mut keys)) else {
                return;
            };
            self.end_call(waiter.park_id, reply);
            keys = remaining;
            let unserved = self.end_unit();
            self.thread.unserved.extend(unserved.map(|unserved| *unserved));
        }
    }

    /// Serves the waiters of keys until one of them was the call of a module. Returns this, its reply, and the keys
    /// that were not served to the end.
    fn serve_one_call(&mut self, mut keys: VecDeque<ReadyKey>) -> Option<(Arc<Waiter>, Vec<u8>, VecDeque<ReadyKey>)> {
        self.thread.effects.hooks = self.thread.server.keyspace.hooks.current();
        let paused = PausedOperations::current(&self.thread.server);
        let mut interrupted = None;
        loop {
            let service = ModuleService::One;
            let (mut refused, ended, operation) = self.serve_until_event(keys, interrupted, service, paused);
            // The worker tries these again when the pause ends.
            self.keep_paused_keys(&mut refused);
            if operation.is_some() {
                self.deliver_events_of_operation();
                (keys, interrupted) = (refused.interrupted, operation);
                continue;
            }
            return match ended {
                ModuleService::Ended(waiter, reply) => {
                    self.deliver_events_of_access();
                    Some((waiter, reply, refused.for_home))
                }
                ModuleService::Refused | ModuleService::One => None,
            };
        }
    }

    /// Ends a call whose waiter is claimed: the module gets its reply.
    pub(super) fn end_call(&mut self, park_id: ParkId, reply: Vec<u8>) {
        let server = self.thread.server.clone();
        if let Some(call) = server.modules.calls.remove(park_id) {
            let metrics = &server.stats.metrics;
            metrics.record_execution(self.thread.thread_index, call.command, 0, false);
            let promise = call.promise;
            invoke::call_into(promise.module(), self, || promise.fulfil(reply));
        }
    }

    /// Ends a call with this reply, or because its time is over, unless it is being served.
    pub(super) fn end_blocked_call(&mut self, park_id: ParkId, reply: Option<Vec<u8>>) {
        let server = self.thread.server.clone();
        let Some(wait) = server.modules.calls.wait_of(park_id) else {
            return;
        };
        if !self.withdraw(&wait) {
            return;
        }
        let late_reply = |session: &mut Self| match &wait {
            CallWait::Keys(waiter) => serve::null_array(waiter.protocol),
            CallWait::Replicas(wait) => wait::build_reply(&server, &wait.required_acks),
            CallWait::Module(blocked, _) => blocked.time_out(session).unwrap_or_default().reply.bytes,
        };
        let reply = reply.unwrap_or_else(|| late_reply(self));
        self.end_call(park_id, reply);
    }

    /// Removes a call from what it waits for. Returns `false` if it is being served.
    pub(super) fn withdraw(&mut self, wait: &CallWait) -> bool {
        let server = &self.thread.server;
        match wait {
            CallWait::Keys(waiter) | CallWait::Module(_, Some(waiter)) => {
                if !waiter.try_claim() {
                    return false;
                }
                let mut held = self.access.as_held_leases();
                for key in &waiter.keys {
                    if let Some((_, slot)) = held.writable_slot(key.slot) {
                        slot.change_blocked(key.hash, |waiting| {
                            waiting.remove_waiter(&key.name, waiter, &server.clients.blocked)
                        });
                    }
                }
            }
            CallWait::Module(_, None) => {}
            CallWait::Replicas(wait) => server.replication.replicas.waits().retain(|other| other != wait),
        }
        true
    }

    /// Takes back a call. Returns `false` if it is being served, or has ended.
    pub(super) fn abort_blocked_call(&mut self, promise: &Promise) -> bool {
        let server = self.thread.server.clone();
        let park_id = ParkId::new(promise.call);
        let Some(wait) = server.modules.calls.wait_of(park_id) else {
            return false;
        };
        let is_withdrawn = self.withdraw(&wait);
        if is_withdrawn {
            server.modules.calls.remove(park_id);
            if let CallWait::Module(blocked, _) = wait {
                blocked.disconnect(self);
            }
        }
        is_withdrawn
    }

    /// Lets a call wait. The home worker ends it at `at_ms`, in milliseconds since the Unix epoch.
    pub(super) fn begin_blocked_call(&mut self, park_id: ParkId, call: BlockedCall, at_ms: Option<u64>) {
        let server = &self.thread.server;
        server.modules.calls.add(park_id, call);
        if let Some(at_ms) = at_ms {
            let message = Message::BeginCallTimer { at_ms, park_id };
            server.worker(HOME_WORKER).send(message);
        }
    }

    /// Returns the wait of a call for replicas, which has begun.
    pub(super) fn begin_replica_wait(&self, park_id: ParkId, required_acks: RequiredAcks) -> ReplicaWait {
        let server = &self.thread.server;
        let client = ParkedClient {
            worker: HOME_WORKER,
            client: ClientId::new(0),
            park_id,
        };
        let wait = ReplicaWait { client, required_acks };
        server.replication.replicas.waits().push(wait);
        server.replication.replicas.request_acks();
        server.propagation.request_flush();
        server.background.wake_primary_thread();
        wait
    }
}
