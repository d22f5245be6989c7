//! Tests of the histograms, of the graph and of the advice.

use weft_base::ThreadIndex;
use weft_resp::Protocol;

use super::*;
use crate::observability::latency::LatencyMonitor;

/// Returns the reply to LATENCY HISTOGRAM after one call of each of four commands.
fn histograms(names: &[&str], protocol: Protocol) -> String {
    let commands = registry();
    let metrics = Metrics::new(2, commands.commands().len(), 0);
    for (index, name) in ["set", "config|set", "get", "config|get"].into_iter().enumerate() {
        let command = commands.find_by_full_name(name.as_bytes()).expect("it exists");
        metrics.record_latency(ThreadIndex::new(index % 2), usize::from(command.id), 1000);
    }
    let mut out = Vec::new();
    let names = names.iter().map(|name| name.as_bytes());
    write_histograms(&mut Reply::new(&mut out, protocol), &metrics, names);
    String::from_utf8(out).expect("text")
}

/// Returns the histogram of a command that was called once. `map` begins a map of a number of pairs.
fn one_call(name: &str, map: impl Fn(usize) -> String) -> String {
    let (pair, pairs) = (map(1), map(2));
    let length = name.len();
    format!("${length}\r\n{name}\r\n{pairs}$5\r\ncalls\r\n:1\r\n$14\r\nhistogram_usec\r\n{pair}:1\r\n:1\r\n")
}

/// As in Valkey. A name may be given again, and one of a container stands for its subcommands.
#[test]
fn histograms_are_in_the_order_of_the_names() {
    let cases: [(&[&str], &[&str]); 6] = [
        (
            &["set", "get", "config|set", "config|get"],
            &["set", "get", "config|set", "config|get"],
        ),
        (&["get", "nosuch", "del", "SET"], &["get", "set"]),
        (&["get", "get", "set", "GET"], &["get", "get", "set", "get"]),
        (
            &["config|set", "Config", "config"],
            &["config|set", "config|get", "config|set", "config|get", "config|set"],
        ),
        (&["nosuch", "", "get|x", "config|nosuch", "config|get|x", "del"], &[]),
        (&["client", "CONFIG|GET"], &["config|get"]),
    ];
    for (names, shown) in cases {
        for (protocol, prefix, factor) in [(Protocol::Resp2, '*', 2), (Protocol::Resp3, '%', 1)] {
            let map = |pairs: usize| format!("{prefix}{}\r\n", pairs * factor);
            let entries = shown.iter().map(|name| one_call(name, map));
            let expected = std::iter::once(map(shown.len())).chain(entries).collect::<String>();
            assert_eq!(histograms(names, protocol), expected, "{names:?}");
        }
    }
}

#[test]
fn without_names_every_command_that_was_called_is_shown_once() {
    let reply = histograms(&[], Protocol::Resp3);
    assert!(reply.starts_with("%4\r\n"), "{reply}");
    for name in ["set", "get", "config|set", "config|get"] {
        let entry = one_call(name, |pairs| format!("%{pairs}\r\n"));
        assert_eq!(reply.matches(&entry).count(), 1, "{name}: {reply}");
    }
}

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
