//! Tests of the preparation of a shutdown, on a cluster node none of whose threads runs.

use super::*;
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::cluster_node::topology::{change_state, fail_over_on_shutdown};
use crate::keyspace::lease_all_for_good;
use crate::persistence::save;
use crate::propagation::LogTarget;
use crate::replication::ReplicaChannel;
use weft_base::{ClientId, DbIndex, SlotIndex};

/// Logs a write that is in the backlog, and adds a replica that has not acknowledged it.
fn write_without_acknowledgement(server: &Server) {
    let mut log_writer = server.propagation.log_writer();
    log_writer.propagate_before(LogTarget::REPLICAS, DbIndex::FIRST, &[b"SET", b"key", b"value"]);
    log_writer.commit();
    let replicas = &server.replication.replicas;
    let mut backlog = replicas.backlog();
    backlog.open(ReplicationOffset::ZERO);
    backlog.append(b"write", 1 << 20);
    backlog.record_sequence(log_writer.last_sequence());
    drop(backlog);
    let replica = ReplicaInfo {
        id: ClientId::new(1),
        host: "127.0.0.1".to_owned(),
        port: 1,
        node: "a".repeat(40),
        progress: ReplicaSyncState::Online,
        channel: ReplicaChannel::Single,
        acknowledged_offset: ReplicationOffset::ZERO,
        fsynced_offset: None,
        last_heard_s: 0,
        is_leaving: false,
    };
    replicas.publish(&mut replicas.infos(), replica);
}

/// A replica that had more of the stream than the final dump could not continue with the server that loads the dump.
#[test]
fn acknowledgements_for_a_failover_are_requested_before_the_final_dump() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    change_state(&server, cluster, &mut seat, |state, _| {
        let all = (SlotIndex::from_index(0), SlotIndex::from_index(16383));
        state.change_slots(&[all], false).expect("they are free");
    });
    drop(seat);
    write_without_acknowledgement(&server);
    let is_requested = || server.replication.replicas.ack_requested.swap(false, Ordering::SeqCst);
    server.replication.is_shutting_down.store(true, Ordering::SeqCst);
    for requests_failover in [false, true] {
        let how = ShutdownOptions {
            is_immediate: true,
            requests_failover,
            ..ShutdownOptions::default()
        };
        assert!(request_acks_for_failover(&server, &how).is_ok());
        assert_eq!(is_requested(), requests_failover);
        assert!(server.replication.is_shutting_down.load(Ordering::SeqCst));
    }
    fail_over_on_shutdown(&server, Duration::ZERO);
    assert!(!is_requested(), "the dump would lack the request");
}

/// A failure may end the process while the final dump, or SAVE, waits for exclusive mode.
#[test]
fn data_with_a_part_of_a_transaction_is_not_saved() {
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    server.scripting.running.note_unfinished_unit();
    assert!(save::save(&server, &mut seat).is_err());
    assert!(save::save_in_foreground(&server, &mut seat).is_err());
}

/// Its slots stay leased: a load would wait for one of them in exclusive mode, and the workers, which must end, for it.
#[test]
fn no_file_is_loaded_over_data_with_a_part_of_a_transaction() {
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    server.scripting.running.note_unfinished_unit();
    lease_all_for_good(&mut seat.exclusive());
    let how = save::ReloadOptions {
        should_save: false,
        should_flush: false,
        replace: true,
    };
    let reloads = [
        save::reload(&server, &mut seat, how),
        crate::persistence::aof::reload(&server, &mut seat),
    ];
    for reloaded in reloads {
        assert!(matches!(reloaded, Err(save::ReloadError::ProcessEnds)), "{reloaded:?}");
    }
    assert!(
        server.scripting.running.try_begin_on_script_thread(),
        "scripts are not excluded"
    );
}

/// Replicas must have the writes whose replies may still be sent, also if other threads use all thread indexes.
#[test]
fn the_wait_for_running_writes_includes_the_wait_for_a_thread_index() {
    let server = crate::start::create_idle_server(Config::defaults());
    let seats: Vec<_> = std::iter::from_fn(|| server.keyspace.slots.join()).collect();
    assert!(server.lifecycle.shutdown.try_begin());
    assert!(
        await_running_writes(&server, Instant::now()).is_ok(),
        "the deadline has passed"
    );
    assert!(server.lifecycle.shutdown.abort());
    let later = Instant::now() + Duration::from_secs(120);
    assert!(matches!(
        await_running_writes(&server, later),
        Err(ShutdownRefusal::Aborted)
    ));
    drop(seats);
}
