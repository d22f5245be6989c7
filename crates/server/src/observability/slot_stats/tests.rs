//! Tests the figures of slots: rows, resets and fractions of microseconds.

use weft_base::{SlotIndex, ThreadIndex};

use super::{SlotFigure, SlotStats};

#[test]
fn rows_of_threads_add_up_and_slots_stay_apart() {
    let stats = SlotStats::new(3, 16);
    stats.add(ThreadIndex::new(0), SlotIndex::from_index(5), SlotFigure::BytesIn, 10);
    stats.add(ThreadIndex::new(2), SlotIndex::from_index(5), SlotFigure::BytesIn, 7);
    stats.add(ThreadIndex::new(1), SlotIndex::from_index(6), SlotFigure::BytesOut, 1);
    assert_eq!(stats.sum(SlotIndex::from_index(5), SlotFigure::BytesIn), 17);
    assert_eq!(stats.sum(SlotIndex::from_index(5), SlotFigure::BytesOut), 0);
    assert_eq!(stats.sum(SlotIndex::from_index(6), SlotFigure::BytesOut), 1);
    stats.add(ThreadIndex::new(3), SlotIndex::from_index(5), SlotFigure::BytesIn, 1);
    stats.add(ThreadIndex::new(0), SlotIndex::from_index(16), SlotFigure::BytesIn, 1);
    assert_eq!(
        stats.sum(SlotIndex::from_index(5), SlotFigure::BytesIn),
        17,
        "there is no fourth thread"
    );
    assert_eq!(
        stats.sum(SlotIndex::from_index(16), SlotFigure::BytesIn),
        0,
        "there is no such slot"
    );
}

#[test]
fn a_reset_affects_only_the_named_slots() {
    let stats = SlotStats::new(2, 16);
    stats.reset_all();
    for slot in 0..16 {
        stats.add(ThreadIndex::new(0), SlotIndex::from_index(slot), SlotFigure::CpuUs, 3);
        stats.add(ThreadIndex::new(1), SlotIndex::from_index(slot), SlotFigure::CpuUs, 4);
    }
    stats.reset([2, 15].map(SlotIndex::from_index).into_iter());
    stats.add(ThreadIndex::new(1), SlotIndex::from_index(2), SlotFigure::CpuUs, 1);
    let sums: Vec<u64> = [1, 2, 15]
        .map(|slot| stats.sum(SlotIndex::from_index(slot), SlotFigure::CpuUs))
        .to_vec();
    assert_eq!(sums, [7, 1, 0]);
    stats.reset_all();
    assert!((0..16).all(|slot| stats.sum(SlotIndex::from_index(slot), SlotFigure::CpuUs) == 0));
}

#[test]
fn times_of_short_commands_add_up() {
    let stats = SlotStats::new(1, 2);
    let counted: u64 = (0..1000)
        .map(|_| stats.add_time(ThreadIndex::new(0), SlotIndex::from_index(1), 250))
        .sum();
    assert_eq!(counted, 250_000, "what is told to be counted is what the slot has");
    assert_eq!(stats.sum(SlotIndex::from_index(1), SlotFigure::CpuUs), 250);
    assert_eq!(
        stats.add_time(ThreadIndex::new(0), SlotIndex::from_index(1), 1999),
        1000
    );
    assert_eq!(
        stats.add_time(ThreadIndex::new(0), SlotIndex::from_index(0), 1),
        1000,
        "the rest goes to the thread's next command"
    );
}
