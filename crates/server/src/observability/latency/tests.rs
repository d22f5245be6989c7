//! Tests the samples of latency events.

use super::*;

#[test]
fn spikes_of_one_second_become_one_sample_but_all_are_counted() {
    let monitor = LatencyMonitor::default();
    for (unix_s, ms) in [(10, 2), (10, 3), (10, 1), (12, 7)] {
        monitor.add("command", unix_s, ms);
    }
    let (name, series) = monitor.series(b"command").expect("it was added");
    assert_eq!(name, "command");
    assert_eq!(
        series,
        LatencySeries {
            samples: vec![LatencySample { unix_s: 10, ms: 3 }, LatencySample { unix_s: 12, ms: 7 }],
            max_ms: 7,
            sum_ms: 13,
            count: 4
        }
    );
    assert_eq!((series.mean_ms(), series.mean_deviation_ms()), (5.0, 2.0));
    assert_eq!(series.period_s(20), 5.0);
}

#[test]
fn a_series_keeps_the_newest_samples_and_the_worst_of_all() {
    let monitor = LatencyMonitor::default();
    for second in 0..=SAMPLES_MAX as u64 {
        monitor.add("command", second, 1000 - second);
    }
    let (_, series) = monitor.series(b"command").expect("it was added");
    assert_eq!(series.samples.len(), SAMPLES_MAX);
    assert_eq!(series.samples[0].unix_s, 1);
    assert_eq!(series.max_ms, 1000);
}

#[test]
fn events_are_reset_by_name_or_all_at_once() {
    let monitor = LatencyMonitor::default();
    monitor.add("command", 1, 1);
    monitor.add("fast-command", 1, 1);
    monitor.add("expire-cycle", 1, 1);
    assert!(monitor.reset(b"command"));
    assert!(!monitor.reset(b"command"));
    assert_eq!(monitor.reset_all(), 2);
    assert!(monitor.all().is_empty());
}
