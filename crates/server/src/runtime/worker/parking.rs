//! Parked connections: they wait for an event other than a key, and continue when it arrives.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Worker;
use super::waits::{ClientWait, WithheldReply};
use crate::commands::context::NextStep;
use crate::commands::context::send_background_work;
use crate::commands::scripting::preparing::send_preparation;
use crate::commands::server::replication::reply_instead_of_sync;
use crate::dispatch::batch::BatchConnections as _;
use crate::net::client::{Client, ClientFlags};
use crate::net::client_snapshot::ClientSnapshot;
use crate::net::connection::{Connection, ConnectionState};
use crate::net::library_loads::LibraryLoads;
use crate::notify::messages::remove_all_registrations;
use crate::observability::metrics::Counter;
use crate::state::{
    BackgroundWork, ConnectionReceiver, DetachedResult, PermissionCheck, PermissionLoss, PrimaryThreadCommand,
    QueryRequester, Server, SyncRequest,
};
use weft_base::{ClientId, LogSequence, ParkId, ParkedClient, ThreadIndex};
use weft_os::atomic::Ordering;
use weft_reactor::Output;

/// The reply to a transaction of which some commands are executed elsewhere.
pub(crate) struct PartialReplies {
    /// The output so far.
    completed: Output,
    /// `true` if a background thread does the current part.
    is_in_background: bool,
    /// The output after the current part.
    following_output: Output,
    /// Further parts, each with the output after it.
    remaining: VecDeque<(NextStep, Output)>,
}

/// The remaining parts of a transaction whose client has disconnected.
pub(crate) type AbandonedParts = VecDeque<Box<BackgroundWork>>;

/// The way of a connection to a thread other than a worker.
pub(crate) struct Departure {
    /// Checks if the client may still run its command, which has waited until all earlier replies were sent.
    permission: PermissionCheck,
    receiver: DepartureReceiver,
}

/// The thread that takes a connection. It registers the connection as a link or a session.
enum DepartureReceiver {
    /// The thread that serves replicas.
    Primary(SyncRequest),
    /// Another one.
    Other(ConnectionReceiver),
}

impl Departure {
    /// Checks again if the command may run: what the client, or the server, may do can have changed while it waited.
    /// The caller is within a passage of the gate.
    fn check(&mut self, server: &Arc<Server>, thread_index: ThreadIndex) -> Result<(), PermissionLoss> {
        if let DepartureReceiver::Primary(request) = &mut self.receiver {
            request.disconnection_count = server.replication.replicas.disconnection_count();
        }
        (self.permission)(server, thread_index)
    }

    /// Returns the reply of a command whose connection stays with its worker. `has_pending_output` is `true` if the
    /// client has not read its earlier replies.
    fn reply_in_place(
        &self,
        server: &Server,
        thread_index: ThreadIndex,
        client: &Client,
        has_pending_output: bool,
    ) -> Option<Vec<u8>> {
        match &self.receiver {
            DepartureReceiver::Primary(request) => {
                reply_instead_of_sync(server, thread_index, client, request, has_pending_output)
            }
            DepartureReceiver::Other(_) => None,
        }
    }

    /// Gives the connection away.
    fn give(self, server: &Arc<Server>, mut connection: Box<Connection>) {
        match self.receiver {
            DepartureReceiver::Primary(request) => {
                connection.client.flags.set(ClientFlags::REPLICA, true);
                server.hand_over(connection, |connection| {
                    let order = PrimaryThreadCommand::AdoptReplica(connection, Box::new(request));
                    server.background.send_to_primary_thread(order);
                });
            }
            DepartureReceiver::Other(take) => {
                server.clients.connections.fetch_sub(1, Ordering::Relaxed);
                take(connection);
            }
        }
    }
}

impl Worker {
    pub(crate) fn start_next_step(&mut self, token: usize, next_step: NextStep) {
        let server = self.server().clone();
        let park_id = server.clients.next_park_id();
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.state = ConnectionState::Parked(park_id);
        let parked = ParkedClient {
            worker: self.id,
            client: connection.client.id,
            park_id,
        };
        match next_step {
            NextStep::Reply | NextStep::Defer | NextStep::RunInBackground(_) | NextStep::RetryAsWriter => {
                connection.state = ConnectionState::Deferred
            }
            NextStep::QueryWorkers(query) => server.query_all_workers(*query, QueryRequester::Client(parked)),
            NextStep::CollectClients => server.collect_clients(parked),
            NextStep::PrepareLibraries => {
                let transaction = connection.client.transaction.as_mut();
                let loads = transaction.and_then(|transaction| transaction.library_loads.take());
                let sent = send_preparation(&server, loads.unwrap_or_default(), parked);
                self.account_background_command(token, sent);
            }
            NextStep::Background(work) => self.start_background_work(token, *work, parked),
            NextStep::AwaitBackground(command) => {
                let sent = server.background.long_commands.send(command(parked));
                self.account_background_command(token, sent);
            }
            NextStep::AwaitSnapshotCommand(command) => {
                let sent = server.background.snapshot_commands.send(command(parked));
                self.account_background_command(token, sent);
            }
            NextStep::AwaitScript(command) => {
                let sent = server.background.scripts.send(command(parked));
                self.account_background_command(token, sent);
            }
            NextStep::ReplyAt(reply) => {
                let (at_ms, bytes) = *reply;
                self.begin_wait(
                    token,
                    ClientWait::Time {
                        at_ms,
                        park_id,
                        reply: bytes,
                    },
                );
            }
            NextStep::AwaitLog(wait) => self.begin_wait(token, ClientWait::Log { park_id, wait: *wait }),
            NextStep::Block(blocked) => {
                connection.state = ConnectionState::Parked(blocked.waiter.park_id);
                self.begin_wait(token, ClientWait::Keys(blocked));
            }
            NextStep::BlockByModule(wait) => {
                connection.state = ConnectionState::Parked(wait.park_id);
                self.begin_wait(token, ClientWait::Module(wait));
            }
            NextStep::Sync(request) => {
                let (request, permission) = *request;
                let receiver = DepartureReceiver::Primary(request);
                self.depart(token, Departure { permission, receiver });
            }
            NextStep::TakeConnection(transfer) => {
                let (permission, take) = *transfer;
                let receiver = DepartureReceiver::Other(take);
                self.depart(token, Departure { permission, receiver });
            }
            NextStep::AwaitReplicas(wait) => {
                let (at_ms, required_acks) = *wait;
                self.begin_wait_for_replicas(token, parked, at_ms, required_acks);
            }
            NextStep::TransactionParts(parts) => self.start_next_part(token, parts.0, parts.1),
            NextStep::AwaitServing(withheld) => {
                let (unserved, output) = *withheld;
                self.withhold_reply(unserved, Some(WithheldReply { parked, output }));
            }
        }
    }

    /// Sends the work of the command of connection `token` to a background thread.
    fn start_background_work(&mut self, token: usize, work: BackgroundWork, parked: ParkedClient) {
        let server = self.server().clone();
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        // The thread that ends the command does not have the client.
        connection.client.commands += 1;
        let mark = connection.client.kill_mark.get_or_insert_default().clone();
        // The parts of a transaction take effect together.
        let is_part = self.partial_replies.contains_key(&parked.client);
        let mark = if is_part { Arc::default() } else { mark };
        let is_sent = send_background_work(&server, work, mark, parked);
        self.account_background_command(token, is_sent);
    }

    /// Counts a command of connection `token` that was sent to a background thread. The connection is closed if that
    /// thread has ended.
    fn account_background_command(&mut self, token: usize, is_sent: bool) {
        let server = self.server().clone();
        server
            .stats
            .metrics
            .add(self.thread.thread_index, Counter::BackgroundCommands, 1);
        if !is_sent && let Some(connection) = self.clients.connection(token) {
            connection.client.flags.set(ClientFlags::CLOSE_ASAP, true);
        }
    }

    /// Gives a parked connection away once all its replies are sent. The thread that takes it does not withhold replies
    /// until the log has their writes, or until it is certain that these are not lost. A write without a reply counts,
    /// too: the next reply may depend on it. Messages that have arrived meanwhile come before the command, and are sent
    /// as well.
    fn depart(&mut self, token: usize, departure: Departure) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.output.append(&mut connection.deferred_output);
        if !connection.output.is_empty() || !connection.client.unacknowledged_write.is_none() {
            self.flush_output(token);
            let Some(connection) = self.clients.connection(token) else {
                return;
            };
            if connection.is_output_withheld {
                // The worker has requested a notice, after which it tries again.
                self.departures.insert(connection.client.id, departure);
                return;
            }
            connection.client.unacknowledged_write = LogSequence::NONE;
        }
        self.give_away(token, departure);
    }

    /// Gives the connections away whose output is not withheld any more.
    pub(crate) fn retry_departures(&mut self) {
        for (client, departure) in std::mem::take(&mut self.departures) {
            if let Some(token) = self.clients.by_id.get(&client).copied() {
                self.depart(token, departure);
            }
        }
    }

    /// Gives a connection to a thread other than a worker, if its command may still run. The client may have been
    /// killed since its command has run.
    fn give_away(&mut self, token: usize, mut departure: Departure) {
        let (server, thread_index) = (self.server().clone(), self.thread.thread_index);
        let has_pending_output = self.in_flight_bytes(token) > 0;
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let checked = {
            // Neither permissions nor the role of this server change within the passage.
            let _pass = self.seat.enter();
            let checked = departure.check(&server, thread_index);
            checked.map(|()| departure.reply_in_place(&server, thread_index, &connection.client, has_pending_output))
        };
        match checked {
            Ok(None) => {}
            Ok(Some(bytes)) | Err(PermissionLoss::Denied(bytes)) => {
                return self.resume_with_reply(token, |output| output.bytes.extend_from_slice(&bytes));
            }
            Err(PermissionLoss::ClientEnds) => {
                connection.client.kill();
                return self.flush_output(token);
            }
        }
        let Some(connection) = self.detach_connection(token) else {
            return;
        };
        let client = connection.client.id;
        departure.give(&server, connection);
        // In this order: a transaction that kills the client finds it in the directory or as a link.
        if server.clients.directory.remove_departed(client) {
            server.close_link(client);
        }
    }

    /// Removes a connection that moves to a thread other than a worker. One that is about to be closed stays.
    fn detach_connection(&mut self, token: usize) -> Option<Box<Connection>> {
        let flags = self.clients.connection(token)?.client.flags;
        if flags.contains(ClientFlags::CLOSE_ASAP) {
            // The end of the turn closes it.
            return None;
        }
        let registered = self.reactor.deregister(token)?;
        let mut connection = self.clients.remove(token)?;
        let usage = std::mem::take(&mut connection.usage);
        self.uncount_client(usage);
        self.ready_tokens.retain(|other| *other != token);
        self.delayed_tokens.retain(|other| *other != token);
        let server = self.server().clone();
        remove_all_registrations(&server, &mut connection.client);
        if let Some(watches) = connection.client.watches.take() {
            self.thread.effects.removed_watches.extend(watches.keys);
        }
        connection.discard_consumed();
        connection.state = ConnectionState::Ready;
        connection.is_in_batch = false;
        connection.in_transit = Some(registered);
        server.worker(self.id).connections.fetch_sub(1, Ordering::Relaxed);
        Some(connection)
    }

    /// Delivers the reply of a parked connection, which then continues.
    pub(crate) fn deliver_parked_reply(&mut self, client: ClientId, park_id: ParkId, bytes: Vec<u8>) {
        self.end_wait_for_replicas(client, park_id);
        if let Some(token) = self.find_parked(client, park_id) {
            self.append_parked_reply(token, bytes);
        }
    }

    /// Delivers the reply of a parked connection whose wait has ended.
    pub(super) fn append_parked_reply(&mut self, token: usize, bytes: Vec<u8>) {
        let mut reply = Output::new();
        reply.bytes = bytes;
        self.append_reply(token, |output| output.append(&mut reply));
    }

    /// Delivers the client snapshots that a parked transaction requested: EXEC runs again.
    pub(crate) fn resume_with_client_snapshots(
        &mut self,
        client: ClientId,
        park_id: ParkId,
        client_snapshots: Vec<ClientSnapshot>,
    ) {
        let Some(token) = self.find_parked(client, park_id) else {
            return;
        };
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if let Some(transaction) = &mut connection.client.transaction {
            transaction.client_snapshots = Some(client_snapshots);
        }
        self.run_request_again(token);
    }

    /// Delivers the libraries that a parked transaction loads, once their code has run: EXEC runs again.
    pub(crate) fn resume_with_libraries(&mut self, client: ClientId, park_id: ParkId, loads: Box<LibraryLoads>) {
        let Some(token) = self.find_parked(client, park_id) else {
            return;
        };
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        if let Some(transaction) = &mut connection.client.transaction {
            transaction.library_loads = Some(loads);
        }
        self.run_request_again(token);
    }

    /// Lets a parked connection continue with the request for which it has parked.
    fn run_request_again(&mut self, token: usize) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.state = ConnectionState::Ready;
        connection.output.append(&mut connection.deferred_output);
        self.resume_connection(token);
        self.flush_output(token);
    }

    /// Delivers the result of a command that left this worker. The connection continues, or waits for the command's
    /// next step.
    pub(crate) fn deliver_command_result(&mut self, client: ClientId, park_id: ParkId, mut result: DetachedResult) {
        let Some(token) = self.find_parked(client, park_id) else {
            return self.run_next_step_without_client(result.next_step);
        };
        self.record_write(token, result.log_sequence);
        if let Some(connection) = self.clients.connection(token) {
            let client = &mut connection.client;
            client.db = result.db;
            client.commands = result.commands;
            client.reset_caching();
            if client.transaction.is_none() {
                // The command may have been EXEC.
                client.transaction_figures = None;
                client.flags.set(ClientFlags::MULTI, false);
            }
        }
        if result.is_abandoned {
            self.run_next_step_without_client(result.next_step);
            return self.close_without_reply(token);
        }
        match result.next_step {
            NextStep::Reply => self.append_reply(token, |output| output.append(&mut result.output)),
            other => self.start_next_step(token, other),
        }
    }

    /// Closes a parked connection whose command gets no reply because the process ends, after the replies to earlier
    /// commands. The client would take the reply to a later request for the missing one.
    #[cold]
    fn close_without_reply(&mut self, token: usize) {
        if let Some(connection) = self.clients.connection(token) {
            connection.client.flags.insert(ClientFlags::CLOSE_AFTER_REPLY);
            connection.deferred_output.clear();
        }
        self.resume_with_reply(token, |_| {});
    }

    /// Executes the next step of a command whose client has disconnected, for its effects on other clients.
    pub(crate) fn run_next_step_without_client(&mut self, next_step: NextStep) {
        match next_step {
            NextStep::AwaitServing(withheld) => self.withhold_reply(withheld.0, None),
            NextStep::Block(blocked) => self.abandon_waiter(blocked.waiter),
            NextStep::BlockByModule(wait) => self.abandon_module_wait(*wait),
            _ => {}
        }
    }

    /// Returns the connection of a client, if it is parked under this id.
    pub(crate) fn find_parked(&mut self, client: ClientId, park_id: ParkId) -> Option<usize> {
        let token = self.clients.by_id.get(&client).copied()?;
        let connection = self.clients.connection(token)?;
        (connection.state == ConnectionState::Parked(park_id)).then_some(token)
    }

    /// Delivers a reply, or a part of it, to a parked connection.
    pub(super) fn append_reply(&mut self, token: usize, reply: impl FnOnce(&mut Output)) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        match self.partial_replies.remove(&connection.client.id) {
            None => self.resume_with_reply(token, reply),
            Some(mut parts) => {
                reply(&mut parts.completed);
                parts.completed.append(&mut parts.following_output);
                self.start_next_part(token, parts.completed, parts.remaining);
            }
        }
    }

    /// Starts the next part of a transaction's reply. After the last one the connection continues.
    fn start_next_part(&mut self, token: usize, mut done: Output, mut rest: VecDeque<(NextStep, Output)>) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        match rest.pop_front() {
            None => self.resume_with_reply(token, |output| output.append(&mut done)),
            Some((after, next)) => {
                self.partial_replies.insert(
                    connection.client.id,
                    PartialReplies {
                        completed: done,
                        is_in_background: matches!(after, NextStep::Background(_)),
                        following_output: next,
                        remaining: rest,
                    },
                );
                self.start_next_step(token, after);
            }
        }
    }

    /// Executes the remaining parts of a transaction whose client has disconnected: one after the other, once the
    /// current part is done. The replies are discarded. `state` is the last state of the client's connection.
    pub(crate) fn abandon_parts(&mut self, client: ClientId, state: ConnectionState) {
        let Some(parts) = self.partial_replies.remove(&client) else {
            return;
        };
        let remaining = parts.remaining.into_iter().filter_map(|(after, _)| match after {
            NextStep::Background(work) => Some(work),
            _ => None,
        });
        let remaining: AbandonedParts = remaining.collect();
        match state {
            ConnectionState::Parked(park_id) if parts.is_in_background => {
                self.abandoned_parts.insert(park_id, remaining);
            }
            _ => self.start_abandoned_part(client, remaining),
        }
    }

    /// Starts the next part of a transaction whose client has disconnected, if its current part was parked under this
    /// id and is done.
    pub(crate) fn continue_abandoned_parts(&mut self, client: ClientId, park_id: ParkId) {
        if let Some(remaining) = self.abandoned_parts.remove(&park_id) {
            self.start_abandoned_part(client, remaining);
        }
    }

    fn start_abandoned_part(&mut self, client: ClientId, mut remaining: AbandonedParts) {
        let Some(work) = remaining.pop_front() else {
            return;
        };
        let server = self.server();
        let park_id = server.clients.next_park_id();
        let parked = ParkedClient {
            worker: self.id,
            client,
            park_id,
        };
        // Without background threads the process is about to end.
        if send_background_work(server, *work, Arc::default(), parked) {
            self.abandoned_parts.insert(park_id, remaining);
        }
    }

    pub(crate) fn resume_with_reply(&mut self, token: usize, reply: impl FnOnce(&mut Output)) {
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        connection.state = ConnectionState::Ready;
        connection.client.flags.set(ClientFlags::BLOCKED, false);
        let before = connection.output.mark();
        reply(&mut connection.output);
        connection.apply_reply_mode(before);
        connection.output.append(&mut connection.deferred_output);
        self.resume_connection(token);
        self.flush_output(token);
    }

    /// Lets a connection continue after its wait.
    pub(crate) fn resume_connection(&mut self, token: usize) {
        self.describe_client_if_changed(token);
        let Some(connection) = self.clients.connection(token) else {
            return;
        };
        let resume = !connection.is_input_complete && std::mem::take(&mut connection.is_receive_paused);
        if connection.unexecuted_bytes() > 0 {
            // Until planning shows that no complete request is left, the connection counts as having work.
            connection.has_more_requests = true;
            self.ready_tokens.push(token);
        }
        if resume {
            self.reactor.resume(token);
        }
    }

    pub(crate) fn resume_paused(&mut self) {
        for token in 0..self.clients.slots.len() {
            let Some(connection) = self.clients.connection(token) else {
                continue;
            };
            if connection.state == ConnectionState::Paused {
                connection.state = ConnectionState::Ready;
                connection.client.flags.set(ClientFlags::BLOCKED, false);
                self.resume_connection(token);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
