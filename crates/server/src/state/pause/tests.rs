//! Tests of pauses and held slots.

use super::*;

#[test]
fn slots_of_several_migrations_are_held_at_a_time() {
    let held = HeldSlots::default();
    let set = |number: usize| {
        let mut slots = SlotSet::default();
        slots.set(SlotIndex::from_index(number), true);
        slots
    };
    assert!(!held.is_any() && held.until_ms().is_none());
    held.hold(&set(63), 100);
    held.hold(&set(64), 90);
    assert!(held.contains(SlotIndex::from_index(63)) && held.contains(SlotIndex::from_index(64)));
    assert!(!held.contains(SlotIndex::from_index(65)));
    assert_eq!(held.until_ms(), Some(100));
    held.release(&set(63));
    assert!(held.is_any() && !held.contains(SlotIndex::from_index(63)));
    held.release(&set(64));
    assert!(!held.is_any() && !held.contains(SlotIndex::from_index(64)));
}
/// Clients whose pause is over do not wait for the end of the next one.
#[test]
fn a_pause_that_is_over_ends_before_the_next_one_begins() {
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    server.pause_clients(PauseReason::Client, 1000, 1100, true);
    let before = server.clients.pause.resumptions();
    server.pause_clients(PauseReason::Client, 1050, 1100, true);
    assert_eq!(server.clients.pause.resumptions(), before, "it is not over");
    server.pause_clients(PauseReason::Client, 1200, 60_000, false);
    assert_eq!(server.clients.pause.resumptions(), before + 1);
    assert!(server.clients.pause.are_writes_paused(1201));
}
