//! A crash ends the process and leaves a report.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use weft_config::Config;

const CHILD: &str = "WEFT_TEST_PANICS";

/// Runs this test again in a child process that may die.
#[test]
fn a_panic_ends_the_process_with_a_report() {
    if std::env::var_os(CHILD).is_some() {
        super::install_crash_reports(&Config::defaults());
        panic!("slots are {} short", 3);
    }
    let output = Command::new(std::env::current_exe().expect("has a path"))
        .args(["--exact", "--nocapture"])
        .arg(std::thread::current().name().expect("tests have names"))
        .env(CHILD, "1")
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.signal(), Some(6), "{text}");
    for expected in [
        "# === ASSERTION FAILED ===",
        "slots are 3 short",
        "crash/tests.rs:",
        "WEFT BUG REPORT START",
        "(SIGABRT)",
        "weft_version:",
        "a_panic_ends_the_process_with_a_report",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
}
