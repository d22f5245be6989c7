//! Tests replies that wait for the end of a turn, with workers that do not run.

use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use weft_config::{Config, SetPermissions};
use weft_resp::command::write_command;

use super::*;
use crate::dispatch::batch::BatchConnections as _;
use crate::runtime::worker::tests::{PATIENCE, Pipeline};
use crate::start::create_idle_server;
use crate::state::Server;

const ECHO: &[&str] = &["ECHO", "1"];
const REPLY: &[u8; 7] = b"$1\r\n1\r\n";

/// A turn of a worker with two clients. The requests of the first one have run, and those of the second one are
/// planned.
struct Turn {
    server: Arc<Server>,
    /// The first client and the worker.
    first: Pipeline,
    /// The second client's token and its side of the connection.
    second: (usize, UnixStream),
}

impl Turn {
    fn begin(first: &[&str], second: &[&[&str]]) -> Turn {
        let server = create_idle_server(Config::defaults());
        let mut pipeline = Pipeline::new(&server, &[first]);
        let second = Pipeline::connect(&mut pipeline.worker, second);
        pipeline.worker.plan_requests(pipeline.token);
        // However busy the machine is, the turn is not long.
        pipeline.worker.pending_sends.since = Instant::now() + PATIENCE;
        pipeline.worker.run_batch();
        pipeline.worker.send_pending_if_due();
        let mut turn = Turn {
            server,
            first: pipeline,
            second,
        };
        turn.assert_pending();
        turn.first.worker.plan_requests(turn.second.0);
        turn
    }

    /// Asserts that the first client has not got its reply yet.
    fn assert_pending(&mut self) {
        assert!(self.first.peer.read(&mut [0]).is_err(), "nothing was sent");
        let connection = self.first.worker.clients.connection(self.first.token);
        assert!(connection.is_some_and(|connection| !connection.output.is_empty()));
    }

    /// Receives a reply of the second client.
    fn receive_second(&mut self, count: usize) -> Vec<u8> {
        let mut reply = vec![0; count];
        self.second.1.read_exact(&mut reply).expect("it was sent");
        reply
    }

    /// Returns a function that waits until the first client has its reply, and returns the reply.
    fn reply_to_first(&self) -> impl FnOnce() -> std::io::Result<[u8; REPLY.len()]> + use<> {
        let mut client = self.first.peer.try_clone().expect("another handle");
        client.set_nonblocking(false).expect("sets the mode");
        client.set_read_timeout(Some(PATIENCE)).expect("sets the time limit");
        move || {
            let mut reply = [0; REPLY.len()];
            client.read_exact(&mut reply).map(|()| reply)
        }
    }

    /// Runs the second client's requests while another thread is inside the gate until the first client has got its
    /// reply.
    fn run_second_after_reply_to_first(&mut self) {
        let server = self.server.clone();
        let await_reply = self.reply_to_first();
        let (enter, has_entered) = std::sync::mpsc::channel();
        let inside = std::thread::spawn(move || {
            let mut seat = server.keyspace.slots.join().expect("a seat");
            let pass = seat.enter();
            enter.send(()).expect("the test waits for it");
            let reply = await_reply();
            drop(pass);
            reply
        });
        has_entered.recv().expect("it has entered");
        self.first.worker.run_batch();
        let reply = inside.join().expect("the thread ends well");
        assert_eq!(&reply.expect("it was sent"), REPLY);
        self.first.worker.send_pending();
    }
}

#[test]
fn the_replies_of_a_turn_are_sent_together() {
    let mut turn = Turn::begin(ECHO, &[&["ECHO", "2"]]);
    turn.first.worker.run_batch();
    turn.first.worker.send_pending_if_due();
    turn.assert_pending();
    turn.first.worker.send_pending();
    assert_eq!(turn.first.receive(7), REPLY);
    assert_eq!(turn.receive_second(7), b"$1\r\n2\r\n");
}

#[test]
fn replies_are_sent_between_two_batches_if_the_turn_is_long_or_they_are_many_or_large() {
    let mut long = Turn::begin(ECHO, &[]);
    long.first.worker.pending_sends.since = Instant::now();
    std::thread::sleep(MAX_PENDING_TIME);
    long.first.worker.send_pending_if_due();
    assert_eq!(long.first.receive(7), REPLY);

    let mut many = Turn::begin(ECHO, &[]);
    let token = many.first.token;
    for _ in 1..many.first.worker.max_pending_connections() {
        many.first.worker.send_pending_if_due();
        many.assert_pending();
        many.first.worker.pending_sends.add(token, 7);
    }
    many.first.worker.send_pending_if_due();
    assert_eq!(many.first.receive(7), REPLY);

    let large = "x".repeat(MAX_PENDING_BYTES);
    let server = create_idle_server(Config::defaults());
    let mut pipeline = Pipeline::new(&server, &[&["ECHO", &large]]);
    pipeline.worker.pending_sends.since = Instant::now() + PATIENCE;
    pipeline.worker.plan_requests(pipeline.token);
    pipeline.worker.run_batch();
    pipeline.worker.send_pending_if_due();
    assert_eq!(pipeline.receive(10), b"$1048576\r\n");
}

#[test]
fn replies_are_sent_before_a_command_waits_for_exclusive_mode() {
    let mut turn = Turn::begin(ECHO, &[&["SWAPDB", "0", "1"]]);
    turn.run_second_after_reply_to_first();
    assert_eq!(turn.receive_second(5), b"+OK\r\n");
}

#[test]
fn replies_are_sent_before_a_transaction_waits_for_exclusive_mode() {
    let mut turn = Turn::begin(ECHO, &[&["MULTI"], &["SWAPDB", "0", "1"]]);
    let (first, second) = (turn.first.token, turn.second.0);
    let worker = &mut turn.first.worker;
    worker.run_batch();
    worker.send_pending();
    assert_eq!(turn.first.receive(7), REPLY);
    assert_eq!(turn.receive_second(14), b"+OK\r\n+QUEUED\r\n");
    let worker = &mut turn.first.worker;
    for (token, request) in [(first, ECHO), (second, &["EXEC"])] {
        worker.run_batch();
        let connection = worker.clients.connection(token).expect("it is open");
        write_command(request.iter().map(|word| word.as_bytes()), &mut connection.input);
        worker.plan_requests(token);
    }
    turn.assert_pending();
    turn.run_second_after_reply_to_first();
    assert_eq!(turn.receive_second(9), b"*1\r\n+OK\r\n");
}

#[test]
fn replies_are_sent_before_another_threads_exclusive_mode() {
    let mut turn = Turn::begin(ECHO, &[ECHO]);
    let server = turn.server.clone();
    let await_reply = turn.reply_to_first();
    let (close, is_closed) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        let mut seat = server.keyspace.slots.join().expect("a seat");
        let all = seat.exclusive();
        close.send(()).expect("the test waits for it");
        let reply = await_reply();
        drop(all);
        reply
    });
    is_closed.recv().expect("the gate is closed");
    turn.first.worker.run_batch();
    let reply = other.join().expect("the thread ends well");
    assert_eq!(&reply.expect("it was sent"), REPLY);
    turn.first.worker.send_pending();
    assert_eq!(turn.receive_second(7), REPLY);
}

/// The end of its input closes a subscriber, but not before it has its replies.
#[test]
fn a_subscriber_that_half_closes_gets_the_replies_of_the_same_turn() {
    let server = create_idle_server(Config::defaults());
    let mut pipeline = Pipeline::new(&server, &[&["SUBSCRIBE", "news"]]);
    pipeline.peer.shutdown(Shutdown::Write).expect("shuts down");
    let token = pipeline.token;
    let worker = &mut pipeline.worker;
    // Its requests were put off in the turn before, and the end of its input arrives in this one.
    worker.ready_tokens.push(token);
    worker.wait_for_events(Some(Duration::ZERO));
    worker.pending_sends.since = Instant::now() + PATIENCE;
    worker.run_turn();
    pipeline.assert_closed_after("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
}

#[test]
fn what_can_be_sent_does_not_count_when_clients_are_evicted() {
    const LIMIT: &[u8] = b"100kb";
    let large = "x".repeat(150_000);
    let mut turn = Turn::begin(&["ECHO", &large], &[]);
    let permissions = SetPermissions {
        may_set_protected: true,
        is_loading: false,
    };
    let limit: [(&[u8], &[u8]); 1] = [(b"maxmemory-clients", LIMIT)];
    assert!(turn.server.config.set(&limit, permissions, &mut |_| Ok(())).is_ok());
    turn.first.worker.recount_clients();
    assert_eq!(turn.first.receive(150_009).len(), 150_009);
    assert!(turn.first.worker.clients.connection(turn.first.token).is_some());
}
