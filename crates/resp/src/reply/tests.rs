//! Tests of every reply type in both protocols.

use super::*;

fn write(protocol: Protocol, write: impl FnOnce(&mut Reply)) -> String {
    let mut out = b"+before\r\n".to_vec();
    write(&mut Reply::new(&mut out, protocol));
    let text = String::from_utf8(out).unwrap();
    text.strip_prefix("+before\r\n").unwrap().to_owned()
}

type Write = fn(&mut Reply);

#[test]
fn every_type_is_written_correctly_in_both_protocols() {
    let cases: &[(Write, &str, &str)] = &[
        (|r| r.ok(), "+OK\r\n", "+OK\r\n"),
        (|r| r.queued(), "+QUEUED\r\n", "+QUEUED\r\n"),
        (|r| r.simple("PONG"), "+PONG\r\n", "+PONG\r\n"),
        (
            |r| r.error("ERR syntax error"),
            "-ERR syntax error\r\n",
            "-ERR syntax error\r\n",
        ),
        (|r| r.error("ERR a\r\nb\nc\r\n\n"), "-ERR a  b c\r\n", "-ERR a  b c\r\n"),
        (|r| r.integer(0), ":0\r\n", ":0\r\n"),
        (|r| r.integer(-1), ":-1\r\n", ":-1\r\n"),
        (
            |r| r.integer(i64::MAX),
            ":9223372036854775807\r\n",
            ":9223372036854775807\r\n",
        ),
        (
            |r| r.integer(i64::MIN),
            ":-9223372036854775808\r\n",
            ":-9223372036854775808\r\n",
        ),
        (|r| r.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
        (|r| r.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
        (|r| r.bulk_integer(-12), "$3\r\n-12\r\n", "$3\r\n-12\r\n"),
        (|r| r.null(), "$-1\r\n", "_\r\n"),
        (|r| r.null_array(), "*-1\r\n", "_\r\n"),
        (|r| r.array(3), "*3\r\n", "*3\r\n"),
        (|r| r.map(7), "*14\r\n", "%7\r\n"),
        (|r| r.set(2), "*2\r\n", "~2\r\n"),
        (|r| r.push(3), "*3\r\n", ">3\r\n"),
        (|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
        (|r| r.double(f64::INFINITY), "$3\r\ninf\r\n", ",inf\r\n"),
        (|r| r.double(f64::NAN), "$3\r\nnan\r\n", ",nan\r\n"),
        (
            |r| r.long_double(LongDouble::from_f64(0.5)),
            "$3\r\n0.5\r\n",
            ",0.5\r\n",
        ),
        (
            |r| r.big_number("-12345678901234567890"),
            "$21\r\n-12345678901234567890\r\n",
            "(-12345678901234567890\r\n",
        ),
        (|r| r.boolean(true), ":1\r\n", "#t\r\n"),
        (|r| r.boolean(false), ":0\r\n", "#f\r\n"),
        (|r| r.verbatim("txt", b"a\nb"), "$3\r\na\nb\r\n", "=7\r\ntxt:a\nb\r\n"),
        (|r| r.verbatim("md", b""), "$0\r\n\r\n", "=4\r\nmd :\r\n"),
        (|r| r.verbatim("plain", b"x"), "$1\r\nx\r\n", "=5\r\npla:x\r\n"),
    ];
    for (index, (writer, resp2, resp3)) in cases.iter().enumerate() {
        assert_eq!(write(Protocol::Resp2, writer), *resp2, "case {index}");
        assert_eq!(write(Protocol::Resp3, writer), *resp3, "case {index}");
    }
    assert_eq!(write(Protocol::Resp3, |r| r.attribute(1)), "|1\r\n");
}

#[test]
fn headers_of_any_size_are_decimal() {
    let edges = [
        0usize,
        1,
        9,
        10,
        11,
        19,
        99,
        100,
        101,
        110,
        123,
        999,
        1000,
        1001,
        99_999,
        1 << 40,
    ];
    for len in edges.into_iter().chain(0..1200) {
        assert_eq!(write(Protocol::Resp2, |r| r.bulk_header(len)), format!("${len}\r\n"));
        assert_eq!(write(Protocol::Resp2, |r| r.array(len)), format!("*{len}\r\n"));
        assert_eq!(write(Protocol::Resp2, |r| r.integer(len as i64)), format!(":{len}\r\n"));
    }
    let longest = write(Protocol::Resp2, |r| r.array(usize::MAX));
    assert_eq!(longest.len(), HEADER_MAX_LEN);
}

#[test]
fn a_bulk_string_can_be_written_in_parts() {
    let text = write(Protocol::Resp2, |reply| {
        reply.bulk_header(6);
        reply.raw(b"abc");
        reply.raw(b"def");
        reply.crlf();
    });
    assert_eq!(text, "$6\r\nabcdef\r\n");
}

#[test]
fn deferred_lengths_are_inserted_at_the_end() {
    let nested = |reply: &mut Reply| {
        let outer = reply.begin_array();
        reply.integer(1);
        let map = reply.begin_map();
        reply.bulk(b"key");
        let set = reply.begin_set();
        (0..12).for_each(|number| reply.integer(number));
        reply.end_set(set, 12);
        reply.end_map(map, 1);
        let empty = reply.begin_array();
        reply.end_array(empty, 0);
        reply.end_array(outer, 3);
    };
    let numbers: String = (0..12).map(|number| format!(":{number}\r\n")).collect();
    assert_eq!(
        write(Protocol::Resp2, nested),
        format!("*3\r\n:1\r\n*2\r\n$3\r\nkey\r\n*12\r\n{numbers}*0\r\n")
    );
    assert_eq!(
        write(Protocol::Resp3, nested),
        format!("*3\r\n:1\r\n%1\r\n$3\r\nkey\r\n~12\r\n{numbers}*0\r\n")
    );
}

#[test]
fn replies_can_be_truncated() {
    let text = write(Protocol::Resp3, |reply| {
        reply.ok();
        let len = reply.len();
        reply.bulk(b"never seen");
        reply.truncate(len);
        reply.null();
    });
    assert_eq!(text, "+OK\r\n_\r\n");
}

#[test]
fn errors_may_contain_any_byte() {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Protocol::Resp2);
    reply.error_bytes(b"ERR unknown command '\xff\n'");
    reply.protocol_error(&ProtocolError::ExpectedBulk(0xfe));
    reply.protocol_error(&ProtocolError::InvalidLineEnd);
    let expected: &[u8] = b"-ERR unknown command '\xff '\r\n\
        -ERR Protocol error: expected '$', got '\xfe'\r\n\
        -ERR Protocol error: invalid CRLF in request\r\n";
    assert_eq!(out, expected);
}

/// Writes collections by a depth-first walk: one of `len` elements, of which the first is again such a collection.
fn write_nested(lengths: &mut NestedLengths, reply: &mut Reply, depth: usize, len: usize) {
    let begun = lengths.begin_array(reply);
    if depth > 0 {
        write_nested(lengths, reply, depth - 1, len + 3);
    } else {
        reply.integer(7);
    }
    (1..len).for_each(|number| reply.integer(number as i64));
    lengths.end_array(begun, len, reply);
}

#[test]
fn nested_lengths_are_inserted_in_one_pass() {
    for (depth, len) in [(0, 1), (0, 10), (3, 1), (40, 1), (5, 9), (3, 995)] {
        let mut expected = String::new();
        (0..=depth).for_each(|level| expected.push_str(&format!("*{}\r\n", len + 3 * level)));
        expected.push_str(":7\r\n");
        for level in (0..=depth).rev() {
            (1..len + 3 * level).for_each(|number| expected.push_str(&format!(":{number}\r\n")));
        }
        let text = write(Protocol::Resp2, |reply| {
            reply.ok();
            let mut lengths = NestedLengths::default();
            write_nested(&mut lengths, reply, depth, len);
            lengths.insert(reply);
        });
        assert_eq!(text, format!("+OK\r\n{expected}"), "depth {depth}, length {len}");
    }
}

#[test]
fn nested_maps_and_sets_have_the_headers_of_their_protocol() {
    let nested = |reply: &mut Reply| {
        let mut lengths = NestedLengths::default();
        let map = lengths.begin_map(reply);
        for key in 0..6 {
            reply.integer(key);
            let set = lengths.begin_set(reply);
            lengths.end_set(set, 0, reply);
        }
        lengths.end_map(map, 6, reply);
        lengths.insert(reply);
    };
    let pairs = |set: &str| -> String { (0..6).map(|key| format!(":{key}\r\n{set}0\r\n")).collect() };
    assert_eq!(write(Protocol::Resp2, nested), format!("*12\r\n{}", pairs("*")));
    assert_eq!(write(Protocol::Resp3, nested), format!("%6\r\n{}", pairs("~")));
}
