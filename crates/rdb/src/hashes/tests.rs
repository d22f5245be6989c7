//! Tests of hashes against those of Valkey, under different limits, and damaged ones.

use std::collections::BTreeMap;

use super::*;

const ROOMY: HashLimits = HashLimits {
    fields: 512,
    value_bytes: 64,
};
const NARROW: HashLimits = HashLimits {
    fields: 1,
    value_bytes: 3,
};

/// The value and the expiry of each field.
type Fields = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

fn view(hash: &ReadHash) -> HashRef<'_> {
    match hash {
        ReadHash::Packed(packed) => HashRef::Packed(hash::run_of(packed)),
        ReadHash::Large(hash) => HashRef::Large(hash),
    }
}

fn fields(hash: &ReadHash) -> Fields {
    let mut fields = Fields::new();
    view(hash).for_each(0, |field| {
        fields.insert(field.name.to_vec(), (field.value.to_vec(), None));
    });
    if let ReadHash::Large(hash) = hash {
        for record in hash.iter(0) {
            fields.insert(record.key.to_vec(), (record.value.to_vec(), record.expire_at_ms));
        }
    }
    fields
}

fn encoding(hash: &ReadHash) -> &'static str {
    match hash {
        ReadHash::Packed(packed) => PackedKind::of(packed).encoding_name(),
        ReadHash::Large(hash) => hash.encoding_name(),
    }
}

fn read_whole(bytes: &[u8], limits: HashLimits) -> Option<ReadHash> {
    let mut reader = RdbReader::new(bytes);
    let kind = reader.byte()?;
    read(kind, &mut reader, limits)
}

fn written(hash: HashRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, hash, true);
    out
}

fn table(of: &[(&str, &str, FieldExpiry)]) -> Hash {
    let mut hash = Hash::new(HashEncoding::Hashtable);
    for (name, value, expiry) in of {
        hash.set(name.as_bytes(), value.as_bytes(), *expiry, 0);
    }
    hash
}

#[test]
fn hashes_are_written_as_valkey_writes_them_and_read_back() {
    let mut packing = hash::PackedHashBuilder::of(None, 0);
    for (name, value) in [("a", "1"), ("b", "-5000"), ("c", "x")] {
        packing.set(name.as_bytes(), value.as_bytes());
    }
    let long = "x".repeat(70);
    let cases = [
        (
            ReadHash::Packed(packing.bytes().to_vec()),
            &b"\x10\x19\x19\x00\x00\x00\x06\x00\x81a\x02\x01\x01\x81b\x02\xf1x\xec\x03\x81c\x02\x81x\x02\xff"[..],
        ),
        (
            ReadHash::Large(table(&[("a", &long, FieldExpiry::Never)])),
            b"\x04\x01\x01a\xc3\t@F\x01xx\xe09\x00\x01xx",
        ),
        (
            ReadHash::Large(table(&[("a", "70000", FieldExpiry::At(99_999_999_999_999))])),
            b"\x16\x01\x01a\xc2p\x11\x01\x00\xff?z\x10\xf3Z\x00\x00",
        ),
    ];
    for (hash, expected) in cases {
        assert_eq!(written(view(&hash)), expected);
        let read = read_whole(expected, ROOMY).expect("it is one");
        assert_eq!((fields(&read), encoding(&read)), (fields(&hash), encoding(&hash)));
    }
}

#[test]
fn a_large_hash_that_reports_a_listpack_is_written_as_one() {
    let mut hash = Hash::new(HashEncoding::Listpack);
    for number in 0..300 {
        hash.set(format!("field {number}").as_bytes(), b"12", FieldExpiry::Never, 0);
    }
    let bytes = written(HashRef::Large(&hash));
    assert_eq!(bytes[0], TYPE_LISTPACK);
    let read = read_whole(&bytes, ROOMY).expect("it is one");
    assert!(matches!(read, ReadHash::Large(_)), "it is too large to be packed");
    assert_eq!(encoding(&read), "listpack");
    assert_eq!(fields(&read), fields(&ReadHash::Large(hash)));
}

#[test]
fn limits_decide_the_encoding_as_in_valkey() {
    let listpack = b"\x10\x11\x11\x00\x00\x00\x04\x00\x84long\x05\x01\x01\x81b\x02\xff";
    let one = b"\x10\x12\x12\x00\x00\x00\x02\x00\x81a\x02\x86longer\x07\xff";
    let short = b"\x04\x01\x01a\xc0\x01";
    let long = b"\x04\x01\x01a\x04long";
    let two = b"\x04\x02\x01a\xc0\x01\x01b\xc0\x02";
    let zipmap = b"\x09\x0a\x01\x01a\x04\x00long\xff";
    let persistent = b"\x16\x01\x01a\xc0\x01\xff\xff\xff\xff\xff\xff\xff\xff";
    assert!(
        read_whole(listpack, ROOMY).is_none(),
        "three elements do not form pairs"
    );
    let cases: &[(&[u8], &str, &str)] = &[
        // For a listpack only the number of fields counts. For a table with expiries no limit counts.
        (one, "listpack", "listpack"),
        (short, "listpack", "listpack"),
        (long, "listpack", "hashtable"),
        (two, "listpack", "hashtable"),
        (zipmap, "listpack", "hashtable"),
        (persistent, "hashtable", "hashtable"),
    ];
    for (bytes, roomy, narrow) in cases {
        let read = |limits| read_whole(bytes, limits).as_ref().map(encoding);
        assert_eq!((read(ROOMY), read(NARROW)), (Some(*roomy), Some(*narrow)), "{bytes:?}");
    }
}

#[test]
fn invalid_hashes_are_refused() {
    let cases: &[&[u8]] = &[
        b"\x04\x00",
        b"\x04\x02\x01a\xc0\x01\x01a\xc0\x02",
        b"\x04\x02\x01a\xc0\x01",
        b"\x04\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a\xc0\x01",
        b"\x16\x00",
        b"\x16\x01\x01a\xc0\x01\xfe\xff\xff\xff\xff\xff\xff\xff",
        b"\x16\x01\x01a\xc0\x01\xff\xff\xff\xff\xff\xff\xff",
        b"\x10\x07\x07\x00\x00\x00\x00\x00\xff",
        b"\x10\x13\x13\x00\x00\x00\x04\x00\x81a\x02\x01\x01\x81a\x02\x02\x01\xff",
        b"\x0d\x01\xff",
        b"\x09\x01\xff",
        b"\x10\xc0\x01",
        b"\x05\x01\x01a\xc0\x01",
    ];
    for bytes in cases {
        assert!(read_whole(bytes, ROOMY).is_none(), "{bytes:?}");
    }
}

#[test]
fn damaged_payloads_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let expiring = table(&[("a", "1", FieldExpiry::At(7)), ("b", "long value", FieldExpiry::Never)]);
    let mut compact = Hash::new(HashEncoding::Listpack);
    for number in 0..20 {
        compact.set(number.to_string().as_bytes(), b"value", FieldExpiry::Never, 0);
    }
    for original in [written(HashRef::Large(&expiring)), written(HashRef::Large(&compact))] {
        for _ in 0..20_000 {
            let mut bytes = original.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(1..=bytes.len()));
            if let Some(read) = read_whole(&bytes, ROOMY) {
                let again = read_whole(&written(view(&read)), ROOMY).expect("a written hash can be read");
                assert_eq!(fields(&again), fields(&read));
            }
        }
    }
}
