//! Tests of packed integers.

use std::collections::BTreeSet;

use super::*;

fn packed_of(numbers: &[i64]) -> Vec<u8> {
    let mut packed = empty_in(Vec::new());
    for &number in numbers {
        insert(&mut packed, number);
    }
    packed
}

fn numbers_of(packed: &[u8]) -> Vec<i64> {
    PackedIntegers::of_packed(packed).iter().collect()
}

#[test]
fn the_width_is_that_of_the_widest_number_ever() {
    let cases: &[(&[i64], usize)] = &[
        (&[], 2),
        (&[0, 1, -1], 2),
        (&[i64::from(i16::MIN), i64::from(i16::MAX)], 2),
        (&[i64::from(i16::MAX) + 1], 4),
        (&[5, i64::from(i16::MIN) - 1], 4),
        (&[i64::from(i32::MIN), i64::from(i32::MAX)], 4),
        (&[1, i64::from(i32::MAX) + 1], 8),
        (&[1, i64::from(i32::MIN) - 1, i64::MIN, i64::MAX], 8),
    ];
    for (numbers, width) in cases {
        let mut packed = packed_of(numbers);
        assert_eq!(PackedIntegers::of_packed(&packed).width(), *width, "{numbers:?}");
        for number in *numbers {
            assert!(remove(&mut packed, *number));
        }
        assert_eq!(
            PackedIntegers::of_packed(&packed).width(),
            *width,
            "nothing narrows {numbers:?}"
        );
    }
}

#[test]
fn widening_puts_the_wide_number_at_the_right_end() {
    for (wide, expected) in [
        (70_000, vec![-3, 5, 9, 70_000]),
        (-70_000, vec![-70_000, -3, 5, 9]),
        (1 << 40, vec![-3, 5, 9, 1 << 40]),
        (-1 << 40, vec![-1 << 40, -3, 5, 9]),
    ] {
        let mut packed = packed_of(&[9, -3, 5]);
        assert!(insert(&mut packed, wide));
        assert_eq!(numbers_of(&packed), expected);
        assert!(!insert(&mut packed, wide));
    }
}

#[test]
fn only_ascending_distinct_numbers_are_valid() {
    let bytes = |numbers: &[i16]| {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    for (numbers, valid) in [
        (&[][..], true),
        (&[1], true),
        (&[-5, 1, 7], true),
        (&[1, 1], false),
        (&[2, 1], false),
        (&[1, -1], false),
    ] {
        assert_eq!(
            PackedIntegers::validate(2, &bytes(numbers)).is_some(),
            valid,
            "{numbers:?}"
        );
    }
    for (width, length) in [(0, 0), (1, 2), (3, 3), (16, 16), (2, 1), (4, 6), (8, 12)] {
        assert!(
            PackedIntegers::validate(width, &vec![0; length]).is_none(),
            "{width} {length}"
        );
    }
    let integers = PackedIntegers::validate(8, &[7, 0, 0, 0, 0, 0, 0, 0]).map(PackedIntegers::to_packed);
    assert_eq!(integers.map(|packed| numbers_of(&packed)), Some(vec![7]));
}

#[test]
fn random_changes_agree_with_an_ordered_set() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for range in [20, 1000, 100_000, 1 << 40] {
        let mut packed = empty_in(Vec::new());
        let mut model = BTreeSet::new();
        for _ in 0..500 {
            let number = random.i64(-range..range);
            if random.u8(..3) > 0 {
                assert_eq!(insert(&mut packed, number), model.insert(number));
            } else {
                assert_eq!(remove(&mut packed, number), model.remove(&number));
            }
            let probe = random.i64(-range..range);
            let integers = PackedIntegers::of_packed(&packed);
            assert_eq!(integers.contains(probe), model.contains(&probe));
            assert_eq!(integers.len(), model.len());
            assert_eq!(
                (integers.first(), integers.last()),
                (model.first().copied(), model.last().copied())
            );
        }
        assert!(numbers_of(&packed).iter().eq(model.iter()));
    }
}
