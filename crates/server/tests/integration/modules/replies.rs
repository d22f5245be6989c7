//! Replies of modules, byte by byte, in both protocols.

use super::{raw_call, start};
use crate::harness::client::Client;

/// Each type with its reply in RESP2, and in RESP3 if that is another one.
const SINGLE: &[(&str, &str, &str)] = &[
    ("integer", ":-42", ""),
    ("simple", "+simple text", ""),
    ("error", "-CODE some text  and a line", ""),
    ("error-format", "-OTHER text 7", ""),
    ("error-custom", "-CUSTOM text", ""),
    ("error-uncounted", "-UNCOUNTED text", ""),
    ("error-alone", "-ALONE", ""),
    ("buffer", "$3 a\0b", ""),
    ("c-string", "$4 text", ""),
    ("string", "$6 string", ""),
    ("empty-string", "$0", ""),
    ("verbatim", "$4 text", "=8 txt:text"),
    ("verbatim-md", "$4 text", "=8 md :text"),
    ("null", "$-1", "_"),
    ("null-array", "*-1", "_"),
    ("empty-array", "*0", ""),
    ("true", ":1", "#t"),
    ("false", ":0", "#f"),
    ("double", "$3 0.1", ",0.1"),
    ("infinity", "$4 -inf", ",-inf"),
    ("long-double", "$3 0.1", ",0.1"),
    ("long-infinity", "$3 inf", ",inf"),
    (
        "big-number",
        "$30 123456789012345678901234567890",
        "(123456789012345678901234567890",
    ),
    ("empty-map", "*0", "%0"),
    ("empty-set", "*0", "~0"),
    ("other", "-ERR unknown type other", ""),
];

#[test]
fn every_type_has_its_form_in_both_protocols() {
    for workers in [1, 4] {
        let server = start(workers, "replies");
        let mut client = Client::connect(server.port);
        for (kind, resp2, _) in SINGLE {
            assert_eq!(raw_call(&mut client, &["replies.single", kind]), *resp2, "{kind}");
        }
        for how in ["known", "postponed"] {
            let nested = raw_call(&mut client, &["replies.nested", how]);
            assert_eq!(nested, "*3 :1 *2 :2 *2 :3 :4 *0", "{how}");
        }
        assert_eq!(raw_call(&mut client, &["replies.attribute"]), ":2");

        raw_call(&mut client, &["HELLO", "3"]);
        for (kind, resp2, resp3) in SINGLE {
            let expected = if resp3.is_empty() { resp2 } else { resp3 };
            assert_eq!(raw_call(&mut client, &["replies.single", kind]), **expected, "{kind}");
        }
        for how in ["known", "postponed"] {
            let nested = raw_call(&mut client, &["replies.nested", how]);
            assert_eq!(nested, "*3 :1 %1 :2 ~2 :3 :4 *0", "{how}");
        }
        assert_eq!(raw_call(&mut client, &["replies.attribute"]), "|1 $4 name :1 :2");
    }
}

#[test]
fn errors_are_counted_by_their_codes() {
    let server = start(1, "replies");
    let mut client = Client::connect(server.port);
    for kind in [
        "error",
        "error-format",
        "error-custom",
        "error-uncounted",
        "error-alone",
    ] {
        client.call(&["replies.single", kind]);
        client.call(&["replies.single", kind]);
    }
    for (code, count) in [("CODE", 2), ("OTHER", 2), ("CUSTOM", 2), ("ERR", 2)] {
        assert_eq!(client.info(&format!("errorstat_{code}")), format!("count={count}"));
    }
    assert!(!client.call(&["INFO", "errorstats"]).contains("UNCOUNTED"));
    let statistics = client.info("cmdstat_replies.single");
    assert!(statistics.starts_with("calls=10,"), "{statistics}");
    assert!(statistics.ends_with("failed_calls=10"), "{statistics}");
}

#[test]
fn lengths_that_are_not_set_are_left_out() {
    let server = start(1, "replies");
    let mut client = Client::connect(server.port);
    assert_eq!(raw_call(&mut client, &["replies.misuse", "unset"]), ":1");
    assert_eq!(raw_call(&mut client, &["replies.misuse", "unbegun"]), ":1");
    assert_eq!(
        raw_call(&mut client, &["replies.nested", "postponed"]),
        "*3 :1 *2 :2 *2 :3 :4 *0"
    );
    assert_eq!(
        client.call(&["replies.single"]),
        "ERR wrong number of arguments for 'replies.single' command"
    );
}

#[test]
fn transactions_collect_the_replies() {
    let server = start(4, "replies");
    let mut client = Client::connect(server.port);
    let commands: [&[&str]; 3] = [
        &["replies.single", "integer"],
        &["SET", "k", "v"],
        &["replies.nested", "known"],
    ];
    assert_eq!(client.transact(&commands), "(-42 OK (1 (2 (3 4)) ()))");
}
