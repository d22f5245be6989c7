//! Tests of sets against those of Valkey, under different limits, and damaged ones.

use std::collections::BTreeSet;

use weft_values::listpack::Element;

use super::*;

const ROOMY: SetLimits = SetLimits {
    integers: 512,
    run_members: 128,
    run_member_bytes: 64,
};
const NARROW: SetLimits = SetLimits {
    integers: 2,
    run_members: 2,
    run_member_bytes: 3,
};

fn set_of(members: &[&str]) -> Set {
    let mut set = Set::new_integers();
    for member in members {
        set.add(member.as_bytes(), ROOMY);
    }
    set
}

fn written(set: &Set) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, set.view(), true);
    out
}

fn read(bytes: &[u8], limits: SetLimits) -> Option<Set> {
    let mut reader = RdbReader::new(bytes);
    read_set(reader.byte()?, &mut reader, limits)
}

fn members(set: &Set) -> BTreeSet<Vec<u8>> {
    set.view().iter().map(Element::to_vec).collect()
}

#[test]
fn sets_are_written_as_valkey_writes_them() {
    let cases: &[(&[&str], &[u8])] = &[
        (
            &["1", "2", "70000"],
            b"\x0b\x14\x04\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00p\x11\x01\x00",
        ),
        (
            &["a", "5", ""],
            b"\x14\x0e\x0e\x00\x00\x00\x03\x00\x81a\x02\x05\x01\x80\x01\xff",
        ),
        (
            &["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"],
            b"\x02\x01\xc3\t@S\x01xx\xe0F\x00\x01xx",
        ),
    ];
    for (members, bytes) in cases {
        assert_eq!(written(&set_of(members)), *bytes, "{members:?}");
    }
}

#[test]
fn sets_are_read_back_in_the_encoding_that_the_limits_allow() {
    let long = "x".repeat(65);
    let cases: &[(&[&str], &str, &str)] = &[
        (&["1"], "intset", "intset"),
        (&["1", "-70000", "99999999999"], "intset", "hashtable"),
        (&["a", "b"], "listpack", "listpack"),
        (&["a", "longer"], "listpack", "listpack"),
        (&["a", "b", "3"], "listpack", "hashtable"),
        (&["a", &long], "hashtable", "hashtable"),
    ];
    for (names, roomy, narrow) in cases {
        let set = set_of(names);
        for (limits, encoding) in [(ROOMY, roomy), (NARROW, narrow)] {
            let back = read(&written(&set), limits).expect("what was written can be read");
            assert_eq!(members(&back), members(&set), "{names:?}");
            assert_eq!(back.encoding_name(), *encoding, "{names:?}");
        }
    }
}

#[test]
fn sets_of_old_versions_take_the_encoding_of_their_members() {
    let plain = |members: &[&str]| {
        let mut out = vec![TYPE_SET];
        write_length(&mut out, members.len());
        members
            .iter()
            .for_each(|member| write_string(&mut out, member.as_bytes(), true));
        out
    };
    for (names, encoding) in [
        (&["3", "1"][..], "intset"),
        (&["3", "x"], "listpack"),
        (&["x", "3"], "listpack"),
        (&["abcd"], "hashtable"),
        (&["a", "b", "c"], "hashtable"),
        (&["1", "2", "3"], "hashtable"),
    ] {
        let set = read(&plain(names), NARROW).unwrap();
        assert_eq!((set.len(), set.encoding_name()), (names.len(), encoding), "{names:?}");
    }
    for names in [&[][..], &["a", "a"], &["1", "2", "1"], &["x", "y", "z", "x"]] {
        assert!(read(&plain(names), NARROW).is_none(), "{names:?}");
        assert!(read(&plain(names), ROOMY).is_none(), "{names:?}");
    }
}

#[test]
fn broken_sets_are_refused() {
    let cases: &[&[u8]] = &[
        b"",
        b"\x02",
        b"\x02\x00",
        b"\x02\x02\x01a",
        b"\x02\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
        // No integers; two equal ones; descending; a wrong count; a wrong width; truncated.
        b"\x0b\x08\x02\x00\x00\x00\x00\x00\x00\x00",
        b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x01\x00\x01\x00",
        b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x02\x00\x01\x00",
        b"\x0b\x0a\x02\x00\x00\x00\x02\x00\x00\x00\x01\x00",
        b"\x0b\x0b\x03\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00",
        b"\x0b\x07\x02\x00\x00\x00\x01\x00\x00",
        b"\x0b\xc0\x05",
        // No members; a duplicate in two encodings; a wrong length; not a listpack.
        b"\x14\x07\x07\x00\x00\x00\x00\x00\xff",
        b"\x14\x0b\x0b\x00\x00\x00\x02\x00\x05\x01\x05\x01\xff",
        b"\x14\x0c\x0c\x00\x00\x00\x02\x00\x05\x01\x815\x02\xff",
        b"\x14\x09\x0a\x00\x00\x00\x01\x00\x05\x01\xff",
        b"\x14\x03abc",
        b"\x14\xc0\x05",
    ];
    for bytes in cases {
        assert!(read(bytes, ROOMY).is_none(), "{bytes:?}");
    }
}

#[test]
fn mutated_sets_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let long = "xyz".repeat(30);
    let originals = [
        written(&set_of(&["1", "-2", "70000", "5"])),
        written(&set_of(&["a", "5", "", "hello"])),
        written(&set_of(&[&long, "a", "5"])),
    ];
    let mut accepted = 0;
    for _ in 0..30_000 {
        let mut bytes = originals[random.usize(..originals.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes.insert(at, random.u8(..)),
                1 if bytes.len() > 1 => bytes.truncate(at.max(1)),
                _ => bytes[at] ^= 1 << random.u8(..8),
            }
        }
        if let Some(set) = read(&bytes, ROOMY) {
            accepted += 1;
            let back = read(&written(&set), ROOMY).expect("what was written can be read");
            assert_eq!(members(&back), members(&set), "{bytes:?}");
            assert!(
                members(&set).iter().all(|member| set.view().contains(member)),
                "{bytes:?}"
            );
        }
    }
    assert!(accepted > 500, "hardly anything was accepted");
}
