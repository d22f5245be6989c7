//! Background threads for commands that would delay the other clients of their worker.

use std::sync::Arc;
use std::time::Duration;

use crate::observability::{log, memory};
use crate::state::{BackgroundJob, Server};
use weft_base::ThreadIndex;
use weft_os::sync::mpsc::{Receiver, Sender, channel};
use weft_os::sync::{Condvar, Mutex};
use weft_scripting::SCRIPT_THREADS;

/// The number of threads of each kind; more would only contend for the cores that the workers use.
pub const THREAD_COUNT: usize = 2;
/// Threads for work that waits for another server (MIGRATE). Such work may wait for long, and needs no CPU meanwhile.
/// If it had the threads of the long commands, two clients that migrate to a silent server would stop all of those.
pub const EXCHANGE_THREAD_COUNT: usize = 2;

/// The nice value of the threads for commands on snapshots, so that they yield to the workers, whose requests are short
/// and have a client waiting for each. Threads that hold leases for long do not yield: clients may wait for them.
const NICE: i32 = 10;

/// The longest time for which an idle thread waits until all threads of its queue have dropped interpreters.
const BARRIER_TIMEOUT: Duration = Duration::from_millis(2);

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
/// When the operating system refuses a thread, or the keyspace has no free thread index.
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
    start_threads(server, scripts, "weft-script", SCRIPT_THREADS, Work::Scripts)
}

/// Makes the threads that run Lua code drop their interpreters from before a flush, which they do after each job. An
/// idle thread takes one of the jobs that this function adds, and waits until the others have taken theirs: otherwise
/// one thread could take them all. The function does not wait for busy threads.
pub fn drop_flushed_interpreters(server: &Server) {
    let queues = [
        (&server.background.long_commands, THREAD_COUNT),
        (&server.background.scripts, SCRIPT_THREADS),
    ];
    for (queue, threads) in queues {
        let barrier = Arc::new(TimedBarrier::default());
        for _ in 0..threads {
            let barrier = barrier.clone();
            let job: BackgroundJob = Box::new(move |_, _| barrier.wait(threads));
            // The threads end only at shutdown.
            let _ = queue.send(job);
        }
    }
}

/// A barrier at which threads wait for each other, for a limited time.
#[derive(Default)]
struct TimedBarrier {
    arrived: Mutex<usize>,
    is_complete: Condvar,
}

impl TimedBarrier {
    /// Waits until `threads` threads have arrived, or until [`BARRIER_TIMEOUT`] has passed.
    fn wait(&self, threads: usize) {
        let mut arrived = self.arrived.lock();
        *arrived += 1;
        if *arrived == threads {
            self.is_complete.notify_all();
            return;
        }
        while *arrived < threads {
            if self.is_complete.wait_for(&mut arrived, BARRIER_TIMEOUT).timed_out() {
                return;
            }
        }
    }
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
            .ok_or_else(|| std::io::Error::other("the keyspace has no free thread index"))?;
        let jobs = jobs.clone();
        let thread_index = ThreadIndex::new(seat.index());
        let thread_name = format!("{name}-{index}");
        server.stats.activities.set_name(thread_index, thread_name.clone());
        if work == Work::LongCommands {
            // Otherwise the first CONFIG SET would take as much memory as several keys, and with a limit evict them.
            server.stats.metrics.create_command_row(thread_index);
        }
        let server = Arc::downgrade(server);
        weft_os::thread::Builder::new()
            .name(thread_name)
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || {
                // All other threads of a simulation wait while this one has its turn.
                let mut is_prepared = cfg!(feature = "simulated");
                loop {
                    let job = jobs.lock().recv();
                    let (Ok(job), Some(server)) = (job, server.upgrade()) else {
                        return;
                    };
                    // An arena takes memory, which a thread without work does not need.
                    if !std::mem::replace(&mut is_prepared, true) {
                        prepare_for(work);
                    }
                    job(&server, &mut seat);
                    weft_scripting::drop_flushed_interpreters(&server.scripting);
                    server.stats.activities.end(thread_index);
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
        return memory::use_own_arena();
    }
    if let Err(error) = memory::use_long_command_arena() {
        log::warning!("long commands share the memory of short ones: {error}");
    }
}
