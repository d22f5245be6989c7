//! Big keys: the state and the result of a scan for the keys that take the most memory.
//!
//! ```text
//!   start ─▶ running ─▶ (the coordinator sends a step to a background thread, once per round of its work)
//!               │          begin_step: position, sizes that are big enough  ─▶ the thread walks for some time
//!               │          end_step: what it has found, the next position  ◀─┘
//!               ├─ all slots of all databases are visited ─▶ complete
//!               └─ stopped, or the next start                 ─▶ the step in progress changes nothing any more
//! ```
//!
//! The lock is held for moments only: a step works on a copy. The walk itself is `keyspace/big_key_scan.rs`.

use std::time::Duration;

use weft_base::DbIndex;
use weft_os::atomic::Ordering;
use weft_os::statistics::AtomicU64;
use weft_os::sync::Mutex;

#[cfg(test)]
mod tests;

/// The names of the types, as TYPE shows them.
pub const TYPES: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];
/// The number of bytes of a key's name that a scan keeps.
pub const MAX_NAME_BYTES: usize = 256;
/// The default number of keys of each type.
pub const DEFAULT_COUNT: usize = 10;
/// The highest number of keys of each type.
pub const MAX_COUNT: usize = 100;
/// The default share of a background thread's time that a scan takes, in per cent.
pub const DEFAULT_EFFORT: u32 = 5;
/// The highest share of a background thread's time that a scan may take, in per cent.
pub const MAX_EFFORT: u32 = 50;

/// A big key. The order is that of the sizes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BigKey {
    /// The bytes that the key and its value take from the allocator, as MEMORY USAGE counts them.
    pub bytes: u64,
    /// The number of elements; of a string, its length in bytes.
    pub elements: u64,
    /// The database.
    pub db: DbIndex,
    /// The name, or its first [`MAX_NAME_BYTES`].
    pub name: Vec<u8>,
    /// The length of the whole name, in bytes.
    pub name_bytes: usize,
}

/// The biggest keys, at most `limit`, the biggest first.
#[derive(Clone, Debug, Default, PartialEq)]
struct BiggestKeys {
    limit: usize,
    keys: Vec<BigKey>,
}

impl BiggestKeys {
    fn new(limit: usize) -> Self {
        BiggestKeys {
            limit,
            keys: Vec::new(),
        }
    }

    /// Returns the size that a key must exceed.
    fn threshold(&self) -> u64 {
        match self.keys.last() {
            Some(last) if self.keys.len() >= self.limit => last.bytes,
            _ => 0,
        }
    }

    fn insert(&mut self, key: BigKey) {
        let position = self.keys.partition_point(|other| *other >= key);
        self.keys.insert(position, key);
        self.keys.truncate(self.limit);
    }
}

/// The figures of one type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeFigures {
    /// The number of keys.
    pub keys: u64,
    /// The bytes of all keys.
    pub bytes: u64,
    biggest: BiggestKeys,
}

impl TypeFigures {
    fn new(limit: usize) -> Self {
        TypeFigures {
            biggest: BiggestKeys::new(limit),
            ..TypeFigures::default()
        }
    }

    /// Returns the biggest keys, the biggest first.
    pub fn biggest(&self) -> &[BigKey] {
        &self.biggest.keys
    }
}

/// The phase of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScanPhase {
    /// There was none.
    #[default]
    None,
    /// It is in progress.
    Running,
    /// It has visited all keys.
    Complete,
    /// It was stopped.
    Stopped,
}

impl ScanPhase {
    /// Returns the word for the phase.
    pub const fn name(self) -> &'static str {
        match self {
            ScanPhase::None => "none",
            ScanPhase::Running => "running",
            ScanPhase::Complete => "complete",
            ScanPhase::Stopped => "stopped",
        }
    }
}

/// A report about the biggest keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BigKeyReport {
    /// The phase of the scan.
    pub phase: ScanPhase,
    /// The start, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// The duration so far, in milliseconds.
    pub duration_ms: u64,
    /// The number of scans that were completed since the server started.
    pub completed_scans: u64,
    /// The number of slots that were left out because other threads used them all the time.
    pub skipped_slots: u64,
    /// The id that the client which started the scan gave it; 0 for none.
    pub id: u64,
    /// The figures by type, in the order of [`TYPES`].
    pub types: [TypeFigures; TYPES.len()],
}

/// The position of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanPosition {
    /// The index of the database.
    pub db: usize,
    /// The position of the walk in that database, as a number.
    pub cursor: u64,
    /// The number of times that the slot at this position was in use, one after the other.
    pub refusals: u32,
}

/// A scan.
#[derive(Clone, Debug, Default)]
struct Scan {
    /// A number that no other scan has.
    number: u64,
    /// The id that the client which started it gave it; 0 for none.
    id: u64,
    phase: ScanPhase,
    count: usize,
    effort: u32,
    started_ms: u64,
    ended_ms: u64,
    position: ScanPosition,
    skipped_slots: u64,
    types: [TypeFigures; TYPES.len()],
}

/// A step of a scan, which belongs to the thread that performs it.
pub struct ScanStep {
    /// The number of the scan.
    number: u64,
    /// The present position.
    pub position: ScanPosition,
    /// The time that the step may take.
    pub budget: Duration,
    /// Set once all keys are visited.
    pub is_complete: bool,
    /// The number of slots that the step has left out.
    pub skipped_slots: u64,
    /// The sizes that keys must exceed.
    thresholds: [u64; TYPES.len()],
    types: [TypeFigures; TYPES.len()],
}

impl ScanStep {
    /// Counts a key of the type with this index in [`TYPES`]. Returns `true` if it is one of the biggest so far, so
    /// that it is to be added.
    #[inline]
    pub fn count(&mut self, kind: usize, bytes: u64) -> bool {
        let figures = &mut self.types[kind];
        figures.keys += 1;
        figures.bytes += bytes;
        bytes > self.thresholds[kind].max(figures.biggest.threshold())
    }

    /// Adds a key that is one of the biggest.
    pub fn add(&mut self, kind: usize, db: DbIndex, name: &[u8], bytes: u64, elements: u64) {
        self.types[kind].biggest.insert(BigKey {
            bytes,
            elements,
            db,
            name: name[..name.len().min(MAX_NAME_BYTES)].to_vec(),
            name_bytes: name.len(),
        });
    }
}

/// The biggest key of each type in the last complete scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BiggestOfTypes {
    /// The bytes, in the order of [`TYPES`].
    pub bytes: [u64; TYPES.len()],
    /// The elements of the key with the most bytes, in the same order.
    pub elements: [u64; TYPES.len()],
}

/// The big keys of a server.
#[derive(Default)]
pub struct BigKeys {
    scan: Mutex<Scan>,
    last: Mutex<Option<BiggestOfTypes>>,
    /// 1 while a scan is in progress.
    is_running: AtomicU64,
    /// 1 while a step waits for a thread, or is performed.
    has_step: AtomicU64,
    completed_scans: AtomicU64,
}

impl BigKeys {
    /// Starts a scan for the `count` biggest keys of each type, which takes `effort` per cent of a background thread's
    /// time. `id` is the client's name for this scan, or 0. Returns `false` if a scan is in progress.
    pub fn start(&self, count: usize, effort: u32, now_ms: u64, id: u64) -> bool {
        let mut scan = self.scan.lock();
        if scan.phase == ScanPhase::Running {
            return false;
        }
        let count = count.clamp(1, MAX_COUNT);
        *scan = Scan {
            number: scan.number + 1,
            id,
            phase: ScanPhase::Running,
            count,
            effort: effort.clamp(1, MAX_EFFORT),
            started_ms: now_ms,
            types: std::array::from_fn(|_| TypeFigures::new(count)),
            ..Scan::default()
        };
        self.is_running.store(1, Ordering::Relaxed);
        true
    }

    /// Stops the scan. What it has found remains. Returns `false` if none was in progress.
    pub fn stop(&self, now_ms: u64) -> bool {
        self.stop_if(now_ms, |_| true)
    }

    /// Does the same if the scan was started with this id. Returns `false` if it was not, or is not in progress.
    pub fn stop_own(&self, id: u64, now_ms: u64) -> bool {
        self.stop_if(now_ms, |scan| scan.id == id)
    }

    fn stop_if(&self, now_ms: u64, is_meant: impl FnOnce(&Scan) -> bool) -> bool {
        let mut scan = self.scan.lock();
        let is_stopped = scan.phase == ScanPhase::Running && is_meant(&scan);
        if is_stopped {
            (scan.phase, scan.ended_ms) = (ScanPhase::Stopped, now_ms);
            self.is_running.store(0, Ordering::Relaxed);
        }
        is_stopped
    }

    /// Stops the scan and drops what it has found.
    pub fn reset(&self) {
        let mut scan = self.scan.lock();
        *scan = Scan {
            number: scan.number + 1,
            ..Scan::default()
        };
        self.is_running.store(0, Ordering::Relaxed);
        *self.last.lock() = None;
    }

    /// Returns `true` if a step is due: a scan is in progress, and no step of it. The caller has the step performed.
    pub fn take_step_turn(&self) -> bool {
        self.is_running.load(Ordering::Relaxed) != 0 && self.has_step.swap(1, Ordering::Relaxed) == 0
    }

    /// Begins a step after [`Self::take_step_turn`], in a round of background work that has this length. Returns `None`
    /// if the scan was stopped.
    pub fn begin_step(&self, round: Duration) -> Option<ScanStep> {
        let scan = self.scan.lock();
        if scan.phase != ScanPhase::Running {
            drop(scan);
            self.has_step.store(0, Ordering::Relaxed);
            return None;
        }
        Some(ScanStep {
            number: scan.number,
            position: scan.position,
            budget: round * scan.effort / 100,
            is_complete: false,
            skipped_slots: 0,
            thresholds: std::array::from_fn(|kind| scan.types[kind].biggest.threshold()),
            types: std::array::from_fn(|_| TypeFigures::new(scan.count)),
        })
    }

    /// Ends a step. Its result counts if its scan is still in progress.
    pub fn end_step(&self, step: ScanStep, now_ms: u64) {
        let mut scan = self.scan.lock();
        if scan.number == step.number && scan.phase == ScanPhase::Running {
            scan.position = step.position;
            scan.skipped_slots += step.skipped_slots;
            for (sum, found) in scan.types.iter_mut().zip(step.types) {
                sum.keys += found.keys;
                sum.bytes += found.bytes;
                found.biggest.keys.into_iter().for_each(|key| sum.biggest.insert(key));
            }
            if step.is_complete {
                (scan.phase, scan.ended_ms) = (ScanPhase::Complete, now_ms);
                self.is_running.store(0, Ordering::Relaxed);
                self.completed_scans.fetch_add(1, Ordering::Relaxed);
                *self.last.lock() = Some(biggest_of_types(&scan.types));
            }
        }
        drop(scan);
        self.has_step.store(0, Ordering::Relaxed);
    }

    /// Returns the number of scans that were completed since the server started.
    pub fn completed_scans(&self) -> u64 {
        self.completed_scans.load(Ordering::Relaxed)
    }

    /// Returns the biggest key of each type in the last complete scan.
    pub fn last_complete(&self) -> Option<BiggestOfTypes> {
        *self.last.lock()
    }

    /// Returns the result of the scan so far.
    pub fn report(&self, now_ms: u64) -> BigKeyReport {
        let scan = self.scan.lock().clone();
        let end_ms = match scan.phase {
            ScanPhase::Running => now_ms,
            ScanPhase::None | ScanPhase::Complete | ScanPhase::Stopped => scan.ended_ms,
        };
        BigKeyReport {
            phase: scan.phase,
            started_ms: scan.started_ms,
            duration_ms: end_ms.saturating_sub(scan.started_ms),
            completed_scans: self.completed_scans(),
            skipped_slots: scan.skipped_slots,
            id: scan.id,
            types: scan.types,
        }
    }
}

fn biggest_of_types(types: &[TypeFigures; TYPES.len()]) -> BiggestOfTypes {
    let first = |kind: usize| types[kind].biggest().first();
    BiggestOfTypes {
        bytes: std::array::from_fn(|kind| first(kind).map_or(0, |key| key.bytes)),
        elements: std::array::from_fn(|kind| first(kind).map_or(0, |key| key.elements)),
    }
}
