//! Tests of the exception list.

use super::*;

const TEXT: &str = "# remark

== reply a.case | one | GET key
reason: because
weft: \"1\"
valkey: \"2\"
weft: \"from … to …\"
valkey: +no

== command NOSUCH|SUB
reason: it is missing

== info Modules | module
reason: there are none

== values Server
reason: each process has its own
fields: process_id uptime_*

== generated key called FIELDS
reason: an accident
";

#[test]
fn an_entry_accepts_its_own_difference_and_no_other() {
    let exceptions = Exceptions::parse(TEXT).unwrap();
    let place = ["a.case", "one", "GET key"];
    assert!(exceptions.accepts_reply(place, "\"1\"", "\"2\""));
    assert!(exceptions.accepts_reply(place, "\"from here to there\"", "+no"));
    for (place, weft, valkey) in [
        (["a.case", "two", "GET key"], "\"1\"", "\"2\""),
        (["b.case", "one", "GET key"], "\"1\"", "\"2\""),
        (["a.case", "one", "GET key2"], "\"1\"", "\"2\""),
        (place, "\"1\"", "\"3\""),
        (place, "\"0\"", "\"2\""),
        (place, "\"1\"", "+no"),
        (place, "\"from here\"", "+no"),
    ] {
        assert!(
            !exceptions.accepts_reply(place, weft, valkey),
            "{place:?} {weft} {valkey}"
        );
    }
    assert_eq!(exceptions.reason_without_command("nosuch|sub"), Some("it is missing"));
    assert_eq!(exceptions.reason_without_command("nosuch"), None);
    assert!(exceptions.may_lack_info_field("Modules", "module"));
    assert!(!exceptions.may_lack_info_field("Server", "module"));
    assert!(exceptions.ignores_info_value("Server", "uptime_in_days"));
    assert!(!exceptions.ignores_info_value("Server", "process_id2"));
    assert!(!exceptions.ignores_info_value("Memory", "process_id"));
}

#[test]
fn entries_that_were_not_needed_are_stale() {
    let exceptions = Exceptions::parse(TEXT).unwrap();
    assert_eq!(exceptions.stale_lines(), [6, 8, 10, 13, 18, 18]);
    exceptions.accepts_reply(["a.case", "one", "GET key"], "\"1\"", "\"2\"");
    exceptions.ignores_info_value("Server", "uptime_in_days");
    assert!(exceptions.accepts_generated("key called FIELDS"));
    assert!(!exceptions.accepts_generated("index beyond 32 bits"));
    assert_eq!(exceptions.stale_lines(), [8, 10, 13, 18]);
}

#[test]
fn incomplete_blocks_are_refused() {
    for text in [
        "reason: x\n",
        "== command X\n",
        "== command X\nreason:\n",
        "== reply a | b | c\nreason: x\n",
        "== reply a | b\nreason: x\nweft: 1\nvalkey: 2\n",
        "== reply a | b | c\nreason: x\nweft: 1\n",
        "== reply a | b | c\nreason: x\nvalkey: 2\n",
        "== values Server\nreason: x\n",
        "== generated something else\nreason: x\n",
        "== nosuch x\nreason: x\n",
    ] {
        assert!(Exceptions::parse(text).is_err(), "{text}");
    }
}
