//! Tests CLUSTER SETSLOT on a node none of whose threads runs.

use super::*;
use crate::cluster_node::topology::change_state;
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::keyspace::effects::Hooks;
use weft_base::{ClientId, ParkId};
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
    let propagated = topology::propagate_and_wait(server, seat, &request.arguments(), patience, None);
    request.apply_and_reply(server, seat, propagated.expect("no script runs"), exclusion)
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
        let running = &server.scripting.running;
        assert!(running.try_begin_on_script_thread());
        let run = Arc::new(ScriptRun::new(RunParameters {
            overdue_after: Some(Duration::ZERO),
            ..RunParameters::default()
        }));
        running.list(&run);
        running.update_run(&run, true);
        let propagated = topology::propagate_and_wait(&server, &mut seat, &request.arguments(), patience, None);
        match propagated {
            Ok(propagated) => {
                assert!(!is_logged);
                let (reply, _) = request.apply_and_reply(&server, &mut seat, propagated, exclusion);
                assert!(reply.starts_with(b"-BUSY "), "{}", String::from_utf8_lossy(&reply));
            }
            Err(overdue) => assert!(is_logged && Arc::ptr_eq(&overdue, &run)),
        }
        assert_eq!(server.propagation.last_sequence(), sequence, "nothing was propagated");
        running.end_run(&run, true);
        running.end_on_script_thread();
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
    let (error, of_error) = request().apply_and_reply(&server, &mut seat, unknown, exclusion);
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
