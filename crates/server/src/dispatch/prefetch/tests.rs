//! Tests of the memory that is fetched for a register of a HyperLogLog.

use weft_table::Blob;
use weft_values::hyperloglog::{DENSE_BYTES, REGISTERS};

use super::*;

#[test]
fn the_register_of_an_element_is_fetched_from_a_dense_hyperloglog_only() {
    const HEADER_BYTES: usize = 16;
    const REGISTER_BITS: usize = 6;
    let dense = vec![0; DENSE_BYTES];
    for element in [b"".as_slice(), b"a", b"a longer element"] {
        let index = RegisterUpdate::of(element).index;
        let member = PrefetchMember::register_of(element);
        assert_eq!(member.register(), Some(index));
        let expected = (&raw const dense[HEADER_BYTES + index * REGISTER_BITS / 8], 1);
        assert_eq!(member.index_memory(ValueRef::Bytes(&dense)), Some(expected));
        assert_eq!(member.record_memory(ValueRef::Bytes(&dense)), None);
        assert_eq!(
            member.index_memory(ValueRef::Bytes(&dense[1..])),
            None,
            "another length"
        );
        assert_eq!(member.index_memory(ValueRef::Int(1)), None);
        assert_eq!(member.index_memory(ValueRef::Packed(&dense)), None);
    }
    let shared = Blob::from_slice(&dense);
    let found = PrefetchMember::register_of(b"a").index_memory(ValueRef::Blob(&shared));
    let (address, length) = found.expect("it has the length of a dense one");
    assert!(shared.as_ptr_range().contains(&address) && length == 1);
}

#[test]
fn registers_differ_from_all_other_members() {
    let others = [
        PrefetchMember::NONE,
        PrefetchMember::ALL,
        PrefetchMember::HEAD,
        PrefetchMember::TAIL,
        PrefetchMember::from_name(b"field"),
        PrefetchMember(FIRST_REGISTER - REGISTERS as u64),
    ];
    for other in others {
        assert_eq!(other.register(), None);
        assert_eq!(other.index_memory(ValueRef::Bytes(&[0; DENSE_BYTES])), None);
    }
    let last = PrefetchMember(FIRST_REGISTER - (REGISTERS as u64 - 1));
    assert_eq!(last.register(), Some(REGISTERS - 1));
}
