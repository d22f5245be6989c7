//! Tests which scripts the cache keeps.

use super::{EVAL_SCRIPTS_MAX, ScriptCache, digest_of};

fn add(cache: &ScriptCache, number: usize, evictable: bool) {
    let source = format!("return {number}");
    cache.add(digest_of(source.as_bytes()), source.as_bytes(), None, evictable, None);
}

fn contains(cache: &ScriptCache, number: usize) -> bool {
    cache.find(&digest_of(format!("return {number}").as_bytes())).is_some()
}

#[test]
fn digests_are_found_in_any_case() {
    let cache = ScriptCache::default();
    assert_eq!(&digest_of(b"return 1"), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    add(&cache, 1, true);
    assert!(cache.find(b"E0E1F9FABFC9D4800C877A703B823AC0578FF8DB").is_some());
    assert!(cache.find(b"e0e1").is_none());
}

#[test]
fn the_least_recently_used_script_is_evicted() {
    let cache = ScriptCache::default();
    add(&cache, 9000, false);
    for number in 0..EVAL_SCRIPTS_MAX {
        add(&cache, number, true);
    }
    assert_eq!((cache.script_count(), cache.evicted()), (EVAL_SCRIPTS_MAX + 1, 0));
    let first = cache.find(&digest_of(b"return 0")).unwrap();
    cache.touch(&first);
    add(&cache, 1000, true);
    assert!(contains(&cache, 0), "it was used");
    assert!(!contains(&cache, 1), "it was not");
    assert!(contains(&cache, 9000), "it was loaded for good");
    assert_eq!(cache.evicted(), 1);
}

#[test]
fn a_flushed_script_is_dead_for_threads_that_still_hold_it() {
    let cache = ScriptCache::default();
    add(&cache, 1, true);
    let script = cache.find(&digest_of(b"return 1")).unwrap();
    cache.protect_from_eviction(&script);
    assert!(script.is_alive());
    cache.flush();
    assert!(!script.is_alive());
    assert_eq!((cache.script_count(), cache.bytes(), cache.flushes()), (0, 0, 1));
}
