//! Snapshots: all data at one moment in the format of an RDB file, written while clients continue.
//!
//! A caller that needs a snapshot fills in a [`SnapshotRequest`] and calls [`SnapshotClaim::start`]:
//!
//! ```text
//!   caller             "weft-snapshot"                                            "weft-snap-out"
//!   ──────             ───────────────                                            ───────────────
//!   start ───────────▶ exclusive mode: epoch, at_moment ─┐
//!     ◀── its id ────────────────────────────────────────┘
//!                      head, databases ── chunks, 256 KiB ──────────────────────▶ consumer.write, …
//!                      helpers, while cores are idle: keys ── chunks ───────────▶ end, checksum
//!                                                                                 consumer.finish
//!                      before-images freed, at_end  ◀── result ───────────────────┘
//! ```
//!
//! 1. There is one snapshot at a time. A second caller gets the purpose of the first snapshot, and retries when it has
//!    ended. A caller prepares for its snapshot only after it has claimed it ([`SnapshotClaim`]). Otherwise two callers
//!    could prepare the same files.
//! 2. `at_moment` runs in exclusive mode. Nothing changes before it returns, and every earlier change is in the
//!    snapshot. So a log position that it records is the one at which the log continues after the snapshot. It must be
//!    quick and must not wait. The closure that it returns runs after exclusive mode and produces the auxiliary fields
//!    written before the keys.
//! 3. The consumer has its own thread, so it may wait for disks and peers. Meanwhile the other thread reads a few
//!    chunks ahead, and still saves out of turn the values that writers wait for ([`crate::keyspace::before_image`]).
//! 4. `at_end` runs once for each `start` that succeeded, on the snapshot's thread, before another snapshot can start.
//! 5. [`SnapshotState::cancel`] ends a snapshot soon. A consumer that waits for long must check
//!    [`SnapshotState::is_cancelled`] periodically. A consumer that is not finished is dropped, and removes what it has
//!    created.
//!
//! Every slot is leased for the time of a few keys. Of a large value only a handle is taken under the lease. The value
//! is written without a lease ([`crate::keyspace::pinned`]).

mod modules;
mod moment;
mod parts;
mod saver;

use std::error::Error;
use std::io;
use std::sync::Arc;

use weft_base::clock::unix_ms;
use weft_reactor::{lower_priority, parse_cpu_list, pin_to_cpus, thread_id};

use crate::keyspace::Seat;
use crate::keyspace::before_image::MAX_DATABASES;
use crate::keyspace::clock::AccessClock;
use crate::observability::log;
use crate::persistence::rdb_file::{KeyEncodingOptions, ModuleRecordForm, RdbChecksum, RdbFormat, RdbHeader};
use crate::persistence::snapshot_state::{SnapshotPurpose, SnapshotState};
use crate::state::Server;
use crate::state::spare_cores::max_helping_threads;
pub use modules::{encode_modules, is_home_missing, report_loaded_keys, run_with_home, summon_home};
use moment::CapturedState;
use parts::SavedKeys;
use saver::{SharedSave, SnapshotChunk};
use weft_cluster::slot_set::SlotSet;
use weft_config::{Config, id};
use weft_os::atomic::AtomicBool;
use weft_os::sync::mpsc::{Receiver, SyncSender, sync_channel};
use weft_os::thread::{Builder, JoinHandle};
use weft_os::time::Instant;
use weft_scripting::ScriptRun;

/// The nice value of the threads, below the workers' priority.
const NICE_VALUE: i32 = 10;
/// All purposes, for a snapshot that must end whatever it is for.
const ALL_PURPOSES: [SnapshotPurpose; 4] = [
    SnapshotPurpose::RdbFile,
    SnapshotPurpose::AofBase,
    SnapshotPurpose::Replicas,
    SnapshotPurpose::SlotMigration,
];
/// The number of chunks that may be ready and not yet consumed.
const CHUNKS_AHEAD: usize = 4;

/// The reason why a consumer takes no more bytes.
pub type ConsumerError = Box<dyn Error + Send + Sync>;

/// The destination of a snapshot. All its methods run on a separate thread, which may wait.
pub trait SnapshotConsumer: Send {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// If the bytes cannot be taken. The snapshot then ends.
    fn write(&mut self, bytes: &[u8], running: &SnapshotState) -> Result<(), ConsumerError>;

    /// Completes the output after all bytes were taken. If the snapshot has been cancelled, it must not change anything
    /// that is visible outside.
    ///
    /// # Errors
    /// If the output could not be completed.
    fn finish(self: Box<Self>, running: &SnapshotState) -> Result<(), ConsumerError>;
}

/// The name and the text of an auxiliary field written before the keys.
pub type AuxField = (&'static str, Vec<u8>);
/// Makes the auxiliary fields after exclusive mode; it may wait for their values.
pub type AuxFields = Box<dyn FnOnce() -> Vec<AuxField> + Send>;

/// Creates a consumer.
pub type MakeConsumer = Box<dyn FnOnce() -> Result<Box<dyn SnapshotConsumer>, ConsumerError> + Send>;
/// A callback for the snapshot's moment.
pub type OnMoment = Box<dyn FnOnce(&SnapshotMoment<'_>) -> AuxFields + Send>;
/// A callback for the end of the snapshot.
pub type OnEnd = Box<dyn FnOnce(&Arc<Server>, &SnapshotSummary, SnapshotOutcome) + Send>;

/// A request for a snapshot.
pub struct SnapshotRequest {
    /// The purpose.
    pub purpose: SnapshotPurpose,
    /// The version of the RDB format. A value that this version cannot represent ends the snapshot.
    pub format: RdbFormat,
    /// The slots whose keys it contains; `None` for all keys and the functions.
    pub slots: Option<Arc<SlotSet>>,
    /// The form of the records of values of modules.
    pub module_form: ModuleRecordForm,
    /// Creates the consumer, on the consumer's thread, after the moment.
    pub consumer: MakeConsumer,
    /// Runs at the snapshot's moment.
    pub at_moment: OnMoment,
    /// Called with the outcome.
    pub at_end: OnEnd,
}

/// The moment of a snapshot. No other thread accesses the keyspace.
pub struct SnapshotMoment<'m> {
    /// The server.
    pub server: &'m Server,
}

/// The outcome of a snapshot.
pub enum SnapshotOutcome {
    /// The consumer has taken everything.
    Done,
    /// The snapshot was cancelled.
    Cancelled,
    /// The consumer failed.
    Failed(ConsumerError),
}

/// The figures of a snapshot, available at its end.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotSummary {
    /// The number of changes before its moment.
    pub changes: u64,
    /// The number of keys written.
    pub keys: u64,
    /// The number of bytes that before-images took.
    pub before_image_bytes: u64,
    /// The snapshot's moment.
    pub started_at: Instant,
    /// The time of its moment in seconds since the Unix epoch.
    pub started_s: u64,
}

/// The reason why no snapshot was started.
#[derive(Debug)]
pub enum SnapshotRefusal {
    /// Another snapshot is being written.
    Busy(SnapshotPurpose),
    /// The operating system or the keyspace lacks a resource, such as a thread.
    System(io::Error),
}

/// The reason why a claimed snapshot was not started.
#[derive(Debug)]
pub enum SnapshotStartError {
    /// A script is overdue, and may never end.
    ScriptBusy(Arc<ScriptRun>),
    /// The operating system or the keyspace lacks a resource, such as a thread.
    System(io::Error),
}

/// Starts a snapshot for a thread that must not wait for as long as a script chooses to run. The caller has excluded
/// runs on script threads, and ends the exclusion after this call. Returns the id of the snapshot's thread when the
/// moment is over. It waits for exclusive mode, so the calling thread must not be inside the gate.
///
/// # Errors
/// If no snapshot can start now. No callback of the order was called then.
pub fn start_without_scripts(server: &Arc<Server>, order: SnapshotRequest) -> Result<i32, SnapshotRefusal> {
    let mut claim = SnapshotClaim::new(server, order.purpose).map_err(SnapshotRefusal::Busy)?;
    claim.start_without_scripts(order).map_err(SnapshotRefusal::System)
}

/// Cancels the snapshot being written, because its data is replaced. The caller must hold exclusive mode.
pub fn cancel_current(server: &Server) {
    if server.persistence.snapshot.cancel(&ALL_PURPOSES) {
        log::notice!("Cancelling the snapshot in progress, because its data is being replaced");
        server.keyspace.before_images.cancel();
    }
}

/// The right to start the next snapshot. A caller that changes shared state before its snapshot starts, such as a file,
/// claims first. Dropping the claim releases the right.
pub struct SnapshotClaim<'s> {
    server: &'s Arc<Server>,
    purpose: SnapshotPurpose,
    has_started: bool,
}

impl<'s> SnapshotClaim<'s> {
    /// Claims the next snapshot for a purpose.
    ///
    /// # Errors
    /// The purpose of the snapshot that is claimed or being written already.
    pub fn new(server: &'s Arc<Server>, purpose: SnapshotPurpose) -> Result<Self, SnapshotPurpose> {
        server.persistence.snapshot.claim(purpose, unix_ms() / 1000)?;
        server.set_snapshot_running(true);
        Ok(SnapshotClaim {
            server,
            purpose,
            has_started: false,
        })
    }

    /// Starts the snapshot. Returns the id of its thread when the moment is over. It waits for exclusive mode and
    /// before that for scripts on script threads, until one is overdue: so the calling thread must not be inside the
    /// gate. If it fails, the caller still has the claim, and can undo what it has prepared before another snapshot
    /// starts.
    ///
    /// # Errors
    /// If a script is overdue, or a thread or a thread index cannot be obtained. No callback of the order was called
    /// then.
    pub fn start(&mut self, order: SnapshotRequest) -> Result<i32, SnapshotStartError> {
        let server = self.server;
        let running = &server.scripting.running;
        running
            .exclude_runs_for_client()
            .map_err(SnapshotStartError::ScriptBusy)?;
        let started = self.start_without_scripts(order);
        running.end_exclusion();
        started.map_err(SnapshotStartError::System)
    }

    /// Does the same for a caller that has excluded runs on script threads, and ends the exclusion after this call.
    ///
    /// # Errors
    /// If a thread or a thread index cannot be obtained. No callback of the order was called then.
    pub fn start_without_scripts(&mut self, order: SnapshotRequest) -> io::Result<i32> {
        assert_eq!(self.purpose, order.purpose, "a claim is for one purpose");
        assert_eq!(
            self.server.persistence.snapshot.purpose(),
            Some(self.purpose),
            "the claimed snapshot is the current one"
        );
        let thread = start_claimed(self.server, order)?;
        // From now on the snapshot's thread releases the claim.
        self.has_started = true;
        Ok(thread)
    }
}

impl Drop for SnapshotClaim<'_> {
    fn drop(&mut self) {
        if !self.has_started {
            self.server.set_snapshot_running(false);
            self.server.persistence.snapshot.release();
        }
    }
}

fn start_claimed(server: &Arc<Server>, order: SnapshotRequest) -> io::Result<i32> {
    if server.keyspace.counts.databases() > MAX_DATABASES {
        return Err(io::Error::other("too many databases for a snapshot"));
    }
    let seat = server.keyspace.slots.join();
    let seat = seat.ok_or_else(|| io::Error::other("the keyspace has no free thread index"))?;
    let (sender, started) = sync_channel(1);
    let for_thread = server.clone();
    Builder::new()
        .name("weft-snapshot".into())
        .spawn(move || run(&for_thread, seat, order, &sender))?;
    started
        .recv()
        .map_err(|_| io::Error::other("the snapshot thread ended unexpectedly"))
}

fn run(server: &Arc<Server>, mut seat: Seat, order: SnapshotRequest, started: &SyncSender<i32>) {
    yield_cpu_to_workers(server);
    let SnapshotRequest {
        consumer,
        format,
        slots,
        module_form,
        at_moment,
        at_end,
        ..
    } = order;
    let purpose = server.persistence.snapshot.purpose();
    let mut style = KeyEncodingOptions::from_config(&server.config, access_clock(&server.config, unix_ms() / 1000))
        .with_format(format);
    // Slots that migrate are sent as commands.
    style.should_compress &= purpose != Some(SnapshotPurpose::SlotMigration);
    let taken = moment::take(server, &mut seat, slots, at_moment, style, module_form);
    // The caller may be gone.
    let _ = started.send(thread_id());
    let (changes, began, began_s) = (taken.changes, taken.began, taken.began_s);
    let keys_at_moment: u64 = taken.databases.iter().map(|database| database.keys).sum();
    let (keys, result) = write(server, &mut seat, taken, consumer, format, style);
    debug_assert!(
        result.is_err() || keys == keys_at_moment,
        "a complete snapshot has the {keys_at_moment} keys of its moment, not {keys}"
    );
    let kept_bytes = server.keyspace.before_images.kept_bytes();
    server.keyspace.before_images.end(&server.keyspace.slots);
    let summary = SnapshotSummary {
        changes,
        keys,
        before_image_bytes: kept_bytes,
        started_at: began,
        started_s: began_s,
    };
    let ending = match result {
        Ok(()) => SnapshotOutcome::Done,
        Err(_) if server.persistence.snapshot.is_cancelled() => SnapshotOutcome::Cancelled,
        Err(error) => SnapshotOutcome::Failed(error),
    };
    at_end(server, &summary, ending);
    drop(seat);
    server.set_snapshot_running(false);
    server.persistence.snapshot.release();
}

/// Starts the thread of the consumer, which takes the chunks and adds the end of the file.
fn start_consumer(
    server: &Arc<Server>,
    make_consumer: MakeConsumer,
    chunks: Receiver<SnapshotChunk>,
) -> io::Result<JoinHandle<Result<(), ConsumerError>>> {
    let server = server.clone();
    let consume = move || -> Result<(), ConsumerError> {
        yield_cpu_to_workers(&server);
        let running = &server.persistence.snapshot;
        let mut checksum = RdbChecksum::new(server.config.boolean(id::RDBCHECKSUM));
        let mut consumer = make_consumer()?;
        for chunk in chunks {
            match chunk {
                SnapshotChunk::Bytes(bytes) => {
                    checksum.update(&bytes);
                    consumer.write(&bytes, running)?;
                }
                SnapshotChunk::End => {
                    consumer.write(&checksum.end(), running)?;
                    return consumer.finish(running);
                }
            }
        }
        Err("the snapshot was cancelled".into())
    };
    Builder::new().name("weft-snap-out".into()).spawn(consume)
}

/// Writes everything and lets the consumer finish. Returns the number of keys and the result.
fn write(
    server: &Arc<Server>,
    seat: &mut Seat,
    taken: CapturedState,
    consumer: MakeConsumer,
    format: RdbFormat,
    style: KeyEncodingOptions,
) -> (u64, Result<(), ConsumerError>) {
    if taken.lacks_data {
        return (0, Err("the data is being loaded".into()));
    }
    if taken.has_module_failed {
        return (0, Err("a module could not save its data".into()));
    }
    if format == RdbFormat::Shared && !taken.imports.is_empty() {
        return (
            0,
            Err("this version of the RDB format cannot store slot imports".into()),
        );
    }
    let (chunks, receiver) = sync_channel::<SnapshotChunk>(CHUNKS_AHEAD);
    let consuming = match start_consumer(server, consumer, receiver) {
        Ok(thread) => thread,
        Err(error) => return (0, Err(error.into())),
    };
    let notes = (taken.notes)();
    let purpose = server.persistence.snapshot.purpose();
    let head = RdbHeader {
        format,
        functions: &taken.functions,
        imports: &taken.imports,
        now_s: taken.began_s,
        used_memory_bytes: crate::observability::memory::used().unwrap_or(0),
        aux_fields: &notes,
        is_aof_base: purpose == Some(SnapshotPurpose::AofBase),
        module_data: &taken.module_data_before,
    };
    let helpers = match purpose {
        // The other node takes the commands on one thread.
        Some(SnapshotPurpose::SlotMigration) => 0,
        _ => max_helping_threads(),
    };
    let shared = SharedSave {
        server,
        style,
        chunks,
        has_stopped: AtomicBool::new(false),
    };
    let end = &taken.module_data_after;
    let SavedKeys { keys, is_representable } = parts::save_all(&shared, seat, &head, &taken.databases, end, helpers);
    // The consumer ends when no thread can send it anything.
    drop(shared);
    let result = consuming
        .join()
        .unwrap_or_else(|_| Err("the snapshot output thread panicked".into()));
    match is_representable {
        true => (keys, result),
        false => (
            keys,
            Err("this version of the RDB format cannot store one of the keys".into()),
        ),
    }
}

/// The parameters for interpreting the access clocks of entries.
pub fn access_clock(config: &Config, now_s: u64) -> AccessClock {
    AccessClock {
        now_s,
        is_lfu: config.choice(id::MAXMEMORY_POLICY).ends_with("lfu"),
        lfu_log_factor: config.integer(id::LFU_LOG_FACTOR),
        lfu_decay_minutes: config.integer(id::LFU_DECAY_TIME),
    }
}

/// Lowers the priority of the calling thread below the workers, and moves it to the CPUs of `bgsave-cpulist` or
/// `aof-rewrite-cpulist`.
fn yield_cpu_to_workers(server: &Server) {
    // All other threads of a simulation wait while this one has its turn.
    if cfg!(feature = "simulated") {
        return;
    }
    if let Err(error) = lower_priority(NICE_VALUE) {
        log::debug!("cannot lower the priority of the snapshot thread: {error}");
    }
    let list = server.config.text(match server.persistence.snapshot.purpose() {
        Some(SnapshotPurpose::AofBase) => id::AOF_REWRITE_CPULIST,
        _ => id::BGSAVE_CPULIST,
    });
    let Some(cpus) = parse_cpu_list(&String::from_utf8_lossy(&list)).filter(|_| !list.is_empty()) else {
        return;
    };
    if let Err(error) = pin_to_cpus(&cpus) {
        log::warning!("Cannot run on CPUs {cpus:?}: {error}");
    }
}

#[cfg(test)]
mod tests;
