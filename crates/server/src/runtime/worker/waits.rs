//! A worker's part in blocking: the start and end of waits, and the waiters that are still to be served.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, ParkId, ParkedClient, SlotIndex, ThreadIndex};
use weft_reactor::Output;

use super::Worker;
use crate::clients_waiting::blocking::{TimerQueue, Waiter, WaiterRefusal};
use crate::commands::error::CommandError;
use crate::commands::permission;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::ended_waits::{self, EndedWait};
use crate::dispatch::thread::ThreadState;
use crate::dispatch::unserved::retry_unserved;
use crate::dispatch::{record, watches};
use crate::net::client::ClientFlags;
use crate::net::client_snapshot::{ClientSnapshot, WaitState};
use crate::net::connection::Connection;
use crate::observability::metrics::Counter;
use crate::persistence::aof_files::AofState;
use crate::replication::{ReplicaWait, RequiredAcks, WAITAOF_DISABLED_REPLY};
use crate::state::{BlockedClientEvent, BlockedCommand, LogWait, Message, ModuleWait, Server, UnservedKeys};
use weft_os::atomic::Ordering;

/// The number of failed attempts to serve after which the worker sleeps between attempts.
const ATTEMPTS_BEFORE_SLEEP: u32 = 16;
/// The sleep between attempts to lease slots.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(1);

/// The reply of CLIENT UNBLOCK ERROR.
const UNBLOCKED_REPLY: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";
/// The event that a client waits for.
pub enum ClientWait {
    /// Keys.
    Keys(Box<BlockedCommand>),
    /// The log: the client's writes must reach the disk.
    Log {
        /// The park id of its connection.
        park_id: ParkId,
        /// The sequence number, the replicas, and the time limit.
        wait: LogWait,
    },
    /// A point in time, at which the client gets a known reply.
    Time {
        /// That time, in milliseconds since the Unix epoch.
        at_ms: u64,
        /// The park id of its connection.
        park_id: ParkId,
        /// The reply.
        reply: Vec<u8>,
    },
    /// A module.
    Module(Box<ModuleWait>),
    /// Replicas, or the disk.
    Replicas {
        /// The end of the wait, in milliseconds since the Unix epoch.
        at_ms: u64,
        /// The condition.
        wait: ReplicaWait,
    },
}

impl ClientWait {
    fn park_id(&self) -> ParkId {
        match self {
            ClientWait::Keys(blocked) => blocked.waiter.park_id,
            ClientWait::Module(wait) => wait.park_id,
            ClientWait::Time { park_id, .. } | ClientWait::Log { park_id, .. } => *park_id,
            ClientWait::Replicas { wait, .. } => wait.client.park_id,
        }
    }

    /// Returns `true` if CLIENT UNBLOCK ends the wait. A client that waits for a point in time, or for the end of a
    /// shutdown, is not unblocked, as in Valkey.
    pub fn can_be_unblocked(&self) -> bool {
        match self {
            ClientWait::Time { .. } => false,
            ClientWait::Module(wait) => wait.blocked.may_time_out(),
            ClientWait::Keys(_) | ClientWait::Log { .. } | ClientWait::Replicas { .. } => true,
        }
    }

    /// Returns the waiter in the queues of keys, if it is a wait for keys.
    pub(super) fn waiter(&self) -> Option<&Arc<Waiter>> {
        match self {
            ClientWait::Keys(blocked) => Some(&blocked.waiter),
            ClientWait::Module(wait) => wait.waiter.as_ref(),
            ClientWait::Time { .. } | ClientWait::Log { .. } | ClientWait::Replicas { .. } => None,
        }
    }

    fn end_ms(&self) -> Option<u64> {
        match self {
            ClientWait::Keys(blocked) => blocked.waiter.deadline_ms,
            ClientWait::Module(wait) => wait.deadline_ms,
            ClientWait::Time { at_ms, .. } => (*at_ms != u64::MAX).then_some(*at_ms),
            ClientWait::Replicas { at_ms, .. } => (*at_ms != u64::MAX).then_some(*at_ms),
            ClientWait::Log { wait, .. } => (wait.deadline_ms != u64::MAX).then_some(wait.deadline_ms),
        }
    }
}

/// A reply that is withheld until waiters have been served, or only a pause holds them back.
pub(crate) struct WithheldReply {
    /// The client whose command serves them.
    pub parked: ParkedClient,
    /// The reply.
    pub output: Output,
}

/// Waiters that could not be served because a slot was leased by another thread, or because of a pause, and the reply
/// that is withheld meanwhile.
struct UnservedWaiters {
    unserved: UnservedKeys,
    reply: Option<WithheldReply>,
}

/// The waiting clients of a worker.
#[derive(Default)]
pub struct Waits {
    by_client: HashMap<ClientId, ClientWait>,
    timers: TimerQueue<ClientId>,
    /// The blocked calls of modules that end at a certain time.
    call_timers: TimerQueue<ParkId>,
    /// Waiters whose wait has ended and that are still in queues.
    ended_waits: Vec<EndedWait>,
    /// The waits whose time is over, but that were held up then.
    held_up: Vec<(ClientId, ParkId)>,
    /// Clients that wait for the log.
    clients_awaiting_log: Vec<ClientId>,
    unserved_waiters: Vec<UnservedWaiters>,
}

impl Waits {
    /// Returns the time at which the first wait times out, in milliseconds since the Unix epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        let times = [self.timers.next_due_ms(), self.call_timers.next_due_ms()];
        times.into_iter().flatten().min()
    }

    /// Ends a call of a module at this time, in milliseconds since the Unix epoch, unless it ends before.
    pub fn add_call_timer(&mut self, at_ms: u64, park_id: ParkId) {
        self.call_timers.add(at_ms, park_id, park_id);
    }

    /// Returns the time that the worker may sleep in view of work that failed before, or `None` if there is no such
    /// work.
    pub fn retry_pause(&self) -> Option<Duration> {
        let eager = |waiters: &UnservedWaiters| waiters.unserved.failures < ATTEMPTS_BEFORE_SLEEP;
        if self.unserved_waiters.iter().any(eager) {
            return Some(Duration::ZERO);
        }
        let undone = !self.unserved_waiters.is_empty() || !self.ended_waits.is_empty() || !self.held_up.is_empty();
        undone.then_some(ATTEMPT_PAUSE)
    }

    /// Returns the number of clients that wait.
    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Returns the clients that wait.
    pub fn waiting_clients(&self) -> Vec<ClientId> {
        self.by_client.keys().copied().collect()
    }

    /// Returns the event that a client waits for.
    pub fn client_wait(&self, client: ClientId) -> Option<&ClientWait> {
        self.by_client.get(&client)
    }

    /// Returns `true` if a client waits for keys; then its connection may move to another worker.
    pub fn is_waiting_for_keys(&self, client: ClientId) -> bool {
        matches!(self.by_client.get(&client), Some(ClientWait::Keys(_)))
    }
}

/// Returns WAITAOF's reply as of now, and `true` if its condition is met.
fn log_reply(server: &Server, wait: LogWait) -> (Vec<u8>, bool) {
    if server.persistence.aof.state() == AofState::Off {
        return (WAITAOF_DISABLED_REPLY.to_vec(), !wait.needs_replicas);
    }
    let is_there = server.is_on_disk(wait.sequence);
    let replicas = server.replication.replicas.synced_sequence_count(wait.sequence);
    let reply = format!("*2\r\n:{}\r\n:{replicas}\r\n", u8::from(is_there));
    (reply.into(), is_there && !wait.needs_replicas)
}

impl Worker {
    /// Returns snapshots of all clients but one.
    pub(crate) fn collect_client_snapshots(&mut self, excluded_client: ClientId) -> Vec<ClientSnapshot> {
        let mut client_snapshots = Vec::with_capacity(self.clients.len());
        for token in 0..self.clients.slots.len() {
            let Some(buffers) = self.buffer_figures(token) else {
                continue;
            };
            let Some(connection) = self.clients.connection(token) else {
                continue;
            };
            let client = &connection.client;
            if client.id == excluded_client || client.flags.contains(ClientFlags::CLOSE_ASAP) {
                continue;
            }
            let waiting = match self.waits.client_wait(client.id) {
                None => None,
                Some(ClientWait::Keys(blocked)) => Some(WaitState::Keys(blocked.waiter.clone())),
                Some(other) => other.can_be_unblocked().then(|| WaitState::Other(other.park_id())),
            };
            client_snapshots.push(ClientSnapshot {
                client: client.client_snapshot(),
                buffers,
                wait_state: waiting,
            });
        }
        client_snapshots
    }

    /// Publishes the number of clients that wait. The worker writes to the same cache line twice a turn anyway.
    #[inline]
    pub(crate) fn publish_wait_count(&self) {
        let link = self.thread.server.worker(self.id);
        link.waiting_clients.store(self.waits.len(), Ordering::Relaxed);
    }

    /// Starts the wait of a parked connection.
    pub(crate) fn begin_wait(&mut self, token: usize, wait: ClientWait) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.client.flags.set(ClientFlags::BLOCKED, true);
        let client = connection.client.id;
        if let Some(at_ms) = wait.end_ms() {
            self.waits.timers.add(at_ms, wait.park_id(), client);
            self.server().clients.blocked.add_timeout();
        }
        let waiter = match &wait {
            ClientWait::Keys(blocked) => Some(blocked.waiter.clone()),
            _ => None,
        };
        let for_log = matches!(wait, ClientWait::Log { .. });
        if let Some(connection) = self.clients.connection(token) {
            connection.waiter.clone_from(&waiter);
        }
        self.waits.by_client.insert(client, wait);
        self.append_deferred_output(token);
        if for_log {
            self.waits.clients_awaiting_log.push(client);
            self.resume_logged_clients();
        }
        if let Some(waiter) = waiter {
            // The client may have been served before its connection was parked here.
            match waiter.serve_result() {
                // Messages in front of the reply may be in the mail.
                Some(_) => self.server().worker(self.id).send(Message::WaiterServed(waiter)),
                None => self.check_begun_wait(&waiter),
            }
        }
        let has_peer = self
            .clients
            .connection(token)
            .is_some_and(|connection| !connection.is_peer_done);
        if !has_peer && self.is_waiting_for_others(token) {
            self.disconnect_blocked(token);
        }
    }

    /// Ends a wait for keys that begins on this worker if its reason is gone. The messages about a change of the role
    /// or of slots reach the clients that wait on a worker at that time, and so miss a connection on its way.
    fn check_begun_wait(&mut self, waiter: &Waiter) {
        if waiter.is_ended_by_demotion(self.server().replication.demotions()) {
            self.end_wait_of_demoted(waiter.client);
        } else if let Some(cluster) = &self.server().cluster {
            let view = cluster.view();
            self.redirect_blocked_client(waiter.client, &view);
        }
    }

    /// Sends a client the messages that were held back behind an expected reply.
    fn append_deferred_output(&mut self, token: usize) {
        if let Some(connection) = self.clients.connection(token)
            && !connection.deferred_output.is_empty()
            && !connection.defers_messages()
        {
            connection.output.append(&mut connection.deferred_output);
            self.clients.tokens_with_messages.push(token);
        }
    }

    /// Returns `true` if the client waits for an action of other clients or servers and no reply is being produced.
    /// Such a wait ends with its client, as in Valkey.
    pub(crate) fn is_waiting_for_others(&mut self, token: usize) -> bool {
        let Some(connection) = self.clients.connection(token) else {
            return false;
        };
        let (client, answered) = (connection.client.id, connection.is_awaiting_reply());
        match self.waits.client_wait(client) {
            Some(
                ClientWait::Keys(_) | ClientWait::Module(_) | ClientWait::Log { .. } | ClientWait::Replicas { .. },
            ) => !answered,
            Some(ClientWait::Time { .. }) | None => false,
        }
    }

    /// Removes the wait of a client, whatever ended it.
    pub(super) fn end_wait(&mut self, client: ClientId) -> Option<ClientWait> {
        let wait = self.waits.by_client.remove(&client)?;
        if let Some(at_ms) = wait.end_ms() {
            self.waits.timers.remove(at_ms, wait.park_id());
            self.server().clients.blocked.remove_timeout();
        }
        if let Some(token) = self.clients.by_id.get(&client).copied()
            && let Some(connection) = self.clients.connection(token)
        {
            connection.waiter = None;
            connection.is_reply_next = false;
        }
        Some(wait)
    }

    /// Delivers the reply of a waiter: its connection continues, or the mail follows the connection to another worker.
    pub(crate) fn deliver_waiter_reply(&mut self, waiter: &Arc<Waiter>) {
        let Some(token) = self.find_parked(waiter.client, waiter.park_id) else {
            let worker = waiter.worker();
            if worker != self.id {
                self.server().worker(worker).send(Message::WaiterServed(waiter.clone()));
            }
            return;
        };
        let (Some(served), Some(ClientWait::Keys(mut blocked))) = (waiter.serve_result(), self.end_wait(waiter.client))
        else {
            return;
        };
        match &served.refusal {
            Some(refusal) => self.record_refusal(token, &blocked, refusal),
            None => {
                let reply_bytes = served.reply.len();
                self.record_wait_end(&mut blocked, served.nanoseconds, reply_bytes, served.is_error, true);
            }
        }
        self.record_write(token, served.log_sequence);
        if waiter.keys.len() > 1 {
            self.remove_waiter(waiter.clone());
        }
        self.resume_with_reply(token, |output| output.bytes.extend_from_slice(&served.reply));
    }

    /// Ends a client's wait without the event: by timeout or by CLIENT UNBLOCK, with an error or without. Returns
    /// `true` if the client was waiting.
    pub(crate) fn end_wait_without_event(&mut self, client: ClientId, with_error: bool) -> bool {
        self.end_wait_with_error(client, with_error.then_some(UNBLOCKED_REPLY))
    }

    /// Ends a wait. A wait for keys must have been claimed already; any other wait ends if its park id matches.
    pub(crate) fn end_claimed_wait(&mut self, client: ClientId, waiting: WaitState, with_error: bool) {
        let error = with_error.then_some(UNBLOCKED_REPLY);
        match waiting {
            WaitState::Other(park_id) => {
                if self
                    .waits
                    .client_wait(client)
                    .is_some_and(|wait| wait.park_id() == park_id)
                {
                    self.end_wait_with_error(client, error);
                }
            }
            WaitState::Keys(waiter) => {
                let here = matches!(self.waits.client_wait(client), Some(ClientWait::Keys(blocked)) if Arc::ptr_eq(&blocked.waiter, &waiter));
                if here {
                    self.end_wait_with_null(client, error);
                } else if !self.clients.by_id.contains_key(&client)
                    && let Some(worker) = self.server().clients.directory.worker_of(client)
                {
                    let waiting = WaitState::Keys(waiter);
                    self.server().worker(worker).send(Message::EndWait {
                        client,
                        wait_state: waiting,
                        with_error,
                    });
                }
            }
        }
    }

    pub(super) fn end_wait_with_error(&mut self, client: ClientId, error: Option<&[u8]>) -> bool {
        match self.waits.by_client.get(&client) {
            None => return false,
            Some(ClientWait::Module(wait)) if error.is_none() => {
                // The home worker calls the module, which makes the reply.
                let event = BlockedClientEvent::TimedOut(wait.blocked.clone());
                self.server().handle_blocked_client_at_home(event);
                return true;
            }
            // The client is being served at this moment; the reply arrives by mail.
            Some(ClientWait::Keys(blocked)) if !blocked.waiter.try_claim() => return false,
            Some(_) => {}
        }
        self.end_wait_with_null(client, error)
    }

    /// Ends a wait that only this worker can end. Returns `true` if there was one.
    fn end_wait_with_null(&mut self, client: ClientId, error: Option<&[u8]>) -> bool {
        let Some(wait) = self.end_wait(client) else {
            return false;
        };
        let park_id = wait.park_id();
        let mut reply = match wait {
            ClientWait::Keys(mut blocked) => {
                let null = crate::dispatch::serve::null_array(blocked.waiter.protocol);
                self.remove_waiter(blocked.waiter.clone());
                self.record_wait_end(&mut blocked, 0, null.len(), false, false);
                if error.is_some() {
                    // Valkey counts it in the same way.
                    self.server()
                        .stats
                        .metrics
                        .record_rejection(self.thread.thread_index, blocked.command);
                }
                null
            }
            ClientWait::Module(mut wait) => {
                let nanoseconds = wait.nanoseconds;
                self.record_module_wait(&mut wait, nanoseconds, 0, true);
                self.abandon_module_wait(*wait);
                Vec::new()
            }
            ClientWait::Time { reply: bytes, .. } => bytes,
            ClientWait::Replicas { wait, .. } => self.replica_count_reply(&wait),
            ClientWait::Log { wait, .. } => log_reply(self.server(), wait).0,
        };
        if let Some(error) = error {
            let server = self.server();
            server
                .stats
                .metrics
                .add(self.thread.thread_index, Counter::ErrorReplies, 1);
            server.stats.errors.count(b"UNBLOCKED");
            reply = error.to_vec();
        }
        self.deliver_parked_reply(client, park_id, reply);
        true
    }

    /// Ends a client's wait for keys with an error, unless it is being served at this moment.
    pub(crate) fn reply_error_to_waiter(&mut self, client: ClientId, error: &CommandError) {
        match self.waits.by_client.get(&client) {
            Some(ClientWait::Keys(blocked)) if blocked.waiter.try_claim() => {}
            Some(ClientWait::Module(wait)) if wait.waiter.is_some() => {
                // The home worker may be serving it at this moment.
                let event = BlockedClientEvent::Refused(wait.blocked.clone(), error.0.clone());
                return self.server().handle_blocked_client_at_home(event);
            }
            _ => return,
        }
        let Some(ClientWait::Keys(mut blocked)) = self.end_wait(client) else {
            return;
        };
        let mut reply = Vec::new();
        error.append_to(&mut reply);
        self.remove_waiter(blocked.waiter.clone());
        self.record_wait_end(&mut blocked, 0, reply.len(), true, false);
        let server = self.server();
        server
            .stats
            .metrics
            .add(self.thread.thread_index, Counter::ErrorReplies, 1);
        server.stats.errors.count(error.code());
        self.deliver_parked_reply(client, blocked.waiter.park_id, reply);
    }

    /// Replies to the clients that wait for a shutdown which was aborted.
    pub(crate) fn reply_to_aborted_shutdowns(&mut self) {
        let waits = |wait: &ClientWait| matches!(wait, ClientWait::Time { at_ms: u64::MAX, .. });
        let clients: Vec<ClientId> = self
            .waits
            .by_client
            .iter()
            .filter(|(_, wait)| waits(wait))
            .map(|(client, _)| *client)
            .collect();
        for client in clients {
            self.end_wait_without_event(client, false);
        }
    }

    /// Resumes the clients whose writes are on disk.
    pub(crate) fn resume_logged_clients(&mut self) {
        if self.waits.clients_awaiting_log.is_empty() {
            return;
        }
        let server = self.server().clone();
        server.propagation.request_milestone_notice(self.id);
        for client in std::mem::take(&mut self.waits.clients_awaiting_log) {
            let Some(ClientWait::Log { park_id, wait }) = self.waits.by_client.get(&client) else {
                continue;
            };
            let park_id = *park_id;
            let (reply, is_over) = log_reply(&server, *wait);
            if is_over {
                self.end_wait(client);
                self.deliver_parked_reply(client, park_id, reply);
            } else {
                self.waits.clients_awaiting_log.push(client);
            }
        }
    }

    /// Starts the wait of a client whose writes must be acknowledged.
    pub(crate) fn begin_wait_for_replicas(
        &mut self,
        token: usize,
        client: ParkedClient,
        at_ms: u64,
        required_acks: RequiredAcks,
    ) {
        let wait = ReplicaWait { client, required_acks };
        // Before the wait begins, which may end it at once: the client may have closed its end of the connection.
        self.server().replication.replicas.waits().push(wait);
        self.begin_wait(token, ClientWait::Replicas { at_ms, wait });
        let server = self.server();
        // A replica may have reached the offset by now.
        server.replication.replicas.request_acks();
        server.propagation.request_flush();
        server.background.wake_primary_thread();
    }

    /// Returns the number of replicas that have a client's writes, for a wait that timed out.
    fn replica_count_reply(&self, wait: &ReplicaWait) -> Vec<u8> {
        let server = self.server();
        server.replication.replicas.waits().retain(|other| other != wait);
        crate::commands::generic::wait::build_reply(server, &wait.required_acks)
    }

    /// Delivers the reply to a client that waited for replicas.
    pub(crate) fn end_wait_for_replicas(&mut self, client: ClientId, park_id: ParkId) {
        let waits =
            |wait: &ClientWait| matches!(wait, ClientWait::Replicas { wait, .. } if wait.client.park_id == park_id);
        if self.waits.by_client.get(&client).is_some_and(waits) {
            self.end_wait(client);
        }
    }

    /// Ends the wait of a client that has disconnected, so that it is no longer served.
    pub(crate) fn abandon_wait(&mut self, client: ClientId) {
        match self.end_wait(client) {
            Some(ClientWait::Keys(blocked)) => self.abandon_waiter(blocked.waiter),
            Some(ClientWait::Replicas { wait, .. }) => {
                let server = self.server();
                server.replication.replicas.waits().retain(|other| *other != wait);
            }
            Some(ClientWait::Module(wait)) => self.abandon_module_wait(*wait),
            Some(ClientWait::Time { .. } | ClientWait::Log { .. }) | None => {}
        }
    }

    /// Like [`Self::abandon_wait`], for a client whose wait did not start on this worker.
    pub(crate) fn abandon_waiter(&mut self, waiter: Arc<Waiter>) {
        // If the waiter is being served at this moment, the reply is discarded.
        let _ = waiter.try_claim();
        self.remove_waiter(waiter);
    }

    /// Records the end of a command that has waited. `nanoseconds` is the time that serving took. `is_served` is `true`
    /// if the wait was successful.
    fn record_wait_end(
        &mut self,
        blocked: &mut BlockedCommand,
        nanoseconds: u64,
        reply_bytes: usize,
        failed: bool,
        is_served: bool,
    ) {
        record::record_blocked_command(&self.thread, blocked, nanoseconds, reply_bytes, failed, is_served);
        let token = self.clients.by_id.get(&blocked.waiter.client).copied();
        if let Some(connection) = token.and_then(|token| self.clients.connection(token)) {
            connection.client.commands += 1;
        }
    }

    /// Accounts for the end of a blocked command that was refused.
    fn record_refusal(&mut self, token: usize, blocked: &BlockedCommand, refusal: &WaiterRefusal) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let thread = &self.thread;
        thread
            .server
            .stats
            .metrics
            .record_rejection(thread.thread_index, blocked.command);
        let WaiterRefusal::Denied(denied) = refusal else {
            return;
        };
        let line = connection.client.list_line(thread.now_ms, connection.buffers(0));
        permission::log_denial(
            &thread.server,
            thread.thread_index,
            thread.now_ms,
            (**denied).clone(),
            line,
        );
    }

    /// Removes a waiter from the queues of its keys, immediately if their slots are free.
    pub(super) fn remove_waiter(&mut self, waiter: Arc<Waiter>) {
        // Waiters whose slots were leased are tried again once at the end of the turn, not with every further waiter.
        let is_first = self.waits.ended_waits.is_empty();
        self.waits.ended_waits.extend(EndedWait::of_all_keys(&waiter));
        if is_first {
            self.remove_ended_waits();
        }
    }

    fn remove_ended_waits(&mut self) {
        ended_waits::remove_ended_waits(&mut self.seat, &self.thread.server, &mut self.waits.ended_waits);
    }

    /// Ends the waits whose time is over. A client whose element is there, but that cannot be served yet, goes on
    /// waiting for it.
    pub(crate) fn end_due_waits(&mut self) {
        for (client, park_id) in std::mem::take(&mut self.waits.held_up) {
            let wait = self.waits.by_client.get(&client);
            if wait.is_some_and(|wait| wait.park_id() == park_id) {
                self.end_due_wait(client);
            }
        }
        if self.waits.timers.is_empty() && self.waits.call_timers.is_empty() {
            return;
        }
        let now_ms = unix_ms();
        while let Some(park_id) = self.waits.call_timers.pop_due(now_ms) {
            self.server().end_module_call_at_home(park_id, None);
        }
        while let Some(client) = self.waits.timers.pop_due(now_ms) {
            self.end_due_wait(client);
        }
    }

    fn end_due_wait(&mut self, client: ClientId) {
        match self.waits.by_client.get(&client) {
            Some(ClientWait::Keys(blocked)) if blocked.waiter.is_held_up() => {
                self.waits.held_up.push((client, blocked.waiter.park_id));
            }
            _ => drop(self.end_wait_without_event(client, false)),
        }
    }

    // ---- moving -----------------------------------------------------------------------------------

    /// Sends a connection to another worker by mail. If it waits, messages for it are forwarded.
    pub(crate) fn send_connection(&mut self, to: ThreadIndex, connection: Box<Connection>) {
        let wait = match self.end_wait(connection.client.id) {
            Some(ClientWait::Keys(blocked)) => Some(blocked),
            _ => None,
        };
        let waiter = wait.as_ref().map(|blocked| blocked.waiter.clone());
        let server = self.server();
        server.worker(self.id).connections.fetch_sub(1, Ordering::Relaxed);
        server.worker(to).connections.fetch_add(1, Ordering::Relaxed);
        let client = connection.client.id;
        server.clients.directory.move_client(client, to, || {
            server.worker(to).send(Message::AdoptConnection(connection, wait));
            // Only now: a thread that reads the new worker sends its mail after the connection. A thread that has read
            // the old worker sends its mail there, and that worker forwards it.
            if let Some(waiter) = waiter {
                waiter.move_to(to);
            }
        });
    }

    // ---- serving ----------------------------------------------------------------------------------

    /// Withholds a reply until waiters have been served, or only a pause holds them back.
    pub(crate) fn withhold_reply(&mut self, unserved: UnservedKeys, reply: Option<WithheldReply>) {
        self.waits.unserved_waiters.push(UnservedWaiters { unserved, reply });
    }

    /// Delivers a reply that was withheld, unless its client has gone.
    fn deliver_withheld_reply(&mut self, reply: Option<WithheldReply>) {
        if let Some(mut withheld) = reply
            && let Some(token) = self.find_parked(withheld.parked.client, withheld.parked.park_id)
        {
            self.resume_with_reply(token, |all| all.append(&mut withheld.output));
        }
    }

    /// Delivers the replies to this worker's own clients that its commands have served.
    pub(crate) fn deliver_local_replies(&mut self) {
        if self.thread.served_here.is_empty() {
            return;
        }
        let mut served = std::mem::take(&mut self.thread.served_here);
        for waiter in served.drain(..) {
            self.deliver_waiter_reply(&waiter);
        }
        self.thread.served_here = served;
    }

    /// Retries the work that failed because slots were leased.
    pub(crate) fn retry_unserved(&mut self) {
        for unserved in std::mem::take(&mut self.thread.unserved) {
            self.withhold_reply(unserved, None);
        }
        if !self.waits.ended_waits.is_empty() {
            self.remove_ended_waits();
        }
        if !self.thread.effects.removed_watches.is_empty() {
            let ThreadState { server, effects, .. } = &mut self.thread;
            watches::remove_watches(&mut self.seat, server, &mut effects.removed_watches);
        }
        // A slot that was refused in this turn would be refused again.
        let mut refused: HashSet<SlotIndex> = HashSet::new();
        let (pause, now_ms) = (&self.server().clients.pause, self.thread.now_ms);
        let is_paused = pause.is_paused(now_ms, false) || pause.are_writes_paused(now_ms) || pause.held_slots.is_any();
        let goes_home = self.thread.home_events.include_changes() && !is_paused;
        for UnservedWaiters { unserved, reply } in std::mem::take(&mut self.waits.unserved_waiters) {
            if goes_home && reply.is_none() {
                // Modules get the events of their operations.
                self.server()
                    .run_at_home(Box::new(move |home| home.serve_waiters(unserved)));
                continue;
            }
            let left = retry_unserved(&mut self.thread, &mut self.seat, &mut refused, unserved);
            let reply = match &left {
                Some(left) if !left.is_paused => reply,
                Some(_) | None => {
                    self.deliver_withheld_reply(reply);
                    None
                }
            };
            if let Some(left) = left {
                self.withhold_reply(left.unserved, reply);
            }
        }
        // In this order: the replies come after the messages about what served their clients.
        self.deliver_notifications();
        self.deliver_local_replies();
    }
}

#[cfg(test)]
mod tests;
