//! Where scripts are expected to run.

use std::time::Duration;

use super::Habits;

#[test]
fn straight_code_is_short_and_loops_prove_themselves() {
    assert!(!Habits::of_new(b"return redis.call('get', KEYS[1])").is_long());
    let habits = Habits::of_new(b"for i = 1, 3 do redis.call('incr', KEYS[i]) end");
    assert!(habits.is_long());
    habits.note_duration(Duration::from_micros(500));
    assert!(habits.is_long(), "neither short nor long: it stays as it was");
    habits.note_duration(Duration::from_micros(50));
    assert!(!habits.is_long());
    habits.note_duration(Duration::from_millis(5));
    assert!(habits.is_long());
}
