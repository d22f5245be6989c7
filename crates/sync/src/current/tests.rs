//! Tests of the current value.

use super::Current;

#[test]
fn the_value_is_the_one_that_was_set_last() {
    static PLACE: Current<u32> = Current::empty();
    assert_eq!(PLACE.get(), None);
    assert_eq!(PLACE.set_if_empty(&1), &1);
    assert_eq!(PLACE.set_if_empty(&2), &1, "there is a value already");
    PLACE.set(&3);
    assert_eq!(PLACE.get(), Some(&3));
}

#[test]
fn readers_see_complete_values_while_they_are_replaced() {
    static PLACE: Current<[u64; 8]> = Current::empty();
    PLACE.set(Box::leak(Box::new([0; 8])));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let value = PLACE.get().expect("there is a value");
                    assert!(value.iter().all(|word| *word == value[0]));
                }
            });
        }
        for number in 1..200 {
            PLACE.set(Box::leak(Box::new([number; 8])));
        }
    });
}
