//! Sums over stripes, resets, and additions from many threads.

use std::thread;

use super::{COUNTERS_PER_LINE, StripedCounters};

#[test]
fn counters_do_not_touch_each_other() {
    for counters in [1, COUNTERS_PER_LINE - 1, COUNTERS_PER_LINE, COUNTERS_PER_LINE + 1, 100] {
        let striped = StripedCounters::new(3, counters);
        assert_eq!(striped.stripes(), 3);
        for index in 0..counters {
            for stripe in 0..3 {
                striped.add(stripe, index, (index * 10 + stripe) as i64);
            }
        }
        for index in 0..counters {
            assert_eq!(striped.sum(index), (index * 30 + 3) as i64, "{index} of {counters}");
        }
    }
}

#[test]
#[should_panic(expected = "counter 3 of 3")]
fn a_counter_beyond_the_last_is_refused_even_if_its_line_has_room() {
    StripedCounters::new(2, 3).add(0, 3, 1);
}

#[test]
fn a_reset_starts_over_at_zero_and_leaves_the_others_alone() {
    let striped = StripedCounters::new(2, 2);
    striped.add(0, 0, 5);
    striped.add_as_only_writer(1, 0, -2);
    striped.add(1, 1, 9);
    assert_eq!((striped.sum(0), striped.sum(1)), (3, 9));
    striped.reset(0);
    assert_eq!((striped.sum(0), striped.sum(1)), (0, 9));
    striped.add_as_only_writer(0, 0, 4);
    assert_eq!(striped.sum(0), 4);
}

#[test]
fn the_sum_of_several_counters_equals_their_single_sums() {
    let striped = StripedCounters::new(3, 40);
    for index in 0..40 {
        striped.add(index % 3, index, 1 << index);
        if index % 5 == 0 {
            striped.reset(index);
        }
        striped.add((index + 1) % 3, index, 3);
    }
    let indexes = (0..40).step_by(4);
    let one_by_one: i64 = indexes.clone().map(|index| striped.sum(index)).sum();
    assert_eq!(striped.sum_of(indexes), one_by_one);
    assert_eq!(striped.sum_of(std::iter::empty()), 0);
}

#[test]
fn no_addition_is_lost_when_threads_share_a_stripe_or_have_their_own() {
    const THREADS: usize = 8;
    const ADDITIONS: i64 = 20_000;
    let striped = StripedCounters::new(THREADS, 2);
    thread::scope(|scope| {
        for stripe in 0..THREADS {
            let striped = &striped;
            scope.spawn(move || {
                for _ in 0..ADDITIONS {
                    striped.add(0, 0, 1);
                    striped.add_as_only_writer(stripe, 1, 2);
                }
            });
        }
    });
    assert_eq!(striped.sum(0), THREADS as i64 * ADDITIONS);
    assert_eq!(striped.sum(1), THREADS as i64 * ADDITIONS * 2);
}
