//! Tests of records: against a naive model, of their memory, of scans and of random selection.

use std::collections::HashMap;

use super::*;

fn no_moves(_: RecordId, _: RecordId, _: Record<'_>) {}

/// The value, expiry and id of each key.
type Expected = HashMap<Vec<u8>, (Vec<u8>, Option<u64>, RecordId)>;

/// A collection of records and a model of it, by key and with the id of each record.
struct Model {
    shape: RecordShape,
    records: Records,
    expected: Expected,
    random: fastrand::Rng,
}

impl Model {
    fn new(shape: RecordShape, seed: u64) -> Self {
        println!("{shape:?} seed {seed}");
        Model {
            shape,
            records: Records::new(shape),
            expected: HashMap::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn value(&mut self, longest: usize) -> Vec<u8> {
        let length = match self.shape {
            RecordShape::Members => 0,
            RecordShape::Scores => 8,
            RecordShape::Fields if self.random.u32(..2000) == 0 => 9000,
            RecordShape::Fields => self.random.usize(..longest),
        };
        (0..length).map(|_| self.random.u8(..)).collect()
    }

    fn expiry(&mut self) -> Option<u64> {
        (self.shape == RecordShape::Fields && self.random.u32(..4) == 0).then(|| self.random.u64(..1000))
    }

    fn set(&mut self, key: Vec<u8>, longest: usize) {
        let (value, expire_at_ms) = (self.value(longest), self.expiry());
        let record = Record {
            key: &key,
            value: &value,
            expire_at_ms,
        };
        let hash = hash_of(&key);
        let expected = &mut self.expected;
        let id = match self.records.find(hash, &key) {
            None => self.records.insert(hash, &record),
            Some(id) => {
                assert_eq!(expected[&key].2, id);
                self.records.replace(hash, id, &record, track_moves(expected))
            }
        };
        self.expected.insert(key, (value, expire_at_ms, id));
    }

    fn expire(&mut self, key: &[u8]) {
        let expire_at_ms = self.expiry();
        let hash = hash_of(key);
        if let Some(id) = self.records.find(hash, key) {
            let expected = &mut self.expected;
            let id = self.records.set_expiry(hash, id, expire_at_ms, track_moves(expected));
            let entry = expected.get_mut(key).expect("the model has it");
            (entry.1, entry.2) = (expire_at_ms, id);
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let hash = hash_of(key);
        let found = self.records.find(hash, key);
        assert_eq!(found, self.expected.remove(key).map(|(_, _, id)| id));
        if let Some(id) = found {
            self.records.remove(hash, id, track_moves(&mut self.expected));
        }
    }

    fn check(&self) {
        assert_eq!(self.records.len(), self.expected.len());
        let mut seen = 0;
        for (id, record) in self.records.iter() {
            let (value, expire_at_ms, expected_id) = &self.expected[record.key];
            assert_eq!((record.value, record.expire_at_ms), (&value[..], *expire_at_ms));
            assert_eq!(id, *expected_id);
            assert_eq!(self.records.find(hash_of(record.key), record.key), Some(id));
            assert_eq!(self.records.record(id), record);
            seen += 1;
        }
        assert_eq!(seen, self.expected.len());
    }
}

fn track_moves(expected: &mut Expected) -> impl FnMut(RecordId, RecordId, Record<'_>) {
    |from, to, record| {
        let entry = expected.get_mut(record.key).expect("only records move");
        assert_eq!(entry.2, from, "a record moves from where it was");
        entry.2 = to;
    }
}

#[test]
fn random_operations_agree_with_a_model() {
    for shape in [RecordShape::Members, RecordShape::Scores, RecordShape::Fields] {
        for (keys, longest, operations) in [(20, 10, 2_000), (150, 100, 8_000), (3_000, 300, 40_000)] {
            let mut model = Model::new(shape, fastrand::u64(..));
            for operation in 0..operations {
                // The collection grows, then shrinks to nothing, and does the same once more.
                let growing = operation % (operations / 2) < operations / 4;
                let key = format!("key:{}", model.random.u32(..keys)).into_bytes();
                match model.random.u32(..10) {
                    0 if shape == RecordShape::Fields => model.expire(&key),
                    1..=2 if growing => model.remove(&key),
                    1..=8 if !growing => model.remove(&key),
                    _ => model.set(key, longest),
                }
                if operation % (operations / 20) == 0 {
                    model.check();
                }
            }
            model.check();
            let keys: Vec<Vec<u8>> = model.expected.keys().cloned().collect();
            keys.iter().for_each(|key| model.remove(key));
            assert!(model.records.is_empty());
            assert!(
                model.records.allocated_bytes() < 5_000,
                "{}",
                model.records.allocated_bytes()
            );
        }
    }
}

fn members(count: usize, length: usize) -> Records {
    let mut records = Records::new(RecordShape::Members);
    for number in 0..count {
        let key = format!("{number:0length$}").into_bytes();
        records.insert(hash_of(&key), &Record::member(&key));
    }
    records
}

#[test]
fn few_records_take_little_more_than_their_bytes() {
    for length in [20, 37, 45, 70, 84, 100, 130, 200, 239] {
        let records = members(50, length);
        let own = 50 * (length + 1) + 50 * 3;
        let taken = records.allocated_bytes();
        // The tolerance covers the ends of chunks and the unused part of the tail's size class.
        assert!(
            taken < own + own / 20 + 600,
            "{taken} for {own} bytes, records of {length}"
        );
    }
    assert!(members(50, 70).allocated_bytes() < 50 * 71 + 50 * 3 + 64);
}

#[test]
fn many_records_take_seven_bytes_more_than_their_own() {
    for count in [100_000, 130_000, 190_000] {
        let each = members(count, 20).allocated_bytes() as f64 / count as f64;
        assert!((26.0..28.5).contains(&each), "{each} bytes for each of {count}");
    }
}

#[test]
fn allocated_bytes_stay_exact_through_growth_and_shrinking() {
    let mut records = members(20_000, 20);
    for number in 0..19_000 {
        let key = format!("{number:020}").into_bytes();
        let id = records.find(hash_of(&key), &key).expect("it is there");
        records.remove(hash_of(&key), id, no_moves);
    }
    let counted = records.allocated_bytes();
    assert!(counted < 50_000, "{counted} bytes for 1000 records");
    let exact = records.clone().allocated_bytes();
    assert!(
        exact <= counted && counted < exact * 3 / 2,
        "{counted} counted, {exact} used"
    );
}

#[test]
fn a_copy_of_few_records_counts_as_much_as_the_original() {
    for count in 1..=120 {
        let records = members(count, 40);
        assert_eq!(
            records.clone().allocated_bytes(),
            records.allocated_bytes(),
            "{count} records"
        );
    }
}

#[test]
fn reserved_capacity_is_used() {
    for count in [10, 100, 1_000, 300_000] {
        let mut records = Records::with_capacity(RecordShape::Members, count, count * 10);
        for number in 0..count {
            let key = format!("{number:010}").into_bytes();
            records.insert(hash_of(&key), &Record::member(&key));
        }
        assert_eq!(records.len(), count);
        assert_eq!(records.iter().count(), count);
        let each = records.allocated_bytes() / count;
        assert!(each < 21, "{each} bytes for each of {count}");
    }
}

#[test]
fn a_scan_returns_every_record_that_is_present_throughout() {
    for (before, after) in [
        (100, 100),
        (100, 90),
        (100, 128),
        (50, 5_000),
        (5_000, 60),
        (5_000, 300_000),
        (300_000, 1_000),
        (5_000, 10),
    ] {
        let mut records = members(before, 8);
        let mut seen = std::collections::HashSet::new();
        let mut cursor = 0;
        let mut calls = 0;
        loop {
            let mut visited = 0;
            cursor = records.scan(cursor, 10, &mut |_, record| {
                visited += 1;
                seen.insert(record.key.to_vec());
            });
            calls += 1;
            // Records with the same position are visited together, and positions in large leaves are short.
            assert!(visited <= 20, "{visited} at once");
            if cursor == 0 {
                break;
            }
            if calls == 3 {
                resize(&mut records, before, after);
            }
        }
        for number in 0..before.min(after) {
            assert!(
                seen.contains(format!("{number:08}").as_bytes()),
                "{before} {after} {number}"
            );
        }
    }
}

fn resize(records: &mut Records, before: usize, after: usize) {
    for number in before..after {
        let key = format!("{number:08}").into_bytes();
        records.insert(hash_of(&key), &Record::member(&key));
    }
    for number in after..before {
        let key = format!("{number:08}").into_bytes();
        let id = records.find(hash_of(&key), &key).expect("it is there");
        records.remove(hash_of(&key), id, no_moves);
    }
}

#[test]
fn a_cursor_beyond_all_hashes_ends_the_scan() {
    let records = members(1000, 8);
    assert_eq!(records.scan(u64::MAX, 10, &mut |_, _| panic!("nothing is there")), 0);
    assert_eq!(records.scan((1 << 48) - 1, 10, &mut |_, _| {}), 0);
}

#[test]
fn every_record_is_chosen_equally_often() {
    for count in [7, 100, 400, 1_000] {
        let records = members(count, 8);
        let mut random = fastrand::Rng::with_seed(count as u64);
        let mut chosen = HashMap::new();
        let rounds = 500;
        for _ in 0..count * rounds {
            let id = records
                .random_record(|end| random.usize(..end))
                .expect("there are records");
            *chosen.entry(id).or_insert(0) += 1;
        }
        assert_eq!(chosen.len(), count);
        let (least, most) = (chosen.values().min(), chosen.values().max());
        // Five standard deviations of a binomial distribution.
        assert!(
            least > Some(&(rounds - 112)) && most < Some(&(rounds + 112)),
            "{least:?} {most:?}"
        );
    }
}

#[test]
fn all_records_are_found_after_regions_split() {
    let count = 400_000;
    let records = members(count, 8);
    for number in (0..count).step_by(7) {
        let key = format!("{number:08}").into_bytes();
        assert!(records.find(hash_of(&key), &key).is_some());
    }
    let mut random = fastrand::Rng::with_seed(1);
    let mut halves = [0_i32; 2];
    for _ in 0..20_000 {
        let id = records
            .random_record(|end| random.usize(..end))
            .expect("there are records");
        halves[usize::from(records.record(id).key >= b"00200000".as_slice())] += 1;
    }
    assert!(halves[0].abs_diff(halves[1]) < 1000, "{halves:?}");
}

#[test]
fn prefetched_memory_is_what_a_search_reads() {
    for count in [0, 1, 50, 128, 5000, 40_000] {
        let mut records = Records::new(RecordShape::Members);
        let keys: Vec<Vec<u8>> = (0..count)
            .map(|number| format!("key of record {number}").into_bytes())
            .collect();
        for key in &keys {
            records.insert(hash_of(key), &Record::member(key));
        }
        let (mut in_index, mut in_records) = (0, 0);
        for key in &keys {
            let hash = hash_of(key);
            let place = records.index_memory(hash).expect("there is an index");
            in_index += usize::from(!place.is_empty());
            // The first record with this tag is almost always the right one.
            let place = records.record_memory(hash).expect("there is a record");
            in_records += usize::from(place[1..].starts_with(key));
        }
        assert_eq!(in_index, keys.len());
        assert!(
            in_records * 10 >= keys.len() * 6,
            "{in_records} of {count} records were found"
        );
        assert!(
            records
                .record_memory(hash_of(b"nowhere"))
                .is_none_or(|place| !place.is_empty())
        );
    }
}
