//! Tests of changes of the replication role.

use super::{Endpoint, Phase, Replication, ReplicationState, no_id};

fn endpoint(port: u16) -> Endpoint {
    Endpoint {
        host: "127.0.0.1".into(),
        port,
    }
}

#[test]
fn who_stops_following_keeps_the_old_name_up_to_where_it_was() {
    let replication = Replication::default();
    assert!(replication.standing().is_plain());
    assert_eq!(
        replication.unfollow().map(|_| ()),
        None,
        "a primary has nobody to leave"
    );
    replication.follow(endpoint(1), false);
    assert!(
        replication.standing().has(ReplicationState::FOLLOWS) && replication.standing().has(ReplicationState::CUT_OFF)
    );
    replication.state().history.id = "a".repeat(40);
    replication.set_offset(100);
    let history = replication.unfollow().expect("it followed");
    assert_eq!((history.second_id, history.second_offset), ("a".repeat(40), 101));
    assert_ne!(history.id, "a".repeat(40));
    assert_eq!(history.id.len(), no_id().len());
    assert!(replication.standing().is_plain());
    assert_eq!(replication.state().phase, Phase::None);
}

#[test]
fn what_is_done_for_an_old_term_changes_nothing() {
    let replication = Replication::default();
    replication.follow(endpoint(1), false);
    let (primary, term) = replication.wait_for_primary();
    assert_eq!(primary, endpoint(1));
    replication.follow(endpoint(2), false);
    assert!(
        replication
            .in_term(term, |state| state.phase = Phase::Connected)
            .is_none()
    );
    assert_eq!(replication.state().phase, Phase::Connect);
    assert_eq!(replication.wait_for_primary().0, endpoint(2));
}

#[test]
fn another_primary_may_know_the_history_of_a_replica_but_not_that_of_a_primary() {
    let replication = Replication::default();
    replication.follow(endpoint(1), false);
    replication.state().resumable = true;
    replication.follow(endpoint(2), false);
    assert!(replication.state().resumable);
    replication.unfollow();
    replication.follow(endpoint(1), false);
    assert!(!replication.state().resumable);
}
