//! A worker's mail: arriving connections, replies from other threads, queries.

use super::{DelayedAnswer, Worker};
use crate::dispatch::memory_limit;
use crate::keyspace::effects::ClientNotification;
use crate::net::client::Client;
use crate::net::client::ClientFlags;
use crate::net::client_info::send_client_event;
use crate::net::connection::Connection;
use crate::net::listeners::AcceptedConnection;
use crate::observability::memory;
use crate::state::Message;
use std::time::Duration;
use weft_base::{ClientId, LogSequence, ParkId};
use weft_os::time::Instant;
use weft_reactor::DetachedConnection;
use weft_reactor::Socket;

/// The number of messages taken from the mailbox at once.
const MESSAGES_PER_READ: usize = if cfg!(feature = "simulated") { 2 } else { 128 };
/// The time that a turn spends on mail.
const MAIL_TIME_SLICE: Duration = Duration::from_micros(500);

impl Worker {
    pub(crate) fn read_mail(&mut self) {
        if self.server().worker(self.id).mailbox.is_empty_hint() {
            return;
        }
        let start = Instant::now();
        while self.handle_messages(MESSAGES_PER_READ) > 0 && start.elapsed() < MAIL_TIME_SLICE {}
    }

    /// Reads all mail that has been sent, with requests planned that have not run. Their connections neither move nor
    /// close before the batch has run.
    pub(crate) fn read_mail_sent_before_now(&mut self) {
        let mut left = self.server().worker(self.id).mailbox.len();
        while left > 0 {
            left -= self.handle_messages(left.min(MESSAGES_PER_READ));
        }
    }

    /// Handles up to this number of messages and returns how many there were.
    fn handle_messages(&mut self, at_most: usize) -> usize {
        let mut mail = std::mem::take(&mut self.mail);
        let count = self.thread.server.worker(self.id).mailbox.drain(&mut mail, at_most);
        for message in mail.drain(..) {
            self.handle_message(message);
        }
        self.mail = mail;
        self.run_lent_jobs();
        count
    }

    fn deliver_notice(&mut self, notice: &ClientNotification) {
        let server = &self.thread.server;
        server.worker(self.id).note_received(notice);
        let balance = memory::thread_balance();
        self.clients.notify(server, self.id, notice);
        memory_limit::exclude_messages(&mut self.thread, balance);
    }

    /// Delivers the reply of a command that ran elsewhere, with the positions in the log of its first write and of what
    /// counts as its last one.
    fn deliver_reply(
        &mut self,
        (client, park_id): (ClientId, ParkId),
        bytes: Vec<u8>,
        first_write: LogSequence,
        log_sequence: LogSequence,
    ) {
        match self.find_parked(client, park_id) {
            Some(token) => self.record_log_sequence(token, first_write, log_sequence),
            // The command that a module has called.
            None if client.get() == 0 => self.server().end_module_call_at_home(park_id, Some(bytes.clone())),
            None => self.continue_abandoned_parts(client, park_id),
        }
        self.deliver_parked_reply(client, park_id, bytes);
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
                park_id,
                bytes,
                first_write,
                log_sequence,
            } => self.deliver_reply((client, park_id), bytes, first_write, log_sequence),
            Message::CommandDone {
                client,
                park_id,
                result,
            } => self.deliver_command_result(client, park_id, *result),
            Message::RunAtHome(job) => self.home_jobs.push_back(job),
            Message::RunLent(job) => self.lent_jobs.push(job),
            Message::ModuleWaitEnded(ended) => self.deliver_module_wait(*ended),
            Message::BeginCallTimer { at_ms, park_id } => self.waits.add_call_timer(at_ms, park_id),
            Message::StandBy(jobs) => jobs.run_all(),
            Message::RemoveWatches(watches) => self.thread.effects.removed_watches.extend(watches),
            Message::WaiterServed(waiter) => self.deliver_waiter_reply(&waiter),
            Message::ServeWaiters(unserved) => self.withhold_reply(unserved, None),
            Message::Notify(notice) => self.deliver_notice(&notice),
            Message::Query(query) => {
                let part = query.run_task(self);
                let server = self.server().clone();
                // Before the answer: what follows the reply to CLIENT KILL may rely on the end of the killed clients.
                let commands = self.close_killed();
                match commands.is_empty() || !query.awaits_killed_commands() {
                    true => query.add_answer(&server, part),
                    false => self.delayed_answers.push(DelayedAnswer { query, part, commands }),
                }
            }
            Message::CollectClients(gathering) => {
                let client_snapshots = self.collect_client_snapshots(gathering.requesting_client());
                gathering.add_worker(&self.thread.server, client_snapshots);
            }
            Message::ClientsCollected {
                client,
                park_id,
                client_snapshots,
            } => self.resume_with_client_snapshots(client, park_id, client_snapshots),
            Message::LibrariesPrepared { client, park_id, loads } => self.resume_with_libraries(client, park_id, loads),
            Message::CloseClient(client) => self.close_client(client),
            Message::RenameClient(client, name) => self.rename_client(client, name),
            Message::DescribeClients => self.describe_clients(),
            Message::EndWait {
                client,
                wait_state: waiting,
                with_error,
            } => self.end_claimed_wait(client, waiting, with_error),
            Message::LogAdvanced => self.send_withheld(),
            Message::ExpireDue => self.is_expiring = true,
            Message::RecountClients => {
                self.server().worker(self.id).begin_client_recount();
                self.recount_clients();
            }
            Message::SampleMemory => self.should_sample_memory = true,
            Message::EvictDue => self.begin_eviction(),
            Message::UsersChanged {
                lost_channels,
                changed_by,
            } => self.close_unauthorized(&lost_channels, changed_by),
            Message::ScriptsFlushed => weft_scripting::drop_flushed_interpreters(&self.server().scripting),
            Message::ReturnFreeMemory => memory::return_thread_memory(),
            Message::Demoted => self.end_waits_of_demoted(),
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
        let id = server.clients.next_client_id();
        let mut client = Client::new(id, self.thread.now_ms, self.id);
        client.login = server.acl.new_login();
        client.address = socket.peer_name().into();
        client.local_address = socket.local_name().into();
        client.fd = socket.fd();
        if matches!(socket, Socket::Unix(_)) {
            client.flags.set(ClientFlags::UNIX_SOCKET, true);
        }
        client.flags.set(ClientFlags::TLS, tls.is_some());
        server.clients.directory.add(id, self.id);
        send_client_event(&client, true);
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
}
