//! End-to-end tests of blocking commands, with many more workers than cores.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness;
use crate::harness::client::Client;
use crate::harness::server::{MOVES, PATIENCE, Server};

fn start() -> Server {
    Server::start(&[&["--io-threads", "8"], &MOVES[..]].concat())
}

fn connect(port: u16) -> Client {
    Client::connect(port)
}

/// Returns a client that has sent these words and is blocked. `before` other clients are already blocked.
fn connect_blocked(server: &Server, watcher: &mut Client, before: u64, words: &[&str]) -> Client {
    let mut client = connect(server.port);
    client.send(words);
    watcher.await_info("blocked_clients", before + 1);
    client
}

impl Client {
    /// Returns `true` if nothing arrives for 30 milliseconds.
    fn receives_nothing(&mut self) -> bool {
        let stream = self.0.get_ref();
        stream
            .set_read_timeout(Some(Duration::from_millis(30)))
            .expect("sets a timeout");
        let nothing = self.0.fill_buf().is_err();
        self.0
            .get_ref()
            .set_read_timeout(Some(PATIENCE))
            .expect("sets a timeout");
        nothing
    }

    fn clients_figure(&mut self, field: &str) -> u64 {
        let text = self.call(&["INFO", "clients"]);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse().ok()).expect("a number")
    }

    fn await_info(&mut self, field: &str, expected: u64) {
        let start = Instant::now();
        loop {
            let found = self.clients_figure(field);
            if found == expected {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{field} is {found}, not {expected}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that no client is blocked and that no state of blocked clients is left.
    fn expect_no_blocked_clients(&mut self) {
        self.await_info("blocked_clients", 0);
        for field in [
            "clients_in_timeout_table",
            "total_blocking_keys",
            "total_blocking_keys_on_nokey",
        ] {
            self.await_info(field, 0);
        }
    }
}

#[test]
fn one_push_serves_waiters_in_order_of_arrival() {
    let server = start();
    let mut pusher = connect(server.port);
    let commands = [
        ["BLPOP", "k", "0"].as_slice(),
        &["BLPOP", "other", "k", "0"],
        &["BLMPOP", "0", "1", "k", "LEFT"],
        &["BLMOVE", "k", "to", "LEFT", "RIGHT", "0"],
        &["BLPOP", "k", "k", "100"],
    ];
    let mut waiters: Vec<Client> = (0..40)
        .map(|index| connect_blocked(&server, &mut pusher, index as u64, commands[index % commands.len()]))
        .collect();
    assert_eq!(pusher.clients_figure("total_blocking_keys"), 2);
    assert_eq!(pusher.clients_figure("clients_in_timeout_table"), 8);
    let elements: Vec<String> = (0..41).map(|number| format!("e{number}")).collect();
    let mut words = vec!["RPUSH", "k"];
    words.extend(elements.iter().map(String::as_str));
    assert_eq!(pusher.call(&words), "41");
    for (index, waiter) in waiters.iter_mut().enumerate() {
        let expected = match index % commands.len() {
            2 => format!("(k (e{index}))"),
            3 => format!("e{index}"),
            _ => format!("(k e{index})"),
        };
        assert_eq!(waiter.answer(), expected);
    }
    assert_eq!(pusher.call(&["LRANGE", "k", "0", "-1"]), "(e40)");
    assert_eq!(
        pusher.call(&["LRANGE", "to", "0", "-1"]),
        "(e3 e8 e13 e18 e23 e28 e33 e38)"
    );
    pusher.expect_no_blocked_clients();
}

#[test]
fn each_push_serves_the_client_that_has_waited_longest() {
    let server = start();
    let mut pusher = connect(server.port);
    let mut waiters: Vec<Client> = (0..30)
        .map(|before| connect_blocked(&server, &mut pusher, before, &["BLPOP", "k", "0"]))
        .collect();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        pusher.call(&["LPUSH", "k", &number.to_string()]);
        assert_eq!(waiter.answer(), format!("(k {number})"));
    }
    pusher.expect_no_blocked_clients();
}

#[test]
fn a_wait_is_never_shorter_than_its_timeout() {
    let server = start();
    let mut watcher = connect(server.port);
    let mut waiters: Vec<(Client, Instant, u64)> = [0, 1, 5, 20, 20, 50, 100, 150, 300]
        .into_iter()
        .map(|timeout_ms| {
            let mut client = connect(server.port);
            assert_eq!(client.call(&["PING"]), "PONG");
            let start = Instant::now();
            client.send(&["BLPOP", "a", "b", &format!("0.{timeout_ms:03}")]);
            (client, start, timeout_ms)
        })
        .collect();
    for (client, start, timeout_ms) in waiters.iter_mut().skip(1) {
        assert_eq!(client.answer(), "-");
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(*timeout_ms),
            "{elapsed:?} for {timeout_ms} ms"
        );
        assert!(elapsed < Duration::from_millis(*timeout_ms) + PATIENCE, "{elapsed:?}");
    }
    // A timeout of 0 is unlimited.
    assert!(waiters[0].0.receives_nothing());
    assert_eq!(watcher.clients_figure("blocked_clients"), 1);
    drop(waiters);
    watcher.expect_no_blocked_clients();
}

#[test]
fn a_client_that_disconnects_takes_no_element() {
    let server = start();
    let mut watcher = connect(server.port);
    for round in 0..20 {
        let mut first = connect_blocked(&server, &mut watcher, 0, &["BLPOP", "k", "l", "m", "0"]);
        if round % 2 == 0 {
            // Bytes behind the command must not hide the end of the connection.
            first.send(&["PING"]);
        }
        let mut second = connect_blocked(&server, &mut watcher, 1, &["BLPOP", "k", "0"]);
        drop(first);
        watcher.await_info("blocked_clients", 1);
        watcher.await_info("total_blocking_keys", 1);
        assert_eq!(watcher.call(&["RPUSH", "k", "x", "y"]), "2");
        assert_eq!(second.answer(), "(k x)");
        assert_eq!(watcher.call(&["LPOP", "k"]), "y");
        watcher.expect_no_blocked_clients();
    }
}

#[test]
fn other_clients_can_unblock_a_client() {
    let server = start();
    let mut watcher = connect(server.port);
    let id_of = |client: &mut Client| client.call(&["CLIENT", "ID"]);
    let mut waiter = connect(server.port);
    let id = id_of(&mut waiter);
    assert_eq!(watcher.call(&["CLIENT", "UNBLOCK", &id]), "0");
    for (how, answer) in [
        (&["CLIENT", "UNBLOCK", &id][..], "-"),
        (&["CLIENT", "UNBLOCK", &id, "TIMEOUT"], "-"),
        (
            &["CLIENT", "UNBLOCK", &id, "ERROR"],
            "UNBLOCKED client unblocked via CLIENT UNBLOCK",
        ),
    ] {
        waiter.send(&["BLMOVE", "k", "l", "LEFT", "LEFT", "0"]);
        watcher.await_info("blocked_clients", 1);
        let line = watcher.call(&["CLIENT", "LIST", "ID", &id]);
        assert!(line.contains(" flags=b ") && line.contains(" cmd=blmove "), "{line}");
        assert_eq!(watcher.call(how), "1");
        assert_eq!(watcher.call(how), "0");
        assert_eq!(waiter.answer(), answer);
        watcher.expect_no_blocked_clients();
    }
    waiter.send(&["BLPOP", "k", "0"]);
    watcher.await_info("blocked_clients", 1);
    assert_eq!(watcher.call(&["CLIENT", "KILL", "ID", &id]), "1");
    watcher.expect_no_blocked_clients();
    assert_eq!(watcher.call(&["LPUSH", "k", "x"]), "1");
    assert_eq!(watcher.call(&["LLEN", "k"]), "1");
}

#[test]
fn commands_after_a_blocked_one_wait() {
    let server = start();
    let mut other = connect(server.port);
    let mut client = connect(server.port);
    client.send(&["SET", "s", "1"]);
    client.send(&["BLPOP", "k", "0"]);
    client.send(&["INCR", "s"]);
    client.send(&["BLPOP", "k", "0.05"]);
    client.send(&["GET", "s"]);
    assert_eq!(client.answer(), "OK");
    other.await_info("blocked_clients", 1);
    assert!(client.receives_nothing());
    assert_eq!(other.call(&["GET", "s"]), "1");
    other.call(&["LPUSH", "k", "x"]);
    assert_eq!(client.answer(), "(k x)");
    assert_eq!(client.answer(), "2");
    assert_eq!(client.answer(), "-");
    assert_eq!(client.answer(), "2");
}

#[test]
fn chains_of_moves_are_served_to_their_end() {
    const LENGTH: usize = 200;
    let server = start();
    let mut pusher = connect(server.port);
    let mut waiters: Vec<Client> = (0..LENGTH)
        .map(|from| {
            let names = [format!("k{from}"), format!("k{}", from + 1)];
            let words = ["BLMOVE", &names[0], &names[1], "LEFT", "RIGHT", "0"];
            connect_blocked(&server, &mut pusher, from as u64, &words)
        })
        .collect();
    // The reply comes when all moves are done.
    assert_eq!(pusher.call(&["RPUSH", "k0", "x", "y"]), "2");
    assert_eq!(pusher.call(&["LRANGE", &format!("k{LENGTH}"), "0", "-1"]), "(x)");
    assert_eq!(pusher.call(&["LRANGE", "k0", "0", "-1"]), "(y)");
    for waiter in &mut waiters {
        assert_eq!(waiter.answer(), "x");
    }
    pusher.expect_no_blocked_clients();
}

#[test]
fn circular_and_in_place_moves_terminate() {
    let server = start();
    let mut pusher = connect(server.port);
    let mut circle = [
        connect_blocked(&server, &mut pusher, 0, &["BRPOPLPUSH", "a", "b", "0"]),
        connect_blocked(&server, &mut pusher, 1, &["BRPOPLPUSH", "b", "a", "0"]),
    ];
    pusher.call(&["RPUSH", "a", "x"]);
    for waiter in &mut circle {
        assert_eq!(waiter.answer(), "x");
    }
    assert_eq!(pusher.call(&["LRANGE", "a", "0", "-1"]), "(x)");
    assert_eq!(pusher.call(&["EXISTS", "b"]), "0");
    let mut in_place = [
        connect_blocked(&server, &mut pusher, 0, &["BLMOVE", "s", "s", "LEFT", "RIGHT", "0"]),
        connect_blocked(&server, &mut pusher, 1, &["BLMOVE", "s", "s", "LEFT", "RIGHT", "0"]),
    ];
    pusher.call(&["RPUSH", "s", "x", "y"]);
    assert_eq!(in_place[0].answer(), "x");
    assert_eq!(in_place[1].answer(), "y");
    assert_eq!(pusher.call(&["LRANGE", "s", "0", "-1"]), "(x y)");
    pusher.expect_no_blocked_clients();
}

#[test]
fn a_move_to_a_wrong_type_fails_and_leaves_its_element_to_the_next_waiter() {
    let server = start();
    let mut pusher = connect(server.port);
    pusher.call(&["SET", "string", "x"]);
    let mut first = connect_blocked(
        &server,
        &mut pusher,
        0,
        &["BLMOVE", "k", "string", "LEFT", "RIGHT", "0"],
    );
    let mut second = connect_blocked(&server, &mut pusher, 1, &["BLPOP", "k", "0"]);
    pusher.call(&["RPUSH", "k", "e"]);
    assert!(first.answer().starts_with("WRONGTYPE"));
    assert_eq!(second.answer(), "(k e)");
    assert_eq!(pusher.call(&["GET", "string"]), "x");
    pusher.expect_no_blocked_clients();
}

#[test]
fn every_command_that_creates_a_list_serves_its_waiters() {
    let server = start();
    let mut pusher = connect(server.port);
    pusher.call(&["RPUSH", "source", "x"]);
    let dump: Vec<&[&str]> = vec![
        &["RPUSH", "k", "x"],
        &["RENAME", "source", "k"],
        &["COPY", "source", "k"],
        &["LMOVE", "source", "k", "LEFT", "LEFT"],
        &["RPOPLPUSH", "source", "k"],
    ];
    for words in dump {
        pusher.call(&["DEL", "source", "k"]);
        pusher.call(&["RPUSH", "source", "x"]);
        let mut waiter = connect_blocked(&server, &mut pusher, 0, &["BLPOP", "k", "0"]);
        pusher.call(&["SET", "k", "another type"]);
        assert!(waiter.receives_nothing());
        pusher.call(&["DEL", "k"]);
        pusher.call(words);
        assert_eq!(waiter.answer(), "(k x)", "{words:?}");
        assert_eq!(pusher.call(&["EXISTS", "k"]), "0", "{words:?}");
    }
    for words in [&["SWAPDB", "0", "1"][..], &["MOVE", "k", "0"]] {
        let mut waiter = connect_blocked(&server, &mut pusher, 0, &["BLPOP", "k", "0"]);
        let mut elsewhere = connect(server.port);
        elsewhere.call(&["SELECT", "1"]);
        elsewhere.call(&["RPUSH", "k", "x"]);
        assert!(waiter.receives_nothing());
        elsewhere.call(words);
        assert_eq!(waiter.answer(), "(k x)", "{words:?}");
    }
    pusher.expect_no_blocked_clients();
}

/// A client reads the destination of a move for a long time. The push that causes the move is answered after the move.
#[test]
fn a_destination_that_is_being_read_is_waited_for() {
    const ELEMENTS: usize = 1_000_000;
    let server = start();
    let mut pusher = connect(server.port);
    for _ in 0..ELEMENTS / 10_000 {
        let mut words = vec!["RPUSH", "large"];
        words.extend(std::iter::repeat_n("an element of the large list", 10_000));
        pusher.call(&words);
    }
    for round in 0..5 {
        let mut first = connect_blocked(&server, &mut pusher, 0, &["BLMOVE", "k", "large", "LEFT", "RIGHT", "0"]);
        let mut second = connect_blocked(&server, &mut pusher, 1, &["BLPOP", "k", "0"]);
        let mut reader = connect(server.port);
        reader.send(&["LRANGE", "large", "0", "-1"]);
        // By now the reader usually holds its lease.
        thread::sleep(Duration::from_millis(2));
        assert_eq!(pusher.call(&["RPUSH", "k", "x", "y"]), "2");
        assert_eq!(pusher.call(&["LLEN", "large"]), (ELEMENTS + round + 1).to_string());
        assert_eq!(pusher.call(&["EXISTS", "k"]), "0");
        assert_eq!(first.answer(), "x");
        assert_eq!(second.answer(), "(k y)");
        reader.answer();
        pusher.expect_no_blocked_clients();
    }
}

/// Others see the elements, so the clients that wait for them must not time out because a script holds the destination.
#[test]
fn a_client_whose_destination_a_script_holds_does_not_time_out() {
    let server = start();
    let mut pusher = connect(server.port);
    for timeout_s in [1, 4, 16, 64] {
        let timeout = timeout_s.to_string();
        let begin = Instant::now();
        let mut first = connect_blocked(
            &server,
            &mut pusher,
            0,
            &["BLMOVE", "k", "to", "LEFT", "RIGHT", &timeout],
        );
        let mut second = connect_blocked(&server, &mut pusher, 1, &["BLPOP", "k", &timeout]);
        let mut script = connect(server.port);
        server.run_script(&mut script, &["EVAL", "while true do end", "1", "to"]);
        pusher.send(&["RPUSH", "k", "x", "y"]);
        let mut reader = connect(server.port);
        harness::wait_until("the elements are seen", || reader.call(&["LLEN", "k"]) == "2");
        let is_in_time = begin.elapsed() < Duration::from_secs(timeout_s);
        if is_in_time {
            thread::sleep(Duration::from_millis(1000 * timeout_s + 200).saturating_sub(begin.elapsed()));
            assert!(
                first.receives_nothing() && second.receives_nothing(),
                "the elements are there"
            );
        }
        assert_eq!(reader.call(&["SCRIPT", "KILL"]), "OK");
        let answers = (first.answer(), second.answer());
        assert_eq!(pusher.answer(), "2");
        script.answer();
        pusher.expect_no_blocked_clients();
        if is_in_time {
            assert_eq!(answers, ("x".to_owned(), "(k y)".to_owned()));
            return;
        }
        pusher.call(&["DEL", "k", "to"]);
    }
    panic!("the machine is too slow");
}

/// A script holds the destination of a move. The client that waits for the other key of the same transaction gets its
/// element nevertheless.
#[test]
fn a_destination_that_a_script_holds_delays_no_other_key() {
    for workers in ["2", "8"] {
        let all = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let server = Server::start(&[&all[..], &["--busy-reply-threshold", "0"]].concat());
        let (mut pusher, mut admin) = (connect(server.port), connect(server.port));
        let mut moving = connect_blocked(&server, &mut pusher, 0, &["BLMOVE", "k", "to", "LEFT", "RIGHT", "0"]);
        let mut popping = connect_blocked(&server, &mut pusher, 1, &["BLPOP", "other", "0"]);
        let mut script = connect(server.port);
        server.run_script(&mut script, &["EVAL", "while true do end", "1", "to"]);
        pusher.send(&["MULTI"]);
        pusher.send(&["RPUSH", "k", "x"]);
        pusher.send(&["RPUSH", "other", "y"]);
        pusher.send(&["EXEC"]);
        assert_eq!(popping.answer(), "(other y)");
        assert!(moving.is_waiting());
        assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
        assert_eq!(moving.answer(), "x");
        (0..3).for_each(|_| drop(pusher.answer()));
        assert_eq!(pusher.answer(), "(1 1)");
        script.answer();
        pusher.expect_no_blocked_clients();
    }
}

/// EXEC is answered at once. The client that pops an element is served when the pause ends, as a command that pops one
/// is, and the client that reads a stream at once.
#[test]
fn a_pause_that_begins_in_a_transaction_holds_back_the_writes_of_blocked_clients() {
    for workers in ["2", "8"] {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut client = connect(server.port);
        let mut popping = connect_blocked(&server, &mut client, 0, &["BLPOP", "list", "0"]);
        let mut reading = connect_blocked(
            &server,
            &mut client,
            1,
            &["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"],
        );
        let commands: [&[&str]; 3] = [
            &["RPUSH", "list", "x"],
            &["XADD", "stream", "1-1", "field", "value"],
            &["CLIENT", "PAUSE", "100000", "WRITE"],
        ];
        assert_eq!(client.transact(&commands), "(1 1-1 OK)");
        assert_eq!(reading.answer(), "((stream ((1-1 (field value)))))");
        assert!(popping.receives_nothing());
        assert_eq!(client.call(&["LLEN", "list"]), "1");
        assert_eq!(client.call(&["CLIENT", "UNPAUSE"]), "OK");
        assert_eq!(popping.answer(), "(list x)");
        assert_eq!(client.call(&["EXISTS", "list"]), "0");
        client.expect_no_blocked_clients();
    }
}

/// The pause holds back the consumer of a group. A client that waits for a later entry of the same stream times out.
#[test]
fn a_pause_of_writes_does_not_suspend_the_timeout_of_a_client_that_reads() {
    for workers in ["2", "8"] {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut client = connect(server.port);
        let create = ["XGROUP", "CREATE", "stream", "group", "$", "MKSTREAM"];
        assert_eq!(client.call(&create), "OK");
        let consume = "XREADGROUP GROUP group consumer BLOCK 0 STREAMS stream >";
        let consume: Vec<&str> = consume.split(' ').collect();
        let mut consumer = connect_blocked(&server, &mut client, 0, &consume);
        let read = ["XREAD", "BLOCK", "2000", "STREAMS", "stream", "5-0"];
        let mut reader = connect_blocked(&server, &mut client, 1, &read);
        let commands: [&[&str]; 2] = [
            &["XADD", "stream", "1-1", "field", "value"],
            &["CLIENT", "PAUSE", "1000000", "WRITE"],
        ];
        assert_eq!(client.transact(&commands), "(1-1 OK)");
        assert_eq!(reader.answer(), "-");
        assert!(consumer.is_waiting());
        assert_eq!(client.call(&["CLIENT", "UNPAUSE"]), "OK");
        assert_eq!(consumer.answer(), "((stream ((1-1 (field value)))))");
        client.expect_no_blocked_clients();
    }
}

/// The change that serves a client invalidates the copy that it had before it was blocked. The entries that it gets are
/// a copy again.
#[test]
fn the_stream_from_which_a_blocked_client_is_served_is_tracked() {
    for workers in ["2", "8"] {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let (mut reader, mut invalidated, mut writer) =
            (connect(server.port), connect(server.port), connect(server.port));
        let id = invalidated.call(&["CLIENT", "ID"]);
        invalidated.call(&["SUBSCRIBE", "__redis__:invalidate"]);
        assert_eq!(reader.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
        for round in 1..=20 {
            reader.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
            writer.await_info("blocked_clients", 1);
            let first = format!("{round}-1");
            assert_eq!(writer.call(&["XADD", "stream", &first, "field", "value"]), first);
            assert_eq!(reader.answer(), format!("((stream (({first} (field value)))))"));
            assert_eq!(invalidated.answer(), "(message __redis__:invalidate (stream))");
            let second = format!("{round}-2");
            assert_eq!(writer.call(&["XADD", "stream", &second, "field", "value"]), second);
            assert_eq!(writer.call(&["PUBLISH", "__redis__:invalidate", "end"]), "1");
            assert_eq!(invalidated.answer(), "(message __redis__:invalidate (stream))");
            assert_eq!(invalidated.answer(), "(message __redis__:invalidate end)");
        }
    }
}

/// The ended waits and watches of many clients are in a slot that a script holds. Those in other slots are removed.
#[test]
fn ended_waits_in_a_slot_that_a_script_holds_delay_no_others() {
    for workers in ["2", "8"] {
        let all = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        // With this seed, no other key is in the slot of "held".
        let further = ["--busy-reply-threshold", "0", "--hash-seed", "weft"];
        let server = Server::start(&[&all[..], &further].concat());
        let mut watcher = connect(server.port);
        let mut clients: Vec<Client> = (0..40)
            .map(|index| {
                connect_blocked(
                    &server,
                    &mut watcher,
                    index,
                    &["BLPOP", "held", &format!("own:{index}"), "0"],
                )
            })
            .collect();
        let mut watching = connect(server.port);
        assert_eq!(watching.call(&["WATCH", "held", "own"]), "OK");
        assert_eq!(watcher.clients_figure("total_blocking_keys"), 41);
        let mut script = connect(server.port);
        server.run_script(&mut script, &["EVAL", "while true do end", "1", "held"]);
        clients.clear();
        assert_eq!(watching.call(&["UNWATCH"]), "OK");
        watcher.await_info("total_blocking_keys", 1);
        watcher.await_info("total_watched_keys", 1);
        assert_eq!(watcher.call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        watcher.await_info("total_watched_keys", 0);
        watcher.expect_no_blocked_clients();
    }
}

/// Producers push numbers to some keys; consumers take them with every blocking command. No number is lost or
/// duplicated.
#[test]
fn every_element_reaches_exactly_one_of_many_consumers() {
    const PRODUCERS: usize = 6;
    const CONSUMERS: usize = 24;
    const EACH: usize = 1500;
    let server = Arc::new(start());
    let port = server.port;
    let taken = Arc::new(AtomicUsize::new(0));
    let produce = |number: usize| {
        let mut client = connect(port);
        let mut random = fastrand::Rng::with_seed(number as u64);
        let mut element = number * EACH;
        while element < (number + 1) * EACH {
            let count = random.usize(1..4).min((number + 1) * EACH - element);
            let mut words = vec!["RPUSH".to_owned(), format!("q{}", random.usize(0..5))];
            words.extend((element..element + count).map(|element| element.to_string()));
            client.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
            element += count;
        }
    };
    let consume = |number: usize, taken: &AtomicUsize| {
        let mut client = connect(port);
        let mut random = fastrand::Rng::with_seed(1000 + number as u64);
        let mut elements: Vec<usize> = Vec::new();
        while taken.load(Ordering::Relaxed) < PRODUCERS * EACH {
            let (one, other) = (format!("q{}", random.usize(0..5)), format!("q{}", random.usize(0..5)));
            let timeout = if random.bool() { "0.02" } else { "0.5" };
            let reply = match random.usize(0..4) {
                0 => client.call(&["BLPOP", &one, &other, timeout]),
                1 => client.call(&["BRPOP", &one, timeout]),
                2 => client.call(&["BLMPOP", timeout, "2", &one, &other, "LEFT", "COUNT", "3"]),
                _ => {
                    // The element is only moved, not taken.
                    client.call(&["BLMOVE", &one, &other, "LEFT", "RIGHT", timeout]);
                    continue;
                }
            };
            let words = reply.replace(['(', ')'], "");
            let before = elements.len();
            elements.extend(words.split(' ').filter_map(|word| word.parse::<usize>().ok()));
            taken.fetch_add(elements.len() - before, Ordering::Relaxed);
        }
        elements
    };
    let start = Instant::now();
    let all = thread::scope(|scope| {
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|number| {
                scope.spawn({
                    let taken = taken.clone();
                    move || consume(number, &taken)
                })
            })
            .collect();
        for number in 0..PRODUCERS {
            scope.spawn(move || produce(number));
        }
        let mut all: HashMap<usize, usize> = HashMap::new();
        for consumer in consumers {
            for element in consumer.join().expect("ends well") {
                *all.entry(element).or_default() += 1;
            }
        }
        all
    });
    assert!(start.elapsed() < PATIENCE);
    for element in 0..PRODUCERS * EACH {
        assert_eq!(all.get(&element), Some(&1), "element {element}");
    }
    let mut client = connect(server.port);
    client.expect_no_blocked_clients();
    assert_eq!(client.call(&["DBSIZE"]), "0");
}

/// Returns the parts of a pushed message or of an array, or a plain reply, as [`Client::answer`] writes them.
fn receive_with_pushes(client: &mut Client) -> String {
    let is_push = client.0.fill_buf().expect("receives").first() == Some(&b'>');
    if !is_push {
        return client.answer();
    }
    let mut line = String::new();
    client.0.read_line(&mut line).expect("receives");
    let length: usize = line[1..].trim_end().parse().expect("a length");
    let parts: Vec<String> = (0..length).map(|_| client.answer()).collect();
    format!("push {}", parts.join(" "))
}

/// The messages that the commands of one pipeline cause reach a blocked client in the order of the commands: before the
/// element, if they came before the push, and after it otherwise. What the client's own operation causes comes last.
#[test]
fn a_blocked_client_gets_messages_and_its_element_in_the_order_of_their_commands() {
    for workers in ["1", "2", "8"] {
        let all = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let events = ["--notify-keyspace-events", "KEA"];
        let moves: &[&str] = if workers == "1" { &[] } else { &MOVES };
        let server = Server::start(&[&all[..], &events, moves].concat());
        let mut watcher = connect(server.port);
        thread::scope(|scope| {
            for number in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    for round in 0..150 {
                        receive_in_order(server, &format!("{number}:{round}"));
                    }
                });
            }
        });
        watcher.expect_no_blocked_clients();
    }
}

fn receive_in_order(server: &Server, name: &str) {
    let (source, destination) = (format!("source:{name}"), format!("destination:{name}"));
    let (mut receiver, mut writer) = (connect_receiver(server, &source), connect(server.port));
    for channel in [name.to_owned(), format!("__keyspace@0__:{destination}")] {
        receiver.send(&["SUBSCRIBE", &channel]);
        assert!(receive_with_pushes(&mut receiver).starts_with("push subscribe"));
    }
    receiver.send(&["CLIENT", "ID"]);
    let id = receiver.answer();
    receiver.send(&["BLMOVE", &source, &destination, "LEFT", "LEFT", "0"]);
    harness::wait_until("the receiver is blocked", || {
        writer
            .call(&["CLIENT", "LIST", "ID", id.trim_start_matches(':'), "FLAGS", "b"])
            .contains("cmd=blmove")
    });
    writer.send(&["PUBLISH", name, "before"]);
    writer.send(&["RPUSH", &source, "element"]);
    writer.send(&["PUBLISH", name, "after"]);
    (0..3).for_each(|_| drop(writer.answer()));
    let received: Vec<String> = (0..7).map(|_| receive_with_pushes(&mut receiver)).collect();
    let about = |key: &str, event: &str| format!("push message __keyspace@0__:{key} {event}");
    let expected = [
        format!("push message {name} before"),
        about(&source, "rpush"),
        "element".to_owned(),
        about(&destination, "lpush"),
        about(&source, "lpop"),
        about(&source, "del"),
        format!("push message {name} after"),
    ];
    assert_eq!(received, expected, "{name}");
}

/// One push serves two clients. What the operation of the second one causes reaches the first one after its element.
#[test]
fn a_served_client_gets_its_element_before_messages_about_the_next_one() {
    for workers in ["1", "2", "8"] {
        let all = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let server = Server::start(&[&all[..], &["--notify-keyspace-events", "KEA"]].concat());
        let mut watcher = connect(server.port);
        for round in 0..50 {
            let (source, destination) = (format!("source:{round}"), format!("destination:{round}"));
            let (mut first, mut second) = (connect_receiver(&server, &destination), connect(server.port));
            first.send(&["BLPOP", &source, "0"]);
            watcher.await_info("blocked_clients", 1);
            second.send(&["BLMOVE", &source, &destination, "LEFT", "LEFT", "0"]);
            watcher.await_info("blocked_clients", 2);
            assert_eq!(watcher.call(&["RPUSH", &source, "one", "two"]), "2");
            assert_eq!(receive_with_pushes(&mut first), format!("({source} one)"));
            let event = format!("push message __keyspace@0__:{destination} lpush");
            assert_eq!(receive_with_pushes(&mut first), event);
            assert_eq!(second.answer(), "two");
        }
    }
}

/// Requests that arrive while their worker is busy run in one batch: the client is served before it counts as blocked.
/// There is one worker, since the requests of all three clients must be in its batch. The test above has eight.
#[test]
fn a_client_that_is_served_within_its_batch_gets_earlier_messages_first() {
    let arguments = ["--io-threads", "1", "--enable-debug-command", "yes"];
    let server = Server::start(&arguments);
    let (mut sleeper, mut writer) = (connect(server.port), connect(server.port));
    for round in 0..20 {
        let name = format!("round:{round}");
        let mut receiver = connect_receiver(&server, &name);
        sleeper.send(&["DEBUG", "SLEEP", "0.03"]);
        thread::sleep(Duration::from_millis(5));
        receiver.send(&["BLPOP", &name, "0"]);
        thread::sleep(Duration::from_millis(5));
        writer.send(&["PUBLISH", &format!("__keyspace@0__:{name}"), "before"]);
        writer.send(&["RPUSH", &name, "element"]);
        let received = [receive_with_pushes(&mut receiver), receive_with_pushes(&mut receiver)];
        let message = format!("push message __keyspace@0__:{name} before");
        assert_eq!(received, [message, format!("({name} element)")]);
        sleeper.answer();
        (0..2).for_each(|_| drop(writer.answer()));
    }
}

/// Returns a client that receives the events of a key in RESP3.
fn connect_receiver(server: &Server, key: &str) -> Client {
    let mut receiver = connect(server.port);
    receiver.send(&["HELLO", "3"]);
    receiver.send(&["PING", "greeted"]);
    while receiver.answer() != "greeted" {}
    receiver.send(&["SUBSCRIBE", &format!("__keyspace@0__:{key}")]);
    assert!(receive_with_pushes(&mut receiver).starts_with("push subscribe"));
    receiver
}

/// Valkey runs the command of a blocked client again when a key is ready, and refuses it like any other command.
#[test]
fn a_replica_that_has_become_read_only_refuses_the_writes_of_blocked_clients() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = Server::start(&["--replicaof", &of, "--replica-read-only", "no"]);
    let (mut source, mut admin) = (connect(primary.port), connect(replica.port));
    admin.wait_for_info("master_link_status", "up");
    let mut writer = connect_blocked(&replica, &mut admin, 0, &["BLPOP", "list", "0"]);
    let read = ["XREAD", "BLOCK", "0", "STREAMS", "stream", "0"];
    let mut reader = connect_blocked(&replica, &mut admin, 1, &read);
    assert_eq!(admin.call(&["CONFIG", "SET", "replica-read-only", "yes"]), "OK");
    assert_eq!(source.call(&["RPUSH", "list", "a"]), "1");
    assert_eq!(source.call(&["XADD", "stream", "1-1", "f", "v"]), "1-1");
    assert_eq!(writer.answer(), "READONLY You can't write against a read only replica.");
    assert_eq!(reader.answer(), "((stream ((1-1 (f v)))))");
    assert_eq!(admin.call(&["LLEN", "list"]), "1");
    let counts = admin.call(&["INFO", "commandstats"]);
    let of_blpop = counts.lines().find(|line| line.starts_with("cmdstat_blpop:"));
    assert!(
        of_blpop.is_some_and(|line| line.contains("rejected_calls=1")),
        "{counts}"
    );
    admin.expect_no_blocked_clients();
}
