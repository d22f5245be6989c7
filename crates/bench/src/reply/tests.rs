//! Tests of the reply scanner.

use super::*;

const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b"-ERR no such thing\r\n",
    b":12345\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",3.25\r\n",
    b"(1234567890123456789012\r\n",
    b"$0\r\n\r\n",
    b"$5\r\nhello\r\n",
    b"$8\r\na\r\nb\r\nc\n\r\n",
    b"=8\r\ntxt:text\r\n",
    b"!9\r\nERR wrong\r\n",
    b"*0\r\n",
    b"*3\r\n$1\r\na\r\n$-1\r\n:5\r\n",
    b"*2\r\n*2\r\n:1\r\n*0\r\n$1\r\nx\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
    b"~2\r\n+a\r\n+b\r\n",
    b">2\r\n+message\r\n$2\r\nhi\r\n",
    b"|1\r\n+ttl\r\n:3\r\n$2\r\nhi\r\n",
];

#[test]
fn every_reply_is_found_completely() {
    for reply in REPLIES {
        let mut followed = reply.to_vec();
        followed.extend_from_slice(b"+NEXT\r\n");
        let text = String::from_utf8_lossy(reply);
        assert_eq!(
            ReplyScanner::default().advance(&followed),
            Ok(Some(reply.len())),
            "{text:?}"
        );
    }
}

#[test]
fn every_reply_is_found_when_it_arrives_byte_by_byte() {
    let mut scanner = ReplyScanner::default();
    for reply in REPLIES {
        for end in 0..reply.len() {
            let text = String::from_utf8_lossy(&reply[..end]);
            assert_eq!(scanner.advance(&reply[..end]), Ok(None), "{text:?}");
        }
        assert_eq!(scanner.advance(reply), Ok(Some(reply.len())));
    }
}

#[test]
fn a_long_array_split_anywhere_is_scanned_once() {
    let mut reply = b"*1000\r\n".to_vec();
    for number in 0..1000 {
        reply.extend_from_slice(format!("$4\r\n{number:04}\r\n").as_bytes());
    }
    for first_cut in (1..reply.len()).step_by(97) {
        let mut scanner = ReplyScanner::default();
        assert_eq!(scanner.advance(&reply[..first_cut]), Ok(None));
        assert!(
            scanner.cursor + 10 >= first_cut,
            "the scan did not get as far as it could"
        );
        assert_eq!(scanner.advance(&reply), Ok(Some(reply.len())));
    }
}

#[test]
fn invalid_replies_are_refused() {
    let broken: &[&[u8]] = &[
        b"hello\r\n",
        b"+OK\n",
        b"\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"*99999999999999\r\n",
        b"$3\r\nabcde",
        b"*2\r\n:1\r\n?\r\n",
    ];
    for bytes in broken {
        let text = String::from_utf8_lossy(bytes);
        assert!(ReplyScanner::default().advance(bytes).is_err(), "{text:?} was accepted");
    }
    let endless = vec![b'+'; MAX_LINE_BYTES + 1];
    assert!(ReplyScanner::default().advance(&endless).is_err());
}
