//! Tests of the threads of clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

/// Runs clients that end when the stop flag is set. Those with a text fail at once.
fn run(clients: &[Option<&str>], watch: impl FnOnce(&AtomicBool) -> Result<u32>) -> Result<(u32, Vec<usize>)> {
    let is_stopped = AtomicBool::new(false);
    run_client_threads(
        &[],
        clients.iter().enumerate(),
        |(number, failure): (usize, &Option<&str>)| {
            if let Some(text) = failure {
                return Err(Error::Server(text.to_string()));
            }
            wait_for(&is_stopped);
            Ok(number)
        },
        || is_stopped.store(true, Ordering::Relaxed),
        || watch(&is_stopped),
    )
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_end_of_the_observation_ends_the_clients() {
    let (watched, results) = run(&[None; 3], |_| Ok(7)).expect("no failure");
    assert_eq!((watched, results), (7, vec![0, 1, 2]));
}

#[test]
fn a_client_that_fails_ends_the_others() {
    // Both the other clients and the observation end only when the flag is set.
    let outcome = run(&[None, Some("the first"), None, Some("the second")], |is_stopped| {
        wait_for(is_stopped);
        Err(Error::Server("the observation".into()))
    });
    assert!(
        matches!(&outcome, Err(Error::Server(text)) if text == "the first"),
        "{outcome:?}"
    );
}

#[test]
fn an_interruption_explains_the_failures_of_clients() {
    let outcome = run(&[Some("no reply")], |_| Err(Error::Interrupted));
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
}

#[test]
fn a_failure_of_the_observation_ends_the_clients() {
    let outcome = run(&[None; 2], |_| Err(Error::Server("the observation".into())));
    assert!(
        matches!(&outcome, Err(Error::Server(text)) if text == "the observation"),
        "{outcome:?}"
    );
}
