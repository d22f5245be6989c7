//! Tests output that is withheld because a replica may have taken over. No bus runs.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_base::clock::{monotonic_us, unix_ms};
use weft_base::{ClientId, DbIndex, ParkId, SlotIndex, ThreadIndex};
use weft_cluster::Cluster;
use weft_cluster::node::{Node, NodeFlags, NodeId};
use weft_reactor::Socket;

use super::*;
use crate::cluster_node::topology::change_state;
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::keyspace::Seat;
use crate::net::client::Client;
use crate::net::connection::{Connection, ConnectionState};
use crate::propagation::{LogTarget, LogWriter};
use crate::state::{Message, Server};

/// The time limit for each step.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the node a primary of all slots that knows another node, by a command. Its bus must not be silent for half a
/// second.
fn make_voter(server: &Arc<Server>, cluster: &Cluster, seat: &mut Seat) {
    change_state(server, cluster, seat, |state, _| {
        // The node has been running for long.
        state.update_health(1);
        state.settings.node_timeout_ms = 1;
        let other = Node::new(NodeId::random(), NodeFlags::PRIMARY, unix_ms());
        state.nodes.insert(other.id, other);
        let all = (SlotIndex::from_index(0), SlotIndex::from_index(16383));
        state.change_slots(&[all], false).expect("they are free");
    });
    assert!(cluster.view().is_up);
}

/// Adds a connection without a socket whose write was logged, and its reply.
fn connect_writer(server: &Server, worker: &mut Worker, log_writer: &mut LogWriter) -> (usize, LogSequence) {
    log_writer.propagate_before(LogTarget::REPLICAS, DbIndex::FIRST, &[b"SET", b"key", b"value"]);
    log_writer.commit();
    let sequence = log_writer.last_sequence();
    let id = server.clients.next_client_id();
    server.clients.directory.add(id, worker.id);
    let mut client = Client::new(id, unix_ms(), worker.id);
    client.record_write(sequence);
    let token = worker.clients.add(Box::new(Connection::new(client)));
    let connection = worker.clients.connection(token).expect("it is open");
    connection.output.bytes.extend_from_slice(b"+OK\r\n");
    (token, sequence)
}

fn wait_until_late(cluster: &Cluster, sequence: LogSequence) {
    let start = Instant::now();
    while cluster.fate_of_write(sequence) != WriteFate::Doubtful {
        assert!(start.elapsed() < PATIENCE, "the bus is late");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!cluster.view().is_up);
}

fn is_withheld(worker: &mut Worker, token: usize) -> bool {
    let connection = worker.clients.connection(token).expect("it is open");
    connection.is_output_withheld && !connection.output.is_empty()
}

/// Returns `true` if the worker was told to look at withheld output again.
fn is_told(server: &Server) -> bool {
    let mut mail = Vec::new();
    server.worker(ThreadIndex::FIRST).mailbox.drain(&mut mail, usize::MAX);
    mail.iter().any(|message| matches!(message, Message::LogAdvanced))
}

#[test]
fn replies_to_writes_are_withheld_while_the_bus_is_late() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut log_writer = server.propagation.log_writer();
    make_voter(&server, cluster, &mut seat);
    let (token, sequence) = connect_writer(&server, &mut worker, &mut log_writer);
    wait_until_late(cluster, sequence);
    worker.flush_output(token);
    worker.send_withheld();
    assert!(is_withheld(&mut worker, token));
    is_told(&server);

    // The bus goes on, and no replica has taken over.
    let start = Instant::now();
    while cluster.fate_of_write(sequence) != WriteFate::Kept {
        assert!(start.elapsed() < PATIENCE, "the node is up again");
        cluster.record_bus_turn(monotonic_us());
        change_state(&server, cluster, &mut seat, |_, _| {});
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_told(&server));

    // Another node has taken the slots over.
    wait_until_late(cluster, sequence);
    worker.flush_output(token);
    assert!(is_withheld(&mut worker, token));
    change_state(&server, cluster, &mut seat, |state, _| {
        state.delete_slots_of(state.myself);
    });
    assert!(is_told(&server));
    let (later, later_sequence) = connect_writer(&server, &mut worker, &mut log_writer);
    assert_eq!(cluster.fate_of_write(later_sequence), WriteFate::Kept);
    worker.send_withheld();
    assert!(worker.clients.connection(token).is_none(), "there is no reply");
    assert!(worker.clients.connection(later).is_some());
    drop(seat);
}

/// Connects a client that waits for the reply of a background thread. Returns the token of its connection, its side of
/// it, and the names under which it waits.
fn connect_parked(server: &Server, worker: &mut Worker) -> (usize, UnixStream, ClientId, ParkId) {
    let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
    let id = server.clients.next_client_id();
    server.clients.directory.add(id, worker.id);
    let park_id = server.clients.next_park_id();
    let mut connection = Connection::new(Client::new(id, unix_ms(), worker.id));
    connection.state = ConnectionState::Parked(park_id);
    let token = worker.clients.add(Box::new(connection));
    worker.reactor.register(token, Socket::Unix(socket)).expect("registers");
    (token, peer, id, park_id)
}

/// The work of a reader may end long after a write of another client that is doubtful.
#[test]
fn replies_of_background_threads_are_withheld_if_their_work_has_written() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut log_writer = server.propagation.log_writer();
    make_voter(&server, cluster, &mut seat);
    let (_, sequence) = connect_writer(&server, &mut worker, &mut log_writer);
    wait_until_late(cluster, sequence);
    for (first_write, is_kept_back) in [(sequence, true), (LogSequence::NONE, false)] {
        let (token, mut peer, client, park_id) = connect_parked(&server, &mut worker);
        worker.handle_message(Message::Reply {
            client,
            park_id,
            bytes: b"+OK\r\n".to_vec(),
            first_write,
            log_sequence: sequence,
        });
        let connection = worker.clients.connection(token).expect("it is open");
        assert_eq!(connection.is_output_withheld, is_kept_back);
        assert_eq!(connection.client.last_write_sequence, sequence);
        peer.set_nonblocking(true).expect("sets the mode");
        let mut reply = [0; 5];
        assert_eq!(peer.read(&mut reply).is_err(), is_kept_back);
        assert_eq!(&reply == b"+OK\r\n", !is_kept_back);
    }
    drop(seat);
}
