//! The order of the steps, which of them run at the same time, and which are left out.

use super::*;

fn names(steps: &[&CiStep]) -> Vec<&'static str> {
    steps.iter().map(|step| step.name).collect()
}

#[test]
fn each_step_has_a_name_of_its_own() {
    for (index, step) in STEPS.iter().enumerate() {
        let others = STEPS.iter().skip(index + 1);
        assert!(others.clone().all(|other| other.name != step.name), "{}", step.name);
    }
}

#[test]
fn only_the_last_steps_are_optional() {
    let is_optional: Vec<bool> = STEPS.iter().map(|step| step.needed_minutes.is_some()).collect();
    assert!(
        is_optional.is_sorted(),
        "a required step never waits for an optional one"
    );
    assert!(is_optional.contains(&true) && is_optional.contains(&false));
}

#[test]
fn an_optional_step_is_stopped_only_after_the_time_that_it_needs() {
    for step in STEPS {
        let needed = step.needed_minutes.unwrap_or(0);
        assert!(step.limit_minutes > needed, "{}", step.name);
    }
}

#[test]
fn an_optional_step_is_left_out_if_it_would_end_too_late() {
    let optional = CiStep::new("optional", "", tools).if_time_for(9);
    let required = CiStep::new("required", "", tools);
    let last_start = OPTIONAL_STEPS_END - Duration::from_secs(9 * 60);
    assert!(!optional.is_too_late(Duration::ZERO));
    assert!(!optional.is_too_late(last_start));
    assert!(optional.is_too_late(last_start + Duration::from_secs(1)));
    assert!(!required.is_too_late(OPTIONAL_STEPS_END * 2));
}

/// An optional step that begins as late as it may has the time that it needs, and is stopped some minutes later.
#[test]
fn an_optional_step_is_stopped_without_a_failure_when_the_time_is_over() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let optional = CiStep::new("optional", "", tools).minutes(20).if_time_for(9);
    let required = CiStep::new("required", "", tools).minutes(20);
    let own = StepLimit {
        duration: minutes(20),
        is_stop: false,
    };
    assert_eq!(optional.limit(minutes(10)), own, "it has its own time limit");
    assert_eq!(optional.limit(OPTIONAL_STEPS_STOP - minutes(20)), own);
    assert_eq!(required.limit(OPTIONAL_STEPS_STOP), own, "a required step has its time");
    let last_start = OPTIONAL_STEPS_END - minutes(9);
    let late = optional.limit(last_start);
    assert!(late.is_stop && late.duration > minutes(9), "{late:?}");
    assert_eq!(last_start + late.duration, OPTIONAL_STEPS_STOP);
    assert_eq!(optional.limit(OPTIONAL_STEPS_STOP * 2).duration, Duration::ZERO);

    let stopped = optional.judge(StepEnd::TimedOut, &late, Vec::new());
    let line = "optional: there was no time to finish; run `cargo xtask ci --only optional`".to_owned();
    assert_eq!(stopped, Ok(vec![line]), "it counts as skipped");
    let overdue = optional.judge(StepEnd::TimedOut, &own, Vec::new());
    assert_eq!(overdue, Err("its time limit of 20 minutes has passed".to_owned()));
    let failed = optional.judge(StepEnd::Failed("exit status: 1".to_owned()), &late, Vec::new());
    assert_eq!(failed, Err("exit status: 1".to_owned()), "a failure in time is one");
    let parts = vec!["part: why".to_owned()];
    assert_eq!(optional.judge(StepEnd::Passed, &late, parts.clone()), Ok(parts));
}

#[test]
fn steps_run_beside_the_step_before_them() {
    let steps: Vec<&CiStep> = STEPS.iter().collect();
    let batches: Vec<_> = batches(&steps).map(names).collect();
    assert!(batches.contains(&vec!["release", "diff-selfcheck", "diff", "loom", "sim-build"]));
    assert!(batches.contains(&vec!["test", "asan", "deny"]));
    assert!(batches.contains(&vec!["power-loss", "disk-errors"]));
    assert!(batches.contains(&vec!["clients", "packaging", "book", "sim"]));
    assert!(batches.contains(&vec!["failover"]));
    assert_eq!(batches.concat(), names(&steps), "each step runs once, in order");
}

#[test]
fn what_several_steps_use_is_installed_before_they_begin() {
    let steps: Vec<&CiStep> = STEPS.iter().collect();
    let batches: Vec<_> = batches(&steps).map(names).collect();
    let position = |name| batches.iter().position(|batch| batch.contains(&name)).expect(name);
    for user in ["test", "diff", "clients", "packaging", "book"] {
        assert!(position("oracle") < position(user), "{user}");
    }
}

#[test]
fn a_step_runs_alone_if_the_one_before_it_is_not_chosen() {
    let chosen = select_steps(&["diff", "tidy"]).expect("both are steps");
    let batches: Vec<_> = batches(&chosen).map(names).collect();
    assert_eq!(batches, [vec!["tidy"], vec!["diff"]]);
    assert!(select_steps(&["tidy", "unknown"]).is_err());
}

#[test]
fn a_clone_is_built_without_incremental_compilation() {
    let target = std::env::temp_dir().join(format!("weft-ci-test-{}", std::process::id()));
    assert!(!was_server_built_incrementally(&target), "nothing is built");
    let incremental = target.join("debug/incremental");
    fs::create_dir_all(incremental.join("xtask-1a2b")).expect("is made");
    assert!(
        !was_server_built_incrementally(&target),
        "only the program that runs the steps"
    );
    fs::create_dir_all(incremental.join("weft_server-3c4d")).expect("is made");
    assert!(was_server_built_incrementally(&target));
    fs::remove_dir_all(&target).expect("is removed");
}
