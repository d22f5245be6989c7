//! Pauses: the commands that are held back, the end of each pause, and how the paused clients continue.

use super::{Message, Server};

use weft_base::SlotIndex;
use weft_base::slots::SLOTS;
use weft_cluster::slot_set::SlotSet;
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::Mutex;

/// The commands that are held back by CLIENT PAUSE and by the server itself, and the end of the pause. Workers read it
/// without a lock.
#[derive(Default)]
pub struct Pause {
    /// The end in milliseconds since the Unix epoch; 0 without a pause.
    until_ms: AtomicU64,
    /// The end of a pause that also holds back reads.
    all_until_ms: AtomicU64,
    /// The pause of each reason; the fields above are derived from them. Locked during changes.
    scopes: Mutex<[Option<PauseScope>; PAUSE_REASONS.len()]>,
    /// The slots that are about to change their owner.
    pub held_slots: HeldSlots,
    /// The number of times that paused clients were resumed. It changes while `after_resumption` is locked.
    resumptions: AtomicU64,
    /// The functions that let commands continue which wait for the end of a pause outside of their worker.
    after_resumption: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

/// The slots whose writes are held back because another node is about to take them over. A hold begins in exclusive
/// mode, so no command that was admitted before runs under it.
pub struct HeldSlots {
    /// Set while any slot is held.
    is_any: AtomicBool,
    /// A bit for each slot.
    words: Box<[AtomicU64]>,
    /// The end of the last hold in milliseconds since the Unix epoch, for INFO.
    until_ms: AtomicU64,
}

impl Default for HeldSlots {
    fn default() -> Self {
        HeldSlots {
            is_any: AtomicBool::new(false),
            words: (0..SLOTS / 64).map(|_| AtomicU64::new(0)).collect(),
            until_ms: AtomicU64::new(0),
        }
    }
}

impl HeldSlots {
    /// Returns `true` if any slot is held.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Returns `true` if writes to the slot are held back.
    #[inline]
    pub fn contains(&self, slot: SlotIndex) -> bool {
        let slot = slot.index();
        self.is_any() && self.words[slot / 64].load(Ordering::Acquire) >> (slot % 64) & 1 == 1
    }

    /// Returns the end of the last hold in milliseconds since the Unix epoch, or `None` if no slot is held.
    pub fn until_ms(&self) -> Option<u64> {
        self.is_any().then(|| self.until_ms.load(Ordering::Relaxed))
    }

    /// Holds the writes to these slots back. The caller is in exclusive mode.
    pub fn hold(&self, slots: &SlotSet, until_ms: u64) {
        for slot in slots.iter().map(SlotIndex::index) {
            self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel);
        }
        self.extend(until_ms);
        self.is_any.store(true, Ordering::Release);
    }

    /// Records that a hold lasts until `until_ms` at least.
    pub fn extend(&self, until_ms: u64) {
        self.until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    fn release(&self, slots: &SlotSet) {
        for slot in slots.iter().map(SlotIndex::index) {
            self.words[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
        }
        if self.words.iter().all(|word| word.load(Ordering::Acquire) == 0) {
            self.is_any.store(false, Ordering::Release);
            self.until_ms.store(0, Ordering::Relaxed);
        }
    }
}

/// The reason for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// CLIENT PAUSE.
    Client,
    /// The server is about to end.
    Shutdown,
    /// A replica is about to take over.
    Failover,
}

/// All reasons, in the order of their numbers.
const PAUSE_REASONS: [PauseReason; 3] = [PauseReason::Client, PauseReason::Shutdown, PauseReason::Failover];

impl PauseReason {
    /// The name of the reason in INFO.
    pub fn name(self) -> &'static str {
        match self {
            PauseReason::Client => "client_pause",
            PauseReason::Shutdown => "shutdown_in_progress",
            PauseReason::Failover => "failover_in_progress",
        }
    }
}

/// The commands that a pause holds back.
#[derive(Clone, Copy, Debug)]
struct PauseScope {
    until_ms: u64,
    includes_reads: bool,
}

impl Pause {
    /// Returns the end of the pause in milliseconds since the Unix epoch, or `None` without a pause.
    #[inline]
    pub fn end_ms(&self) -> Option<u64> {
        match self.until_ms.load(Ordering::Acquire) {
            0 => None,
            until_ms => Some(until_ms),
        }
    }

    /// Begins a pause. A pause that exists for the same reason is neither shortened nor narrowed.
    pub fn begin(&self, reason: PauseReason, now_ms: u64, until_ms: u64, includes_reads: bool) {
        let mut scopes = self.scopes.lock();
        let hold = &mut scopes[reason as usize];
        let current = hold.filter(|hold| now_ms < hold.until_ms);
        *hold = Some(PauseScope {
            until_ms: current.map_or(until_ms, |hold| hold.until_ms.max(until_ms)),
            includes_reads: includes_reads || current.is_some_and(|hold| hold.includes_reads),
        });
        self.recompute(&scopes);
    }

    /// Ends the pauses that are due. Returns `true` if clients may continue because of that.
    pub fn end_if_due(&self, now_ms: u64) -> bool {
        let mut scopes = self.scopes.lock();
        let before = self.current_ends();
        for hold in scopes.iter_mut() {
            *hold = hold.filter(|hold| now_ms < hold.until_ms);
        }
        self.recompute(&scopes);
        self.current_ends() != before
    }

    /// Ends the pause of one reason. Returns `true` if clients may continue because of that.
    pub fn end(&self, reason: PauseReason) -> bool {
        let mut scopes = self.scopes.lock();
        let before = self.current_ends();
        scopes[reason as usize] = None;
        self.recompute(&scopes);
        self.current_ends() != before
    }

    /// Returns the reason of the pause that lasts longest at `now_ms`, and its end in milliseconds. With `only_reads`
    /// pauses that hold back only writes do not count.
    pub fn longest(&self, now_ms: u64, only_reads: bool) -> Option<(PauseReason, u64)> {
        let scopes = self.scopes.lock();
        let pauses = PAUSE_REASONS.iter().zip(scopes.iter());
        let running = pauses.filter_map(|(reason, scope)| {
            let scope = scope.filter(|scope| now_ms < scope.until_ms && (scope.includes_reads || !only_reads))?;
            Some((*reason, scope.until_ms))
        });
        // Of several that end at the same time the first counts.
        running.reduce(|longest, next| if next.1 > longest.1 { next } else { longest })
    }

    /// Returns the next time at which a client may continue, in milliseconds since the Unix epoch.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.end_ms()?;
        self.scopes.lock().iter().flatten().map(|hold| hold.until_ms).min()
    }

    fn current_ends(&self) -> (u64, u64) {
        let load = |end: &AtomicU64| end.load(Ordering::Relaxed);
        (load(&self.until_ms), load(&self.all_until_ms))
    }

    fn recompute(&self, wanted: &[Option<PauseScope>; PAUSE_REASONS.len()]) {
        let last = |all: bool| {
            let holds = wanted.iter().flatten().filter(|hold| hold.includes_reads || !all);
            holds.map(|hold| hold.until_ms).max().unwrap_or(0)
        };
        self.all_until_ms.store(last(true), Ordering::Relaxed);
        self.until_ms.store(last(false), Ordering::Release);
    }

    /// Returns the number of times that paused clients were resumed. A command that would wait for the end of a pause
    /// reads it before it finds itself held back, and waits until it has changed.
    pub fn resumptions(&self) -> u64 {
        self.resumptions.load(Ordering::Acquire)
    }

    /// Calls a function as soon as the number of resumptions is not `resumptions` any more. So a command that left its
    /// worker waits without a thread.
    pub fn run_after_resumption(&self, resumptions: u64, run: impl FnOnce() + Send + 'static) {
        let mut waiting = self.after_resumption.lock();
        if self.resumptions() == resumptions {
            return waiting.push(Box::new(run));
        }
        drop(waiting);
        run();
    }

    /// Calls the functions that wait for a resumption. What they let continue may find itself held back again.
    fn run_waiting(&self) {
        let waiting = {
            let mut waiting = self.after_resumption.lock();
            self.resumptions.fetch_add(1, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        for run in waiting {
            run();
        }
    }

    /// Returns `true` if writes are held back at `now_ms`. Nothing may change then, so keys do not expire either.
    #[inline]
    pub fn are_writes_paused(&self, now_ms: u64) -> bool {
        self.is_paused(now_ms, true)
    }

    /// Returns `true` if the command is held back at `now_ms`.
    #[inline]
    pub fn is_paused(&self, now_ms: u64, is_write: bool) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms != 0 && now_ms < until_ms && (is_write || now_ms < self.all_until_ms.load(Ordering::Relaxed))
    }
}

impl Server {
    /// Holds back the commands of all clients until `until_ms`: all commands, or only writes.
    pub fn pause_clients(&self, reason: PauseReason, now_ms: u64, until_ms: u64, includes_reads: bool) {
        // Those whose pause is over must not wait for the end of the new one.
        self.end_due_pause(now_ms);
        self.clients.pause.begin(reason, now_ms, until_ms, includes_reads);
        // The coordinator sleeps until its next task, which may be due earlier now.
        self.background.wake_coordinator();
    }

    /// Ends the pause of this reason. The clients continue unless another reason holds them back.
    pub fn unpause_clients(&self, reason: PauseReason) {
        if self.clients.pause.end(reason) {
            self.resume_clients();
        }
    }

    /// Ends the hold of these slots. Their clients continue, or are redirected.
    pub fn release_held_slots(&self, slots: &SlotSet) {
        self.clients.pause.held_slots.release(slots);
        self.resume_clients();
    }

    /// Ends the pauses that are due at `now_ms`, and resumes the clients.
    pub fn end_due_pause(&self, now_ms: u64) {
        if self.clients.pause.end_if_due(now_ms) {
            self.resume_clients();
        }
    }

    fn resume_clients(&self) {
        for worker in &self.workers {
            worker.send(Message::ResumePaused);
        }
        self.clients.pause.run_waiting();
    }
}

#[cfg(test)]
mod tests;
