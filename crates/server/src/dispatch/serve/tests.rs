//! Tests of keys whose clients cannot be served at once, on a server none of whose threads runs.

use weft_base::ThreadIndex;
use weft_cluster::slot_set::SlotSet;

use super::*;
use crate::start::create_idle_server;

/// Returns the state of a thread, and its seat.
fn thread() -> (ThreadState, Seat) {
    let server = create_idle_server(Config::defaults());
    let seat = server.keyspace.slots.join().expect("a seat");
    (ThreadState::new(server, ThreadIndex::FIRST), seat)
}

fn ready_key(slot: usize) -> ReadyKey {
    ReadyKey::new(
        DbIndex::FIRST,
        SlotIndex::from_index(slot),
        0,
        format!("key:{slot}").as_bytes(),
    )
}

fn slots_of(keys: &VecDeque<UnservedKey>) -> Vec<usize> {
    keys.iter().map(|unserved| unserved.key.slot.index()).collect()
}

#[test]
fn a_key_that_several_commands_made_ready_is_refused_once() {
    let (mut thread, mut seat) = thread();
    let mut other = thread.server.keyspace.slots.join().expect("a seat");
    let other_pass = other.enter();
    let leases = [3, 5].map(|slot| other_pass.try_write(slot).expect("the slot is free"));
    let pass = seat.enter();
    let mut held = HeldLeases::Nothing;
    let (mut served_waiters, mut further_leases) = (Vec::new(), Vec::new());
    let mut context = ServingContext {
        held: &mut held,
        pass: Some(&pass),
        access: AccessContext {
            now_ms: thread.now_ms,
            clock: &thread.clock,
            counts: &thread.server.keyspace.counts,
            thread_index: thread.thread_index,
            should_touch: true,
        },
        effects: &mut thread.effects,
        changed_by: None,
        server: &thread.server,
        served_waiters: &mut served_waiters,
        further_leases: &mut further_leases,
        refused_slots: HashSet::new(),
        paused: PausedOperations::default(),
    };
    let ready: VecDeque<ReadyKey> = [3, 5, 3, 5, 3, 5].map(ready_key).into();
    let refused = serve_keys(ready, &mut context);
    assert_eq!(slots_of(&refused.contended), [3, 5]);
    assert!(refused.paused.is_empty());
    drop(leases);
}

#[test]
fn a_key_whose_slot_changes_its_owner_delays_no_other_key() {
    let (mut thread, mut seat) = thread();
    let server = thread.server.clone();
    let mut slots = SlotSet::default();
    slots.set(SlotIndex::from_index(3), true);
    server.clients.pause.held_slots.hold(&slots, u64::MAX);
    let unserved = UnservedKeys::new([3, 5].map(ready_key).into());
    let left = retry_unserved(&mut thread, &mut seat, &mut HashSet::new(), unserved);
    let left = left.expect("a key is left");
    assert_eq!(slots_of(&left.keys), [3]);
    server.release_held_slots(&slots);
    assert!(retry_unserved(&mut thread, &mut seat, &mut HashSet::new(), left).is_none());
}

#[test]
fn clients_are_served_at_a_time_at_which_all_keys_that_were_seen_expired_have_expired() {
    let (mut thread, mut seat) = thread();
    thread.begin_batch(1000);
    thread.server.keyspace.counts.seen_expiry.note(2000);
    let unserved = UnservedKeys::new([3].map(ready_key).into());
    assert!(retry_unserved(&mut thread, &mut seat, &mut HashSet::new(), unserved).is_none());
    assert!(thread.now_ms >= 2000);
}
