//! Starts the server from its command line, and shuts it down.
//!
//! ```text
//!   configuration ─▶ log ─▶ supervisor, daemon ─▶ crash reports ─▶ limits ─▶ sockets ─▶ pid file
//!        │ stderr            └─ no other thread before here              │
//!        ▼ exit 1                                                        ▼
//!                    exit 0 ◀─ files removed ◀─ workers joined ◀─ coordinator ◀─ threads
//! ```

use std::ffi::{CString, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use weft_base::ThreadIndex;
use weft_reactor::{AlternateStack, Reactor, SignalReceiver};

use crate::check;
use crate::cluster_node::bus::ClusterBus;
use crate::commands::permission;
use crate::dispatch::apply_threads;
use crate::dispatch::modules;
use crate::keyspace::hash::{KeyHasher, secrets_from_seed};
use crate::keyspace::lazyfree::LazyFree;
use crate::keyspace::{Exclusive, Keyspace};
use crate::metrics_endpoint::{MetricsEndpoint, OpenEndpoint};
use crate::net::listeners::{ListenError, ListenerKinds, Listeners};
use crate::notify::messages::update_event_hook;
use crate::observability::log::{self, LogDestination};
use crate::observability::memory;
use crate::observability::syslog::{self, Syslog};
use crate::observability::used_memory::UsedMemory;
use crate::persistence::{aof, rdb_file};
use crate::replication::{Endpoint, ReplicationState};
use crate::runtime::config_changes::configure_log;
use crate::runtime::coordinator::{self, Coordinator};
use crate::runtime::process::cpus::CpuLists;
use crate::runtime::process::pid_file::PidFile;
use crate::runtime::process::supervisor::Supervisor;
use crate::runtime::process::{banner, crash, daemon, kernel, oom_score, open_files, restart, title};
use crate::runtime::shutdown::ShutdownOptions;
use crate::runtime::worker::Worker;
use crate::state::spare_cores::max_helping_threads;
use crate::state::{BackgroundJob, CoordinatorCommand, Message, PrimaryThreadCommand, Server, ServerParts};
use weft_acl::Acl;
use weft_cluster::Cluster;
use weft_config::{Config, ParameterId, StartAction, id};
use weft_os::sync::mpsc;
use weft_os::thread::JoinHandle;
use weft_os::time::Instant;
use weft_scripting::ScriptKind;
use weft_tls::TlsMaterial;

use configuration::{check_configured_files, configure_collation, load_users, prepare_config, read_tls_material};

/// The time that clients have to receive pending replies when the server ends.
const OUTPUT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// The interval at which a cluster node that loads its data checks if a signal was received.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The error of a failed start or shutdown; the reason was logged.
#[derive(Debug)]
pub(crate) struct StartFailure;

impl From<ListenError> for StartFailure {
    fn from(_: ListenError) -> StartFailure {
        StartFailure
    }
}

/// Runs the process.
pub fn run() -> ExitCode {
    log::install();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    restart::record_invocation(&arguments);
    let started = StartAction::parse(&arguments).and_then(|action| match action {
        StartAction::PrintText(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        StartAction::CheckDump(rest) => Ok(check::check_dump(&program_name(&arguments), &rest).into()),
        StartAction::CheckAppendOnly(rest) => Ok(check::check_append_only(&program_name(&arguments), &rest).into()),
        StartAction::CheckSystem => {
            let (report, well) = weft_config::system_check::run();
            print!("{report}");
            Ok(exit_code(well))
        }
        StartAction::CheckConfiguration(command_line) => {
            let config = prepare_config(Config::check(&command_line)?)?;
            Ok(exit_code(check_configured_files(&config).is_ok()))
        }
        StartAction::RunServer(command_line) => {
            weft_reactor::record_start_mappings();
            let config = prepare_config(Config::load(&command_line)?)?;
            Ok(exit_code(run_server(config, arguments.len() > 1).is_ok()))
        }
    });
    started.unwrap_or_else(|error| {
        eprintln!("{error}");
        let context = error.context();
        if !context.is_empty() {
            eprintln!("{context}");
        }
        ExitCode::FAILURE
    })
}

fn program_name(arguments: &[OsString]) -> String {
    arguments
        .first()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn exit_code(is_success: bool) -> ExitCode {
    if is_success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a server from start to end. `configured` is `true` if there was a configuration file or an argument.
fn run_server(config: Config, is_configured: bool) -> Result<(), StartFailure> {
    memory::track_common_arena();
    let (supervisor, daemonized) = setup_process(&config)?;
    title::set_process_title(&config);
    configure_collation(&config)?;
    banner::log_start(is_configured);
    crash::install_crash_reports(&config);
    // Without a stack of its own, a crash on this thread is reported without the backtrace.
    let _stack = AlternateStack::install();
    let parts = prepare_process(&config, supervisor, daemonized)?;
    let shutdown = run_threads(config, parts)?;
    if shutdown.is_failure {
        return Err(StartFailure);
    }
    let Some(delay) = shutdown.restart_after else {
        return Ok(());
    };
    restart::execute_again(delay)
        .map(|_never| ())
        .map_err(log_fatal("cannot execute the program again"))
}

/// Runs a server in a simulation, without what belongs to the whole process. Returns `true` after an orderly end.
#[cfg(feature = "simulated")]
pub(crate) fn run_simulated(arguments: &[OsString]) -> bool {
    let Ok(StartAction::RunServer(command_line)) = StartAction::parse(arguments) else {
        return false;
    };
    let Ok(config) = Config::load(&command_line) else {
        return false;
    };
    log::open(LogDestination {
        file: path_parameter(&config, id::LOGFILE),
        syslog: None,
    });
    configure_log(&config);
    let parts = Reactor::new().ok().and_then(|mut reactor| {
        Some(ProcessParts {
            supervisor: Supervisor::find("no"),
            cpus: CpuLists::read(&config),
            workers: config.integer(id::IO_THREADS).max(1) as usize,
            signals: SignalReceiver::detached(),
            tls: None,
            listeners: Listeners::open(&config, &mut reactor).ok()?,
            metrics_endpoint: OpenEndpoint::open(&config).ok()?,
            reactor,
            pid_file: None,
        })
    });
    parts.is_some_and(|parts| run_threads(config, parts).is_ok())
}

/// Opens the log and sets up the process: the supervisor, or daemon mode, which the second part of the result reports.
/// There must be no other thread yet.
fn setup_process(config: &Config) -> Result<(Supervisor, bool), StartFailure> {
    configure_log_file(config);
    kernel::warn_about_memory();
    kernel::configure_huge_pages(config);
    let supervisor = Supervisor::find(config.choice(id::SUPERVISED));
    let daemonizes = config.boolean(id::DAEMONIZE) && !supervisor.is_supervised();
    if daemonizes {
        daemon::leave_terminal().map_err(log_fatal("cannot run in the background"))?;
    }
    Ok((supervisor, daemonizes))
}

/// The process-wide parts of a server.
struct ProcessParts {
    supervisor: Supervisor,
    cpus: CpuLists,
    workers: usize,
    reactor: Reactor,
    signals: SignalReceiver,
    tls: Option<TlsMaterial>,
    listeners: Listeners,
    metrics_endpoint: Option<OpenEndpoint>,
    pid_file: Option<PidFile>,
}

fn prepare_process(config: &Config, supervisor: Supervisor, is_daemon: bool) -> Result<ProcessParts, StartFailure> {
    let cpus = CpuLists::read(config);
    let workers = worker_count(config, &cpus);
    raise_open_file_limit(config, workers)?;
    let mut reactor = Reactor::new().map_err(log_fatal("cannot watch sockets"))?;
    let signals = SignalReceiver::install(reactor.waker()).map_err(log_fatal("cannot handle signals"))?;
    if let Ok(name) = CString::new(rdb_file::temporary_name()) {
        signals.set_unfinished_file(name);
    }
    log::notice!("monotonic clock: POSIX clock_gettime");
    banner::log_banner(config);
    kernel::warn_about_backlog(config);
    let tls = read_tls_material(config)?;
    let listeners = Listeners::open(config, &mut reactor)?;
    let metrics_endpoint = OpenEndpoint::open(config)?;
    let pid_file = PidFile::create(path_parameter(config, id::PIDFILE), is_daemon);
    Ok(ProcessParts {
        supervisor,
        cpus,
        workers,
        reactor,
        signals,
        tls,
        listeners,
        metrics_endpoint,
        pid_file,
    })
}

/// Runs the threads of the server, from open sockets to closed ones. Returns the options of the shutdown.
fn run_threads(config: Config, parts: ProcessParts) -> Result<ShutdownOptions, StartFailure> {
    let (jobs_in, jobs_out) = crate::runtime::background::create_queue();
    let (scripts_in, scripts_out) = crate::runtime::background::create_queue();
    let (orders_in, orders_out) = mpsc::channel();
    parts.cpus.use_background_cpus();
    let (supply_in, supply_out) = mpsc::channel();
    let server = create_server(config, parts.workers, jobs_in, scripts_in, orders_in, supply_in)?;
    server.background.set_coordinator_waker(parts.reactor.waker());
    if let Some(material) = parts.tls {
        server.tls.install(material);
    }
    if server.config.modules().is_empty() {
        load_users(&server.acl, &server.config)?;
    }
    server
        .replication
        .set_state_bits(ReplicationState::IMPORT_MODE, server.config.boolean(id::IMPORT_MODE));
    // Workers take the first thread indexes; the tuner relies on that.
    let made = create_workers(&server)?;
    log::notice!("Server initialized");
    // Before the load, so that a load that fails has the last word.
    log::notice!("Allocator options: {}", weft_reactor::allocator_options());
    server.persistence.dumps.record_save(server.lifecycle.started_unix_s, 0);
    server.record_startup_memory();
    let (made, mut threads) = load_modules(&server, &parts.cpus, made)?;
    let loading = LoadingThread::begin(&server)?;
    let metrics_endpoint = start_metrics_endpoint(&server, parts.metrics_endpoint)?;
    // The ownership of slots depends on the loaded data, and must be settled before the first client.
    let loading = if server.cluster.is_none() {
        Some(loading)
    } else if loading.finish_unless(|| is_shutdown_requested(&server, &parts.signals))? {
        None
    } else {
        log::notice!("User requested shutdown...");
        parts.supervisor.notify_stopping();
        if let Some(endpoint) = metrics_endpoint {
            endpoint.stop();
        }
        leave_process(server, parts.pid_file, parts.listeners);
        return Ok(ShutdownOptions::while_loading());
    };
    let bus = ClusterBus::prepare(&server).map_err(log_fatal("cannot make the cluster bus"))?;
    crate::runtime::background::start(&server, jobs_out, scripts_out)
        .map_err(log_fatal("cannot start the background threads"))?;
    parts.cpus.use_server_cpus();
    if let Some(made) = made {
        threads = start_workers(made)?;
    }
    crate::replication::replica::start(&server).map_err(log_fatal("cannot start the thread of replication"))?;
    crate::replication::primary::start(&server, supply_out)
        .map_err(log_fatal("cannot start the thread that serves replicas"))?;
    crate::slot_migration::engine::start(&server).map_err(log_fatal("cannot start the thread of slot migrations"))?;
    crate::runtime::watchdog::start(&server).map_err(log_fatal("cannot start the watchdog"))?;
    if let Some(bus) = bus {
        bus.start().map_err(log_fatal("cannot start the cluster bus"))?;
    }
    let (supervisor, kinds) = (Arc::new(parts.supervisor), parts.listeners.kinds());
    match loading {
        None => {
            start_configured_replication(&server);
            start_serving(&server, kinds, &supervisor);
        }
        Some(loading) => {
            let (server, supervisor) = (server.clone(), supervisor.clone());
            loading.and_then(move || start_serving(&server, kinds, &supervisor))?;
        }
    }
    let coordinator = Coordinator::new(
        server.clone(),
        parts.reactor,
        parts.signals,
        parts.listeners,
        metrics_endpoint,
        orders_out,
    );
    let (how, listeners) = coordinator.run().map_err(log_fatal("the coordinator stopped"))?;
    stop_threads(&server, &how, &supervisor, threads);
    leave_process(server, parts.pid_file, listeners);
    Ok(how)
}

/// The workers that do not run yet, if any, or the threads of those that run.
type WorkersAfterLoad = (Option<Vec<Worker>>, Vec<JoinHandle<()>>);

/// Loads the modules of the configuration, if there are any. Their code runs on a worker, and data files and users may
/// name what they add. So the workers are started before: returns their threads, or the workers that do not run yet.
fn load_modules(server: &Arc<Server>, cpus: &CpuLists, made: Vec<Worker>) -> Result<WorkersAfterLoad, StartFailure> {
    modules::lifecycle::prepare(server);
    if server.config.modules().is_empty() {
        return Ok((Some(made), Vec::new()));
    }
    cpus.use_server_cpus();
    let threads = start_workers(made)?;
    cpus.use_background_cpus();
    modules::lifecycle::load_configured(server).map_err(|modules::lifecycle::ModuleFailed| StartFailure)?;
    load_users(&server.acl, &server.config)?;
    Ok((None, threads))
}

/// Returns `true` if a signal has requested shutdown. There is no coordinator yet that handles signals.
fn is_shutdown_requested(server: &Server, signals: &SignalReceiver) -> bool {
    coordinator::answer_report_request(signals);
    coordinator::take_shutdown_signal(server, signals).is_some()
}

/// Removes the files of the process at its end.
fn leave_process(server: Arc<Server>, pid_file: Option<PidFile>, listeners: Listeners) {
    if let Some(pid_file) = pid_file {
        pid_file.remove();
    }
    listeners.remove_socket_file();
    log::warning!("Weft is now ready to exit, bye bye...");
    // Freeing all values one by one would take long without benefit.
    std::mem::forget(server);
}

/// Runs a server on threads of this process, for the fuzz targets. It reports no crashes.
pub(crate) fn run_in_background(config: Config) -> std::io::Result<JoinHandle<Result<(), StartFailure>>> {
    weft_os::thread::Builder::new().spawn(move || {
        let parts = prepare_process(&config, Supervisor::find("no"), false)?;
        run_threads(config, parts).map(drop)
    })
}

/// Starts the metrics endpoint, if it is enabled. The load has begun, so that it never reports a server as ready that
/// has not loaded its data.
fn start_metrics_endpoint(
    server: &Arc<Server>,
    endpoint: Option<OpenEndpoint>,
) -> Result<Option<MetricsEndpoint>, StartFailure> {
    endpoint
        .map(|endpoint| endpoint.start(server))
        .transpose()
        .map_err(log_fatal("cannot start the metrics endpoint"))
}

/// Starts to follow the primary that the configuration names.
fn start_configured_replication(server: &Arc<Server>) {
    if let Some(cluster) = &server.cluster {
        return crate::cluster_node::topology::apply_loaded_role(server, cluster);
    }
    if let Some(primary) = server.config.primary() {
        server.replication.start_following(
            Endpoint {
                host: primary.host,
                port: primary.port,
            },
            false,
        );
        crate::runtime::config_changes::update_local_expiry_hook(server);
    }
}

/// Starts to serve clients, after everything is loaded.
fn start_serving(server: &Server, kinds: ListenerKinds, supervisor: &Supervisor) {
    announce_ready(server, kinds, supervisor);
}

/// The thread that loads the data files. The gate is opened at intervals, so that clients get `-LOADING`.
struct LoadingThread {
    thread: JoinHandle<Result<(), StartFailure>>,
    /// The thread sends one message, when it has exclusive mode. Its end disconnects the channel.
    progress: mpsc::Receiver<()>,
}

impl LoadingThread {
    /// Starts loading. When this returns, the thread has exclusive mode, so clients never see a partly loaded data set.
    fn begin(server: &Arc<Server>) -> Result<LoadingThread, StartFailure> {
        let _ = server.persistence.replay.set(crate::dispatch::replay::replay_commands);
        let _ = server
            .persistence
            .call_modules
            .set(crate::dispatch::modules::call_modules);
        server.replication.set_state_bits(ReplicationState::LOADING, true);
        let (alone, progress) = mpsc::sync_channel(1);
        let of_thread = server.clone();
        let thread = weft_os::thread::Builder::new()
            .name("weft-load".to_owned())
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || load_exclusively(&of_thread, &alone))
            .map_err(log_fatal("cannot start the thread that loads data"))?;
        // If the thread has ended already, it has logged the reason.
        let _ = progress.recv();
        Ok(LoadingThread { thread, progress })
    }

    /// Waits for the thread to end.
    fn finish(self) -> Result<(), StartFailure> {
        self.thread.join().unwrap_or(Err(StartFailure))
    }

    /// Waits for the thread to end, or until `gives_up` returns `true`. The thread goes on then, and the result is
    /// `false`.
    fn finish_unless(self, mut gives_up: impl FnMut() -> bool) -> Result<bool, StartFailure> {
        while self.progress.recv_timeout(SIGNAL_POLL_INTERVAL) != Err(mpsc::RecvTimeoutError::Disconnected) {
            if gives_up() {
                return Ok(false);
            }
        }
        self.finish().map(|()| true)
    }

    /// Runs `next` when the thread has ended successfully; if it fails, the process ends.
    fn and_then(self, next: impl FnOnce() + Send + 'static) -> Result<(), StartFailure> {
        let wait = move || match self.finish() {
            Ok(()) => next(),
            Err(StartFailure) => std::process::exit(1),
        };
        weft_os::thread::Builder::new()
            .name("weft-loaded".to_owned())
            .spawn(wait)
            .map(drop)
            .map_err(log_fatal("cannot wait for the thread that loads data"))
    }
}

fn load_exclusively(server: &Arc<Server>, has_exclusive_mode: &mpsc::SyncSender<()>) -> Result<(), StartFailure> {
    let Some(mut seat) = server.keyspace.slots.join() else {
        log::warning!("Fatal error loading the DB: the keyspace has no free thread index");
        return Err(StartFailure);
    };
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    // The start waits for this.
    let _ = has_exclusive_mode.send(());
    load_data(server, &mut all, thread_index)?;
    // Clients must never find a primary where a replica is configured.
    start_configured_replication(server);
    // Before the gate opens: every later write is logged.
    server.replication.set_state_bits(ReplicationState::LOADING, false);
    server.background.wake_coordinator();
    Ok(())
}

/// Loads the data files: the append-only file if it is enabled, otherwise the dump.
fn load_data(server: &Arc<Server>, all: &mut Exclusive<'_>, thread_index: ThreadIndex) -> Result<(), StartFailure> {
    if !server.config.boolean(id::APPENDONLY) {
        aof::read_manifest_at_start(server).map_err(|aof::AofFailed| StartFailure)?;
        return crate::persistence::save::load_at_start(server, all, thread_index)
            .map_err(|crate::persistence::save::SaveFailed| StartFailure);
    }
    aof::load_at_start(server, all, thread_index).map_err(|aof::AofFailed| StartFailure)?;
    // The metrics of replayed commands are discarded.
    server.stats.metrics.reset_commands();
    aof::open_at_start(server, all, thread_index).map_err(|aof::AofFailed| StartFailure)
}

fn configure_log_file(config: &Config) {
    let syslog = config.boolean(id::SYSLOG_ENABLED).then(|| {
        let ident = String::from_utf8_lossy(&config.text(id::SYSLOG_IDENT)).into_owned();
        let facility = config.unsigned(id::SYSLOG_FACILITY) as u32;
        Syslog::new(syslog::SOCKET.into(), ident, facility)
    });
    log::open(LogDestination {
        file: path_parameter(config, id::LOGFILE),
        syslog,
    });
    if config.primary().is_some() {
        log::set_role(crate::observability::log_line::Role::Replica);
    }
    configure_log(config);
}

fn path_parameter(config: &Config, id: ParameterId) -> Option<PathBuf> {
    let text = config.text(id);
    (!text.is_empty()).then(|| OsString::from_vec(text.to_vec()).into())
}

/// Logs the failed action and the reason; for `map_err`.
fn log_fatal<Reason: Display>(what: &'static str) -> impl FnOnce(Reason) -> StartFailure {
    move |reason| {
        log::warning!("Fatal error: {what}: {reason}");
        StartFailure
    }
}

/// Returns `io-threads`, or the number of CPUs that the workers may use.
fn worker_count(config: &Config, cpus: &CpuLists) -> usize {
    match config.integer(id::IO_THREADS) {
        count if count > 0 => count as usize,
        _ => weft_os::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(cpus.worker_cpu_count().max(1)),
    }
}

fn raise_open_file_limit(config: &Config, workers: usize) -> Result<(), StartFailure> {
    let clients = config.unsigned(id::MAXCLIENTS);
    match open_files::raise_limit(clients, workers) {
        0 => Err(StartFailure),
        allowed if allowed < clients => {
            config.lower_maxclients(allowed);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Creates the hash function of keys. With `hash-seed`, tables of all servers with the same seed have the same order.
fn create_hasher(config: &Config) -> KeyHasher {
    let clustered = config.boolean(id::CLUSTER_ENABLED);
    let seed = config.text(id::HASH_SEED);
    if seed.is_empty() {
        return KeyHasher::from_os(clustered);
    }
    let secrets = secrets_from_seed(&seed);
    weft_values::records::set_hash_secrets(secrets);
    KeyHasher::with_secrets(secrets, clustered)
}

/// Creates the state of a server with one worker, none of whose threads runs. What is sent to them is lost.
#[cfg(test)]
pub(crate) fn create_idle_server(config: Config) -> Arc<Server> {
    create_idle_server_with_workers(config, 1)
}

/// Creates the state of a server none of whose threads runs. What is sent to others than workers is lost.
#[cfg(test)]
pub(crate) fn create_idle_server_with_workers(config: Config, workers: usize) -> Arc<Server> {
    crate::commands::install_registry(crate::commands::full_registry());
    let queue = || crate::runtime::background::create_queue().0;
    let (orders, primary_thread) = (mpsc::channel().0, mpsc::channel().0);
    create_server(config, workers, queue(), queue(), orders, primary_thread).expect("a server")
}

/// Creates the state of a server with one worker, none of whose threads runs. Returns it with what is sent to the
/// thread that serves replicas.
#[cfg(test)]
pub(crate) fn create_idle_server_with_orders(config: Config) -> (Arc<Server>, mpsc::Receiver<PrimaryThreadCommand>) {
    crate::commands::install_registry(crate::commands::full_registry());
    let queue = || crate::runtime::background::create_queue().0;
    let (sender, orders) = mpsc::channel();
    let server = create_server(config, 1, queue(), queue(), mpsc::channel().0, sender).expect("a server");
    (server, orders)
}

/// Creates the state that all threads share, before any of them runs.
pub(crate) fn create_server(
    config: Config,
    workers: usize,
    background: mpsc::Sender<BackgroundJob>,
    script_jobs: mpsc::Sender<BackgroundJob>,
    coordinator_commands: mpsc::Sender<CoordinatorCommand>,
    primary_thread: mpsc::Sender<PrimaryThreadCommand>,
) -> Result<Arc<Server>, StartFailure> {
    // One thread index for each worker, for the background threads, the link to a primary, the replicas' thread, the
    // thread of slot migrations and a snapshot and its helpers, for the threads that load an append-only file and those
    // that help to apply the stream of a primary, for active defragmentation, for the lock and the nested turns of
    // modules, and a few spare ones for temporary threads.
    let background_threads =
        2 * crate::runtime::background::THREAD_COUNT + crate::runtime::background::EXCHANGE_THREAD_COUNT;
    let load_threads = aof::load_threads(workers);
    let apply_threads = apply_threads::count(&config, workers) - 1;
    let helping_threads = load_threads + apply_threads + max_helping_threads();
    let seats = workers + background_threads + weft_scripting::SCRIPT_THREADS + helping_threads + 5 + 5;
    let cluster = match config.boolean(id::CLUSTER_ENABLED) {
        true => Some(Cluster::start(&config).map_err(|weft_cluster::nodes_conf::NodesFileUnusable| StartFailure)?),
        false => None,
    };
    let memory = Arc::new(UsedMemory::new(workers));
    let server = Arc::new(Server::new(ServerParts {
        acl: Acl::new(permission::command_catalogue()),
        keyspace: Keyspace::with_slots(config.databases(), seats, create_hasher(&config)),
        cluster,
        workers,
        metrics: crate::commands::module_commands::new_metrics(seats),
        lazyfree: LazyFree::start(memory.clone()).map_err(log_fatal("cannot start the freeing thread"))?,
        background,
        script_jobs,
        supply: primary_thread,
        orders: coordinator_commands,
        run_id: generate_run_id(),
        started: Instant::now(),
        started_unix_s: weft_base::clock::unix_ms() / 1000,
        memory,
        config,
    }));
    let _ = server.lifecycle.server.set(Arc::downgrade(&server));
    for kind in [ScriptKind::Eval, ScriptKind::Function] {
        let insecure = server.config.boolean(id::LUA_ENABLE_INSECURE_API);
        server.scripting.set_insecure_functions(kind, insecure);
    }
    let hears = Arc::downgrade(&server);
    server.scripting.running.set_overdue_callback(Box::new(move |busy| {
        if let Some(server) = hears.upgrade() {
            server.replication.set_state_bits(ReplicationState::SCRIPT_BUSY, busy);
        }
    }));
    update_event_hook(&server);
    Ok(server)
}

fn create_workers(server: &Arc<Server>) -> Result<Vec<Worker>, StartFailure> {
    (0..server.workers.len())
        .map(|id| Worker::new(server.clone(), ThreadIndex::new(id)).map_err(log_fatal("cannot make a worker")))
        .collect()
}

/// Starts the threads of the workers, and waits until all of them run. A thread sets its name itself: a server that
/// reports to be ready has workers that a report on its threads shows by their names.
fn start_workers(workers: Vec<Worker>) -> Result<Vec<JoinHandle<()>>, StartFailure> {
    let (begun_in, begun_out) = mpsc::channel();
    let spawn = |(id, worker): (usize, Worker)| {
        let begun = begun_in.clone();
        weft_os::thread::Builder::new()
            .name(format!("weft-worker-{id}"))
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || {
                // The start waits for this.
                let _ = begun.send(());
                worker.run();
            })
    };
    let threads: Vec<JoinHandle<()>> = workers
        .into_iter()
        .enumerate()
        .map(|numbered| spawn(numbered).map_err(log_fatal("cannot start a worker")))
        .collect::<Result<_, _>>()?;
    drop(begun_in);
    for _ in &threads {
        // A worker that panics ends the process.
        let _ = begun_out.recv();
    }
    Ok(threads)
}

/// Reports to the supervisor and to the log that clients are served.
fn announce_ready(server: &Server, kinds: ListenerKinds, supervisor: &Supervisor) {
    for (listens, kind) in [(kinds.tcp, "tcp"), (kinds.unix, "unix"), (kinds.tls, "tls")] {
        if listens {
            log::notice!("Ready to accept connections {kind}");
        }
    }
    supervisor.notify_ready();
    kernel::warn_about_tiny_maxmemory(&server.config);
    // The failure was logged; the server starts nevertheless.
    let _ = oom_score::adjust(&server.config, server.config.primary().is_some());
    if !cfg!(feature = "simulated")
        && let Err(error) = weft_reactor::release_start_code()
    {
        log::debug!("the code of the start stays in memory: {error}");
    }
}

/// Stops the threads; clients are no longer served.
fn stop_threads(
    server: &Arc<Server>,
    shutdown: &ShutdownOptions,
    supervisor: &Supervisor,
    threads: Vec<JoinHandle<()>>,
) {
    supervisor.notify_stopping();
    server.stats.stalls.stop();
    // Before anything that waits for scripts: a failover for exclusive mode, a snapshot for the slots that they hold.
    server.scripting.running.stop_all();
    if shutdown.requests_failover {
        let patience = server.config.unsigned(id::SHUTDOWN_TIMEOUT);
        let patience = if shutdown.is_immediate { 0 } else { patience };
        crate::cluster_node::topology::fail_over_on_shutdown(server, Duration::from_secs(patience));
    }
    crate::persistence::save::cancel_for_shutdown(server);
    let config = &server.config;
    let timeout = Duration::from_secs(config.unsigned(id::SHUTDOWN_TIMEOUT));
    let patience = if shutdown.is_immediate {
        Duration::ZERO
    } else {
        OUTPUT_GRACE_PERIOD.min(timeout)
    };
    for worker in &server.workers {
        worker.send(Message::Stop { grace_period: patience });
    }
    for thread in threads {
        // A worker that panicked has ended the process.
        let _ = thread.join();
    }
    aof::finish(server);
}

/// Returns 40 random hexadecimal digits.
fn generate_run_id() -> String {
    let mut bytes = [0u8; 20];
    if getrandom::fill(&mut bytes).is_err() {
        fastrand::fill(&mut bytes);
    }
    hex::encode(bytes)
}

mod configuration;
#[cfg(all(test, not(feature = "simulated")))]
mod tests;
