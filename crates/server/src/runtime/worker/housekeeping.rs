//! A worker's periodic tasks: expiry, sweeps over its connections, closing.

use super::{DelayedAnswer, Worker};
use crate::commands::permission;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::effects::free_removed_values;
use crate::dispatch::exclusion;
use crate::dispatch::home_events::HomeEvents;
use crate::dispatch::memory_limit;
use crate::dispatch::modules::home::EXPIRY_SLICE;
use crate::keyspace::{expiry, writable_replica_keys};
use crate::net::client::{Client, ClientFlags};
use crate::net::client_info::send_client_event;
use crate::net::connection::ConnectionState;
use crate::net::kill_mark::KillMark;
use crate::notify::messages::{NotificationSender, remove_all_registrations};
use crate::observability::memory;
use crate::observability::metrics::Counter;
use crate::state::Message;
use std::sync::Arc;
use weft_acl::AclAccount;
use weft_base::ClientId;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// Clients that are idle because they wait for messages.
const NO_IDLE_TIMEOUT: ClientFlags = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);

impl Worker {
    pub(crate) fn run_housekeeping(&mut self) {
        if !self.has_own_arena {
            self.has_own_arena = memory::use_own_arena_if_busy();
        }
        if self.is_expiring && self.thread.server.replication.is_replica() {
            self.is_expiring = false;
            self.expire_replica_local_keys();
        }
        if self.is_expiring && !self.must_expiry_wait(self.thread.now_ms) {
            self.run_expiry_slice();
        }
        if self.thread.memory_limit.is_evicting {
            self.run_eviction_slice();
        }
        if self.must_sweep() && self.thread.now_ms >= self.next_sweep_ms {
            self.next_sweep_ms = self.thread.now_ms + 1000;
            if self.thread.tunables.timeout_s > 0 {
                self.close_idle();
            }
            if self.has_clients_over_soft_limit {
                self.check_soft_limits();
            }
            if self.has_unused_input {
                self.shrink_idle_inputs();
            }
        }
    }

    /// Returns `true` if connections must be checked periodically.
    pub(crate) fn must_sweep(&self) -> bool {
        (self.thread.tunables.timeout_s > 0 && self.clients.len() > 0)
            || self.has_clients_over_soft_limit
            || self.has_unused_input
    }

    /// Deletes expired keys to which clients of this replica gave an expiry.
    fn expire_replica_local_keys(&mut self) {
        let thread = &mut self.thread;
        let server = thread.server.clone();
        let thread_index = thread.thread_index;
        writable_replica_keys::expire(
            &server.keyspace,
            &mut self.seat,
            thread.now_ms,
            &mut thread.effects,
            &mut |effects| NotificationSender::new(&server, effects, thread_index).send_recorded_effects(None),
        );
        free_removed_values(&mut thread.effects, &server);
        thread.effects.log_writer.wake();
        thread.collect_ready_keys();
        thread
            .effects
            .add_to_metrics(&server.keyspace, &server.stats.metrics, thread.thread_index);
    }

    pub(crate) fn run_expiry_slice(&mut self) {
        if HomeEvents::current().include_changes() {
            self.is_expiring = false;
            if self.server().is_home(self.id) {
                // Modules get the events.
                self.server().run_at_home(Box::new(|home| home.expire_due_keys()));
            }
            return;
        }
        let thread = &mut self.thread;
        let server = thread.server.clone();
        let thread_index = thread.thread_index;
        let start = Instant::now();
        let slice = expiry::ExpirySlice {
            queue: &server.background.due_slots,
            now_ms: thread.now_ms,
            budget: EXPIRY_SLICE,
            may_delete: &|| server.may_delete_expired(thread.now_ms),
        };
        self.is_expiring = expiry::run_slice(
            &server.keyspace,
            &mut self.seat,
            &slice,
            &mut thread.effects,
            &mut |effects| NotificationSender::new(&server, effects, thread_index).send_recorded_effects(None),
        );
        free_removed_values(&mut thread.effects, &server);
        thread.effects.log_writer.wake();
        thread.collect_ready_keys();
        thread
            .effects
            .add_to_metrics(&server.keyspace, &server.stats.metrics, thread.thread_index);
        let elapsed = start.elapsed();
        server
            .stats
            .metrics
            .add(thread.thread_index, Counter::ExpiryNs, elapsed.as_nanos() as u64);
        if elapsed.as_nanos() as u64 >= thread.tunables.latency_event_ns {
            let spike_ms = elapsed.as_millis() as u64;
            server
                .stats
                .history
                .latency
                .add("expire-cycle", thread.now_ms / 1000, spike_ms);
        }
    }

    /// Evicts keys for as long as a command would.
    fn run_eviction_slice(&mut self) {
        if self.thread.tunables.max_memory == 0 {
            self.thread.memory_limit.is_evicting = false;
            return;
        }
        self.thread.batches = self.thread.batches.wrapping_add(1);
        if HomeEvents::current().include_changes() && self.server().is_home(self.id) {
            self.thread.memory_limit.is_evicting = false;
            return self.server().run_at_home(Box::new(|home| home.evict_keys()));
        }
        let pass = self.seat.enter();
        self.thread.begin_passage();
        memory_limit::evict_to_limit(&mut self.thread, &pass);
        drop(pass);
    }

    /// Closes the clients from which nothing has come for longer than `timeout`, and which do not read what they get.
    /// Those that wait for the server are not idle.
    pub(crate) fn close_idle(&mut self) {
        let limit_ms = self.thread.tunables.timeout_s * 1000;
        let now_ms = self.thread.now_ms;
        for token in 0..self.clients.slots.len() {
            let unsent = self.in_flight_bytes(token);
            let idle = self.clients.connection(token).is_some_and(|connection| {
                if unsent < std::mem::replace(&mut connection.unsent_at_sweep, unsent) {
                    // The client reads, though slowly.
                    connection.client.last_interaction_ms = now_ms;
                }
                // One that does not read what it has got is idle, however many requests it has sent.
                let has_read_all = unsent == 0;
                let is_blocked = matches!(connection.state, ConnectionState::Parked(_) | ConnectionState::Paused);
                let waits = is_blocked || (has_read_all && (connection.has_work() || connection.is_output_withheld));
                !waits
                    && !connection.client.flags.intersects(NO_IDLE_TIMEOUT)
                    && now_ms.saturating_sub(connection.client.last_interaction_ms) > limit_ms
            });
            if idle {
                self.close(token);
            }
        }
    }

    /// Closes the clients whose users are deleted, and subscribers of channels that their users may no longer read. The
    /// client `changed_by` still gets the reply for which it waits.
    pub(crate) fn close_unauthorized(&mut self, lost_channels: &[Arc<AclAccount>], changed_by: Option<ClientId>) {
        for token in 0..self.clients.slots.len() {
            if let Some(connection) = self.clients.connection(token)
                && has_lost_access(&connection.client, lost_channels)
            {
                if changed_by == Some(connection.client.id) {
                    connection.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
                } else {
                    connection.client.kill();
                }
            }
        }
        // No answer waits for their commands.
        self.close_killed();
    }

    /// Closes the clients that were killed. Returns the marks of those whose commands on other threads cannot be
    /// stopped.
    pub(crate) fn close_killed(&mut self) -> Vec<Arc<KillMark>> {
        let mut lasting = Vec::new();
        for token in 0..self.clients.slots.len() {
            let Some(connection) = self.clients.connection(token) else {
                continue;
            };
            if connection.client.flags.contains(ClientFlags::CLOSE_ASAP) {
                lasting.extend(connection.client.kill_mark.clone().filter(|mark| mark.is_lasting()));
                self.close(token);
            }
        }
        lasting
    }

    /// Sends the answers to queries whose killed clients have no command left. A script that is overdue delays none:
    /// until it ends, other clients get BUSY errors anyway.
    pub(crate) fn send_delayed_answers(&mut self) {
        let server = self.server().clone();
        let has_overdue = server.scripting.running.has_overdue();
        let is_due = |answer: &mut DelayedAnswer| has_overdue || !answer.commands.iter().any(|mark| mark.is_lasting());
        for DelayedAnswer { query, part, .. } in self.delayed_answers.extract_if(.., is_due) {
            query.add_answer(&server, part);
        }
    }

    /// Closes the connection of a client, or requests that from its new worker if it has moved.
    pub(crate) fn close_client(&mut self, client: ClientId) {
        if let Some(token) = self.clients.by_id.get(&client).copied() {
            return self.close(token);
        }
        let server = self.server();
        if let Some(worker) = server.clients.directory.worker_of(client) {
            server.worker(worker).send(Message::CloseClient(client));
        }
    }

    pub(crate) fn close(&mut self, token: usize) {
        if self
            .clients
            .connection(token)
            .is_some_and(|connection| connection.is_in_batch)
        {
            // Its plans are still in the batch: they are skipped, and the connection is closed at the end of the turn.
            if let Some(connection) = self.clients.connection(token) {
                connection.client.flags.set(ClientFlags::CLOSE_ASAP, true);
            }
            return;
        }
        if let Some(connection) = self.clients.connection(token)
            && let Some(tls) = &connection.tls
        {
            tls.send_close_notify(&mut self.reactor, token);
        }
        if let Some(registered) = self.reactor.deregister(token) {
            drop(registered);
        }
        self.remove_connection(token);
    }

    pub(crate) fn remove_connection(&mut self, token: usize) {
        if let Some(mut connection) = self.clients.remove(token) {
            self.uncount_client(connection.usage);
            exclusion::withdraw_from_exclusive_mode(&self.thread, &connection);
            remove_all_registrations(self.server(), &mut connection.client);
            // In this order: a thread that serves waiting clients finds the client killed or its wait claimed.
            self.abandon_wait(connection.client.id);
            self.server().clients.directory.remove_client(&connection.client);
            send_client_event(&connection.client, false);
            self.abandon_parts(connection.client.id, connection.state);
            self.departures.remove(&connection.client.id);
            self.ready_tokens.retain(|other| *other != token);
            self.delayed_tokens.retain(|other| *other != token);
            self.uncount_connection();
            if let Some(watches) = connection.client.watches {
                self.thread.effects.removed_watches.extend(watches.keys);
            }
        }
    }
}

impl Worker {
    /// Evicts keys from the next turn on, until memory is below its limit.
    pub(crate) fn begin_eviction(&mut self) {
        // If the limit has changed since the last batch began, the next batch would forget the request.
        self.thread.refresh_tunables();
        self.thread.memory_limit.is_evicting = true;
    }

    /// Counts a connection that has left this worker.
    pub(crate) fn uncount_connection(&self) {
        let server = self.server();
        server.clients.connections.fetch_sub(1, Ordering::Relaxed);
        server.worker(self.id).connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn has_lost_access(client: &Client, lost_channels: &[Arc<AclAccount>]) -> bool {
    let account = client.login.account();
    let lost = || lost_channels.iter().any(|other| Arc::ptr_eq(other, account));
    account.is_deleted() || (client.subscriptions.is_some() && lost() && !permission::may_keep_subscriptions(client))
}
