//! Tests of the reply checks.

use super::*;

fn bulk(payload: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat()
}

fn array(elements: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", elements.len()).into_bytes(), elements.concat()].concat()
}

fn checker(kind: &str, value_size: usize) -> Checker {
    Checker::new(Expect::parse(kind).expect(kind), value_size)
}

#[test]
fn right_replies_are_found_wherever_they_are_cut() {
    let values = Values::new(64);
    let two = array(&[bulk(values.of(1)), bulk(values.of(2))]);
    let cases = [
        ("ok", b"+OK\r\n".to_vec(), false),
        ("pong", b"+PONG\r\n".to_vec(), false),
        ("integer", b":-17\r\n".to_vec(), false),
        ("value", bulk(values.of(1)), false),
        ("value-or-nil", bulk(values.of(1)), false),
        ("value-or-nil", b"$-1\r\n".to_vec(), true),
        ("value-or-nil", b"_\r\n".to_vec(), true),
        ("values:2", two.clone(), false),
        ("bulk", b"$3\r\nabc\r\n".to_vec(), false),
        ("elements:2", two.clone(), false),
        ("elements:2", b"%1\r\n+a\r\n+b\r\n".to_vec(), false),
        ("any", b"$-1\r\n".to_vec(), true),
    ];
    for (kind, reply, miss) in cases {
        let checker = checker(kind, 64);
        let mut scanner = Scanner::default();
        // Twice, because a scan must leave nothing behind for the next reply.
        for _ in 0..2 {
            for end in 0..reply.len() {
                let found = checker.find(&reply[..end], &mut scanner).expect(kind);
                assert_eq!(found, None, "{kind} cut at {end}");
            }
            let followed = [reply.as_slice(), b"$3\r\nxyz\r\n"].concat();
            let found = checker.find(&followed, &mut scanner).expect(kind);
            assert_eq!(
                found,
                Some(Found {
                    length: reply.len(),
                    miss
                }),
                "{kind}"
            );
        }
    }
}

#[test]
fn wrong_types_and_lengths_stop_the_run() {
    let values = Values::new(64);
    let short = bulk(&values.of(1)[..63]);
    let cases = [
        ("ok", b"+QUEUED\r\n".to_vec()),
        ("ok", b"-OOM command not allowed\r\n".to_vec()),
        ("integer", b"+1\r\n".to_vec()),
        ("value", b"$-1\r\n".to_vec()),
        ("value", short.clone()),
        ("value-or-nil", short.clone()),
        ("values:2", array(&[bulk(values.of(1)), short.clone()])),
        ("values:2", array(&[bulk(values.of(1)), b"$-1\r\n".to_vec()])),
        ("values:2", array(&[bulk(values.of(1))])),
        ("bulk", b"$-1\r\n".to_vec()),
        ("elements:2", array(&[bulk(b"a")])),
        ("elements:1", b"$1\r\na\r\n".to_vec()),
        ("any", b"-ERR unknown command\r\n".to_vec()),
        ("any", b"nonsense\r\n".to_vec()),
    ];
    for (kind, reply) in cases {
        let outcome = checker(kind, 64).find(&reply, &mut Scanner::default());
        let text = String::from_utf8_lossy(&reply);
        assert!(
            matches!(outcome, Err(Error::WrongReply(_))),
            "{kind} accepted {text:?}: {outcome:?}"
        );
    }
}

#[test]
fn a_value_that_overruns_its_length_stops_the_run() {
    let values = Values::new(64);
    let mut reply = bulk(values.of(1));
    let end = reply.len();
    reply[end - 2..].copy_from_slice(b"xx");
    assert!(checker("value", 64).find(&reply, &mut Scanner::default()).is_err());
}

#[test]
fn content_is_compared_with_what_was_stored() {
    let values = Values::new(32);
    let one = checker("value", 32);
    assert!(one.compare(&bulk(values.of(7)), &[7], &values).is_ok());
    assert!(one.compare(&bulk(values.of(7)), &[8], &values).is_err());
    assert!(one.compare(&bulk(values.of(7)), &[], &values).is_err());
    let two = checker("values:2", 32);
    let reply = array(&[bulk(values.of(7)), bulk(values.of(9))]);
    assert!(two.compare(&reply, &[7, 9], &values).is_ok());
    assert!(two.compare(&reply, &[9, 7], &values).is_err());
    assert!(two.compare(&reply, &[7], &values).is_err());
}

#[test]
fn unknown_kinds_are_refused() {
    for text in ["", "okay", "values", "values:x", "ok:1", "elements"] {
        assert!(Expect::parse(text).is_err(), "{text:?} was accepted");
    }
    for (kind, _) in KINDS {
        assert!(
            Expect::parse(&kind.replace('N', "3")).is_ok(),
            "{kind} is in the help only"
        );
    }
}
