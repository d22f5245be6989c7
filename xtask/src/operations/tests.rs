//! Tests of the checks and of the report. The servers are not started.

use super::site::ActionCount;
use super::*;

fn tally(longest_down_ms: u64) -> Tally {
    Tally {
        acknowledged: 1000,
        confirmed: 200,
        unknown: 3,
        longest_reply_ms: 40,
        longest_outage_ms: 900,
        longest_down_ms,
        errors: BTreeMap::from([("CLUSTERDOWN".to_owned(), 2), ("MOVED".to_owned(), 17)]),
        ..Tally::default()
    }
}

#[test]
fn clusterdown_has_a_bound_and_connections_do_not_fail() {
    assert_eq!(check_errors(&tally(0), &[]), Ok(()));
    assert_eq!(check_errors(&tally(20_000), &[]), Ok(()));
    assert!(check_errors(&tally(20_001), &[]).is_err_and(|why| why.contains("20001 ms after CLUSTERDOWN")));
    let failures = ["127.0.0.1:7000: cannot connect".to_owned()];
    assert!(check_errors(&tally(0), &failures).is_err_and(|why| why.contains("127.0.0.1:7000")));
}

#[test]
fn every_kind_of_work_must_happen() {
    let names: Vec<&str> = actions().collect();
    let wanted = [
        "BGSAVE",
        "BGREWRITEAOF",
        "log rotation",
        "certificate reload",
        "CONFIG REWRITE",
        "planned failover",
        "restart of a replica",
        "restart of a primary",
    ];
    assert_eq!(names, wanted);
    assert!(!Operator::new(Duration::from_secs(60), Instant::now()).has_restarted_all());
}

#[test]
fn the_report_has_all_figures() {
    let counts = [("BGSAVE", ActionCount { done: 7, postponed: 1 })];
    let text = report(&counts, &tally(5), 3, 4000);
    for part in [
        "BGSAVE                         7          1\n",
        "errors seen by writers: CLUSTERDOWN 2, MOVED 17\n",
        "longest reply 40 ms, longest time without service 900 ms, longest time to the end of CLUSTERDOWN 5 ms\n",
        "3 rounds, 1000 acknowledged writes, 200 of them confirmed by WAIT, 3 without a reply, 0 lost; 4000 lines",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert_eq!(errors_text(&BTreeMap::new()), "none");
}

#[test]
fn a_week_is_not_shorter_than_a_minute() {
    let words = ["--seconds", "59"].map(str::to_owned);
    assert!(main(&words).is_err_and(|why| why.contains("at least 60")));
}
