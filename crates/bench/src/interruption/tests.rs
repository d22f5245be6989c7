//! Tests of the request to end a run.

use signal_hook::consts::SIGUSR1;

use super::*;

impl Interruption {
    /// Makes the request, as a signal does.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_signal_makes_the_request_in_all_clones() {
    let interruption = Interruption::default();
    // Not one of the signals that end the process, which the test leaves as they are.
    interruption.watch(SIGUSR1).expect("a handler");
    let clone = interruption.clone();
    assert!(clone.check().is_ok());
    signal_hook::low_level::raise(SIGUSR1).expect("a signal to this process");
    assert!(interruption.is_requested() && clone.is_requested());
    assert!(matches!(clone.check(), Err(Error::Interrupted)));
}

#[test]
fn a_sleep_ends_soon_after_the_request() {
    let interruption = Interruption::default();
    let begin = Instant::now();
    interruption
        .sleep_until(begin + Duration::from_millis(5))
        .expect("no request");
    assert!(begin.elapsed() >= Duration::from_millis(5));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| interruption.sleep_until(begin + Duration::from_secs(3600)));
        interruption.request();
        assert!(matches!(sleeper.join().expect("no panic"), Err(Error::Interrupted)));
    });
}

#[test]
fn only_errors_after_the_request_are_explained_by_it() {
    let interruption = Interruption::default();
    let broken = || Err::<u8, Error>(Error::Server("the server closed a connection".into()));
    assert!(matches!(interruption.explain(broken()), Err(Error::Server(_))));
    interruption.request();
    assert!(matches!(interruption.explain(broken()), Err(Error::Interrupted)));
    assert_eq!(interruption.explain(Ok(7)).expect("a result is kept"), 7);
    assert_eq!(Error::Interrupted.exit_code(), 130);
}

#[test]
fn signals_that_are_ignored_at_the_start_stay_ignored() {
    // With nohup: SIGHUP is signal 1, and the runtime ignores SIGPIPE, which is 13.
    let status = "Name:\tweft-bench\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
    let ignored = [SIGHUP, SIGINT, SIGTERM].map(|signal| is_ignored(status, signal));
    assert_eq!(ignored, [true, false, false]);
    assert!(!is_ignored("Name:\tweft-bench\n", SIGHUP) && !is_ignored("SigIgn:\tx\n", SIGHUP));
    let own = fs::read_to_string("/proc/self/status").expect("the status of this process");
    assert!(own.contains("\nSigIgn:\t"));
}
