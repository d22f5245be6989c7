//! Tests of changes of the replication role.

use std::time::{Duration, Instant};

use weft_base::clock::unix_ms;
use weft_base::{ClientId, RoleEpoch};

use super::{
    Endpoint, LinkState, ReplicaChannel, ReplicaInfo, ReplicaSyncState, Replicas, Replication, ReplicationOffset,
    ReplicationState, ResumePosition, zero_replication_id,
};

fn endpoint(port: u16) -> Endpoint {
    Endpoint {
        host: "127.0.0.1".into(),
        port,
    }
}

#[test]
fn the_stream_on_its_way_counts_until_what_was_freed_of_it_is_not_used_any_more() {
    const SIZE: u64 = 10_000;
    let (replicas, reader) = (Replicas::default(), ClientId::new(1));
    let end = ReplicationOffset::new(100_000);
    {
        let mut backlog = replicas.backlog();
        backlog.open(ReplicationOffset::ZERO);
        backlog.pin(reader, ReplicationOffset::ZERO);
        backlog.append(&[0; 100_000], SIZE as i64);
    }
    let full = replicas.backlog_bytes();
    assert!(full >= 100_000);
    assert_eq!(replicas.excess_stream_bytes(SIZE), full - SIZE);
    // It is sent: its bytes are copied for the socket, and its blocks are freed.
    replicas.raise_in_flight_bytes(100_000);
    replicas.backlog().pin(reader, end);
    assert!(replicas.backlog_bytes() < full);
    assert_eq!(replicas.excess_stream_bytes(SIZE), full - SIZE + 100_000);
    replicas.settle_stream_bytes(40_000);
    let left = replicas.backlog_bytes() - SIZE;
    assert_eq!(replicas.excess_stream_bytes(SIZE), left + 40_000);
    replicas.settle_stream_bytes(0);
    assert_eq!(replicas.excess_stream_bytes(SIZE), left);
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

/// Otherwise a promotion between the two would let a replica resume at an offset that only the new history has.
#[test]
fn the_history_cannot_change_before_the_offset_is_found_in_its_backlog() {
    let replication = Replication::default();
    replication.replicas.backlog().open(ReplicationOffset::ZERO);
    let resume = ResumePosition {
        id: replication.state().history.id.clone(),
        next_byte: ReplicationOffset::ZERO.next_byte(),
    };
    let check = || replication.check_partial_sync(&resume).is_ok();
    let begin = || replication.begin_partial_sync(&resume, ClientId::new(1)).is_ok();
    let both: [&(dyn Fn() -> bool + Sync); 2] = [&check, &begin];
    for may_resume in both {
        let backlog = replication.replicas.backlog();
        std::thread::scope(|scope| {
            let checking = scope.spawn(may_resume);
            let began = Instant::now();
            // The lock may be held for a moment only, so it is looked at many times.
            let mut times_in_a_row = 0;
            while times_in_a_row < 1000 {
                assert!(
                    began.elapsed() < Duration::from_secs(20),
                    "the history is locked while the backlog is awaited"
                );
                let is_locked = replication.state.try_lock().is_none();
                times_in_a_row = if is_locked { times_in_a_row + 1 } else { 0 };
                std::thread::yield_now();
            }
            drop(backlog);
            assert!(checking.join().expect("it ends"));
        });
    }
    assert_eq!(
        replication.replicas.backlog().reader_offset(ClientId::new(1)),
        Some(ReplicationOffset::ZERO)
    );
}

#[test]
fn a_replica_cannot_resume_beyond_the_end_of_the_second_history() {
    let replication = Replication::default();
    replication.replicas.backlog().open(ReplicationOffset::ZERO);
    replication.start_following(endpoint(1), false);
    let resume = ResumePosition {
        id: replication.state().history.id.clone(),
        next_byte: 11,
    };
    assert!(replication.check_partial_sync(&resume).is_err(), "not in the backlog");
    replication.stop_following();
    assert!(replication.replicas.backlog().append(&[0; 20], 1 << 20).is_some());
    assert!(replication.begin_partial_sync(&resume, ClientId::new(1)).is_err());
    assert_eq!(replication.replicas.backlog().reader_offset(ClientId::new(1)), None);
}

/// A node that has reconnected may still be listed under its earlier connection, which nobody has closed.
#[test]
fn an_earlier_connection_of_a_node_does_not_stand_for_the_node() {
    let replicas = Replicas::default();
    let online = |id: u64, node: &str, acknowledged: i64| ReplicaInfo {
        id: ClientId::new(id),
        host: String::new(),
        port: 0,
        node: node.to_owned(),
        progress: ReplicaSyncState::Online,
        channel: ReplicaChannel::Single,
        acknowledged_offset: ReplicationOffset::new(acknowledged),
        fsynced_offset: None,
        last_heard_s: 0,
        is_leaving: false,
    };
    for (id, node, acknowledged) in [(1, "a", 10), (2, "a", 20), (3, "b", 15), (4, "", 30)] {
        replicas.publish(&mut replicas.infos(), online(id, node, acknowledged));
    }
    let furthest = replicas.furthest_node().expect("two nodes are online");
    assert_eq!((furthest.id, furthest.node.as_str()), (ClientId::new(2), "a"));
    assert_eq!(
        replicas.acknowledged_offset_of(furthest.id),
        Some(ReplicationOffset::new(20))
    );
    replicas.infos().retain(|known| known.id != furthest.id);
    assert_eq!(replicas.acknowledged_offset_of(furthest.id), None);
    let next = replicas.furthest_node().expect("the other node is online");
    assert_eq!(next.node, "b");
}
