//! From the command line to a running server, and its orderly end.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use weft_reactor::{Listener, Reactor};
use weft_sync::Mailbox;

use crate::commands::context::Binding;
use crate::commands::registry::{Registry, RenameError};
use crate::config::{Action, Config, id};
use crate::coordinator::{Coordinator, say_goodbye};
use crate::keyspace::Keyspace;
use crate::keyspace::lazyfree::LazyFree;
use crate::observe::log;
use crate::observe::metrics::Metrics;
use crate::state::{Message, Pause, Server, WorkerLink};
use crate::worker::Worker;

/// Runs the process.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let started = Action::parse(&arguments).and_then(|action| match action {
        Action::Show(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Action::CheckSystem => {
            let (report, well) = crate::config::system_check::run();
            print!("{report}");
            Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Action::Run(command_line) => Config::load(&command_line).map(run_with),
    });
    started.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn run_with(config: Config) -> ExitCode {
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::warning!("Fatal: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: Config) -> std::io::Result<()> {
    let workers = worker_count(&config);
    let reactor = Reactor::new()?;
    let (jobs_in, jobs_out) = crate::background::queue();
    crate::commands::install(renamed(&config)?);
    let listeners = listen(&config)?;
    // One seat a worker, the background threads, and a few to spare for what comes and goes.
    let seats = workers + crate::background::THREADS + 2;
    let server = Arc::new(Server {
        keyspace: Keyspace::new(config.integer(id::DATABASES).max(1) as usize, seats),
        workers: (0..workers).map(|_| link()).collect(),
        metrics: Metrics::new(seats, crate::commands::registry().commands().len()),
        errors: Default::default(),
        lazyfree: LazyFree::start()?,
        background: jobs_in,
        pause: Pause::default(),
        active_expire: AtomicBool::new(true),
        next_client_id: AtomicU64::new(1),
        next_ticket: AtomicU64::new(1),
        connections: AtomicUsize::new(0),
        due_slots: Mutex::new(Vec::new()),
        run_id: run_id(),
        started: Instant::now(),
        started_unix_s: crate::worker::unix_ms() / 1000,
        shutdown: OnceLock::new(),
        coordinator: OnceLock::new(),
        used_memory: AtomicU64::new(0),
        peak_memory: AtomicU64::new(0),
        active_workers: AtomicUsize::new(1),
        tunings: AtomicU64::new(0),
        config,
    });
    let _ = server.coordinator.set(reactor.waker());
    let threads = start_workers(&server)?;
    crate::background::start(&server, jobs_out)?;
    log::notice!("Allocator options: {}", weft_reactor::allocator_options());
    log::notice!("Server initialized");
    log::notice!("Ready to accept connections tcp");
    let how = Coordinator::new(server.clone(), reactor, listeners)?.run()?;
    for worker in &server.workers {
        worker.send(Message::Stop);
    }
    for thread in threads {
        let _ = thread.join();
    }
    say_goodbye(how);
    Ok(())
}

fn link() -> WorkerLink {
    WorkerLink {
        mailbox: Mailbox::new(),
        waker: OnceLock::new(),
        connections: AtomicUsize::new(0),
        executed: AtomicU64::new(0),
    }
}

fn start_workers(server: &Arc<Server>) -> std::io::Result<Vec<std::thread::JoinHandle<()>>> {
    (0..server.workers.len())
        .map(|id| {
            let worker = Worker::new(server.clone(), id)?;
            std::thread::Builder::new()
                .name(format!("weft-worker-{id}"))
                .spawn(move || worker.run())
        })
        .collect()
}

/// `io-threads`, or as many as there are CPUs that this process may use.
fn worker_count(config: &Config) -> usize {
    match config.integer(id::IO_THREADS) {
        count if count > 0 => count as usize,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

fn listen(config: &Config) -> std::io::Result<Vec<Listener>> {
    let port = config.integer(id::PORT) as u16;
    let backlog = config.unsigned(id::TCP_BACKLOG) as u32;
    let mut listeners = Vec::new();
    if port != 0 {
        listeners.push(Listener::tcp(std::net::Ipv4Addr::LOCALHOST.into(), port, backlog)?);
    }
    Ok(listeners)
}

/// 40 random hexadecimal digits.
fn run_id() -> String {
    let mut bytes = [0u8; 20];
    if getrandom::fill(&mut bytes).is_err() {
        fastrand::fill(&mut bytes);
    }
    hex::encode(bytes)
}

/// The commands under the names that `rename-command` gives them.
fn renamed(config: &Config) -> std::io::Result<Registry<Binding>> {
    let mut commands = crate::commands::all();
    for directive in config.renamed_commands() {
        let [from, to] = directive.arguments.as_slice() else {
            return Err(std::io::Error::other(directive.error("wrong number of arguments")));
        };
        commands.rename(from, to).map_err(|error| {
            std::io::Error::other(directive.error(match error {
                RenameError::NoSuchCommand => "No such command in rename-command",
                RenameError::NameTaken => "Target command name already exists",
            }))
        })?;
    }
    Ok(commands)
}
