//! Background threads for commands that would delay the other clients of their worker.

use std::sync::Arc;

use crate::observability::{log, memory};
use crate::state::{BackgroundJob, Server};
use weft_os::sync::Mutex;
use weft_os::sync::mpsc::{Receiver, Sender, channel};

/// The number of threads; more would only contend for the cores that the workers use.
pub const THREAD_COUNT: usize = 2;
/// Threads for work that waits for another server (MIGRATE). Such work may wait for long, and needs no CPU meanwhile.
/// If it had the threads of the long commands, two clients that migrate to a silent server would stop all of those.
pub const EXCHANGE_THREAD_COUNT: usize = 2;

/// The nice value of the threads, so that they yield to the workers, whose requests are short and have a client waiting
/// for each.
const NICE: i32 = 10;

/// Creates the queue of jobs.
pub fn create_queue() -> (Sender<BackgroundJob>, Receiver<BackgroundJob>) {
    channel()
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
    start_threads(server, jobs, "weft-bg", THREAD_COUNT, true)?;
    if let Some(exchanges) = server.background.take_exchange_jobs() {
        start_threads(server, exchanges, "weft-exchange", EXCHANGE_THREAD_COUNT, true)?;
    }
    // A client waits for a script whose run time is not known yet.
    start_threads(server, scripts, "weft-script", weft_scripting::SCRIPT_THREADS, false)
}

fn start_threads(
    server: &Arc<Server>,
    jobs: Receiver<BackgroundJob>,
    name: &str,
    threads: usize,
    is_low_priority: bool,
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
                if is_low_priority && !cfg!(feature = "simulated") {
                    lower_priority();
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

/// Lowers this thread's priority for CPUs and memory.
fn lower_priority() {
    if let Err(error) = weft_reactor::lower_priority(NICE) {
        log::warning!("long commands run as urgently as short ones: {error}");
    }
    if let Err(error) = memory::use_long_command_arena() {
        log::warning!("long commands share the memory of short ones: {error}");
    }
}
