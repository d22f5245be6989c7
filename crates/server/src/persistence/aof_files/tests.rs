//! Tests of the state of the append-only file.

use super::*;

#[test]
fn replaced_data_leaves_a_file_off_that_is_off() {
    for (before, after) in [
        (AofState::Off, AofState::Off),
        (AofState::WritingBase, AofState::WritingBase),
        (AofState::On, AofState::WritingBase),
    ] {
        let status = AofStatus::default();
        status.set_state(before);
        assert_eq!(status.mark_data_replaced(), before != AofState::Off, "{before:?}");
        assert_eq!(status.state(), after, "{before:?}");
        assert!(!status.has_base_of_present_data(), "{before:?}");
    }
}

/// A sync that was requested while the file was on may end after the file was switched off.
#[test]
fn a_failure_refuses_no_writes_while_the_file_is_off() {
    let status = AofStatus::default();
    assert!(status.set_failure(AofFault::Sync, Some("Input/output error".to_owned())));
    assert!(!status.refuses_writes());
    for state in [AofState::WritingBase, AofState::On] {
        status.set_state(state);
        assert!(status.refuses_writes(), "{state:?}");
    }
    assert!(status.clear_failures() && !status.refuses_writes());
}
