//! Clients that modules have blocked: how they begin to wait, and how the home worker ends their waits.
//!
//! See `state/module_waits.rs` for the way of the events, and `weft_modules::objects::blocked_client` for the
//! callbacks. Everything here runs on the home worker, except for the beginning of a wait, so the ends of a wait do not
//! race.
//!
//! Several events may concern one client, and they may come in any order. The first one that ends its wait counts. A
//! client may also have gone while the event that reports this is still behind another one. The earlier event then
//! disconnects the client from the module itself (`Home::find_connection`), and the later one finds nothing to do. So
//! each wait ends, and none ends twice.

use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, DbIndex, ParkId, SlotIndex};
use weft_command_table::registry::Lookup;
use weft_command_table::spec::CommandFlags;
use weft_config::id;
use weft_modules::module::authentication::{self, Decision};
use weft_modules::objects::blocked_client::{BlockReason, BlockedClient, EndedBlock, Waiting};
use weft_modules::objects::reply::{FinishedReply, ReplyError};
use weft_modules::session::blocking::{BlockRequest, BlockingHost, BlockingPermission, BlockingSession};

use super::command::count_errors;
use super::home::{Home, run_unit, run_unit_for};
use super::{ModuleCall, ModuleHost, ModuleSession, client_without_connection, login};
use crate::clients_waiting::blocking::{BlockingOperation, WaitKey, Waiter, WaiterParameters, WaiterPermission};
use crate::commands::error::CommandError;
use crate::dispatch::admit::REPLAYING_CLIENTS;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::ready_keys::{ReadyKey, blocking_kind_of};
use crate::net::client::ClientFlags;
use crate::replication::ReplicationState;
use crate::state::{BlockedClientEvent, EndedModuleWait, HOME_WORKER, Message, ModuleWait, NextStep};
use weft_resp::{ArgRange, Args};

/// The file descriptors that the server may watch besides those of clients.
const FURTHER_FDS: u64 = 128;

impl BlockingSession for ModuleSession<'_, '_> {
    fn blocking_permission(&self, client_id: u64) -> BlockingPermission {
        let flags = self.client.flags;
        let has_begun = |call: &ModuleCall| !matches!(call.next_step, NextStep::Reply);
        if client_id == 0 || self.client.id.get() != client_id {
            BlockingPermission::NoClient
        } else if flags.intersects(REPLAYING_CLIENTS) || self.call.as_deref().is_some_and(has_begun) {
            BlockingPermission::NotSupported
        } else if flags.contains(ClientFlags::SCRIPT) {
            BlockingPermission::InScript
        } else if flags.contains(ClientFlags::EXECUTING) {
            BlockingPermission::InTransaction
        } else if self.call.as_ref().is_some_and(|call| call.may_block) {
            BlockingPermission::Granted
        } else {
            BlockingPermission::Denied
        }
    }

    fn block_client(&mut self, request: BlockRequest<'_>) {
        // Drawn under the leases, so that park ids ascend in each queue.
        let park_id = self.thread.server.clients.next_park_id();
        let waiter = (!request.keys.is_empty()).then(|| self.add_waiter(&request, park_id));
        request
            .client
            .set_waiting(match self.client.flags.contains(ClientFlags::MODULE_CALL) {
                true => Waiting::Call(park_id.get()),
                false => Waiting::Connection(park_id.get()),
            });
        let wait = ModuleWait {
            blocked: request.client.clone(),
            park_id,
            waiter,
            deadline_ms: request.deadline_ms,
            // The dispatcher knows these.
            command: 0,
            nanoseconds: 0,
            request_bytes: 0,
            logged_command: None,
            withheld: None,
        };
        if let Some(call) = &mut self.call {
            call.next_step = NextStep::BlockByModule(Box::new(wait));
        }
    }

    fn signal_key_as_ready(&mut self, db: u32, name: &[u8]) {
        let server = &self.thread.server;
        if server.clients.blocked.keys() > 0 {
            let hash = server.keyspace.hasher.hash(name);
            let slot = SlotIndex::from_index(KeyHasher::slot(hash));
            let key = ReadyKey::new(DbIndex::new(db as usize), slot, hash, name);
            server.handle_blocked_client_at_home(BlockedClientEvent::KeyReady(key));
        }
    }
}

impl ModuleSession<'_, '_> {
    /// Adds a client to the queues of the keys that it waits for.
    fn add_waiter(&mut self, request: &BlockRequest<'_>, park_id: ParkId) -> Arc<Waiter> {
        let server = self.thread.server.clone();
        let keys = request.keys.iter().map(|name| {
            let hash = server.keyspace.hasher.hash(name);
            WaitKey {
                hash,
                slot: SlotIndex::from_index(KeyHasher::slot(hash)),
                name: Box::from(*name),
            }
        });
        let client = &*self.client;
        let words: Vec<&[u8]> = request.client.words.iter().map(Vec::as_slice).collect();
        let reads = match crate::commands::registry().lookup(&words[..]) {
            Lookup::Found(command) => !command.spec.flags.contains(CommandFlags::WRITE),
            _ => false,
        };
        let is_read_of_replica = client.flags.contains(ClientFlags::READONLY) && reads;
        let waiter = Arc::new(Waiter::new(WaiterParameters {
            client: client.id,
            worker: client.worker,
            park_id,
            db: DbIndex::new(request.client.caller.db as usize),
            protocol: client.protocol,
            keys: keys.collect(),
            operation: BlockingOperation::Module {
                client: request.client.clone(),
                includes_deletion: request.includes_deletion,
            },
            deadline_ms: request.deadline_ms,
            demotions: (!is_read_of_replica).then(|| server.replication.demotions()),
            tracks_reads: false,
            is_module_call: false,
            permission: WaiterPermission {
                account: client.login.account().clone(),
                acl_version: server.acl.version(),
                command: 0,
                first_argument: Box::default(),
            },
        }));
        let mut held = self.access.as_held_leases();
        for key in &waiter.keys {
            if let Some((_, slot)) = held.writable_slot(key.slot) {
                slot.change_blocked(key.hash, |waiting| {
                    waiting.add_waiter(key, &waiter, &server.clients.blocked)
                });
            }
        }
        waiter
    }

    /// Ends a call of a module whose command a module has blocked.
    fn end_module_wait(&mut self, park_id: ParkId, reply: Vec<u8>) {
        let wait = self.thread.server.modules.calls.wait_of(park_id);
        if wait.is_some_and(|wait| self.withdraw(&wait)) {
            self.end_call(park_id, reply);
        }
    }
}

impl BlockingHost for ModuleHost {
    fn end_blocked_client(&self, client: Arc<BlockedClient>) {
        let event = BlockedClientEvent::Unblocked(client);
        self.server.handle_blocked_client_at_home(event);
    }

    fn wake_home(&self) {
        self.server.worker(HOME_WORKER).wake();
    }

    fn refuses_post_notification_jobs(&self) -> bool {
        let state = self.server.replication.state_bits();
        state.contains(ReplicationState::LOADING)
            || (state.contains(ReplicationState::IS_REPLICA) && self.server.config.boolean(id::REPLICA_READ_ONLY))
    }

    fn max_watched_fds(&self) -> usize {
        (self.server.config.unsigned(id::MAXCLIENTS) + FURTHER_FDS) as usize
    }
}

impl Home<'_, '_> {
    /// Handles what has happened to a client that a module has blocked.
    pub(super) fn handle_blocked(&mut self, event: BlockedClientEvent) {
        match event {
            BlockedClientEvent::Unblocked(blocked) => self.end_blocked(&blocked),
            BlockedClientEvent::TimedOut(blocked) => {
                if let Some((client, park_id)) = self.find_connection(&blocked) {
                    let ended = self.run_for(&blocked, |session| blocked.time_out(session));
                    if let Some(ended) = ended {
                        self.deliver(client, park_id, ended, None);
                    }
                }
            }
            BlockedClientEvent::Disconnected(blocked) => self.disconnect(&blocked),
            BlockedClientEvent::Refused(blocked, error) => self.refuse(&blocked, &CommandError(error)),
            BlockedClientEvent::KeyReady(key) => self.serve_waiters(&key),
        }
    }

    /// Ends the wait of a client for keys with an error. It is disconnected unless the error leads it to another
    /// server.
    fn refuse(&mut self, blocked: &Arc<BlockedClient>, error: &CommandError) {
        let Some((client, park_id)) = self.find_connection(blocked) else {
            return;
        };
        if blocked.is_unblocked() {
            return;
        }
        self.disconnect(blocked);
        let mut reply = FinishedReply::default();
        error.append_to(&mut reply.bytes);
        reply.errors.push(ReplyError {
            code: Box::from(error.code()),
            is_custom: false,
            is_counted: true,
        });
        let ended = EndedBlock { reply, nanoseconds: 0 };
        let closes = error.code() == b"UNBLOCKED";
        self.deliver_and(client, park_id, ended, (None, closes));
    }

    /// Ends the wait of a client that has gone, or has got another reply: the module is notified of that.
    fn disconnect(&mut self, blocked: &Arc<BlockedClient>) {
        run_unit(self.thread, self.all, |session| blocked.disconnect(session));
    }

    /// Returns the client that waits, and the park id of its connection. Ends the wait of a client that has gone. The
    /// event that reports this may still be behind others.
    fn find_connection(&mut self, blocked: &Arc<BlockedClient>) -> Option<(ClientId, ParkId)> {
        let Waiting::Connection(park_id) = blocked.waiting() else {
            return None;
        };
        let client = ClientId::new(blocked.caller.client_id);
        if self.thread.server.clients.directory.worker_of(client).is_none() {
            self.disconnect(blocked);
            return None;
        }
        Some((client, ParkId::new(park_id)))
    }

    /// Calls `run` with a session that acts for the client that is blocked, and ends the unit.
    fn run_for<R>(&mut self, blocked: &BlockedClient, run: impl FnOnce(&mut ModuleSession<'_, '_>) -> R) -> R {
        let id = ClientId::new(blocked.caller.client_id);
        if let Some(client) = self.clients.client(id) {
            return run_unit_for(self.thread, self.all, client, run);
        }
        // Its connection is on another worker.
        let mut client = client_without_connection(self.thread.thread_index, self.thread.now_ms);
        client.id = id;
        client.db = DbIndex::new(blocked.caller.db as usize);
        client.protocol = blocked.caller.protocol;
        run_unit_for(self.thread, self.all, &mut client, run)
    }

    /// Handles the end of an authentication later if all clients are paused: in Valkey the command runs again then, and
    /// is held back. Other clients that a module has unblocked get their replies during a pause.
    fn awaits_end_of_pause(&self, blocked: &Arc<BlockedClient>) -> bool {
        let (server, pause) = (self.thread.server.clone(), &self.thread.server.clients.pause);
        let resumptions = pause.resumptions();
        let is_paused = blocked.reason == BlockReason::Authentication && pause.is_paused(unix_ms(), false);
        if is_paused {
            let event = BlockedClientEvent::Unblocked(blocked.clone());
            pause.run_after_resumption(resumptions, move || server.handle_blocked_client_at_home(event));
        }
        is_paused
    }

    /// Ends a client that the module has unblocked.
    fn end_blocked(&mut self, blocked: &Arc<BlockedClient>) {
        if self.awaits_end_of_pause(blocked) {
            return;
        }
        let connection = self.find_connection(blocked);
        match (connection, blocked.waiting()) {
            (Some((client, park_id)), _) if blocked.reason == BlockReason::Authentication => {
                self.resume_authentication(blocked, client, park_id);
            }
            (Some((client, park_id)), _) => {
                let ended = self.run_for(blocked, |session| blocked.end(session));
                self.deliver(client, park_id, ended.unwrap_or_default(), None);
            }
            (None, Waiting::Call(park_id)) => run_unit(self.thread, self.all, |session| {
                if let Some(ended) = blocked.end(session) {
                    session.end_module_wait(ParkId::new(park_id), ended.reply.bytes);
                }
            }),
            (None, _) => {
                run_unit(self.thread, self.all, |session| blocked.end(session));
            }
        }
    }

    /// Goes on with the AUTH or HELLO of a client whose module has unblocked it.
    fn resume_authentication(&mut self, blocked: &Arc<BlockedClient>, client: ClientId, park_id: ParkId) {
        let mut call = ModuleCall {
            may_block: true,
            next_step: NextStep::Reply,
        };
        let reply = self.run_for(blocked, |session| {
            let mut session = session.reborrow();
            session.call = Some(&mut call);
            let decision = authentication::resume(&mut session, blocked);
            if matches!(decision, Decision::Blocked) {
                return Default::default();
            }
            let (mut words, mut ranges) = (Vec::new(), Vec::new());
            for word in &blocked.words {
                ranges.push(ArgRange {
                    start: words.len() as u32,
                    len: word.len() as u32,
                });
                words.extend_from_slice(word);
            }
            login::complete(&mut session, Args::new(&words, &ranges), decision)
        });
        let next_wait = match call.next_step {
            NextStep::BlockByModule(wait) => Some(wait),
            _ => None,
        };
        let ended = EndedBlock {
            reply,
            nanoseconds: blocked.measured_ns(),
        };
        self.deliver(client, park_id, ended, next_wait);
    }

    /// Lets modules serve the clients that wait for a key.
    fn serve_waiters(&mut self, key: &ReadyKey) {
        for waiter in self.waiters_of(key) {
            let BlockingOperation::Module { client: blocked, .. } = &waiter.operation else {
                continue;
            };
            if waiter.is_claimed() || waiter.is_ended_by_demotion(self.thread.server.replication.demotions()) {
                continue;
            }
            let ended = match (self.find_connection(blocked), blocked.waiting()) {
                (Some((client, park_id)), _) => {
                    let ended = self.run_for(blocked, |session| blocked.serve(session, &key.name));
                    ended.map(|ended| self.deliver(client, park_id, ended, None))
                }
                (None, Waiting::Call(park_id)) => run_unit(self.thread, self.all, |session| {
                    let ended = blocked.serve(session, &key.name)?;
                    session.end_module_wait(ParkId::new(park_id), ended.reply.bytes);
                    Some(())
                }),
                (None, _) => None,
            };
            if ended.is_some() {
                // The worker of the client removes the waiter from its queues.
                let _ = waiter.try_claim();
            }
        }
    }

    /// Returns the clients that modules have blocked on a key, in the order of their arrival, as far as its present
    /// state matters to them.
    fn waiters_of(&mut self, key: &ReadyKey) -> Vec<Arc<Waiter>> {
        let mut found = Vec::new();
        let mut held = HeldLeases::Exclusive(self.all);
        let Some((_, slot)) = held.writable_slot(key.slot) else {
            return found;
        };
        let kind = blocking_kind_of(slot.table(key.db).and_then(|table| table.find(key.hash, &key.name)));
        let Some(waiting) = slot.blocked() else {
            return found;
        };
        for queue in waiting.affected_queues(key.db, &key.name, kind) {
            if queue.is_of_modules() {
                let mut behind = ParkId::NONE;
                while let Some(waiter) = waiting.next_waiter(key.db, &key.name, &queue, behind) {
                    behind = waiter.park_id;
                    found.push(waiter.clone());
                }
            }
        }
        found.sort_by_key(|waiter| waiter.park_id);
        found
    }

    /// Passes the end of a wait to the worker of the client.
    fn deliver(&mut self, client: ClientId, park_id: ParkId, ended: EndedBlock, next_wait: Option<Box<ModuleWait>>) {
        self.deliver_and(client, park_id, ended, (next_wait, false));
    }

    /// Does the same. If `closes_connection`, the client is disconnected after the reply.
    fn deliver_and(
        &mut self,
        client: ClientId,
        park_id: ParkId,
        ended: EndedBlock,
        (next_wait, closes_connection): (Option<Box<ModuleWait>>, bool),
    ) {
        let server = &self.thread.server;
        count_errors(server, self.thread.thread_index, &ended.reply.errors);
        let ended = EndedModuleWait {
            client,
            park_id,
            failed: !ended.reply.errors.is_empty(),
            reply: ended.reply.bytes,
            nanoseconds: ended.nanoseconds,
            // A thread of the module may have written for the client.
            log_sequence: server.propagation.last_sequence(),
            next_wait,
            closes_connection,
        };
        if self.clients.client(client).is_some() {
            self.thread.ended_module_waits.push(ended);
        } else if let Some(worker) = server.clients.directory.worker_of(client) {
            server.worker(worker).send(Message::ModuleWaitEnded(Box::new(ended)));
        } else if let Some(next) = ended.next_wait {
            // The client has gone since, and its worker does not know of this wait.
            self.disconnect(&next.blocked);
        }
    }
}
