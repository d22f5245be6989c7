//! Names of every kind.

use super::{NO_SUCH_NAME, NOT_PERMITTED, command, number};

#[test]
fn numbers_of_all_sizes_are_read() {
    assert_eq!(number(b"arenas.page", None), Ok(4096));
    assert!(number(b"arenas.nbins", None).is_ok_and(|bins| bins > 10), "32 bits");
    assert_eq!(number(b"thread.tcache.enabled", None), Ok(1), "a boolean");
    assert_eq!(number(b"no.such.name", None), Err(NO_SUCH_NAME));
    assert_eq!(number(b"arenas\0.page", None), Err(NO_SUCH_NAME));
    assert_eq!(number(b"", None), Err(NO_SUCH_NAME));
}

#[test]
fn only_controls_can_be_written() {
    assert_eq!(number(b"thread.tcache.enabled", Some(0)), Ok(1));
    assert_eq!(number(b"thread.tcache.enabled", Some(7)), Ok(0));
    assert_eq!(number(b"thread.tcache.enabled", None), Ok(1));
    let before = number(b"arena.0.dirty_decay_ms", Some(5)).expect("it can be written");
    assert_eq!(number(b"arena.0.dirty_decay_ms", Some(before)), Ok(5));
    for forbidden in [
        "arena.0.extent_hooks",
        "arenas.lookup",
        "arena.0.dss",
        "experimental.hooks.install",
        "arenas.page",
    ] {
        assert_eq!(number(forbidden.as_bytes(), Some(1)), Err(NOT_PERMITTED), "{forbidden}");
    }
    assert_eq!(
        number(b"arena.0.dirty_decay_ms", Some(i64::MIN)),
        Err(14),
        "a value that makes no sense"
    );
}

#[test]
fn names_without_a_value_are_commands() {
    assert_eq!(command(b"thread.tcache.flush"), Ok(()));
    assert_eq!(command(b"arena.0.purge"), Ok(()));
    assert_eq!(command(b"arena.0.destroy"), Err(NOT_PERMITTED));
    assert!(command(b"arena.99999.purge").is_err());
    assert_eq!(number(b"thread.tcache.flush", None), Err(NOT_PERMITTED));
}
