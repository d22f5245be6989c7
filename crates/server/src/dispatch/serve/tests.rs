//! Tests of keys whose clients cannot be served at once, on a server none of whose threads runs.

use weft_base::ThreadIndex;

use super::*;
use crate::keyspace::Seat;
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
    let access = AccessContext {
        now_ms: thread.now_ms,
        clock: &thread.clock,
        counts: &thread.server.keyspace.counts,
        thread_index: thread.thread_index,
        should_touch: true,
    };
    let mut context = ServingContext::new(
        &mut held,
        Some(&pass),
        access,
        &mut thread.effects,
        &thread.server,
        &mut served_waiters,
        &mut further_leases,
    );
    let ready: VecDeque<ReadyKey> = [3, 5, 3, 5, 3, 5].map(ready_key).into();
    let refused = serve_keys(ready, &mut context);
    assert_eq!(slots_of(&refused.contended), [3, 5]);
    assert!(refused.paused.is_empty());
    drop(leases);
}
