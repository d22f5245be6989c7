//! Tests of the thread that serves replicas.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use weft_base::ThreadIndex;
use weft_reactor::Socket;

use super::*;
use crate::net::client::{Client, ClientFlags};
use crate::replication::ResumePosition;
use crate::state::SyncRequest;
use weft_acl::Login;
use weft_config::Config;

/// Returns a connection on its way from a worker to the thread that serves replicas, and the replica's side of it.
fn connection_of(server: &Server, login: Login) -> (Box<Connection>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let peer = TcpStream::connect(listener.local_addr().expect("is bound")).expect("connects");
    let (socket, _) = listener.accept().expect("accepts");
    let clients = &server.clients;
    clients.connections.fetch_add(1, Ordering::Relaxed);
    let mut client = Client::new(clients.next_client_id(), unix_ms(), ThreadIndex::FIRST);
    client.login = login;
    let mut connection = Box::new(Connection::new(client));
    // The connection comes from the reactor of a worker.
    let mut reactor = Reactor::new().expect("a reactor");
    reactor.register(0, Socket::Tcp(socket)).expect("registers");
    connection.in_transit = reactor.deregister(0);
    (connection, peer)
}

/// Returns the request of a replica that has everything up to the start of the backlog.
fn request_from_start(server: &Server) -> SyncRequest {
    SyncRequest {
        resume: Some(ResumePosition {
            id: server.replication.state().history.id.clone(),
            next_byte: ReplicationOffset::ZERO.next_byte(),
        }),
        is_psync: true,
        has_invalid_offset: false,
        command: 0,
        disconnection_count: server.replication.replicas.disconnection_count(),
    }
}

/// Connects a replica that has everything up to the start of the backlog. Returns its side of the connection.
fn connect_replica(thread: &mut PrimaryThread) -> TcpStream {
    let (connection, peer) = connection_of(&thread.server, thread.server.acl.new_login());
    let request = request_from_start(&thread.server);
    thread.adopt_connection(connection, &request);
    peer
}

/// After a promotion, the log may fill the backlog before this thread handles the order to disconnect the replicas.
#[test]
fn a_replica_that_will_be_disconnected_gets_no_bytes_of_the_new_history() {
    let server = crate::start::create_idle_server(weft_config::Config::defaults());
    let replicas = &server.replication.replicas;
    replicas.backlog().open(ReplicationOffset::ZERO);
    let append = |bytes: &[u8]| assert!(replicas.backlog().append(bytes, 1 << 20).is_some());
    let (_sender, orders) = mpsc::channel();
    let mut thread = PrimaryThread::new(&server, orders).expect("the state of the thread");
    append(b"old");
    let mut peer = connect_replica(&mut thread);
    append(b"er");
    thread.send_backlog_to_all();
    replicas.begin_disconnection();
    append(b"new");
    thread.send_backlog_to_all();
    thread.handle_order(PrimaryThreadCommand::DisconnectAll);
    let mut received = String::new();
    peer.read_to_string(&mut received).expect("the connection is closed");
    assert_eq!(received, "+CONTINUE\r\nolder");
}

/// The backlog keeps what they miss once.
#[test]
fn what_replicas_miss_is_shown_as_their_output_and_is_no_memory_of_theirs() {
    const MISSED_BYTES: usize = 1 << 20;
    let (server, mut thread) = server_with_thread();
    let _peers = [(); 2].map(|()| connect_replica(&mut thread));
    append(&server, &vec![b'x'; MISSED_BYTES]);
    thread.publish_clients();
    let mut links = 0;
    server.visit_linked(&mut |client, buffers| {
        links += 1;
        assert!(client.flags.contains(ClientFlags::REPLICA));
        let (shown, own) = (buffers.in_flight.min(buffers.total), buffers.allocated);
        assert!(shown >= MISSED_BYTES && own < MISSED_BYTES / 16, "{buffers:?}");
    });
    assert_eq!(links, 2);
}

/// A server with a thread that serves replicas, whose turns the test makes.
fn server_with_thread() -> (Arc<Server>, PrimaryThread) {
    let (server, orders) = crate::start::create_idle_server_with_orders(Config::defaults());
    server.replication.replicas.backlog().open(ReplicationOffset::ZERO);
    let created = server.acl.set_user(b"joe", &["on", "nopass", "+@all"], &server.config);
    assert!(created.is_ok());
    let thread = PrimaryThread::new(&server, orders).expect("the state of the thread");
    (server, thread)
}

/// Hands the connection of a replica over, whose user is `joe`, after a call of `before`. Returns the replica's side.
fn hand_over_replica(server: &Server, before: impl FnOnce(&Server)) -> TcpStream {
    let login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    let (connection, peer) = connection_of(server, login);
    let request = Box::new(request_from_start(server));
    before(server);
    server.hand_over(connection, |connection| {
        let order = PrimaryThreadCommand::AdoptReplica(connection, request);
        server.background.send_to_primary_thread(order);
    });
    peer
}

fn handle_orders(thread: &mut PrimaryThread) {
    while let Ok(order) = thread.orders.try_recv() {
        thread.handle_order(order);
    }
    thread.send_backlog_to_all();
}

fn append(server: &Server, bytes: &[u8]) {
    let replicas = &server.replication.replicas;
    assert!(replicas.backlog().append(bytes, 1 << 20).is_some());
}

fn delete_user(server: &Server) {
    assert_eq!(server.acl.delete_users([&b"joe"[..]].into_iter()).len(), 1);
}

/// Returns what the replica has received until its connection was closed, and asserts that nothing is left of it.
fn received_by_closed(server: &Server, thread: &PrimaryThread, mut peer: TcpStream) -> String {
    assert!(thread.replicas.is_empty() && server.replication.replicas.infos().is_empty());
    assert!(server.clients.linked.lock().is_empty());
    assert_eq!(server.clients.connections.load(Ordering::Relaxed), 0);
    let mut received = String::new();
    peer.read_to_string(&mut received).expect("the connection is closed");
    received
}

#[test]
fn a_replica_whose_user_is_deleted_on_its_way_is_not_served() {
    let delete = |server: &Server| {
        delete_user(server);
        server.close_links_of_deleted_users();
    };
    for is_before_hand_over in [false, true] {
        let (server, mut thread) = server_with_thread();
        append(&server, b"secret");
        let peer = match is_before_hand_over {
            true => hand_over_replica(&server, delete),
            false => {
                let peer = hand_over_replica(&server, |_| {});
                delete(&server);
                peer
            }
        };
        handle_orders(&mut thread);
        assert_eq!(received_by_closed(&server, &thread, peer), "", "{is_before_hand_over}");
    }
}

/// The order to disconnect all replicas comes before the connection then.
#[test]
fn a_replica_that_was_accepted_before_the_history_changed_is_not_served() {
    let (server, mut thread) = server_with_thread();
    let peer = hand_over_replica(&server, role::disconnect_replicas);
    append(&server, b"new");
    handle_orders(&mut thread);
    assert_eq!(received_by_closed(&server, &thread, peer), "");
    let peer = hand_over_replica(&server, |_| {});
    handle_orders(&mut thread);
    assert_eq!(thread.replicas.len(), 1, "a later one is served");
    role::disconnect_replicas(&server);
    handle_orders(&mut thread);
    assert_eq!(received_by_closed(&server, &thread, peer), "+CONTINUE\r\nnew");
}

#[test]
fn a_replica_that_is_killed_on_its_way_is_closed_once_it_arrives() {
    let (server, mut thread) = server_with_thread();
    let peer = hand_over_replica(&server, |_| {});
    let other = hand_over_replica(&server, |_| {});
    let mut ids = Vec::new();
    server.visit_linked(&mut |client, _| ids.push(client.id));
    server.visit_linked(&mut |client, _| {
        if client.id == ids[0] {
            client.kill();
        }
    });
    append(&server, b"a");
    handle_orders(&mut thread);
    assert_eq!(thread.replicas.len(), 1, "the other one is served");
    thread.handle_order(PrimaryThreadCommand::Disconnect(ids[1]));
    // What the thread sends before it handles the order to close the connection may arrive.
    received_by_closed(&server, &thread, peer);
    assert_eq!(received_by_closed(&server, &thread, other), "+CONTINUE\r\na");
}

/// The order to disconnect the replica may wait behind others.
#[test]
fn a_replica_gets_no_write_that_was_made_after_its_user_was_deleted() {
    let (server, mut thread) = server_with_thread();
    let peer = hand_over_replica(&server, |_| {});
    append(&server, b"old");
    handle_orders(&mut thread);
    assert_eq!(thread.replicas.len(), 1);
    delete_user(&server);
    append(&server, b"secret");
    thread.send_backlog_to_all();
    assert_eq!(received_by_closed(&server, &thread, peer), "+CONTINUE\r\nold");
}

/// So a transaction that kills a replica and writes more than the backlog holds lets it synchronise fully.
#[test]
fn a_replica_gets_no_write_that_was_made_after_it_was_killed() {
    let (server, mut thread) = server_with_thread();
    let peer = hand_over_replica(&server, |_| {});
    append(&server, b"old");
    handle_orders(&mut thread);
    assert_eq!(thread.replicas.len(), 1);
    server.visit_linked(&mut |client, _| client.kill());
    append(&server, b"new");
    thread.send_backlog_to_all();
    assert_eq!(received_by_closed(&server, &thread, peer), "+CONTINUE\r\nold");
}

#[test]
fn a_replica_whose_user_loses_a_permission_is_closed_at_its_next_command() {
    let (server, mut thread) = server_with_thread();
    let peer = hand_over_replica(&server, |_| {});
    handle_orders(&mut thread);
    let acknowledge = |thread: &mut PrimaryThread| {
        let token = *thread.replicas.keys().next().expect("it is served");
        let replica = thread.replicas.get_mut(&token).expect("it is served");
        replica.connection.input.extend_from_slice(b"REPLCONF ACK 0\r\n");
        thread.process_input(token);
    };
    acknowledge(&mut thread);
    assert_eq!(thread.replicas.len(), 1, "it may do that");
    assert!(server.acl.set_user(b"joe", &["-replconf"], &server.config).is_ok());
    acknowledge(&mut thread);
    assert_eq!(received_by_closed(&server, &thread, peer), "+CONTINUE\r\n");
    assert_eq!(server.acl.log.lock().latest(2).len(), 1, "the denial is recorded");
}

#[test]
fn a_replica_counts_as_heard_when_it_comes_online_and_when_it_sends_a_newline() {
    let (server, mut thread) = server_with_thread();
    let _peer = hand_over_replica(&server, |_| {});
    handle_orders(&mut thread);
    let token = *thread.replicas.keys().next().expect("it is served");
    let replicas = &server.replication.replicas;
    let was_heard = || replicas.up_to_date_count(unix_ms() / 1000, 10) == 1;
    let age = || replicas.infos()[0].last_heard_s = 0;
    age();
    assert!(!was_heard());

    // As after a dump that has taken long.
    let replica = thread.replicas.get_mut(&token).expect("it is served");
    replica.progress = ReplicaSyncState::WaitingForDump;
    thread.mark_online(token, false);
    assert!(was_heard());

    // A replica that loads a streamed dump is online, and sends newlines.
    age();
    let replica = thread.replicas.get_mut(&token).expect("it is served");
    replica.connection.input.extend_from_slice(b"\n");
    thread.process_input(token);
    assert!(was_heard());
}
