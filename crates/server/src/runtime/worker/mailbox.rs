//! A worker's mail: arriving and departing connections, replies from other threads, queries.

use super::Worker;
use super::waits::ClientWait;
use crate::dispatch::batch::BatchConnections as _;
use crate::keyspace::effects::ClientNotification;
use crate::net::client::Client;
use crate::net::client::ClientFlags;
use crate::net::connection::Connection;
use crate::net::connection::ConnectionState;
use crate::net::listeners::AcceptedConnection;
use crate::state::WorkerId;
use crate::state::{BlockedCommand, Message};
use std::ops::Range;
use std::time::Duration;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_reactor::DetachedConnection;
use weft_reactor::Socket;

/// Clients whose messages would get out of order if the connection moved.
const NEVER_MOVED: ClientFlags = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);
/// The number of messages taken from the mailbox at once.
const MESSAGES_PER_READ: usize = 128;
/// The time that a turn spends on mail.
const MAIL_TIME_SLICE: Duration = Duration::from_micros(500);

impl Worker {
    pub(crate) fn read_mail(&mut self) {
        if self.server().workers[self.id].mailbox.is_empty_hint() {
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        let start = Instant::now();
        while self.thread.server.workers[self.id]
            .mailbox
            .drain(&mut mail, MESSAGES_PER_READ)
            > 0
        {
            for message in mail.drain(..) {
                self.handle_message(message);
            }
            if start.elapsed() >= MAIL_TIME_SLICE {
                break;
            }
        }
        self.mail = mail;
    }

    pub(crate) fn handle_message(&mut self, message: Message) {
        match message {
            Message::NewConnection(arrival) => self.accept_connection(arrival),
            Message::AdoptConnection(connection, wait) => self.adopt_connection(connection, wait),
            Message::MoveConnections {
                target_workers: to,
                kept_connections: keep,
            } => self.move_connections(to, keep),
            Message::Reply {
                client,
                park_id: ticket,
                bytes,
                log_sequence,
            } => {
                if let Some(token) = self.find_parked(client, ticket) {
                    self.record_log_sequence(token, log_sequence);
                }
                self.deliver_parked_reply(client, ticket, bytes);
            }
            Message::CommandDone {
                client,
                park_id: ticket,
                output,
                next_step: after,
                log_sequence,
            } => self.deliver_command_result((client, ticket), output, after, log_sequence),
            Message::WaiterServed(waiter) => self.deliver_waiter_reply(&waiter),
            Message::ServeWaiters(unserved) => self.withhold_reply(unserved, None),
            Message::Notify(notice) => {
                let server = &self.thread.server;
                if let ClientNotification::Published(publication) = &notice {
                    let link = &server.workers[self.id];
                    link.published_bytes.fetch_sub(publication.bytes(), Ordering::Relaxed);
                }
                self.clients.notify(server, self.id, &notice);
            }
            Message::Query(query) => {
                let part = (query.task)(self);
                let server = self.server().clone();
                query.add_answer(&server, part);
                self.close_killed();
            }
            Message::CollectClients(gathering) => {
                let client_snapshots = self.collect_client_snapshots(gathering.requesting_client());
                gathering.add_worker(&self.thread.server, client_snapshots);
            }
            Message::ClientsCollected {
                client,
                park_id: ticket,
                client_snapshots,
            } => self.resume_with_client_snapshots(client, ticket, client_snapshots),
            Message::CloseClient(client) => self.close_client(client),
            Message::EndWait {
                client,
                wait_state: waiting,
                with_error,
            } => self.end_claimed_wait(client, waiting, with_error),
            Message::LogAdvanced => self.send_withheld(),
            Message::ExpireDue => self.is_expiring = true,
            Message::RecountClients => self.recount_clients(),
            Message::SampleMemory => self.should_sample_memory = true,
            Message::EvictDue => self.thread.room.is_evicting = true,
            Message::UsersChanged { lost_channels } => self.close_unauthorized(&lost_channels),
            Message::Demoted => self.end_all_waits(),
            Message::ShutdownAborted => self.reply_to_aborted_shutdowns(),
            Message::ResumePaused => self.resume_paused(),
            Message::SlotsLeft => self.handle_departed_slots(),
            Message::Stop { grace_period: patience } => self.grace_period = Some(patience),
        }
    }

    pub(crate) fn accept_connection(&mut self, accepted: AcceptedConnection) {
        let Ok(tls) = self.create_tls_layer(&accepted) else {
            return self.uncount_connection();
        };
        let socket = accepted.socket;
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
        server.clients.directory.set_worker(id, self.id);
        let mut connection = Box::new(Connection::new(client));
        connection.tls = tls;
        let unsent = Default::default();
        self.install_connection(connection, DetachedConnection { socket, unsent });
    }

    pub(crate) fn install_connection(&mut self, connection: Box<Connection>, registered: DetachedConnection) {
        let token = self.clients.add(connection);
        if let Err(error) = self.reactor.adopt(token, registered) {
            crate::observability::log::warning!("cannot watch a connection: {error}");
            self.remove_connection(token);
        }
        self.start_tls_handshake(token);
        self.count_client(token);
    }

    pub(crate) fn adopt_connection(&mut self, mut connection: Box<Connection>, wait: Option<Box<BlockedCommand>>) {
        let Some(registered) = connection.in_transit.take() else {
            return self.server().end_move();
        };
        connection.client.worker = self.id;
        // The previous worker may have withheld its output; this worker decides again.
        connection.is_output_withheld = false;
        // The user may have been deleted while the connection was in transit.
        let is_welcome = connection.client.login.refresh(&self.thread.server.acl);
        let id = connection.client.id;
        self.install_connection(connection, registered);
        if let Some(token) = self.clients.by_id.get(&id).copied() {
            self.ready_tokens.push(token);
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

    /// Moves connections that are between requests, or wait for keys, to other workers.
    pub(crate) fn move_connections(&mut self, to: Range<WorkerId>, kept_connections: usize) {
        // The order may have waited in `MovingConnections`.
        let active = self.server().lifecycle.active_workers.load(Ordering::Relaxed);
        if to.end > active || (kept_connections == 0 && self.id < active) {
            return;
        }
        // Each worker starts with a different target, so that a few connections do not all go to the first.
        let first = self.id % to.len().max(1);
        let mut takers = to.clone().cycle().skip(first);
        let mut surplus = self.clients.len().saturating_sub(kept_connections);
        for token in 0..self.clients.slots.len() {
            if surplus == 0 {
                return;
            }
            let waits = &self.waits;
            let movable = self.clients.connection(token).is_some_and(|connection| {
                let idle =
                    connection.state == ConnectionState::Ready || waits.is_waiting_for_keys(connection.client.id);
                let stays = connection.client.flags.intersects(NEVER_MOVED);
                idle && !stays && !connection.is_in_batch && connection.output.is_empty()
            });
            if !movable {
                continue;
            }
            if !self.server().clients.moving.begin_move(self.id, &to, kept_connections) {
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
            self.ready_tokens.retain(|other| *other != token);
            self.delayed_tokens.retain(|other| *other != token);
            let usage = std::mem::take(&mut connection.usage);
            self.uncount_client(usage);
            connection.in_transit = Some(registered);
            connection.is_receive_paused = false;
            let taker = takers.next().unwrap_or(to.start);
            self.send_connection(taker, connection);
            surplus -= 1;
        }
    }
}
