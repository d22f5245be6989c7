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
    assert_eq!(request.take_up(), None);
    assert!(request.put(Shutdown::from_options(4)));
    assert!(!request.put(Shutdown::default()));
    assert_eq!(request.take_up(), Some(Shutdown::from_options(4)));
    assert_eq!(request.take_up(), None, "it is taken up once");
    assert!(
        !request.put(Shutdown::default()),
        "while one is under way no other can start"
    );
}

#[test]
fn what_is_prepared_can_be_called_off() {
    let request = ShutdownRequest::default();
    assert!(!request.call_off(), "nothing to call off");
    assert!(request.begin());
    assert!(!request.begin(), "it is under way");
    assert!(request.call_off() && request.is_called_off());
    assert!(!request.call_off(), "it is called off already");
    assert!(!request.put(Shutdown::default()), "it does not come");
    request.give_up();
    assert!(request.begin() && !request.is_called_off());
    assert!(request.put(Shutdown::default()));
    assert!(!request.call_off(), "too late");
    assert!(request.take_up().is_some());
    request.give_up();
    assert!(!request.begin(), "there is no way back");
}

#[test]
fn a_signal_waits_until_it_is_taken_up_or_called_off() {
    let request = ShutdownRequest::default();
    assert_eq!(request.take_signalled(), None);
    request.note_signal(Shutdown::default());
    assert!(!request.is_wanted(), "nothing has begun");
    assert!(request.call_off());
    assert!(!request.call_off());
    assert!(request.is_idle());
    request.note_signal(Shutdown::default());
    assert!(!request.is_idle());
    assert_eq!(request.take_signalled(), Some(Shutdown::default()));
    request.note_signal(Shutdown::default());
    assert!(request.begin(), "a client's request goes before it");
    assert_eq!(request.take_signalled(), None);
}
