//! Delivers messages to a worker's clients: appends them to the outputs, which are sent at the end of the turn.

use std::time::{Duration, Instant};

use weft_reactor::Output;
use weft_resp::{Protocol, Reply};

use super::{Clients, Worker};
use crate::dispatch::batch::Connections as _;
use crate::dispatch::thread::Thread;
use crate::keyspace::effects::{ClientNotification, Hooks};
use crate::net::client::{Client, ClientFlags};
use crate::notify::messages;
use crate::notify::messages::NotificationSender;
use crate::notify::pubsub::{Publication, Recipient};
use crate::notify::tracking::{CHANNEL, InvalidKeys, RedirectedInvalidation};
use crate::state::{Message, Server, WorkerId};

/// The longest time in a turn for which a worker lets other workers read their mail.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// The interval between two checks of their mailbox.
const NAP: Duration = Duration::from_micros(50);

impl Clients {
    /// Delivers a notification to the clients that it concerns.
    pub(crate) fn notify(&mut self, server: &Server, own: WorkerId, notice: &ClientNotification) {
        match notice {
            ClientNotification::Published(publication) => self.publish(server, own, publication),
            ClientNotification::PublishedTo(received) => self.give(&received.0, &received.1),
            ClientNotification::Invalidated(invalidation) => {
                for client in &invalidation.clients {
                    self.invalidate(server, own, *client, &invalidation.invalid);
                }
            }
            ClientNotification::Redirected(redirected) => {
                let keys = redirected.keys.as_ref();
                let keys: Option<Vec<&[u8]>> = keys.map(|keys| keys.iter().map(|key| &**key).collect());
                self.push_invalid(redirected.client, keys.as_deref());
            }
            ClientNotification::MonitorLine(line) => {
                for client in server.clients.monitors.of_worker(own) {
                    self.push(client, |_, output| output.bytes.extend_from_slice(line));
                }
            }
            ClientNotification::Push(push) => {
                self.push(push.0, |_, output| output.bytes.extend_from_slice(&push.1));
            }
        }
    }

    fn publish(&mut self, server: &Server, own: WorkerId, publication: &Publication) {
        let mut recipients = std::mem::take(&mut self.recipients);
        server.clients.pubsub.recipients(own, publication, &mut recipients);
        self.give(publication, &recipients);
        recipients.clear();
        self.recipients = recipients;
    }

    fn give(&mut self, publication: &Publication, recipients: &[Recipient]) {
        for recipient in recipients {
            self.push(recipient.client, |client, output| {
                publication.append(recipient.pattern, client.protocol, output);
            });
        }
    }

    /// Appends a message that is not a reply to a client's output. While a reply is being made on another thread, the
    /// message comes behind that reply.
    fn push(&mut self, client: u64, write: impl FnOnce(&Client, &mut Output)) {
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
        if connection.is_awaiting_reply() {
            write(&connection.client, &mut connection.deferred_output);
            return;
        }
        let first = connection.output.is_empty();
        write(&connection.client, &mut connection.output);
        if first && !connection.is_in_batch {
            self.pushed.push(token);
        }
    }

    /// Appends bytes to a client's output that are no reply.
    pub(crate) fn tell(&mut self, client: u64, bytes: &[u8]) {
        self.push(client, |_, output| output.bytes.extend_from_slice(bytes));
    }

    /// Sends an invalidation to a tracking client, or to the client that it redirects to.
    fn invalidate(&mut self, server: &Server, own: WorkerId, id: u64, invalid: &InvalidKeys) {
        let token = self.by_id.get(&id).copied();
        let Some(connection) = token.and_then(|token| self.connection(token)) else {
            forward(server, own, id, invalid);
            return;
        };
        let protocol = connection.client.protocol;
        let Some(tracking) = connection.client.tracking.as_deref_mut() else {
            return;
        };
        let keys = invalid.keys_for(id, tracking);
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        if tracking.redirect == 0 {
            if protocol == Protocol::Resp3 {
                self.push_invalid(id, keys.as_deref());
            }
            return;
        }
        let target = tracking.redirect;
        match server.clients.directory.worker_of(target) {
            Some(worker) if worker == own => self.push_invalid(target, keys.as_deref()),
            Some(worker) => {
                let redirected = RedirectedInvalidation {
                    client: target,
                    keys: keys.map(|keys| keys.into_iter().map(Into::into).collect()),
                };
                server.workers[worker].send(Message::Notice(ClientNotification::Redirected(redirected.into())));
            }
            None => {
                tracking.is_redirect_broken = true;
                if protocol == Protocol::Resp3 {
                    self.push(id, |_, output| {
                        let mut reply = Reply::new(&mut output.bytes, protocol);
                        reply.push(2);
                        reply.bulk(b"tracking-redir-broken");
                        reply.integer(target as i64);
                    });
                }
            }
        }
    }

    /// Sends a client the names of invalid keys, `None` for all: in RESP3 as a push, in RESP2 as a message, which only
    /// a subscriber understands.
    fn push_invalid(&mut self, client: u64, keys: Option<&[&[u8]]>) {
        self.push(client, |client, output| {
            let mut reply = Reply::new(&mut output.bytes, client.protocol);
            match client.protocol {
                Protocol::Resp3 => {
                    reply.push(2);
                    reply.bulk(b"invalidate");
                }
                Protocol::Resp2 if client.flags.contains(ClientFlags::PUBSUB) => {
                    reply.push(3);
                    reply.bulk(b"message");
                    reply.bulk(CHANNEL);
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
    pub(crate) fn notify_all(&mut self, thread: &mut Thread) {
        messages::wake(&thread.server, &mut thread.effects);
        let mut notifications = std::mem::take(&mut thread.effects.outbox);
        for notice in notifications.drain(..) {
            self.notify(&thread.server, thread.seat, &notice);
        }
        thread.effects.outbox = notifications;
    }
}

/// The client has moved while mail for it was under way.
fn forward(server: &Server, own: WorkerId, client: u64, invalid: &InvalidKeys) {
    if let Some(worker) = server
        .clients
        .directory
        .worker_of(client)
        .filter(|worker| *worker != own)
    {
        let invalidation = crate::notify::tracking::Invalidation {
            clients: vec![client],
            invalid: invalid.clone(),
        };
        server.workers[worker].send(Message::Notice(ClientNotification::Invalidated(invalidation.into())));
    }
}

impl Worker {
    /// Sends broadcasts, and delivers the messages for this worker's own clients.
    pub(crate) fn deliver_notices(&mut self) {
        let Thread {
            server, effects, seat, ..
        } = &mut self.thread;
        NotificationSender::new(server, effects, *seat).broadcast();
        if self.thread.effects.has_deliveries() {
            self.clients.notify_all(&mut self.thread);
        }
    }

    /// Ends a turn's part for clients that listen.
    pub(crate) fn finish_notices(&mut self) {
        self.has_surplus = false;
        if self.thread.server.keyspace.hooks.current().intersects(Hooks::TRACKING) {
            let Thread {
                server, effects, seat, ..
            } = &mut self.thread;
            self.has_surplus = NotificationSender::new(server, effects, *seat).forget_surplus();
        }
        self.deliver_notices();
        while let Some(token) = self.clients.pushed.pop() {
            self.flush(token);
        }
        if let Some(worker) = self.thread.effects.full_mailbox.take() {
            self.wait_for(worker);
        }
    }

    /// Lets another worker read its mail, which slows down a worker that sends more than others can read. The time is
    /// limited, because the other worker may be waiting for this one.
    #[cold]
    fn wait_for(&self, worker: WorkerId) {
        let start = Instant::now();
        while self.thread.server.workers[worker].is_mailbox_full() && start.elapsed() < LONGEST_NAP {
            std::thread::sleep(NAP);
        }
    }
}
