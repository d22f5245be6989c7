//! Tests of the reply checks.

use super::*;

fn bulk(payload: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat()
}

fn array(elements: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", elements.len()).into_bytes(), elements.concat()].concat()
}

fn checker(kind: &str, value_size: usize) -> ReplyChecker {
    ReplyChecker::new(ExpectedReply::parse(kind).expect(kind), value_size)
}

#[test]
fn correct_replies_are_found_when_split_anywhere() {
    let values = ValuePool::new(64);
    let two = array(&[bulk(values.value(1)), bulk(values.value(2))]);
    let cases = [
        ("ok", b"+OK\r\n".to_vec(), false),
        ("pong", b"+PONG\r\n".to_vec(), false),
        ("integer", b":-17\r\n".to_vec(), false),
        ("value", bulk(values.value(1)), false),
        ("value-or-nil", bulk(values.value(1)), false),
        ("value-or-nil", b"$-1\r\n".to_vec(), true),
        ("value-or-nil", b"_\r\n".to_vec(), true),
        ("values:2", two.clone(), false),
        ("prefix:16-100", bulk(values.value(1)), false),
        ("value-multiple", b":128\r\n".to_vec(), false),
        ("sorted-names:2", two.clone(), false),
        ("shared:3-5", two.clone(), false),
        ("bulk", b"$3\r\nabc\r\n".to_vec(), false),
        ("elements:2", two.clone(), false),
        ("elements:2", b"%1\r\n+a\r\n+b\r\n".to_vec(), false),
        ("any", b"$-1\r\n".to_vec(), true),
        ("exactly:12", b":12\r\n".to_vec(), false),
        ("item", bulk(values.value(1)), false),
        ("items:2", two.clone(), false),
        ("scored:1", array(&[bulk(values.value(1)), bulk(b"0")]), false),
        (
            "fields:1",
            array(&[bulk(b"field:000000"), bulk(values.value(1))]),
            false,
        ),
    ];
    for (kind, reply, miss) in cases {
        let checker = checker(kind, 64);
        let mut scanner = ReplyScanner::default();
        // Done twice, because a scan must leave no state for the next reply.
        for _ in 0..2 {
            for end in 0..reply.len() {
                let found = checker.check_header(&reply[..end], &mut scanner).expect(kind);
                assert_eq!(found, None, "{kind} cut at {end}");
            }
            let followed = [reply.as_slice(), b"$3\r\nxyz\r\n"].concat();
            let found = checker.check_header(&followed, &mut scanner).expect(kind);
            assert_eq!(
                found,
                Some(MatchedReply {
                    length: reply.len(),
                    is_miss: miss
                }),
                "{kind}"
            );
        }
    }
}

fn two_values(values: &ValuePool) -> Vec<u8> {
    array(&[bulk(values.value(1)), bulk(values.value(2))])
}

#[test]
fn wrong_types_and_lengths_stop_the_run() {
    let values = ValuePool::new(64);
    let short = bulk(&values.value(1)[..63]);
    let cases = [
        ("ok", b"+QUEUED\r\n".to_vec()),
        ("ok", b"-OOM command not allowed\r\n".to_vec()),
        ("integer", b"+1\r\n".to_vec()),
        ("value", b"$-1\r\n".to_vec()),
        ("value", short.clone()),
        ("value-or-nil", short.clone()),
        ("values:2", array(&[bulk(values.value(1)), short.clone()])),
        ("values:2", array(&[bulk(values.value(1)), b"$-1\r\n".to_vec()])),
        ("values:2", array(&[bulk(values.value(1))])),
        ("prefix:16-63", bulk(values.value(1))),
        ("prefix:65-100", bulk(values.value(1))),
        ("prefix:16-100", b"$-1\r\n".to_vec()),
        ("value-multiple", b"$1\r\n1\r\n".to_vec()),
        ("shared:3-6", two_values(&values)),
        ("bulk", b"$-1\r\n".to_vec()),
        ("elements:2", array(&[bulk(b"a")])),
        ("elements:1", b"$1\r\na\r\n".to_vec()),
        ("exactly:12", b":11\r\n".to_vec()),
        ("item", short.clone()),
        ("items:2", array(&[bulk(b"a")])),
        ("idnames:1", array(&[bulk(b"a"), bulk(b"b")])),
        ("any", b"-ERR unknown command\r\n".to_vec()),
        ("any", b"nonsense\r\n".to_vec()),
    ];
    for (kind, reply) in cases {
        let outcome = checker(kind, 64).check_header(&reply, &mut ReplyScanner::default());
        let text = String::from_utf8_lossy(&reply);
        assert!(
            matches!(outcome, Err(Error::WrongReply(_))),
            "{kind} accepted {text:?}: {outcome:?}"
        );
    }
}

#[test]
fn a_value_longer_than_its_length_stops_the_run() {
    let values = ValuePool::new(64);
    let mut reply = bulk(values.value(1));
    let end = reply.len();
    reply[end - 2..].copy_from_slice(b"xx");
    assert!(
        checker("value", 64)
            .check_header(&reply, &mut ReplyScanner::default())
            .is_err()
    );
}

fn drawn(ids: &[u64], number: u64) -> DrawnValues {
    DrawnValues {
        ids: ids.to_vec(),
        number,
        index: 3,
    }
}

#[test]
fn content_is_compared_with_what_was_stored() {
    let values = ValuePool::new(32);
    let one = checker("value", 32);
    let compare = |checker: &ReplyChecker, reply: &[u8], ids: &[u64]| {
        checker.compare(reply, &drawn(ids, 0), u64::MAX, &values).is_ok()
    };
    assert!(compare(&one, &bulk(values.value(7)), &[7]));
    assert!(!compare(&one, &bulk(values.value(7)), &[8]));
    assert!(!compare(&one, &bulk(values.value(7)), &[]));
    let two = checker("values:2", 32);
    let reply = array(&[bulk(values.value(7)), bulk(values.value(9))]);
    assert!(compare(&two, &reply, &[7, 9]));
    assert!(!compare(&two, &reply, &[9, 7]));
    assert!(!compare(&two, &reply, &[7]));
}

fn name(values: &ValuePool, id: u64, number: u64) -> Vec<u8> {
    let mut name = Vec::new();
    values.append_name(id, number, &mut name);
    bulk(&name)
}

#[test]
fn collections_are_compared_element_by_element() {
    let values = ValuePool::new(20);
    let names = |numbers: &[u64]| array(&numbers.iter().map(|n| name(&values, 7, *n)).collect::<Vec<_>>());
    let id_names = |ids: &[u64]| array(&ids.iter().map(|id| name(&values, 0, *id)).collect::<Vec<_>>());
    let items = |numbers: &[u64]| array(&numbers.iter().map(|n| bulk(values.item(7, *n))).collect::<Vec<_>>());
    let field = |number: u64, item: u64| {
        [
            bulk(format!("field:{number:06}").as_bytes()),
            bulk(values.item(7, item)),
        ]
    };
    let fields = |pairs: &[(u64, u64)]| array(&pairs.iter().flat_map(|(n, item)| field(*n, *item)).collect::<Vec<_>>());
    let scored = |pairs: &[(u64, &str)]| {
        let pair = |(n, score): &(u64, &str)| [name(&values, 7, *n), bulk(score.as_bytes())];
        array(&pairs.iter().flat_map(pair).collect::<Vec<_>>())
    };
    let nested = array(&[array(&[name(&values, 7, 0), b",0\r\n".to_vec()])]);
    let entry = |n: u64| {
        let pair = array(&[bulk(b"field:000000"), bulk(values.item(n, 0))]);
        array(&[bulk(format!("{}-1", n + 1).as_bytes()), pair])
    };
    let entries = |numbers: &[u64]| {
        let entries = numbers.iter().map(|n| entry(*n)).collect::<Vec<_>>();
        array(&[array(&[bulk(b"stream"), array(&entries)])])
    };
    let cases = [
        ("items:2", items(&[0, 1]), true),
        ("items:2", items(&[1, 0]), false),
        ("items:2", items(&[0, 0]), false),
        ("names:2", names(&[1, 0]), true),
        ("names:2", names(&[1, 1]), false),
        ("names:2", names(&[1, 2]), false),
        ("names:2", id_names(&[0, 1]), false),
        ("fields:2", fields(&[(1, 1), (0, 0)]), true),
        ("fields:2", fields(&[(1, 0), (0, 1)]), false),
        ("fields:2", fields(&[(0, 0), (0, 0)]), false),
        ("scored:2", scored(&[(0, "0"), (1, "1")]), true),
        ("scored:2", scored(&[(1, "1"), (0, "0")]), false),
        ("scored:2", scored(&[(0, "0"), (1, "2")]), false),
        ("scored:1", nested, true),
        ("sorted-names:2", names(&[0, 1]), true),
        ("sorted-names:2", names(&[1, 0]), false),
        ("sorted-names:2", id_names(&[0, 1]), false),
        ("shared:3-5", id_names(&[4, 3]), true),
        ("shared:3-5", id_names(&[3, 3]), false),
        ("shared:3-5", id_names(&[2, 3]), false),
        ("shared:3-5", names(&[3, 4]), false),
        ("prefix:1-30", bulk(values.prefix(7, 11)), true),
        ("prefix:1-30", bulk(values.prefix(8, 11)), false),
        ("prefix:1-10", bulk(values.prefix(7, 11)), false),
        ("value-multiple", b":40\r\n".to_vec(), true),
        ("value-multiple", b":41\r\n".to_vec(), false),
        ("value-multiple", b":0\r\n".to_vec(), false),
        ("idnames:2", id_names(&[7, 8]), true),
        ("idnames:3", id_names(&[7, 8]), true),
        ("idnames:2", id_names(&[8, 9]), false),
        ("idnames:2", id_names(&[7]), false),
        // The request has index 3 on its connection: it belongs to the second turn, of two entries each.
        ("entries:2", entries(&[2, 3]), true),
        ("entries:2", entries(&[3, 2]), false),
        ("entries:2", entries(&[0, 1]), false),
        ("entries:2", entries(&[2]), false),
        ("item", bulk(values.item(7, 4)), true),
        ("item", bulk(values.item(7, 5)), false),
        ("name", name(&values, 7, 9), true),
        ("name", name(&values, 6, 9), false),
        ("number", b":4\r\n".to_vec(), true),
        ("number", b":5\r\n".to_vec(), false),
        ("id", b":7\r\n".to_vec(), true),
        ("id", b":-7\r\n".to_vec(), false),
        ("below:5", b":4\r\n".to_vec(), true),
        ("below:4", b":4\r\n".to_vec(), false),
    ];
    for (kind, reply, is_right) in cases {
        let checker = checker(kind, 20);
        let found = checker.check_header(&reply, &mut ReplyScanner::default());
        let compared = matches!(found, Ok(Some(found)) if found.length == reply.len())
            && checker.compare(&reply, &drawn(&[7], 4), 9, &values).is_ok();
        assert_eq!(compared, is_right, "{kind} {}", reply.escape_ascii());
    }
}

#[test]
fn unknown_kinds_are_refused() {
    for text in [
        "",
        "okay",
        "values",
        "values:x",
        "ok:1",
        "elements",
        "prefix",
        "prefix:3",
        "shared:5-4",
    ] {
        assert!(ExpectedReply::parse(text).is_err(), "{text:?} was accepted");
    }
    for (kind, _) in KINDS {
        assert!(
            ExpectedReply::parse(
                &kind
                    .replace("MIN-MAX", "1-2")
                    .replace("FROM-TO", "1-2")
                    .replace('N', "3")
            )
            .is_ok(),
            "{kind} is in the help only"
        );
    }
}
