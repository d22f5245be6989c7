//! Tests of the manifest.

use super::*;

const TEXT: &[u8] = b"file appendonly.aof.2.base.rdb seq 2 type b\n\
    file appendonly.aof.1.base.rdb seq 1 type h\n\
    file appendonly.aof.4.incr.aof seq 4 type i\nfile appendonly.aof.5.incr.aof seq 5 type i\n";

#[test]
fn a_manifest_is_written_as_it_was_read() {
    let manifest = Manifest::parse(TEXT).expect("it is one");
    assert_eq!(manifest.to_bytes(), TEXT);
    assert_eq!((manifest.base_sequence, manifest.increment_sequence), (2, 5));
    let odd = b"# a comment\nFILE \"a b\" SEQ 1 type base newer thing\n";
    let manifest = Manifest::parse(odd).expect("later versions may add pairs");
    assert_eq!(manifest.to_bytes(), b"file \"a b\" seq 1 type b\n");
}

#[test]
fn invalid_manifests_are_refused_with_a_reason() {
    let reason = |text: &[u8]| Manifest::parse(text).expect_err("it is none").reason;
    assert_eq!(reason(b""), "Found an empty AOF manifest");
    assert_eq!(
        reason(b"file a seq 1 type b"),
        "The AOF manifest file contains too long line"
    );
    assert_eq!(reason(b"\n"), "Invalid AOF manifest file format");
    assert_eq!(reason(b"file a seq 1\n"), "Invalid AOF manifest file format");
    assert_eq!(reason(b"file a seq 0 type b\n"), "Invalid AOF manifest file format");
    // The next file could not be numbered.
    let last = format!("file a seq {} type i\n", i64::MAX);
    assert_eq!(reason(last.as_bytes()), "Invalid AOF manifest file format");
    assert_eq!(
        reason(b"file a/b seq 1 type b\n"),
        "File can't be a path, just a filename"
    );
    assert_eq!(reason(b"file a seq 1 type x\n"), "Unknown AOF file type");
    let twice = b"file a seq 1 type b\nfile b seq 2 type b\n";
    assert_eq!(reason(twice), "Found duplicate base file information");
    let back = b"file a seq 2 type i\nfile b seq 1 type i\n";
    let error = Manifest::parse(back).expect_err("it is none");
    assert_eq!(error.reason, "Found a non-monotonic sequence number");
    assert_eq!(error.line, Some((2, "file b seq 1 type i".to_owned())));
}

/// The fuzz target `aof_manifest` found this: a name was accepted whose line, once written, was not.
#[test]
fn names_that_are_too_long_when_they_are_written_are_refused() {
    for (length, is_accepted) in [(230, true), (250, false)] {
        let text = format!("file \"{}\" seq 1 type b\n", "\u{1}".repeat(length));
        match Manifest::parse(text.as_bytes()) {
            Ok(manifest) => assert!(is_accepted && Manifest::parse(&manifest.to_bytes()).is_ok()),
            Err(error) => assert!(!is_accepted && error.reason == LINE_TOO_LONG),
        }
    }
}

#[test]
fn a_rewrite_turns_the_previous_files_into_history() {
    let mut manifest = Manifest::default();
    assert_eq!(manifest.begin_base("a", true), "a.1.base.rdb");
    assert_eq!(manifest.last_increment("a"), "a.1.incr.aof");
    assert_eq!(manifest.begin_increment("a"), "a.2.incr.aof");
    assert_eq!(manifest.begin_base("a", false), "a.2.base.aof");
    manifest.retire_increments(true);
    let text = b"file a.2.base.aof seq 2 type b\nfile a.1.incr.aof seq 1 type h\nfile a.1.base.rdb seq 1 type h\n\
        file a.2.incr.aof seq 2 type i\n";
    assert_eq!(manifest.to_bytes(), text);
    assert_eq!(manifest.take_history().len(), 2);
}

/// A rewrite without a log turns all increments into history, and the process may end before it deletes them. The next
/// start deleted the increment that it had just created under the same name.
#[test]
fn new_files_get_no_name_of_a_history_file() {
    let text = b"file a.2.base.rdb seq 2 type b\nfile a.4.incr.aof seq 4 type h\nfile a.3.base.rdb seq 3 type h\n";
    let mut manifest = Manifest::parse(text).expect("it is valid");
    assert_eq!(manifest.last_increment("a"), "a.5.incr.aof");
    assert_eq!(manifest.begin_base("a", true), "a.4.base.rdb");
}
