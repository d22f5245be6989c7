//! Hot keys: the most used keys, found by sampling the keys of commands.
//!
//! ```text
//!   a command ends ─▶ its keys are subtracted from the thread's countdown      (nothing else, for most commands)
//!                        └─ at zero: one key enters the thread's sketch, and the countdown starts again
//!   a report       ─▶ the sketches of all threads are copied and merged
//! ```
//!
//! A sketch is a Space-Saving summary (A. Metwally, D. Agrawal and A. El Abbadi, "Efficient Computation of Frequent and
//! Top-k Elements in Data Streams", 2005). It has [`SKETCH_KEYS`] counters. A key without a counter takes over the
//! smallest one, whose count becomes the key's error: the key was counted at most that often before. So a counted key
//! has at least `count - error` samples and at most `count`, and every key with more than one in [`SKETCH_KEYS`] of a
//! thread's samples is among the counted ones. Merging adds counts and errors; for a thread that does not count a key,
//! it adds the smallest count of that thread to both (P. Agarwal et al., "Mergeable Summaries", 2012).
//!
//! 1. A sketch belongs to one thread, and its lock is hardly ever contended. A thread that finds it locked drops its
//!    sample instead of waiting for a report.
//! 2. Each start and each reset has a number of its own. A sketch with another number is emptied by its thread's next
//!    sample, and no report shows it.
//! 3. Names are stored up to [`MAX_NAME_BYTES`], so memory is bounded whatever clients send. Keys are told apart by
//!    their hash, which is keyed by a secret of this process.
//! 4. Names of keys are in reports only: neither in the log nor in metrics.

use std::collections::HashMap;

use weft_base::{DbIndex, ThreadIndex};
use weft_os::atomic::Ordering;
use weft_os::statistics::AtomicU64;
use weft_os::sync::Mutex;

#[cfg(test)]
mod tests;

/// The number of keys that a sketch counts.
pub const SKETCH_KEYS: usize = 512;
/// The number of bytes of a key's name that a sketch keeps.
pub const MAX_NAME_BYTES: usize = 256;
/// The default number of uses of keys for each sample.
pub const DEFAULT_SAMPLE_RATIO: u32 = 64;
/// The highest number of uses of keys for each sample.
pub const MAX_SAMPLE_RATIO: u32 = 1_000_000;

/// The bits of [`HotKeys::session`] that hold the sampling ratio. The others hold the number of the session.
const RATIO_BITS: u32 = 32;

/// One use of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeySample<'k> {
    /// The database.
    pub db: DbIndex,
    /// The hash of the key.
    pub hash: u64,
    /// The name of the key.
    pub name: &'k [u8],
    /// `true` if the command may write the key.
    pub is_write: bool,
    /// The key's part of the run time of the command, in nanoseconds.
    pub nanoseconds: u64,
}

/// The counter of a key.
#[derive(Clone, Debug)]
struct KeyCounter {
    db: DbIndex,
    hash: u64,
    count: u64,
    /// The count that the key has taken over: at most so many samples were not of this key.
    error: u64,
    /// The samples of the key since it has the counter.
    counted: u64,
    /// Those of them that may write.
    writes: u64,
    nanoseconds: u64,
    name: Vec<u8>,
    /// The length of the whole name, in bytes.
    name_bytes: usize,
    /// The position in the heap.
    position: usize,
}

impl KeyCounter {
    /// Gives the counter to a key, which takes over `count` samples.
    fn take_over(&mut self, used: &KeySample<'_>, count: u64) {
        (self.db, self.hash) = (used.db, used.hash);
        (self.count, self.error) = (count, count);
        (self.counted, self.writes, self.nanoseconds) = (0, 0, 0);
        self.name.clear();
        self.name
            .extend_from_slice(&used.name[..used.name.len().min(MAX_NAME_BYTES)]);
        self.name_bytes = used.name.len();
    }

    fn add(&mut self, used: &KeySample<'_>) {
        self.count += 1;
        self.counted += 1;
        self.writes += u64::from(used.is_write);
        self.nanoseconds = self.nanoseconds.saturating_add(used.nanoseconds);
    }
}

/// The Space-Saving summary of one thread.
#[derive(Clone, Debug)]
struct KeySketch {
    /// The session to which the samples belong.
    session: u64,
    counters: Vec<KeyCounter>,
    /// The indexes of the counters as a binary heap: no count is smaller than that of its parent.
    heap: Vec<usize>,
    by_key: HashMap<(DbIndex, u64), usize, ahash::RandomState>,
    samples: u64,
    nanoseconds: u64,
}

impl KeySketch {
    fn new(session: u64) -> Self {
        KeySketch {
            session,
            counters: Vec::new(),
            heap: Vec::new(),
            by_key: HashMap::default(),
            samples: 0,
            nanoseconds: 0,
        }
    }

    /// Returns the number of samples that a key without a counter may have.
    fn smallest_count(&self) -> u64 {
        match self.heap.first() {
            Some(first) if self.counters.len() == SKETCH_KEYS => self.counters[*first].count,
            _ => 0,
        }
    }

    fn add(&mut self, used: &KeySample<'_>) {
        self.samples += 1;
        self.nanoseconds = self.nanoseconds.saturating_add(used.nanoseconds);
        let id = (used.db, used.hash);
        let index = match self.by_key.get(&id).copied() {
            Some(index) => index,
            None if self.counters.len() < SKETCH_KEYS => self.create_counter(used),
            None => {
                let index = self.heap[0];
                let counter = &mut self.counters[index];
                self.by_key.remove(&(counter.db, counter.hash));
                let count = counter.count;
                counter.take_over(used, count);
                self.by_key.insert(id, index);
                index
            }
        };
        let counter = &mut self.counters[index];
        counter.add(used);
        let position = counter.position;
        self.sink(position);
    }

    /// Adds a counter of zero, which is the smallest one, at the top of the heap. Returns its index.
    fn create_counter(&mut self, used: &KeySample<'_>) -> usize {
        let index = self.counters.len();
        let mut counter = KeyCounter {
            db: used.db,
            hash: used.hash,
            count: 0,
            error: 0,
            counted: 0,
            writes: 0,
            nanoseconds: 0,
            name: Vec::new(),
            name_bytes: 0,
            position: index,
        };
        counter.take_over(used, 0);
        self.counters.push(counter);
        self.heap.push(index);
        self.by_key.insert((used.db, used.hash), index);
        let mut position = index;
        while position > 0 {
            self.swap(position, (position - 1) / 2);
            position = (position - 1) / 2;
        }
        index
    }

    /// Restores the order of the heap after the count at a position has grown.
    fn sink(&mut self, mut position: usize) {
        let count_at = |sketch: &KeySketch, position: usize| sketch.counters[sketch.heap[position]].count;
        loop {
            let first = 2 * position + 1;
            let children = first..(first + 2).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| count_at(self, *child)) else {
                return;
            };
            if count_at(self, least) >= count_at(self, position) {
                return;
            }
            self.swap(position, least);
            position = least;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.counters[self.heap[one]].position = one;
        self.counters[self.heap[other]].position = other;
    }
}

/// A key in a report. All numbers are estimates of uses, except for those that say otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// The database.
    pub db: DbIndex,
    /// The name, or its first [`MAX_NAME_BYTES`].
    pub name: Vec<u8>,
    /// The length of the whole name, in bytes.
    pub name_bytes: usize,
    /// The uses. The sketches do not underestimate them.
    pub uses: u64,
    /// The uses by which the sketches may overestimate.
    pub error: u64,
    /// The share of the uses of all keys, from 0 to 1.
    pub share: f64,
    /// The share of the key's uses that may write, from 0 to 1.
    pub write_share: f64,
    /// The share of the run time of all commands with keys, from 0 to 1.
    pub time_share: f64,
}

/// A report about the most used keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotKeyReport {
    /// `true` while keys are sampled.
    pub is_active: bool,
    /// The number of uses for each sample; 0 if nothing was ever sampled.
    pub ratio: u32,
    /// The start, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// The time for which the keys were sampled, in milliseconds.
    pub duration_ms: u64,
    /// The number of samples.
    pub samples: u64,
    /// The id that the client which started the sampling gave it; 0 for none.
    pub id: u64,
    /// The keys, by uses, the most used first.
    pub keys: Vec<HotKey>,
}

impl HotKeyReport {
    /// Returns the share that the first `count` keys certainly have in the uses of all keys, from 0 to 1. If all keys
    /// are used evenly, the sketches overestimate the uses of each key that they count by far more than it has.
    pub fn certain_share(&self, count: usize) -> f64 {
        let keys = self.keys.iter().take(count);
        let certain: u64 = keys.map(|key| key.uses.saturating_sub(key.error)).sum();
        let all = self.samples.saturating_mul(u64::from(self.ratio));
        (certain as f64 / all.max(1) as f64).min(1.0)
    }
}

/// The times of a session, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default)]
struct SessionTimes {
    started_ms: u64,
    /// The end; `u64::MAX` until it is stopped.
    ended_ms: u64,
    ratio: u32,
    /// The number of the session.
    session: u64,
    /// The id that the client which started it gave it; 0 for none.
    id: u64,
}

/// The hot keys of a server: the state of the sampling, and the sketches of all threads.
pub struct HotKeys {
    /// The sampling ratio and the number of the session; 0 while nothing is sampled.
    session: AtomicU64,
    /// The time at which the sampling ends by itself, in milliseconds since the Unix epoch.
    until_ms: AtomicU64,
    times: Mutex<SessionTimes>,
    sketches: Box<[Mutex<Option<Box<KeySketch>>>]>,
}

impl HotKeys {
    /// Creates the state for `seats` threads. Nothing is sampled.
    pub fn new(seats: usize) -> Self {
        HotKeys {
            session: AtomicU64::new(0),
            until_ms: AtomicU64::new(u64::MAX),
            times: Mutex::default(),
            sketches: (0..seats).map(|_| Mutex::default()).collect(),
        }
    }

    /// Starts to sample one of `ratio` uses, until `until_ms` at the latest. Drops earlier samples. `id` is the
    /// client's name for this sampling, or 0. Returns `false` if keys are being sampled already.
    pub fn start(&self, ratio: u32, now_ms: u64, until_ms: u64, id: u64) -> bool {
        let mut times = self.times.lock();
        if self.is_active(now_ms) {
            return false;
        }
        *times = SessionTimes {
            started_ms: now_ms,
            ended_ms: u64::MAX,
            ratio: ratio.clamp(1, MAX_SAMPLE_RATIO),
            session: times.session + 1,
            id,
        };
        self.until_ms.store(until_ms, Ordering::Relaxed);
        self.publish(&times);
        true
    }

    /// Stops sampling. The samples remain. Returns `false` if no keys were being sampled.
    pub fn stop(&self, now_ms: u64) -> bool {
        let mut times = self.times.lock();
        let was_active = self.is_active(now_ms);
        self.end(&mut times, now_ms);
        was_active
    }

    /// Does the same if the sampling was started with this id. Returns `false` if it was not, or is off.
    pub fn stop_own(&self, id: u64, now_ms: u64) -> bool {
        let mut times = self.times.lock();
        let is_own = times.id == id && self.is_active(now_ms);
        if is_own {
            self.end(&mut times, now_ms);
        }
        is_own
    }

    fn end(&self, times: &mut SessionTimes, now_ms: u64) {
        if self.session.swap(0, Ordering::Relaxed) != 0 {
            times.ended_ms = now_ms.min(self.until_ms.load(Ordering::Relaxed));
        }
    }

    /// Drops all samples, and their memory as far as no thread needs it. The sampling goes on if it is on.
    pub fn reset(&self, now_ms: u64) {
        let mut times = self.times.lock();
        let is_active = self.is_active(now_ms);
        *times = SessionTimes {
            started_ms: now_ms,
            ended_ms: if is_active { u64::MAX } else { now_ms },
            session: times.session + 1,
            ..*times
        };
        if is_active {
            self.publish(&times);
        } else {
            self.session.store(0, Ordering::Relaxed);
        }
        for sketch in &self.sketches {
            *sketch.lock() = None;
        }
    }

    fn publish(&self, times: &SessionTimes) {
        let session = times.session << RATIO_BITS | u64::from(times.ratio);
        self.session.store(session, Ordering::Relaxed);
    }

    /// Returns `true` while keys are sampled.
    pub fn is_active(&self, now_ms: u64) -> bool {
        self.active_session(now_ms) != 0
    }

    /// Returns what a thread samples by: the ratio in the low half, and a number that changes with each start and
    /// reset. It is 0 while nothing is sampled.
    #[inline]
    pub fn active_session(&self, now_ms: u64) -> u64 {
        match self.session.load(Ordering::Relaxed) {
            0 => 0,
            session if now_ms < self.until_ms.load(Ordering::Relaxed) => session,
            _ => 0,
        }
    }

    /// Returns the number of uses for each sample of a session that [`Self::active_session`] has returned.
    #[inline]
    pub fn ratio_of(session: u64) -> u32 {
        (session & ((1 << RATIO_BITS) - 1)) as u32
    }

    /// Adds a sample to the sketch of a thread. The sample is lost while a report copies the sketch.
    pub fn add(&self, thread_index: ThreadIndex, session: u64, used: &KeySample<'_>) {
        let sketch = self.sketches.get(thread_index.get());
        let Some(mut sketch) = sketch.and_then(Mutex::try_lock) else {
            return;
        };
        match &mut *sketch {
            Some(sketch) if sketch.session == session => sketch.add(used),
            other => other.insert(Box::new(KeySketch::new(session))).add(used),
        }
    }

    /// Returns the `count` most used keys. Copies and merges all sketches, which may take milliseconds.
    pub fn report(&self, count: usize, now_ms: u64) -> HotKeyReport {
        let times = *self.times.lock();
        let is_active = self.is_active(now_ms);
        let end_ms = match times.ended_ms {
            u64::MAX => now_ms.min(self.until_ms.load(Ordering::Relaxed)),
            ended_ms => ended_ms,
        };
        let session = times.session << RATIO_BITS | u64::from(times.ratio);
        let sketches: Vec<Box<KeySketch>> = self
            .sketches
            .iter()
            .filter_map(|sketch| sketch.lock().clone())
            .filter(|sketch| sketch.session == session)
            .collect();
        HotKeyReport {
            is_active,
            ratio: times.ratio,
            started_ms: times.started_ms,
            duration_ms: end_ms.saturating_sub(times.started_ms),
            samples: sketches.iter().map(|sketch| sketch.samples).sum(),
            id: times.id,
            keys: merge(&sketches, count, u64::from(times.ratio)),
        }
    }
}

/// A thread's side of the sampling: which uses of keys it samples.
#[derive(Clone, Debug, Default)]
pub struct HotKeySampler {
    /// The session for which the thread samples, see [`HotKeys::active_session`]; 0 for none.
    session: u64,
    /// The number of uses before the next one that is sampled.
    countdown: usize,
}

impl HotKeySampler {
    /// Returns `true` if the thread samples keys.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.session != 0
    }

    /// Follows the state of the sampling. Called once per batch.
    #[inline]
    pub fn follow(&mut self, hot_keys: &HotKeys, now_ms: u64) {
        let session = hot_keys.active_session(now_ms);
        if session != self.session {
            self.begin_session(session);
        }
    }

    #[cold]
    fn begin_session(&mut self, session: u64) {
        self.session = session;
        self.countdown = self.interval() - 1;
    }

    /// Counts the uses of a command if none of them is sampled, as with most commands. Otherwise returns `false`, and
    /// the caller calls [`Self::sample`].
    #[inline]
    pub fn pass_over(&mut self, uses: usize) -> bool {
        let are_passed = uses <= self.countdown;
        if are_passed {
            self.countdown -= uses;
        }
        are_passed
    }

    /// Calls `sample` with the session and the index of each use that is sampled, of `uses` uses.
    pub fn sample(&mut self, uses: usize, mut sample: impl FnMut(u64, usize)) {
        let mut next = self.countdown;
        while next < uses {
            sample(self.session, next);
            next = next.saturating_add(self.interval());
        }
        self.countdown = next - uses;
    }

    /// Returns the number of uses up to the next sample: random, with the ratio as its mean. The distribution is
    /// geometric, so each use is sampled with the same probability, also by a thread that has just begun.
    fn interval(&self) -> usize {
        let ratio = HotKeys::ratio_of(self.session);
        if ratio <= 1 {
            return 1;
        }
        let skipped = (1.0 - fastrand::f64()).ln() / (-1.0 / f64::from(ratio)).ln_1p();
        1 + skipped as usize
    }
}

/// The sums of a key's counters.
#[derive(Clone, Copy, Default)]
struct MergedCounter<'s> {
    count: u64,
    error: u64,
    counted: u64,
    writes: u64,
    nanoseconds: u64,
    name: &'s [u8],
    name_bytes: usize,
    /// The smallest counts of the sketches that count the key.
    smallest_counts: u64,
}

/// Merges the sketches. Returns the `count` keys with the most samples.
fn merge(sketches: &[Box<KeySketch>], count: usize, ratio: u64) -> Vec<HotKey> {
    let mut merged: HashMap<(DbIndex, u64), MergedCounter<'_>> = HashMap::new();
    for sketch in sketches {
        for counter in &sketch.counters {
            let sum = merged.entry((counter.db, counter.hash)).or_default();
            sum.count += counter.count;
            sum.error += counter.error;
            sum.counted += counter.counted;
            sum.writes += counter.writes;
            sum.nanoseconds = sum.nanoseconds.saturating_add(counter.nanoseconds);
            (sum.name, sum.name_bytes) = (&counter.name, counter.name_bytes);
            sum.smallest_counts += sketch.smallest_count();
        }
    }
    let all_smallest: u64 = sketches.iter().map(|sketch| sketch.smallest_count()).sum();
    let samples: u64 = sketches.iter().map(|sketch| sketch.samples).sum();
    let nanoseconds: u64 = sketches
        .iter()
        .fold(0, |sum: u64, sketch| sum.saturating_add(sketch.nanoseconds));
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let mut keys: Vec<((DbIndex, u64), MergedCounter<'_>)> = merged.into_iter().collect();
    for (_, sum) in &mut keys {
        // The threads that do not count the key may have forgotten it.
        let forgotten = all_smallest.saturating_sub(sum.smallest_counts);
        sum.count += forgotten;
        sum.error += forgotten;
    }
    // By what is certain, so that a key that has just taken over a counter does not come before one that is counted.
    keys.sort_by_key(|((db, _), sum)| (std::cmp::Reverse(sum.count - sum.error), sum.error, *db, sum.name));
    keys.truncate(count);
    keys.into_iter()
        .map(|((db, _), sum)| HotKey {
            db,
            name: sum.name.to_vec(),
            name_bytes: sum.name_bytes,
            uses: sum.count.saturating_mul(ratio),
            error: sum.error.saturating_mul(ratio),
            share: share(sum.count, samples).min(1.0),
            write_share: share(sum.writes, sum.counted),
            time_share: share(sum.nanoseconds, nanoseconds),
        })
        .collect()
}
