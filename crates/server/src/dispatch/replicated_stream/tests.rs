//! Tests of the time for which a call runs the stream, on a server none of whose threads runs.

use weft_base::ClientId;
use weft_config::{Config, SetPermissions};

use super::*;
use crate::keyspace::effects::ClientNotification;
use crate::notify::messages::update_event_hook;
use crate::notify::pubsub::{Subscriber, SubscriptionKind, Subscriptions};
use crate::state::PauseReason;

/// Creates the stream of a link that `threads` threads apply.
fn create_stream(server: &Arc<Server>, seat: &Seat, threads: usize) -> ReplicatedStream {
    let client = Client::new(ClientId::new(1), unix_ms(), ThreadIndex::FIRST);
    let role_epoch = server.replication.role_epoch();
    let mut stream = ReplicatedStream::new(server, seat, role_epoch, client, DbIndex::FIRST);
    stream.thread_count = threads;
    stream
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// Runs a stream with a transaction, and returns the number of commands that have run. If clients are paused, their
/// pause ends when a half of the stream has arrived.
fn run_transaction_and_writes(threads: usize, are_clients_paused: bool) -> u64 {
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut stream = create_stream(&server, &seat, threads);
    let mut input = command(&["MULTI"]);
    input.extend(command(&["INCR", "counter"]));
    input.extend(command(&["EXEC"]));
    for number in 0..10_000 {
        input.extend(command(&["INCR", &format!("key:{}", number % 100)]));
    }
    let (first, second) = input.split_at(input.len() / 2);
    stream.input_mut().extend_from_slice(first);
    if are_clients_paused {
        server.pause_clients(PauseReason::Client, unix_ms(), unix_ms() + 1_000_000, false);
        for _ in 0..2 {
            let began = Instant::now();
            assert_eq!(stream.run_commands(&mut seat, &mut || {}), Ok(true));
            assert!(began.elapsed() >= MAX_WAIT / 2, "it waits");
        }
        assert_eq!(key_counts(&server).keys(DbIndex::FIRST), 0, "nothing is written");
        assert_eq!(server.replication.offset(), ReplicationOffset::ZERO);
        server.unpause_clients(PauseReason::Client);
    }
    stream.input_mut().extend_from_slice(second);
    while stream.run_commands(&mut seat, &mut || {}).expect("the stream goes on") {}
    let end = ReplicationOffset::ZERO.advanced_by(input.len() as u64);
    assert_eq!(server.replication.offset(), end);
    assert_eq!(key_counts(&server).keys(DbIndex::FIRST), 101);
    stream.client_mut().commands
}

#[test]
fn a_pause_of_clients_ends_the_call_and_no_command_runs_twice_or_is_lost() {
    for threads in [1, 2] {
        let expected = run_transaction_and_writes(threads, false);
        assert_eq!(run_transaction_and_writes(threads, true), expected, "{threads} threads");
    }
}

#[test]
fn a_worker_that_reads_no_mail_gets_at_most_one_round_per_call() {
    let config = Config::defaults();
    let permissions = SetPermissions {
        may_set_protected: false,
        is_loading: false,
    };
    let pairs = [(&b"notify-keyspace-events"[..], &b"KA"[..])];
    config.set(&pairs, permissions, &mut |_| Ok(())).expect("a valid value");
    let server = crate::start::create_idle_server(config);
    update_event_hook(&server);
    let subscriber = Subscriber {
        client: ClientId::new(2),
        worker: ThreadIndex::FIRST,
    };
    let pattern = SubscriptionKind::Pattern;
    let mut subscriptions = Subscriptions::default();
    let pubsub = &server.clients.pubsub;
    assert!(pubsub.subscribe(&mut subscriptions, pattern, b"__key*__:*", subscriber));
    let worker = server.worker(ThreadIndex::FIRST);
    while !worker.is_mailbox_full() {
        let _ = worker.post_notification(ClientNotification::MonitorLine(Arc::from(&b"+line\r\n"[..])));
    }
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut stream = create_stream(&server, &seat, 2);
    let mut length = 0;
    for number in 0..20_000 {
        let request = command(&["SET", &format!("key:{number:05}"), "x"]);
        length = request.len();
        stream.input_mut().extend(request);
    }
    let mut unread = worker.mailbox.len();
    for call in 0..3 {
        assert_eq!(stream.run_commands(&mut seat, &mut || {}), Ok(true));
        let sent = worker.mailbox.len() - unread;
        // The stream does not know yet, in its first call, that the mailbox is full.
        let round = ROUND_BYTES / length + MIN_ROUND_COMMANDS;
        let most = if call == 0 { round } else { MIN_ROUND_COMMANDS };
        assert!((1..=most).contains(&sent), "call {call}: {sent} messages");
        unread += sent;
    }
    let mut has_more = true;
    while has_more {
        let mut mail = Vec::new();
        worker.mailbox.drain(&mut mail, usize::MAX);
        has_more = stream.run_commands(&mut seat, &mut || {}).expect("the stream goes on");
    }
    assert_eq!(key_counts(&server).keys(DbIndex::FIRST), 20_000);
    assert_eq!(stream.client_mut().commands, 20_000, "each command runs once");
}
