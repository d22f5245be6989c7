//! Tests of reading replies, in particular those of a hostile server.

use std::io::{ErrorKind, Read};

use super::{MAX_REPLY_BYTES, RespValue, read_reply};

fn read(bytes: &[u8]) -> std::io::Result<RespValue> {
    read_reply(&mut &bytes[..])
}

fn text(text: &str) -> RespValue {
    RespValue::Text(text.as_bytes().to_vec())
}

#[test]
fn values_of_both_protocols_are_read() {
    assert_eq!(read(b"+OK\r\n").unwrap(), text("OK"));
    assert_eq!(read(b"$2\r\nab\r\n").unwrap(), text("ab"));
    assert_eq!(read(b"=6\r\ntxt:ab\r\n").unwrap(), text("ab"));
    assert_eq!(read(b"$-1\r\n").unwrap(), RespValue::Null);
    assert_eq!(read(b"_\r\n").unwrap(), RespValue::Null);
    assert_eq!(read(b"#t\r\n").unwrap(), RespValue::Integer(1));
    assert_eq!(read(b",1.5\r\n").unwrap(), text("1.5"));
    assert_eq!(read(b"-ERR no\r\n").unwrap(), RespValue::Error(b"ERR no".to_vec()));
    let map = RespValue::Array(vec![text("a"), RespValue::Integer(1)]);
    assert_eq!(read(b"%1\r\n+a\r\n:1\r\n").unwrap(), map);
    assert_eq!(read(b"*2\r\n+a\r\n:1\r\n").unwrap(), map);
}

#[test]
fn attributes_and_pushed_messages_are_skipped() {
    assert_eq!(read(b"|1\r\n+a\r\n:1\r\n>1\r\n+x\r\n+OK\r\n").unwrap(), text("OK"));
    assert_eq!(
        read(b"*1\r\n|1\r\n+a\r\n:1\r\n+OK\r\n").unwrap(),
        RespValue::Array(vec![text("OK")])
    );
}

#[test]
fn limits_end_a_reply() {
    let kind = |bytes: &[u8]| read(bytes).unwrap_err().kind();
    let huge = format!("${}\r\n", MAX_REPLY_BYTES + 1);
    assert_eq!(kind(huge.as_bytes()), ErrorKind::InvalidData);
    assert_eq!(kind(b"$9223372036854775807\r\n"), ErrorKind::InvalidData);
    assert_eq!(kind(b"*9223372036854775807\r\n"), ErrorKind::InvalidData);
    assert_eq!(kind(b"%9223372036854775807\r\n"), ErrorKind::InvalidData);
    assert_eq!(kind(b"$-2\r\n"), ErrorKind::InvalidData);
    assert_eq!(kind(&b"*1\r\n".repeat(100_000)), ErrorKind::InvalidData);
    assert_eq!(kind(&[b'+'; 100_000]), ErrorKind::InvalidData);
    assert_eq!(kind(b"HTTP/1.1 400 Bad Request\r\n"), ErrorKind::InvalidData);
    assert_eq!(kind(b"\r\n"), ErrorKind::InvalidData);
    assert_eq!(kind(b"$2\r\nabcd"), ErrorKind::InvalidData);
}

#[test]
fn an_announced_length_that_does_not_arrive_is_an_end_of_the_stream() {
    assert_eq!(read(b"$60000000\r\nab").unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(
        read(b"*1000000\r\n:1\r\n").unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
    assert_eq!(read(b"").unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn endless_attributes_end_a_reply() {
    let mut endless = std::io::BufReader::new(Repeated(b"|0\r\n"));
    assert_eq!(read_reply(&mut endless).unwrap_err().kind(), ErrorKind::InvalidData);
}

/// A stream that repeats four bytes without end.
struct Repeated(&'static [u8; 4]);

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(4);
        buffer[..count].copy_from_slice(&self.0[..count]);
        Ok(count)
    }
}

#[test]
fn mutated_replies_are_read_or_refused() {
    let valid = b"*4\r\n$3\r\nabc\r\n%1\r\n+k\r\n:12\r\n=5\r\ntxt:a\r\n*2\r\n$-1\r\n_\r\n";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    for _ in 0..20_000 {
        let mut bytes = valid.to_vec();
        for _ in 0..=next(4) {
            let position = next(bytes.len());
            bytes[position] = b"*$%|>=:+-_0123456789\r\n\xff\0"[next(24)];
        }
        bytes.truncate(next(bytes.len()) + 1);
        // Only the absence of panics and of hangs counts.
        let _ = read(&bytes);
    }
}
