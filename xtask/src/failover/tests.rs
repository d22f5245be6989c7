//! Tests of what a run reports as left out, and of the connections that may end.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::left_out;
use super::router::{REPLY_BOUND, Router};
use super::session::RoundState;

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

#[test]
fn connections_end_at_any_time_or_around_planned_restarts() {
    let node = SocketAddr::from(([127, 0, 0, 1], 1));
    let router = Router::new(vec![node], true);
    let opened = Instant::now();
    assert!(router.may_have_ended(node, opened));
    let router = router.with_planned_restarts();
    assert!(!router.may_have_ended(node, opened));
    router.begin_restart(node);
    assert!(router.may_have_ended(node, opened));
    router.end_restart(node);
    assert!(router.may_have_ended(node, opened), "it was opened before the restart");
    assert!(!router.may_have_ended(node, Instant::now() + Duration::from_secs(1)));
}

#[test]
fn a_panic_ends_the_threads_of_a_round() {
    let run = RoundState::new(Arc::new(Router::new(Vec::new(), false)), 1, 0, false);
    let panicked: thread::Result<()> = catch_unwind(AssertUnwindSafe(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                while run.is_running() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let _stop = run.stop_on_drop();
            panic!("the action of a round fails");
        })
    }));
    assert!(panicked.is_err());
}

#[test]
fn failed_connections_are_recorded_unless_the_node_is_restarted() {
    // Nothing listens on this port.
    let node = SocketAddr::from(([127, 0, 0, 1], 1));
    let router = Arc::new(Router::new(vec![node], true).with_planned_restarts());
    router.begin_restart(node);
    assert!(router.connect(node, REPLY_BOUND).is_none() && router.failures().is_empty());
    router.end_restart(node);
    std::thread::sleep(Duration::from_millis(1));
    assert!(router.connect(node, Duration::from_secs(1)).is_none() && router.failures().is_empty());
    assert!(router.connect(node, REPLY_BOUND).is_none());
    assert!(matches!(router.failures().as_slice(), [failure] if failure.starts_with("127.0.0.1:1: ")));
    // In other runs nothing is recorded.
    let router = Arc::new(Router::new(vec![node], true));
    assert!(router.connect(node, REPLY_BOUND).is_none() && router.failures().is_empty());
}
