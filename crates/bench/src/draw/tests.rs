//! Tests of the reproducible random choices.

use super::*;

#[test]
fn the_same_request_draws_the_same_numbers_again() {
    let order = KeyOrder::Uniform { keys: 1000 };
    let first: Vec<u64> = {
        let mut draw = RequestDraw::new(&order, 7, 42);
        (0..100).map(|_| draw.next_key()).collect()
    };
    let mut again = RequestDraw::new(&order, 7, 42);
    let mut other = RequestDraw::new(&order, 8, 42);
    assert!(first.iter().all(|key| *key == again.next_key()));
    assert!(first.iter().any(|key| *key != other.next_key()));
}

#[test]
fn uniform_keys_cover_the_key_space_evenly() {
    let order = KeyOrder::Uniform { keys: 100 };
    let mut counts = [0u32; 100];
    for index in 0..100_000 {
        counts[RequestDraw::new(&order, 3, index).next_key() as usize] += 1;
    }
    // The expected count is 1000 with a standard deviation of about 31.
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
}

#[test]
fn a_sequential_order_names_every_key_once() {
    let order = KeyOrder::Sequential;
    let keys: Vec<u64> = (0..5)
        .map(|index| RequestDraw::new(&order, 10, index).next_key())
        .collect();
    assert_eq!(keys, [10, 11, 12, 13, 14]);
}

#[test]
fn new_keys_follow_the_seed_whatever_else_is_drawn() {
    let order = KeyOrder::Uniform { keys: 3 };
    for index in 0..5 {
        let mut draw = RequestDraw::new(&order, 1_000_000, index);
        assert!(draw.next_key() < 3);
        assert_eq!(draw.new_key(), 1_000_000 + index);
    }
}

#[test]
fn zipf_ranks_have_the_weights_of_the_power_law() {
    for exponent in [0.5, 0.99, 1.0, 1.5] {
        let keys = 1000u64;
        let zipf = Zipf::new(keys, exponent);
        let mut counts = vec![0u64; keys as usize + 1];
        let mut draw = Draw::new(1, 0);
        let draws = 400_000u64;
        for _ in 0..draws {
            counts[zipf.rank(&mut draw) as usize] += 1;
        }
        let total: f64 = (1..=keys).map(|rank| (rank as f64).powf(-exponent)).sum();
        for rank in [1u64, 2, 3, 10, 50] {
            let expected = draws as f64 * (rank as f64).powf(-exponent) / total;
            let deviation = 6.0 * expected.sqrt();
            let count = counts[rank as usize] as f64;
            assert!(
                (count - expected).abs() < deviation,
                "exponent {exponent}, rank {rank}: {count} draws, expected {expected:.0}"
            );
        }
        let tail: u64 = counts[501..].iter().sum();
        let tail_weight: f64 = (501..=keys).map(|rank| (rank as f64).powf(-exponent)).sum();
        let expected_tail = draws as f64 * tail_weight / total;
        assert!((tail as f64 - expected_tail).abs() < 6.0 * expected_tail.sqrt());
    }
}

#[test]
fn zipf_spreads_ranks_over_distinct_keys() {
    for keys in [1u64, 2, 10, 97, 1000, 4096] {
        let zipf = Zipf::new(keys, 0.99);
        let mut seen: Vec<u64> = (0..keys).map(|rank| rank * zipf.stride % keys).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..keys), "{keys} keys are not permuted");
    }
}
