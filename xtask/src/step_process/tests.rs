//! Tests of time limits and of the processes that a step leaves behind.

use super::*;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Returns `true` if the process exists and has not ended.
fn is_running(id: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    status
        .rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[test]
fn the_exit_status_is_reported() {
    let limit = Duration::from_secs(60);
    let passed = run("test-status-0", &mut shell("exit 0"), true, limit);
    assert_eq!(passed, Ok(StepEnd::Passed));
    let failed = run("test-status-3", &mut shell("echo why; exit 3"), true, limit);
    assert_eq!(failed, Ok(StepEnd::Failed("exit status: 3".to_string())));
    assert_eq!(fs::read_to_string(log_path("test-status-3")).unwrap(), "why\n");
}

#[test]
fn a_step_that_hangs_is_killed_with_everything_it_started() {
    let script = "sleep 600 & echo $!; sleep 600";
    let start = Instant::now();
    let end = run("test-hang", &mut shell(script), true, Duration::from_millis(500));
    assert_eq!(end, Ok(StepEnd::TimedOut));
    assert!(start.elapsed() < Duration::from_secs(300));
    let child = fs::read_to_string(log_path("test-hang")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_running(child.trim()) {
        assert!(Instant::now() < deadline, "{child} still runs");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_step_leaves_running_is_killed() {
    let end = run(
        "test-left",
        &mut shell("sleep 600 & echo $!"),
        true,
        Duration::from_secs(60),
    );
    assert_eq!(end, Ok(StepEnd::Passed));
    let child = fs::read_to_string(log_path("test-left")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_running(child.trim()) {
        assert!(Instant::now() < deadline, "{child} still runs");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn skipped_parts_are_passed_on_and_forgotten_by_the_next_run() {
    let parts = ["one: why".to_string(), "other: because".to_string()];
    run("test-parts", &mut shell("exit 0"), true, Duration::from_secs(60)).unwrap();
    record_skipped("test-parts", &parts).unwrap();
    assert_eq!(recorded_skipped("test-parts"), parts);
    run("test-parts", &mut shell("exit 0"), true, Duration::from_secs(60)).unwrap();
    assert_eq!(recorded_skipped("test-parts"), Vec::<String>::new());
}

#[test]
fn the_time_of_started_processes_is_recorded_and_forgotten_by_the_next_run() {
    let status = shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").status();
    assert!(status.expect("a shell").success());
    run("test-seconds", &mut shell("exit 0"), true, Duration::from_secs(60)).unwrap();
    assert_eq!(recorded_processor_time("test-seconds"), None);
    record_processor_time("test-seconds").unwrap();
    assert!(recorded_processor_time("test-seconds").is_some_and(|seconds| seconds > 0.0));
    run("test-seconds", &mut shell("exit 0"), true, Duration::from_secs(60)).unwrap();
    assert_eq!(recorded_processor_time("test-seconds"), None);
}
