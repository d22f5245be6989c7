//! Delivers messages to a worker's clients: appends them to the outputs, which are sent at the end of the turn.

use std::sync::Arc;
use std::time::Duration;

use weft_base::{ClientId, ParkId, ThreadIndex};
use weft_reactor::Output;
use weft_resp::{Protocol, Reply};

use super::{ClientTable, Worker};
use crate::clients_waiting::blocking::Waiter;
use crate::commands::reply_limit::UNCHECKED_OUTPUT_BYTES;
use crate::dispatch::batch::BatchConnections as _;
use crate::dispatch::memory_limit;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::effects::{ClientNotification, Hooks};
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::{ConnectionState, FullMailbox, MAX_HOLD_UP_MS};
use crate::notify::messages;
use crate::notify::messages::NotificationSender;
use crate::notify::pubsub::{PublishedMessage, Recipient};
use crate::notify::tracking::{INVALIDATION_CHANNEL, InvalidKeys, RedirectedInvalidation};
use crate::observability::memory;
use crate::state::Server;

/// The longest time in a turn for which a worker lets other workers read their mail.
const MAX_BACKPRESSURE_WAIT: Duration = Duration::from_millis(1);
/// The number of keys that are dropped from the tracking table per turn while it exceeds its limit.
const FORGOTTEN_KEYS_PER_TURN: usize = 100;

impl ClientTable {
    /// Delivers a notification to the clients that it concerns.
    pub(crate) fn notify(&mut self, server: &Server, own_worker: ThreadIndex, notice: &ClientNotification) {
        match notice {
            ClientNotification::Published(publication, _) => self.deliver_publication(server, own_worker, publication),
            ClientNotification::PublishedTo(received) => self.append_to_recipients(&received.0, &received.1),
            ClientNotification::Invalidated(invalidation) => {
                for client in &invalidation.clients {
                    self.deliver_invalidation(server, *client, &invalidation.invalid);
                }
            }
            ClientNotification::Redirected(redirected) => {
                let keys = redirected.keys.as_ref();
                let keys: Option<Vec<&[u8]>> = keys.map(|keys| keys.iter().map(|key| &**key).collect());
                for client in &redirected.clients {
                    if self.by_id.contains_key(client) {
                        self.append_invalidation(*client, keys.as_deref());
                    } else {
                        redirect_invalidation(server, *client, keys.as_deref());
                    }
                }
            }
            ClientNotification::MonitorLine(line) => {
                for client in server.clients.monitors.worker_monitors(own_worker) {
                    self.append_message(client, |_, output| output.bytes.extend_from_slice(line));
                }
            }
            ClientNotification::Push(push) => {
                self.append_message(push.0, |_, output| output.bytes.extend_from_slice(&push.1));
            }
            ClientNotification::Served(served) => self.defer_behind_reply(server, served),
        }
    }

    /// Defers all further messages for a client until it has the reply to its wait, which is being served.
    fn defer_behind_reply(&mut self, server: &Server, served: &Arc<Waiter>) {
        let Some(token) = self.by_id.get(&served.client).copied() else {
            // The connection has moved meanwhile.
            if let Some(worker) = server.clients.directory.worker_of(served.client) {
                let mark = ClientNotification::Served(served.clone());
                server.worker(worker).send_notification(mark);
            }
            return;
        };
        let Some(connection) = self.connection(token) else {
            return;
        };
        match &connection.waiter {
            Some(waiter) => connection.is_reply_next |= Arc::ptr_eq(waiter, served),
            None => {
                // The wait began on another thread, and the connection will be parked with it. A mark of an earlier
                // wait has a lower id.
                let ConnectionState::Parked(park_id) = connection.state else {
                    return;
                };
                if park_id == ParkId::NONE || park_id >= served.park_id {
                    return;
                }
                connection.waiter = Some(served.clone());
                connection.is_reply_next = true;
                connection.output.append(&mut connection.deferred_output);
                self.tokens_with_messages.push(token);
            }
        }
    }

    fn deliver_publication(&mut self, server: &Server, own_worker: ThreadIndex, publication: &PublishedMessage) {
        let mut recipients = std::mem::take(&mut self.recipients);
        server
            .clients
            .pubsub
            .recipients(own_worker, publication, &mut recipients);
        self.append_to_recipients(publication, &recipients);
        recipients.clear();
        self.recipients = recipients;
    }

    fn append_to_recipients(&mut self, publication: &PublishedMessage, recipients: &[Recipient]) {
        for recipient in recipients {
            self.append_message(recipient.client, |client, output| {
                publication.append(recipient.pattern, client.protocol, output);
            });
        }
    }

    /// Appends a message that is not a reply to a client's output. While a reply is being produced on another thread,
    /// the message is appended after that reply. A blocked client that has been served gets the messages in front of
    /// its reply that were sent before its operation.
    fn append_message(&mut self, client: ClientId, write: impl FnOnce(&Client, &mut Output)) {
        let Some(token) = self.by_id.get(&client).copied() else {
            return;
        };
        let Some(connection) = self.connection(token) else {
            return;
        };
        let flags = connection.client.flags;
        if flags.intersects(ClientFlags::CLOSE_ASAP.union(ClientFlags::CLOSE_AFTER_REPLY)) {
            return;
        }
        // Output that stays here must not exceed the client's limit.
        let must_check = if connection.defers_messages() {
            write(&connection.client, &mut connection.deferred_output);
            connection.deferred_output.len() > UNCHECKED_OUTPUT_BYTES
        } else {
            let first = connection.output.is_empty();
            write(&connection.client, &mut connection.output);
            let is_withheld = connection.is_output_withheld && connection.output.len() > UNCHECKED_OUTPUT_BYTES;
            (first && !connection.is_in_batch) || is_withheld
        };
        if must_check && self.tokens_with_messages.last() != Some(&token) {
            self.tokens_with_messages.push(token);
        }
    }

    /// Appends bytes that are not a reply to a client's output.
    pub(crate) fn append_bytes(&mut self, client: ClientId, bytes: &[u8]) {
        self.append_message(client, |_, output| output.bytes.extend_from_slice(bytes));
    }

    /// Sends an invalidation to a tracking client, or to the client that it redirects to.
    fn deliver_invalidation(&mut self, server: &Server, id: ClientId, invalid: &InvalidKeys) {
        let token = self.by_id.get(&id).copied();
        let Some(connection) = token.and_then(|token| self.connection(token)) else {
            forward_invalidation(server, id, invalid);
            return;
        };
        let protocol = connection.client.protocol;
        let Some(tracking) = connection.client.tracking.as_deref_mut() else {
            return;
        };
        let keys = invalid.keys_for(id, tracking.filter());
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let Some(target) = tracking.redirect else {
            if protocol == Protocol::Resp3 {
                self.append_invalidation(id, keys.as_deref());
            }
            return;
        };
        let worker = server.clients.directory.worker_of(target);
        tracking.is_redirect_broken |= worker.is_none();
        match worker {
            Some(_) if self.by_id.contains_key(&target) => self.append_invalidation(target, keys.as_deref()),
            // The redirection has changed while the invalidation was under way. Also if that is this worker, see
            // `ClientDirectory`.
            Some(_) => redirect_invalidation(server, target, keys.as_deref()),
            None => {
                if protocol == Protocol::Resp3 {
                    self.append_message(id, |_, output| {
                        let mut reply = Reply::new(&mut output.bytes, protocol);
                        reply.push(2);
                        reply.bulk(b"tracking-redir-broken");
                        reply.integer(target.get() as i64);
                    });
                }
            }
        }
    }

    /// Sends a client the names of invalid keys, `None` for all: in RESP3 as a push, in RESP2 as a message, which only
    /// a subscriber understands.
    fn append_invalidation(&mut self, client: ClientId, keys: Option<&[&[u8]]>) {
        self.append_message(client, |client, output| {
            let mut reply = Reply::new(&mut output.bytes, client.protocol);
            match client.protocol {
                Protocol::Resp3 => {
                    reply.push(2);
                    reply.bulk(b"invalidate");
                }
                Protocol::Resp2 if client.flags.contains(ClientFlags::PUBSUB) => {
                    reply.push(3);
                    reply.bulk(b"message");
                    reply.bulk(INVALIDATION_CHANNEL);
                }
                Protocol::Resp2 => return,
            }
            match keys {
                None => reply.null(),
                Some(keys) => {
                    reply.array(keys.len());
                    for key in keys {
                        reply.bulk(key);
                    }
                }
            }
        });
    }

    /// Delivers the notifications of a command to this worker's own clients, and wakes the other workers.
    #[cold]
    pub(crate) fn send_notifications(&mut self, thread: &mut ThreadState) {
        messages::wake_workers(&thread.server, &mut thread.effects);
        let mut notifications = std::mem::take(&mut thread.effects.outbox);
        for notice in notifications.drain(..) {
            self.notify(&thread.server, thread.thread_index, &notice);
        }
        thread.effects.outbox = notifications;
    }
}

/// Sends an invalidation of these keys, `None` for all, to a client that may be on another worker now.
fn redirect_invalidation(server: &Server, client: ClientId, keys: Option<&[&[u8]]>) {
    if let Some(worker) = server.clients.directory.worker_of(client) {
        let redirected = RedirectedInvalidation::new(vec![client], keys);
        let notice = ClientNotification::Redirected(redirected.into());
        server.worker(worker).send_notification(notice);
    }
}

/// The client has moved while mail for it was under way.
fn forward_invalidation(server: &Server, client: ClientId, invalid: &InvalidKeys) {
    if let Some(worker) = server.clients.directory.worker_of(client) {
        let invalidation = crate::notify::tracking::Invalidation {
            clients: vec![client],
            invalid: invalid.clone(),
        };
        let notice = ClientNotification::Invalidated(invalidation.into());
        server.worker(worker).send_notification(notice);
    }
}

impl Worker {
    /// Sends broadcasts, and delivers the messages for this worker's own clients.
    pub(crate) fn deliver_notifications(&mut self) {
        let ThreadState {
            server,
            effects,
            thread_index: seat,
            ..
        } = &mut self.thread;
        let changed_by = NotificationSender::new(server, effects, *seat).send_broadcasts();
        if let Some(worker) = self.thread.effects.full_mailbox {
            self.hold_up_broadcasters(changed_by.into_iter().map(|client| (client, worker)));
            self.thread.effects.set_full_mailbox_aside();
        }
        if !self.thread.early_broadcasters.is_empty() {
            let broadcasters = std::mem::take(&mut self.thread.early_broadcasters);
            self.hold_up_broadcasters(broadcasters.into_iter());
        }
        if self.thread.effects.has_deliveries() {
            let balance = memory::thread_balance();
            self.clients.send_notifications(&mut self.thread);
            memory_limit::exclude_messages(&mut self.thread, balance);
        }
    }

    /// Completes the deliveries of a turn.
    pub(crate) fn finish_deliveries(&mut self) {
        self.has_excess_tracked_keys = false;
        if self.thread.server.keyspace.hooks.current().intersects(Hooks::TRACKING) {
            let ThreadState {
                server,
                effects,
                thread_index: seat,
                ..
            } = &mut self.thread;
            let mut post = NotificationSender::new(server, effects, *seat);
            self.has_excess_tracked_keys = post.evict_excess_tracked_keys(FORGOTTEN_KEYS_PER_TURN);
        }
        self.deliver_notifications();
        while let Some(token) = self.clients.tokens_with_messages.pop() {
            self.flush_output(token);
        }
        // What requests send is held up with their connections. This slows down what the worker does by itself.
        let effects = &mut self.thread.effects;
        effects.set_full_mailbox_aside();
        let overloaded = effects.overloaded_worker.take();
        // Its own mail it reads itself.
        if let Some(worker) = overloaded.filter(|worker| *worker != self.id) {
            messages::wait_until_read(&self.thread.server, worker, MAX_BACKPRESSURE_WAIT, &|| false);
            self.overloaded_worker = Some(worker);
        }
        if let Some(worker) = self.overloaded_worker
            && !self.server().worker(worker).is_mailbox_full()
        {
            self.overloaded_worker = None;
        }
    }

    /// Puts off the clients of the batch whose changes were broadcast to a worker that has too much mail.
    #[cold]
    fn hold_up_broadcasters(&mut self, broadcasters: impl Iterator<Item = (ClientId, ThreadIndex)>) {
        let until_ms = self.thread.now_ms + MAX_HOLD_UP_MS;
        for (client, worker) in broadcasters {
            let token = self.clients.by_id.get(&client).copied();
            let connection = token.and_then(|token| self.clients.connection(token));
            if let Some(connection) = connection.filter(|connection| connection.is_in_batch) {
                connection.hold_up(FullMailbox { worker, until_ms });
            }
        }
    }
}

#[cfg(test)]
mod tests;
