//! Tests of changes of the replication role.

use weft_base::RoleEpoch;
use weft_base::clock::unix_ms;

use super::{Endpoint, LinkState, Replication, ReplicationOffset, ReplicationState, zero_replication_id};

fn endpoint(port: u16) -> Endpoint {
    Endpoint {
        host: "127.0.0.1".into(),
        port,
    }
}

#[test]
fn a_server_that_stops_following_keeps_the_old_id_as_second_id() {
    let replication = Replication::default();
    assert!(replication.state_bits().is_empty());
    assert_eq!(
        replication.stop_following().map(|_| ()),
        None,
        "a primary has nobody to leave"
    );
    replication.start_following(endpoint(1), false);
    assert!(
        replication.state_bits().contains(ReplicationState::IS_REPLICA)
            && replication.state_bits().contains(ReplicationState::LINK_DOWN)
    );
    replication.state().history.id = "a".repeat(40);
    replication.set_offset(ReplicationOffset::new(100));
    let history = replication.stop_following().expect("it followed");
    assert_eq!((history.second_offset(), history.second_id), (101, "a".repeat(40)));
    assert_ne!(history.id, "a".repeat(40));
    assert_eq!(history.id.len(), zero_replication_id().len());
    assert!(replication.state_bits().is_empty());
    assert_eq!(replication.state().phase, LinkState::None);
}

#[test]
fn changes_on_behalf_of_an_old_role_epoch_have_no_effect() {
    let replication = Replication::default();
    replication.start_following(endpoint(1), false);
    let (primary, role_epoch) = replication.wait_for_primary();
    assert_eq!(primary, endpoint(1));
    replication.start_following(endpoint(2), false);
    assert!(
        replication
            .in_role_epoch(role_epoch, |state| state.phase = LinkState::Connected)
            .is_none()
    );
    assert_eq!(replication.state().phase, LinkState::Connect);
    assert_eq!(replication.wait_for_primary().0, endpoint(2));
}

#[test]
#[should_panic(expected = "work belongs to role epoch 2, and the current one is 1")]
fn no_work_is_done_for_a_role_epoch_to_come() {
    let replication = Replication::default();
    replication.start_following(endpoint(1), false);
    let _ = replication.in_role_epoch(RoleEpoch::new(2), |_| ());
}

#[test]
fn only_a_replica_may_resume_from_another_primary() {
    let replication = Replication::default();
    replication.start_following(endpoint(1), false);
    replication.state().resumable = true;
    replication.start_following(endpoint(2), false);
    assert!(replication.state().resumable);
    replication.stop_following();
    replication.start_following(endpoint(1), false);
    assert!(!replication.state().resumable);
}

#[test]
fn the_age_of_the_data_is_known_after_a_change_of_the_primary() {
    let replication = Replication::default();
    replication.start_following(endpoint(1), false);
    let now_ms = unix_ms();
    assert_eq!(replication.silence_ms(now_ms), u64::MAX, "no primary was heard");
    replication.state().phase = LinkState::Connected;
    replication.start_following(endpoint(2), false);
    // The clock of the replication state has seconds.
    assert!(replication.silence_ms(now_ms) < 2000);
    replication.start_following(endpoint(3), false);
    assert!(
        replication.silence_ms(now_ms) < 2000,
        "a primary that was never connected changes nothing"
    );
    replication.stop_following();
    replication.start_following(endpoint(1), false);
    assert_eq!(replication.silence_ms(now_ms), u64::MAX);
}
