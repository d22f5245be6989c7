//! The log of writes: one total order of everything that a replica or an append-only file has to repeat.
//!
//! ```text
//!   command, under its leases                        log thread
//!   ─────────────────────────                        ──────────
//!   handler ─▶ Scribe: ops of this unit               one reader per ring
//!   unit ends: MULTI and EXEC if it has several ops        │ the ring whose head is the next ticket
//!   ticket = next number (one atomic add)                  ▼
//!   (ticket, ops) ─▶ ring of this thread ───────────▶ Feed (SELECT, MULTI, EXEC) ─▶ Consumer: append-only file
//!   the leases end                                                               ─▶ Consumer: replication backlog
//! ```
//!
//! 1. While nobody wants the log (no `LOG_…` hook is on) no ticket is taken and nothing is recorded.
//! 2. A ticket is taken under all leases of its unit: a command, a transaction, a script. So the order of tickets agrees
//!    with the order of changes of every slot, and with that of everything that spans slots.
//! 3. Between its ticket and its record on the ring a thread does nothing but copy bytes. The log thread, which finds
//!    the next ticket on no ring, waits for that moment.
//! 4. The hooks are switched in exclusive mode only, when nobody holds a lease: whatever was changed before is without a
//!    ticket, whatever is changed afterwards has one. What shall happen on the log thread at just that place of the
//!    order is a *mark* ([`Journal::mark`]): it runs when all tickets before it have passed, and before any later one.
//! 5. A ring grows by chunks, so nobody ever waits for it while holding leases. Who has written more than the log
//!    thread has taken by [`CROWDED_BYTES`] has its connections' writes put off before they take leases.
//! 6. Where the log is for a ticket is told by milestones ([`Milestone`]). Whoever withholds replies until one is
//!    reached asks for news first and looks at the milestone afterwards ([`Journal::ask_for_news`]), while the log
//!    thread moves the milestone first and looks for askers afterwards: no news is lost.
//!
//! A unit of several ops is wrapped in MULTI and EXEC; whom a consumer wants is not there has no influence on that, as
//! in Valkey. What a push does for clients that wait for its key are units of their own behind it, under one ticket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use weft_sync::{RingGauge, RingReader, RingWriter, ring};

use crate::observability::lock;
use crate::observability::used_memory::UsedMemory;

mod reader;
mod writer;

pub use reader::{ConsumerStreams, LogConsumer, start};
pub use writer::{LogWriter, RewrittenCommands, Target, begin_command, write_command, write_word};

/// Bytes of one thread that the log thread has not taken, above which its connections' writes are put off.
pub const CROWDED_BYTES: usize = 16 << 20;

/// How far the log is with a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// Given to the operating system, as a part of the append-only file.
    Written,
    /// On the disk.
    Synced,
}

/// What happens at a place of the order.
type LogMark = (u64, Box<dyn FnOnce(&mut ConsumerStreams) + Send>);

/// Rings that are in use.
#[derive(Default)]
struct Rings {
    /// Readers that the log thread does not know yet.
    new: Vec<RingReader>,
    /// Writers whose threads have ended.
    idle: Vec<RingWriter>,
    /// How much there is in each.
    gauges: Vec<RingGauge>,
}

/// The log's shared state.
pub struct PropagationLog {
    /// The last ticket that was taken.
    tickets: AtomicU64,
    rings: Mutex<Rings>,
    marks: Mutex<VecDeque<LogMark>>,
    /// Whether there are rings or marks that the log thread has not seen.
    has_orders: AtomicBool,
    /// Whether the log thread sleeps, or is about to.
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
    written: AtomicU64,
    synced: AtomicU64,
    /// Which workers want to know when a milestone moves.
    askers: Box<[AtomicBool]>,
    /// Whether replies wait for their writes, and for what: [`WITHHOLDS_NONE`] or one of those below it.
    withholds: AtomicU8,
    /// What the log thread frees is seen there.
    memory: Arc<UsedMemory>,
}

impl PropagationLog {
    /// A log without consumers, for so many workers.
    pub fn new(workers: usize, memory: Arc<UsedMemory>) -> Self {
        PropagationLog {
            tickets: AtomicU64::new(0),
            rings: Mutex::default(),
            marks: Mutex::default(),
            has_orders: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            thread: Mutex::default(),
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            askers: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            withholds: AtomicU8::new(WITHHOLDS_NONE),
            memory,
        }
    }

    /// A writer's end of the log. A thread keeps it as long as it may write.
    pub fn log_writer(self: &Arc<Self>) -> LogWriter {
        let mut rings = lock(&self.rings);
        let writer = rings.idle.pop().unwrap_or_else(|| {
            let (writer, reader) = ring();
            rings.new.push(reader);
            rings.gauges.push(writer.gauge());
            writer
        });
        drop(rings);
        self.has_orders.store(true, Ordering::SeqCst);
        LogWriter::new(self.clone(), writer)
    }

    fn give_back(&self, writer: RingWriter) {
        lock(&self.rings).idle.push(writer);
    }

    /// Bytes of all threads that the log thread has not taken yet.
    pub fn unread_bytes(&self) -> usize {
        lock(&self.rings).gauges.iter().map(RingGauge::unread).sum()
    }

    /// Takes the next ticket.
    #[inline]
    fn next_sequence(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The last ticket that was taken.
    #[inline]
    pub fn last_sequence(&self) -> u64 {
        self.tickets.load(Ordering::SeqCst)
    }

    /// Has the log thread do something between what was written before and what comes afterwards. Only for who has the
    /// whole keyspace, for else there is no such place.
    pub fn schedule_mark(&self, action: impl FnOnce(&mut ConsumerStreams) + Send + 'static) {
        let at = self.last_sequence();
        lock(&self.marks).push_back((at, Box::new(action)));
        self.has_orders.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the log thread if it sleeps. It does by itself what it was given before it fell asleep, so one call at the
    /// end of a batch is enough.
    #[inline]
    pub fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.wake_thread();
        }
    }

    #[cold]
    fn wake_thread(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*lock(&self.thread)
        {
            thread.unpark();
        }
    }

    // ---- milestones ------------------------------------------------------------------------------------------------

    /// The last ticket that has reached a milestone, as all before it have.
    #[inline]
    pub fn milestone_sequence(&self, milestone: Milestone) -> u64 {
        self.milestone(milestone).load(Ordering::SeqCst)
    }

    /// Moves a milestone. Those who asked are to be told afterwards ([`Self::take_askers`]).
    pub fn advance_milestone(&self, milestone: Milestone, ticket: u64) {
        self.milestone(milestone).fetch_max(ticket, Ordering::SeqCst);
    }

    fn milestone(&self, milestone: Milestone) -> &AtomicU64 {
        match milestone {
            Milestone::Written => &self.written,
            Milestone::Synced => &self.synced,
        }
    }

    /// A worker wants to be told once when any milestone moves. It looks at the milestone after this call.
    pub fn request_milestone_notice(&self, worker: usize) {
        if let Some(origin) = self.askers.get(worker) {
            origin.store(true, Ordering::SeqCst);
        }
    }

    /// The workers that asked for news.
    pub fn take_notice_requests(&self, mut tell: impl FnMut(usize)) {
        for (worker, origin) in self.askers.iter().enumerate() {
            if origin.load(Ordering::SeqCst) && origin.swap(false, Ordering::SeqCst) {
                tell(worker);
            }
        }
    }

    /// Has replies to writes wait until these have reached a milestone, or not at all.
    pub fn withhold_replies(&self, until: Option<Milestone>) {
        let code = match until {
            None => WITHHOLDS_NONE,
            Some(Milestone::Written) => WITHHOLDS_UNWRITTEN,
            Some(Milestone::Synced) => WITHHOLDS_UNSYNCED,
        };
        self.withholds.store(code, Ordering::SeqCst);
    }

    /// Whether the reply to what has this ticket must wait.
    #[inline]
    pub fn withholds(&self, ticket: u64) -> bool {
        if ticket == 0 {
            return false;
        }
        match self.withholds.load(Ordering::Acquire) {
            WITHHOLDS_NONE => false,
            WITHHOLDS_UNWRITTEN => ticket > self.milestone_sequence(Milestone::Written),
            _ => ticket > self.milestone_sequence(Milestone::Synced),
        }
    }
}

/// No reply waits for the log.
const WITHHOLDS_NONE: u8 = 0;
/// Replies wait until their writes are written.
const WITHHOLDS_UNWRITTEN: u8 = 1;
/// Replies wait until their writes are on the disk.
const WITHHOLDS_UNSYNCED: u8 = 2;

#[cfg(test)]
mod tests;
