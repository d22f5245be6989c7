//! Tests CLUSTER SETSLOT on a node none of whose threads runs.

use super::*;
use crate::cluster_node::topology::change_state;
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::keyspace::effects::Hooks;
use crate::replication::{ReplicaChannel, ReplicaInfo, ReplicaSyncState};
use weft_base::{ClientId, ParkId, ReplicationOffset};
use weft_scripting::{RunParameters, ScriptRun};

const SLOT: usize = 5;

fn request() -> SetSlotRequest {
    SetSlotRequest {
        slot: SlotIndex::from_index(SLOT),
        change: SlotChange::Stable,
        arguments: ["CLUSTER", "SETSLOT", "5", "STABLE"]
            .map(|word| word.as_bytes().to_vec())
            .to_vec(),
        timeout: Ok(Duration::ZERO),
    }
}

/// Makes the change. Returns the reply, and the position in the log on which it depends.
fn make_change(server: &Arc<Server>, seat: &mut Seat) -> (Vec<u8>, LogSequence) {
    let request = request();
    let CheckedSetSlot { patience, exclusion } = request.check_request(server, seat).expect("it may be made");
    let awaited = topology::propagate(server, seat, &request.arguments(), patience, None);
    let propagated = awaited.expect("no script runs").poll(server);
    let propagated = propagated.expect("no replica is waited for");
    let reply = request.try_apply(server, seat, propagated);
    drop(exclusion);
    reply.expect("no script runs")
}

/// Begins a script that is overdue.
fn begin_overdue_script(server: &Server) -> Arc<ScriptRun> {
    let running = &server.scripting.running;
    assert!(running.try_begin_on_script_thread());
    let run = Arc::new(ScriptRun::new(RunParameters {
        overdue_after: Some(Duration::ZERO),
        ..RunParameters::default()
    }));
    running.list(&run);
    running.update_run(&run, true);
    run
}

fn end_script(server: &Server, run: &Arc<ScriptRun>) {
    server.scripting.running.end_run(run, true);
    server.scripting.running.end_on_script_thread();
}

/// A script becomes overdue after the check. The change would have to wait for its end.
#[test]
fn a_change_that_no_replica_knows_does_not_wait_for_an_overdue_script() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let request = request();
    for is_logged in [false, true] {
        server.keyspace.hooks.set(Hooks::LOG_REPLICAS, is_logged);
        let CheckedSetSlot { patience, exclusion } = request.check_request(&server, &mut seat).expect("it may be made");
        let sequence = server.propagation.last_sequence();
        let run = begin_overdue_script(&server);
        let awaited = topology::propagate(&server, &mut seat, &request.arguments(), patience, None);
        match awaited {
            Ok(mut awaited) => {
                assert!(!is_logged);
                let propagated = awaited.poll(&server).expect("no replica is waited for");
                let reply = request.try_apply(&server, &mut seat, propagated);
                let (reply, _) = reply.expect("no replica knows of the change");
                assert!(reply.starts_with(b"-BUSY "), "{}", String::from_utf8_lossy(&reply));
            }
            Err(overdue) => assert!(is_logged && Arc::ptr_eq(&overdue, &run)),
        }
        assert_eq!(server.propagation.last_sequence(), sequence, "nothing was propagated");
        end_script(&server, &run);
        drop(exclusion);
    }
    drop(seat);
}

/// Replicas have executed the change, so it is made, but not before the end of the script, which may never come.
#[test]
fn an_acknowledged_change_leaves_the_thread_to_other_work_while_a_script_is_overdue() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let slot = SlotIndex::from_index(SLOT);
    change_state(&server, cluster, &mut seat, |state, _| {
        state.change_slots(&[(slot, slot)], false).expect("it is free");
    });
    server.keyspace.hooks.set(Hooks::LOG_REPLICAS, true);
    let request = request();
    let CheckedSetSlot { patience, exclusion } = request.check_request(&server, &mut seat).expect("it may be made");
    let awaited = topology::propagate(&server, &mut seat, &request.arguments(), patience, None);
    let propagated = awaited.expect("no script runs").poll(&server);
    let propagated = propagated.expect("no replica is waited for");
    assert!(propagated.is_acknowledged && !propagated.log_sequence.is_none());
    let run = begin_overdue_script(&server);
    let BackgroundStep::Continue(rest) = request.apply_as_step(&server, &mut seat, propagated, exclusion) else {
        panic!("it waits for the script");
    };
    assert!(server.slot_migrations.lock().is_start_excluded());
    end_script(&server, &run);
    let BackgroundStep::Reply { bytes, .. } = rest(&server, &mut seat) else {
        panic!("no script runs");
    };
    assert_eq!(bytes, b"+OK\r\n");
    drop(seat);
}

/// In a transaction, the client of a change with TIMEOUT 0 waits for as long as it takes.
#[test]
fn a_change_that_waits_for_a_replica_leaves_the_thread_to_other_work() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let mut seat = server.keyspace.slots.join().expect("a seat");
    server.keyspace.hooks.set(Hooks::LOG_REPLICAS, true);
    let replicas = &server.replication.replicas;
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
    let request = SetSlotRequest {
        timeout: Ok(NO_ACK_TIMEOUT),
        ..request()
    };
    let mut step = request.propagate_and_apply(&server, &mut seat, ClientId::new(2));
    for _ in 0..3 {
        let BackgroundStep::Continue(rest) = step else {
            panic!("the replica has not acknowledged the change");
        };
        step = rest(&server, &mut seat);
    }
    drop(seat);
}

/// A replica that is away may take over without the change.
#[test]
fn the_reply_to_a_change_of_a_slot_depends_on_its_position_in_the_log() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let slot = SlotIndex::from_index(SLOT);
    change_state(&server, cluster, &mut seat, |state, _| {
        state.change_slots(&[(slot, slot)], false).expect("it is free");
    });
    let unlogged = make_change(&server, &mut seat);
    assert_eq!(unlogged, (b"+OK\r\n".to_vec(), LogSequence::NONE));
    server.keyspace.hooks.set(Hooks::LOG_REPLICAS, true);
    let (reply, sequence) = make_change(&server, &mut seat);
    assert_eq!(reply, b"+OK\r\n");
    assert!(!sequence.is_none() && sequence == server.propagation.last_sequence());
    let unknown = PropagatedCommand {
        is_acknowledged: false,
        log_sequence: sequence,
    };
    let exclusion = exclude_migrations(&server).expect("no slot moves");
    let reply_to_unknown = request().try_apply(&server, &mut seat, unknown);
    drop(exclusion);
    let (error, of_error) = reply_to_unknown.expect("nothing is applied");
    assert!(error.starts_with(b"-NOREPLICAS ") && of_error.is_none());

    // The worker withholds the reply while a write at that position is doubtful.
    let requester = ParkedClient {
        worker: ThreadIndex::FIRST,
        client: ClientId::new(1),
        park_id: ParkId::new(1),
    };
    send_delayed_reply(&server, &seat, requester, 0, (reply, sequence));
    let mut mail = Vec::new();
    server.worker(ThreadIndex::FIRST).mailbox.drain(&mut mail, usize::MAX);
    let is_reply =
        |message: &Message| matches!(message, Message::Reply { first_write, .. } if *first_write == sequence);
    assert!(mail.iter().any(is_reply));
    drop(seat);
}
