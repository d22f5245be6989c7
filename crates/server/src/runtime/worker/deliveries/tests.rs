//! Tests of mailboxes without room, and of output that is withheld.

use weft_config::Config;

use super::*;
use crate::keyspace::effects::{Change, ChangeKind};
use crate::net::connection::Connection;
use crate::net::transaction::Transaction;
use crate::notify::tracking::TrackingOptions;
use crate::propagation::LogMilestone;
use crate::start::create_idle_server_with_workers;
use crate::state::Message;

/// The worker whose mailbox is full.
const OTHER: ThreadIndex = ThreadIndex::new(1);

/// Creates a server with two workers, of which the first does what a test says, and the other nothing.
fn worker() -> (Arc<Server>, Worker) {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    let worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    (server, worker)
}

fn fill_mailbox(server: &Server) {
    while !server.worker(OTHER).is_mailbox_full() {
        server.worker(OTHER).send(Message::LogAdvanced);
    }
}

fn read_mailbox(server: &Server) -> Vec<Message> {
    let mut mail = Vec::new();
    server.worker(OTHER).mailbox.drain(&mut mail, usize::MAX);
    mail
}

/// Adds a connection without a socket.
fn connect(server: &Server, worker: &mut Worker) -> (ClientId, usize) {
    let id = server.clients.next_client_id();
    server.clients.directory.add(id, worker.id);
    let client = Client::new(id, worker.thread.now_ms, worker.id);
    (id, worker.clients.add(Box::new(Connection::new(client))))
}

#[test]
fn redirected_invalidations_are_sent_by_the_thread_that_changes_a_key() {
    let (server, mut worker) = worker();
    let target = server.clients.next_client_id();
    server.clients.directory.add(target, OTHER);
    let options = TrackingOptions {
        redirect: Some(target),
        ..TrackingOptions::default()
    };
    let trackers = [(); 2].map(|()| {
        let (tracker, token) = connect(&server, &mut worker);
        let client = &mut worker.clients.connection(token).expect("it is open").client;
        client.tracking = Some(Box::new(options.clone()));
        let first = || server.keyspace.hooks.set(Hooks::TRACKING, true);
        server.clients.tracking.enable(tracker, None, &options, first);
        tracker
    });
    let mut change = |key: &[u8]| {
        for tracker in trackers {
            server.clients.tracking.add_reader(key, tracker);
        }
        let effects = &mut worker.thread.effects;
        effects.changes.push(Change {
            db: weft_base::DbIndex::new(0),
            name: key.into(),
            kind: ChangeKind::Value,
        });
        NotificationSender::new(&server, effects, ThreadIndex::FIRST).send_recorded_effects(None);
        effects.full_mailbox.take()
    };
    assert_eq!(change(b"key"), None);
    let mail = read_mailbox(&server);
    let [Message::Notify(ClientNotification::Redirected(redirected))] = mail.as_slice() else {
        panic!("one invalidation is sent");
    };
    assert_eq!(redirected.clients, [target, target]);
    assert_eq!(redirected.keys, Some(vec![(*b"key").into()]));
    // The client that changes keys waits for the worker of the client that gets the invalidations.
    fill_mailbox(&server);
    assert_eq!(change(b"key"), Some(OTHER));
}

/// Returns a worker at the time 1,000,000 ms, and the token of a connection that waits for the full mailbox until
/// `until_ms`.
fn worker_with_put_off_connection(until_ms: u64) -> (Worker, usize) {
    let (server, mut worker) = worker();
    let (_, token) = connect(&server, &mut worker);
    fill_mailbox(&server);
    worker.thread.begin_batch(1_000_000);
    let connection = worker.clients.connection(token).expect("it is open");
    connection.full_mailbox = Some(FullMailbox {
        worker: OTHER,
        until_ms,
    });
    (worker, token)
}

#[test]
fn a_connection_that_is_put_off_collects_snapshots_of_clients_again() {
    let (mut worker, token) = worker_with_put_off_connection(1_000_000 + MAX_HOLD_UP_MS);
    let connection = worker.clients.connection(token).expect("it is open");
    let mut transaction = Transaction::new(weft_base::DbIndex::new(0));
    transaction.client_snapshots = Some(Vec::new());
    connection.client.transaction = Some(Box::new(transaction));
    worker.plan_requests(token);
    let connection = worker.clients.connection(token).expect("it is open");
    assert!(connection.full_mailbox.is_some());
    let transaction = connection.client.transaction.as_ref().expect("MULTI was called");
    assert!(transaction.client_snapshots.is_none());
    assert_eq!(worker.delayed_tokens, [token]);
}

#[test]
fn a_connection_is_not_put_off_longer_because_the_clock_is_set_back() {
    let (mut worker, token) = worker_with_put_off_connection(1_060_000 + MAX_HOLD_UP_MS);
    worker.plan_requests(token);
    let connection = worker.clients.connection(token).expect("it is open");
    assert!(connection.full_mailbox.is_none());
    assert!(worker.delayed_tokens.is_empty());
}

#[test]
fn messages_behind_withheld_output_count_for_the_output_limit() {
    let (server, mut worker) = worker();
    let (id, token) = connect(&server, &mut worker);
    server.propagation.set_reply_milestone(Some(LogMilestone::Synced));
    let connection = worker.clients.connection(token).expect("it is open");
    connection.client.flags.set(ClientFlags::PUBSUB, true);
    connection.client.last_write_sequence = weft_base::LogSequence::new(1);
    connection.output.bytes.extend_from_slice(b"+OK\r\n");
    worker.flush_output(token);
    assert!(
        worker
            .clients
            .connection(token)
            .is_some_and(|connection| connection.is_output_withheld)
    );
    // The limit of subscribers is 32 MB.
    for received in 1..=40 {
        worker
            .clients
            .append_message(id, |_, output| output.push_shared(Box::new(vec![b'x'; 1 << 20])));
        worker.finish_deliveries();
        let is_open = worker.clients.connection(token).is_some();
        assert_eq!(is_open, received < 32, "after {received} MB");
    }
}
