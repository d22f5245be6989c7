//! Tests which scripts the cache keeps.

use super::{Cache, EVALUATED_MAX, digest_of};

fn add(cache: &Cache, number: usize, evictable: bool) {
    let source = format!("return {number}");
    cache.add(digest_of(source.as_bytes()), source.as_bytes(), None, evictable);
}

fn has(cache: &Cache, number: usize) -> bool {
    cache.find(&digest_of(format!("return {number}").as_bytes())).is_some()
}

#[test]
fn digests_are_found_in_any_case() {
    let cache = Cache::default();
    assert_eq!(&digest_of(b"return 1"), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    add(&cache, 1, true);
    assert!(cache.find(b"E0E1F9FABFC9D4800C877A703B823AC0578FF8DB").is_some());
    assert!(cache.find(b"e0e1").is_none());
}

#[test]
fn the_script_that_was_not_used_for_longest_goes() {
    let cache = Cache::default();
    add(&cache, 9000, false);
    for number in 0..EVALUATED_MAX {
        add(&cache, number, true);
    }
    assert_eq!((cache.len(), cache.evicted()), (EVALUATED_MAX + 1, 0));
    let first = cache.find(&digest_of(b"return 0")).unwrap();
    cache.touch(&first);
    add(&cache, 1000, true);
    assert!(has(&cache, 0), "it was used");
    assert!(!has(&cache, 1), "it was not");
    assert!(has(&cache, 9000), "it was loaded for good");
    assert_eq!(cache.evicted(), 1);
}

#[test]
fn what_is_flushed_is_dead_for_those_who_still_have_it() {
    let cache = Cache::default();
    add(&cache, 1, true);
    let script = cache.find(&digest_of(b"return 1")).unwrap();
    cache.keep(&script);
    assert!(script.is_alive());
    cache.flush();
    assert!(!script.is_alive());
    assert_eq!((cache.len(), cache.bytes(), cache.flushes()), (0, 0, 1));
}
