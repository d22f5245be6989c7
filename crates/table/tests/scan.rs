//! Guarantees of a scan while the table changes between its calls.

use std::collections::HashSet;

use weft_table::{NewValue, Table};

fn hash(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn insert(table: &mut Table<u8>, number: u64) {
    drop(table.insert(hash(number), &number.to_be_bytes(), NewValue::Int(0), None, 0));
}

fn remove(table: &mut Table<u8>, number: u64) {
    drop(table.remove(hash(number), &number.to_be_bytes()));
}

fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().unwrap())
}

/// Scans a table that contains the keys 0..`stay` all the time and up to `guests` other keys at times.
fn scan_while_changing(stay: u64, guests: u64, seed: u64) {
    println!("stay {stay}, guests {guests}, seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut table = Table::new();
    (0..stay).for_each(|number| insert(&mut table, number));
    let mut seen = HashSet::new();
    let mut cursor = 0;
    let mut growing = true;
    loop {
        let at_least = random.usize(1..20);
        let mut visited = 0;
        let next = table.scan(cursor, at_least, &mut |entry| {
            visited += 1;
            seen.insert(number_of(entry.key()));
        });
        let Some(next) = next else { break };
        assert!(next > cursor && visited >= at_least);
        cursor = next;
        for _ in 0..random.u64(0..=guests / 20) {
            let guest = stay + random.u64(0..guests);
            if growing {
                insert(&mut table, guest)
            } else {
                remove(&mut table, guest)
            }
        }
        growing ^= random.u32(0..20) == 0;
    }
    for number in 0..stay {
        assert!(seen.contains(&number), "{number} was missed");
    }
}

#[test]
fn a_scan_visits_every_key_that_stays() {
    let seed = fastrand::u64(..);
    for round in 0..6 {
        for (stay, guests) in [(1, 20), (5, 100), (100, 500), (300, 5_000), (2_000, 40_000)] {
            scan_while_changing(stay, guests, seed.wrapping_add(round));
        }
    }
}

#[test]
fn an_unchanged_table_is_visited_exactly_once() {
    for count in [0, 1, 7, 8, 183, 5_000, 40_000] {
        let mut table = Table::new();
        (0..count).for_each(|number| insert(&mut table, number));
        let (mut seen, mut cursor) = (Vec::new(), Some(0));
        while let Some(from) = cursor {
            cursor = table.scan(from, 10, &mut |entry| seen.push(number_of(entry.key())));
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..count), "{count} keys");
    }
}

#[test]
fn random_keys_are_nearly_uniform() {
    for count in [1_u64, 5, 100, 3_000] {
        let mut table = Table::new();
        (0..count).for_each(|number| insert(&mut table, number));
        let mut hits = vec![0_u32; count as usize];
        for draw in 0..count * 1_000 {
            let entry = table.random(draw).expect("is not empty");
            hits[number_of(entry.key()) as usize] += 1;
        }
        let (least, most) = (hits.iter().min().unwrap(), hits.iter().max().unwrap());
        assert!(
            *least > 400 && *most < 2_000,
            "{count} keys: {least}..{most} hits, 1000 expected"
        );
    }
}

#[test]
fn the_load_stays_above_four_fifths() {
    let mut random = fastrand::Rng::with_seed(3);
    for mean in [100_usize, 183, 5_000] {
        let mut load = 0.0;
        for _ in 0..200 {
            // Slots do not get equally many keys: their numbers follow a Poisson distribution.
            let spread = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let count = mean as f64 + spread * (mean as f64).sqrt();
            let mut table = Table::new();
            (0..count as u64).for_each(|_| insert(&mut table, random.u64(..)));
            load += table.load() / 200.0;
        }
        println!("{mean} keys on average: load {load:.3}");
        assert!(load >= 0.8, "{mean} keys: load {load}");
    }
}

#[test]
fn keys_of_common_sizes_take_the_expected_bytes() {
    let key = b"0123456789abcdef";
    for (len, expire_at_ms, bytes) in [
        (8, None, 32),
        (8, Some(1_800_000_000_000), 40),
        (64, None, 88),
        (64, Some(1_800_000_000_000), 96),
        (512, None, 32 + 512),
        (4096, None, 32 + 4096),
    ] {
        let mut table = Table::<u8>::new();
        drop(table.insert(1, key, NewValue::Bytes(&vec![b'x'; len]), expire_at_ms, 0));
        assert_eq!(table.find(1, key).unwrap().allocated_bytes(), bytes, "{len} bytes");
    }
    let mut table = Table::<u8>::new();
    for (number, expire_at_ms, bytes) in [
        (i64::MIN, None, 32),
        (7, None, 24),
        (30_000, Some(1_800_000_000_000), 32),
        (i64::MAX, Some(1_800_000_000_000), 40),
    ] {
        drop(table.insert(1, key, NewValue::Int(number), expire_at_ms, 0));
        assert_eq!(table.find(1, key).unwrap().allocated_bytes(), bytes, "{number}");
    }
}

#[test]
fn a_sample_has_the_requested_number_of_distinct_keys() {
    let mut table = Table::new();
    for (keys, wanted) in [(0, 5), (1, 5), (3, 5), (30, 5), (30, 100), (3000, 64), (3000, 5000)] {
        (table.len() as u64..keys).for_each(|number| insert(&mut table, number));
        for random in 0..200 {
            let mut seen = HashSet::new();
            let visited = table.sample(random, wanted, false, &mut |entry| {
                assert!(seen.insert(number_of(entry.key())), "visited twice");
            });
            assert_eq!((visited, seen.len()), (visited, wanted.min(keys as usize)));
        }
    }
}

#[test]
fn a_sample_finds_the_few_keys_with_an_expiry() {
    let mut table = Table::new();
    (0..5000).for_each(|number| insert(&mut table, number));
    let due = [17u64, 1234, 4999];
    for number in due {
        let at_ms = Some(1_900_000_000_000 + number);
        drop(table.insert(hash(number), &number.to_be_bytes(), NewValue::<u8>::Int(0), at_ms, 0));
    }
    let mut found = HashSet::new();
    for random in 0..50 {
        let visited = table.sample(random, 5, true, &mut |entry| {
            found.insert(number_of(entry.key()));
        });
        assert_eq!(visited, due.len());
    }
    assert_eq!(found, HashSet::from(due));
}

#[test]
fn samples_reach_every_key() {
    let mut table = Table::new();
    (0..2000).for_each(|number| insert(&mut table, number));
    let mut seen = HashSet::new();
    for random in 0..20_000 {
        table.sample(random, 5, false, &mut |entry| {
            seen.insert(number_of(entry.key()));
        });
    }
    assert!(seen.len() > 1990, "{}", seen.len());
}
