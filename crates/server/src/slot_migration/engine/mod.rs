//! The thread that migrates slots. It owns the connections of all exports and imports of this node.
//!
//! ```text
//!   MIGRATESLOTS ─▶ job ─▶ wake ──▶ export: connects, sends          sockets ─▶ messages ─▶ next state of the job
//!   ESTABLISH ──▶ job, connection ─▶ import: marks the slots, +OK    ten times a second: timeouts, ACK, cleanup
//!   CANCEL, FLUSHALL, new view ─▶ job has ended ─▶ wake ──▶ connection closed, pause ended, keys deleted, FINISH
//! ```
//!
//! The thread never waits for a peer. What a socket does not accept stays in the export's feed. A job whose state has
//! changed under another thread is noticed in the next turn; until then, [`JobProgress::has_ended`] keeps the thread
//! from executing or sending anything for it.

mod brake;
mod cleanup;
mod export;
mod export_messages;
mod import;
mod log_consumer;
mod snapshot;
mod state;

use std::sync::Arc;
use std::time::Duration;

use weft_base::ClientId;
use weft_base::clock::unix_ms;
use weft_reactor::{Event, Reactor};

use self::state::{ArrivingSource, MigrationEngine, message};
use super::job::{JobKind, JobProgress, JobState, MigrationJob};
use crate::dispatch::import_stream::ImportExecutor;
use crate::net::connection::Connection;
use crate::observability::{log, memory};
use crate::state::{Server, SlotMigrationCommand};
use weft_cluster::Cluster;
use weft_config::id;
use weft_os::time::Instant;

/// The maximum number of events per turn.
const MAX_EVENTS_PER_TURN: usize = 128;
/// The interval of the time-driven work.
const TICK: Duration = Duration::from_millis(100);
/// The interval while something must be tried again soon.
const URGENT_INTERVAL: Duration = Duration::from_millis(1);
/// The interval without jobs.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two acknowledgements, in milliseconds.
const ACK_INTERVAL_MS: u64 = 1000;

/// Starts the thread, in cluster mode.
///
/// # Errors
/// When the operating system refuses to create it, or the keyspace has no free thread index.
pub fn start(server: &Arc<Server>) -> std::io::Result<()> {
    let (true, Some(commands)) = (server.cluster.is_some(), server.background.take_migration_commands()) else {
        return Ok(());
    };
    let no_seat = || std::io::Error::other("the keyspace has no free thread index");
    let seat = server.keyspace.slots.join().ok_or_else(no_seat)?;
    let reactor = Reactor::new()?;
    server.background.set_migration_thread_waker(reactor.waker());
    // A file may have had imports that had not ended.
    server.end_loaded_imports("Process restarted");
    let mut engine = MigrationEngine {
        executor: ImportExecutor::new(server, &seat),
        server: server.clone(),
        seat,
        reactor,
        commands,
        exports: Vec::new(),
        imports: Vec::new(),
        arriving: Vec::new(),
        cleanups: Vec::new(),
        granted_holds: Vec::new(),
        next_token: 0,
        last_tick: Instant::now(),
        checked_view: 0,
        is_attached_to_log: false,
        is_urgent: false,
    };
    weft_os::thread::Builder::new()
        .name("weft-migrate".into())
        .spawn(move || engine.run())
        .map(drop)
}

impl MigrationEngine {
    fn run(&mut self) {
        let server = self.server.clone();
        let Some(cluster) = &server.cluster else {
            return;
        };
        let mut events = Vec::new();
        let mut counted_balance = memory::thread_balance();
        loop {
            events.clear();
            let timeout = self.timeout();
            self.is_urgent = false;
            if let Err(error) = self.reactor.wait(Some(timeout), &mut events, MAX_EVENTS_PER_TURN) {
                log::warning!("The thread of slot migrations cannot wait for events: {error}");
                weft_os::thread::sleep(TICK);
            }
            server.replication.sleep_if_requested();
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    SlotMigrationCommand::AdoptSource(connection, progress) => {
                        self.arriving.push(ArrivingSource {
                            connection,
                            progress,
                            next_slot: 0,
                            role_epoch: None,
                        });
                    }
                    SlotMigrationCommand::Disconnect(client) => self.disconnect(client),
                }
            }
            for event in events.drain(..) {
                self.handle(event);
            }
            self.start_exports();
            self.check_owners(cluster);
            self.adopt_sources(cluster);
            self.advance_exports(cluster);
            self.advance_imports(cluster);
            if self.last_tick.elapsed() >= TICK {
                self.last_tick = Instant::now();
                self.tick();
            }
            self.end_finished_jobs(cluster);
            self.count_memory(&mut counted_balance);
        }
    }

    /// Counts what this thread has allocated and freed since the last call. Workers and the log thread allocate what it
    /// sends and frees, so without this count, all that is sent would be in use until the allocator is asked again.
    fn count_memory(&mut self, counted_balance: &mut i64) {
        let balance = memory::thread_balance();
        let uncounted = balance - std::mem::replace(counted_balance, balance) - self.executor.take_shared_balance();
        if uncounted != 0 {
            self.server.memory.add_to_shared_cell(uncounted);
        }
    }

    fn timeout(&self) -> Duration {
        if self.is_urgent {
            URGENT_INTERVAL
        } else if self.is_idle() {
            IDLE_INTERVAL
        } else {
            TICK
        }
    }

    fn is_idle(&self) -> bool {
        let migrations = &self.server.slot_migrations;
        let has_links = !self.exports.is_empty() || !self.imports.is_empty();
        let waits = !self.arriving.is_empty() || !self.granted_holds.is_empty();
        !has_links && !waits && !self.is_attached_to_log && !migrations.has_exports() && !migrations.has_imports()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Readable(token) => match self.is_export(token) {
                true => self.receive_from_target(token),
                false => self.receive_from_source(token),
            },
            Event::Writable(token) => self.on_writable(token),
            Event::Closed(token) | Event::SendFailed(token) => match self.is_export(token) {
                true => self.on_target_lost(token, None),
                false => self.on_source_lost(token),
            },
            // This thread has no listeners.
            Event::Accepted(..) | Event::AcceptFailed(..) => {}
        }
    }

    fn is_export(&self, token: usize) -> bool {
        let is_link = |export: &state::Export| export.link.as_ref().is_some_and(|link| link.token == token);
        self.exports.iter().any(is_link)
    }

    fn on_writable(&mut self, token: usize) {
        let of_exports = self.exports.iter_mut().filter_map(|export| export.link.as_mut());
        let of_imports = self.imports.iter_mut().filter_map(|import| import.link.as_mut());
        let link = of_exports.chain(of_imports).find(|link| link.token == token);
        let tls = link.and_then(|link| link.tls.clone());
        if tls.is_some_and(|tls| tls.continue_sending(&mut self.reactor, token).is_err()) {
            self.handle(Event::SendFailed(token));
        } else {
            self.on_target_writable(token);
        }
    }

    /// Closes the connection of a client that was killed.
    fn disconnect(&mut self, client: ClientId) {
        if self.close_arriving(client) {
            return;
        }
        let of_export = self.exports.iter().find(|export| export.client.id == client);
        if let Some(token) = of_export.and_then(|export| export.link.as_ref()).map(|link| link.token) {
            return self.on_target_lost(token, None);
        }
        let of_import = self.imports.iter().find(|import| import.client_id() == client);
        if let Some(token) = of_import.and_then(|import| import.link.as_ref()).map(|link| link.token) {
            self.on_source_lost(token);
        }
    }

    /// Ends the jobs whose slots have an owner with which they cannot succeed, or have succeeded.
    fn check_owners(&mut self, cluster: &Cluster) {
        if cluster.settled_version() == self.checked_view {
            return;
        }
        let view = {
            // The view and this node's role change together, in exclusive mode. A primary that still counted as a
            // replica would track imports that it has to clean up.
            let _pass = self.seat.enter();
            self.checked_view = cluster.settled_version();
            cluster.settled_view()
        };
        let mut jobs = self.server.slot_migrations.lock();
        for job in jobs.iter_mut().filter(|job| job.state.is_in_progress()) {
            let is_mine = job.slots.iter().all(|slot| view.is_mine(slot));
            let is_of = |node| job.slots.iter().all(|slot| view.is_owned_by(slot, &node));
            match job.kind {
                JobKind::Export if is_mine && !view.is_replica => {}
                // This node may follow the target now, because it has given its last slot away.
                JobKind::Export if job.target.is_some_and(is_of) => {
                    log::notice!(
                        "Slot migration {} slots are now owned by target node.",
                        job.description()
                    );
                    job.finish(JobState::Success, None, false);
                }
                JobKind::Export => {
                    log::warning!(
                        "Slot migration {} contains slots that are no longer all owned by myself",
                        job.description()
                    );
                    job.finish(JobState::Failed, Some("Slots are no longer owned by myself"), false);
                }
                JobKind::Import if view.is_replica => job.track(),
                JobKind::Import if job.is_tracked_only => {
                    job.finish(JobState::Failed, Some("A failover occurred during slot import"), true);
                }
                JobKind::Import if job.source.is_some_and(is_of) => {}
                JobKind::Import if is_mine => job.finish(
                    JobState::Failed,
                    Some("Slots were unexpectedly assigned to myself during import"),
                    true,
                ),
                JobKind::Import => {
                    job.finish(JobState::Failed, Some("Slots are no longer owned by source node"), true);
                }
            }
        }
    }

    /// Ends the jobs of which nothing was heard for `repl-timeout`, sends acknowledgements, and shortens the log.
    fn tick(&mut self) {
        self.end_silent_jobs();
        self.send_acknowledgements();
        self.publish_clients();
        let most_jobs = self.server.config.unsigned(id::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN);
        self.server.slot_migrations.lock().trim(most_jobs);
    }

    fn end_silent_jobs(&mut self) {
        let timeout_s = self.server.config.unsigned(id::REPL_TIMEOUT);
        let now_s = unix_ms() / 1000;
        let is_replica = self.server.replication.is_replica();
        for export in &self.exports {
            // No other snapshot can begin while this one waits, so acknowledgements do not suffice.
            let is_stuck = export.target_progress.standstill().as_secs() > timeout_s;
            let is_snapshotting = |job: &mut MigrationJob| job.state == JobState::Snapshotting;
            if is_stuck && self.with_job(&export.progress, is_snapshotting) == Some(true) {
                self.with_job(&export.progress, |job| {
                    log::warning!(
                        "Timing out slot migration {} after its target has not received its snapshot for too long",
                        job.description()
                    );
                    job.fail("Timed out after too long with no interaction", is_replica);
                });
            }
        }
        for job in self.server.slot_migrations.lock().iter_mut() {
            let may_be_silent = matches!(job.state, JobState::ExportGranted | JobState::OccurringOnPrimary);
            if !job.state.is_in_progress() || may_be_silent {
                continue;
            }
            if now_s.saturating_sub(job.last_heard_s()) > timeout_s {
                log::warning!(
                    "Timing out slot migration {} after not receiving ack for too long",
                    job.description()
                );
                job.fail("Timed out after too long with no interaction", is_replica);
            }
        }
    }

    fn send_acknowledgements(&mut self) {
        let now_ms = unix_ms();
        let server = self.server.clone();
        let jobs = server.slot_migrations.lock();
        let state_of = |progress: &Arc<JobProgress>| {
            let job = jobs.iter().find(|job| Arc::ptr_eq(&job.progress, progress));
            job.map_or(JobState::Failed, |job| job.state)
        };
        for export in &mut self.exports {
            if let Some(link) = &mut export.link
                && now_ms.saturating_sub(link.acknowledged_ms) >= ACK_INTERVAL_MS
                && export::sends_acknowledgements(state_of(&export.progress))
                && Self::in_flight(&self.reactor, link) == 0
            {
                link.acknowledged_ms = now_ms;
                // A failure is reported as an event.
                Self::send(&mut self.reactor, link, message(b"ACK"));
            }
        }
        for import in &mut self.imports {
            let state = state_of(&import.progress);
            if let Some(link) = &mut import.link
                && now_ms.saturating_sub(link.acknowledged_ms) >= ACK_INTERVAL_MS
                && state.is_in_progress()
                && state != JobState::WaitingForAck
            {
                link.acknowledged_ms = now_ms;
                Self::send(&mut self.reactor, link, message(b"ACK"));
            }
        }
    }

    /// Publishes the connections for CLIENT LIST.
    fn publish_clients(&self) {
        let exports = self.exports.iter().filter_map(|export| {
            let link = export.link.as_ref()?;
            let unsent = Self::in_flight(&self.reactor, link) as u64 + export.feed.unsent_bytes();
            let connection = Connection::new(export.client.link_snapshot());
            let buffers = connection.buffers(usize::try_from(unsent).unwrap_or(usize::MAX));
            Some((connection.client, buffers))
        });
        let imports = self.imports.iter().filter_map(|import| {
            let link = import.link.as_ref()?;
            let buffers = import.connection.buffers(Self::in_flight(&self.reactor, link));
            Some((import.connection.client.link_snapshot(), buffers))
        });
        self.server.publish_links(exports.chain(imports));
    }
}
