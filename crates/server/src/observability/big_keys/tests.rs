//! Tests of the state of a scan for big keys.

use super::*;

const NOW_MS: u64 = 1_700_000_000_000;
const ROUND: Duration = Duration::from_millis(100);

fn add(step: &mut ScanStep, kind: usize, name: &str, bytes: u64) {
    if step.count(kind, bytes) {
        step.add(kind, DbIndex::FIRST, name.as_bytes(), bytes, bytes / 2);
    }
}

fn names(report: &BigKeyReport, kind: usize) -> Vec<(u64, String)> {
    let keys = report.types[kind].biggest().iter();
    keys.map(|key| (key.bytes, String::from_utf8_lossy(&key.name).into_owned()))
        .collect()
}

#[test]
fn the_biggest_keys_of_each_type_are_kept_over_all_steps() {
    let big_keys = BigKeys::default();
    assert!(!big_keys.take_step_turn(), "no scan is in progress");
    assert!(big_keys.start(3, 5, NOW_MS, 0));
    assert!(!big_keys.start(3, 5, NOW_MS, 0), "one is in progress");
    for number in 0..10_u64 {
        assert!(big_keys.take_step_turn());
        assert!(!big_keys.take_step_turn(), "one step at a time");
        let mut step = big_keys.begin_step(ROUND).expect("it runs");
        assert_eq!(step.budget, Duration::from_millis(5));
        assert_eq!(step.position.cursor, number);
        for size in 0..100 {
            // Sizes are in no order, and each occurs in one step only.
            let bytes = 10 * ((size * 37) % 100) + number;
            add(&mut step, 0, &format!("s{bytes}"), bytes);
            add(&mut step, 4, &format!("h{bytes}"), 2 * bytes);
        }
        step.position.cursor += 1;
        step.is_complete = number == 9;
        big_keys.end_step(step, NOW_MS + 700);
    }
    let report = big_keys.report(NOW_MS + 900);
    assert_eq!((report.phase, report.duration_ms), (ScanPhase::Complete, 700));
    let expected = [(999, "s999"), (998, "s998"), (997, "s997")].map(|(bytes, name)| (bytes, name.to_owned()));
    assert_eq!(names(&report, 0), expected);
    assert_eq!(names(&report, 4)[0], (1998, "h999".to_owned()));
    assert_eq!((report.types[0].keys, report.types[0].bytes), (1000, 999 * 1000 / 2));
    assert_eq!(report.types[1], TypeFigures::new(3));
    let last = big_keys.last_complete().expect("a scan is complete");
    assert_eq!(last.bytes, [999, 0, 0, 0, 1998, 0]);
    assert_eq!(last.elements[4], 999);
    assert!(!big_keys.take_step_turn());
    assert_eq!(big_keys.completed_scans(), 1);
}

#[test]
fn a_step_of_a_scan_that_was_stopped_changes_nothing() {
    let big_keys = BigKeys::default();
    let stops: [fn(&BigKeys); 2] = [|big_keys| assert!(big_keys.stop(NOW_MS)), BigKeys::reset];
    for stop in stops {
        assert!(big_keys.start(5, 50, NOW_MS, 0));
        assert!(big_keys.take_step_turn());
        let mut step = big_keys.begin_step(ROUND).expect("it runs");
        stop(&big_keys);
        assert!(!big_keys.take_step_turn());
        add(&mut step, 2, "key", 100);
        step.is_complete = true;
        // The next scan has begun before the step ends.
        assert!(big_keys.start(5, 50, NOW_MS + 1, 0));
        assert!(!big_keys.take_step_turn(), "the thread is busy with the old step");
        big_keys.end_step(step, NOW_MS + 2);
        let report = big_keys.report(NOW_MS + 3);
        assert_eq!((report.phase, report.types[2].keys), (ScanPhase::Running, 0));
        assert!(big_keys.take_step_turn());
        assert!(big_keys.stop(NOW_MS + 4) && !big_keys.stop(NOW_MS + 5));
        assert!(
            big_keys.begin_step(ROUND).is_none(),
            "it was stopped before its thread began"
        );
        assert_eq!(big_keys.report(NOW_MS + 9).duration_ms, 3);
        assert_eq!(big_keys.last_complete(), None);
    }
    big_keys.reset();
    let report = big_keys.report(NOW_MS);
    assert_eq!((report.phase, report.duration_ms), (ScanPhase::None, 0));
}

#[test]
fn a_client_stops_only_the_scan_that_it_has_started() {
    let big_keys = BigKeys::default();
    assert!(big_keys.start(5, 50, NOW_MS, 7));
    assert!(!big_keys.stop_own(8, NOW_MS));
    assert!(big_keys.stop_own(7, NOW_MS) && !big_keys.stop_own(7, NOW_MS));
    assert_eq!(big_keys.report(NOW_MS).id, 7);
    assert!(big_keys.start(5, 50, NOW_MS, 0));
    assert!(!big_keys.stop_own(7, NOW_MS));
    assert_eq!(big_keys.report(NOW_MS).phase, ScanPhase::Running);
}

#[test]
fn long_names_are_cut() {
    let big_keys = BigKeys::default();
    assert!(big_keys.start(1, 1, NOW_MS, 0) && big_keys.take_step_turn());
    let mut step = big_keys.begin_step(ROUND).expect("it runs");
    add(&mut step, 0, &"x".repeat(10_000), 12_000);
    big_keys.end_step(step, NOW_MS);
    let report = big_keys.report(NOW_MS);
    let key = &report.types[0].biggest()[0];
    assert_eq!((key.name.len(), key.name_bytes), (MAX_NAME_BYTES, 10_000));
}
