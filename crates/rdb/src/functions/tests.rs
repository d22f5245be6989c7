//! Tests of payloads of function libraries.

use super::{dump, load};
use crate::dump_payload::is_valid;

#[test]
fn a_payload_of_valkey_is_read() {
    // The output of FUNCTION DUMP of Valkey 9.1.2 with one short library.
    let mut payload = b"\xf56#!lua name=a\nredis.register_function(1,function() end)".to_vec();
    crate::dump_payload::append_footer(&mut payload, 80);
    assert!(is_valid(&payload, false));
    assert_eq!(
        load(&payload),
        Ok(vec![
            b"#!lua name=a\nredis.register_function(1,function() end)".to_vec()
        ])
    );
    assert_eq!(dump(&load(&payload).unwrap(), true), payload);
}

#[test]
fn long_libraries_are_compressed_and_read_back() {
    let codes = vec![b"#!lua name=x\n".repeat(20), b"short".to_vec()];
    let payload = dump(&codes, true);
    assert!(payload.len() < codes[0].len());
    assert_eq!(load(&payload), Ok(codes));
}

#[test]
fn other_records_are_refused() {
    for (mark, reason) in [
        (246, "Pre-GA function format not supported"),
        (0, "given type is not a function"),
    ] {
        let mut payload = vec![mark, 1, b'x'];
        crate::dump_payload::append_footer(&mut payload, 80);
        assert_eq!(load(&payload), Err(reason));
    }
    let mut cut = vec![245, 9, b'x'];
    crate::dump_payload::append_footer(&mut cut, 80);
    assert_eq!(load(&cut), Err("Failed loading library payload"));
}
