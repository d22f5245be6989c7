//! Tests of a worker that does not run.

use weft_config::{Config, SetPermissions};

use super::*;
use crate::start::create_idle_server;

const ALL_PERMISSIONS: SetPermissions = SetPermissions {
    may_set_protected: true,
    is_loading: false,
};

/// Creates a server with one worker, which does not run.
fn worker() -> (Arc<Server>, Worker) {
    let server = create_idle_server(Config::defaults());
    let worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    (server, worker)
}

#[test]
fn a_request_because_of_a_new_limit_is_heard_within_a_batch() {
    let (server, mut worker) = worker();
    worker.thread.begin_batch(1);
    let limits: [(&[u8], &[u8]); 2] = [(b"maxmemory", b"1mb"), (b"maxmemory-clients", b"2mb")];
    let changed = server.config.set(&limits, ALL_PERMISSIONS, &mut |_| Ok(()));
    assert_eq!(changed.map(|changed| changed.len()), Ok(2));
    // The batch began before the change.
    worker.handle_message(Message::RecountClients);
    assert_eq!(worker.thread.tunables.client_memory, 2 << 20);
    let changed = server
        .config
        .set(&[(b"maxmemory", b"2mb")], ALL_PERMISSIONS, &mut |_| Ok(()));
    assert_eq!(changed.map(|changed| changed.len()), Ok(1));
    worker.handle_message(Message::EvictDue);
    worker.thread.begin_batch(2);
    assert!(worker.thread.memory_limit.is_evicting, "the next batch evicts");
}

#[test]
fn requests_to_count_clients_do_not_pile_up() {
    let (server, mut worker) = worker();
    let link = server.worker(ThreadIndex::FIRST);
    for _ in 0..100 {
        link.request_client_recount();
    }
    assert_eq!(link.mailbox.len(), 1);
    worker.read_mail();
    link.request_client_recount();
    assert_eq!(link.mailbox.len(), 1, "a change after the count needs another one");
}

/// A client that announces a large argument and sends little of it does not keep the space for all of it.
#[test]
fn the_unused_space_of_an_idle_input_is_freed() {
    const ANNOUNCED_BYTES: usize = 1_000_000;
    let (server, mut worker) = worker();
    let id = server.clients.next_client_id();
    let mut connection = Box::new(Connection::new(Client::new(
        id,
        worker.thread.now_ms,
        ThreadIndex::FIRST,
    )));
    connection.client.last_interaction_ms = worker.thread.now_ms;
    connection.input = Vec::with_capacity(ANNOUNCED_BYTES);
    connection
        .input
        .extend_from_slice(b"*2\r\n$4\r\nECHO\r\n$1000000\r\nxyz");
    connection.missing_bytes = ANNOUNCED_BYTES - 1;
    let content = connection.input.clone();
    let token = worker.clients.add(connection);
    let input = |worker: &mut Worker| {
        let connection = worker.clients.connection(token).expect("it is open");
        assert_eq!(connection.input, content);
        connection.input.capacity()
    };
    assert!(!worker.must_sweep());
    worker.release_input_buffer(token);
    worker.shrink_idle_inputs();
    assert!(
        worker.must_sweep() && input(&mut worker) >= ANNOUNCED_BYTES,
        "the client was active"
    );
    worker.thread.now_ms += 3000;
    worker.shrink_idle_inputs();
    let capacity = input(&mut worker);
    assert!(
        !worker.must_sweep() && capacity < ANNOUNCED_BYTES / 10,
        "{capacity} bytes"
    );
}

#[test]
fn a_refused_worker_retries_at_once_and_then_sleeps_with_backoff() {
    let sleeps_us = |turns: u32| sleep_time(turns).map(|sleep| sleep.as_micros());
    assert_eq!(sleeps_us(1), None);
    assert_eq!([2, 3, 4, 7].map(sleeps_us), [Some(10), Some(20), Some(40), Some(320)]);
    assert_eq!(sleeps_us(u32::MAX), Some(320), "and no longer, for others wait too");
}
