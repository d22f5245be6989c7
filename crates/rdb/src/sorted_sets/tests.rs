//! Tests of writing and reading sorted sets, of old encodings, and of damaged ones.

use super::*;

const LIMITS: SortedSetLimits = SortedSetLimits {
    members: 4,
    member_bytes: 10,
};

fn draft(members: &[(&str, f64)]) -> DetachedSortedSet {
    let mut draft = DetachedSortedSet::new(1, 1, LIMITS);
    for (member, score) in members {
        draft.upsert(member.as_bytes(), LIMITS, |_| Some(*score));
    }
    draft
}

fn written(draft: &DetachedSortedSet) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, draft.view(), true);
    out
}

fn read(bytes: &[u8]) -> Option<DetachedSortedSet> {
    let mut reader = RdbReader::new(bytes);
    super::read(reader.byte()?, &mut reader, LIMITS)
}

fn listed(draft: &DetachedSortedSet) -> Vec<(String, f64)> {
    let show = |member: Element<'_>| String::from_utf8_lossy(&member.to_vec()).into_owned();
    draft
        .view()
        .iter()
        .map(|(member, score)| (show(member), score))
        .collect()
}

#[test]
fn sorted_sets_are_read_as_they_were_written() {
    let sets: [&[(&str, f64)]; 4] = [
        &[("a", 1.0)],
        &[("12", -5.0), ("b", 0.1), ("-7", f64::INFINITY)],
        &[("a member that is long", 1e300), ("b", f64::NEG_INFINITY)],
        &[
            ("a", 1.0),
            ("b", 2.0),
            ("c", 2.0),
            ("d", 4.5),
            ("e", 9007199254740993.0),
        ],
    ];
    for members in sets {
        let set = draft(members);
        let bytes = written(&set);
        let again = read(&bytes).expect("it was just written");
        assert_eq!(listed(&again), listed(&set));
        assert_eq!(written(&again), bytes);
    }
}

#[test]
fn small_sets_are_written_as_valkey_writes_them() {
    let set = draft(&[("a", 1.0), ("b", 2.5)]);
    let expected = b"\x11\x14\x14\0\0\0\x04\0\x81a\x02\x01\x01\x81b\x02\x832.5\x04\xff";
    assert_eq!(written(&set), expected);
}

#[test]
fn old_forms_are_read() {
    let decimal = b"\x03\x03\x01a\x031.5\x01b\xfe\x01c\xff";
    let expected = [("c", f64::NEG_INFINITY), ("a", 1.5), ("b", f64::INFINITY)];
    let expected: Vec<(String, f64)> = expected
        .iter()
        .map(|(member, score)| (member.to_string(), *score))
        .collect();
    assert_eq!(listed(&read(decimal).expect("it is sound")), expected);
    let ziplist = b"\x0c\x15\x15\0\0\0\x12\0\0\0\x04\0\0\x01b\x03\xf3\x02\x01a\x03\xf2\xff";
    let expected = [("a".to_owned(), 1.0), ("b".to_owned(), 2.0)];
    assert_eq!(listed(&read(ziplist).expect("it is sound")), expected);
}

#[test]
fn invalid_sorted_sets_are_refused() {
    let cases: [&[u8]; 8] = [
        b"\x05\x00",
        b"\x05\x01\x01a",
        b"\x05\x02\x01a\0\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\x08\x40",
        b"\x05\x01\x01a\0\0\0\0\0\0\xf8\x7f",
        b"\x03\x01\x01a\xfd",
        b"\x03\x01\x01a\x03xyz",
        b"\x11\x07\x07\0\0\0\0\0\xff",
        b"\x11\x0a\x0a\0\0\0\x01\0\x81a\x02\xff",
    ];
    for case in cases {
        assert!(read(case).is_none(), "{case:?}");
    }
}

#[test]
fn truncated_and_damaged_sets_do_not_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let sets = [
        written(&draft(&[("a", 1.0), ("b", 2.5), ("1234", 5.0)])),
        written(&draft(&[("a", 1.0), ("b", 2.5), ("c", 5.0), ("d", 6.0), ("e", 7.0)])),
    ];
    for bytes in sets {
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_none());
        }
        for _ in 0..20_000 {
            let mut damaged = bytes.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(1..damaged.len());
                damaged[at] = random.u8(..);
            }
            if let Some(set) = read(&damaged) {
                assert!(listed(&set).iter().all(|(_, score)| !score.is_nan()));
            }
        }
    }
}
