//! Tests of attaching the backlog to the propagation log and detaching it.

use super::*;
use crate::replication::Endpoint;

fn server() -> Arc<Server> {
    crate::start::create_idle_server(weft_config::Config::defaults())
}

/// Runs a function on the log thread, behind everything that was scheduled before, and returns its result.
fn on_log_thread<R: Send + 'static>(
    server: &Server,
    action: impl FnOnce(&mut ConsumerStreams) -> R + Send + 'static,
) -> mpsc::Receiver<R> {
    let (sender, receiver) = mpsc::sync_channel(1);
    server.propagation.schedule_mark(move |consumers| {
        // The test may have given up.
        let _ = sender.send(action(consumers));
    });
    receiver
}

/// A server that follows a primary for a moment, as `MULTI`, `REPLICAOF host port`, `REPLICAOF NO ONE`, `EXEC` makes
/// it, is a primary again before the log thread has detached the backlog.
#[test]
fn a_short_demotion_leaves_the_backlog_attached_and_a_later_one_detaches_it() {
    let server = server();
    let mut seat = server.keyspace.slots.join().expect("there is a seat");
    open(&server, &seat.exclusive()).expect("there is a log thread");
    let (proceed, wait) = mpsc::sync_channel::<()>(0);
    let held_up = on_log_thread(&server, move |_| wait.recv());
    on_demotion(&server);
    on_promotion(&server);
    proceed.send(()).expect("the log thread waits");
    held_up.recv().expect("it continues").expect("it was released");
    let is_attached = |server: &Server| {
        on_log_thread(server, |consumers| {
            let writer = consumers.remove(CONSUMER_NAME);
            let is_there = writer.is_some();
            if let Some(writer) = writer {
                consumers.add(CONSUMER_NAME, writer, 0);
            }
            is_there
        })
        .recv()
        .expect("the log thread answers")
    };
    assert!(is_attached(&server) && server.replication.log_feeds_backlog());
    on_demotion(&server);
    assert!(!is_attached(&server) && !server.replication.log_feeds_backlog());
}

/// As soon as the log has left the backlog, the thread of the primary link may run another server's stream. The log
/// thread may come to the position of a dump later than that, for example because it waits for a disk.
#[test]
fn the_position_of_a_dump_right_after_a_demotion_is_that_of_its_data() {
    let server = server();
    let mut seat = server.keyspace.slots.join().expect("there is a seat");
    open(&server, &seat.exclusive()).expect("there is a log thread");
    let repl = &server.replication;
    let end = repl.replicas.backlog().append(b"written", 1 << 20).expect("it is open");
    repl.set_offset(end);
    let (proceed, wait) = mpsc::sync_channel::<()>(0);
    let held_up = on_log_thread(&server, move |_| wait.recv());
    let primary = Endpoint {
        host: "127.0.0.1".into(),
        port: 1,
    };
    repl.start_following(primary, false);
    on_demotion(&server);
    let (proceed_again, wait_again) = mpsc::sync_channel::<()>(0);
    let is_detached = on_log_thread(&server, |_| ());
    let held_up_again = on_log_thread(&server, move |_| wait_again.recv());
    let position = current_position(&server);
    proceed.send(()).expect("the log thread waits");
    held_up.recv().expect("it continues").expect("it was released");
    is_detached.recv().expect("the log has left the backlog");
    // As the thread of the link does.
    if !repl.log_feeds_backlog() {
        repl.set_offset(end.advanced_by(100));
    }
    proceed_again.send(()).expect("the log thread waits again");
    held_up_again.recv().expect("it continues").expect("it was released");
    assert_eq!(position.wait().expect("the data has a position").offset, end);
    assert!(!repl.log_feeds_backlog(), "the link need not wait any longer");
}

#[test]
fn the_offset_that_covers_a_write_is_in_front_of_the_ack_request_behind_it() {
    let server = server();
    let replicas = &server.replication.replicas;
    replicas.backlog().open(ReplicationOffset::ZERO);
    replicas.has_readers.store(true, Ordering::Relaxed);
    let mut writer = BacklogWriter {
        server: server.clone(),
        batch: Vec::new(),
        last_ping: Instant::now(),
    };
    writer.append(0, b"write");
    replicas.request_acks();
    writer.flush(LogSequence::new(1));
    let backlog = replicas.backlog();
    let write_end = ReplicationOffset::new(5);
    assert_eq!(backlog.offset_of_sequence(LogSequence::new(1)), Some(write_end));
    let end = backlog.range().expect("it is open").end;
    assert!(end > write_end, "the request was added");
    assert_eq!(server.replication.offset(), end);
}
