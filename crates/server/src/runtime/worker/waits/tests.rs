//! Tests the ends of waits.

use std::io::Read;
use std::os::unix::net::UnixStream;

use weft_base::{DbIndex, LogSequence};
use weft_cluster::view::ClusterView;
use weft_reactor::Socket;
use weft_resp::Protocol;
use weft_values::list::ListEnd;

use super::super::demotion::DEMOTED_REPLY;
use super::*;
use crate::clients_waiting::blocking::{BlockingOperation, WaitKey, WaiterParameters, WaiterPermission};
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::keyspace::ready_keys::ReadyKey;
use crate::net::client::Client;
use crate::net::connection::ConnectionState;
use crate::state::PauseReason;

/// The slot of the key that clients wait for.
const SLOT: SlotIndex = SlotIndex::from_index(3);

/// Starts a node of a cluster that is up. The node owns the slot.
fn start_owner(file: &NodesConf) -> Arc<Server> {
    let server = start_node(file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut state = cluster.lock(&server.config);
    let myself = state.myself;
    assert!(state.add_slot(myself, SLOT));
    state.is_up = true;
    let view = ClusterView::from_state(&state);
    drop(state);
    cluster.publish_view(view);
    server
}

/// Connects a client of a worker. Returns the token of its connection, its side of it, and a wait for a list.
fn connect(server: &Server, worker: &mut Worker) -> (usize, UnixStream, ClientWait) {
    let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
    let id = server.clients.next_client_id();
    server.clients.directory.add(id, worker.id);
    let mut connection = Connection::new(Client::new(id, worker.thread.now_ms, worker.id));
    let park_id = server.clients.next_park_id();
    connection.state = ConnectionState::Parked(park_id);
    let key = WaitKey {
        hash: 1,
        slot: SLOT,
        name: (*b"list").into(),
    };
    let waiter = Arc::new(Waiter::new(WaiterParameters {
        client: id,
        worker: worker.id,
        park_id,
        db: DbIndex::FIRST,
        protocol: Protocol::Resp2,
        keys: [key].into(),
        operation: BlockingOperation::ListPop(ListEnd::Head),
        deadline_ms: None,
        demotions: Some(server.replication.demotions()),
        tracks_reads: false,
        is_module_call: false,
        permission: WaiterPermission {
            account: connection.client.login.account().clone(),
            acl_version: server.acl.version(),
            command: 0,
            first_argument: Box::default(),
        },
    }));
    let token = worker.clients.add(Box::new(connection));
    worker.reactor.register(token, Socket::Unix(socket)).expect("registers");
    let wait = ClientWait::Keys(Box::new(BlockedCommand {
        waiter,
        command: 0,
        nanoseconds: 0,
        request_bytes: 0,
        logged_command: None,
        slot: None,
    }));
    (token, peer, wait)
}

/// No thread serves the wait after the demotion, and the slots are this node's again when the worker reads its mail.
#[test]
fn a_wait_before_a_demotion_does_not_outlast_the_next_promotion() {
    for begins_in_time in [true, false] {
        let file = NodesConf::create();
        let server = start_owner(&file);
        let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
        let (token, mut peer, wait) = connect(&server, &mut worker);
        if begins_in_time {
            worker.begin_wait(token, wait);
            server.replication.record_demotion();
            worker.handle_message(Message::Demoted);
        } else {
            // The connection was on its way to the worker when the message came.
            server.replication.record_demotion();
            worker.begin_wait(token, wait);
        }
        assert_eq!(worker.waits.len(), 0, "the wait has ended");
        let mut received = Vec::new();
        peer.read_to_end(&mut received).expect("the connection is closed");
        assert_eq!(received, DEMOTED_REPLY);
        // A later wait is that of a client of the primary.
        let (token, _peer, wait) = connect(&server, &mut worker);
        worker.begin_wait(token, wait);
        worker.handle_message(Message::Demoted);
        assert_eq!(worker.waits.len(), 1, "the wait goes on");
    }
}

#[test]
fn a_pause_does_not_withhold_the_reply_to_a_command_that_made_a_key_ready() {
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let (_, mut peer, wait) = connect(&server, &mut worker);
    let ClientWait::Keys(blocked) = wait else {
        unreachable!("the client waits for keys");
    };
    let parked = ParkedClient {
        worker: worker.id,
        client: blocked.waiter.client,
        park_id: blocked.waiter.park_id,
    };
    let mut output = Output::new();
    output.bytes.extend_from_slice(b":1\r\n");
    let key = ReadyKey::new(DbIndex::FIRST, SLOT, 1, b"list");
    server.pause_clients(PauseReason::Client, unix_ms(), u64::MAX, true);
    let reply = WithheldReply { parked, output };
    worker.withhold_reply(UnservedKeys::new([key].into()), Some(reply));
    worker.retry_unserved();
    let mut reply = [0; 4];
    peer.set_read_timeout(Some(Duration::from_secs(10)))
        .expect("sets the time");
    peer.read_exact(&mut reply).expect("the reply is sent");
    assert_eq!(&reply, b":1\r\n");
    assert!(worker.waits.retry_pause().is_some(), "the key is still to be served");
    server.unpause_clients(PauseReason::Client);
    worker.retry_unserved();
    assert!(worker.waits.retry_pause().is_none());
}

#[test]
fn a_wait_without_a_timeout_has_no_end() {
    let wait_for_log = |deadline_ms| ClientWait::Log {
        park_id: ParkId::NONE,
        wait: LogWait {
            sequence: LogSequence::NONE,
            needs_replicas: false,
            deadline_ms,
        },
    };
    let wait_for_time = |at_ms| ClientWait::Time {
        at_ms,
        park_id: ParkId::NONE,
        reply: Vec::new(),
    };
    assert_eq!(wait_for_log(u64::MAX).end_ms(), None);
    assert_eq!(wait_for_log(1000).end_ms(), Some(1000));
    assert_eq!(wait_for_time(u64::MAX).end_ms(), None);
    assert_eq!(wait_for_time(1000).end_ms(), Some(1000));
}
