//! Tests of the reply parser.

use super::{Body, ParseError, Reply};

const WHOLE: &[(&str, &str)] = &[
    ("+OK\r\n", "+OK"),
    ("-ERR no\r\n", "-ERR no"),
    (":-5\r\n", ":-5"),
    ("$3\r\na\r\n\r\n", "\"a\\r\\n\""),
    ("$-1\r\n", "$nil"),
    ("*-1\r\n", "*nil"),
    ("*0\r\n", "*0[]"),
    ("*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "*2[\"a\", *1[:1]]"),
    ("%1\r\n+k\r\n_\r\n", "%2[+k, _]"),
    ("~2\r\n#t\r\n,1.5\r\n", "~2[#t, ,1.5]"),
    ("=5\r\ntxt:a\r\n", "=txt:a"),
    (">1\r\n(123\r\n", ">1[(123]"),
];

#[test]
fn every_type_is_read_to_its_last_byte() {
    for (wire, shown) in WHOLE {
        let followed = format!("{wire}+NEXT\r\n");
        let (reply, used) = Reply::parse(followed.as_bytes()).unwrap();
        assert_eq!(used, wire.len(), "{wire:?}");
        assert_eq!(reply.to_line(), *shown);
        assert_eq!(reply.to_wire(), wire.as_bytes());
    }
}

#[test]
fn a_truncated_reply_is_incomplete_at_every_byte() {
    for (wire, _) in WHOLE {
        for end in 0..wire.len() {
            let cut = Reply::parse(&wire.as_bytes()[..end]);
            assert_eq!(cut.err(), Some(ParseError::Incomplete), "{wire:?} cut at {end}");
        }
    }
}

#[test]
fn invalid_bytes_are_malformed() {
    for wire in ["?x\r\n", "$x\r\n", "$-2\r\n", "$1\r\nabc\r\n", "\r\n", "*1\r\n?\r\n"] {
        let result = Reply::parse(wire.as_bytes());
        assert!(matches!(result, Err(ParseError::Malformed(_))), "{wire:?}: {result:?}");
    }
}

#[test]
fn accessors_return_text_and_items() {
    let (error, _) = Reply::parse(b"-ERR x\r\n").unwrap();
    assert!(error.is_error());
    assert_eq!(error.text(), b"ERR x");
    let (list, _) = Reply::parse(b"*1\r\n:1\r\n").unwrap();
    assert_eq!(list.items().len(), 1);
    assert_eq!(list.items()[0].body, Body::Text(b"1".to_vec()));
}
