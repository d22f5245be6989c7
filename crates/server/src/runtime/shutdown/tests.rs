//! Options of a shutdown, and its requests.

use super::{Save, Shutdown, ShutdownRequest};

#[test]
fn options_of_the_signals_become_a_shutdown() {
    let plain = Shutdown::default();
    let cases = [
        (0, plain.clone()),
        (
            1,
            Shutdown {
                save: Save::Always,
                ..plain.clone()
            },
        ),
        (
            2,
            Shutdown {
                save: Save::Never,
                ..plain.clone()
            },
        ),
        (
            2 | 4 | 8,
            Shutdown {
                save: Save::Never,
                now: true,
                force: true,
                ..plain.clone()
            },
        ),
        (
            16 | 32,
            Shutdown {
                safe: true,
                failover: true,
                ..plain
            },
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(Shutdown::from_options(options), expected, "{options}");
    }
}

#[test]
fn the_first_request_counts() {
    let request = ShutdownRequest::default();
    assert_eq!(request.commit(), None);
    assert!(request.try_complete(Shutdown::from_options(4)));
    assert!(!request.try_complete(Shutdown::default()));
    assert_eq!(request.commit(), Some(Shutdown::from_options(4)));
    assert_eq!(request.commit(), None, "it is taken up once");
    assert!(
        !request.try_complete(Shutdown::default()),
        "while one is under way no other can start"
    );
}

#[test]
fn what_is_prepared_can_be_called_off() {
    let request = ShutdownRequest::default();
    assert!(!request.abort(), "nothing to call off");
    assert!(request.try_begin());
    assert!(!request.try_begin(), "it is under way");
    assert!(request.abort() && request.is_aborted());
    assert!(!request.abort(), "it is called off already");
    assert!(!request.try_complete(Shutdown::default()), "it does not come");
    request.cancel_preparation();
    assert!(request.try_begin() && !request.is_aborted());
    assert!(request.try_complete(Shutdown::default()));
    assert!(!request.abort(), "too late");
    assert!(request.commit().is_some());
    request.cancel_preparation();
    assert!(!request.try_begin(), "there is no way back");
}

#[test]
fn a_signal_waits_until_it_is_taken_up_or_called_off() {
    let request = ShutdownRequest::default();
    assert_eq!(request.take_signalled(), None);
    request.note_signal(Shutdown::default());
    assert!(!request.is_wanted(), "nothing has begun");
    assert!(request.abort());
    assert!(!request.abort());
    assert!(request.is_idle());
    request.note_signal(Shutdown::default());
    assert!(!request.is_idle());
    assert_eq!(request.take_signalled(), Some(Shutdown::default()));
    request.note_signal(Shutdown::default());
    assert!(request.try_begin(), "a client's request goes before it");
    assert_eq!(request.take_signalled(), None);
}
