//! Tests of the activities of threads.

use super::*;

#[test]
fn the_last_command_that_has_begun_is_shown_until_the_thread_ends_its_commands() {
    let activities = ThreadActivities::new(2);
    let (one, other) = (ThreadIndex::new(0), ThreadIndex::new(1));
    assert_eq!(activities.running(one), None);
    for (command, client) in [(0, 1), (u16::MAX - 1, (1 << 48) - 1), (7, 0)] {
        activities.begin(one, command, ClientId::new(client));
        let client = ClientId::new(client);
        assert_eq!(activities.running(one), Some(RunningCommand { command, client }));
        assert_eq!(activities.running(other), None);
    }
    activities.end(one);
    assert_eq!(activities.running(one), None);
}

#[test]
fn a_thread_without_a_seat_has_no_activity() {
    let activities = ThreadActivities::new(1);
    let outside = ThreadIndex::new(1);
    activities.begin(outside, 1, ClientId::new(1));
    activities.end(outside);
    activities.set_name(outside, "x".to_owned());
    assert_eq!((activities.running(outside), activities.name(outside)), (None, None));
}

#[test]
fn a_thread_keeps_its_first_name() {
    let activities = ThreadActivities::new(1);
    let thread = ThreadIndex::new(0);
    assert_eq!(activities.name(thread), None);
    activities.set_name(thread, "weft-bg-0".to_owned());
    activities.set_name(thread, "weft-bg-1".to_owned());
    assert_eq!(activities.name(thread), Some("weft-bg-0"));
}
