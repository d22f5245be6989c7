//! Tests of merging the workers' answers, and of the pause.

use super::*;
use crate::state::{Pause, PauseReason};

#[test]
fn lines_of_all_workers_are_merged_by_id_without_duplicates() {
    let parts: Vec<WorkerAnswer> = vec![
        b"id=10 addr=c\nid=2 addr=a\n".to_vec(),
        Vec::new(),
        b"id=9 addr=b\nid=10 addr=c\nid=101 addr=d\n".to_vec(),
    ];
    let lines = merge_by_id(&parts);
    assert_eq!(
        String::from_utf8_lossy(&lines),
        "id=2 addr=a\nid=9 addr=b\nid=10 addr=c\nid=101 addr=d\n"
    );
}

#[test]
fn counts_of_all_workers_are_added() {
    let parts: Vec<WorkerAnswer> = [1u64, 0, 41].iter().map(|count| count.to_le_bytes().to_vec()).collect();
    assert_eq!(sum_counts(&parts), 42);
    assert_eq!(sum_counts(&[]), 0);
}

#[test]
fn the_end_of_a_pause_does_not_overflow() {
    type Case = (&'static [u8], Result<u64, &'static [u8]>);
    let cases: &[Case] = &[
        (b"0", Ok(1000)),
        (b"250", Ok(1250)),
        (b"-1", Err(b"ERR timeout is negative")),
        (b"1.5", Err(b"ERR timeout is not an integer or out of range")),
        (b"9223372036854775807", Err(b"ERR timeout is out of range")),
    ];
    for (timeout, expected) in cases {
        let end_ms = pause_end_ms(timeout, 1000).map_err(|error| error.0.into_owned());
        assert_eq!(end_ms, expected.map_err(<[u8]>::to_vec), "{timeout:?}");
    }
}

#[test]
fn a_second_pause_never_shortens_the_first() {
    let pause = Pause::default();
    assert!(!pause.is_paused(100, true));
    pause.begin(PauseReason::Client, 100, 500, true);
    pause.begin(PauseReason::Client, 100, 300, false);
    assert!(
        pause.is_paused(400, false),
        "the longer time and the stricter mode stay"
    );
    assert!(!pause.end_if_due(499));
    assert!(pause.end_if_due(500));
    assert!(!pause.is_paused(400, true));

    pause.begin(PauseReason::Client, 600, 700, false);
    assert!(
        pause.is_paused(650, true) && !pause.is_paused(650, false),
        "the first pause is forgotten"
    );
    pause.begin(PauseReason::Client, 650, 660, true);
    assert!(
        pause.is_paused(690, false),
        "a stricter mode holds to the end of the longer pause"
    );
    assert!(pause.end(PauseReason::Client));
    assert!(!pause.end(PauseReason::Client));
}

#[test]
fn the_pause_that_lasts_longest_is_reported() {
    let pause = Pause::default();
    assert_eq!(pause.longest(100, false), None);
    pause.begin(PauseReason::Client, 100, 500, true);
    pause.begin(PauseReason::Failover, 100, 900, false);
    assert_eq!(pause.longest(200, true), Some((PauseReason::Client, 500)));
    assert_eq!(pause.longest(200, false), Some((PauseReason::Failover, 900)));
    assert_eq!(pause.longest(500, true), None, "the pause of reads has ended");
    pause.end(PauseReason::Failover);
    assert_eq!(pause.longest(500, false), None);
}
