//! Keeps memory usage within `maxmemory`: checks it before commands run, and evicts keys.
//!
//! | memory usage is | policy | what happens before a command |
//! |---|---|---|
//! | within the limit | any | nothing, until this thread has used its share of the remaining memory |
//! | above it | `noeviction` | commands that may need memory are refused |
//! | above it | others | keys are evicted, until usage is below the limit or `maxmemory-eviction-tenacity` is used up |
//! | still above it | others | commands run; the worker goes on evicting between its batches |
//! | above it, and nothing is left to evict | others | commands that may need memory are refused |
//!
//! Each worker evicts only as much as its own view of used memory requires. It checks again after each key, so several
//! workers evict at most one key too many each. An eviction frees no more than the excess at its start, because the
//! messages about evicted keys take memory too. Threads that are no workers, such as those that run scripts, correct
//! the shared view directly: otherwise each of their commands would evict keys for the same excess, until the allocator
//! is asked again.
//!
//! A check costs one load per worker. A thread that was below the limit therefore checks again only after it has used
//! its share of the remaining memory, or [`MAX_SHARE_BYTES`], and at the start of every batch.

use std::time::Duration;

use weft_base::ThreadIndex;
use weft_table::{Removed, ValueRef};
use weft_values::Value;

use crate::keyspace::effects::{Effects, RemovalCause};
use crate::keyspace::eviction::{EvictionAccess, EvictionAttempt, EvictionContext, EvictionPolicy};
use crate::keyspace::{Exclusive, GatePassage};
use crate::notify::messages::NotificationSender;
use crate::observability::memory;
use crate::observability::metrics::Counter;
use crate::replication::ReplicationState;
use crate::state::{HOME_WORKER, Message, Server};
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

use super::effects::free_removed_values;
use super::thread::{MemoryLimit, ThreadState};

/// The minimum that a thread may allocate between two checks, however little memory remains, in bytes.
const MIN_SHARE_BYTES: i64 = 1024;
/// The bytes that a thread may take between two checks, however much memory is free.
const MAX_SHARE_BYTES: i64 = 1 << 20;
/// The number of evicted keys between two reads of the clock.
const KEYS_PER_CLOCK_READ: u32 = 16;
/// The time limit of eviction for all commands of a batch, as a multiple of the limit for one command.
const TIME_LIMITS_PER_BATCH: u32 = 8;
/// The number of consecutive attempts that find all slots in use after which eviction pauses for other threads.
const BUSY_ATTEMPTS: u32 = 4;

/// Evicts until memory is below the limit, as far as possible, and records the result in the thread's
/// [`MemoryLimit`](super::thread::MemoryLimit). The thread holds no lease. Must only be called while there is a limit.
#[inline]
pub fn evict_to_limit(thread: &mut ThreadState, pass: &GatePassage<'_>) {
    debug_assert!(thread.tunables.max_memory != 0, "memory is limited");
    let room = &thread.memory_limit;
    if room.cell.is_some() && room.batch == thread.batches && memory::thread_balance() < room.look_at {
        return;
    }
    match thread.home_events.include_changes() {
        true => request_eviction(thread),
        false => check_limit(thread, &mut EvictionAccess::Passage(pass), |_, _| ()),
    }
}

/// Ends the unit of an evicted key, and lets modules have its events.
type EndDeletion = fn(&mut ThreadState, &mut Exclusive<'_>);

/// Does the same in exclusive mode, and calls `end_deletion` for each key. Returns `true` if the limit was checked,
/// after which commands may be admitted that were not before.
#[cold]
pub fn evict_for_modules(thread: &mut ThreadState, all: &mut Exclusive<'_>, end_deletion: EndDeletion) -> bool {
    let has_limit = thread.tunables.max_memory != 0;
    if has_limit {
        check_limit(thread, &mut EvictionAccess::Exclusive(all), end_deletion);
    }
    has_limit
}

/// Lets the home worker evict keys if memory is above the limit, because modules get the events of that there.
#[cold]
fn request_eviction(thread: &mut ThreadState) {
    let state = match excess_bytes(thread) {
        0 => LimitState::WithinLimit,
        _ if !may_evict(thread) => LimitState::WithinLimit,
        _ if thread.replication_state.contains(ReplicationState::IMPORT_MODE) => LimitState::Full,
        _ if thread.tunables.eviction_policy.is_none() => LimitState::Full,
        _ if thread.server.is_home(thread.thread_index) => LimitState::Evicting,
        _ => {
            if !thread.server.modules.is_eviction_requested.swap(true, Ordering::AcqRel) {
                thread.server.worker(HOME_WORKER).send(Message::EvictDue);
            }
            LimitState::Retry
        }
    };
    set_limit_state(thread, state);
}

/// Returns `true` if [`evict_to_limit`] would check the limit now.
#[inline]
pub fn must_check(thread: &ThreadState) -> bool {
    let limit = &thread.memory_limit;
    let is_recent = limit.cell.is_some() && limit.batch == thread.batches && memory::thread_balance() < limit.look_at;
    thread.tunables.max_memory != 0 && !is_recent
}

/// The memory of messages is not counted for one to two such periods after they were created, in milliseconds. By then
/// they are sent, unless their receivers are slow.
pub const MESSAGE_PERIOD_MS: u64 = 10;

/// Excludes what the thread has allocated since its balance was `before`, for messages.
#[inline]
pub fn exclude_messages(thread: &mut ThreadState, before: i64) {
    if thread.tunables.max_memory != 0 {
        let limit = &mut thread.memory_limit;
        exclude_bytes(
            &thread.server,
            limit,
            thread.thread_index,
            memory::thread_balance() - before,
        );
    }
}

fn exclude_bytes(server: &Server, limit: &mut MemoryLimit, worker: ThreadIndex, bytes: i64) {
    // Only workers have a cell, and turns in which the exclusion ends.
    if bytes > 0 && limit.cell.is_some() {
        limit.message_bytes[0] += bytes;
        server.memory.add_message_bytes(worker, bytes);
    }
}

/// Counts the messages of earlier periods again, at the end of a turn.
#[inline]
pub fn end_message_period(thread: &mut ThreadState) {
    let [current, previous] = thread.memory_limit.message_bytes;
    if (current != 0 || previous != 0)
        && thread.now_ms.abs_diff(thread.memory_limit.message_period_start_ms) >= MESSAGE_PERIOD_MS
    {
        thread.server.memory.add_message_bytes(thread.thread_index, -previous);
        thread.memory_limit.message_bytes = [0, current];
        thread.memory_limit.message_period_start_ms = thread.now_ms;
    }
}

/// Publishes what the thread has allocated. It is called at the end of a turn, because the thread may sleep then.
#[inline]
pub fn publish_balance(thread: &mut ThreadState) {
    if let Some(cell) = &mut thread.memory_limit.cell {
        thread.server.memory.store_balance(cell);
    }
}

#[inline(never)]
fn check_limit(thread: &mut ThreadState, access: &mut EvictionAccess<'_, '_>, end_deletion: EndDeletion) {
    if thread.memory_limit.batch != thread.batches {
        (thread.memory_limit.batch, thread.memory_limit.spent) = (thread.batches, Duration::ZERO);
    }
    let room = match excess_bytes(thread) {
        0 => LimitState::WithinLimit,
        _ if !may_evict(thread) => LimitState::WithinLimit,
        // Imported data stays until the import has ended.
        _ if thread.replication_state.contains(ReplicationState::IMPORT_MODE) => LimitState::Full,
        wanted => match thread.tunables.eviction_policy {
            None => LimitState::Full,
            Some(policy) => evict(thread, (access, end_deletion), policy, wanted),
        },
    };
    set_limit_state(thread, room);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitState {
    WithinLimit,
    /// Still above the limit: eviction continues between batches.
    Evicting,
    /// Nothing could be evicted now: other threads must continue first.
    Retry,
    Full,
}

fn set_limit_state(thread: &mut ThreadState, state: LimitState) {
    thread.memory_limit.is_full = state == LimitState::Full;
    thread.memory_limit.is_evicting = state == LimitState::Evicting;
    thread.server.memory.note_limit(state == LimitState::WithinLimit);
}

/// Returns how far memory usage is above the limit, in bytes. If it is not above, sets the thread's new share of the
/// remaining memory.
fn excess_bytes(thread: &mut ThreadState) -> u64 {
    publish_balance(thread);
    let server = &thread.server;
    let limit = thread.tunables.max_memory;
    let new_buffer_bytes = thread.memory_limit.new_buffer_bytes;
    let mut used = server.memory.used_bytes().saturating_sub(new_buffer_bytes);
    if used > limit {
        used = server.counted_memory().saturating_sub(new_buffer_bytes);
    }
    let left = limit.saturating_sub(used) as i64;
    let workers = server.lifecycle.active_workers.load(Ordering::Relaxed).max(1) as i64;
    let share = (left / (2 * workers)).clamp(MIN_SHARE_BYTES, MAX_SHARE_BYTES);
    let excess = used.saturating_sub(limit);
    // Above the limit every command checks, because another thread may have freed memory.
    thread.memory_limit.look_at = match excess {
        0 => memory::thread_balance() + share,
        _ => i64::MIN,
    };
    excess
}

/// Returns `true` if this server evicts keys on its own at the moment.
fn may_evict(thread: &ThreadState) -> bool {
    let ignores = || thread.server.config.boolean(id::REPLICA_IGNORE_MAXMEMORY);
    let follows = thread.replication_state.contains(ReplicationState::IS_REPLICA) && ignores();
    let loads = thread.replication_state.contains(ReplicationState::LOADING);
    // A module that gives way to clients in the middle of a command relies on the data.
    let gives_way = thread.replication_state.contains(ReplicationState::MODULE_BUSY);
    !follows && !loads && !gives_way && !thread.server.clients.pause.are_writes_paused(thread.now_ms)
}

/// Evicts until `needed_bytes` bytes are free, memory usage is within the limit, or the time is over.
fn evict(
    thread: &mut ThreadState,
    (access, end_deletion): (&mut EvictionAccess<'_, '_>, EndDeletion),
    policy: EvictionPolicy,
    needed_bytes: u64,
) -> LimitState {
    let limit = thread.tunables.eviction_time;
    // A limit of zero still evicts a few keys, since the clock is not read earlier.
    if thread.memory_limit.spent > limit.saturating_mul(TIME_LIMITS_PER_BATCH)
        || thread.effects.log_writer.is_backlogged()
    {
        return match thread.effects.log_writer.is_backlogged() {
            true => LimitState::Retry,
            false => LimitState::Evicting,
        };
    }
    let start = Instant::now();
    let (mut keys, mut busy, mut freed) = (0u32, 0, 0);
    let attempt_result = loop {
        match evict_one(thread, access, policy, end_deletion) {
            (EvictionAttempt::Evicted, bytes) => (keys, busy, freed) = (keys + 1, 0, freed + bytes),
            (EvictionAttempt::NoCandidate, _) => break LimitState::Full,
            (EvictionAttempt::Busy, _) => busy += 1,
        }
        // The messages about evicted keys take memory temporarily. No key is evicted because of that.
        if excess_bytes(thread) == 0 || freed >= needed_bytes {
            break LimitState::WithinLimit;
        }
        let is_late = keys.is_multiple_of(KEYS_PER_CLOCK_READ) && start.elapsed() > limit;
        if busy == BUSY_ATTEMPTS {
            break LimitState::Retry;
        }
        if is_late || access.gate_is_closing() {
            break LimitState::Evicting;
        }
    };
    let elapsed = start.elapsed();
    thread.memory_limit.spent = thread.memory_limit.spent.saturating_add(elapsed);
    thread.effects.log_writer.wake();
    thread.collect_ready_keys();
    record_latency_spike(thread, "eviction-cycle", elapsed);
    attempt_result
}

/// Evicts one key if possible. Also returns the bytes that were freed.
fn evict_one(
    thread: &mut ThreadState,
    access: &mut EvictionAccess<'_, '_>,
    policy: EvictionPolicy,
    end_deletion: EndDeletion,
) -> (EvictionAttempt, u64) {
    let start = Instant::now();
    let server = &thread.server.clone();
    let context = EvictionContext {
        keyspace: &server.keyspace,
        thread_index: thread.thread_index,
        clock: thread.clock,
        samples: thread.tunables.eviction_samples,
        is_lazy: thread.tunables.lazy_eviction,
    };
    let thread_index = thread.thread_index;
    let notify =
        &mut |effects: &mut Effects| NotificationSender::new(server, effects, thread_index).send_recorded_effects(None);
    debug_assert!(
        thread.effects.removed.is_empty(),
        "what earlier commands have removed is freed before a key is evicted"
    );
    let balance = memory::thread_balance();
    let attempt = thread
        .memory_limit
        .chooser
        .evict(policy, &context, access, &mut thread.effects, notify);
    // What the key took is not freed yet.
    let allocated = memory::thread_balance() - balance;
    exclude_bytes(server, &mut thread.memory_limit, thread.thread_index, allocated);
    let freed = removed_bytes(&thread.effects.removed);
    debug_assert_eq!(
        attempt == EvictionAttempt::Evicted,
        !thread.effects.removed.is_empty(),
        "an evicted key is removed, and no other one"
    );
    if let EvictionAccess::Exclusive(all) = access
        && attempt == EvictionAttempt::Evicted
    {
        end_deletion(thread, all);
    }
    debug_assert!(
        !thread.effects.log_writer.has_pending_ops(),
        "the deletion of an evicted key has a sequence number when the lease ends"
    );
    if attempt == EvictionAttempt::Evicted {
        free_removed_values(&mut thread.effects, server);
        if thread.memory_limit.cell.is_none() {
            let freed = memory::thread_balance() - balance;
            server.memory.add_to_shared_cell(freed);
            thread.memory_limit.shared_balance += freed;
        }
        server.stats.metrics.add(thread.thread_index, Counter::EvictedKeys, 1);
        record_latency_spike(thread, "eviction-del", start.elapsed());
    }
    (attempt, freed as u64)
}

/// Returns the bytes that entries take, with their values.
fn removed_bytes(removed: &[(Removed<Value>, RemovalCause)]) -> usize {
    let bytes = |entry: &Removed<Value>| match entry.value() {
        ValueRef::Object(object) => entry.allocated_bytes() + object.allocated_bytes(),
        _ => entry.allocated_bytes(),
    };
    removed.iter().map(|(entry, _)| bytes(entry)).sum()
}

fn record_latency_spike(thread: &ThreadState, event: &'static str, elapsed: Duration) {
    if elapsed.as_nanos() as u64 >= thread.tunables.latency_event_ns {
        let spike_ms = elapsed.as_millis() as u64;
        thread
            .server
            .stats
            .history
            .latency
            .add(event, thread.now_ms / 1000, spike_ms);
    }
}

#[cfg(test)]
mod tests;
