//! Tests of the estimated time of RESTORE.

use super::*;

use weft_rdb::strings::{write_length, write_string};
use weft_rdb::{lists, sets};

const IN_PLACE_NS: u64 = 200_000;

fn is_long(payload: &[u8]) -> bool {
    restore_cost_ns(payload, IN_PLACE_NS) > IN_PLACE_NS
}

#[test]
fn small_compressed_payloads_of_large_values_take_long() {
    for (kind, bytes) in [(dump_payload::TYPE_STRING, 1_000_000), (lists::TYPE_ZIPLIST, 100_000)] {
        let mut payload = vec![kind];
        write_string(&mut payload, &vec![b'x'; bytes], true);
        assert!(payload.len() < 20_000, "{}", payload.len());
        assert!(is_long(&payload), "type {kind}");
        assert_eq!(restore_cost_ns(&payload, u64::MAX), 0, "it cannot leave its thread");
    }
}

#[test]
fn small_values_are_restored_in_place() {
    let mut payload = vec![sets::TYPE_SET];
    write_length(&mut payload, 500);
    for member in 0..500 {
        write_string(&mut payload, format!("member {member}").as_bytes(), true);
    }
    assert!(!is_long(&payload));
    let mut payload = vec![dump_payload::TYPE_STRING];
    write_string(&mut payload, &[b'x'; 100_000], true);
    assert!(!is_long(&payload));
}
