//! Tests of what a run reports as left out.

use super::left_out;

#[test]
fn scenarios_without_a_sentinel_are_named() {
    let left = left_out(false, &[], |_| false);
    let names: Vec<&str> = left.iter().filter_map(|line| line.split(' ').nth(2)).collect();
    let all = [
        "sentinel-failover:",
        "sentinel-kill:",
        "sentinel-stop:",
        "sentinel-coordinated:",
    ];
    assert_eq!(names, all);
    assert!(left.iter().all(|line| line.ends_with(": no Sentinel is installed")));
    // A line that began with the name of the step would mean that the whole step was skipped.
    assert!(left.iter().all(|line| !line.starts_with("failover: ")));
}

#[test]
fn only_chosen_scenarios_that_did_not_run_are_left_out() {
    assert!(left_out(true, &[], |_| true).is_empty());
    assert!(left_out(false, &["kill"], |_| false).is_empty());
    assert_eq!(left_out(false, &["kill", "sentinel-kill"], |_| false).len(), 1);
    let left = left_out(true, &[], |name| name != "sentinel-coordinated");
    assert_eq!(
        left,
        ["failover scenario sentinel-coordinated: no Sentinel that had a turn can do it"]
    );
}
