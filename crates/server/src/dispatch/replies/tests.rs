//! Tests of how errors are found among replies.

use super::first_error;

#[test]
fn an_error_is_found_after_replies_of_all_kinds() {
    let cases: [(&[u8], Option<&[u8]>); 7] = [
        (b"", None),
        (b"+OK\r\n:1\r\n$-1\r\n*-1\r\n_\r\n", None),
        (b"+OK\r\n-ERR no\r\n", Some(b"ERR no")),
        (b"$6\r\n-ERR x\r\n+OK\r\n", None),
        (b"*2\r\n$3\r\na\r\n\r\n:1\r\n-WRONGTYPE x\r\n", Some(b"WRONGTYPE x")),
        (b"%1\r\n+a\r\n*1\r\n:1\r\n-E\r\n", Some(b"E")),
        (b"$100\r\nis elsewhere", None),
    ];
    for (replies, error) in cases {
        assert_eq!(first_error(replies), error, "{}", String::from_utf8_lossy(replies));
    }
}
