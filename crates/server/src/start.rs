//! From the command line to a running server, and its orderly end.
//!
//! ```text
//!   configuration ─▶ log ─▶ supervisor, daemon ─▶ crash reports ─▶ limits ─▶ sockets ─▶ pid file
//!        │ stderr            └─ no other thread before here              │
//!        ▼ exit 1                                                        ▼
//!                    exit 0 ◀─ files removed ◀─ workers joined ◀─ coordinator ◀─ threads
//! ```

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_reactor::{AlternateStack, Reactor, SignalReceiver};

use crate::check;
use crate::cluster_node::bus::ClusterBus;
use crate::commands::context::Binding;
use crate::commands::permission;
use crate::keyspace::hash::{KeyHasher, secrets_from_seed};
use crate::keyspace::lazyfree::LazyFree;
use crate::keyspace::{Exclusive, Keyspace};
use crate::net::listeners::{ListenError, ListenerKinds, Listeners};
use crate::notify::messages::refresh_event_hook;
use crate::observability::log::{self, LogDestination};
use crate::observability::metrics::Metrics;
use crate::observability::syslog::{self, Syslog};
use crate::observability::used_memory::UsedMemory;
use crate::persistence::aof;
use crate::replication::{Endpoint, ReplicationState};
use crate::runtime::config_changes::configure_log;
use crate::runtime::coordinator::Coordinator;
use crate::runtime::process::cpus::CpuLists;
use crate::runtime::process::pid_file::PidFile;
use crate::runtime::process::supervisor::Supervisor;
use crate::runtime::process::{banner, collation, crash, daemon, kernel, oom_score, open_files, title};
use crate::runtime::shutdown::Shutdown;
use crate::runtime::worker::Worker;
use crate::state::{CoordinatorCommand, Job, Message, PrimaryThreadCommand, Server, ServerParts};
use weft_acl::{Acl, InvalidUserDirective, check_declarations};
use weft_cluster::Cluster;
use weft_command_table::registry::{Registry, RenameError};
use weft_config::{Config, ParameterId, StartAction, StartError, id};
use weft_scripting::ScriptKind;
use weft_tls::{TlsMaterial, TlsState, UnusableTlsConfig};

/// The time that clients have to receive pending replies when the server ends.
const FAREWELL: Duration = Duration::from_millis(500);

/// The error of a start or an end that failed; the reason was logged.
#[derive(Debug)]
pub(crate) struct StartFailed;

impl From<ListenError> for StartFailed {
    fn from(_: ListenError) -> StartFailed {
        StartFailed
    }
}

/// Runs the process.
pub fn run() -> ExitCode {
    log::install();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let started = StartAction::parse(&arguments).and_then(|action| match action {
        StartAction::PrintText(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        StartAction::CheckDump(rest) => Ok(check::check_dump(&program(&arguments), &rest).into()),
        StartAction::CheckAppendOnly(rest) => Ok(check::check_append_only(&program(&arguments), &rest).into()),
        StartAction::CheckSystem => {
            let (report, well) = weft_config::system_check::run();
            print!("{report}");
            Ok(exit_code(well))
        }
        StartAction::RunServer(command_line) => {
            let config = Config::load(&command_line)?;
            crate::commands::install(renamed(&config)?);
            check_users(&config)?;
            Ok(exit_code(live(config, arguments.len() > 1).is_ok()))
        }
    });
    started.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn program(arguments: &[OsString]) -> String {
    arguments
        .first()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn exit_code(well: bool) -> ExitCode {
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a server from start to end. `configured` is `true` if there was a configuration file or an argument.
fn live(config: Config, configured: bool) -> Result<(), StartFailed> {
    let (supervisor, daemonized) = settle_process(&config)?;
    title::show(&config);
    choose_collation(&config)?;
    banner::log_start(configured);
    crash::install(&config);
    // Without a stack of its own, a crash on this thread is reported without the backtrace.
    let _stack = AlternateStack::install();
    let ground = prepare(&config, supervisor, daemonized)?;
    serve(config, ground)
}

/// A configured locale must exist; one that the environment names may be missing.
fn choose_collation(config: &Config) -> Result<(), StartFailed> {
    let Err(collation::Unknown) = collation::choose(config) else {
        return Ok(());
    };
    if config.text(id::LOCALE_COLLATE).is_empty() {
        log::warning!("The system lacks the locale that the environment names: SORT ALPHA compares bytes.");
        return Ok(());
    }
    log::warning!("Failed to configure LOCALE for invalid locale name.");
    Err(StartFailed)
}

/// Opens the log and sets up the process: the supervisor, or daemon mode, which the second part of the result reports.
/// There must be no other thread yet.
fn settle_process(config: &Config) -> Result<(Supervisor, bool), StartFailed> {
    open_log(config);
    kernel::warn_about_memory();
    kernel::configure_huge_pages(config);
    let supervisor = Supervisor::find(config.choice(id::SUPERVISED));
    let daemonizes = config.boolean(id::DAEMONIZE) && !supervisor.is_some();
    if daemonizes {
        daemon::leave_terminal().map_err(fatal("cannot run in the background"))?;
    }
    Ok((supervisor, daemonizes))
}

/// The process-wide parts of a server.
struct Foundation {
    supervisor: Supervisor,
    cpus: CpuLists,
    workers: usize,
    reactor: Reactor,
    signals: SignalReceiver,
    tls: Option<TlsMaterial>,
    listeners: Listeners,
    pid_file: Option<PidFile>,
}

fn prepare(config: &Config, supervisor: Supervisor, daemonized: bool) -> Result<Foundation, StartFailed> {
    let cpus = CpuLists::read(config);
    let workers = worker_count(config, &cpus);
    make_room_for_clients(config, workers)?;
    let mut reactor = Reactor::new().map_err(fatal("cannot watch sockets"))?;
    let signals = SignalReceiver::install(reactor.waker()).map_err(fatal("cannot handle signals"))?;
    log::notice!("monotonic clock: POSIX clock_gettime");
    banner::show(config);
    kernel::warn_about_backlog(config);
    let tls = match TlsState::are_needed(config) {
        false => None,
        true => Some(TlsMaterial::read(config).map_err(|UnusableTlsConfig| {
            log::warning!("Failed to configure TLS. Check logs for more info.");
            StartFailed
        })?),
    };
    let listeners = Listeners::open(config, &mut reactor)?;
    let pid_file = PidFile::create(path(config, id::PIDFILE), daemonized);
    Ok(Foundation {
        supervisor,
        cpus,
        workers,
        reactor,
        signals,
        tls,
        listeners,
        pid_file,
    })
}

/// From open sockets to closed ones.
fn serve(config: Config, ground: Foundation) -> Result<(), StartFailed> {
    let (jobs_in, jobs_out) = crate::runtime::background::queue();
    let (scripts_in, scripts_out) = crate::runtime::background::queue();
    let (orders_in, orders_out) = mpsc::channel();
    ground.cpus.start_background_threads();
    let (supply_in, supply_out) = mpsc::channel();
    let server = server(config, ground.workers, (jobs_in, scripts_in), orders_in, supply_in)?;
    server.background.set_coordinator_waker(ground.reactor.waker());
    if let Some(material) = ground.tls {
        server.tls.install(material);
    }
    load_users(&server)?;
    server
        .replication
        .set_state_bits(ReplicationState::IMPORT_MODE, server.config.boolean(id::IMPORT_MODE));
    // Workers take the first seats; the tuner counts on that.
    let made = make_workers(&server)?;
    log::notice!("Server initialized");
    server.persistence.dumps.record_save(server.lifecycle.started_unix_s, 0);
    let loading = Loading::begin(&server)?;
    // The ownership of slots depends on the loaded data, and must be settled before the first client.
    let loading = if server.cluster.is_some() {
        loading.finish()?;
        None
    } else {
        Some(loading)
    };
    let bus = ClusterBus::prepare(&server).map_err(fatal("cannot make the cluster bus"))?;
    crate::runtime::background::start(&server, jobs_out, scripts_out)
        .map_err(fatal("cannot start the background threads"))?;
    ground.cpus.start_server_threads();
    let threads = start_workers(made)?;
    crate::replication::replica::start(&server).map_err(fatal("cannot start the thread of replication"))?;
    crate::replication::primary::start(&server, supply_out)
        .map_err(fatal("cannot start the thread that serves replicas"))?;
    if let Some(bus) = bus {
        bus.start().map_err(fatal("cannot start the cluster bus"))?;
    }
    log::notice!("Allocator options: {}", weft_reactor::allocator_options());
    let (supervisor, kinds) = (Arc::new(ground.supervisor), ground.listeners.kinds());
    match loading {
        None => {
            follow_configured(&server);
            open_doors(&server, kinds, &supervisor);
        }
        Some(loading) => {
            let (server, supervisor) = (server.clone(), supervisor.clone());
            loading.and_then(move || open_doors(&server, kinds, &supervisor))?;
        }
    }
    let coordinator = Coordinator::new(
        server.clone(),
        ground.reactor,
        ground.signals,
        ground.listeners,
        orders_out,
    );
    let (how, listeners) = coordinator.run().map_err(fatal("the coordinator stopped"))?;
    end(&server, &how, &supervisor, threads);
    if let Some(pid_file) = ground.pid_file {
        pid_file.remove();
    }
    listeners.remove_socket_file();
    log::warning!("Weft is now ready to exit, bye bye...");
    // Freeing all values one by one would take long without benefit.
    std::mem::forget(server);
    Ok(())
}

/// Follows the primary that the configuration names.
fn follow_configured(server: &Arc<Server>) {
    if let Some(cluster) = &server.cluster {
        return crate::cluster_node::topology::apply_loaded_role(server, cluster);
    }
    if let Some(primary) = server.config.primary() {
        log::notice!("Connecting to PRIMARY {}:{}", primary.host, primary.port);
        server.replication.start_following(
            Endpoint {
                host: primary.host,
                port: primary.port,
            },
            false,
        );
        crate::runtime::config_changes::refresh_local_expiry(server);
    }
}

/// Everything is loaded: clients are served.
fn open_doors(server: &Server, kinds: ListenerKinds, supervisor: &Supervisor) {
    announce(server, kinds, supervisor);
}

/// The thread that loads the data files. The gate is opened at intervals, so that clients get `-LOADING`.
struct Loading(JoinHandle<Result<(), StartFailed>>);

impl Loading {
    /// Starts loading. When this returns, the thread has exclusive mode. So clients never see a short load.
    fn begin(server: &Arc<Server>) -> Result<Loading, StartFailed> {
        let _ = server.persistence.replay.set(crate::dispatch::replay::replay);
        server.replication.set_state_bits(ReplicationState::LOADING, true);
        let (alone, is_alone) = mpsc::sync_channel(1);
        let of_thread = server.clone();
        let thread = std::thread::Builder::new()
            .name("weft-load".to_owned())
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || load_alone(&of_thread, &alone))
            .map_err(fatal("cannot start the thread that loads data"))?;
        // If the thread has ended already, it has logged the reason.
        let _ = is_alone.recv();
        Ok(Loading(thread))
    }

    /// Waits for its end.
    fn finish(self) -> Result<(), StartFailed> {
        self.0.join().unwrap_or(Err(StartFailed))
    }

    /// Does something when it has ended well; the process ends if it has not.
    fn and_then(self, next: impl FnOnce() + Send + 'static) -> Result<(), StartFailed> {
        let wait = move || match self.finish() {
            Ok(()) => next(),
            Err(StartFailed) => std::process::exit(1),
        };
        std::thread::Builder::new()
            .name("weft-loaded".to_owned())
            .spawn(wait)
            .map(drop)
            .map_err(fatal("cannot wait for the thread that loads data"))
    }
}

fn load_alone(server: &Arc<Server>, alone: &mpsc::SyncSender<()>) -> Result<(), StartFailed> {
    let Some(mut seat) = server.keyspace.slots.join() else {
        log::warning!("Fatal error loading the DB: no seat is left at the keyspace");
        return Err(StartFailed);
    };
    let row = seat.index();
    let mut all = seat.exclusive();
    // The start waits for this.
    let _ = alone.send(());
    load_data(server, &mut all, row)?;
    // Clients must never find a primary where a replica is configured.
    follow_configured(server);
    // Before the gate opens: every later write is logged.
    server.replication.set_state_bits(ReplicationState::LOADING, false);
    Ok(())
}

/// Loads the data files: the append-only file if it is enabled, otherwise the dump.
fn load_data(server: &Arc<Server>, all: &mut Exclusive<'_>, row: usize) -> Result<(), StartFailed> {
    if !server.config.boolean(id::APPENDONLY) {
        return crate::persistence::save::load_at_start(server, all, row)
            .map_err(|crate::persistence::save::SaveFailed| StartFailed);
    }
    aof::load_at_start(server, all, row).map_err(|aof::AofFailed| StartFailed)?;
    // The metrics of replayed commands are discarded.
    server.stats.metrics.reset_commands();
    aof::open_at_start(server, all).map_err(|aof::AofFailed| StartFailed)
}

fn open_log(config: &Config) {
    let syslog = config.boolean(id::SYSLOG_ENABLED).then(|| {
        let ident = String::from_utf8_lossy(&config.text(id::SYSLOG_IDENT)).into_owned();
        let facility = config.unsigned(id::SYSLOG_FACILITY) as u32;
        Syslog::new(syslog::SOCKET.into(), ident, facility)
    });
    log::open(LogDestination {
        file: path(config, id::LOGFILE),
        syslog,
    });
    if config.primary().is_some() {
        log::set_role(crate::observability::log_line::Role::Replica);
    }
    configure_log(config);
}

fn path(config: &Config, id: ParameterId) -> Option<PathBuf> {
    let text = config.text(id);
    (!text.is_empty()).then(|| OsString::from_vec(text.to_vec()).into())
}

/// For `map_err`: logs the action that failed, and the reason.
fn fatal<Reason: Display>(what: &'static str) -> impl FnOnce(Reason) -> StartFailed {
    move |reason| {
        log::warning!("Fatal error: {what}: {reason}");
        StartFailed
    }
}

/// `io-threads`, or as many as there are CPUs that the workers may use.
fn worker_count(config: &Config, cpus: &CpuLists) -> usize {
    match config.integer(id::IO_THREADS) {
        count if count > 0 => count as usize,
        _ => std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(cpus.of_workers().max(1)),
    }
}

fn make_room_for_clients(config: &Config, workers: usize) -> Result<(), StartFailed> {
    let clients = config.unsigned(id::MAXCLIENTS);
    match open_files::raise_limit(clients, workers) {
        0 => Err(StartFailed),
        allowed if allowed < clients => {
            config.lower_maxclients(allowed);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The hash of keys; with `hash-seed`, tables of all servers with the same seed have the same order.
fn hasher(config: &Config) -> KeyHasher {
    let clustered = config.boolean(id::CLUSTER_ENABLED);
    let seed = config.text(id::HASH_SEED);
    if seed.is_empty() {
        return KeyHasher::from_os(clustered);
    }
    let secrets = secrets_from_seed(&seed);
    weft_values::records::set_hash_secrets(secrets);
    KeyHasher::with_secrets(secrets, clustered)
}

/// Creates the state that all threads share, before any of them runs.
pub(crate) fn server(
    config: Config,
    workers: usize,
    (background, script_jobs): (mpsc::Sender<Job>, mpsc::Sender<Job>),
    orders: mpsc::Sender<CoordinatorCommand>,
    supply: mpsc::Sender<PrimaryThreadCommand>,
) -> Result<Arc<Server>, StartFailed> {
    // One seat for each worker, for the background threads, the link to a primary, replicas and a snapshot, and a few
    // spare ones for temporary threads.
    let seats = workers + crate::runtime::background::THREADS + weft_scripting::SCRIPT_THREADS + 3 + 3;
    let cluster = match config.boolean(id::CLUSTER_ENABLED) {
        true => Some(Cluster::start(&config).map_err(|weft_cluster::nodes_conf::NodesFileUnusable| StartFailed)?),
        false => None,
    };
    let memory = Arc::new(UsedMemory::new(workers));
    let server = Arc::new(Server::new(ServerParts {
        acl: Acl::new(permission::catalogue()),
        keyspace: Keyspace::with_slots(config.databases(), seats, hasher(&config)),
        cluster,
        workers,
        metrics: Metrics::new(seats, crate::commands::registry().commands().len()),
        lazyfree: LazyFree::start(memory.clone()).map_err(fatal("cannot start the freeing thread"))?,
        background,
        script_jobs,
        supply,
        orders,
        run_id: run_id(),
        started: (Instant::now(), weft_base::clock::unix_ms() / 1000),
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
    refresh_event_hook(&server);
    Ok(server)
}

fn make_workers(server: &Arc<Server>) -> Result<Vec<Worker>, StartFailed> {
    (0..server.workers.len())
        .map(|id| Worker::new(server.clone(), id).map_err(fatal("cannot make a worker")))
        .collect()
}

fn start_workers(workers: Vec<Worker>) -> Result<Vec<JoinHandle<()>>, StartFailed> {
    let spawn = |(id, worker): (usize, Worker)| {
        std::thread::Builder::new()
            .name(format!("weft-worker-{id}"))
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || worker.run())
    };
    workers
        .into_iter()
        .enumerate()
        .map(|numbered| spawn(numbered).map_err(fatal("cannot start a worker")))
        .collect()
}

/// Reports to the supervisor and to the log that clients are served.
fn announce(server: &Server, kinds: ListenerKinds, supervisor: &Supervisor) {
    for (listens, kind) in [(kinds.tcp, "tcp"), (kinds.unix, "unix"), (kinds.tls, "tls")] {
        if listens {
            log::notice!("Ready to accept connections {kind}");
        }
    }
    supervisor.ready();
    kernel::warn_about_tiny_maxmemory(&server.config);
    // The failure was logged; the server starts nevertheless.
    let _ = oom_score::adjust(&server.config, server.config.primary().is_some());
}

/// Ends the threads; clients are no longer served.
fn end(server: &Arc<Server>, how: &Shutdown, supervisor: &Supervisor, threads: Vec<JoinHandle<()>>) {
    supervisor.stopping();
    if how.failover {
        let patience = server.config.unsigned(id::SHUTDOWN_TIMEOUT);
        let patience = if how.now { 0 } else { patience };
        crate::cluster_node::topology::fail_over_on_shutdown(server, Duration::from_secs(patience));
    }
    crate::persistence::save::cancel_for_shutdown(server);
    server.scripting.running.stop_all();
    let config = &server.config;
    let timeout = Duration::from_secs(config.unsigned(id::SHUTDOWN_TIMEOUT));
    let patience = if how.now { Duration::ZERO } else { FAREWELL.min(timeout) };
    for worker in &server.workers {
        worker.send(Message::Stop { patience });
    }
    for thread in threads {
        // A worker that panicked has ended the process.
        let _ = thread.join();
    }
    aof::finish(server);
}

/// 40 random hexadecimal digits.
fn run_id() -> String {
    let mut bytes = [0u8; 20];
    if getrandom::fill(&mut bytes).is_err() {
        fastrand::fill(&mut bytes);
    }
    hex::encode(bytes)
}

/// Refuses a configuration with `user` lines that cannot be right.
fn check_users(config: &Config) -> Result<(), StartError> {
    let directives = config.users();
    let lines: Vec<&[Vec<u8>]> = directives
        .iter()
        .map(|directive| directive.arguments.as_slice())
        .collect();
    let all_channels = config.choice(id::ACL_PUBSUB_DEFAULT) == "allchannels";
    check_declarations(&lines, permission::catalogue(), all_channels)
        .map_err(|InvalidUserDirective { line, reason }| directives[line].error(reason))
}

/// Makes the users that the configuration, or the file that it names, declares.
fn load_users(server: &Server) -> Result<(), StartFailed> {
    server.acl.load_at_start(&server.config).map_err(|reason| {
        log::warning!("{reason}");
        if server.config.text(id::ACLFILE).is_empty() {
            log::warning!("Critical error while loading ACLs. Exiting.");
        }
        StartFailed
    })
}

/// The commands under the names that `rename-command` gives them.
fn renamed(config: &Config) -> Result<Registry<Binding>, StartError> {
    let mut commands = crate::commands::all();
    for directive in config.renamed_commands() {
        let [from, to] = directive.arguments.as_slice() else {
            return Err(directive.error("wrong number of arguments"));
        };
        commands.rename(from, to).map_err(|error| {
            directive.error(match error {
                RenameError::NoSuchCommand => "No such command in rename-command",
                RenameError::NameTaken => "Target command name already exists",
            })
        })?;
    }
    Ok(commands)
}
