//! Tests that crash a copy of the test program and check the report it writes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

const SCENARIO: &str = "WEFT_CRASH_SCENARIO";

/// Runs in the child process.
#[test]
#[ignore = "another test runs it in a process of its own"]
fn crash_scenario() {
    let kind = std::env::var(SCENARIO).expect("another test names the scenario");
    install_crash_handler(&[("version", "0.0.1"), ("mode", "test")]).unwrap();
    assert!(install_crash_handler(&[]).is_err());
    let crash = move || {
        let _stack = (kind != "without a stack").then(|| {
            drop(AlternateStack::install().unwrap());
            AlternateStack::install().unwrap()
        });
        match kind.as_str() {
            "abort" => std::process::abort(),
            "overflow" => assert_eq!(endless_recursion(1), 0),
            // SAFETY: none; this is the fault to be reported.
            _ => unsafe { std::ptr::without_provenance_mut::<u64>(0xbad0).write_volatile(1) },
        }
    };
    std::thread::Builder::new()
        .name("worker 7".to_owned())
        .spawn(crash)
        .unwrap()
        .join()
        .unwrap();
}

#[allow(unconditional_recursion)]
fn endless_recursion(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 512]);
    endless_recursion(room[3] + 1) + room[4]
}

fn run_scenario(kind: &str) -> (String, Option<i32>) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "crash::tests::crash_scenario", "--nocapture"])
        .env(SCENARIO, kind)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .output()
        .unwrap();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.signal(),
    )
}

#[test]
fn a_crash_writes_a_complete_report_and_exits_with_the_signal() {
    let cases: [(&str, c_int, &[&str]); 4] = [
        (
            "fault",
            libc::SIGSEGV,
            &[
                "crashed by signal: 11 (SIGSEGV)",
                "Accessing address: 0x000000000000bad0",
                "crash_scenario",
            ],
        ),
        (
            "abort",
            libc::SIGABRT,
            &["crashed by signal: 6 (SIGABRT)", "Killed by PID: ", "abort"],
        ),
        (
            "overflow",
            libc::SIGSEGV,
            &["crashed by signal: 11 (SIGSEGV)", "endless_recursion"],
        ),
        (
            "without a stack",
            libc::SIGSEGV,
            &["0x000000000000bad0", "signal stack is too small"],
        ),
    ];
    for (kind, signal, expected) in cases {
        let (report, status) = run_scenario(kind);
        assert_eq!(status, Some(signal), "{kind}: {report}");
        let common = [
            "=== WEFT BUG REPORT START: Cut & paste starting from here ===",
            "Thread: worker 7 (",
            "version:0.0.1\nmode:test\n",
            "------ REGISTERS ------",
            "------ STACK TRACE ------",
            "=== WEFT BUG REPORT END.",
        ];
        for text in common.iter().chain(expected) {
            assert!(report.contains(text), "{kind}: {text:?} is missing in {report}");
        }
    }
}
