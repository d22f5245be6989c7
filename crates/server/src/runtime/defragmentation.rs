//! Active defragmentation: a thread that moves entries and values together while too much memory lies in the free
//! places between them.
//!
//! The thread exists while `activedefrag` is on. It compares the fragmentation ([`AllocatorFigures::fragmented`]) with
//! the thresholds, as Valkey does. If both are exceeded, it walks over the keyspace ([`DefragWalk`]) in cycles of
//! `active-defrag-cycle-us`, and sleeps between them so long that it takes the share of one CPU that follows from the
//! fragmentation. What has become free is returned to the operating system by `runtime/reclaim.rs`.
//!
//! ```text
//!   every 100 ms:  fragmentation above both thresholds? ──▶ a walk:  cycle, sleep, cycle, sleep, ... ──▶ again?
//! ```
//!
//! 1. The allocator and the slab keep free memory for each thread, which would keep its slabs. So the workers and the
//!    freeing thread are asked to return it before a walk.
//! 2. The share of the CPU rises with the fragmentation and does not fall before the end of a walk. The parameters are
//!    read in each cycle.
//! 3. A walk may have little effect: the free places may be in memory that does not belong to keys, or a client may
//!    change the keys as fast as they are moved. Then the next walk is put off, for longer each time.
//! 4. While data are being loaded there is no walk. A snapshot does not matter, since the process does not fork.

use std::sync::{Arc, Weak};
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_config::{Config, id};
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_table::relocation::{MoveCounts, Mover};

use crate::keyspace::Seat;
use crate::keyspace::defragmentation::{DefragWalk, WalkProgress};
use crate::keyspace::lazyfree::DeferredFree;
use crate::observability::log;
use crate::observability::memory::{self, AllocatorFigures};
use crate::state::{Message, Server};

/// The interval between two looks at the fragmentation while there is no walk.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The same during a walk.
const WALK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a slot that another thread has leased, when there is nothing else to do meanwhile.
const LEASED_SLOT_PAUSE: Duration = Duration::from_millis(5);
/// The units of work under one lease: about 200 µs.
const UNITS_PER_STEP: u32 = 800;
/// A walk has little effect if it leaves more than this share of the fragmentation, in percent.
const LITTLE_EFFECT_PERCENT: u64 = 90;
/// A fragmentation that has grown by this share ends the time for which a walk is put off, in percent.
const GROWTH_PERCENT: u64 = 25;
/// The time for which the next walk is put off after the first one with little effect, and the longest such time.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(120);

/// The event of the latency monitor, as in Valkey.
const LATENCY_EVENT: &str = "active-defrag-cycle";

/// Starts the thread if active defragmentation is on and there is none. Called periodically by the coordinator.
pub fn start_if_enabled(server: &Arc<Server>) {
    // What the allocator keeps differs from run to run of a simulation.
    if cfg!(feature = "simulated") || !server.config.boolean(id::ACTIVEDEFRAG) {
        return;
    }
    let has_thread = &server.background.has_defragmenter;
    if has_thread.load(Ordering::Acquire) {
        return;
    }
    // Without a free thread index it is tried again later.
    let Some(seat) = server.keyspace.slots.join() else {
        return;
    };
    has_thread.store(true, Ordering::Release);
    let of_thread = Arc::downgrade(server);
    let spawned = weft_os::thread::Builder::new()
        .name("weft-defrag".to_owned())
        .spawn(move || run(&of_thread, seat));
    if let Err(error) = spawned {
        has_thread.store(false, Ordering::Release);
        log::warning!("No thread can move values together: {error}");
    }
}

/// Runs until active defragmentation is switched off, or the server ends.
fn run(weak: &Weak<Server>, mut seat: Seat) {
    let mover = Mover::for_this_thread();
    if mover.is_none() {
        log::warning!("Active defragmentation has no effect: the allocator does not say where values lie");
    }
    let mut defragmenter = mover.map(Defragmenter::new);
    while let Some(server) = weak.upgrade() {
        if !server.config.boolean(id::ACTIVEDEFRAG) {
            server.stats.defragmentation.set_running_percent(0);
            // The thread index must be free when the next thread wants one.
            drop((defragmenter, seat));
            server.background.has_defragmenter.store(false, Ordering::Release);
            return;
        }
        let pause = match &mut defragmenter {
            Some(defragmenter) => defragmenter.take_turn(&server, &mut seat),
            None => CHECK_INTERVAL,
        };
        drop(server);
        sleep_while_enabled(weak, pause);
    }
}

/// Sleeps in short pieces, until active defragmentation is switched off or the server ends.
fn sleep_while_enabled(server: &Weak<Server>, pause: Duration) {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        weft_os::thread::sleep(left.min(CHECK_INTERVAL));
        let is_enabled = server
            .upgrade()
            .is_some_and(|server| server.config.boolean(id::ACTIVEDEFRAG));
        if left <= CHECK_INTERVAL || !is_enabled {
            return;
        }
    }
}

/// The state of the thread.
struct Defragmenter {
    mover: Mover,
    /// The walk that is under way.
    walk: Option<Walk>,
    /// The next look at the fragmentation.
    next_check: Instant,
    postponement: Postponement,
}

/// A walk that is under way.
struct Walk {
    position: DefragWalk,
    started: Instant,
    /// The fragmentation in bytes when the walk began.
    fragmented: u64,
    /// The highest fragmentation since then, in percent of the allocated bytes.
    percent: f64,
    counts: MoveCounts,
}

impl Walk {
    fn new(figures: &AllocatorFigures) -> Self {
        Walk {
            position: DefragWalk::new(),
            started: Instant::now(),
            fragmented: figures.fragmented,
            percent: figures.fragmented_percent(),
            counts: MoveCounts::default(),
        }
    }
}

impl Defragmenter {
    fn new(mover: Mover) -> Self {
        Defragmenter {
            mover,
            walk: None,
            next_check: Instant::now(),
            postponement: Postponement::default(),
        }
    }

    /// Looks at the fragmentation if that is due, and moves entries and values for one cycle if there is a walk.
    /// Returns the time until the next turn.
    fn take_turn(&mut self, server: &Server, seat: &mut Seat) -> Duration {
        if server.lacks_data() {
            // What is there belongs to the loading thread.
            return CHECK_INTERVAL;
        }
        let now = Instant::now();
        if now >= self.next_check {
            self.check_fragmentation(server, now);
        }
        let Some(walk) = &mut self.walk else {
            return CHECK_INTERVAL;
        };
        let config = &server.config;
        let percent = cpu_percent(config, walk.percent);
        server.stats.defragmentation.set_running_percent(percent);
        let deadline = now + Duration::from_micros(config.unsigned(id::ACTIVE_DEFRAG_CYCLE_US));
        let units = units_per_step(config);
        let hasher = &server.keyspace.hasher;
        let progress = walk.position.walk_until(seat, hasher, &mut self.mover, units, deadline);
        let worked = walk.position.take_worked();
        let counts = self.mover.take_counts();
        note_counts(server, &counts);
        walk.counts.moved += counts.moved;
        walk.counts.moved_bytes += counts.moved_bytes;
        note_latency(server, worked);
        if progress == WalkProgress::Finished {
            self.end_walk(server);
        }
        let pause = pause_after(worked, percent);
        match progress {
            WalkProgress::SlotLeased => pause.max(LEASED_SLOT_PAUSE),
            _ => pause,
        }
    }

    /// Begins a walk if there is none and the fragmentation requires one, or adapts the present one.
    fn check_fragmentation(&mut self, server: &Server, now: Instant) {
        let interval = match self.walk {
            Some(_) => WALK_CHECK_INTERVAL,
            None => CHECK_INTERVAL,
        };
        self.next_check = now + interval;
        let Some(figures) = memory::figures() else {
            return;
        };
        match &mut self.walk {
            Some(walk) => walk.percent = walk.percent.max(figures.fragmented_percent()),
            None => self.begin_walk_if_needed(server, &figures, now),
        }
    }

    fn begin_walk_if_needed(&mut self, server: &Server, figures: &AllocatorFigures, now: Instant) {
        if !is_above_thresholds(&server.config, figures) || self.postponement.is_running(figures.fragmented, now) {
            return;
        }
        request_free_memory(server);
        log::verbose!(
            "Starting active defrag, frag={:.0}%, frag_bytes={}, cpu={}%",
            figures.fragmented_percent(),
            figures.fragmented,
            cpu_percent(&server.config, figures.fragmented_percent())
        );
        self.walk = Some(Walk::new(figures));
    }

    /// Ends the present walk, and begins another one if that is needed and promises an effect.
    fn end_walk(&mut self, server: &Server) {
        let (Some(walk), Some(figures)) = (self.walk.take(), memory::figures()) else {
            return;
        };
        log::verbose!(
            "Active defrag done in {}ms, reallocated={}, bytes={}, frag={:.0}%, frag_bytes={}",
            walk.started.elapsed().as_millis(),
            walk.counts.moved,
            walk.counts.moved_bytes,
            figures.fragmented_percent(),
            figures.fragmented
        );
        let now = Instant::now();
        self.postponement.note_walk(walk.fragmented, figures.fragmented, now);
        self.begin_walk_if_needed(server, &figures, now);
        if self.walk.is_none() {
            server.stats.defragmentation.set_running_percent(0);
        }
    }
}

/// The time for which walks are put off because the last ones had little effect.
#[derive(Debug, Default)]
struct Postponement {
    /// The time before which there is no walk, and the fragmentation above which there is one nevertheless.
    until: Option<(Instant, u64)>,
    /// The number of walks in a row that had little effect.
    futile_walks: u32,
}

impl Postponement {
    /// Records the fragmentation before and after a walk, in bytes.
    fn note_walk(&mut self, before: u64, after: u64, now: Instant) {
        if after.saturating_mul(100) <= before.saturating_mul(LITTLE_EFFECT_PERCENT) {
            *self = Postponement::default();
            return;
        }
        let delay = MIN_DELAY.saturating_mul(1 << self.futile_walks.min(16)).min(MAX_DELAY);
        self.futile_walks += 1;
        self.until = Some((now + delay, after / 100 * (100 + GROWTH_PERCENT)));
    }

    /// Returns `true` if there should be no walk yet, with this fragmentation in bytes.
    fn is_running(&self, fragmented: u64, now: Instant) -> bool {
        self.until
            .is_some_and(|(until, limit)| now < until && fragmented <= limit)
    }
}

/// Makes the workers and the freeing thread return the free memory that the allocator keeps for them.
fn request_free_memory(server: &Server) {
    for worker in &server.workers {
        worker.send(Message::ReturnFreeMemory);
    }
    let value: DeferredFree = Box::new(ReturnWhenFreed);
    server.background.lazyfree.free(0, 0, value);
}

/// Returns the free memory of the thread that drops it: it is sent to the freeing thread.
struct ReturnWhenFreed;

impl Drop for ReturnWhenFreed {
    fn drop(&mut self) {
        memory::return_thread_memory();
    }
}

/// Returns `true` if the fragmentation is as high as `active-defrag-threshold-lower` and `active-defrag-ignore-bytes`.
fn is_above_thresholds(config: &Config, figures: &AllocatorFigures) -> bool {
    figures.fragmented >= config.unsigned(id::ACTIVE_DEFRAG_IGNORE_BYTES)
        && figures.fragmented_percent() >= config.integer(id::ACTIVE_DEFRAG_THRESHOLD_LOWER) as f64
}

/// Returns the share of a CPU in percent for a fragmentation in percent: it rises from `active-defrag-cycle-min` at the
/// lower threshold to `active-defrag-cycle-max` at the upper one.
fn cpu_percent(config: &Config, fragmented_percent: f64) -> u32 {
    let number = |parameter| config.integer(parameter) as f64;
    let (lower, upper) = (
        number(id::ACTIVE_DEFRAG_THRESHOLD_LOWER),
        number(id::ACTIVE_DEFRAG_THRESHOLD_UPPER),
    );
    let (least, most) = (number(id::ACTIVE_DEFRAG_CYCLE_MIN), number(id::ACTIVE_DEFRAG_CYCLE_MAX));
    let position = match upper > lower {
        true => ((fragmented_percent - lower) / (upper - lower)).clamp(0.0, 1.0),
        false => 1.0,
    };
    // The maximum may be set below the minimum: the maximum counts, as in Valkey.
    (least + (most - least) * position).min(most.max(1.0)) as u32
}

/// Returns the units of work of one step: a part of a value takes one if it is not moved.
fn units_per_step(config: &Config) -> u32 {
    let parts = config.unsigned(id::ACTIVE_DEFRAG_MAX_SCAN_FIELDS);
    u32::try_from(parts).unwrap_or(UNITS_PER_STEP).clamp(1, UNITS_PER_STEP)
}

/// Returns the time to sleep after a cycle, so that cycles take this share of the time.
fn pause_after(cycle: Duration, percent: u32) -> Duration {
    let percent = percent.clamp(1, 100);
    cycle * (100 - percent) / percent
}

fn note_counts(server: &Server, counts: &MoveCounts) {
    let figures = &server.stats.defragmentation;
    for (counter, number) in [
        (&figures.moved, counts.moved),
        (&figures.kept, counts.kept),
        (&figures.moved_keys, counts.moved_entries),
        (&figures.kept_keys, counts.kept_entries),
    ] {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

fn note_latency(server: &Server, cycle: Duration) {
    let threshold_ms = server.config.unsigned(id::LATENCY_MONITOR_THRESHOLD);
    let ms = cycle.as_millis() as u64;
    if threshold_ms > 0 && ms >= threshold_ms {
        server.stats.history.latency.add(LATENCY_EVENT, unix_ms() / 1000, ms);
    }
}

#[cfg(test)]
mod tests;
