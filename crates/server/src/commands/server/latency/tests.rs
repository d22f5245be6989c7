//! Tests of the graph and of the advice.

use super::*;
use crate::observability::latency::LatencyMonitor;

fn monitor() -> LatencyMonitor {
    let monitor = LatencyMonitor::default();
    monitor.add("command", 100, 2);
    monitor.add("command", 160, 24);
    monitor.add("command", 219, 13);
    monitor
}

#[test]
fn a_graph_shows_heights_and_ages() {
    let (name, series) = monitor().series(b"command").expect("it was added");
    let text = draw_graph(name, &series, 220);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "command - high 24 ms, low 2 ms (all time high 24 ms)");
    assert_eq!(&lines[2..], [" # ", " | ", " |#", "_||", "   ", "211", "mms"]);
}

#[test]
fn the_doctor_reports_every_event_and_suggests_a_threshold() {
    let config = Config::defaults();
    let events = monitor().all();
    assert!(latency_report(&events, &config, 220).contains("is off"));
    let permissions = weft_config::SetPermissions {
        may_set_protected: false,
        is_loading: false,
    };
    let pairs: [(&[u8], &[u8]); 1] = [(b"latency-monitor-threshold", b"1")];
    config.set(&pairs, permissions, &mut |_| Ok(())).expect("a valid value");
    assert!(latency_report(&[], &config, 220).starts_with("No latency spike"));
    let text = latency_report(&events, &config, 220);
    assert!(
        text.contains("1. command: 3 latency spikes (average 13ms, mean deviation 7ms, period 40.00 sec)"),
        "{text}"
    );
    assert!(text.contains("commandlog-execution-slower-than 1000"), "{text}");
}
