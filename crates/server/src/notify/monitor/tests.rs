//! Tests the format of monitor lines, and the set of monitors.

use weft_base::DbIndex;

use super::*;

#[test]
fn a_line_has_time_database_address_and_quoted_arguments() {
    let arguments: [&[u8]; 3] = [b"SET", b"k\n\x00", b"a \"b\""];
    let line = monitor_line(
        1_700_000_000_000_042,
        DbIndex::new(3),
        "127.0.0.1:5",
        arguments.into_iter(),
        |_| false,
    );
    let wanted = "+1700000000.000042 [3 127.0.0.1:5] \"SET\" \"k\\n\\x00\" \"a \\\"b\\\"\"\r\n";
    assert_eq!(String::from_utf8_lossy(&line), wanted);
}

#[test]
fn secrets_are_not_shown() {
    let arguments: [&[u8]; 3] = [b"HELLO", b"3", b"secret"];
    let line = monitor_line(0, DbIndex::FIRST, "x", arguments.into_iter(), |index| index == 2);
    assert!(line.ends_with(b"\"HELLO\" \"3\" \"(redacted)\"\r\n"));
}

#[test]
fn the_first_and_the_last_monitor_trigger_the_callbacks() {
    let monitors = Monitors::default();
    let mut on = false;
    monitors.add_monitor(ClientId::new(7), ThreadIndex::new(1), || on = true);
    monitors.add_monitor(ClientId::new(8), ThreadIndex::new(1), || panic!("not the first"));
    monitors.add_monitor(ClientId::new(9), ThreadIndex::new(2), || panic!("not the first"));
    assert!(on);
    assert_eq!(monitors.workers(), [1, 2].map(ThreadIndex::new));
    assert_eq!(monitors.worker_monitors(ThreadIndex::new(1)), [7, 8].map(ClientId::new));
    monitors.remove_monitor(ClientId::new(7), || panic!("not the last"));
    monitors.remove_monitor(ClientId::new(8), || panic!("not the last"));
    monitors.remove_monitor(ClientId::new(9), || on = false);
    assert!(!on);
    assert!(monitors.workers().is_empty());
}
