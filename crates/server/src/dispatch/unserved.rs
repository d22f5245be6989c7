//! Serves the clients again that could not be served at once, because a slot was leased by another thread or because
//! of a pause. See the essay of [`super::serve`].

use std::collections::{HashSet, VecDeque};

use weft_base::SlotIndex;

use crate::keyspace::access::{AccessContext, HeldLeases, Lease};
use crate::keyspace::{GatePassage, Seat};
use crate::notify::messages::NotificationSender;
use crate::state::{UnservedKey, UnservedKeys};

use super::effects::free_removed_values;
use super::leases::ANNOUNCE_AFTER_FAILURES;
use super::paused_operations::PausedOperations;
use super::propagate;
use super::serve::{ServingContext, notify_served_clients, serve_keys};
use super::thread::ThreadState;

/// The maximum number of keys of one list that a worker attempts to serve in a turn.
const MAX_KEYS_PER_ATTEMPT: usize = 64;

/// The keys that an attempt to serve their clients has left, and why.
pub struct RemainingKeys {
    /// The keys.
    pub unserved: UnservedKeys,
    /// `true` if a pause is all that holds their clients back. The client whose command made the keys ready gets its
    /// reply then, as in Valkey: the command has run, and the pause may last long.
    pub is_paused: bool,
}

/// Tries to serve again, for a worker that holds no lease. Returns the keys that are still to be served. A slot that is
/// refused is added to `refused_slots`; those are not attempted.
pub fn retry_unserved(
    thread: &mut ThreadState,
    seat: &mut Seat,
    refused_slots: &mut HashSet<SlotIndex>,
    unserved: UnservedKeys,
) -> Option<RemainingKeys> {
    let left = attempt_unserved(thread, &seat.enter(), refused_slots, unserved);
    // Nothing else in this turn may wake the log thread, and the served client's reply may wait for it.
    thread.effects.log_writer.wake();
    free_removed_values(&mut thread.effects, &thread.server);
    notify_served_clients(thread);
    left
}

fn attempt_unserved(
    thread: &mut ThreadState,
    pass: &GatePassage<'_>,
    refused_slots: &mut HashSet<SlotIndex>,
    mut unserved: UnservedKeys,
) -> Option<RemainingKeys> {
    let paused = PausedOperations::current(&thread.server);
    if paused.reads {
        unserved.failures += 1;
        return Some(RemainingKeys {
            unserved,
            is_paused: true,
        });
    }
    let mut left = VecDeque::new();
    let served_before = thread.served.len();
    let mut has_progress = false;
    for _ in 0..MAX_KEYS_PER_ATTEMPT {
        let Some(key) = unserved.keys.pop_front() else {
            break;
        };
        // The slot may be about to change its owner. Then either its writes are released, or the clients are
        // redirected.
        let is_held = thread.server.clients.pause.held_slots.contains(key.key.slot);
        let paused = PausedOperations {
            writes: paused.writes || is_held,
            ..paused
        };
        if paused.writes && key.awaits_writes {
            left.push_back(key);
            continue;
        }
        match attempt_key(thread, pass, refused_slots, key, unserved.failures, paused) {
            Ok(refused) => {
                has_progress |= refused.is_empty();
                left.extend(refused);
            }
            Err(key) => left.push_back(key),
        }
    }
    has_progress |= thread.served.len() > served_before;
    // Those that were not attempted come first in the next turn.
    unserved.keys.append(&mut left);
    unserved.failures = if has_progress { 0 } else { unserved.failures + 1 };
    let held_slots = &thread.server.clients.pause.held_slots;
    let is_held = |key: &UnservedKey| key.awaits_writes && (paused.writes || held_slots.contains(key.key.slot));
    let is_paused = unserved.keys.iter().all(is_held);
    (!unserved.keys.is_empty()).then_some(RemainingKeys { unserved, is_paused })
}

/// Serves the clients that wait for one key, as a unit, except for the operations that a pause holds back. Returns the
/// keys that could not be served on the way, or the key itself if its slots could not be leased.
fn attempt_key(
    thread: &mut ThreadState,
    pass: &GatePassage<'_>,
    refused_slots: &mut HashSet<SlotIndex>,
    mut unserved: UnservedKey,
    failures: u32,
    paused: PausedOperations,
) -> Result<VecDeque<UnservedKey>, UnservedKey> {
    if unserved.slots.iter().any(|slot| refused_slots.contains(slot)) {
        return Err(unserved);
    }
    let mut leases = match lease_for_writing(pass, &mut unserved.slots, failures) {
        Ok(leases) => leases,
        Err(slot) => {
            refused_slots.insert(slot);
            return Err(unserved);
        }
    };
    thread.catch_up_with_seen_expiry();
    let mut held = HeldLeases::Many(&mut leases);
    let mut further_leases = Vec::new();
    let (mut refused, slots) = {
        let access = AccessContext {
            now_ms: thread.now_ms,
            clock: &thread.clock,
            counts: &thread.server.keyspace.counts,
            thread_index: thread.thread_index,
            should_touch: true,
        };
        let (effects, served) = (&mut thread.effects, &mut thread.served);
        let further = &mut further_leases;
        let mut service = ServingContext {
            refused_slots: std::mem::take(refused_slots),
            failures,
            paused,
            ..ServingContext::new(&mut held, Some(pass), access, effects, &thread.server, served, further)
        };
        service.effects.hooks = thread.server.keyspace.hooks.current();
        (
            serve_keys(VecDeque::from([unserved.key]), &mut service),
            service.refused_slots,
        )
    };
    *refused_slots = slots;
    // Only now: a waiter that still cannot be served has been held up all the time.
    drop(unserved.held_up);
    debug_assert!(
        thread.effects.ready.is_empty(),
        "the keys that serving makes ready are served, or put off with the others"
    );
    propagate::commit_unit(&mut thread.effects);
    NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index).send_recorded_effects(None);
    if !refused.for_home.is_empty() && thread.server.is_home(thread.thread_index) {
        // The job that was sent when the keys became ready did not serve them, because clients were paused.
        thread.server.serve_module_calls_at_home(refused.for_home);
    }
    refused.contended.append(&mut refused.paused);
    Ok(refused.contended)
}

/// Leases slots for writing: all, or none.
///
/// # Errors
/// The slot that was refused.
fn lease_for_writing<'p>(
    pass: &'p GatePassage<'p>,
    slots: &mut Vec<SlotIndex>,
    failures: u32,
) -> Result<Vec<Lease<'p>>, SlotIndex> {
    slots.sort_unstable();
    slots.dedup();
    let mut leases = Vec::with_capacity(slots.len());
    for slot in slots.iter() {
        match pass.write_spinning(slot.index()) {
            Some(lease) => leases.push(Lease::Write(lease)),
            None => {
                if failures >= ANNOUNCE_AFTER_FAILURES {
                    pass.announce_writer(slot.index());
                }
                return Err(*slot);
            }
        }
    }
    Ok(leases)
}

#[cfg(test)]
mod tests;
