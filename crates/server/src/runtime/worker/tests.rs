//! Tests of a worker that does not run.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use weft_config::{Config, SetPermissions};
use weft_os::sync::mpsc::{Receiver, channel};
use weft_reactor::Socket;
use weft_resp::command::write_command;

use super::*;
use crate::runtime::background::create_queue;
use crate::start::{create_idle_server, create_idle_server_with_workers, create_server};
use crate::state::BackgroundJob;

const ALL_PERMISSIONS: SetPermissions = SetPermissions {
    may_set_protected: true,
    is_loading: false,
};

/// The time limit for what the client receives.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

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

/// A worker with one client that has sent requests.
pub(super) struct Pipeline {
    pub(super) worker: Worker,
    pub(super) token: usize,
    /// The client's side of the connection.
    pub(super) peer: UnixStream,
}

impl Pipeline {
    pub(super) fn new(server: &Arc<Server>, requests: &[&[&str]]) -> Pipeline {
        let worker = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
        Pipeline::with_worker(worker, requests)
    }

    fn with_worker(mut worker: Worker, requests: &[&[&str]]) -> Pipeline {
        let (token, peer) = Pipeline::connect(&mut worker, requests);
        Pipeline { worker, token, peer }
    }

    /// Adds a client that has sent requests. Returns its token and its side of the connection.
    pub(super) fn connect(worker: &mut Worker, requests: &[&[&str]]) -> (usize, UnixStream) {
        let server = worker.server().clone();
        worker.begin_turn();
        let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
        peer.set_nonblocking(true).expect("sets the mode");
        let client = server.clients.next_client_id();
        server.clients.directory.add(client, worker.id);
        server.clients.connections.fetch_add(1, Ordering::Relaxed);
        server.worker(worker.id).connections.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection::new(Client::new(client, unix_ms(), worker.id));
        connection.client.login = server.acl.new_login();
        for request in requests {
            write_command(request.iter().map(|word| word.as_bytes()), &mut connection.input);
        }
        let token = worker.clients.add(Box::new(connection));
        worker.reactor.register(token, Socket::Unix(socket)).expect("registers");
        (token, peer)
    }

    /// Executes the requests as far as the client does not wait.
    fn run(&mut self) {
        for _ in 0..2 {
            self.worker.plan_requests(self.token);
            self.worker.run_batch();
            self.worker.send_pending();
        }
    }

    /// Returns this number of bytes that the client receives.
    pub(super) fn receive(&mut self, count: usize) -> Vec<u8> {
        let (mut received, mut events) = (vec![0; count], Vec::new());
        let (mut length, start) = (0, Instant::now());
        while length < count {
            assert!(start.elapsed() < PATIENCE, "{length} of {count} bytes have arrived");
            match self.peer.read(&mut received[length..]) {
                Ok(more) => length += more,
                Err(_) => {
                    // The worker sends what it could not send at once.
                    let waited = self.worker.reactor.wait(Some(Duration::from_millis(1)), &mut events, 1);
                    assert!(waited.is_ok());
                }
            }
        }
        received
    }

    /// Asserts that the connection is open, and that nothing else was sent.
    fn assert_open(&mut self) {
        let connection = self.worker.clients.connection(self.token).expect("it is open");
        assert_eq!(connection.state, ConnectionState::Ready);
        assert!(self.peer.read(&mut [0]).is_err(), "nothing was sent");
    }

    /// Asserts that the client has got only these replies, and that its connection is closed.
    pub(super) fn assert_closed_after(&mut self, replies: &str) {
        let mut received = Vec::new();
        // An open connection has no more bytes, which is an error.
        let _ = self.peer.read_to_end(&mut received);
        assert_eq!(String::from_utf8_lossy(&received), replies);
        assert!(self.worker.clients.connection(self.token).is_none(), "it is closed");
    }
}

/// The worker reads the order between receiving the request and executing it.
#[test]
fn an_order_to_move_connections_within_a_batch_is_obeyed_after_the_batch() {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    server.lifecycle.active_workers.store(1, Ordering::Relaxed);
    let mut active = Worker::new(server.clone(), ThreadIndex::FIRST).expect("a worker");
    let inactive = Worker::new(server.clone(), ThreadIndex::new(1)).expect("a worker");
    let mut pipeline = Pipeline::with_worker(inactive, &[&["PING"]]);
    pipeline.worker.plan_requests(pipeline.token);
    pipeline.worker.handle_message(Message::MoveConnections {
        target_workers: 0..1,
        kept_connections: 0,
    });
    // This reads the order once more, and again puts it off.
    pipeline.worker.run_batch();
    pipeline.worker.send_pending();
    assert_eq!(pipeline.receive(7), b"+PONG\r\n");
    assert_eq!(pipeline.worker.clients.len(), 1);
    pipeline.worker.read_mail();
    active.read_mail();
    assert_eq!((pipeline.worker.clients.len(), active.clients.len()), (0, 1));
    assert!(server.worker(pipeline.worker.id).mailbox.is_empty_hint());
}

/// A script that only the end of the process stops.
const ENDLESS: &[&str] = &["EVAL", "redis.call('SET', KEYS[1], '1') while true do end", "1", "key"];

#[test]
fn after_an_exec_that_the_end_of_the_process_has_stopped_on_its_worker_there_is_no_reply() {
    // Under leases, and in exclusive mode.
    for first in [&["PING"][..], &["SWAPDB", "0", "1"]] {
        let server = create_idle_server_with_workers(Config::defaults(), 2);
        // CLIENT SETNAME does not leave the worker of its client.
        let requests = [
            &["MULTI"][..],
            first,
            &["CLIENT", "SETNAME", "name"],
            ENDLESS,
            &["EXEC"],
            &["PING"],
        ];
        let mut pipeline = Pipeline::new(&server, &requests);
        server.scripting.running.stop_all();
        pipeline.run();
        assert!(server.scripting.running.has_unfinished_unit());
        pipeline.assert_closed_after("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    }
}

/// Creates a server with two workers, none of whose threads runs, and what script threads get.
fn server_with_script_jobs() -> (Arc<Server>, Receiver<BackgroundJob>) {
    crate::commands::install_registry(crate::commands::full_registry());
    let (scripts, jobs) = create_queue();
    let (orders, primary_thread) = (channel().0, channel().0);
    let server = create_server(Config::defaults(), 2, create_queue().0, scripts, orders, primary_thread);
    (server.expect("a server"), jobs)
}

#[test]
fn after_an_exec_that_the_end_of_the_process_has_stopped_on_a_script_thread_there_is_no_reply() {
    let (server, jobs) = server_with_script_jobs();
    let requests = [&["MULTI"][..], ENDLESS, &["EXEC"], &["PING"]];
    let mut pipeline = Pipeline::new(&server, &requests);
    let mut seat = server.keyspace.slots.join().expect("a seat");
    pipeline.run();
    let job = jobs.try_recv().expect("EXEC has left its worker");
    server.scripting.running.stop_all();
    job(&server, &mut seat);
    assert!(server.scripting.running.has_unfinished_unit());
    pipeline.worker.read_mail();
    pipeline.run();
    pipeline.assert_closed_after("+OK\r\n+QUEUED\r\n");
}

#[test]
fn a_transaction_after_a_stopped_one_runs_completely() {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    let requests = [&["MULTI"][..], &["PING"], &["PING"], &["EXEC"], &["QUIT"]];
    let mut pipeline = Pipeline::new(&server, &requests);
    pipeline.worker.thread.is_unit_unfinished = true;
    pipeline.run();
    pipeline.assert_closed_after("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+PONG\r\n+PONG\r\n+OK\r\n");
}

/// The order is that of Valkey's `syncCommand`.
#[test]
fn a_replica_with_pending_output_is_refused_for_that_before_what_it_asks_for() {
    const OUTPUT_BYTES: usize = 4 << 20;
    const PENDING: &str = "-ERR SYNC and PSYNC are invalid with pending output\r\n";
    const FILTERED: &str = "-ERR Filtered replica requires EOF capability\r\n";
    const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";
    const NOT_A_REPLICA: &str = "-ERR PSYNC FAILOVER can't be sent to a master.\r\n";
    let filter: &[&str] = &["REPLCONF", "rdb-filter-only", ""];
    let eof: &[&str] = &["REPLCONF", "capa", "eof"];
    let dual_channel: &[&str] = &["REPLCONF", "capa", "dual-channel"];
    let cases: [(&[&str], &[&str], &str, &str); 5] = [
        (filter, &["SYNC"], FILTERED, PENDING),
        (filter, &["PSYNC", "?", "x"], FILTERED, PENDING),
        (eof, &["PSYNC", "?", "x"], NOT_AN_INTEGER, PENDING),
        (eof, &["PSYNC", "?", "x", "FAILOVER"], NOT_A_REPLICA, NOT_A_REPLICA),
        (dual_channel, &["PSYNC", "?", "-1"], "+DUALCHANNELSYNC\r\n", PENDING),
    ];
    for (handshake, sync, usual_reply, reply_if_pending) in cases {
        for (pending_bytes, reply) in [(0, usual_reply), (OUTPUT_BYTES, reply_if_pending)] {
            let server = create_idle_server(Config::defaults());
            let enable: [(&[u8], &[u8]); 1] = [(b"dual-channel-replication-enabled", b"yes")];
            assert!(server.config.set(&enable, ALL_PERMISSIONS, &mut |_| Ok(())).is_ok());
            let mut pipeline = Pipeline::new(&server, &[handshake, sync]);
            let connection = pipeline.worker.clients.connection(pipeline.token).expect("it is open");
            connection.output.bytes.resize(pending_bytes, b'x');
            pipeline.run();
            let received = pipeline.receive(pending_bytes + "+OK\r\n".len() + reply.len());
            let replies = String::from_utf8_lossy(&received[pending_bytes..]);
            assert_eq!(replies, ["+OK\r\n", reply].concat(), "{sync:?}");
            pipeline.assert_open();
            let errors = usize::from(reply.starts_with('-'));
            assert_eq!(server.stats.errors.all().len(), errors, "{sync:?}");
        }
    }
}

#[test]
fn a_client_in_monitor_mode_gets_no_reply_to_sync() {
    let syncs: [&[&str]; 3] = [&["SYNC"], &["PSYNC", "?", "-1"], &["PSYNC", "?", "x", "FAILOVER"]];
    for sync in syncs {
        let server = create_idle_server(Config::defaults());
        let mut pipeline = Pipeline::new(&server, &[&["MONITOR"][..], sync]);
        pipeline.run();
        assert_eq!(pipeline.receive(5), b"+OK\r\n");
        pipeline.assert_open();
        assert!(server.stats.errors.all().is_empty());
    }
}
