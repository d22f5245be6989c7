//! Saves the parts of a snapshot, on more than one thread while cores are idle.
//!
//! ```text
//!   "weft-snapshot"      head, database ──▶ part ──▶ part ──▶ part ──▶ end of the database ──▶ …
//!                                            ▲        ▲
//!                              parts that are not saved yet: next, returned
//!                                            ▼        │
//!   "weft-snap-help-0"                      part, while a core is idle
//! ```
//!
//! 1. A file has one database after the other, and the keys of a database in any order. So any thread may save any part
//!    of the current database, and helpers have ended before the next database begins.
//! 2. The snapshot's thread itself never pauses, so a snapshot ends on a busy machine, too. It decides how many helpers
//!    may run ([`HelperPermits`]).
//! 3. A helper that has to pause returns its part, which another thread continues. It keeps nothing for which another
//!    thread waits.
//! 4. When a thread stops because the snapshot is cancelled, the consumer has failed, or the format lacks a value, all
//!    of them stop ([`SharedSave::has_stopped`]).

use std::time::Duration;

use weft_os::atomic::{AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::Mutex;
use weft_os::thread::{Builder, Scope, ScopedJoinHandle};
use weft_os::time::Instant;
use weft_reactor::thread_cpu_us;

use super::saver::{SaveStopped, SharedSave, SnapshotChunk, SnapshotSaver, TURN};
use super::yield_cpu_to_workers;
use crate::keyspace::Seat;
use crate::keyspace::before_image::{PARTS, SnapshotWalker};
use crate::persistence::rdb_file::{RdbHeader, write_database};
use crate::state::Server;
use crate::state::spare_cores::SpareCores;
use weft_base::DbIndex;
use weft_config::id;

/// The interval between two decisions about the number of helpers.
const DECISION_INTERVAL: Duration = Duration::from_millis(50);

/// A database at the snapshot's moment.
pub struct Database {
    /// The number of the database.
    pub number: DbIndex,
    /// The number of its keys.
    pub keys: u64,
    /// The number of its keys with an expiry.
    pub with_expiry: u64,
}

/// What was saved.
#[derive(Clone, Copy, Debug)]
pub struct SavedKeys {
    /// The number of keys.
    pub keys: u64,
    /// `true` if the format can represent all of them.
    pub is_representable: bool,
}

impl SavedKeys {
    fn of(saver: &SnapshotSaver<'_>) -> Self {
        SavedKeys {
            keys: saver.keys(),
            is_representable: saver.is_representable(),
        }
    }

    fn add(&mut self, other: SavedKeys) {
        self.keys += other.keys;
        self.is_representable &= other.is_representable;
    }
}

/// The parts of a database that are to be saved.
struct UnsavedParts<'w> {
    make_walker: Box<dyn Fn(usize) -> SnapshotWalker<'w> + Sync + 'w>,
    /// The first part that no thread has taken.
    next: AtomicUsize,
    /// Parts that were begun, and returned.
    returned: Mutex<Vec<SnapshotWalker<'w>>>,
    /// The number of parts that are not saved.
    unsaved: AtomicUsize,
}

impl<'w> UnsavedParts<'w> {
    fn new(make_walker: impl Fn(usize) -> SnapshotWalker<'w> + Sync + 'w) -> Self {
        UnsavedParts {
            make_walker: Box::new(make_walker),
            next: AtomicUsize::new(0),
            returned: Mutex::default(),
            unsaved: AtomicUsize::new(PARTS),
        }
    }

    fn take(&self) -> Option<SnapshotWalker<'w>> {
        if let Some(walker) = self.returned.lock().pop() {
            return Some(walker);
        }
        let add = |next| (next < PARTS).then_some(next + 1);
        let part = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some((self.make_walker)(part))
    }

    fn give_back(&self, walker: SnapshotWalker<'w>) {
        self.returned.lock().push(walker);
    }

    fn note_saved(&self) {
        let before = self.unsaved.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a part is saved once");
    }

    fn are_saved(&self) -> bool {
        self.unsaved.load(Ordering::Acquire) == 0
    }
}

/// Stops all threads of a snapshot when one of them panics: the others would wait for its part.
struct StopOnPanic<'a>(&'a SharedSave<'a>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if weft_os::thread::panicking() {
            self.0.has_stopped.store(true, Ordering::Relaxed);
        }
    }
}

/// The number of helpers that may run.
#[derive(Default)]
struct HelperPermits {
    allowed: AtomicUsize,
    /// The processor time that helpers have used, in µs.
    used_us: AtomicU64,
}

/// Decides how many helpers may run.
struct HelperPolicy {
    max: usize,
    cores: SpareCores,
    decided_at: Instant,
    used_us: u64,
}

impl HelperPolicy {
    fn new(server: &Server, max: usize) -> Self {
        HelperPolicy {
            max,
            cores: SpareCores::new(server),
            decided_at: Instant::now(),
            used_us: 0,
        }
    }

    /// Decides anew if it is time.
    fn update(&mut self, server: &Server, permits: &HelperPermits) {
        // Delays are meant to make a snapshot slow.
        if self.max == 0 || server.config.integer(id::RDB_KEY_SAVE_DELAY) != 0 {
            permits.allowed.store(0, Ordering::Relaxed);
            return;
        }
        if cfg!(any(test, feature = "simulated")) {
            // Helpers run and pause in turn.
            let allowed = 1 - permits.allowed.load(Ordering::Relaxed).min(1);
            permits.allowed.store(allowed, Ordering::Relaxed);
            return;
        }
        if self.decided_at.elapsed() < DECISION_INTERVAL {
            return;
        }
        self.decided_at = Instant::now();
        let used_us = permits.used_us.load(Ordering::Relaxed);
        let spare = self.cores.since_last_call(server, used_us - self.used_us);
        self.used_us = used_us;
        permits.allowed.store(spare.min(self.max), Ordering::Relaxed);
    }
}

/// The helpers of a database that were started.
struct Helpers<'scope, 'env, 's, 'w> {
    scope: &'scope Scope<'scope, 'env>,
    shared: &'env SharedSave<'s>,
    parts: &'env UnsavedParts<'w>,
    permits: &'env HelperPermits,
    threads: Vec<ScopedJoinHandle<'scope, SavedKeys>>,
}

impl<'scope, 'env, 's: 'env, 'w: 'env> Helpers<'scope, 'env, 's, 'w> {
    /// Starts as many helpers as may run. If the system refuses a thread, there are fewer.
    fn start_allowed(&mut self) {
        while self.threads.len() < self.permits.allowed.load(Ordering::Relaxed) {
            let index = self.threads.len();
            let (shared, parts, permits) = (self.shared, self.parts, self.permits);
            let Some(mut seat) = shared.server.keyspace.slots.join() else {
                return;
            };
            let work = move || help(shared, parts, permits, index, &mut seat);
            let name = format!("weft-snap-help-{index}");
            let Ok(thread) = Builder::new().name(name).spawn_scoped(self.scope, work) else {
                return;
            };
            self.threads.push(thread);
        }
    }
}

/// Saves everything, and `end` after the keys. Returns what was saved; if the snapshot has stopped, not everything.
pub fn save_all(
    shared: &SharedSave<'_>,
    seat: &mut Seat,
    head: &RdbHeader<'_>,
    databases: &[Database],
    end: &[u8],
    helpers: usize,
) -> SavedKeys {
    let mut saver = SnapshotSaver::new(shared, seat);
    head.write(saver.output(), shared.style.should_compress);
    let (mut policy, permits) = (HelperPolicy::new(shared.server, helpers), HelperPermits::default());
    let mut by_helpers = SavedKeys {
        keys: 0,
        is_representable: true,
    };
    let mut result = Ok(());
    for (index, database) in databases.iter().enumerate() {
        write_database(saver.output(), database.number, database.keys, database.with_expiry);
        let keyspace = &shared.server.keyspace;
        let is_last = index + 1 == databases.len();
        let parts = UnsavedParts::new(|part| {
            SnapshotWalker::new(
                &keyspace.before_images,
                &keyspace.hasher,
                database.number,
                part,
                is_last,
            )
        });
        let (ended, saved) = save_database(&mut saver, shared, &parts, &mut policy, &permits);
        by_helpers.add(saved);
        result = ended;
        if result.is_err() {
            break;
        }
    }
    if result.is_ok() {
        saver.output().extend_from_slice(end);
        // The reason for a stop is known to the consumer, or the snapshot was cancelled.
        let _ = saver.flush().and_then(|()| saver.send(SnapshotChunk::End));
    }
    by_helpers.add(SavedKeys::of(&saver));
    by_helpers
}

/// Saves a database. Returns what helpers have saved of it, too.
fn save_database<'w>(
    saver: &mut SnapshotSaver<'_>,
    shared: &SharedSave<'_>,
    parts: &UnsavedParts<'w>,
    policy: &mut HelperPolicy,
    permits: &HelperPermits,
) -> (Result<(), SaveStopped>, SavedKeys) {
    let mut saved = SavedKeys {
        keys: 0,
        is_representable: true,
    };
    let result = weft_os::thread::scope(|scope| {
        let _guard = StopOnPanic(shared);
        let mut helpers = Helpers {
            scope,
            shared,
            parts,
            permits,
            threads: Vec::new(),
        };
        let mut result = save_parts(saver, parts, || {
            policy.update(shared.server, permits);
            helpers.start_allowed();
        });
        if result.is_err() {
            shared.has_stopped.store(true, Ordering::Relaxed);
        }
        for thread in helpers.threads {
            match thread.join() {
                Ok(by_helper) => saved.add(by_helper),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        if shared.has_stopped.load(Ordering::Relaxed) {
            result = Err(SaveStopped);
        }
        result
    });
    (result, saved)
}

/// Saves parts on the snapshot's thread until all are saved. `pace` is called once per [`TURN`].
fn save_parts(
    saver: &mut SnapshotSaver<'_>,
    parts: &UnsavedParts<'_>,
    mut pace: impl FnMut(),
) -> Result<(), SaveStopped> {
    // Helpers may begin to send records at any time from now on.
    saver.flush()?;
    while !parts.are_saved() {
        pace();
        let Some(mut walker) = parts.take() else {
            saver.wait()?;
            continue;
        };
        let never_pauses = || {
            pace();
            false
        };
        saver.save_part(&mut walker, never_pauses)?;
        parts.note_saved();
    }
    Ok(())
}

/// Saves parts on a helper's thread, while it may run.
fn help(
    shared: &SharedSave<'_>,
    parts: &UnsavedParts<'_>,
    permits: &HelperPermits,
    index: usize,
    seat: &mut Seat,
) -> SavedKeys {
    yield_cpu_to_workers(shared.server);
    let _guard = StopOnPanic(shared);
    let mut saver = SnapshotSaver::new(shared, seat);
    let result = help_save(&mut saver, parts, permits, index);
    if result.and_then(|()| saver.flush()).is_err() {
        shared.has_stopped.store(true, Ordering::Relaxed);
    }
    SavedKeys::of(&saver)
}

fn help_save(
    saver: &mut SnapshotSaver<'_>,
    parts: &UnsavedParts<'_>,
    permits: &HelperPermits,
    index: usize,
) -> Result<(), SaveStopped> {
    let mut counted_us = 0;
    let mut must_pause = || {
        let used_us = if cfg!(feature = "simulated") {
            0
        } else {
            thread_cpu_us()
        };
        permits.used_us.fetch_add(used_us - counted_us, Ordering::Relaxed);
        counted_us = used_us;
        index >= permits.allowed.load(Ordering::Relaxed)
    };
    while !parts.are_saved() {
        let next = if must_pause() { None } else { parts.take() };
        let Some(mut walker) = next else {
            saver.pause(TURN)?;
            continue;
        };
        match saver.save_part(&mut walker, &mut must_pause)? {
            true => parts.note_saved(),
            false => parts.give_back(walker),
        }
    }
    Ok(())
}
