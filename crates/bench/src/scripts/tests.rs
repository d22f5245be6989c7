//! Tests of the table of scripts.

use super::*;

#[test]
fn digests_are_those_of_sha1() {
    // RFC 3174, section 7.3.
    assert_eq!(sha1_hex(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
    assert_eq!(sha1_hex(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
}

#[test]
fn scripts_are_found_by_unique_names() {
    for (position, script) in SCRIPTS.iter().enumerate() {
        assert_eq!(source_by_name(script.name).expect(script.name), script.source);
        assert!(SCRIPTS[..position].iter().all(|other| other.name != script.name));
    }
    assert!(source_by_name("nothing").is_err());
}

#[test]
fn commands_with_digests_or_functions_need_the_scripts() {
    assert!(is_used_by("EVALSHA {sha:get} 1 {key}"));
    assert!(is_used_by("FCALL get_hset_expire 1 {key}"));
    assert!(!is_used_by("EVAL {script:get} 1 {key}") && !is_used_by("GET {key}"));
}
