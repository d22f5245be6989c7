//! Background threads for commands that would delay the other clients of their worker.

use std::sync::Arc;

use crate::observability::{log, memory};
use crate::state::{BackgroundJob, Server};
use weft_os::sync::Mutex;
use weft_os::sync::mpsc::{Receiver, Sender, channel};

/// The number of threads of each kind; more would only contend for the cores that the workers use.
pub const THREAD_COUNT: usize = 2;
/// Threads for work that waits for another server (MIGRATE). Such work may wait for long, and needs no CPU meanwhile.
/// If it had the threads of the long commands, two clients that migrate to a silent server would stop all of those.
pub const EXCHANGE_THREAD_COUNT: usize = 2;

/// The nice value of the threads for commands on snapshots, so that they yield to the workers, whose requests are short
/// and have a client waiting for each. Threads that hold leases for long do not yield: clients may wait for them.
const NICE: i32 = 10;

/// Creates the queue of jobs.
pub fn create_queue() -> (Sender<BackgroundJob>, Receiver<BackgroundJob>) {
    channel()
}

/// What a kind of threads does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Long commands on snapshots.
    SnapshotCommands,
    /// Long commands under leases, and those that wait for another server.
    LongCommands,
    /// Scripts. A client waits for a script whose run time is not known yet.
    Scripts,
}

/// Starts the threads, for long commands and for scripts.
///
/// # Errors
/// When the operating system refuses a thread, or no seat is left at the keyspace.
pub fn start(
    server: &Arc<Server>,
    jobs: Receiver<BackgroundJob>,
    scripts: Receiver<BackgroundJob>,
) -> std::io::Result<()> {
    start_threads(server, jobs, "weft-bg", THREAD_COUNT, Work::LongCommands)?;
    if let Some(commands) = server.background.take_snapshot_jobs() {
        start_threads(server, commands, "weft-reader", THREAD_COUNT, Work::SnapshotCommands)?;
    }
    if let Some(exchanges) = server.background.take_exchange_jobs() {
        start_threads(
            server,
            exchanges,
            "weft-exchange",
            EXCHANGE_THREAD_COUNT,
            Work::LongCommands,
        )?;
    }
    start_threads(
        server,
        scripts,
        "weft-script",
        weft_scripting::SCRIPT_THREADS,
        Work::Scripts,
    )
}

fn start_threads(
    server: &Arc<Server>,
    jobs: Receiver<BackgroundJob>,
    name: &str,
    threads: usize,
    work: Work,
) -> std::io::Result<()> {
    let jobs = Arc::new(Mutex::new(jobs));
    for index in 0..threads {
        let mut seat = server
            .keyspace
            .slots
            .join()
            .ok_or_else(|| std::io::Error::other("no seat is left at the keyspace"))?;
        let jobs = jobs.clone();
        let server = Arc::downgrade(server);
        weft_os::thread::Builder::new()
            .name(format!("{name}-{index}"))
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || {
                // All other threads of a simulation wait while this one has its turn.
                if !cfg!(feature = "simulated") {
                    prepare_for(work);
                }
                loop {
                    let job = jobs.lock().recv();
                    let (Ok(job), Some(server)) = (job, server.upgrade()) else {
                        return;
                    };
                    job(&server, &mut seat);
                }
            })?;
    }
    Ok(())
}

/// Sets this thread's priority, and the arena from which it allocates.
fn prepare_for(work: Work) {
    if work == Work::SnapshotCommands
        && let Err(error) = weft_reactor::lower_priority(NICE)
    {
        log::warning!("long commands run as urgently as short ones: {error}");
    }
    if work == Work::Scripts {
        return;
    }
    if let Err(error) = memory::use_long_command_arena() {
        log::warning!("long commands share the memory of short ones: {error}");
    }
}
