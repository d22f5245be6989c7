//! Tests output that is withheld because a replica may have taken over, or because its writes are not on disk. Neither
//! a bus nor the log thread runs.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use weft_base::clock::{monotonic_us, unix_ms};
use weft_base::{ClientId, DbIndex, ParkId, SlotIndex, ThreadIndex};
use weft_cluster::Cluster;
use weft_cluster::node::{Node, NodeFlags, NodeId};
use weft_config::Config;
use weft_os::atomic::Ordering;
use weft_reactor::Socket;

use super::*;
use crate::cluster_node::topology::change_state;
use crate::cluster_node::topology::tests::{NodesConf, start_node};
use crate::commands::context::NextStep;
use crate::commands::server::replication::with_sync_check;
use crate::keyspace::Seat;
use crate::net::client::Client;
use crate::net::connection::{Connection, ConnectionState};
use crate::propagation::{LogMilestone, LogTarget, LogWriter};
use crate::replication::Endpoint;
use crate::runtime::worker::parking::tests::always_permitted;
use crate::start::{create_idle_server, create_idle_server_with_workers};
use crate::state::{ConnectionReceiver, Message, PermissionCheck, PermissionLoss, Server, SyncRequest};

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

/// A client with a logged write whose reply is not sent yet.
struct DepartingClient {
    token: usize,
    id: ClientId,
    /// The position of its write in the log.
    sequence: LogSequence,
    /// Its side of the connection.
    peer: UnixStream,
}

impl DepartingClient {
    fn connect(server: &Server, worker: &mut Worker, log_writer: &mut LogWriter) -> DepartingClient {
        let (token, sequence) = connect_writer(server, worker, log_writer);
        let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
        peer.set_nonblocking(true).expect("sets the mode");
        worker.reactor.register(token, Socket::Unix(socket)).expect("registers");
        server.clients.connections.fetch_add(1, Ordering::Relaxed);
        server.worker(worker.id).connections.fetch_add(1, Ordering::Relaxed);
        let connection = worker.clients.connection(token).expect("it is open");
        DepartingClient {
            token,
            id: connection.client.id,
            sequence,
            peer,
        }
    }

    /// Asserts that the worker still has the connection, with its reply.
    fn assert_present(&mut self, server: &Server, worker: &mut Worker) {
        assert!(is_withheld(worker, self.token));
        assert!(worker.departures.contains_key(&self.id));
        assert!(!server.clients.linked.lock().contains_key(&self.id));
        assert_eq!(server.clients.directory.worker_of(self.id), Some(worker.id));
        assert!(self.peer.read(&mut [0]).is_err(), "nothing was sent");
    }

    /// Asserts that the worker has sent the reply and given the connection away.
    fn assert_departed(&mut self, server: &Server, worker: &mut Worker) {
        assert!(worker.clients.connection(self.token).is_none() && worker.departures.is_empty());
        assert!(server.clients.directory.worker_of(self.id).is_none());
        self.assert_received("+OK\r\n");
    }

    /// Asserts that the worker has kept the connection, and sent the reply and then an error.
    fn assert_refused(&mut self, server: &Server, worker: &mut Worker, error: &str) {
        let connection = worker.clients.connection(self.token).expect("it is open");
        assert_eq!(connection.state, ConnectionState::Ready);
        assert!(worker.departures.is_empty() && !server.clients.linked.lock().contains_key(&self.id));
        self.assert_received(&["+OK\r\n", error].concat());
    }

    fn assert_received(&mut self, expected: &str) {
        let mut received = vec![0; expected.len()];
        self.peer.read_exact(&mut received).expect("it was sent");
        assert_eq!(String::from_utf8_lossy(&received), expected);
    }
}

/// Lets a worker send the replies to all writes up to this one, which are on disk.
fn sync_log(server: &Server, worker: &mut Worker, sequence: LogSequence) {
    for milestone in [LogMilestone::Written, LogMilestone::Synced] {
        server.propagation.advance_milestone(milestone, sequence);
    }
    worker.handle_message(Message::LogAdvanced);
}

/// Returns the next step of PSYNC.
fn sync() -> NextStep {
    sync_with(always_permitted())
}

/// Returns the next step of PSYNC with this check.
fn sync_with(check: PermissionCheck) -> NextStep {
    let request = SyncRequest {
        resume: None,
        is_psync: true,
        has_invalid_offset: false,
        command: 0,
        disconnection_count: 0,
    };
    NextStep::Sync(Box::new((request, check)))
}

/// Returns the next step of a command whose connection goes to the receiver.
fn take_connection() -> (NextStep, Receiver<Box<Connection>>) {
    let (sender, taken) = channel();
    let take: ConnectionReceiver = Box::new(move |connection| assert!(sender.send(connection).is_ok()));
    (NextStep::TakeConnection(Box::new((always_permitted(), take))), taken)
}

/// No other thread withholds a reply.
#[test]
fn connections_with_doubtful_replies_leave_their_worker_only_once_these_are_sent() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut log_writer = server.propagation.log_writer();
    make_voter(&server, cluster, &mut seat);
    let mut replica = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    let mut other = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    wait_until_late(cluster, other.sequence);
    let (take, taken) = take_connection();
    worker.start_next_step(replica.token, sync());
    worker.start_next_step(other.token, take);
    for _ in 0..2 {
        replica.assert_present(&server, &mut worker);
        other.assert_present(&server, &mut worker);
        worker.handle_message(Message::LogAdvanced);
    }
    is_told(&server);

    // The bus goes on, and no other node has taken over.
    let start = Instant::now();
    while worker.clients.len() > 0 {
        assert!(start.elapsed() < PATIENCE, "the node is up again");
        cluster.record_bus_turn(monotonic_us());
        change_state(&server, cluster, &mut seat, |_, _| {});
        if is_told(&server) {
            worker.handle_message(Message::LogAdvanced);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    replica.assert_departed(&server, &mut worker);
    assert!(server.clients.linked.lock().contains_key(&replica.id));
    other.assert_departed(&server, &mut worker);
    let connection = taken.try_recv().expect("it was taken");
    assert!(connection.output.is_empty() && connection.client.unacknowledged_write.is_none());
    drop(seat);
}

/// The disk is full, and a replica may have taken over. That none has does not make the write safe.
#[test]
fn a_doubtful_reply_whose_write_is_not_on_disk_waits_for_the_disk_too() {
    let file = NodesConf::create();
    let server = start_node(&file);
    let cluster = server.cluster.as_ref().expect("is a node");
    server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut log_writer = server.propagation.log_writer();
    make_voter(&server, cluster, &mut seat);
    let mut client = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    wait_until_late(cluster, client.sequence);
    worker.flush_output(client.token);
    assert!(is_withheld(&mut worker, client.token));
    let mut run_bus = || {
        cluster.record_bus_turn(monotonic_us());
        change_state(&server, cluster, &mut seat, |_, _| {});
        std::thread::sleep(Duration::from_millis(10));
    };
    let start = Instant::now();
    while cluster.fate_of_write(client.sequence) != WriteFate::Kept {
        assert!(start.elapsed() < PATIENCE, "the node is up again");
        run_bus();
    }
    worker.handle_message(Message::LogAdvanced);
    assert!(is_withheld(&mut worker, client.token), "the write is not on disk");
    assert!(client.peer.read(&mut [0]).is_err(), "nothing was sent");
    for milestone in [LogMilestone::Written, LogMilestone::Synced] {
        server.propagation.advance_milestone(milestone, client.sequence);
    }
    while is_withheld(&mut worker, client.token) {
        assert!(start.elapsed() < PATIENCE, "the write is on disk");
        run_bus();
        worker.handle_message(Message::LogAdvanced);
    }
    client.assert_received("+OK\r\n");
    drop(seat);
}

/// Starts two workers that do not run, the second of which is inactive. Replies wait until their writes are on disk.
fn start_two_workers() -> (Arc<Server>, Worker, Worker) {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    server.lifecycle.active_workers.store(1, Ordering::Relaxed);
    server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
    let active = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let inactive = Worker::new(server.clone(), ThreadIndex::new(1)).expect("a worker");
    (server, active, inactive)
}

/// Lets an inactive worker give its connections away, and the active one take them.
fn clear(server: &Server, inactive: &mut Worker, active: &mut Worker) {
    inactive.handle_message(Message::MoveConnections {
        target_workers: 0..1,
        kept_connections: 0,
    });
    let mut mail = Vec::new();
    server.worker(active.id).mailbox.drain(&mut mail, usize::MAX);
    for message in mail {
        active.handle_message(message);
    }
}

#[test]
fn a_connection_whose_reply_waits_for_the_disk_moves_once_the_reply_is_sent() {
    let (server, mut active, mut inactive) = start_two_workers();
    let mut log_writer = server.propagation.log_writer();
    let mut client = DepartingClient::connect(&server, &mut inactive, &mut log_writer);
    inactive.flush_output(client.token);
    clear(&server, &mut inactive, &mut active);
    assert!(is_withheld(&mut inactive, client.token), "the connection has stayed");
    assert!(client.peer.read(&mut [0]).is_err(), "nothing was sent");
    sync_log(&server, &mut inactive, client.sequence);
    client.assert_received("+OK\r\n");
    clear(&server, &mut inactive, &mut active);
    assert_eq!((inactive.clients.len(), active.clients.len()), (0, 1));
    assert_eq!(server.clients.directory.worker_of(client.id), Some(active.id));
    assert!(client.peer.read(&mut [0]).is_err(), "the reply is sent once");
}

/// The client has turned replies off, and turns them on again after the move.
#[test]
fn a_reply_after_a_move_waits_for_the_writes_before_it() {
    let (server, mut active, mut inactive) = start_two_workers();
    let mut log_writer = server.propagation.log_writer();
    let mut client = DepartingClient::connect(&server, &mut inactive, &mut log_writer);
    let connection = inactive.clients.connection(client.token).expect("it is open");
    connection.output.clear();
    clear(&server, &mut inactive, &mut active);
    let token = active.clients.by_id.get(&client.id).copied().expect("it has moved");
    let connection = active.clients.connection(token).expect("it is open");
    assert_eq!(connection.client.unacknowledged_write, client.sequence);
    connection.output.bytes.extend_from_slice(b"+OK\r\n");
    active.flush_output(token);
    assert!(is_withheld(&mut active, token));
    assert!(client.peer.read(&mut [0]).is_err(), "nothing was sent");
    sync_log(&server, &mut active, client.sequence);
    client.assert_received("+OK\r\n");
}

#[test]
fn a_connection_leaves_its_worker_only_once_its_writes_are_on_disk() {
    let server = create_idle_server(Config::defaults());
    server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut log_writer = server.propagation.log_writer();
    let mut replica = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    worker.start_next_step(replica.token, sync());
    // The peer sends nothing more, and waits for the reply.
    worker.handle_half_close(replica.token);
    for milestone in [LogMilestone::Written, LogMilestone::Synced] {
        replica.assert_present(&server, &mut worker);
        server.propagation.advance_milestone(milestone, replica.sequence);
        server.wake_log_waiters();
        assert!(is_told(&server));
        worker.handle_message(Message::LogAdvanced);
    }
    replica.assert_departed(&server, &mut worker);
}

#[test]
fn a_write_without_a_reply_keeps_its_connection_as_well() {
    let server = create_idle_server(Config::defaults());
    server.propagation.set_reply_milestone(Some(LogMilestone::Written));
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut log_writer = server.propagation.log_writer();
    let client = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    let connection = worker.clients.connection(client.token).expect("it is open");
    connection.output.clear();
    let (take, taken) = take_connection();
    worker.start_next_step(client.token, take);
    worker.finish_connection(client.token);
    assert!(taken.try_recv().is_err());
    server
        .propagation
        .advance_milestone(LogMilestone::Written, client.sequence);
    worker.handle_message(Message::LogAdvanced);
    assert!(taken.try_recv().is_ok());
}

#[test]
fn a_client_that_is_killed_before_its_connection_leaves_is_closed() {
    let server = create_idle_server(Config::defaults());
    server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut log_writer = server.propagation.log_writer();
    let mut client = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    let (take, taken) = take_connection();
    worker.start_next_step(client.token, take);
    client.assert_present(&server, &mut worker);
    let connection = worker.clients.connection(client.token).expect("it is open");
    connection.client.kill();
    worker.close_killed();
    assert!(worker.clients.connection(client.token).is_none() && worker.departures.is_empty());
    let is_dropped = matches!(taken.try_recv(), Err(TryRecvError::Disconnected));
    assert!(is_dropped, "what the step holds ends with the client");
    assert_eq!(client.peer.read(&mut [0]).expect("the connection has ended"), 0);
}

#[test]
fn a_sync_that_has_waited_is_refused_if_this_server_cannot_serve_replicas_any_more() {
    let fail_over: fn(&Server) = |server| server.replication.is_failing_over.store(true, Ordering::Release);
    let follow: fn(&Server) = |server| {
        let primary = Endpoint {
            host: "127.0.0.1".into(),
            port: 1,
        };
        server.replication.start_following(primary, false);
    };
    for (change, error) in [
        (fail_over, "-NOMASTERLINK Can't SYNC while failing over\r\n"),
        (
            follow,
            "-NOMASTERLINK Can't SYNC while not connected with my master\r\n",
        ),
    ] {
        let server = create_idle_server(Config::defaults());
        server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
        let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
        let mut log_writer = server.propagation.log_writer();
        let mut replica = DepartingClient::connect(&server, &mut worker, &mut log_writer);
        worker.start_next_step(replica.token, sync_with(with_sync_check(always_permitted(), 0)));
        replica.assert_present(&server, &mut worker);
        change(&server);
        sync_log(&server, &mut worker, replica.sequence);
        replica.assert_refused(&server, &mut worker, error);
    }
}

/// The thread that writes a dump to the socket would not wait until earlier output is sent.
#[test]
fn a_client_that_has_not_read_its_output_does_not_become_a_replica() {
    const OUTPUT_BYTES: usize = 8 << 20;
    let server = create_idle_server(Config::defaults());
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut log_writer = server.propagation.log_writer();
    let mut client = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    let connection = worker.clients.connection(client.token).expect("it is open");
    connection.output.clear();
    connection.output.bytes.resize(OUTPUT_BYTES, b'x');
    worker.start_next_step(client.token, sync());
    let connection = worker.clients.connection(client.token).expect("it is open");
    assert_eq!(connection.state, ConnectionState::Ready);
    assert!(worker.departures.is_empty() && !server.clients.linked.lock().contains_key(&client.id));
    assert_eq!(server.stats.errors.all(), [(b"ERR".to_vec(), 1)]);
    let mut expected = vec![b'x'; OUTPUT_BYTES];
    expected.extend_from_slice(b"-ERR SYNC and PSYNC are invalid with pending output\r\n");
    let (mut received, mut buffer, mut events) = (Vec::new(), vec![0; 1 << 16], Vec::new());
    let start = Instant::now();
    while received.len() < expected.len() {
        assert!(start.elapsed() < PATIENCE, "{} bytes have arrived", received.len());
        match client.peer.read(&mut buffer) {
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(_) => {
                let waited = worker.reactor.wait(Some(Duration::from_millis(1)), &mut events, 1);
                assert!(waited.is_ok());
            }
        }
    }
    assert!(received == expected, "the bytes are others");
    // Now that it has read everything, it may become one.
    worker.start_next_step(client.token, sync());
    assert!(server.clients.linked.lock().contains_key(&client.id));
}

#[test]
fn a_command_that_has_waited_does_not_take_its_connection_without_the_permission() {
    for is_user_deleted in [false, true] {
        let server = create_idle_server(Config::defaults());
        server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
        let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
        let mut log_writer = server.propagation.log_writer();
        let mut client = DepartingClient::connect(&server, &mut worker, &mut log_writer);
        let (sender, taken) = channel();
        let take: ConnectionReceiver = Box::new(move |connection| assert!(sender.send(connection).is_ok()));
        let permission: PermissionCheck = Box::new(move |_, _| {
            Err(match is_user_deleted {
                true => PermissionLoss::ClientEnds,
                false => PermissionLoss::Denied(b"-NOPERM No\r\n".to_vec()),
            })
        });
        worker.start_next_step(client.token, NextStep::TakeConnection(Box::new((permission, take))));
        client.assert_present(&server, &mut worker);
        sync_log(&server, &mut worker, client.sequence);
        if is_user_deleted {
            assert!(worker.clients.connection(client.token).is_none() && worker.departures.is_empty());
            client.assert_received("+OK\r\n");
            assert_eq!(client.peer.read(&mut [0]).expect("the connection has ended"), 0);
        } else {
            client.assert_refused(&server, &mut worker, "-NOPERM No\r\n");
        }
        let is_dropped = matches!(taken.try_recv(), Err(TryRecvError::Disconnected));
        assert!(is_dropped, "what the step holds ends with the command");
    }
}

#[test]
fn messages_to_a_client_that_departs_are_sent_before_it_leaves() {
    let server = create_idle_server(Config::defaults());
    server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
    let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let mut log_writer = server.propagation.log_writer();
    let mut replica = DepartingClient::connect(&server, &mut worker, &mut log_writer);
    worker.start_next_step(replica.token, sync());
    worker.clients.append_bytes(replica.id, b"+message\r\n");
    replica.assert_present(&server, &mut worker);
    sync_log(&server, &mut worker, replica.sequence);
    replica.assert_departed(&server, &mut worker);
    replica.assert_received("+message\r\n");
}
