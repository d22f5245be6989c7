//! Imports: the connection of the source, the execution of its stream, and the takeover of the slots.

use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, SlotIndex, ThreadIndex};

use super::cleanup;
use super::export::SOCKET_BUFFER_BYTES;
use super::export_messages::{COMMAND_FAILED, UNEXPECTED_TRANSITION};
use super::state::{ArrivingSource, Import, Link, MigrationEngine, message, message_name};
use crate::cluster_node::key_deletion::{ImportMark, delete_keys_of_slots};
use crate::cluster_node::topology;
use crate::dispatch::import_stream::{ImportFailure, ImportScope, ImportStep};
use crate::keyspace::SlotHeader;
use crate::net::client::ClientFlags;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::slot_migration::job::{CONNECTION_LOST, JobProgress, JobState};
use crate::state::Server;
use weft_cluster::Cluster;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_reactor::DetachedConnection;
use weft_scripting::Requester;

/// The number of unexecuted bytes above which nothing more is received.
const MAX_INPUT_BYTES: usize = 16 << 20;
/// The time after the request for the takeover in which this node may take the slots over. A source waits for two
/// seconds from the arrival of the request; the rest is for the announcement of the new owner.
pub(super) const TAKEOVER_LIMIT: Duration = Duration::from_millis(1500);

impl MigrationEngine {
    /// Begins the imports whose sources have connected. An import waits while commands use a view in which this node
    /// owns the slots: its slots could not be marked, and the bus would delete the imported keys together with the old
    /// ones.
    pub(super) fn adopt_sources(&mut self, cluster: &Cluster) {
        let until = Instant::now() + cleanup::DELETION_TIME_PER_TURN;
        for mut source in std::mem::take(&mut self.arriving) {
            // Read before the job is looked up: a later change of the role ends the stream.
            let role_epoch = *source
                .role_epoch
                .get_or_insert_with(|| self.server.replication.role_epoch());
            let found = self.with_job(&source.progress, |job| (job.slots.clone(), job.name, job.source));
            let Some((slots, name, node)) = found.filter(|_| !source.progress.has_ended()) else {
                self.server.forget_link(source.connection.client.id);
                continue;
            };
            if source.connection.client.login.account().is_deleted() {
                // Its user was deleted while the connection was on its way.
                self.refuse_source(&source, CONNECTION_LOST);
                continue;
            }
            let owner = cluster.lock(&self.server.config).owner_of_slots(&slots);
            if owner != node {
                self.refuse_source(&source, NOT_OWNED_BY_SOURCE);
                continue;
            }
            let view = cluster.settled_view();
            if slots.iter().any(|slot| view.is_mine(slot)) {
                // The next view wakes this thread.
                self.arriving.push(source);
                continue;
            }
            // Keys that are left in the slots belonged to this node before.
            let is_foreign = |server: &Server, slot: SlotIndex, _: &SlotHeader| {
                let cluster = server.cluster.as_ref();
                cluster.is_some_and(|cluster| !cluster.settled_view().is_mine(slot))
            };
            let (server, next_slot, mark) = (self.server.clone(), &mut source.next_slot, ImportMark::Set);
            if !delete_keys_of_slots(&server, &mut self.seat, &slots, next_slot, mark, until, is_foreign) {
                self.is_urgent = true;
                self.arriving.push(source);
                continue;
            }
            let Some(registered) = source.connection.in_transit.take() else {
                self.refuse_source(&source, CONNECTION_LOST);
                continue;
            };
            let import = Import {
                progress: source.progress,
                connection: source.connection,
                link: None,
                slots,
                name,
                source: node,
                role_epoch,
                is_delayed: false,
                awaited_log: None,
                requested_at: None,
            };
            self.adopt_source(import, registered);
        }
    }

    /// Ends an import whose source has not been answered. The caller drops the connection.
    fn refuse_source(&mut self, source: &ArrivingSource, message: &str) {
        self.fail(&source.progress, message);
        self.server.forget_link(source.connection.client.id);
    }

    /// Closes the connection of a source that has not been answered, because its client was killed. Returns `false` if
    /// there is none with this client id.
    pub(super) fn close_arriving(&mut self, client: ClientId) -> bool {
        let is_of_client = |source: &ArrivingSource| source.connection.client.id == client;
        let Some(index) = self.arriving.iter().position(is_of_client) else {
            return false;
        };
        let source = self.arriving.remove(index);
        self.refuse_source(&source, CONNECTION_LOST);
        true
    }

    /// Begins an import, whose slots were emptied and marked, with the connection of its source: answers it.
    fn adopt_source(&mut self, mut import: Import, registered: DetachedConnection) {
        let server = self.server.clone();
        let progress = import.progress.clone();
        let is_marked = |slot: SlotIndex| server.keyspace.slots.header(slot.index()).is_importing();
        if !import.slots.iter().all(is_marked) {
            // This node has become the owner of a slot meanwhile.
            server.forget_link(import.client_id());
            return self.fail(&progress, NOT_OWNED_BY_SOURCE);
        }
        if let Some(cluster) = &server.cluster {
            // All keys of before are deleted.
            cluster.lock(&server.config).forget_leftover(&import.slots);
        }
        let token = self.next_token;
        self.next_token += 1;
        let connection = &mut import.connection;
        connection.client.flags.set(ClientFlags::SLOT_IMPORT, true);
        // An error reply ends the import, so it must not be suppressed.
        for flag in [
            ClientFlags::REPLY_OFF,
            ClientFlags::REPLY_SKIP,
            ClientFlags::REPLY_SKIP_NEXT,
        ] {
            connection.client.flags.set(flag, false);
        }
        // The option only affects performance.
        let _ = registered.socket.set_buffer_sizes(SOCKET_BUFFER_BYTES);
        if self.reactor.adopt(token, registered).is_err() {
            server.forget_link(import.client_id());
            return self.fail(&progress, CONNECTION_LOST);
        }
        if let Some(tls) = &connection.tls
            && tls.resume_on_reactor(&mut self.reactor, token).is_err()
        {
            log::warning!("Cannot continue to send to the source of a slot migration");
        }
        server.clients.connections.fetch_add(1, Ordering::Relaxed);
        let link = Link {
            token,
            tls: connection.tls.clone(),
            acknowledged_ms: unix_ms(),
        };
        let is_sent = Self::send(&mut self.reactor, &link, b"+OK\r\n".to_vec());
        import.link = Some(link);
        self.imports.push(import);
        if !is_sent {
            return self.on_source_lost(token);
        }
        self.publish_clients();
        self.execute(self.imports.len() - 1);
    }

    /// Receives from a source and executes what has arrived.
    pub(super) fn receive_from_source(&mut self, token: usize) {
        let Some(index) = self.import_of(token) else {
            return;
        };
        let import = &mut self.imports[index];
        if import.progress.has_ended() {
            // Nothing more is executed. The connection is closed when the keys are deleted.
            self.reactor.pause(token);
            return;
        }
        let tls = import.connection.tls.clone();
        let mut input = std::mem::take(&mut import.connection.input);
        let received = self.receive(token, tls.as_ref(), &mut input);
        let import = &mut self.imports[index];
        import.connection.input = input;
        match received {
            Ok(count) => {
                import.connection.client.net_input_bytes += count as u64;
                import.connection.client.last_interaction_ms = unix_ms();
                let progress = import.progress.clone();
                if count > 0 {
                    self.with_job(&progress, |job| job.heard_s = unix_ms() / 1000);
                }
                let thread_index = ThreadIndex::new(self.seat.index());
                let metrics = &self.server.stats.metrics;
                metrics.add(thread_index, Counter::SlotImportBytes, count as u64);
            }
            Err(_) => return self.on_source_lost(token),
        }
        self.execute(index);
        let import = &self.imports[index];
        import.publish_unexecuted_bytes();
        if import.connection.input.len() > MAX_INPUT_BYTES && import.is_delayed {
            self.reactor.pause(token);
        }
    }

    fn import_of(&self, token: usize) -> Option<usize> {
        let has_token = |import: &Import| import.link.as_ref().is_some_and(|link| link.token == token);
        self.imports.iter().position(has_token)
    }

    /// Executes the received commands of an import, and processes its messages.
    fn execute(&mut self, index: usize) {
        loop {
            let import = &mut self.imports[index];
            if import.progress.has_ended() {
                return;
            }
            let scope = ImportScope {
                slots: &import.slots,
                progress: &import.progress,
                role_epoch: import.role_epoch,
            };
            let step = self.executor.run(&mut self.seat, &mut import.connection, &scope);
            import.is_delayed = step == ImportStep::Delayed;
            match step {
                ImportStep::Idle => return,
                ImportStep::Delayed => {
                    self.is_urgent = true;
                    return;
                }
                ImportStep::Message(words) => self.process_source_message(index, &words),
                ImportStep::Failed(failure) => return self.fail_import(index, &failure),
                ImportStep::Over => {
                    let progress = import.progress.clone();
                    return self.fail(&progress, "A failover occurred during slot import");
                }
            }
        }
    }

    fn fail_import(&mut self, index: usize, failure: &ImportFailure) {
        let progress = self.imports[index].progress.clone();
        match failure {
            ImportFailure::OutOfMemory => {
                self.with_job(&progress, |job| {
                    log::warning!("Slot migration {} failed due to OOM", job.description());
                });
                self.fail(&progress, "Ran out of memory (OOM) during slot import");
            }
            ImportFailure::Malformed => self.fail(&progress, COMMAND_FAILED),
            ImportFailure::TooLongRequest => {
                let connection = &self.imports[index].connection;
                let hides_user_data = self.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
                let line = connection
                    .client
                    .log_line(unix_ms(), connection.buffers(0), hides_user_data);
                log::warning!("Closing client that reached max query buffer length: {line}");
                let thread_index = ThreadIndex::new(self.seat.index());
                let metrics = &self.server.stats.metrics;
                metrics.add(thread_index, Counter::QueryBufferDisconnections, 1);
                self.fail(&progress, COMMAND_FAILED);
            }
            ImportFailure::Refused { error, command } => {
                log::warning!(
                    "== CRITICAL == This slot-import-target is sending an error to its slot-import-source: '{error}' \
                     after processing the command '{command}'"
                );
                self.fail(&progress, COMMAND_FAILED);
            }
        }
    }

    fn process_source_message(&mut self, index: usize, words: &[Vec<u8>]) {
        let import = &mut self.imports[index];
        import.connection.client.commands += 1;
        let progress = import.progress.clone();
        match message_name(words).as_slice() {
            b"ack" => {
                self.with_job(&progress, |job| {
                    job.acknowledged_s = unix_ms() / 1000;
                    if job.state == JobState::WaitingForAck {
                        job.set_state(JobState::ReceivingSnapshot);
                    }
                });
            }
            b"snapshot-eof" => self.on_source_progress(
                index,
                JobState::ReceivingSnapshot,
                JobState::WaitingForPaused,
                Some(b"REQUEST-PAUSE"),
            ),
            b"paused" => self.on_source_paused(index),
            b"failover-granted" => {
                self.on_source_progress(index, JobState::FailoverRequested, JobState::ImportGranted, None);
            }
            b"capa" => {}
            // Messages of targets.
            b"request-pause" | b"request-failover" => self.refuse_message(&progress),
            _ => {
                self.with_job(&progress, |job| {
                    log::warning!(
                        "Received unknown SYNCSLOTS subcommand from slot migration {}. Failing the migration.",
                        job.description()
                    );
                });
                self.fail(&progress, "Unknown SYNCSLOTS subcommand used");
            }
        }
    }

    /// Processes the message that everything has been sent. All of it is executed at this point.
    fn on_source_paused(&mut self, index: usize) {
        let import = &self.imports[index];
        let progress = import.progress.clone();
        let is_first = import.awaited_log.is_none();
        match self.with_job(&progress, |job| is_first && job.state == JobState::WaitingForPaused) {
            None => {}
            Some(false) => self.refuse_message(&progress),
            Some(true) => {
                // Also covers what other threads have written for the import.
                self.imports[index].awaited_log = Some(self.server.propagation.last_sequence());
                self.request_takeover(index);
            }
        }
    }

    /// Ends a migration by a message that does not fit its state.
    pub(super) fn refuse_message(&mut self, progress: &Arc<JobProgress>) {
        self.with_job(progress, |job| {
            log::warning!(
                "Received an unexpected message from slot migration {} in the state {}. Failing migration.",
                job.description(),
                job.state.as_str()
            );
        });
        self.fail(progress, UNEXPECTED_TRANSITION);
    }

    /// Requests the permission to take the slots over, once their keys are as safe as the replies of this node make any
    /// write. The source deletes the keys that it gave away, so nothing else would be left of them after a crash.
    fn request_takeover(&mut self, index: usize) {
        let import = &self.imports[index];
        let Some(sequence) = import.awaited_log else {
            return;
        };
        if self.server.propagation.must_withhold_reply(sequence) {
            // The source's pause ends by itself if this takes too long.
            self.server.propagation.wake();
            self.is_urgent = true;
            return;
        }
        self.imports[index].awaited_log = None;
        self.on_source_progress(
            index,
            JobState::WaitingForPaused,
            JobState::FailoverRequested,
            Some(b"REQUEST-FAILOVER"),
        );
    }

    /// Processes a message that moves an import from one state to the next, and requests the step after that.
    fn on_source_progress(&mut self, index: usize, from: JobState, to: JobState, request: Option<&[u8]>) {
        let progress = self.imports[index].progress.clone();
        let fits = self.with_job(&progress, |job| {
            if job.state != from {
                return false;
            }
            if to == JobState::WaitingForPaused {
                log::notice!(
                    "Slot migration {} successfully received slot snapshot. Beginning incremental stream...",
                    job.description()
                );
            }
            job.set_state(to);
            true
        });
        match (fits, request) {
            (Some(true), Some(request)) => {
                if to == JobState::FailoverRequested {
                    self.imports[index].requested_at = Some(Instant::now());
                }
                if let Some(link) = &self.imports[index].link {
                    let token = link.token;
                    if !Self::send(&mut self.reactor, link, message(request)) {
                        self.on_source_lost(token);
                    }
                }
            }
            (Some(true), None) => self.is_urgent = true,
            (Some(false), _) => self.refuse_message(&progress),
            (None, _) => {}
        }
    }

    /// Handles the end of a source's connection.
    pub(super) fn on_source_lost(&mut self, token: usize) {
        let Some(index) = self.import_of(token) else {
            return;
        };
        let progress = self.imports[index].progress.clone();
        self.with_job(&progress, |job| {
            log::notice!("Slot migration {} connection lost", job.description());
        });
        self.close_source(index);
        self.fail(&progress, CONNECTION_LOST);
    }

    /// Closes the connection of an import.
    pub(super) fn close_source(&mut self, index: usize) {
        let import = &mut self.imports[index];
        let Some(link) = import.link.take() else {
            return;
        };
        let client = import.client_id();
        // The worker has removed the watches of before the import.
        debug_assert!(
            import.connection.client.watches.is_none(),
            "the source of a migration watches no keys"
        );
        self.close(Some(link));
        self.server.clients.connections.fetch_sub(1, Ordering::Relaxed);
        self.server.forget_link(client);
    }

    /// Advances all imports: executes commands that were delayed, and takes slots over.
    pub(super) fn advance_imports(&mut self, cluster: &Cluster) {
        let mut wants_slots = false;
        for index in 0..self.imports.len() {
            if self.imports[index].is_delayed {
                self.execute(index);
                self.imports[index].publish_unexecuted_bytes();
            }
            let import = &self.imports[index];
            let has_room = !import.is_delayed || import.connection.input.len() <= MAX_INPUT_BYTES;
            let may_receive = has_room && !import.progress.has_ended();
            if let Some(link) = &import.link
                && may_receive
                && self.reactor.is_paused(link.token)
            {
                self.reactor.resume(link.token);
            }
            self.request_takeover(index);
            let progress = self.imports[index].progress.clone();
            let is_granted = self.with_job(&progress, |job| job.state == JobState::ImportGranted);
            let is_prevented = self.server.slot_migrations.prevents_failover.load(Ordering::Relaxed);
            match is_granted == Some(true) {
                // The time of a test does not count.
                true if is_prevented => self.imports[index].requested_at = Some(Instant::now()),
                true => {
                    wants_slots = true;
                    self.take_over(cluster, index);
                }
                false => {}
            }
        }
        if !wants_slots {
            // An import that waited for exclusive mode may have been cancelled.
            self.server.scripting.running.withdraw(Requester::SlotTakeover);
        }
    }

    /// Takes the slots of an import over. The source admits writes again when it has waited for long enough, so a
    /// takeover that scripts or the disk delay for that time is given up.
    fn take_over(&mut self, cluster: &Cluster, index: usize) {
        let server = self.server.clone();
        let import = &self.imports[index];
        let (progress, slots, source) = (import.progress.clone(), import.slots.clone(), import.source);
        let (name, requested_at) = (import.name, import.requested_at);
        let is_in_time = || requested_at.is_some_and(|at| at.elapsed() < TAKEOVER_LIMIT);
        let takeover = topology::Takeover {
            slots: &slots,
            check: &|state| {
                let may_take = !progress.has_ended() && !state.me().is_replica();
                let owner = state.owner_of_slots(&slots).filter(|owner| Some(*owner) == source);
                match owner {
                    _ if !is_in_time() => Err(TAKEOVER_TIMED_OUT),
                    Some(owner) if may_take => Ok(owner),
                    _ => Err(NOT_OWNED_BY_SOURCE),
                }
            },
            confirm: &|is_saved| match is_saved {
                false => Err(NOT_SAVED),
                true if !is_in_time() => Err(TAKEOVER_TIMED_OUT),
                true => {
                    progress.end();
                    Ok(())
                }
            },
        };
        let attempt = topology::try_take_over(&server, cluster, &mut self.seat, &takeover);
        match attempt {
            Some(Ok(())) => cleanup::finish_import(&server, &mut self.seat, &progress, &name),
            Some(Err(reason)) => self.fail(&progress, reason),
            None if is_in_time() => self.is_urgent = true,
            None => {
                server.scripting.running.withdraw(Requester::SlotTakeover);
                self.fail(&progress, TAKEOVER_TIMED_OUT);
            }
        }
    }
}

/// The reason of an import whose slots have another owner.
const NOT_OWNED_BY_SOURCE: &str = "Slots are no longer owned by source node";
/// The reason of an import whose new owner could not be stored.
const NOT_SAVED: &str = "Failed to save the cluster configuration file";
/// The reason of an import whose takeover was delayed for too long.
const TAKEOVER_TIMED_OUT: &str = "Timed out before the slots could be taken over";
