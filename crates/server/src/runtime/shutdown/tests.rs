//! Options of a shutdown, and its requests.

use super::{SavePolicy, ShutdownOptions, ShutdownRequest};

#[test]
fn signal_options_are_parsed() {
    let plain = ShutdownOptions::default();
    let cases = [
        (0, plain.clone()),
        (
            1,
            ShutdownOptions {
                save: SavePolicy::Always,
                ..plain.clone()
            },
        ),
        (
            2,
            ShutdownOptions {
                save: SavePolicy::Never,
                ..plain.clone()
            },
        ),
        (
            2 | 4 | 8,
            ShutdownOptions {
                save: SavePolicy::Never,
                is_immediate: true,
                is_forced: true,
                ..plain.clone()
            },
        ),
        (
            16 | 32,
            ShutdownOptions {
                is_safe: true,
                requests_failover: true,
                ..plain
            },
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(ShutdownOptions::from_options(options), expected, "{options}");
    }
}

#[test]
fn the_first_request_counts() {
    let request = ShutdownRequest::default();
    assert_eq!(request.commit(), None);
    assert!(request.try_complete(ShutdownOptions::from_options(4)));
    assert!(!request.try_complete(ShutdownOptions::default()));
    assert_eq!(request.commit(), Some(ShutdownOptions::from_options(4)));
    assert_eq!(request.commit(), None, "it is taken up once");
    assert!(
        !request.try_complete(ShutdownOptions::default()),
        "while one is under way no other can start"
    );
}

#[test]
fn a_shutdown_under_preparation_can_be_aborted() {
    let request = ShutdownRequest::default();
    assert!(!request.abort(), "nothing to call off");
    assert!(request.try_begin());
    assert!(!request.try_begin(), "it is under way");
    assert!(request.abort() && request.is_aborted());
    assert!(!request.abort(), "it is called off already");
    assert!(!request.try_complete(ShutdownOptions::default()), "it does not come");
    request.cancel_preparation();
    assert!(request.try_begin() && !request.is_aborted());
    assert!(request.try_complete(ShutdownOptions::default()));
    assert!(!request.abort(), "too late");
    assert!(request.commit().is_some());
    request.cancel_preparation();
    assert!(!request.try_begin(), "there is no way back");
}

#[test]
fn a_signal_is_pending_until_taken_or_aborted() {
    let request = ShutdownRequest::default();
    assert_eq!(request.take_signalled(), None);
    request.record_signal(ShutdownOptions::default());
    assert!(!request.is_in_progress(), "nothing has begun");
    assert!(request.abort());
    assert!(!request.abort());
    assert!(request.is_idle());
    request.record_signal(ShutdownOptions::default());
    assert!(!request.is_idle());
    assert_eq!(request.take_signalled(), Some(ShutdownOptions::default()));
    request.record_signal(ShutdownOptions::default());
    assert!(request.try_begin(), "a client's request goes before it");
    assert_eq!(request.take_signalled(), None);
}
