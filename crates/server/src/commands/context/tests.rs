//! Tests of the limits that depend on the client of a command.

use super::*;

#[test]
fn commands_that_have_run_before_may_make_strings_longer_than_new_ones() {
    const DEFAULT: u64 = 512 << 20;
    const HIGH: u64 = 4 << 30;
    for (flags, with_default, with_high) in [
        (ClientFlags::empty(), DEFAULT, HIGH),
        (ClientFlags::IMPORT_SOURCE, DEFAULT, HIGH),
        (ClientFlags::REPLICA, DEFAULT, HIGH),
        (ClientFlags::PRIMARY, 64 << 30, 64 << 30),
        (ClientFlags::REPLAY, 64 << 30, 64 << 30),
        (ClientFlags::SLOT_IMPORT, 1 << 30, HIGH),
    ] {
        assert_eq!(max_string_bytes(flags, DEFAULT), with_default, "{flags:?}");
        assert_eq!(max_string_bytes(flags, HIGH), with_high, "{flags:?}");
    }
}
