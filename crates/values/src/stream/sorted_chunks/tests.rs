//! A model test: random changes of a sequence and of a vector.

use super::*;

fn check(sorted: &SortedChunks<u32>, model: &[u32]) {
    assert_eq!(sorted.iter().len(), model.len());
    assert!(sorted.iter().eq(model));
    for chunk in &sorted.chunks {
        assert!((1..=CHUNK_ITEMS).contains(&chunk.len()), "no change moves many items");
    }
}

fn insert(sorted: &mut SortedChunks<u32>, model: &mut Vec<u32>, item: u32) {
    let found = sorted.find(|other| other.cmp(&item));
    match model.binary_search(&item) {
        Ok(_) => assert_eq!(found.ok().map(|at| *sorted.item(at)), Some(item)),
        Err(place) => {
            let at = sorted.insert(found.expect_err("the item is new"), item);
            assert_eq!(*sorted.item_mut(at), item);
            model.insert(place, item);
        }
    }
}

#[test]
fn a_sequence_equals_a_sorted_vector() {
    let (mut sorted, mut model) = (SortedChunks::default(), Vec::new());
    let mut random = 1u32;
    for step in 0..20_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let item = (random >> 8) % 500;
        // The sequence grows and shrinks by turns.
        if (random >> 20) % 8 < if step / 1000 % 2 == 0 { 6 } else { 2 } {
            insert(&mut sorted, &mut model, item);
        } else if let Ok(at) = sorted.find(|other| other.cmp(&item)) {
            assert_eq!(sorted.remove(at), item);
            model.retain(|other| *other != item);
        } else {
            assert!(!model.contains(&item));
        }
        check(&sorted, &model);
    }
    for item in model.clone() {
        let at = sorted.find(|other| other.cmp(&item)).expect("it is there");
        sorted.remove(at);
    }
    check(&sorted, &[]);
}

#[test]
fn positions_and_ranges_equal_those_of_a_sorted_vector() {
    for count in [0, 1, 7, 8, 9, 100] {
        let mut sorted = SortedChunks::default();
        let model: Vec<u32> = (0..count).map(|number| 2 * number).collect();
        model.iter().for_each(|item| sorted.push(*item));
        check(&sorted, &model);
        assert_eq!(sorted.last_mut().copied(), model.last().copied());
        for bound in 0..=2 * count {
            let after = sorted.first_after(|item| *item < bound);
            let before = sorted.last_before(|item| *item < bound);
            let at = model.partition_point(|item| *item < bound);
            assert_eq!(after.map(|at| sorted.item(at)), model.get(at));
            assert_eq!(before.map(|at| sorted.item(at)), model[..at].last());
            let Some(first) = after else { continue };
            for end in 0..=2 * count {
                let Some(last) = sorted.last_before(|item| *item < end) else {
                    continue;
                };
                let end_at = model.partition_point(|item| *item < end);
                let expected = model.get(at..end_at).unwrap_or_default();
                assert!(sorted.between(first, last).eq(expected));
                assert!(sorted.between(first, last).rev().eq(expected.iter().rev()));
            }
        }
    }
}

#[test]
fn items_that_are_added_in_order_fill_the_chunks() {
    let (mut sorted, mut model) = (SortedChunks::default(), Vec::new());
    for item in 0..1000 {
        insert(&mut sorted, &mut model, item);
    }
    check(&sorted, &model);
    assert_eq!(sorted.chunks.len(), 1000 / CHUNK_ITEMS);
    for item in (1000..2000).rev() {
        insert(&mut sorted, &mut model, item);
    }
    check(&sorted, &model);
    let most = 3 * 2000 / CHUNK_ITEMS;
    assert!(
        sorted.chunks.len() < most,
        "{} chunks are mostly empty",
        sorted.chunks.len()
    );
}
