//! Tests where scripts are expected to run.

use std::time::Duration;

use super::Habits;

#[test]
fn straight_code_is_short_and_loops_prove_themselves() {
    assert!(!Habits::of_new(b"return redis.call('get', KEYS[1])").is_long());
    let profile = Habits::of_new(b"for i = 1, 3 do redis.call('incr', KEYS[i]) end");
    assert!(profile.is_long());
    profile.note_duration(Duration::from_micros(500));
    assert!(profile.is_long(), "neither short nor long: it stays as it was");
    profile.note_duration(Duration::from_micros(50));
    assert!(!profile.is_long());
    profile.note_duration(Duration::from_millis(5));
    assert!(profile.is_long());
}

#[test]
fn calls_of_what_asks_all_workers_are_seen_in_the_code() {
    let cases: [(&str, bool); 8] = [
        ("return redis.call('INFO')", true),
        ("server.pcall( \"client\", 'LIST')", true),
        ("redis.call 'info'", true),
        ("redis.call('information')", false),
        ("redis.call('get', 'info')", false),
        ("redis.call(name)", false),
        ("redis.call", false),
        ("redis.call('info", false),
    ];
    for (code, asks) in cases {
        assert_eq!(Habits::of_new(code.as_bytes()).asks(), asks, "{code}");
    }
    let profile = Habits::of_new(b"redis.call(name)");
    profile.note_ask();
    profile.note_duration(Duration::from_micros(50));
    assert!(profile.asks(), "however short it is");
}
