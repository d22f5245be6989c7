//! Tests of the index: its size and its random selection after it has shrunk.

use std::collections::HashMap;

use super::*;

/// The number of entries of an index of several regions.
const MANY: u64 = 400_000;

/// Returns the hash of an id. It is a bijection whose results look random (splitmix64's finaliser).
fn hash_of(number: u64) -> u64 {
    let mut hash = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

fn index_of(numbers: impl Iterator<Item = u64>) -> Index {
    let mut index = Index::with_capacity(0);
    for number in numbers {
        index.insert(hash_of(number), RecordId::from_number(number), hash_of);
    }
    index
}

fn remove(index: &mut Index, number: u64) {
    index.remove(hash_of(number), RecordId::from_number(number));
}

/// Asserts that the sums are exact and that the index contains exactly these ids.
fn check(index: &mut Index, numbers: &[u64]) {
    for region in &index.root.items {
        assert_eq!(region.entries, region.items.iter().map(Leaf::len).sum::<usize>());
    }
    assert_eq!(index.root.entries, numbers.len());
    let entries: usize = index.root.items.iter().map(|region| region.entries).sum();
    assert_eq!(index.root.entries, entries);
    for &number in numbers {
        let id = RecordId::from_number(number);
        assert_eq!(index.find(hash_of(number), |found| found == id), Some(id));
    }
    let counted = index.allocated_bytes();
    index.count_allocated();
    assert_eq!(index.allocated_bytes(), counted);
}

/// Asserts that each of the ids is selected equally often, and that each selection takes few random numbers.
fn check_selection(index: &Index, numbers: &[u64]) {
    let mut random = fastrand::Rng::with_seed(numbers.len() as u64);
    let expected: usize = 100;
    let mut chosen: HashMap<u64, usize> = HashMap::new();
    let (mut calls, mut most_calls) = (0_usize, 0);
    for _ in 0..numbers.len() * expected {
        let before = calls;
        let id = index.random(&mut |end| {
            calls += 1;
            random.usize(..end)
        });
        most_calls = most_calls.max(calls - before);
        *chosen.entry(id.expect("there are entries").number()).or_insert(0) += 1;
    }
    assert!(most_calls <= 2 * (2 * RANDOM_TRIES + 1), "{most_calls} random numbers");
    let deviation: f64 = numbers
        .iter()
        .map(|number| chosen.get(number).copied().unwrap_or(0) as f64 - expected as f64)
        .map(|difference| difference * difference / expected as f64)
        .sum();
    // The sum has a chi-squared distribution: five standard deviations above the mean.
    let freedom = numbers.len() as f64 - 1.0;
    assert!(deviation < freedom + 5.0 * (2.0 * freedom).sqrt(), "{deviation}");
}

#[test]
fn few_entries_that_remain_of_many_are_selected_equally_often() {
    let mut index = index_of(0..MANY);
    assert!(index.root.items.len() > 1, "there are several regions");
    let kept: Vec<u64> = (0..MANY).step_by(1000).collect();
    (0..MANY)
        .filter(|number| number % 1000 != 0)
        .for_each(|number| remove(&mut index, number));
    assert_eq!(index.root.items.len(), 1);
    assert!(index.root.items[0].items.len() < kept.len() / 8);
    check(&mut index, &kept);
    check_selection(&index, &kept);
}

/// A client that deletes in the order of a scan leaves entries in a small part of all hashes.
#[test]
fn entries_with_adjacent_hashes_that_remain_are_selected_equally_often() {
    let mut index = index_of(0..MANY);
    let mut numbers: Vec<u64> = (0..MANY).collect();
    numbers.sort_unstable_by_key(|number| hash_of(*number));
    let kept = &numbers[..400];
    numbers[400..].iter().for_each(|number| remove(&mut index, *number));
    let leaves: usize = index.root.items.iter().map(|region| region.items.len()).sum();
    assert!(leaves < 32, "{leaves} leaves");
    assert!(index.root.items.len() < 16, "{} regions", index.root.items.len());
    check(&mut index, kept);
    check_selection(&index, kept);
}

#[test]
fn an_index_that_is_prepared_for_many_entries_selects_among_few() {
    let mut index = Index::with_capacity(MANY as usize);
    let kept: Vec<u64> = (0..400).collect();
    for number in &kept {
        index.insert(hash_of(*number), RecordId::from_number(*number), hash_of);
    }
    check(&mut index, &kept);
    check_selection(&index, &kept);
}

#[test]
fn random_entries_are_removed_until_none_is_left() {
    let mut index = index_of(0..MANY / 4);
    let mut random = fastrand::Rng::with_seed(1);
    for left in (0..MANY / 4).rev() {
        let id = index.random(&mut |end| random.usize(..end)).expect("there are entries");
        index.remove(hash_of(id.number()), id);
        assert_eq!(index.root.entries as u64, left);
    }
    assert_eq!(index.random(&mut |_| 0), None);
    assert_eq!((index.root.items.len(), index.root.items[0].items.len()), (1, 1));
    check(&mut index, &[]);
}
