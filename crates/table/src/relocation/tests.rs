//! Tests that what is moved keeps its contents and its capacity, and that shared values stay.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::value::Blob;

/// Returns a mover of everything at the begin of a long step.
fn mover() -> Mover {
    let mut mover = Mover::of_everything();
    mover.begin_step(u32::MAX);
    mover
}

#[test]
fn moved_parts_keep_contents_and_capacity() {
    let mut mover = mover();
    let mut vec = Vec::with_capacity(100);
    vec.extend(0..70_u32);
    let before = vec.as_ptr();
    mover.vec(&mut vec);
    assert!(vec.as_ptr() != before && vec.capacity() == 100 && vec.iter().copied().eq(0..70));

    let mut deque: VecDeque<String> = VecDeque::with_capacity(8);
    (0..8).for_each(|number| deque.push_back(number.to_string()));
    for number in 8..11 {
        deque.pop_front();
        deque.push_back(number.to_string());
    }
    mover.deque(&mut deque);
    assert!(
        deque.capacity() == 8
            && deque
                .iter()
                .map(String::as_str)
                .eq(["3", "4", "5", "6", "7", "8", "9", "10"])
    );

    let mut slice: Box<[u16]> = (0..500).collect();
    mover.boxed_slice(&mut slice);
    assert!(slice.iter().copied().eq(0..500));

    let mut boxed = Box::new((vec![1_u8; 20], 7_u64));
    let before: *const _ = &*boxed;
    mover.boxed(&mut boxed);
    assert!(!ptr::eq(before, &*boxed) && *boxed == (vec![1; 20], 7));
    assert_eq!(mover.take_counts().moved, 4);
}

#[test]
fn nothing_that_has_no_memory_is_moved() {
    let mut mover = mover();
    mover.vec(&mut Vec::<u64>::new());
    mover.vec(&mut vec![(); 5]);
    mover.deque(&mut VecDeque::<u64>::new());
    mover.boxed_slice(&mut Box::<[u8]>::default());
    mover.boxed(&mut Box::new(()));
    assert_eq!(mover.take_counts(), MoveCounts::default());
}

#[test]
fn only_values_without_other_handles_are_moved() {
    let mut mover = mover();
    let alone = Arc::new([1_u8; 50]);
    let alone = mover.shared(alone);
    assert_eq!((mover.take_counts().moved, *alone), (1, [1; 50]));
    let other = Arc::clone(&alone);
    let shared = mover.shared(alone);
    assert!(Arc::ptr_eq(&shared, &other));

    let blob = Blob::from_slice(&[7; 20_000]);
    let before = blob.as_ptr();
    let blob = blob.relocated(&mut mover);
    assert!(blob.as_ptr() != before && blob[..] == [7; 20_000]);
    let handle = blob.clone();
    let blob = blob.relocated(&mut mover);
    assert!(blob.is_same(&handle));
}

#[test]
fn a_step_ends_after_its_work() {
    let mut mover = Mover::of_everything();
    assert!(mover.is_exhausted());
    mover.begin_step(5);
    mover.vec(&mut vec![0_u8; 100]);
    assert!(!mover.is_exhausted());
    mover.vec(&mut vec![0_u8; 100_000]);
    assert!(mover.is_exhausted());
    let counts = mover.take_counts();
    assert_eq!((counts.moved, counts.kept, counts.moved_bytes), (2, 0, 100_100));
    assert_eq!(mover.take_counts(), MoveCounts::default());
}
