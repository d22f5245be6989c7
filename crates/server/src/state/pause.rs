//! Commands that are held back for a while: for whom, until when, and how everybody goes on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Message, Server};
use crate::observability::lock;

/// Which commands are held back, and until when: by CLIENT PAUSE, and by this server itself. Workers read it without a lock.
#[derive(Default)]
pub struct Pause {
    /// Milliseconds since the epoch; 0 when not paused.
    until_ms: AtomicU64,
    /// Until when reads wait too.
    all_until_ms: AtomicU64,
    /// Who wants what, of which the above is the sum. Held while that changes.
    wanted: Mutex<[Option<PauseScope>; PAUSE_REASONS]>,
}

/// Why commands are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// CLIENT PAUSE.
    Client,
    /// The server is about to end.
    Shutdown,
    /// A replica is about to take over.
    Failover,
}

const PAUSE_REASONS: usize = 3;

/// What is held back.
#[derive(Clone, Copy, Debug)]
struct PauseScope {
    until_ms: u64,
    all: bool,
}

impl Pause {
    /// When the pause ends, ms since the epoch; `None` when there is none.
    #[inline]
    pub fn end_ms(&self) -> Option<u64> {
        match self.until_ms.load(Ordering::Acquire) {
            0 => None,
            until_ms => Some(until_ms),
        }
    }

    /// Begins a pause. One under way for the same reason is neither shortened nor made to hold back less.
    pub fn begin(&self, reason: PauseReason, now_ms: u64, until_ms: u64, all: bool) {
        let mut wanted = lock(&self.wanted);
        let hold = &mut wanted[reason as usize];
        let current = hold.filter(|hold| now_ms < hold.until_ms);
        *hold = Some(PauseScope {
            until_ms: current.map_or(until_ms, |hold| hold.until_ms.max(until_ms)),
            all: all || current.is_some_and(|hold| hold.all),
        });
        self.recompute(&wanted);
    }

    /// Ends what is due; whether that lets anybody go on.
    pub fn end_if_due(&self, now_ms: u64) -> bool {
        let mut wanted = lock(&self.wanted);
        let before = self.now();
        for hold in wanted.iter_mut() {
            *hold = hold.filter(|hold| now_ms < hold.until_ms);
        }
        self.recompute(&wanted);
        self.now() != before
    }

    /// Ends the pause for a reason; whether that lets anybody go on.
    pub fn end(&self, reason: PauseReason) -> bool {
        let mut wanted = lock(&self.wanted);
        let before = self.now();
        wanted[reason as usize] = None;
        self.recompute(&wanted);
        self.now() != before
    }

    /// When somebody may go on next, ms since the epoch.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.end_ms()?;
        lock(&self.wanted).iter().flatten().map(|hold| hold.until_ms).min()
    }

    fn now(&self) -> (u64, u64) {
        let load = |end: &AtomicU64| end.load(Ordering::Relaxed);
        (load(&self.until_ms), load(&self.all_until_ms))
    }

    fn recompute(&self, wanted: &[Option<PauseScope>; PAUSE_REASONS]) {
        let last = |all: bool| {
            let holds = wanted.iter().flatten().filter(|hold| hold.all || !all);
            holds.map(|hold| hold.until_ms).max().unwrap_or(0)
        };
        self.all_until_ms.store(last(true), Ordering::Relaxed);
        self.until_ms.store(last(false), Ordering::Release);
    }

    /// Whether writes wait at `now_ms`: nothing may change then, so keys do not expire either.
    #[inline]
    pub fn holds_writes(&self, now_ms: u64) -> bool {
        self.holds(now_ms, true)
    }

    /// Whether a command waits at `now_ms`.
    #[inline]
    pub fn holds(&self, now_ms: u64, writes: bool) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms != 0 && now_ms < until_ms && (writes || now_ms < self.all_until_ms.load(Ordering::Relaxed))
    }
}

impl Server {
    /// Holds back the commands of all clients until `until_ms`: all of them, or what writes.
    pub fn pause_clients(&self, reason: PauseReason, now_ms: u64, until_ms: u64, all: bool) {
        self.pause.begin(reason, now_ms, until_ms, all);
        // It sleeps until its next duty, which may now come sooner.
        self.wake_coordinator();
    }

    /// Lets clients go on that were paused for this reason, unless there is another one.
    pub fn unpause_clients(&self, reason: PauseReason) {
        if self.pause.end(reason) {
            self.resume_clients();
        }
    }

    /// Lets paused clients go on if the time of the pause has come.
    pub fn end_due_pause(&self, now_ms: u64) {
        if self.pause.end_if_due(now_ms) {
            self.resume_clients();
        }
    }

    fn resume_clients(&self) {
        for worker in &self.workers {
            worker.send(Message::Unpaused);
        }
    }
}
