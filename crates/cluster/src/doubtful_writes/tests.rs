//! Tests the decisions about doubtful writes.

use super::WriteFate::{Doubtful, Kept, Lost};
use super::*;

/// Returns what is known about the writes 5 and 6.
fn fates(writes: &DoubtfulWrites) -> [WriteFate; 2] {
    [5, 6].map(|number| writes.fate_of(LogSequence::new(number)))
}

#[test]
fn doubtful_writes_are_kept_if_no_node_takes_over() {
    let writes = DoubtfulWrites::default();
    assert_eq!((fates(&writes), writes.has_any()), ([Kept, Kept], false));
    writes.begin();
    assert_eq!((fates(&writes), writes.has_any()), ([Doubtful, Doubtful], true));
    let last = LogSequence::new(5);
    assert!(writes.settle(last, false, false));
    assert_eq!(
        fates(&writes),
        [Doubtful, Kept],
        "the later one was admitted all the same"
    );
    assert!(!writes.settle(LogSequence::new(6), false, false));
    assert_eq!(fates(&writes), [Doubtful, Kept]);
    assert!(writes.settle(LogSequence::new(6), false, true));
    assert_eq!((fates(&writes), writes.has_any()), ([Kept, Kept], false));
}

#[test]
fn doubtful_writes_are_lost_if_a_node_takes_over() {
    let writes = DoubtfulWrites::default();
    writes.begin();
    assert!(writes.settle(LogSequence::new(5), true, false));
    assert_eq!((fates(&writes), writes.has_any()), ([Lost, Kept], false));
    // They stay lost when this node becomes a primary again.
    writes.begin();
    assert_eq!(fates(&writes), [Lost, Doubtful]);
    assert!(writes.settle(LogSequence::new(6), false, true));
    assert_eq!(fates(&writes), [Lost, Kept]);
}
