//! Tests of the latency between two samples.

use super::{LatencySampling, PART, buckets, percentile};
use crate::connection::reply::RespValue;
use crate::model::{CommandFigures, TopReport};

/// Builds a reply to LATENCY HISTOGRAM from upper bounds and cumulative numbers of calls.
fn histograms(commands: &[(&str, &[(i64, i64)])]) -> RespValue {
    let text = |text: &str| RespValue::Text(text.as_bytes().to_vec());
    let mut reply = Vec::new();
    for (name, pairs) in commands {
        let calls = pairs.last().map_or(0, |(_, calls)| *calls);
        let pairs = pairs.iter().flat_map(|(bound, calls)| [*bound, *calls]);
        let histogram = RespValue::Array(pairs.map(RespValue::Integer).collect());
        let fields = vec![
            text("calls"),
            RespValue::Integer(calls),
            text("histogram_usec"),
            histogram,
        ];
        reply.extend([text(name), RespValue::Array(fields)]);
    }
    RespValue::Array(reply)
}

/// Adds the latencies of an interval to a report, for tests of the display.
pub fn fill_example(report: &mut TopReport) {
    let mut sampling = LatencySampling::default();
    sampling.apply(
        Ok(histograms(&[("get", &[(1, 50_000), (2, 99_000)])])),
        None,
        &mut TopReport::default(),
    );
    let later = histograms(&[
        ("get", &[(1, 100_000), (2, 198_000), (4, 198_850), (2113, 199_050)]),
        ("info", &[(264, 1)]),
    ]);
    sampling.apply(Ok(later), None, report);
}

/// A report with a row for each of these commands.
fn report(names: &[&str]) -> TopReport {
    let row = |name: &&str| CommandFigures {
        name: (*name).to_owned(),
        ..CommandFigures::default()
    };
    TopReport {
        commands: Some(names.iter().map(row).collect()),
        ..TopReport::default()
    }
}

/// The report of the last of these replies of the same run of the server.
fn last_report(replies: &[RespValue]) -> TopReport {
    let mut sampling = LatencySampling::default();
    let mut last = TopReport::default();
    for reply in replies {
        last = report(&["get", "set", "config|get"]);
        sampling.apply(Ok(reply.clone()), Some("run"), &mut last);
    }
    last
}

fn overview(report: &TopReport) -> [Option<f64>; 3] {
    let overview = &report.overview;
    [
        overview.latency_p50_us,
        overview.latency_p99_us,
        overview.latency_p999_us,
    ]
}

#[test]
fn percentiles_are_interpolated_within_a_bucket() {
    let buckets = [(1, 0), (8, 50), (33, 49), (1056, 1)].into_iter().collect();
    assert_eq!(percentile(&buckets, 0.5), Some(8.0));
    assert_eq!(percentile(&buckets, 0.25), Some(6.0));
    assert_eq!(percentile(&buckets, 0.99), Some(33.0));
    assert_eq!(percentile(&buckets, 0.995), Some(792.0));
    let first = [(1, 10)].into_iter().collect();
    assert_eq!(percentile(&first, 0.5), Some(0.5));
    assert_eq!(percentile(&[(1, 0)].into_iter().collect(), 0.5), None);
}

#[test]
fn latencies_are_those_between_two_samples() {
    let earlier = histograms(&[("get", &[(1, 1_000_000)]), ("config|get", &[(16, 1)])]);
    // A bucket that is new, and a command that is called for the first time.
    let later = histograms(&[
        ("get", &[(1, 1_000_000), (8, 1_000_100)]),
        ("config|get", &[(16, 1)]),
        ("set", &[(528, 100)]),
    ]);
    let report = last_report(&[earlier, later]);
    assert_eq!(overview(&report), [Some(8.0), Some(522.72), Some(527.472)]);
    let rows = report.commands.unwrap();
    let medians: Vec<Option<f64>> = rows.iter().map(|row| row.interval_p50_us).collect();
    assert_eq!(medians, [Some(6.0), Some(396.0), None]);
    assert_eq!(rows[0].interval_p99_us, Some(7.96));
    assert!(report.unavailable.is_empty());
}

#[test]
fn the_first_sample_has_no_latencies() {
    let report = last_report(&[histograms(&[("get", &[(1, 5)])])]);
    assert_eq!(overview(&report), [None; 3]);
    assert!(report.unavailable.is_empty());
}

#[test]
fn a_reset_gives_no_latencies_until_the_next_sample() {
    let earlier = histograms(&[("get", &[(1, 10), (8, 20)]), ("set", &[(4, 5)])]);
    let resets = [
        // Fewer calls.
        histograms(&[("get", &[(1, 3), (8, 6)]), ("set", &[(4, 5)])]),
        // More calls, but fewer in one bucket.
        histograms(&[("get", &[(1, 3), (8, 90)]), ("set", &[(4, 5)])]),
        // A command that is not called any more.
        histograms(&[("get", &[(1, 100), (8, 200)])]),
        histograms(&[]),
    ];
    for reset in resets {
        let report = last_report(&[earlier.clone(), reset.clone()]);
        assert_eq!(overview(&report), [None; 3], "{reset:?}");
        assert!(report.commands.unwrap().iter().all(|row| row.interval_p50_us.is_none()));
        assert!(report.unavailable.is_empty());
        let next = histograms(&[("get", &[(1, 500), (8, 900)]), ("set", &[(4, 100)])]);
        let report = last_report(&[earlier.clone(), reset, next]);
        assert!(report.overview.latency_p50_us.is_some());
    }
}

#[test]
fn a_restart_gives_no_latencies_until_the_next_sample() {
    let mut sampling = LatencySampling::default();
    let reply = |calls| Ok(histograms(&[("get", &[(1, calls)])]));
    let mut first = TopReport::default();
    sampling.apply(reply(5), Some("one"), &mut first);
    let mut restarted = TopReport::default();
    sampling.apply(reply(50), Some("two"), &mut restarted);
    assert_eq!(overview(&restarted), [None; 3]);
    let mut next = TopReport::default();
    sampling.apply(reply(60), Some("two"), &mut next);
    assert_eq!(next.overview.latency_p50_us, Some(0.5));
}

#[test]
fn a_server_without_latencies_says_why() {
    let refusal = "NOPERM User joe has no permissions to run the 'latency|histogram' command";
    let mut sampling = LatencySampling::default();
    let mut refused = TopReport::default();
    sampling.apply(Err(refusal.to_owned()), None, &mut refused);
    assert_eq!(refused.unavailable.get(PART).map(String::as_str), Some(refusal));
    assert!(sampling.refusal.is_some(), "the command is not sent at each sample");
    sampling.apply(Err("BUSY a script runs".to_owned()), None, &mut refused);
    assert!(sampling.refusal.is_none(), "the error ends with the script");
    let same = histograms(&[("get", &[(1, 5)])]);
    let report = last_report(&[same.clone(), same]);
    assert!(report.unavailable[PART].contains("latency-tracking"));
    assert!(last_report(&[RespValue::Integer(1)]).unavailable[PART].contains("malformed"));
}

#[test]
fn malformed_histograms_are_skipped() {
    let pairs = |numbers: &[i64]| RespValue::Array(numbers.iter().copied().map(RespValue::Integer).collect());
    assert_eq!(buckets(&pairs(&[1, 2, 3, 5])), Some([(1, 2), (3, 3)].into()));
    for malformed in [&[-1, 2][..], &[1, -2], &[2, 1, 1, 2], &[1, 5, 2, 4]] {
        assert_eq!(buckets(&pairs(malformed)), None, "{malformed:?}");
    }
    assert_eq!(buckets(&RespValue::Null), None);
    let largest = pairs(&[i64::MAX, i64::MAX]);
    assert_eq!(percentile(&buckets(&largest).unwrap(), 1.0), Some(i64::MAX as f64));
}
