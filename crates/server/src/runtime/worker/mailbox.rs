//! A worker's mail: arriving and departing connections, replies from other threads, queries.

use super::Worker;
use super::waits::ClientWait;
use crate::dispatch::batch::Connections as _;
use crate::keyspace::effects::ClientNotification;
use crate::net::client::Client;
use crate::net::client::ClientFlags;
use crate::net::connection::Connection;
use crate::net::connection::ConnectionState;
use crate::net::listeners::AcceptedConnection;
use crate::state::WorkerId;
use crate::state::{Blocked, Message};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_reactor::DetachedConnection;
use weft_reactor::Socket;

/// Clients whose messages would be out of order if the connection moved.
const STAYERS: ClientFlags = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);
/// Messages taken out of the mailbox at once.
const MESSAGES_AT_ONCE: usize = 128;
/// The time that a turn spends on mail.
const MAIL_SLICE: Duration = Duration::from_micros(500);

impl Worker {
    pub(crate) fn read_mail(&mut self) {
        if self.server().workers[self.id].mailbox.is_empty_hint() {
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        let start = Instant::now();
        while self.thread.server.workers[self.id]
            .mailbox
            .drain(&mut mail, MESSAGES_AT_ONCE)
            > 0
        {
            for message in mail.drain(..) {
                self.handle(message);
            }
            if start.elapsed() >= MAIL_SLICE {
                break;
            }
        }
        self.mail = mail;
    }

    pub(crate) fn handle(&mut self, message: Message) {
        match message {
            Message::Connect(arrival) => self.connect(arrival),
            Message::Adopt(connection, wait) => self.adopt(connection, wait),
            Message::Shed { to, keep } => self.shed(to, keep),
            Message::Reply {
                client,
                ticket,
                bytes,
                log_ticket,
            } => {
                if let Some(token) = self.parked(client, ticket) {
                    self.note_logged(token, log_ticket);
                }
                self.unpark(client, ticket, bytes);
            }
            Message::Ran {
                client,
                ticket,
                output,
                after,
                log_ticket,
            } => self.unpark_ran((client, ticket), output, after, log_ticket),
            Message::Served(waiter) => self.deliver(&waiter),
            Message::Serve(unserved) => self.withhold(unserved, None),
            Message::Notice(notice) => {
                let server = &self.thread.server;
                if let ClientNotification::Published(publication) = &notice {
                    let link = &server.workers[self.id];
                    link.published_bytes.fetch_sub(publication.bytes(), Ordering::Relaxed);
                }
                self.clients.notify(server, self.id, &notice);
            }
            Message::Question(query) => {
                let part = (query.ask)(self);
                let server = self.server().clone();
                query.add_answer(&server, part);
                self.close_killed();
            }
            Message::Gather(gathering) => {
                let client_snapshots = self.client_snapshots(gathering.requesting_client());
                gathering.add(&self.thread.server, client_snapshots);
            }
            Message::Gathered {
                client,
                ticket,
                client_snapshots,
            } => self.unpark_gathered(client, ticket, client_snapshots),
            Message::Close(client) => self.close_client(client),
            Message::EndWait {
                client,
                waiting,
                with_error,
            } => self.end_wait_claimed(client, waiting, with_error),
            Message::Logged => self.send_withheld(),
            Message::ExpireDue => self.expiring = true,
            Message::CountClients => self.recount_clients(),
            Message::Measure => self.measures = true,
            Message::EvictDue => self.thread.room.is_evicting = true,
            Message::UsersChanged { lost_channels } => self.close_unwelcome(&lost_channels),
            Message::Demoted => self.release_waiting(),
            Message::ShutdownOff => self.refuse_shutdowns(),
            Message::Unpaused => self.resume_paused(),
            Message::SlotsLeft => self.slots_left(),
            Message::Stop { patience } => self.stopping = Some(patience),
        }
    }

    pub(crate) fn connect(&mut self, arrival: AcceptedConnection) {
        let Ok(tls) = self.tls_of(&arrival) else {
            return self.uncount_connection();
        };
        let socket = arrival.socket;
        let server = self.server().clone();
        let id = server.clients.next_id.fetch_add(1, Ordering::Relaxed);
        let mut client = Client::new(id, self.thread.now_ms, self.id);
        client.login = server.acl.new_login();
        client.address = socket.peer_name();
        client.local_address = socket.local_name();
        client.fd = socket.fd();
        if matches!(socket, Socket::Unix(_)) {
            client.flags.set(ClientFlags::UNIX_SOCKET, true);
        }
        client.flags.set(ClientFlags::TLS, tls.is_some());
        server.clients.directory.put(id, self.id);
        let mut connection = Box::new(Connection::new(client));
        connection.tls = tls;
        let unsent = Default::default();
        self.install(connection, DetachedConnection { socket, unsent });
    }

    pub(crate) fn install(&mut self, connection: Box<Connection>, registered: DetachedConnection) {
        let token = self.clients.add(connection);
        if let Err(error) = self.reactor.adopt(token, registered) {
            crate::observability::log::warning!("cannot watch a connection: {error}");
            self.forget(token);
        }
        self.tls_arrives(token);
        self.count_client(token);
    }

    pub(crate) fn adopt(&mut self, mut connection: Box<Connection>, wait: Option<Box<Blocked>>) {
        let Some(registered) = connection.in_transit.take() else {
            return self.server().end_move();
        };
        connection.client.worker = self.id;
        // The previous worker may have withheld its output; this worker decides anew.
        connection.is_output_withheld = false;
        // The user may have been deleted while the connection was on its way.
        let is_welcome = connection.client.login.refresh(&self.thread.server.acl);
        let id = connection.client.id;
        self.install(connection, registered);
        if let Some(token) = self.clients.by_id.get(&id).copied() {
            self.again.push(token);
            if let Some(blocked) = wait {
                self.begin_wait(token, ClientWait::Keys(blocked));
            }
            if !is_welcome {
                self.close(token);
            }
        } else if let Some(blocked) = wait {
            self.abandon_waiter(blocked.waiter);
        }
        self.server().end_move();
    }

    /// Gives connections that are between requests, or wait for keys, to another worker.
    pub(crate) fn shed(&mut self, to: Range<WorkerId>, keep: usize) {
        // The order may have waited, see `Moves`.
        let active = self.server().lifecycle.active_workers.load(Ordering::Relaxed);
        if to.end > active || (keep == 0 && self.id < active) {
            return;
        }
        // Each worker starts with a different target, so that a few connections do not all go to the first.
        let first = self.id % to.len().max(1);
        let mut takers = to.clone().cycle().skip(first);
        let mut surplus = self.clients.len().saturating_sub(keep);
        for token in 0..self.clients.slots.len() {
            if surplus == 0 {
                return;
            }
            let waits = &self.waits;
            let movable = self.clients.connection(token).is_some_and(|connection| {
                let idle = connection.state == ConnectionState::Ready || waits.is_for_keys(connection.client.id);
                let stays = connection.client.flags.intersects(STAYERS);
                idle && !stays && !connection.is_in_batch && connection.output.is_empty()
            });
            if !movable {
                continue;
            }
            if !self.server().clients.moving.begin(self.id, &to, keep) {
                return;
            }
            let Some(registered) = self.reactor.deregister(token) else {
                self.server().end_move();
                continue;
            };
            let Some(mut connection) = self.clients.remove(token) else {
                self.server().end_move();
                continue;
            };
            self.again.retain(|other| *other != token);
            self.patient.retain(|other| *other != token);
            let usage = std::mem::take(&mut connection.usage);
            self.uncount_client(usage);
            connection.in_transit = Some(registered);
            connection.is_receive_paused = false;
            let taker = takers.next().unwrap_or(to.start);
            self.mail_connection(taker, connection);
            surplus -= 1;
        }
    }
}
