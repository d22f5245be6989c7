//! Tests of the index against a map from hashes to leaves.

use super::*;

use std::collections::BTreeMap;

#[test]
fn entries_stay_in_the_order_of_their_hashes_through_growth_and_shrinking() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut index = Index::with_capacity(0);
    let mut model: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for step in 0..60_000u32 {
        // Some hashes are drawn from few values, so that some are equal.
        let hash = if random.u8(..) < 4 {
            random.u32(..64) << 26
        } else {
            random.u32(..)
        };
        index.insert(hash, step % 1000);
        model.entry(hash).or_default().push(step % 1000);
    }
    check(&index, &model);
    let mut all: Vec<(u32, u32)> = model
        .iter()
        .flat_map(|(hash, leaves)| leaves.iter().map(|leaf| (*hash, *leaf)))
        .collect();
    random.shuffle(&mut all);
    for (hash, leaf) in all.split_off(2000) {
        if random.bool() {
            index.relocate(hash, leaf, 5000);
            index.remove(hash, 5000);
        } else {
            index.remove(hash, leaf);
        }
        let leaves = model.get_mut(&hash).expect("it was inserted");
        let at = leaves.iter().position(|other| *other == leaf).expect("it was inserted");
        leaves.swap_remove(at);
    }
    model.retain(|_, leaves| !leaves.is_empty());
    check(&index, &model);
    for (step, (hash, leaf)) in all.iter().enumerate() {
        // Those that were relocated are among those that were removed.
        index.remove(*hash, *leaf);
        let leaves = model.get_mut(hash).expect("it was inserted");
        let at = leaves.iter().position(|other| other == leaf).expect("it was inserted");
        leaves.swap_remove(at);
        if step % 100 == 0 {
            model.retain(|_, leaves| !leaves.is_empty());
            check(&index, &model);
        }
    }
    assert_eq!(index.segments.len(), 1);
    assert!(index.allocated_bytes() < 2000, "{} bytes", index.allocated_bytes());
    index.insert(7, 1);
    check(&index, &BTreeMap::from([(7, vec![1])]));
}

fn check(index: &Index, model: &BTreeMap<u32, Vec<u32>>) {
    let sorted = |mut leaves: Vec<u32>| {
        leaves.sort_unstable();
        leaves
    };
    for (hash, leaves) in model {
        assert_eq!(sorted(index.leaves(*hash).collect()), sorted(leaves.clone()));
    }
    let hashes: Vec<u32> = index.entries_from(0).map(|(hash, _)| hash).collect();
    assert!(hashes.is_sorted());
    let expected: usize = model.values().map(Vec::len).sum();
    assert_eq!(hashes.len(), expected);
    let middle = 1 << 31;
    let behind: usize = model.range(middle..).map(|(_, leaves)| leaves.len()).sum();
    assert_eq!(index.entries_from(middle).count(), behind);
    for (number, segment) in index.segments.iter().enumerate() {
        let run = index.run_of(segment);
        assert!(index.directory[run].iter().all(|other| *other as usize == number));
        let own_bits = |hash: u32| u64::from(hash) >> (32 - segment.depth);
        assert!(
            segment
                .entries()
                .all(|entry| own_bits(hash_of(entry)) == own_bits(segment.prefix))
        );
    }
    let at_full_depth = index.segments.iter().filter(|segment| segment.depth == index.depth);
    assert_eq!(at_full_depth.count(), index.segments_at_full_depth);
    assert_eq!(index.directory.len(), 1 << index.depth);
    let allocated: usize = index.segments.iter().map(Segment::allocated_bytes).sum();
    assert_eq!(index.allocated, allocated);
}
