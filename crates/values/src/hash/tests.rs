//! Tests of hashes against a naive model.

use std::collections::HashMap;

use super::*;

type Expected = HashMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

fn check(hash: &Hash, expected: &Expected, now_ms: u64) {
    assert_eq!(hash.len(), expected.len());
    let due = expected.values().filter_map(|(_, expiry)| *expiry).min();
    assert_eq!(hash.next_expiry_ms(), due);
    assert_eq!(hash.has_expiring_fields(), due.is_some());
    let alive = expected
        .iter()
        .filter(|(_, (_, expiry))| expiry.is_none_or(|at| now_ms <= at));
    let mut count = 0;
    for (name, (value, expire_at_ms)) in alive {
        let record = hash.find(name, now_ms).expect("it is alive");
        assert_eq!((record.value, record.expire_at_ms), (&value[..], *expire_at_ms));
        count += 1;
    }
    assert_eq!(hash.iter(now_ms).count(), count);
}

#[test]
fn random_operations_agree_with_a_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    // The short histories are for what happens only once in a hash, such as its first expiry.
    let short = std::iter::repeat_n((5, 40), 200);
    for (names, steps) in short.chain([(10, 20_000), (500, 20_000)]) {
        let mut hash = Hash::new(HashEncoding::Listpack);
        let mut expected = Expected::new();
        let mut now_ms = 1000;
        for step in 0..steps {
            let name = random.u32(..names).to_string().into_bytes();
            let before = match expected.get(&name) {
                None => PreviousField::Absent,
                Some((_, Some(at))) if *at < now_ms => PreviousField::Expired,
                Some(_) => PreviousField::Present,
            };
            match random.u32(..8) {
                0..=2 => {
                    let value = vec![b'v'; random.usize(..50)];
                    let at_ms = now_ms + random.u64(..300);
                    let kept = expected.get(&name).and_then(|entry| entry.1);
                    let (expiry, new) = match random.u32(..3) {
                        0 => (FieldExpiry::Never, None),
                        1 => (FieldExpiry::At(at_ms), Some(at_ms)),
                        _ => (FieldExpiry::Keep, kept.filter(|at| now_ms <= *at)),
                    };
                    assert_eq!(hash.set(&name, &value, expiry, now_ms), before);
                    expected.insert(name, (value, new));
                }
                3 if before == PreviousField::Present => {
                    let new = random.bool().then(|| now_ms + random.u64(..300));
                    hash.set_expiry(&name, new);
                    expected.get_mut(&name).expect("it is present").1 = new;
                }
                4..=5 => {
                    assert_eq!(hash.remove(&name, now_ms), before);
                    if before == PreviousField::Present {
                        expected.remove(&name);
                    }
                }
                6 => now_ms += random.u64(..20),
                _ => {
                    let at_most = random.usize(1..5);
                    let mut seen = Vec::new();
                    let removed = hash.remove_expired(now_ms, at_most, |name| seen.push(name.to_vec()));
                    assert_eq!(removed, seen.len());
                    for name in seen {
                        let (_, expiry) = expected.remove(&name).expect("it was there");
                        assert!(expiry.is_some_and(|at| at < now_ms));
                    }
                    assert!(removed == at_most || !hash.has_expired_fields(now_ms));
                }
            }
            if step % (steps / 40) == 0 {
                check(&hash, &expected, now_ms);
            }
        }
        check(&hash, &expected, now_ms);
    }
}

#[test]
fn packed_and_converted_hashes_agree_with_a_model() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut packing = PackedHashBuilder::of(None, 0);
    let mut expected: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    for _ in 0..3000 {
        let name = format!("{}", random.i32(-20..20)).into_bytes();
        let value = match random.bool() {
            true => random.i64(..).to_string().into_bytes(),
            false => vec![b'x'; random.usize(..200)],
        };
        if random.u32(..3) == 0 {
            assert_eq!(packing.remove(&name), expected.remove(&name).is_some());
        } else if random.bool() {
            let mut copy = packing.bytes().to_vec();
            if overwrite(&mut copy, &name, &value).is_some() {
                packing = PackedHashBuilder::of(Some(&copy), 0);
                expected.insert(name, value);
            }
        } else {
            assert_eq!(packing.set(&name, &value), expected.insert(name, value).is_none());
        }
        assert_eq!(packing.len(), expected.len());
        assert_eq!(packing.is_empty(), expected.is_empty());
    }
    let run = run_of(packing.bytes());
    for field in fields_of(run) {
        assert_eq!(expected[&field.name.to_vec()], field.value.to_vec());
    }
    let hash = Hash::from_run(run, HashEncoding::Hashtable);
    assert_eq!(hash.len(), expected.len());
    for (name, value) in &expected {
        assert_eq!(hash.find(name, 0).map(|record| record.value), Some(&value[..]));
    }
}

#[test]
fn an_expiring_field_changes_the_encoding_to_hashtable() {
    let mut hash = Hash::new(HashEncoding::Listpack);
    hash.set(b"a", b"1", FieldExpiry::Never, 0);
    assert_eq!(hash.encoding_name(), "listpack");
    assert_eq!(hash.set(b"a", b"1", FieldExpiry::At(5), 0), PreviousField::Present);
    assert_eq!(hash.encoding_name(), "hashtable");
    hash.set_expiry(b"a", None);
    assert_eq!((hash.has_expiring_fields(), hash.encoding_name()), (false, "hashtable"));
}

#[test]
fn the_first_expiry_may_come_with_a_value_of_another_length() {
    for value in [&b"v"[..], b"", b"longer"] {
        let mut hash = Hash::new(HashEncoding::Listpack);
        hash.set(b"a", b"1", FieldExpiry::Never, 0);
        hash.set(b"b", b"2", FieldExpiry::Never, 0);
        assert_eq!(hash.set(b"a", value, FieldExpiry::At(5), 0), PreviousField::Present);
        assert_eq!(hash.find(b"a", 5).map(|record| record.value), Some(value));
        assert_eq!((hash.next_expiry_ms(), hash.encoding_name()), (Some(5), "hashtable"));
        assert_eq!(hash.set(b"a", b"again", FieldExpiry::Keep, 5), PreviousField::Present);
        assert!(hash.find(b"a", 6).is_none());
        assert_eq!((hash.remove_expired(6, 10, |_| ()), hash.len()), (1, 1));
    }
}

#[test]
fn fields_are_valid_in_the_millisecond_they_expire_in() {
    let mut hash = Hash::new(HashEncoding::Listpack);
    hash.set(b"a", b"1", FieldExpiry::At(5), 0);
    assert!(hash.find(b"a", 5).is_some() && !hash.has_expired_fields(5));
    assert!(hash.find(b"a", 6).is_none() && hash.has_expired_fields(6));
    assert_eq!(hash.remove_expired(5, 10, |_| ()), 0);
    assert_eq!(hash.remove_expired(6, 10, |_| ()), 1);
}

#[test]
fn fields_keep_their_order_while_a_listpack_is_reported() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hash = Hash::new(HashEncoding::Listpack);
    let mut expected: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for _ in 0..3000 {
        let name = format!("field {}", random.u32(..300)).into_bytes();
        let place = expected.iter().position(|(other, _)| *other == name);
        if random.u32(..4) == 0 {
            let before = hash.remove(&name, 0);
            assert_eq!(before == PreviousField::Present, place.is_some());
            place.map(|place| expected.remove(place));
            continue;
        }
        let value = vec![b'v'; random.usize(..60)];
        hash.set(&name, &value, FieldExpiry::Never, 0);
        match place {
            Some(place) => expected[place].1 = value,
            None => expected.push((name, value)),
        }
    }
    let fields = hash.iter(0).map(|record| (record.key.to_vec(), record.value.to_vec()));
    assert!(fields.eq(expected));
}

#[test]
fn provided_fields_are_noted_until_they_change() {
    let mut hash = Hash::new(HashEncoding::Listpack);
    hash.set(b"f", b"1", FieldExpiry::At(100), 0);
    hash.set(b"g", b"2", FieldExpiry::Never, 0);
    hash.note_provided(b"missing");
    hash.note_provided(b"f");
    hash.note_provided(b"g");
    let noted = |hash: &Hash, now_ms| [b"f", b"g", b"h"].map(|name| hash.is_provided(name, now_ms));
    assert_eq!(noted(&hash, 0), [true, true, false]);
    assert_eq!(noted(&hash, 101), [false, true, false], "it has expired");
    hash.set(b"g", b"3", FieldExpiry::Keep, 0);
    assert_eq!(noted(&hash, 0), [true, false, false]);
    hash.remove(b"f", 0);
    hash.set(b"f", b"4", FieldExpiry::Never, 0);
    assert_eq!(noted(&hash, 0), [false; 3]);
}
