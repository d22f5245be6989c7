//! Tests of the thread that serves replicas.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use weft_base::ThreadIndex;
use weft_reactor::Socket;

use super::*;
use crate::net::client::Client;
use crate::replication::ResumePosition;
use crate::state::SyncRequest;

/// Connects a replica that has everything up to the start of the backlog. Returns its side of the connection.
fn connect_replica(thread: &mut PrimaryThread) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let peer = TcpStream::connect(listener.local_addr().expect("is bound")).expect("connects");
    let (socket, _) = listener.accept().expect("accepts");
    let clients = &thread.server.clients;
    let id = clients.next_client_id();
    clients.directory.add(id, ThreadIndex::FIRST);
    clients.connections.fetch_add(1, Ordering::Relaxed);
    let mut connection = Box::new(Connection::new(Client::new(id, unix_ms(), ThreadIndex::FIRST)));
    // The connection comes from the reactor of a worker.
    let mut reactor = Reactor::new().expect("a reactor");
    reactor.register(0, Socket::Tcp(socket)).expect("registers");
    connection.in_transit = reactor.deregister(0);
    let request = SyncRequest {
        resume: Some(ResumePosition {
            id: thread.server.replication.state().history.id.clone(),
            next_byte: ReplicationOffset::ZERO.next_byte(),
        }),
        is_psync: true,
    };
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
