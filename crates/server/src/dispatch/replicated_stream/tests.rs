//! Tests of the time for which a call runs the stream, on a server none of whose threads runs.

use weft_base::ClientId;
use weft_config::{Config, SetPermissions};

use super::rounds::ROUND_BYTES;
use super::*;
use crate::keyspace::effects::ClientNotification;
use crate::keyspace::lease_all_for_good;
use crate::notify::messages::update_event_hook;
use crate::notify::pubsub::{Subscriber, SubscriptionKind, Subscriptions};
use crate::replication::Endpoint;
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
    for seat in 0..server.keyspace.slots.seats() {
        let running = server.stats.activities.running(ThreadIndex::new(seat));
        assert_eq!(running, None, "no thread runs a command any more");
    }
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

/// Returns a library whose code takes longer than FUNCTION LOAD permits on this machine. The interpreter that finds
/// this out ends with its thread.
fn too_slow_library() -> String {
    let code = |rounds: u64| {
        format!("#!lua name=slow\nfor i = 1, {rounds} do end\nredis.register_function('slow', function() end)")
    };
    let find = move || {
        let scripts = weft_scripting::Scripts::default();
        let mut rounds = 1 << 25;
        while weft_scripting::load_library(&scripts, code(rounds).as_bytes()).is_ok() {
            rounds += rounds / 2;
        }
        code(rounds)
    };
    std::thread::spawn(find).join().expect("finds it")
}

fn unexpected_errors(server: &Server) -> u64 {
    server.replication.unexpected_errors.load(Ordering::Relaxed)
}

/// The primary has loaded the library in time, maybe on a faster machine.
#[test]
fn libraries_of_the_primary_are_loaded_however_long_their_code_takes() {
    let code = too_slow_library();
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut stream = create_stream(&server, &seat, 1);
    let commands: [&[&str]; 7] = [
        &["SET", "first", "value"],
        &["FUNCTION", "LOAD", &code],
        &["MULTI"],
        &["FUNCTION", "DELETE", "slow"],
        &["FUNCTION", "LOAD", &code],
        &["EXEC"],
        &["SET", "last", "value"],
    ];
    let input: Vec<u8> = commands.iter().flat_map(|words| command(words)).collect();
    stream.input_mut().extend_from_slice(&input);
    let mut has_more = stream.run_commands(&mut seat, &mut || {}).expect("the stream goes on");
    // The link may have broken meanwhile. The next one does not run the code again.
    let loaded: usize = commands[..2].iter().map(|words| command(words).len()).sum();
    assert!(server.replication.offset() >= ReplicationOffset::ZERO.advanced_by(loaded as u64));
    while has_more {
        has_more = stream.run_commands(&mut seat, &mut || {}).expect("the stream goes on");
    }
    let end = ReplicationOffset::ZERO.advanced_by(input.len() as u64);
    assert_eq!(server.replication.offset(), end);
    assert!(server.scripting.libraries.current().function(b"slow").is_some());
    assert_eq!(unexpected_errors(&server), 0);
    assert_eq!(key_counts(&server).keys(DbIndex::FIRST), 2);
}

/// Whatever the code does, this server can follow another primary.
#[test]
fn the_end_of_the_role_epoch_stops_the_code_of_a_library() {
    let code = format!("#!lua name=long\nfor i = 1, {} do end", 1_u64 << 33);
    for is_in_transaction in [false, true] {
        let server = crate::start::create_idle_server(Config::defaults());
        let mut seat = server.keyspace.slots.join().expect("a seat");
        let mut stream = create_stream(&server, &seat, 1);
        let load = command(&["FUNCTION", "LOAD", &code]);
        let input = match is_in_transaction {
            true => [command(&["MULTI"]), load, command(&["EXEC"])].concat(),
            false => load,
        };
        stream.input_mut().extend_from_slice(&input);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                let host = "127.0.0.1".into();
                server.replication.start_following(Endpoint { host, port: 1 }, false);
            });
            let began = Instant::now();
            let ended = stream.run_commands(&mut seat, &mut || {});
            assert_eq!(ended, Err(StreamError::RoleChanged));
            assert!(began.elapsed() < Duration::from_secs(5), "the code takes longer");
        });
        assert_eq!(server.replication.offset(), ReplicationOffset::ZERO);
        assert_eq!(unexpected_errors(&server), 0);
    }
}

/// A replica that is started again continues before the command.
#[test]
fn a_library_that_the_end_of_the_process_stops_does_not_count_as_loaded() {
    let load = ["FUNCTION", "LOAD", "#!lua name=endless\nwhile true do end"];
    for is_in_transaction in [false, true] {
        let server = crate::start::create_idle_server(Config::defaults());
        let mut seat = server.keyspace.slots.join().expect("a seat");
        let mut stream = create_stream(&server, &seat, 1);
        let first = command(&["SET", "first", "value"]);
        let mut input = first.clone();
        if is_in_transaction {
            input.extend(command(&["MULTI"]));
        }
        input.extend(command(&load));
        if is_in_transaction {
            input.extend(command(&["EXEC"]));
        }
        stream.input_mut().extend_from_slice(&input);
        server.scripting.running.stop_all();
        assert_eq!(stream.run_commands(&mut seat, &mut || {}), Ok(true));
        let end = ReplicationOffset::ZERO.advanced_by(first.len() as u64);
        assert_eq!(server.replication.offset(), end);
        assert_eq!(unexpected_errors(&server), 0);
    }
}

/// A shutdown may have to close the gate, and must not count what has not run.
#[test]
fn a_round_ends_when_the_end_of_the_process_has_stopped_the_holder_of_a_slot() {
    let server = crate::start::create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut holder = server.keyspace.slots.join().expect("a seat");
    let request = |number: usize| command(&["SET", &format!("key:{number}"), "value"]);
    let input: Vec<u8> = (0..2 * MIN_ROUND_COMMANDS).flat_map(request).collect();
    lease_all_for_good(&mut holder.exclusive());
    // It is stopped while the round waits.
    let mut stop = || server.scripting.running.note_unfinished_unit();
    // Then no other round begins, and commands outside of rounds wait outside of the gate.
    for ended in [Err(StreamError::ShuttingDown), Ok(true)] {
        let mut stream = create_stream(&server, &seat, 2);
        stream.input_mut().extend_from_slice(&input);
        assert_eq!(stream.run_commands(&mut seat, &mut stop), ended);
        assert_eq!(server.replication.offset(), ReplicationOffset::ZERO);
        drop(seat.exclusive());
    }
}
