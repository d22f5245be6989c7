//! Keeps memory within `maxmemory`: looks at it before commands run, and makes room.
//!
//! | memory is | policy | what happens before a command |
//! |---|---|---|
//! | within the limit | any | nothing, until this thread has taken its share of what was left |
//! | above it | `noeviction` | commands that may need memory are refused |
//! | above it | others | keys are evicted: until there is room, or for as long as `maxmemory-eviction-tenacity` allows |
//! | still above it | others | commands run; the worker goes on evicting between its batches |
//! | above it, and nothing is left to evict | others | commands that may need memory are refused |
//!
//! Every worker does this for itself, for no more than what it sees at that moment: it looks again after each key, so several
//! of them take one key too many each at most. What was wanted at the beginning is enough: telling others about evicted keys
//! takes memory too. To look costs a load for each worker, so a thread that has seen room looks
//! again when it has taken its share of that room, or [`QUANTUM`], and at the start of every batch.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_table::{Removed, ValueRef};
use weft_values::Value;

use crate::config::id;
use crate::keyspace::GatePassage;
use crate::keyspace::effects::{Cause, Effects};
use crate::keyspace::eviction::{Chooser, EvictionAttempt, EvictionContext, Policy};
use crate::notify::messages::NotificationSender;
use crate::observability::memory;
use crate::observability::metrics::Counter;
use crate::observability::used_memory::ThreadBalance;
use crate::replication::ReplicationState;

use super::effects::release;
use super::execute::Thread;

/// What a thread may take between two looks, however little room there is, bytes.
const QUANTUM: i64 = 1024;
/// What it may take however much room there is, bytes.
const LARGEST_SHARE: i64 = 1 << 20;
/// Keys that are evicted between two looks at the clock.
const KEYS_A_LOOK: u32 = 16;
/// Evictions before all commands of a batch take no longer than so many of those before one command.
const SHARES_A_BATCH: u32 = 8;
/// Attempts that find all slots in use, one after the other, before others go first.
const BUSY_ATTEMPTS: u32 = 4;

/// What a thread knows of the room there is.
#[derive(Default)]
pub struct MemoryLimit {
    /// Where it counts what it takes; none while there is no limit.
    cell: Option<ThreadBalance>,
    /// Its balance at which it looks again.
    look_at: i64,
    /// The batch in which it looked last.
    batch: u32,
    /// Time spent on eviction in that batch.
    spent: Duration,
    chooser: Chooser,
    /// Whether memory is above the limit, and nothing can be done about it.
    pub is_full: bool,
    /// Whether memory is above the limit, and eviction goes on between batches.
    pub is_evicting: bool,
}

/// How long eviction may take before a command: Valkey's scale. The longest is no limit.
pub fn time_limit(tenacity: i64) -> Duration {
    match tenacity {
        ..=10 => Duration::from_micros(50 * tenacity.max(0) as u64),
        11..=99 => Duration::from_micros((500.0 * 1.15f64.powi(tenacity as i32 - 10)) as u64),
        _ => Duration::MAX,
    }
}

/// Sees to it that there is room, as far as possible; how that ended stands in the thread's [`Room`]. The thread holds no
/// lease. Call it only with a limit.
#[inline]
pub fn make(thread: &mut Thread, pass: &GatePassage<'_>) {
    let room = &thread.room;
    if room.cell.is_some() && room.batch == thread.batches && memory::thread_balance() < room.look_at {
        return;
    }
    look(thread, pass);
}

/// Parameters have changed, and maybe the limit.
#[cold]
pub fn begin(thread: &mut Thread) {
    let room = &mut thread.room;
    (room.is_full, room.is_evicting, room.look_at) = (false, false, i64::MIN);
    if thread.tunables.max_memory == 0 {
        room.cell = None;
    } else if room.cell.is_none() {
        room.cell = thread.server.memory.cell(thread.seat);
    }
}

/// Puts what the thread has taken where others see it. At the end of a turn, for it may sleep then.
#[inline]
pub fn put(thread: &mut Thread) {
    if let Some(cell) = &mut thread.room.cell {
        thread.server.memory.store_balance(cell);
    }
}

#[inline(never)]
fn look(thread: &mut Thread, pass: &GatePassage<'_>) {
    if thread.room.batch != thread.batches {
        (thread.room.batch, thread.room.spent) = (thread.batches, Duration::ZERO);
    }
    let room = match excess(thread) {
        0 => LimitState::Room,
        _ if !may_evict(thread) => LimitState::Room,
        // What is imported stays until the import has ended.
        _ if thread.standing.has(ReplicationState::IMPORTS) => LimitState::Full,
        wanted => match thread.tunables.eviction {
            None => LimitState::Full,
            Some(policy) => evict(thread, pass, policy, wanted),
        },
    };
    note(thread, room);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitState {
    Room,
    /// Not yet: eviction goes on between batches.
    Some,
    /// Not at the moment: others have to do something first.
    Later,
    Full,
}

fn note(thread: &mut Thread, found: LimitState) {
    thread.room.is_full = found == LimitState::Full;
    thread.room.is_evicting = found == LimitState::Some;
    thread.server.memory.note_limit(found == LimitState::Room);
}

/// By how much memory is above the limit. If it is not, the thread's share of the room is set anew.
fn excess(thread: &mut Thread) -> u64 {
    put(thread);
    let server = &thread.server;
    let limit = thread.tunables.max_memory;
    let mut used = server.memory.used_bytes();
    if used > limit {
        used = used.saturating_sub(server.uncounted_memory());
    }
    let left = limit.saturating_sub(used) as i64;
    let workers = server.active_workers.load(Ordering::Relaxed).max(1) as i64;
    let share = (left / (2 * workers)).clamp(QUANTUM, LARGEST_SHARE);
    let excess = used.saturating_sub(limit);
    // Above the limit every command looks: somebody may have made room.
    thread.room.look_at = match excess {
        0 => memory::thread_balance() + share,
        _ => i64::MIN,
    };
    excess
}

/// Whether this server makes room by itself at the moment.
fn may_evict(thread: &Thread) -> bool {
    let ignores = || thread.server.config.boolean(id::REPLICA_IGNORE_MAXMEMORY);
    let follows = thread.standing.has(ReplicationState::FOLLOWS) && ignores();
    let loads = thread.standing.has(ReplicationState::LOADING);
    !follows && !loads && !thread.server.pause.holds_writes(thread.now_ms)
}

/// Evicts until so many bytes are free, there is room, or the time is over.
fn evict(thread: &mut Thread, pass: &GatePassage<'_>, policy: Policy, wanted: u64) -> LimitState {
    let limit = thread.tunables.eviction_time;
    // Who has no time at all still evicts a few keys, as it would not look at the clock before.
    if thread.room.spent > limit.saturating_mul(SHARES_A_BATCH) || thread.effects.log_writer.is_backlogged() {
        return match thread.effects.log_writer.is_backlogged() {
            true => LimitState::Later,
            false => LimitState::Some,
        };
    }
    let start = Instant::now();
    let (mut keys, mut busy, mut freed) = (0u32, 0, 0);
    let found = loop {
        match evict_one(thread, pass, policy) {
            (EvictionAttempt::Evicted, bytes) => (keys, busy, freed) = (keys + 1, 0, freed + bytes),
            (EvictionAttempt::Nothing, _) => break LimitState::Full,
            (EvictionAttempt::Busy, _) => busy += 1,
        }
        // What others are told of evicted keys takes memory too, for a moment: no key goes for that.
        if excess(thread) == 0 || freed >= wanted {
            break LimitState::Room;
        }
        let is_late = keys.is_multiple_of(KEYS_A_LOOK) && start.elapsed() > limit;
        if busy == BUSY_ATTEMPTS {
            break LimitState::Later;
        }
        if is_late || pass.gate_is_closing() {
            break LimitState::Some;
        }
    };
    let elapsed = start.elapsed();
    thread.room.spent = thread.room.spent.saturating_add(elapsed);
    thread.effects.log_writer.wake();
    thread.keep_ready();
    note_spike(thread, "eviction-cycle", elapsed);
    found
}

/// Evicts one key, if it can; with what that has freed, bytes.
fn evict_one(thread: &mut Thread, pass: &GatePassage<'_>, policy: Policy) -> (EvictionAttempt, u64) {
    let start = Instant::now();
    let server = &thread.server;
    let around = EvictionContext {
        keyspace: &server.keyspace,
        pass,
        row: thread.seat,
        clock: thread.clock,
        samples: thread.tunables.eviction_samples,
        lazy: thread.tunables.lazy_eviction,
    };
    let tell = &mut |effects: &mut Effects| NotificationSender::new(server, effects, thread.seat).tell(0);
    let attempt = thread.room.chooser.evict(policy, &around, &mut thread.effects, tell);
    let freed = removed_bytes(&thread.effects.removed);
    if attempt == EvictionAttempt::Evicted {
        release(&mut thread.effects, server);
        server.metrics.add(thread.seat, Counter::EvictedKeys, 1);
        note_spike(thread, "eviction-del", start.elapsed());
    }
    (attempt, freed as u64)
}

/// What entries take with their values, bytes.
fn removed_bytes(removed: &[(Removed<Value>, Cause)]) -> usize {
    let bytes = |entry: &Removed<Value>| match entry.value() {
        ValueRef::Object(object) => entry.allocated_bytes() + object.allocated_bytes(),
        _ => entry.allocated_bytes(),
    };
    removed.iter().map(|(entry, _)| bytes(entry)).sum()
}

fn note_spike(thread: &Thread, event: &'static str, elapsed: Duration) {
    if elapsed.as_nanos() as u64 >= thread.tunables.latency_event_ns {
        let spike_ms = elapsed.as_millis() as u64;
        thread
            .server
            .observed
            .latency
            .add(event, thread.now_ms / 1000, spike_ms);
    }
}

#[cfg(test)]
mod tests;
