//! Pauses: which commands are held back, until when, and how the paused clients continue.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Message, Server};

/// The commands that are held back, and until when: by CLIENT PAUSE and by the server itself. Workers read it without a
/// lock.
#[derive(Default)]
pub struct Pause {
    /// Milliseconds since the epoch; 0 when not paused.
    until_ms: AtomicU64,
    /// Until when reads wait too.
    all_until_ms: AtomicU64,
    /// The pause of each reason, of which the fields above are the sum. Locked while that changes.
    wanted: Mutex<[Option<PauseScope>; PAUSE_REASONS]>,
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

const PAUSE_REASONS: usize = 3;

/// The commands that a pause holds back.
#[derive(Clone, Copy, Debug)]
struct PauseScope {
    until_ms: u64,
    all: bool,
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

    /// Begins a pause. One under way for the same reason is neither shortened nor made to hold back less.
    pub fn begin(&self, reason: PauseReason, now_ms: u64, until_ms: u64, all: bool) {
        let mut wanted = self.wanted.lock();
        let hold = &mut wanted[reason as usize];
        let current = hold.filter(|hold| now_ms < hold.until_ms);
        *hold = Some(PauseScope {
            until_ms: current.map_or(until_ms, |hold| hold.until_ms.max(until_ms)),
            all: all || current.is_some_and(|hold| hold.all),
        });
        self.recompute(&wanted);
    }

    /// Ends the pauses that are due. Returns `true` if that lets any client continue.
    pub fn end_if_due(&self, now_ms: u64) -> bool {
        let mut wanted = self.wanted.lock();
        let before = self.now();
        for hold in wanted.iter_mut() {
            *hold = hold.filter(|hold| now_ms < hold.until_ms);
        }
        self.recompute(&wanted);
        self.now() != before
    }

    /// Ends the pause of one reason. Returns `true` if that lets any client continue.
    pub fn end(&self, reason: PauseReason) -> bool {
        let mut wanted = self.wanted.lock();
        let before = self.now();
        wanted[reason as usize] = None;
        self.recompute(&wanted);
        self.now() != before
    }

    /// Returns the next time at which a client may continue, in milliseconds since the Unix epoch.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.end_ms()?;
        self.wanted.lock().iter().flatten().map(|hold| hold.until_ms).min()
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

    /// Returns `true` if writes are held back at `now_ms`. Nothing may change then, so keys do not expire either.
    #[inline]
    pub fn holds_writes(&self, now_ms: u64) -> bool {
        self.holds(now_ms, true)
    }

    /// Returns `true` if the command is held back at `now_ms`.
    #[inline]
    pub fn holds(&self, now_ms: u64, writes: bool) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms != 0 && now_ms < until_ms && (writes || now_ms < self.all_until_ms.load(Ordering::Relaxed))
    }
}

impl Server {
    /// Holds back the commands of all clients until `until_ms`: all of them, or what writes.
    pub fn pause_clients(&self, reason: PauseReason, now_ms: u64, until_ms: u64, all: bool) {
        self.clients.pause.begin(reason, now_ms, until_ms, all);
        // The coordinator sleeps until its next task, which may be due earlier now.
        self.background.wake_coordinator();
    }

    /// Ends the pause of this reason. The clients continue unless another reason holds them back.
    pub fn unpause_clients(&self, reason: PauseReason) {
        if self.clients.pause.end(reason) {
            self.resume_clients();
        }
    }

    /// Ends the pauses that are due at `now_ms`, and resumes the clients.
    pub fn end_due_pause(&self, now_ms: u64) {
        if self.clients.pause.end_if_due(now_ms) {
            self.resume_clients();
        }
    }

    fn resume_clients(&self) {
        for worker in &self.workers {
            worker.send(Message::Unpaused);
        }
    }
}
