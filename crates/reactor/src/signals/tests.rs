//! Tests that send signals to a copy of the test program, which only runs the selected scenario.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::Reactor;

const SCENARIO: &str = "WEFT_SIGNAL_SCENARIO";

/// Runs in the child process. It reports each signal that it finds after a wait, and ends at SIGTERM. In the scenario
/// "insisting" it does not clear the shutdown state, and writes a file.
#[test]
#[ignore = "another test runs it in a process of its own"]
fn signal_scenario() {
    let kind = std::env::var(SCENARIO).expect("another test names the scenario");
    let mut reactor = Reactor::new().unwrap();
    let signals = SignalReceiver::install(reactor.waker()).unwrap();
    assert!(SignalReceiver::install(reactor.waker()).is_err());
    if kind == "insisting" {
        let name = unfinished_file(std::process::id());
        std::fs::write(&name, "unfinished").unwrap();
        signals.set_unfinished_file(CString::new(name).unwrap());
    }
    eprintln!("ready");
    let mut events = Vec::new();
    let mut since = Instant::now();
    loop {
        reactor.wait(Some(Duration::from_secs(20)), &mut events, 128).unwrap();
        let Some(signal) = signals.take() else {
            // A signal may interrupt the wait before its wake-up is seen. Only a timeout ends the scenario.
            assert!(since.elapsed() < Duration::from_secs(20), "no signal came");
            continue;
        };
        since = Instant::now();
        if kind == "forgiving" && signal == ShutdownSignal::Interrupt {
            signals.set_shutting_down(false);
        }
        // The reader of this line may send the next signal at once.
        eprintln!("{}", signal.name());
        if signal == ShutdownSignal::Terminate {
            return;
        }
    }
}

fn unfinished_file(process: u32) -> String {
    let directory = std::env::temp_dir();
    format!("{}/weft-signals-{process}", directory.display())
}

fn start(kind: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "signals::tests::signal_scenario", "--nocapture"])
        .env(SCENARIO, kind)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));
    (child, lines)
}

fn send(child: &Child, signal: c_int) {
    // SAFETY: rule 1; `kill` touches no memory, and the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn shutdown_signals_wake_the_reactor_and_hangups_are_ignored() {
    let (mut child, mut lines) = start("forgiving");
    send(&child, libc::SIGHUP);
    send(&child, libc::SIGPIPE);
    for _ in 0..3 {
        send(&child, libc::SIGINT);
        let line = lines.next();
        // The remaining lines show why the child has failed.
        assert_eq!(line.as_deref(), Some("SIGINT"), "{:?}", lines.collect::<Vec<String>>());
    }
    send(&child, libc::SIGTERM);
    assert_eq!(lines.next().as_deref(), Some("SIGTERM"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_second_interrupt_ends_the_process_at_once() {
    let (child, mut lines) = start("insisting");
    send(&child, libc::SIGINT);
    assert_eq!(lines.next().as_deref(), Some("SIGINT"));
    let file = unfinished_file(child.id());
    assert!(std::fs::exists(&file).unwrap());
    send(&child, libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(1), None));
    assert!(String::from_utf8_lossy(&output.stdout).contains("You insist... exiting now."));
    assert!(!std::fs::exists(&file).unwrap());
    assert_eq!(lines.next(), None);
}
