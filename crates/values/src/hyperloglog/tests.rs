//! Tests of HyperLogLogs against those that Valkey created, and against plain registers.

use super::*;

const LIMIT: usize = 3000;

fn add(bytes: &mut Vec<u8>, limit: usize, elements: std::ops::Range<u32>) {
    let mut writer = HyperLogLogWriter::new(bytes, limit).unwrap();
    for element in elements {
        writer
            .raise(RegisterUpdate::of(element.to_string().as_bytes()))
            .unwrap();
    }
}

/// No elements set registers above 51. Valkey 9.1.2 replies the smallest integer to PFCOUNT of such a value.
#[test]
fn registers_that_no_elements_set_have_no_cardinality() {
    let mut bytes = empty();
    HyperLogLogWriter::new(&mut bytes, LIMIT).unwrap().make_dense().unwrap();
    let header = bytes.len() - REGISTERS * 6 / 8;
    bytes[header..].fill(0xff);
    assert_eq!(cardinality(&bytes).map(|count| count as i64), Ok(i64::MIN));
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns the registers, read one by one.
fn registers(bytes: &[u8]) -> Vec<u8> {
    match encoding(bytes).unwrap() {
        HyperLogLogEncoding::Dense => (0..REGISTERS).map(|index| dense_register(bytes, index)).collect(),
        HyperLogLogEncoding::Sparse => runs(bytes)
            .flat_map(|run| match run.unwrap() {
                RegisterRun::Zero(len) => vec![0; len],
                RegisterRun::Value(value, len) => vec![value; len],
            })
            .collect(),
    }
}

#[test]
fn a_few_elements_give_the_bytes_that_valkey_stores() {
    let mut bytes = empty();
    assert_eq!(cached_cardinality(&bytes), Some(0));
    assert_eq!(bytes, b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff");
    let mut writer = HyperLogLogWriter::new(&mut bytes, LIMIT).unwrap();
    for letter in b'a'..=b'n' {
        assert_eq!(writer.raise(RegisterUpdate::of(&[letter])), Ok(true));
        assert_eq!(writer.raise(RegisterUpdate::of(&[letter])), Ok(false));
    }
    assert_eq!(
        bytes,
        b"HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80Fm\x80@\x89\x88H_\x84@\xfc\x80@\xc4\x84K\\\x80D<\x848\x80B=\x80K\x83\x80B\xed\x84A\xfc\x8cG\x8e\x80Bm\x80BZ"
    );
    assert_eq!(cached_cardinality(&bytes), None);
    assert_eq!(cardinality(&bytes), Ok(14));
    cache_cardinality(&mut bytes, 14);
    let mut writer = HyperLogLogWriter::new(&mut bytes, LIMIT).unwrap();
    for element in ["", "foo", "a longer element with more than sixteen bytes"] {
        assert_eq!(writer.raise(RegisterUpdate::of(element.as_bytes())), Ok(true));
    }
    assert_eq!(
        bytes,
        b"HYLL\x01\x00\x00\x00\x0e\x00\x00\x00\x00\x00\x00\x80Fm\x80@\x89\x88E\xd5\x80B\x88\x84@\xfc\x80@\xc4\x84F\x12\x84EH\x806\x90D\x04\x848\x80B=\x80K\x83\x80B\xed\x84A\xfc\x8cG\x8e\x80Bm\x80BZ"
    );
}

#[test]
fn many_elements_give_the_bytes_that_valkey_stores() {
    // Number of elements, length in bytes, cardinality, checksum of the registers.
    let recorded: &[(u32, usize, u64, u64)] = &[
        (1, 21, 1, 0x3dbe4f60611746e1),
        (10, 48, 10, 0xb7ab55ff425c2c28),
        (100, 287, 100, 0xd6cd758c38ea5fae),
        (500, 1061, 503, 0xb594b7a7d9a8c93b),
        (1000, 1923, 1001, 0xe8081acde1af2dfc),
        (1300, 2434, 1307, 0x4232bc1e37de2417),
        (1500, 2766, 1512, 0xa9fee7cfae769b4),
        (2000, 12304, 2007, 0xe9302346932a3d3b),
        (5000, 12304, 4985, 0xe6adba5d90ca61e7),
        (10000, 12304, 9987, 0xf8e9185512486287),
        (100000, 12304, 99565, 0xed1b954bbf39a719),
    ];
    let (mut bytes, mut added) = (empty(), 0);
    for (elements, length, count, sum) in recorded {
        add(&mut bytes, LIMIT, added..*elements);
        added = *elements;
        assert_eq!(bytes.len(), *length, "{elements} elements");
        assert_eq!(cardinality(&bytes), Ok(*count), "{elements} elements");
        assert_eq!(checksum(&bytes[HEADER_BYTES..]), *sum, "{elements} elements");
    }
}

#[test]
fn a_higher_limit_keeps_it_sparse() {
    let mut bytes = empty();
    add(&mut bytes, 20_000, 0..20_000);
    assert_eq!(encoding(&bytes), Some(HyperLogLogEncoding::Sparse));
    assert_eq!(bytes.len(), 13_079);
    assert_eq!(checksum(&bytes[HEADER_BYTES..]), 0x6dca_5c74_01f3_d576);
    assert_eq!(cardinality(&bytes), Ok(19_891));
}

#[test]
fn a_merge_writes_the_bytes_that_valkey_stores() {
    let (mut destination, mut source) = (empty(), empty());
    add(&mut destination, 20_000, 0..3000);
    add(&mut source, 20_000, 1500..6000);
    let mut union = HyperLogLogUnion::default();
    union.merge(&destination).unwrap();
    union.merge(&source).unwrap();
    let mut writer = HyperLogLogWriter::new(&mut destination, 20_000).unwrap();
    for mark in union.register_updates() {
        writer.raise(mark).unwrap();
    }
    assert_eq!(destination.len(), 8120);
    assert_eq!(checksum(&destination[HEADER_BYTES..]), 0x58a7_fe17_3c75_1725);
    assert_eq!(cardinality(&destination), Ok(5984));
    assert_eq!(union.cardinality(), 5984);
}

#[test]
fn random_marks_agree_with_plain_registers() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..30 {
        let limit = random.usize(18..40_000);
        let most = random.u8(1..=51);
        // A narrow range of registers results in many runs of values.
        let range = random.usize(1..=REGISTERS);
        let (mut bytes, mut expected) = (empty(), vec![0u8; REGISTERS]);
        for _ in 0..20 {
            // A writer that is used for several marks takes shortcuts; one that is used for a single mark does not.
            let mut short_cuts = bytes.clone();
            let mut writer = HyperLogLogWriter::new(&mut short_cuts, limit).unwrap();
            let mut marks: Vec<RegisterUpdate> = (0..random.usize(1..100))
                .map(|_| RegisterUpdate {
                    index: random.usize(..range),
                    count: random.u8(1..=most),
                })
                .collect();
            if random.bool() {
                marks.sort_by_key(|mark| mark.index);
            }
            for mark in marks {
                let raises = expected[mark.index] < mark.count;
                expected[mark.index] = expected[mark.index].max(mark.count);
                assert_eq!(writer.raise(mark), Ok(raises));
                assert_eq!(
                    HyperLogLogWriter::new(&mut bytes, limit).unwrap().raise(mark),
                    Ok(raises)
                );
            }
            assert_eq!(short_cuts, bytes, "round {round}");
        }
        assert_eq!(registers(&bytes), expected, "round {round}");
        let counted = cardinality(&bytes).unwrap();
        let mut union = HyperLogLogUnion::default();
        union.merge(&bytes).unwrap();
        assert_eq!(union.cardinality(), counted);
        assert!(union.register_updates().all(|mark| expected[mark.index] == mark.count));
        let mut writer = HyperLogLogWriter::new(&mut bytes, limit).unwrap();
        let _ = writer.make_dense().unwrap();
        assert_eq!(registers(&bytes), expected);
        assert_eq!(cardinality(&bytes), Ok(counted));
        let mut union = HyperLogLogUnion::default();
        union.merge(&bytes).unwrap();
        assert_eq!(union.cardinality(), counted);
    }
}

#[test]
fn strings_that_are_not_hyperloglogs_are_refused() {
    let sparse = empty();
    let cases: &[(&str, Vec<u8>)] = &[
        ("nothing", Vec::new()),
        ("too short", sparse[..15].to_vec()),
        ("other magic", [b"HYLX", &sparse[4..]].concat()),
        ("unknown encoding", [&sparse[..4], b"\x02", &sparse[5..]].concat()),
        (
            "dense of a wrong length",
            [&sparse[..4], b"\x00", &sparse[5..]].concat(),
        ),
    ];
    for (what, bytes) in cases {
        assert_eq!(encoding(bytes), None, "{what}");
        assert_eq!(cardinality(bytes), Err(CorruptedHyperLogLog), "{what}");
        assert!(HyperLogLogUnion::default().merge(bytes).is_err(), "{what}");
        assert!(HyperLogLogWriter::new(&mut bytes.clone(), LIMIT).is_none(), "{what}");
    }
}

#[test]
fn runs_that_do_not_cover_the_registers_are_refused() {
    let header = &empty()[..HEADER_BYTES];
    let cases: &[(&str, &[u8])] = &[
        ("no runs", b""),
        ("too few registers", b"\x7f\xfe"),
        ("too many registers", b"\x7f\xff\x00"),
        ("too many registers with a value", b"\x7f\xfe\x81"),
        ("half a run", b"\x7f"),
        ("half a run behind enough registers", b"\x7f\xff\x40"),
    ];
    for (what, runs) in cases {
        let mut bytes = [header, runs].concat();
        let before = bytes.clone();
        assert_eq!(cardinality(&bytes), Err(CorruptedHyperLogLog), "{what}");
        assert!(HyperLogLogUnion::default().merge(&bytes).is_err(), "{what}");
        let mut writer = HyperLogLogWriter::new(&mut bytes, LIMIT).unwrap();
        assert_eq!(writer.make_dense(), Err(CorruptedHyperLogLog), "{what}");
        // A mark that requires the dense encoding, and one for a register that may be missing.
        assert_eq!(
            writer.raise(RegisterUpdate { index: 0, count: 40 }),
            Err(CorruptedHyperLogLog),
            "{what}"
        );
        assert_eq!(bytes, before, "{what}");
    }
}

#[test]
fn no_mutation_panics() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sound = empty();
    add(&mut sound, LIMIT, 0..300);
    for _ in 0..3000 {
        let mut bytes = sound.clone();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..=bytes.len()));
        let _ = (cardinality(&bytes), HyperLogLogUnion::default().merge(&bytes));
        if let Some(mut writer) = HyperLogLogWriter::new(&mut bytes, LIMIT) {
            for _ in 0..10 {
                let _ = writer.raise(RegisterUpdate {
                    index: random.usize(..REGISTERS),
                    count: random.u8(1..=51),
                });
            }
        }
    }
}
