//! The coordinator: listeners, placement of connections, periodic tasks, shutdown. It takes no part in executing
//! commands.

use std::sync::Arc;
use std::time::Duration;

use weft_reactor::{Event, Reactor, ShutdownSignal, SignalReceiver, Socket, Token};

use crate::keyspace::{big_key_scan, compact, expiry};
use crate::metrics_endpoint::{self, MetricsEndpoint};
use crate::net::listeners::{AcceptedConnection, Listeners};
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::persistence::save;
use crate::replication::ReplicationState;
use crate::runtime::background;
use crate::runtime::defragmentation;
use crate::runtime::process::threads;
use crate::runtime::reclaim;
use crate::runtime::reclaim::Reclaimer;
use crate::runtime::shutdown::ShutdownOptions;
use crate::runtime::tuning;
use crate::runtime::tuning::Tuner;
use crate::state::{BackgroundJob, CoordinatorCommand, Message, Server, WorkerLink};
use weft_base::clock::unix_ms;
use weft_config::id;
use weft_modules::module::server_events::{EventKind, ServerEvent};
use weft_os::atomic::Ordering;
use weft_os::sync::mpsc;
use weft_os::time::Instant;
use weft_scripting::ScriptKind;

/// One window of the rates that INFO shows.
const RATE_WINDOW: Duration = Duration::from_millis(100);
/// The interval of counting memory and commands while the server is idle. With many threads a count takes some 100 µs.
const IDLE_WINDOW: Duration = Duration::from_secs(1);
/// The maximum time between two turns: a pause may end so late that an `Instant` could not hold it.
const MAX_WAIT_MS: u64 = 1000;
/// The interval of the debug lines about the state of the server.
const REPORT_PERIOD: Duration = Duration::from_secs(5);
/// The minimum interval between two walks over the slots that free empty tables.
const EMPTY_TABLES_PERIOD: Duration = Duration::from_secs(5);

/// The coordinator, on the main thread.
pub struct Coordinator {
    server: Arc<Server>,
    reactor: Reactor,
    listeners: Listeners,
    /// The metrics endpoint, if it is enabled.
    metrics_endpoint: Option<MetricsEndpoint>,
    commands_receiver: mpsc::Receiver<CoordinatorCommand>,
    signals: SignalReceiver,
    tuner: Tuner,
    next_cron: Instant,
    /// `true` if data were being loaded in the last turn, or if there was none yet.
    has_lacked_data: bool,
    next_tuning: Instant,
    next_report: Instant,
    next_rates: Instant,
    /// `true` if memory was counted at least once.
    has_counted_memory: bool,
    /// The progress counter when memory and commands were counted last.
    last_progress: u64,
    /// The time at which memory and commands were counted last.
    last_count: Instant,
    /// The number of commands at that time.
    last_command_count: u64,
    reclaimer: Reclaimer,
    next_reclaim: Instant,
    /// The next time at which empty tables may be freed.
    next_free_of_tables: Instant,
    /// How often scripts and libraries were flushed when interpreters were dropped last.
    last_flushes: [u64; 2],
    /// The beginning of the last check of the certificate files.
    last_reload: Instant,
    /// `true` if a signal has requested shutdown.
    has_shutdown_signal: bool,
}

impl Coordinator {
    /// Creates a coordinator that accepts connections from `listeners`, whose sockets are in `reactor`. `signals` wake
    /// it.
    pub fn new(
        server: Arc<Server>,
        reactor: Reactor,
        signals: SignalReceiver,
        listeners: Listeners,
        metrics_endpoint: Option<MetricsEndpoint>,
        orders: mpsc::Receiver<CoordinatorCommand>,
    ) -> Self {
        let tuner = Tuner::new(&server);
        Coordinator {
            server,
            reactor,
            listeners,
            metrics_endpoint,
            commands_receiver: orders,
            signals,
            tuner,
            next_cron: Instant::now(),
            has_lacked_data: true,
            next_tuning: Instant::now(),
            next_report: Instant::now(),
            next_rates: Instant::now(),
            has_counted_memory: false,
            last_progress: u64::MAX,
            last_count: Instant::now(),
            last_command_count: 0,
            reclaimer: Reclaimer::new(),
            next_reclaim: Instant::now(),
            next_free_of_tables: Instant::now(),
            last_flushes: [0; 2],
            last_reload: Instant::now(),
            has_shutdown_signal: false,
        }
    }

    /// Runs until shutdown. Closes the sockets and returns the rest of the listeners.
    ///
    /// # Errors
    /// If waiting for events fails.
    pub fn run(mut self) -> std::io::Result<(ShutdownOptions, Listeners)> {
        let mut events = Vec::new();
        loop {
            let mut wake_at = self.run_periodic_tasks();
            self.server.end_due_pause(unix_ms());
            self.handle_signal();
            if let Some(how) = self.server.lifecycle.shutdown.commit() {
                self.signals.set_shutting_down(true);
                if let Some(endpoint) = self.metrics_endpoint {
                    endpoint.stop();
                }
                return Ok((how, self.listeners));
            }
            if let Some(end_ms) = self.server.clients.pause.next_end_ms() {
                let left = Duration::from_millis(end_ms.saturating_sub(unix_ms()).min(MAX_WAIT_MS));
                wake_at = wake_at.min(Instant::now() + left);
            }
            let timeout = wake_at.saturating_duration_since(Instant::now());
            events.clear();
            let accepts = self.server.config.unsigned(id::MAX_NEW_CONNECTIONS_PER_CYCLE) as usize;
            self.reactor.wait(Some(timeout), &mut events, accepts)?;
            for event in events.drain(..) {
                match event {
                    Event::Accepted(token, socket) => self.place_connection(token, socket),
                    Event::AcceptFailed(_, error) => log::warning!("Accepting client connection: {error}"),
                    // The coordinator has no connections.
                    Event::Readable(_) | Event::Writable(_) | Event::SendFailed(_) | Event::Closed(_) => {}
                }
            }
            self.execute_commands();
        }
    }

    /// Runs the tasks that are due, and returns the time at which the next one is due.
    fn run_periodic_tasks(&mut self) -> Instant {
        let now = Instant::now();
        let lacks_data = self.server.lacks_data();
        if std::mem::replace(&mut self.has_lacked_data, lacks_data) && !lacks_data {
            // What has expired before is deleted as soon as the data are there.
            self.next_cron = now;
        }
        if now >= self.next_cron {
            self.next_cron = now + self.cron_period();
            self.cron();
            self.log_report(now);
            let (metrics, elapsed) = (&self.server.stats.metrics, now.elapsed());
            for (counter, delta) in [
                (Counter::Turns, 1),
                (Counter::CronNs, elapsed.as_nanos() as u64),
                (Counter::BusyNs, elapsed.as_nanos() as u64),
            ] {
                metrics.add(metrics.coordinator_row, counter, delta);
            }
        }
        if !self.tuner.is_active(&self.server) {
            self.tuner.forget_windows(now);
            return self.next_cron;
        }
        if now >= self.next_tuning {
            self.next_tuning = now + tuning::WINDOW;
            self.tuner.sample_and_apply(&self.server, now);
        }
        self.next_cron.min(self.next_tuning)
    }

    /// Handles a signal: a request for the configured shutdown, or for a report.
    fn handle_signal(&mut self) {
        answer_report_request(&self.signals);
        let server = &self.server;
        if let Some(shutdown) = take_shutdown_signal(server, &self.signals) {
            server.lifecycle.shutdown.record_signal(shutdown);
            self.has_shutdown_signal = true;
        }
        if !server.stats.history.is_cron_paused.load(Ordering::Relaxed)
            && let Some(configured) = server.lifecycle.shutdown.take_signalled()
        {
            let how = match server.lacks_data() {
                true => ShutdownOptions::while_loading(),
                false => configured,
            };
            save::begin_shutdown(server, how);
        }
        if self.has_shutdown_signal && server.lifecycle.shutdown.is_idle() {
            // The shutdown was aborted: the next signal counts as a first one again.
            self.has_shutdown_signal = false;
            self.signals.set_shutting_down(false);
        }
    }

    fn execute_commands(&mut self) {
        while let Ok(order) = self.commands_receiver.try_recv() {
            match order {
                CoordinatorCommand::Listen(answer) => {
                    let listens = self
                        .listeners
                        .listen_tcp(&self.server.config, &mut self.reactor)
                        .is_ok();
                    // The requesting thread may have given up waiting.
                    let _ = answer.send(listens);
                }
                CoordinatorCommand::ListenForMetrics(answer) => {
                    metrics_endpoint::apply_configuration(&self.server, &mut self.metrics_endpoint, answer);
                }
            }
        }
    }

    fn cron_period(&self) -> Duration {
        let hz = self.server.config.integer(id::HZ).clamp(1, 500) as u64;
        Duration::from_millis(1000 / hz)
    }

    /// Lets modules know of the regular tasks.
    fn send_cron_event(&self) {
        let server = &self.server;
        server.send_module_event(EventKind::CronLoop, || ServerEvent::CronLoop {
            hz: server.config.integer(id::HZ).clamp(1, 500) as i32,
        });
    }

    /// Refuses a connection or gives it to a worker.
    fn place_connection(&mut self, token: Token, socket: Socket) {
        let is_tls = self.listeners.is_tls(token);
        let server = &self.server;
        server
            .stats
            .metrics
            .add(server.stats.metrics.coordinator_row, Counter::ConnectionsReceived, 1);
        if let Some(refusal) = limit_refusal(server) {
            server
                .stats
                .metrics
                .add(server.stats.metrics.coordinator_row, Counter::ConnectionsRejected, 1);
            // Before the TLS handshake nothing can be sent to the client.
            if !is_tls {
                refuse_connection(&socket, refusal);
            }
            return;
        }
        let mut refusal = None;
        if self.is_refused_by_protected_mode() && !is_local(&socket) {
            server
                .stats
                .metrics
                .add(server.stats.metrics.coordinator_row, Counter::ConnectionsRejected, 1);
            if !is_tls {
                refuse_connection(&socket, PROTECTED_MODE.as_bytes());
                return;
            }
            refusal = Some(PROTECTED_MODE);
        }
        if !socket.is_unix() {
            let seconds = server.config.integer(id::TCP_KEEPALIVE).max(0) as u32;
            // Both are only optimisations; a socket that refuses them still works.
            let _ = socket.set_nodelay(true);
            if seconds > 0 {
                let _ = socket.set_keepalive(seconds);
            }
        }
        let Some(link) = choose_worker(server) else {
            return;
        };
        server.clients.connections.fetch_add(1, Ordering::Relaxed);
        link.connections.fetch_add(1, Ordering::Relaxed);
        link.send(Message::NewConnection(AcceptedConnection {
            socket,
            is_tls,
            refusal,
        }));
    }

    /// Returns `true` if protected mode refuses the connection: without a password, only this machine may connect.
    fn is_refused_by_protected_mode(&self) -> bool {
        let config = &self.server.config;
        config.boolean(id::PROTECTED_MODE) && self.server.acl.default_user_needs_no_password()
    }

    fn cron(&mut self) {
        if self.server.stats.history.is_cron_paused.load(Ordering::Relaxed) {
            return;
        }
        if !self.is_idle() {
            self.sample_memory();
            self.last_command_count = self.server.stats.metrics.commands_processed();
        }
        self.send_cron_event();
        self.sample_rates();
        self.reclaim_memory();
        defragmentation::start_if_enabled(&self.server);
        self.reload_certificates_if_due();
        self.drop_flushed_interpreters();
        let server = &self.server;
        server.keyspace.pinned.end_expired_reservations(&server.keyspace.slots);
        server.keyspace.pinned.run_long_waiting();
        if server.lacks_data() {
            // What is there belongs to the loading thread, and is not what should be saved.
            return;
        }
        self.scan_big_keys();
        if !server.must_keep_data_files() {
            save::start_due_save(server);
            crate::persistence::aof::start_due_rewrite(server);
        }
        let now_ms = unix_ms();
        let is_active = server.background.active_expire.load(Ordering::Relaxed);
        if is_active {
            let is_primary = || !server.replication.is_replica();
            server.keyspace.local_expiry.clear_if(is_primary);
        }
        let may_expire = is_active && !server.clients.pause.are_writes_paused(now_ms);
        let imports = server.replication.state_bits().contains(ReplicationState::IMPORT_MODE);
        let some_are_due = || match server.replication.is_replica() {
            true => server.keyspace.local_expiry.is_due(now_ms),
            false if imports => false,
            false => {
                let keyspace = &server.keyspace;
                keyspace.counts.has_any_expiry()
                    && expiry::queue_due(&keyspace.slots, &server.background.due_slots, now_ms) > 0
            }
        };
        if may_expire && some_are_due() {
            let active = server.lifecycle.active_workers.load(Ordering::Relaxed).max(1);
            for worker in server.workers.iter().take(active) {
                worker.send(Message::ExpireDue);
            }
        }
    }

    /// Returns `true` if nothing has happened since memory and commands were counted, and if that was recently.
    fn is_idle(&mut self) -> bool {
        let metrics = &self.server.stats.metrics;
        let progress = metrics.sum(Counter::Batches) + metrics.sum(Counter::NetInputBytes);
        if progress == self.last_progress && self.last_count.elapsed() < IDLE_WINDOW {
            return true;
        }
        (self.last_progress, self.last_count) = (progress, Instant::now());
        false
    }

    fn log_report(&mut self, now: Instant) {
        if now < self.next_report {
            return;
        }
        self.next_report = now + REPORT_PERIOD;
        let bytes = self.server.memory.used_bytes();
        let clients = self.server.clients.connections.load(Ordering::Relaxed);
        log::debug!("Total: {clients} clients connected (0 replicas), {bytes} bytes in use");
    }

    fn sample_rates(&mut self) {
        let now = Instant::now();
        if now < self.next_rates {
            return;
        }
        self.next_rates = now + RATE_WINDOW;
        let metrics = &self.server.stats.metrics;
        let totals = [
            self.last_command_count,
            metrics.sum(Counter::NetInputBytes),
            metrics.sum(Counter::NetOutputBytes),
            metrics.sum(Counter::Turns),
            metrics.sum(Counter::BusyNs),
        ];
        self.server.stats.history.rates.sample(now, totals);
    }

    /// Makes all threads that run scripts drop their interpreters from before a flush, if there was one.
    fn drop_flushed_interpreters(&mut self) {
        let server = &self.server;
        let flushes = [ScriptKind::Eval, ScriptKind::Function].map(|kind| server.scripting.flushes(kind));
        if flushes != self.last_flushes {
            self.last_flushes = flushes;
            for worker in &server.workers {
                worker.send(Message::ScriptsFlushed);
            }
            background::drop_flushed_interpreters(server);
        }
    }

    /// Lets a thread check periodically if the certificate files have changed. It may wait for the disk, so it is none
    /// of the threads that have other work.
    fn reload_certificates_if_due(&mut self) {
        let period = Duration::from_secs(self.server.config.unsigned(id::TLS_AUTO_RELOAD_INTERVAL));
        if period.is_zero() || self.last_reload.elapsed() < self.server.tls.reload_interval(period) {
            return;
        }
        self.last_reload = Instant::now();
        if self.server.tls.current().is_none() || !self.server.tls.try_begin_reload() {
            return;
        }
        let server = self.server.clone();
        let reload = move || {
            server.tls.reload_if_changed(&server.config);
            server.tls.end_reload();
        };
        let spawned = weft_os::thread::Builder::new()
            .name("weft-tls".to_owned())
            .spawn(reload);
        if let Err(error) = spawned {
            self.server.tls.end_reload();
            log::warning!("No thread can check if the TLS files have changed: {error}");
        }
    }

    /// Frees the empty tables of databases above 0, if there may be some.
    fn free_empty_tables_if_due(&mut self, now: Instant) {
        if now < self.next_free_of_tables {
            return;
        }
        self.next_free_of_tables = now + EMPTY_TABLES_PERIOD;
        if self.server.keyspace.counts.take_has_empty_tables() {
            let job: BackgroundJob = Box::new(|_, seat| compact::free_empty_tables(seat));
            // The threads end only at shutdown.
            let _ = self.server.background.long_commands.send(job);
        }
    }

    /// Performs the next step of a scan for big keys on a background thread, if there is a scan.
    fn scan_big_keys(&self) {
        let server = &self.server;
        if !server.stats.big_keys.take_step_turn() {
            return;
        }
        let round = self.cron_period();
        let job: BackgroundJob = Box::new(move |server, seat| {
            let big_keys = &server.stats.big_keys;
            if let Some(mut step) = big_keys.begin_step(round) {
                big_key_scan::run_step(seat, &server.keyspace.counts, &mut step);
                big_keys.end_step(step, unix_ms());
            }
        });
        // The threads end only at shutdown.
        let _ = server.background.long_commands.send(job);
    }

    fn reclaim_memory(&mut self) {
        let now = Instant::now();
        self.free_empty_tables_if_due(now);
        if now < self.next_reclaim {
            return;
        }
        self.next_reclaim = now + reclaim::PERIOD;
        let is_limited = self.server.config.unsigned(id::MAXMEMORY) > 0;
        if let Some(reclaim) = self.reclaimer.next_reclaim(now, is_limited) {
            let job: BackgroundJob = Box::new(move |_, seat| {
                if reclaim.needs_compaction() {
                    // Twice, because the second pass fills the slabs that the first one emptied in part.
                    compact::compact(seat);
                    compact::compact(seat);
                }
                if let Err(reason) = reclaim.purge() {
                    log::warning!("Free memory could not be given back: {reason}");
                }
            });
            // The threads end only at shutdown.
            let _ = self.server.background.long_commands.send(job);
        }
    }

    /// Reads the allocator's count. While there is a memory limit, a worker does this instead; it then counts exactly
    /// and evicts if necessary. Only the first count, before any client is served, never waits for a worker.
    fn sample_memory(&mut self) {
        let server = &self.server;
        if self.has_counted_memory && server.config.unsigned(id::MAXMEMORY) > 0 {
            server.request_memory_sample();
        } else {
            self.has_counted_memory = server.memory.calibrate().is_some();
        }
    }
}

/// Takes the signal that was received, if any, logs it, and returns the configured options of the shutdown that it
/// requests.
pub fn take_shutdown_signal(server: &Server, signals: &SignalReceiver) -> Option<ShutdownOptions> {
    let signal = signals.take()?;
    match server.lacks_data() {
        true => log::warning!("Received shutdown signal during loading, scheduling shutdown."),
        false => log::warning!("Received {} scheduling shutdown...", signal.name()),
    }
    let options = match signal {
        ShutdownSignal::Interrupt => id::SHUTDOWN_ON_SIGINT,
        ShutdownSignal::Terminate => id::SHUTDOWN_ON_SIGTERM,
    };
    Some(ShutdownOptions::from_options(server.config.integer(options)))
}

/// Logs what all threads are doing, if a signal has requested that.
pub fn answer_report_request(signals: &SignalReceiver) {
    if signals.take_report_request() {
        log::warning!("Received SIGALRM");
        threads::log_threads();
    }
}

/// Returns the active worker with the fewest connections that is not stalled. If all active workers are stalled, one
/// more becomes active: a client that connects now can end a script that does not end, or the process.
fn choose_worker(server: &Server) -> Option<&WorkerLink> {
    let now_ns = server.lifecycle.started.elapsed().as_nanos() as u64;
    let active = server.lifecycle.active_workers.load(Ordering::Relaxed).max(1);
    let (active, inactive) = server.workers.split_at(active.min(server.workers.len()));
    let connections = |link: &&WorkerLink| link.connections.load(Ordering::Relaxed);
    let is_serving = |link: &&WorkerLink| !link.is_stalled(now_ns);
    if let Some(link) = active.iter().filter(is_serving).min_by_key(connections) {
        return Some(link);
    }
    if let Some(index) = inactive.iter().position(|link| is_serving(&link)) {
        tuning::set_active_workers(server, active.len() + index + 1);
        return inactive.get(index);
    }
    active.iter().min_by_key(connections)
}

/// Returns the error for one more client if there are as many connections as `maxclients` permits. Those of the cluster
/// bus count, too.
fn limit_refusal(server: &Server) -> Option<&'static [u8]> {
    let max = usize::try_from(server.config.unsigned(id::MAXCLIENTS)).unwrap_or(usize::MAX);
    let clients = server.clients.connections.load(Ordering::Relaxed);
    match &server.cluster {
        Some(cluster) if clients + cluster.connection_count() >= max => {
            Some(b"-ERR max number of clients + cluster connections reached\r\n")
        }
        None if clients >= max => Some(b"-ERR max number of clients reached\r\n"),
        Some(_) | None => None,
    }
}

/// Sends the reason for a refused connection, as far as the socket accepts it.
fn refuse_connection(socket: &Socket, text: &[u8]) {
    use std::io::Write;
    // The peer may have disconnected already.
    let _ = match socket {
        Socket::Tcp(stream) => (&*stream).write_all(text),
        Socket::Unix(stream) => (&*stream).write_all(text),
    };
}

/// Returns `true` if the peer is on this machine.
fn is_local(socket: &Socket) -> bool {
    let peer = socket.peer_name();
    socket.is_unix() || peer.starts_with("127.") || peer.starts_with("[::1]")
}

/// The error for remote clients in protected mode.
const PROTECTED_MODE: &str = "-DENIED Weft is running in protected mode because protected mode is enabled and no password is set for the default user. In this mode connections are only accepted from the loopback interface. If you want to connect from external computers, either set a password for the default user, or switch protected mode off with CONFIG SET protected-mode no from the loopback interface, or start the server with '--protected-mode no'.\r\n";
