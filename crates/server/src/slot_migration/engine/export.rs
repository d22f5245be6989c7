//! Exports: the connection to the target, what is sent over it, and the pause of the slots' writes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_base::files::error_text;
use weft_reactor::Socket;
use weft_resp::command::write_command;

use super::brake::{Brake, TargetProgress};
use super::cleanup;
use super::snapshot;
use super::state::{Export, Link, MigrationEngine, message};
use crate::net::client::{Client, ClientFlags};
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::slot_migration::feed::{ExportFeed, SnapshotProgress};
use crate::slot_migration::job::{JobKind, JobState, MigrationJob};
use weft_cluster::Cluster;
use weft_cluster::slot_set::SlotSet;
use weft_cluster::slot_takeover::TakeoverInquiry;
use weft_config::{ClientClass, id};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_scripting::Requester;

/// The bytes in flight below which more of the feed is sent.
const MAX_IN_FLIGHT_BYTES: usize = 1 << 20;
/// The size of the kernel's buffers at both ends. While writes are paused, the target executes what is in them, which
/// this node cannot see: the kernel would let them grow to several MiB, as long as writers are faster than the target.
pub(super) const SOCKET_BUFFER_BYTES: usize = 128 << 10;
/// The time that the target has to announce its takeover, from the arrival of its request.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two lines in the log about a snapshot that waits.
const WAIT_REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// The pause lasts so many times `cluster-manual-failover-timeout`.
const PAUSE_FACTOR: u64 = 2;

/// Returns `true` if acknowledgements are sent to the target in this state.
pub(super) fn sends_acknowledgements(state: JobState) -> bool {
    matches!(
        state,
        JobState::WaitingToSnapshot
            | JobState::Snapshotting
            | JobState::Streaming
            | JobState::WaitingToPause
            | JobState::FailoverPaused
    )
}

/// Records that the snapshot of an export is complete.
pub(super) fn start_streaming(job: &mut MigrationJob) {
    job.set_state(JobState::Streaming);
    log::notice!(
        "Slot migration {} snapshot finished, starting streaming.",
        job.description()
    );
}

impl Export {
    /// Creates the export of a job. A job of this node has both nodes.
    fn new(engine: &MigrationEngine, job: &MigrationJob) -> Option<Export> {
        let (source, target) = (job.source?, job.target?);
        let server = &engine.server;
        let worker = ThreadIndex::new(engine.seat.index());
        let mut client = Client::new(server.clients.next_client_id(), unix_ms(), worker);
        client.login = server.acl.superuser_login();
        client.flags.set(ClientFlags::SLOT_EXPORT, true);
        Some(Export {
            progress: job.progress.clone(),
            client,
            link: None,
            is_connected: false,
            feed: Arc::new(ExportFeed::new(job.slots.clone())),
            input: Vec::new(),
            paused_until_ms: None,
            brake: Brake::default(),
            target_progress: TargetProgress::default(),
            waiting_since: None,
            is_snapshotting: false,
            granted_until: None,
            inquiry: TakeoverInquiry::default(),
            name: job.name,
            slots: job.slots.clone(),
            ranges: job.ranges.clone(),
            source,
            target,
            over_soft_limit_since: None,
        })
    }

    /// Returns the request with which the import begins.
    fn establish_request(&self) -> Vec<u8> {
        let numbers: Vec<String> = self
            .ranges
            .iter()
            .flat_map(|(first, last)| [first.to_string(), last.to_string()])
            .collect();
        let fixed: [&[u8]; 8] = [
            b"CLUSTER",
            b"SYNCSLOTS",
            b"ESTABLISH",
            b"SOURCE",
            self.source.as_bytes(),
            b"NAME",
            &self.name,
            b"SLOTSRANGE",
        ];
        let words: Vec<&[u8]> = fixed.into_iter().chain(numbers.iter().map(String::as_bytes)).collect();
        let mut request = Vec::new();
        write_command(words.into_iter(), &mut request);
        request
    }

    /// Returns `true` if the pause is over.
    pub fn is_pause_over(&self) -> bool {
        self.paused_until_ms.is_none_or(|until_ms| until_ms < unix_ms())
    }
}

impl MigrationEngine {
    /// Begins the exports whose jobs were created since the last turn.
    pub(super) fn start_exports(&mut self) {
        if !self.server.slot_migrations.has_exports() {
            return;
        }
        let server = self.server.clone();
        let jobs = server.slot_migrations.lock();
        let is_known = |job: &MigrationJob| {
            self.exports
                .iter()
                .any(|export| Arc::ptr_eq(&export.progress, &job.progress))
        };
        let new: Vec<Export> = jobs
            .iter()
            .filter(|job| job.kind == JobKind::Export && job.state.is_in_progress() && !is_known(job))
            .filter_map(|job| Export::new(self, job))
            .collect();
        // The oldest comes first.
        self.exports.extend(new.into_iter().rev());
    }

    /// Advances all exports.
    pub(super) fn advance_exports(&mut self, cluster: &Cluster) {
        for index in 0..self.exports.len() {
            let progress = self.exports[index].progress.clone();
            if let Some(state) = self.with_job(&progress, |job| job.state) {
                self.advance_export(cluster, index, state);
            }
        }
    }

    fn advance_export(&mut self, cluster: &Cluster, index: usize, state: JobState) {
        let in_flight = self.in_flight_to_target(index);
        let export = &mut self.exports[index];
        let accepted = export.feed.taken_bytes().saturating_sub(in_flight);
        export.target_progress.update(accepted, in_flight > 0);
        match state {
            JobState::Connecting if self.exports[index].link.is_none() => self.connect(cluster, index),
            JobState::SendingAuth | JobState::SendingEstablish => self.send_request(index, state),
            JobState::WaitingToSnapshot => self.begin_snapshot(index),
            JobState::Snapshotting => {
                self.send_snapshot(index);
                self.adjust_brake(index, state);
            }
            JobState::Streaming => {
                self.send_writes(index);
                self.adjust_brake(index, state);
            }
            JobState::WaitingToPause => {
                self.send_writes(index);
                if !self.try_pause(index) {
                    self.adjust_brake(index, state);
                }
            }
            JobState::FailoverPaused => {
                self.send_writes(index);
                self.check_pause(index, "Timed out before streaming completed", state);
            }
            JobState::ExportGranted => self.check_pause(
                index,
                "Unpaused before migration completed (migration may have succeeded with lost writes)",
                state,
            ),
            _ => {}
        }
        self.check_unsent_bytes(index);
    }

    // ---- the connection ---------------------------------------------------------------------------------------------

    fn connect(&mut self, cluster: &Cluster, index: usize) {
        let server = self.server.clone();
        let uses_tls = server.config.boolean(id::TLS_REPLICATION);
        let progress = self.exports[index].progress.clone();
        let place = {
            let state = cluster.lock(&server.config);
            let node = state.nodes.get(&self.exports[index].target);
            node.map(|node| {
                let port = if uses_tls {
                    node.address.tls_port
                } else {
                    node.address.tcp_port
                };
                (node.address.ip.clone(), port)
            })
        };
        let Some((ip, port)) = place else {
            return self.fail(&progress, "Unable to connect to target node: target node not found");
        };
        self.with_job(&progress, |job| {
            log::notice!(
                "Connecting slot migration {} (ip: {ip}, port {port})",
                job.description()
            );
        });
        if let Err(error) = self.open_link(index, &ip, port, uses_tls) {
            let text = format!("Unable to connect to target node: {}", error_text(&error));
            self.fail(&progress, &text);
        }
    }

    fn open_link(&mut self, index: usize, ip: &str, port: u16, uses_tls: bool) -> std::io::Result<()> {
        let address: IpAddr = ip
            .parse()
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
        let tls = match uses_tls {
            false => None,
            true => Some(
                self.server
                    .tls
                    .create_outgoing_layer(ip)
                    .map_err(std::io::Error::other)?,
            ),
        };
        let socket = Socket::connect_tcp(SocketAddr::new(address, port))?;
        // The option only affects performance.
        let _ = socket.set_nodelay(true);
        let _ = socket.set_buffer_sizes(SOCKET_BUFFER_BYTES);
        let export = &mut self.exports[index];
        (export.client.address, export.client.local_address) =
            (format!("{ip}:{port}").into(), socket.local_name().into());
        export.client.fd = socket.fd();
        let token = self.next_token;
        self.next_token += 1;
        self.reactor.register(token, socket)?;
        let started = match &tls {
            Some(tls) => tls.start_handshake(&mut self.reactor, token),
            None => Ok(()),
        };
        if let Err(error) = started.and_then(|()| self.reactor.request_writable(token)) {
            drop(self.reactor.deregister(token));
            return Err(error);
        }
        export.link = Some(Link {
            token,
            tls,
            acknowledged_ms: unix_ms(),
        });
        // A client that sees the next state of the job finds the connection in CLIENT LIST.
        self.publish_clients();
        Ok(())
    }

    /// Notes that the socket of a target accepts bytes: the connection is established, or bytes in flight were sent.
    pub(super) fn on_target_writable(&mut self, token: usize) {
        let found = self.exports.iter_mut().find(|export| {
            let link = export.link.as_ref();
            !export.is_connected && link.is_some_and(|link| link.token == token)
        });
        let Some(export) = found else {
            // The next turn sends more.
            return;
        };
        let tls = export.link.as_ref().and_then(|link| link.tls.clone());
        let mut input = std::mem::take(&mut export.input);
        // The socket of a refused connection counts as writable.
        let received = self.receive(token, tls.as_ref(), &mut input);
        if let Err(error) = received {
            return self.on_target_lost(token, Some(&error));
        }
        let connected = self.exports.iter_mut().find(|export| {
            let link = export.link.as_ref();
            link.is_some_and(|link| link.token == token)
        });
        let Some(export) = connected else {
            return;
        };
        export.input = input;
        export.is_connected = true;
        let progress = export.progress.clone();
        let has_password = !self.server.config.text(id::PRIMARYAUTH).is_empty();
        self.with_job(&progress, |job| {
            log::notice!("Slot migration {} connection established.", job.description());
            job.set_state(match has_password {
                true => JobState::SendingAuth,
                false => JobState::SendingEstablish,
            });
        });
        self.is_urgent = true;
    }

    fn send_request(&mut self, index: usize, state: JobState) {
        let config = &self.server.config;
        let (request, next) = match state {
            JobState::SendingAuth => {
                let (user, password) = (config.text(id::PRIMARYUSER), config.text(id::PRIMARYAUTH));
                let words: Vec<&[u8]> = match user.is_empty() {
                    true => vec![b"AUTH", &password],
                    false => vec![b"AUTH", &user, &password],
                };
                let mut request = Vec::new();
                write_command(words.into_iter(), &mut request);
                (request, JobState::ReadingAuthReply)
            }
            _ => (self.exports[index].establish_request(), JobState::ReadingEstablishReply),
        };
        self.send_to_target(index, request);
        let progress = self.exports[index].progress.clone();
        self.with_job(&progress, |job| job.set_state(next));
    }

    pub(super) fn send_to_target(&mut self, index: usize, bytes: Vec<u8>) {
        let Some(link) = &self.exports[index].link else {
            return;
        };
        let token = link.token;
        let thread_index = ThreadIndex::new(self.seat.index());
        let metrics = &self.server.stats.metrics;
        metrics.add(thread_index, Counter::SlotExportBytes, bytes.len() as u64);
        if !Self::send(&mut self.reactor, link, bytes) {
            self.on_target_lost(token, None);
        }
    }

    /// Handles the end of a connection to a target. If failover was granted, the job continues: the target may have
    /// taken the slots over.
    pub(super) fn on_target_lost(&mut self, token: usize, error: Option<&std::io::Error>) {
        let found = self.exports.iter_mut().find(|export| {
            let link = export.link.as_ref();
            link.is_some_and(|link| link.token == token)
        });
        let Some(export) = found else {
            return;
        };
        let (link, progress, is_connected) = (export.link.take(), export.progress.clone(), export.is_connected);
        let client = export.client.id;
        self.close(link);
        self.server.forget_link(client);
        let state = self.with_job(&progress, |job| {
            log::notice!("Slot migration {} connection lost", job.description());
            job.state
        });
        match (state, error) {
            (None | Some(JobState::ExportGranted), _) => {}
            (Some(JobState::Connecting), error) if !is_connected => {
                let reason = error.map_or("Connection refused".to_owned(), error_text);
                self.fail(&progress, &format!("Unable to connect to target node: {reason}"));
            }
            _ => self.fail(
                &progress,
                "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information.",
            ),
        }
    }

    // ---- the snapshot and the writes --------------------------------------------------------------------------------

    fn begin_snapshot(&mut self, index: usize) {
        let server = self.server.clone();
        if self.exports.iter().any(|export| export.is_snapshotting) || server.persistence.snapshot.purpose().is_some() {
            return self.log_wait(index, "another snapshot");
        }
        // A script that runs for long would make this thread wait, and the holds of other exports would not end.
        let running = &server.scripting.running;
        if !running.try_exclude_runs_per_tick(Requester::SlotExport) {
            return self.log_wait(index, "running scripts");
        }
        let export = &self.exports[index];
        let progress = export.progress.clone();
        self.with_job(&progress, |job| {
            log::notice!("Beginning snapshot of slot migration {}.", job.description());
        });
        let started = snapshot::start(
            &server,
            &export.slots,
            &export.feed,
            &progress,
            !self.is_attached_to_log,
        );
        server.scripting.running.end_exclusion();
        match started {
            Ok(true) => {
                self.is_attached_to_log = true;
                self.exports[index].is_snapshotting = true;
                self.with_job(&progress, |job| job.set_state(JobState::Snapshotting));
            }
            Ok(false) => {}
            Err(error) => {
                log::warning!("A slot migration failed to start its snapshot: {error}");
                self.fail(&progress, "Failed to start snapshot");
            }
        }
    }

    /// Logs from time to time why the snapshot of an export waits.
    fn log_wait(&mut self, index: usize, reason: &str) {
        let since = self.exports[index].waiting_since.get_or_insert_with(Instant::now);
        if since.elapsed() < WAIT_REPORT_INTERVAL {
            return;
        }
        *since = Instant::now();
        let progress = self.exports[index].progress.clone();
        self.with_job(&progress, |job| {
            log::notice!(
                "Slot migration {} waiting before snapshotting due to {reason}.",
                job.description()
            );
        });
    }

    /// Sends as much of the snapshot as the socket accepts. The writes follow when it is complete.
    fn send_snapshot(&mut self, index: usize) {
        while let Some(link) = &self.exports[index].link {
            if Self::in_flight(&self.reactor, link) >= MAX_IN_FLIGHT_BYTES {
                return;
            }
            let Some(chunk) = self.exports[index].feed.take_snapshot() else {
                break;
            };
            self.send_to_target(index, chunk);
            if let Some(link) = &mut self.exports[index].link {
                link.acknowledged_ms = unix_ms();
            }
        }
        match self.exports[index].feed.snapshot_progress() {
            SnapshotProgress::Running => {}
            SnapshotProgress::Complete => self.begin_streaming(index),
            SnapshotProgress::Failed => {
                self.exports[index].is_snapshotting = false;
                let progress = self.exports[index].progress.clone();
                self.with_job(&progress, |job| {
                    log::warning!("Failed to snapshot slot migration {}", job.description());
                });
                self.fail(&progress, "Failed to perform snapshot");
            }
        }
    }

    fn begin_streaming(&mut self, index: usize) {
        self.exports[index].is_snapshotting = false;
        let progress = self.exports[index].progress.clone();
        self.with_job(&progress, start_streaming);
        self.send_writes(index);
    }

    /// Sends as many of the writes as keep little in flight.
    fn send_writes(&mut self, index: usize) {
        while let Some(link) = &self.exports[index].link
            && Self::in_flight(&self.reactor, link) < MAX_IN_FLIGHT_BYTES
            && let Some(part) = self.exports[index].feed.take_writes()
        {
            self.send_to_target(index, part);
        }
    }

    /// Returns the bytes in flight to a target.
    pub(super) fn in_flight_to_target(&self, index: usize) -> u64 {
        let link = self.exports[index].link.as_ref();
        link.map_or(0, |link| Self::in_flight(&self.reactor, link) as u64)
    }

    /// Returns the bytes of an export that the target has not accepted.
    pub(super) fn unsent_bytes(&self, index: usize) -> u64 {
        self.exports[index].feed.unsent_bytes() + self.in_flight_to_target(index)
    }

    /// Publishes the unsent bytes, and closes the connection if they exceed the limit for replicas.
    fn check_unsent_bytes(&mut self, index: usize) {
        let unsent = self.unsent_bytes(index);
        let limit = self.server.config.output_buffer_limits()[ClientClass::Replica as usize];
        let export = &mut self.exports[index];
        export.progress.unsent_bytes.store(unsent, Ordering::Relaxed);
        let exceeds = |bytes: u64| bytes > 0 && unsent > bytes;
        export.over_soft_limit_since =
            exceeds(limit.soft_bytes).then(|| export.over_soft_limit_since.unwrap_or_else(Instant::now));
        let soft_s = limit.soft_seconds.max(0) as u64;
        let is_too_long = export
            .over_soft_limit_since
            .is_some_and(|since| soft_s > 0 && since.elapsed().as_secs() > soft_s);
        if (exceeds(limit.hard_bytes) || is_too_long)
            && let Some(link) = &export.link
        {
            let token = link.token;
            let hides_user_data = self.server.config.boolean(id::HIDE_USER_DATA_FROM_LOG);
            let line = export.client.log_line(unix_ms(), Default::default(), hides_user_data);
            log::warning!("Client {line} scheduled to be closed ASAP for overcoming of output buffer limits.");
            let thread_index = ThreadIndex::new(self.seat.index());
            let metrics = &self.server.stats.metrics;
            metrics.add(thread_index, Counter::OutputBufferDisconnections, 1);
            self.on_target_lost(token, None);
        }
    }

    // ---- the pause --------------------------------------------------------------------------------------------------

    /// Pauses the writes to the slots, unless too many bytes are unsent. In exclusive mode every admitted write has
    /// ended, and the mark puts PAUSED behind all of them in the stream.
    pub(super) fn try_pause(&mut self, index: usize) -> bool {
        let server = self.server.clone();
        let unsent = self.unsent_bytes(index);
        let is_too_much = self.is_too_much_to_pause(unsent);
        let is_prevented = server.slot_migrations.prevents_pause.load(Ordering::Relaxed);
        // The target of an earlier export may still take the slots over. The end of that hold would end this one.
        let is_held = self.is_granted_to_earlier_target(&self.exports[index].slots);
        if is_prevented
            || is_held
            || is_too_much
            || !server
                .scripting
                .running
                .try_exclude_runs_per_tick(Requester::SlotExport)
        {
            return false;
        }
        let timeout_ms = server.config.unsigned(id::CLUSTER_MANUAL_FAILOVER_TIMEOUT);
        let until_ms = unix_ms() + timeout_ms * PAUSE_FACTOR;
        let export = &mut self.exports[index];
        let (feed, progress) = (export.feed.clone(), export.progress.clone());
        let for_mark = server.clone();
        let all = self.seat.exclusive();
        server.clients.pause.held_slots.hold(&export.slots, until_ms);
        server.propagation.schedule_mark(move |_| {
            feed.append_message(&[b"CLUSTER", b"SYNCSLOTS", b"PAUSED"]);
            for_mark.background.wake_migration_thread();
        });
        drop(all);
        server.scripting.running.end_exclusion();
        export.paused_until_ms = Some(until_ms);
        // The pause takes its hold over.
        export.brake = Brake::default();
        self.with_job(&progress, |job| {
            log::notice!(
                "Pausing writes (remaining_repl_size is {unsent}) to allow slot migration {} to finalize failover.",
                job.description()
            );
            job.set_state(JobState::FailoverPaused);
        });
        true
    }

    /// Returns `true` if so many bytes are unsent that the writes may not be paused.
    pub(super) fn is_too_much_to_pause(&self, unsent: u64) -> bool {
        let most_bytes = self.server.config.integer(id::SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES);
        u64::try_from(most_bytes).is_ok_and(|most_bytes| unsent > most_bytes)
    }

    /// Permits the takeover. The pause lasts until the takeover can have been announced.
    pub(super) fn grant_failover(&mut self, index: usize) {
        let server = self.server.clone();
        let Some(cluster) = &server.cluster else {
            return;
        };
        let export = &mut self.exports[index];
        let until_ms = unix_ms() + TAKEOVER_TIMEOUT.as_millis() as u64;
        export.paused_until_ms = export.paused_until_ms.max(Some(until_ms));
        server.clients.pause.held_slots.extend(until_ms);
        let (progress, slots, target) = (export.progress.clone(), export.slots.clone(), export.target);
        let granted = {
            // The cluster state knows of the permission before the target does.
            let mut state = cluster.lock(&server.config);
            self.with_job(&progress, |job| {
                if state.is_handing_over() {
                    return Err("A replica is taking over from this node");
                }
                if !state.grant_takeover(&slots, target) {
                    return Err("Slots are no longer owned by myself");
                }
                job.set_state(JobState::ExportGranted);
                Ok(())
            })
        };
        match granted {
            Some(Ok(())) => {
                self.exports[index].granted_until = Some(Instant::now() + TAKEOVER_TIMEOUT);
                self.send_to_target(index, message(b"FAILOVER-GRANTED"));
            }
            Some(Err(reason)) => self.fail(&progress, reason),
            None => {}
        }
    }

    pub(super) fn is_granted_to_earlier_target(&self, slots: &SlotSet) -> bool {
        let mut holds = self.granted_holds.iter();
        holds.any(|hold| hold.slots.iter().any(|slot| slots.contains(slot)))
    }

    /// Returns `true` if the cluster state of this node has another owner for any of these slots. The view that
    /// commands use may be older while a script runs.
    fn has_lost_any(&self, index: usize) -> bool {
        let slots = &self.exports[index].slots;
        self.server.cluster.as_ref().is_some_and(|cluster| {
            let state = cluster.lock(&self.server.config);
            slots.iter().any(|slot| state.owner(slot) != Some(state.myself))
        })
    }

    /// Returns `true` if the target of an export has lost the permission to take the slots over, and this node knows
    /// of it if the target has used it.
    fn has_ruled_out_takeover(&mut self, index: usize) -> bool {
        let (server, export) = (self.server.clone(), &mut self.exports[index]);
        let (Some(cluster), Some(until)) = (&server.cluster, export.granted_until) else {
            return true;
        };
        cleanup::has_ruled_out_takeover(&server, cluster, export.target, until, &mut export.inquiry)
    }

    fn check_pause(&mut self, index: usize, text: &str, state: JobState) {
        if !self.exports[index].is_pause_over() {
            return;
        }
        if state == JobState::ExportGranted && (!self.has_ruled_out_takeover(index) || self.has_lost_any(index)) {
            // If the takeover is known, the job ends once commands use a view that says so.
            return;
        }
        let progress = self.exports[index].progress.clone();
        self.with_job(&progress, |job| match state {
            JobState::ExportGranted => log::warning!(
                "Write loss risk! During slot migration {}, new owner did not broadcast ownership before we unpaused \
                 ourselves. Any writes we have recorded since unpausing may be lost!",
                job.description()
            ),
            _ => log::warning!("Slot migration {} timed out during slot failover.", job.description()),
        });
        self.fail(&progress, text);
    }
}
