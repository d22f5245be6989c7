//! Tests of connections that leave their worker for good. No thread runs but that of the test.

use std::os::unix::net::UnixStream;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_config::Config;
use weft_os::sync::mpsc::Receiver;
use weft_reactor::Socket;

use super::*;
use crate::start::create_idle_server_with_orders;
use crate::state::{Server, SessionRegistration, SyncRequest, close_killed_clients};

/// A worker with one client, and what the thread that serves replicas gets.
struct Scene {
    server: Arc<Server>,
    orders: Receiver<PrimaryThreadCommand>,
    worker: Worker,
    token: usize,
    client: ClientId,
    /// The client's side of the connection.
    _peer: UnixStream,
}

impl Scene {
    fn new() -> Scene {
        let (server, orders) = create_idle_server_with_orders(Config::defaults());
        let mut worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
        let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
        let client = server.clients.next_client_id();
        server.clients.directory.add(client, worker.id);
        server.clients.connections.fetch_add(1, Ordering::Relaxed);
        server.worker(worker.id).connections.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(Client::new(client, unix_ms(), worker.id));
        let token = worker.clients.add(Box::new(connection));
        worker.reactor.register(token, Socket::Unix(socket)).expect("registers");
        Scene {
            server,
            orders,
            worker,
            token,
            client,
            _peer: peer,
        }
    }

    /// Kills the client as a transaction does at its end, with these snapshots.
    fn kill(&self, mut snapshots: Vec<ClientSnapshot>) {
        assert_eq!(snapshots.len(), 1);
        snapshots.iter_mut().for_each(|snapshot| snapshot.client.kill());
        drop(close_killed_clients(&self.server, &snapshots));
    }

    fn snapshots(&mut self) -> Vec<ClientSnapshot> {
        self.worker.collect_client_snapshots(ClientId::new(0))
    }

    /// Returns the clients of the orders so far, each with `true` if the order is to close the connection.
    fn take_orders(&self) -> Vec<(ClientId, bool)> {
        let orders = std::iter::from_fn(|| self.orders.try_recv().ok());
        let orders = orders.filter_map(|order| match order {
            PrimaryThreadCommand::AdoptReplica(connection, _) => Some((connection.client.id, false)),
            PrimaryThreadCommand::Disconnect(client) => Some((client, true)),
            _ => None,
        });
        orders.collect()
    }

    /// Asserts that no worker has the client, and that a late order to close it has no effect.
    fn assert_departed(&mut self) {
        let directory = &self.server.clients.directory;
        assert!(directory.worker_of(self.client).is_none() && !directory.has_killed_clients());
        self.worker.close_client(self.client);
        assert!(self.take_orders().is_empty());
    }
}

/// Returns the check of a command that may still run.
pub(crate) fn always_permitted() -> PermissionCheck {
    Box::new(|_, _| Ok(()))
}

/// Returns the next step of PSYNC.
fn sync() -> NextStep {
    let request = SyncRequest {
        resume: None,
        is_psync: true,
        has_invalid_offset: false,
        command: 0,
        disconnection_count: 0,
    };
    NextStep::Sync(Box::new((request, always_permitted())))
}

#[test]
fn a_client_that_a_transaction_kills_while_it_becomes_a_replica_is_closed() {
    // Before the connection leaves its worker, or after that.
    for is_killed_first in [true, false] {
        let mut scene = Scene::new();
        let snapshots = scene.snapshots();
        let (token, client) = (scene.token, scene.client);
        if is_killed_first {
            scene.kill(snapshots);
            scene.worker.start_next_step(token, sync());
        } else {
            scene.worker.start_next_step(token, sync());
            scene.kill(snapshots);
        }
        assert_eq!(scene.take_orders(), [(client, false), (client, true)]);
        scene.assert_departed();
    }
}

#[test]
fn a_client_that_becomes_a_replica_is_not_closed_otherwise() {
    let mut scene = Scene::new();
    scene.worker.start_next_step(scene.token, sync());
    assert_eq!(scene.take_orders(), [(scene.client, false)]);
    scene.assert_departed();
}

#[test]
fn a_session_whose_client_a_transaction_kills_meanwhile_ends() {
    for is_killed_first in [true, false] {
        let mut scene = Scene::new();
        let snapshots = scene.snapshots();
        let session = SessionRegistration::new(&scene.server, &snapshots[0].client);
        let mark = session.kill_mark().clone();
        // Like the thread of the session, the receiver has it until the end.
        let (sender, _thread) = std::sync::mpsc::channel();
        let take: ConnectionReceiver = Box::new(move |_| assert!(sender.send(session).is_ok()));
        let step = NextStep::TakeConnection(Box::new((always_permitted(), take)));
        let token = scene.token;
        if is_killed_first {
            scene.kill(snapshots);
            scene.worker.start_next_step(token, step);
        } else {
            scene.worker.start_next_step(token, step);
            assert!(!mark.is_killed());
            scene.kill(snapshots);
        }
        assert!(mark.is_killed());
        scene.assert_departed();
    }
}

#[test]
fn a_client_that_is_about_to_be_closed_stays_with_its_worker() {
    let mut scene = Scene::new();
    let token = scene.token;
    let connection = scene.worker.clients.connection(token).expect("it is open");
    connection.client.kill();
    scene.worker.start_next_step(token, sync());
    assert!(scene.take_orders().is_empty());
    scene.worker.finish_connection(token);
    scene.worker.send_pending();
    assert!(scene.worker.clients.connection(token).is_none());
    assert!(scene.server.clients.linked.lock().is_empty());
    scene.assert_departed();
}
