//! The propagation log: one total order of all writes that replicas and the append-only file have to repeat.
//!
//! ```text
//!   command, under its leases                        log thread
//!   ─────────────────────────                        ──────────
//!   handler ─▶ Scribe: ops of this unit               one reader per ring
//!   unit ends: MULTI and EXEC if it has several ops        │ the ring whose head has the next number
//!   sequence number = one atomic add                       ▼
//!   (number, ops) ─▶ ring of this thread ───────────▶ Feed (SELECT, MULTI, EXEC) ─▶ Consumer: append-only file
//!   the leases end                                                               ─▶ Consumer: replication backlog
//! ```
//!
//! An *op* is one command to repeat. A *unit* is the set of ops that consumers must apply atomically.
//!
//! 1. While the log has no consumer (no `LOG_…` hook is on), no sequence number is taken and nothing is recorded.
//! 2. A sequence number is taken under all leases of its unit: a command, a transaction, a script. So the order of
//!    sequence numbers agrees with the order of changes of every slot, and with the order of operations that span
//!    slots.
//! 3. Between taking a sequence number and pushing its record onto the ring, a thread does nothing but copy bytes. A
//!    log thread that finds the next number on no ring waits for that short time.
//! 4. The hooks are switched in exclusive mode only, when no thread holds a lease. Changes made before have no sequence
//!    number, changes made afterwards have one. An action that the log thread has to perform at exactly that position
//!    is a *mark* ([`PropagationLog::schedule_mark`]): it runs after all earlier sequence numbers have been processed
//!    and before any later one.
//! 5. A ring grows by chunks, so no thread ever waits for it while it holds leases. When a thread is ahead of the log
//!    thread by more than [`MAX_UNREAD_BYTES`], the writes of its connections are deferred before they take leases.
//! 6. Milestones ([`LogMilestone`]) record the position that the log has reached. A worker that withholds replies until
//!    a milestone first requests a notification and then checks the milestone
//!    ([`PropagationLog::request_milestone_notice`]). The log thread first moves the milestone and then checks for
//!    requests. So no notification is lost.
//!
//! A unit of several ops is wrapped in MULTI and EXEC. As in Valkey, this does not depend on which consumers exist. The
//! operations that a push performs for clients blocked on its key are separate units after it, under the same sequence
//! number.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::observability::used_memory::UsedMemory;
use weft_base::{LogSequence, ThreadIndex};
use weft_os::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use weft_os::sync::Mutex;
use weft_os::thread::Thread;
use weft_sync::{RingGauge, RingReader, RingWriter, ring};

mod reader;
mod writer;

pub use reader::{ConsumerStreams, LogConsumer, start};
pub use writer::{LogTarget, LogWriter, RewrittenCommands};

/// The number of bytes of one thread that the log thread has not read, above which writes of the thread's connections
/// are deferred.
pub const MAX_UNREAD_BYTES: usize = 16 << 20;
/// The capacity up to which a buffer of the log is kept for the next write, in bytes.
const MAX_IDLE_BUFFER_BYTES: usize = 1 << 20;

/// A stage that a log record reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMilestone {
    /// Written to the append-only file, that is, passed to the operating system.
    Written,
    /// Synced to disk.
    Synced,
}

/// An action at a log position.
type LogMark = (LogSequence, Box<dyn FnOnce(&mut ConsumerStreams) + Send>);

/// The rings in use.
#[derive(Default)]
struct Rings {
    /// Readers that the log thread has not taken over yet.
    new: Vec<RingReader>,
    /// Writers whose threads have ended.
    idle: Vec<RingWriter>,
    /// The fill level of each ring.
    gauges: Vec<RingGauge>,
}

/// The shared state of the propagation log.
pub struct PropagationLog {
    /// The last sequence number taken.
    last_sequence: AtomicU64,
    rings: Mutex<Rings>,
    marks: Mutex<VecDeque<LogMark>>,
    /// Set while there are rings or marks that the log thread has not seen.
    has_new_rings_or_marks: AtomicBool,
    /// Set while the log thread sleeps or is about to sleep.
    is_asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
    written: AtomicU64,
    synced: AtomicU64,
    /// Set for each worker that wants to be notified when a milestone moves.
    notify_workers: Box<[AtomicBool]>,
    /// The milestone that replies wait for: [`WAIT_FOR_NOTHING`] or one of the constants after it.
    withholds: AtomicU8,
    /// Accounts for the memory that the log thread frees.
    memory: Arc<UsedMemory>,
}

impl PropagationLog {
    /// Creates a log without consumers for `workers` workers.
    pub fn new(workers: usize, memory: Arc<UsedMemory>) -> Self {
        PropagationLog {
            last_sequence: AtomicU64::new(0),
            rings: Mutex::default(),
            marks: Mutex::default(),
            has_new_rings_or_marks: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            thread: Mutex::default(),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            notify_workers: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            withholds: AtomicU8::new(WAIT_FOR_NOTHING),
            memory,
        }
    }

    /// Returns a writer for the log. A thread keeps it for as long as it may write.
    pub fn log_writer(self: &Arc<Self>) -> LogWriter {
        let mut rings = self.rings.lock();
        let writer = rings.idle.pop().unwrap_or_else(|| {
            let (writer, reader) = ring();
            rings.new.push(reader);
            rings.gauges.push(writer.gauge());
            writer
        });
        drop(rings);
        self.has_new_rings_or_marks.store(true, Ordering::SeqCst);
        LogWriter::new(self.clone(), writer)
    }

    fn return_writer(&self, writer: RingWriter) {
        self.rings.lock().idle.push(writer);
    }

    /// Returns the number of bytes of all threads that the log thread has not read yet.
    pub fn unread_bytes(&self) -> usize {
        self.rings.lock().gauges.iter().map(RingGauge::unread).sum()
    }

    /// Returns the maximum memory of these bytes.
    pub fn unread_memory(&self) -> usize {
        self.rings.lock().gauges.iter().map(RingGauge::held).sum()
    }

    /// Takes the next sequence number.
    #[inline]
    fn next_sequence(&self) -> LogSequence {
        LogSequence::new(self.last_sequence.fetch_add(1, Ordering::SeqCst)).next()
    }

    /// Returns the last sequence number taken.
    #[inline]
    pub fn last_sequence(&self) -> LogSequence {
        LogSequence::new(self.last_sequence.load(Ordering::SeqCst))
    }

    /// Schedules an action on the log thread between all earlier and all later writes. The caller must hold the whole
    /// keyspace, since there is no such position otherwise.
    pub fn schedule_mark(&self, action: impl FnOnce(&mut ConsumerStreams) + Send + 'static) {
        let mut marks = self.marks.lock();
        // Read under the lock, so that marks are queued in the order of their positions.
        let at = self.last_sequence();
        assert!(
            marks.back().is_none_or(|(before, _)| *before <= at),
            "marks of the propagation log are queued in the order of their positions"
        );
        marks.push_back((at, Box::new(action)));
        drop(marks);
        self.has_new_rings_or_marks.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns `true` if the log thread has been started.
    pub fn is_started(&self) -> bool {
        self.thread.lock().is_some()
    }

    /// Lets the log thread flush soon, for a request that a consumer looks at when it flushes.
    pub fn request_flush(&self) {
        // Seen by the log thread before it falls asleep.
        self.has_new_rings_or_marks.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the log thread if it sleeps. Before it falls asleep, the log thread processes everything it was given, so
    /// one call at the end of a batch is enough.
    #[inline]
    pub fn wake(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            self.wake_thread();
        }
    }

    #[cold]
    fn wake_thread(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    // ---- milestones -------------------------------------------------------------------------------------------------
    /// Returns the last sequence number that has reached a milestone. All earlier ones have reached it, too.
    #[inline]
    pub fn milestone_sequence(&self, milestone: LogMilestone) -> LogSequence {
        LogSequence::new(self.milestone(milestone).load(Ordering::SeqCst))
    }

    /// Moves a milestone. The caller then notifies the workers returned by [`Self::take_notice_requests`].
    ///
    /// # Panics
    /// If the milestone would be ahead of the log, or the disk ahead of the writes.
    pub fn advance_milestone(&self, milestone: LogMilestone, sequence: LogSequence) {
        assert!(
            sequence <= self.last_sequence(),
            "the milestone {milestone:?} moves to {sequence}, a sequence number that was not taken yet"
        );
        assert!(
            milestone != LogMilestone::Synced || sequence <= self.milestone_sequence(LogMilestone::Written),
            "only what was written to the append-only file is synced"
        );
        self.milestone(milestone).fetch_max(sequence.get(), Ordering::SeqCst);
    }

    fn milestone(&self, milestone: LogMilestone) -> &AtomicU64 {
        match milestone {
            LogMilestone::Written => &self.written,
            LogMilestone::Synced => &self.synced,
        }
    }

    /// Requests one notification of a worker when any milestone moves. The worker checks the milestone after this call.
    pub fn request_milestone_notice(&self, worker: ThreadIndex) {
        if let Some(origin) = self.notify_workers.get(worker.get()) {
            origin.store(true, Ordering::SeqCst);
        }
    }

    /// Calls `tell` with each worker that requested a notification, and clears the requests.
    pub fn take_notice_requests(&self, mut tell: impl FnMut(ThreadIndex)) {
        for (worker, origin) in self.notify_workers.iter().enumerate() {
            if origin.load(Ordering::SeqCst) && origin.swap(false, Ordering::SeqCst) {
                tell(ThreadIndex::new(worker));
            }
        }
    }

    /// Sets the milestone that replies to writes wait for; `None` if they do not wait.
    pub fn set_reply_milestone(&self, until: Option<LogMilestone>) {
        let code = match until {
            None => WAIT_FOR_NOTHING,
            Some(LogMilestone::Written) => WAIT_FOR_WRITTEN,
            Some(LogMilestone::Synced) => WAIT_FOR_SYNCED,
        };
        self.withholds.store(code, Ordering::SeqCst);
    }

    /// Returns `true` if the reply to the write with this sequence number must wait.
    #[inline]
    pub fn must_withhold_reply(&self, sequence: LogSequence) -> bool {
        if sequence.is_none() {
            return false;
        }
        match self.withholds.load(Ordering::Acquire) {
            WAIT_FOR_NOTHING => false,
            WAIT_FOR_WRITTEN => sequence > self.milestone_sequence(LogMilestone::Written),
            _ => sequence > self.milestone_sequence(LogMilestone::Synced),
        }
    }
}

/// Replies do not wait for the log.
const WAIT_FOR_NOTHING: u8 = 0;
/// Replies wait until their writes are written to the append-only file.
const WAIT_FOR_WRITTEN: u8 = 1;
/// Replies wait until their writes are synced to disk.
const WAIT_FOR_SYNCED: u8 = 2;

/// Empties a buffer. Frees its memory if that is much, so that one large write does not occupy it for good.
#[inline]
pub(crate) fn clear_buffer(buffer: &mut Vec<u8>) {
    if buffer.capacity() > MAX_IDLE_BUFFER_BYTES {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}

#[cfg(test)]
mod tests;
