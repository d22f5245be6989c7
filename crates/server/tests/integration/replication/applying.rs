//! Tests of a replica whose stream several threads apply: each slot sees the stream in its order, and what counts as
//! applied is a prefix of the stream.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{FIRST_ID, Link, Primary, UP, await_info, command};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// The number of lists that a stream appends to.
const LISTS: usize = 61;

/// A stream whose every command appends its number to a list, in one of two databases.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

/// A command or a transaction.
struct Step {
    /// The offset after it.
    end: usize,
    /// What it appends: a database, a list and an element.
    elements: Vec<(usize, usize, usize)>,
}

impl Stream {
    /// Creates a stream of `count` elements. Every `barrier`th step is a transaction.
    fn of(count: usize, barrier: usize) -> Stream {
        let mut stream = Stream::default();
        let mut db = 0;
        stream.bytes.extend(command(&["SELECT", "0"]));
        for number in 0..count {
            if number % 173 == 172 {
                db = 1 - db;
                stream.bytes.extend(command(&["SELECT", &db.to_string()]));
            }
            let list = number * 7 % LISTS;
            let push = |list: usize| command(&["RPUSH", &format!("list:{list}"), &number.to_string()]);
            let mut elements = vec![(db, list, number)];
            if number % barrier == barrier - 1 {
                let other = (list + 1) % LISTS;
                stream.bytes.extend(command(&["MULTI"]));
                stream.bytes.extend(push(list));
                stream.bytes.extend(push(other));
                stream.bytes.extend(command(&["EXEC"]));
                elements.push((db, other, number));
            } else {
                stream.bytes.extend(push(list));
            }
            let end = stream.bytes.len();
            stream.steps.push(Step { end, elements });
        }
        stream
    }

    /// Returns the lists after all steps that end at or before an offset.
    fn lists_at(&self, offset: usize) -> HashMap<(usize, usize), Vec<String>> {
        let mut lists: HashMap<_, Vec<String>> = HashMap::new();
        for step in self.steps.iter().take_while(|step| step.end <= offset) {
            for (db, list, number) in &step.elements {
                lists.entry((*db, *list)).or_default().push(number.to_string());
            }
        }
        lists
    }

    /// Checks that a server has exactly what the stream has written up to an offset.
    fn check(&self, client: &mut Client, offset: usize) {
        let lists = self.lists_at(offset);
        for db in 0..2 {
            client.call(&["SELECT", &db.to_string()]);
            for list in 0..LISTS {
                let expected = lists.get(&(db, list)).map_or(String::new(), |list| list.join(" "));
                let found = client.call(&["LRANGE", &format!("list:{list}"), "0", "-1"]);
                assert!(
                    found == format!("({expected})"),
                    "list {list} of database {db} at {offset}: {found} instead of {expected}"
                );
            }
        }
        client.call(&["SELECT", "0"]);
    }
}

/// Starts a primary implemented here and a replica whose stream is applied by this many threads.
fn applying(threads: &str, arguments: &[&str]) -> (Primary, Server) {
    let primary = Primary::new();
    let follows = format!("127.0.0.1 {}", primary.port());
    let all = ["--replicaof", &follows, "--replica-apply-threads", threads];
    let replica = Server::start(&[&all[..], arguments].concat());
    (primary, replica)
}

/// Sends bytes of the stream, unless the replica closes the link.
fn try_send(link: &mut Link, bytes: &[u8]) {
    let _ = link.0.get_mut().write_all(bytes);
}

/// Returns the number of commands that other threads than that of the link have run.
fn run_by_apply_threads(client: &mut Client) -> u64 {
    client.info("weft_apply_thread_commands").parse().expect("a number")
}

/// Sends an empty dump that replaces all data.
fn send_empty(link: &mut Link) {
    let empty = [b"REDIS0011\xff".as_slice(), &[0; 8]].concat();
    link.send_full_sync(&empty);
}

#[test]
fn each_list_has_its_elements_in_the_order_of_the_stream() {
    for (threads, workers, barrier) in [("2", "2", 100_000), ("2", "8", 700), ("4", "8", 90), ("1", "2", 700)] {
        let (primary, replica) = applying(threads, &["--io-threads", workers]);
        let mut client = Client::connect(replica.port);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        let stream = Stream::of(30_000, barrier);
        link.send(&stream.bytes);
        let asks = link.command(&["REPLCONF", "GETACK", "*"]);
        link.await_acknowledged(stream.bytes.len() as i64 + asks);
        stream.check(&mut client, stream.bytes.len());
        if threads == "1" {
            assert_eq!(run_by_apply_threads(&mut client), 0);
        }
    }
}

/// The pause of a shutdown begins outside exclusive mode, in the middle of a round too. The shutdown waits for the
/// round.
#[test]
fn no_round_waits_for_the_shutdown_that_waits_for_it() {
    let stream = Stream::of(60_000, 100_000);
    for attempt in 0..12 {
        let (primary, mut replica) = applying("4", &["--save", "3600 1"]);
        let mut client = Client::connect(replica.port);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        await_info(&mut client, UP);
        thread::scope(|scope| {
            scope.spawn(|| try_send(&mut link, &stream.bytes));
            thread::sleep(Duration::from_millis(attempt * 3));
            client.send(&["SHUTDOWN", "SAVE"]);
            assert_eq!(replica.wait_for_exit(), Some(0), "attempt {attempt}");
        });
    }
}

#[test]
fn apply_threads_run_a_part_of_a_long_stream() {
    let (primary, replica) = applying("2", &[]);
    let mut client = Client::connect(replica.port);
    let (mut link, _) = primary.accept();
    send_empty(&mut link);
    let stream = Stream::of(20_000, 100_000);
    let mut offset = 0;
    // On a busy machine the link's thread may do all the work of a stream.
    wait_until("an apply thread runs a command", || {
        link.send(&stream.bytes);
        offset += stream.bytes.len() as i64 + link.command(&["REPLCONF", "GETACK", "*"]);
        link.await_acknowledged(offset);
        run_by_apply_threads(&mut client) > 0
    });
    // Each command is counted once.
    let calls = client.call(&["INFO", "commandstats"]);
    let pushes = calls.lines().find_map(|line| line.strip_prefix("cmdstat_rpush:calls="));
    let pushes: u64 = pushes
        .and_then(|line| line.split(',').next())
        .and_then(|count| count.parse().ok())
        .expect("RPUSH was called");
    assert_eq!(pushes % 20_000, 0);
}

#[test]
fn a_promotion_amid_the_stream_leaves_a_prefix_of_it() {
    for workers in ["2", "8"] {
        let (primary, replica) = applying("4", &["--io-threads", workers]);
        let mut client = Client::connect(replica.port);
        let stream = Stream::of(30_000, 3000);
        for attempt in 0..12_u64 {
            let (mut link, _) = primary.accept();
            send_empty(&mut link);
            link.await_acknowledged(0);
            thread::scope(|scope| {
                scope.spawn(|| try_send(&mut link, &stream.bytes));
                thread::sleep(Duration::from_millis(attempt * 3));
                assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
            });
            let offset: usize = client.info("master_repl_offset").parse().expect("an offset");
            let is_boundary = offset == 0 || stream.steps.iter().any(|step| step.end == offset);
            // SELECT ends at other offsets, and writes nothing.
            let selects = command(&["SELECT", "0"]).len();
            assert!(
                is_boundary || offset == selects || stream.steps.iter().any(|step| step.end + selects == offset),
                "{offset} lies in a command"
            );
            stream.check(&mut client, offset);
            let port = primary.port();
            assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        }
    }
}

#[test]
fn a_link_that_is_killed_amid_the_stream_continues_where_it_ended() {
    for workers in ["2", "8"] {
        let (primary, replica) = applying("4", &["--io-threads", workers]);
        let mut client = Client::connect(replica.port);
        let stream = Stream::of(60_000, 5000);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        link.await_acknowledged(0);
        await_info(&mut client, UP);
        let mut sent = 0;
        for attempt in 0..8_u64 {
            thread::scope(|scope| {
                let rest = &stream.bytes[sent..];
                scope.spawn(|| try_send(&mut link, rest));
                thread::sleep(Duration::from_millis(attempt * 2));
                wait_until("the link is killed", || {
                    client.call(&["CLIENT", "KILL", "TYPE", "primary"]) == "1"
                });
            });
            drop(link);
            let (again, asked) = primary.accept();
            link = again;
            assert_eq!(asked[..2], ["PSYNC", FIRST_ID], "it continues");
            sent = asked[2].parse::<usize>().expect("an offset") - 1;
            link.send(b"+CONTINUE\r\n");
            await_info(&mut client, UP);
        }
        link.send(&stream.bytes[sent..]);
        let asks = link.command(&["REPLCONF", "GETACK", "*"]);
        link.await_acknowledged(stream.bytes.len() as i64 + asks);
        stream.check(&mut client, stream.bytes.len());
    }
}

#[test]
fn clients_of_the_replica_learn_of_what_apply_threads_write() {
    let (primary, replica) = applying("2", &["--notify-keyspace-events", "KA"]);
    let (mut link, _) = primary.accept();
    send_empty(&mut link);
    link.await_acknowledged(0);
    let mut watching = Client::connect(replica.port);
    let mut tracking = Client::connect(replica.port);
    let mut blocked = Client::connect(replica.port);
    let mut subscribed = Client::connect(replica.port);
    let mut invalidated = Client::connect(replica.port);
    let id = invalidated.call(&["CLIENT", "ID"]);
    invalidated.call(&["SUBSCRIBE", "__redis__:invalidate"]);
    assert_eq!(tracking.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
    subscribed.call(&["SUBSCRIBE", "__keyspace@0__:counter"]);
    let mut filler = Vec::new();
    for round in 0..20 {
        assert_eq!(watching.call(&["WATCH", "counter"]), "OK");
        tracking.call(&["GET", "counter"]);
        blocked.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
        // It blocks before the stream goes on.
        wait_until("the client is blocked", || watching.info("blocked_clients") == "1");
        filler.clear();
        for number in 0..2000 {
            filler.extend(command(&["SET", &format!("key:{number}"), "1"]));
        }
        link.send(&filler);
        let id = format!("{}-1", round + 1);
        link.command(&["INCR", "counter"]);
        link.command(&["EXPIRE", "counter", "1000"]);
        link.command(&["XADD", "stream", &id, "field", "value"]);
        link.send(&filler);
        assert_eq!(blocked.answer(), format!("((stream (({id} (field value)))))"));
        assert_eq!(subscribed.answer(), "(message __keyspace@0__:counter incrby)");
        assert_eq!(subscribed.answer(), "(message __keyspace@0__:counter expire)");
        watching.call(&["MULTI"]);
        watching.call(&["GET", "counter"]);
        assert_eq!(watching.call(&["EXEC"]), "-", "the watched key has changed");
        assert_eq!(invalidated.answer(), "(message __redis__:invalidate (counter))");
    }
}

#[test]
fn a_pause_of_the_replicas_clients_holds_the_stream_back() {
    let (primary, replica) = applying("4", &[]);
    let mut client = Client::connect(replica.port);
    let (mut link, _) = primary.accept();
    send_empty(&mut link);
    link.await_acknowledged(0);
    let stream = Stream::of(60_000, 100_000);
    thread::scope(|scope| {
        let sender = scope.spawn(|| try_send(&mut link, &stream.bytes));
        for _ in 0..30 {
            let seen = client.transact(&[
                &["CLIENT", "PAUSE", "100000", "WRITE"],
                &["DBSIZE"],
                &["LLEN", "list:7"],
            ]);
            let length = seen.trim_end_matches(')').rsplit(' ').next().map(str::to_owned);
            thread::sleep(Duration::from_millis(3));
            assert_eq!(
                Some(client.call(&["LLEN", "list:7"])),
                length,
                "nothing is written during a pause"
            );
            assert_eq!(client.call(&["CLIENT", "UNPAUSE"]), "OK");
        }
        sender.join().expect("sends");
    });
    wait_until("the stream is applied", || {
        client.info("master_repl_offset") == stream.bytes.len().to_string()
    });
    stream.check(&mut client, stream.bytes.len());
}

/// The replica acknowledges what it has run during the pause, too, so the primary neither disconnects it nor counts it
/// as one that lags behind.
#[test]
fn a_replica_whose_clients_are_paused_stays_connected() {
    for threads in ["1", "4"] {
        let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let follows = format!("127.0.0.1 {}", primary.port);
        let replica = Server::start(&["--replicaof", &follows, "--replica-apply-threads", threads]);
        let (mut writer, mut client) = (Client::connect(primary.port), Client::connect(replica.port));
        await_info(&mut client, UP);
        wait_until("the replica is online", || {
            writer.info("slave0").contains("state=online")
        });
        assert_eq!(writer.call(&["CONFIG", "SET", "repl-timeout", "2"]), "OK");
        assert_eq!(client.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "OK");
        // More than the replica receives at a time.
        let value = "x".repeat(2000);
        for number in 0..1000 {
            assert_eq!(writer.call(&["SET", &format!("key:{number}"), &value]), "OK");
        }
        thread::sleep(Duration::from_secs(5));
        wait_until("the replica has acknowledged within a second", || {
            let replica = writer.info("slave0");
            replica.contains("state=online") && (replica.contains("lag=0,") || replica.contains("lag=1,"))
        });
        assert_eq!(client.call(&["DBSIZE"]), "0", "nothing is written during a pause");
        assert_eq!(client.call(&["CLIENT", "UNPAUSE"]), "OK");
        wait_until("the replica has all writes", || {
            client.info("master_repl_offset") == writer.info("master_repl_offset")
        });
        assert_eq!(client.call(&["DBSIZE"]), "1000");
        let syncs = (writer.info("sync_full"), writer.info("sync_partial_ok"));
        assert_eq!(syncs, ("1".into(), "0".into()), "the link has not broken");
    }
}

#[test]
fn a_script_that_reads_a_key_holds_back_the_stream_and_no_reader_of_other_keys() {
    for workers in ["2", "8"] {
        let (primary, replica) = applying("4", &["--io-threads", workers]);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        link.await_acknowledged(0);
        let stream = Stream::of(20_000, 100_000);
        let (mut running, mut client) = (Client::connect(replica.port), Client::connect(replica.port));
        let script = "redis.call('LLEN', KEYS[1]) while true do end";
        replica.run_script(&mut running, &["EVAL", script, "1", "list:7"]);
        thread::scope(|scope| {
            let sender = scope.spawn(|| try_send(&mut link, &stream.bytes));
            for _ in 0..20 {
                assert_eq!(client.call(&["LLEN", "another list"]), "0");
                thread::sleep(Duration::from_millis(2));
            }
            assert!(running.is_waiting(), "the script runs");
            wait_until("the script is killed", || client.call(&["SCRIPT", "KILL"]) == "OK");
            sender.join().expect("sends");
        });
        running.answer();
        wait_until("the stream is applied", || {
            client.info("master_repl_offset") == stream.bytes.len().to_string()
        });
        stream.check(&mut client, stream.bytes.len());
    }
}

/// A primary disconnects a replica that acknowledges nothing for `repl-timeout`.
#[test]
fn a_replica_whose_threads_wait_for_a_script_acknowledges() {
    for workers in ["2", "8"] {
        let (primary, replica) = applying("4", &["--io-threads", workers]);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        link.await_acknowledged(0);
        let timeout = Some(Duration::from_secs(20));
        link.0.get_ref().set_read_timeout(timeout).expect("sets a timeout");
        let (mut running, mut client) = (Client::connect(replica.port), Client::connect(replica.port));
        let script = "redis.call('LLEN', KEYS[1]) while true do end";
        replica.run_script(&mut running, &["EVAL", script, "1", "list:7"]);
        // It fits into the buffers of the sockets.
        let stream = Stream::of(2000, 100_000);
        link.send(&stream.bytes);
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2500) {
            assert_eq!(link.request()[..2], ["REPLCONF", "ACK"]);
        }
        assert!(running.is_waiting(), "the script runs");
        wait_until("the script is killed", || client.call(&["SCRIPT", "KILL"]) == "OK");
        running.answer();
        link.await_acknowledged(stream.bytes.len() as i64);
        stream.check(&mut client, stream.bytes.len());
    }
}

/// Errors mean that the data differ, so the log must name the command that failed, not one behind it in the stream.
#[test]
fn the_log_names_the_command_of_the_stream_that_failed() {
    for threads in ["1", "4"] {
        let (primary, replica) = applying(threads, &["--replica-read-only", "no", "--logfile", "log"]);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        let mut client = Client::connect(replica.port);
        await_info(&mut client, UP);
        assert_eq!(client.call(&["SET", "other", "foo"]), "OK");
        let mut stream = command(&["SELECT", "0"]);
        for number in 0..200 {
            stream.extend(command(&["SET", &format!("key:{number}"), "value"]));
        }
        stream.extend(command(&["INCRBY", "other", "1"]));
        for number in 0..200 {
            stream.extend(command(&["APPEND", &format!("key:{number}"), "value"]));
        }
        stream.extend(command(&["SET", "last", "value"]));
        link.send(&stream);
        wait_until("the stream is applied", || client.call(&["GET", "last"]) == "value");
        let expected = "'ERR value is not an integer or out of range' after processing the command 'incrby'";
        wait_until("the failure is logged", || {
            let log = std::fs::read_to_string(replica.directory.join("log")).expect("there is a log");
            assert_eq!(
                log.matches("after processing").count(),
                log.matches(expected).count(),
                "{log}"
            );
            log.contains(expected)
        });
    }
}

#[test]
fn an_append_only_file_of_a_replica_has_what_its_threads_wrote() {
    for fsync in ["always", "everysec"] {
        let (primary, mut replica) = applying("4", &["--appendonly", "yes", "--appendfsync", fsync]);
        let (mut link, _) = primary.accept();
        send_empty(&mut link);
        let stream = Stream::of(30_000, 700);
        link.send(&stream.bytes);
        let asks = link.command(&["REPLCONF", "GETACK", "*"]);
        let end = stream.bytes.len() as i64 + asks;
        // The disk follows the data, and is never ahead of it.
        loop {
            let request = link.request();
            let number = |index: usize| {
                request
                    .get(index)
                    .and_then(|word| word.parse::<i64>().ok())
                    .unwrap_or(0)
            };
            assert!(number(4) <= number(2), "{request:?}");
            if number(4) == end {
                break;
            }
        }
        replica.kill();
        replica.start_again();
        let mut client = Client::connect(replica.port);
        wait_until("the file is loaded", || {
            client.call(&["DBSIZE"]) != "LOADING Valkey is loading the dataset in memory"
        });
        stream.check(&mut client, stream.bytes.len());
    }
}

/// Writes values of all types in a pipeline, until it is told to stop.
fn write_all_types(port: u16, number: usize, is_over: &AtomicBool) {
    let mut client = Client::connect(port);
    let mut random = fastrand::Rng::with_seed(number as u64);
    while !is_over.load(Ordering::Relaxed) {
        let mut replies = 0;
        for _ in 0..200 {
            let (id, other, value) = (random.u32(..300), random.u32(..300), random.u32(..1000));
            let requests = match random.u32(..26) {
                0 | 1 => format!("SET string:{id} {value}"),
                2 => format!("INCR counter:{id}"),
                3 => format!("APPEND text:{id} {value}"),
                4 => format!("SETRANGE text:{id} 3 {value}"),
                5 => format!("RPUSH list:{id} {value} b"),
                6 => format!("LPOP list:{id} 2"),
                7 => format!("LINSERT list:{id} BEFORE b {value}"),
                8 => format!("HSET hash:{id} {value} {other}"),
                9 => format!("HINCRBY hash:{id} n 3"),
                10 => format!("SADD set:{id} {value} {other}"),
                11 => format!("SPOP set:{id}"),
                12 => format!("ZADD zset:{id} {value} {other}"),
                13 => format!("ZPOPMIN zset:{id}"),
                14 => format!("XADD stream:{id} MAXLEN ~ 50 * f {value}"),
                15 => format!("PFADD hll:{id} {value}"),
                16 => format!("SET string:{id} {value} PX 20"),
                17 => format!("PEXPIRE list:{id} 30"),
                18 => format!("DEL hash:{id} set:{id}"),
                19 => format!("RENAME counter:{id} renamed:{other}"),
                20 => format!("MULTI|INCR counter:{id}|RPUSH common {value}|EXEC"),
                21 => format!("EVAL return(redis.call('INCRBY',KEYS[1],ARGV[1])) 1 counter:{id} {value}"),
                22 => format!("SELECT {}", random.u32(..3)),
                23 => format!("LMOVE list:{id} moved LEFT RIGHT"),
                24 => format!("BLPOP list:{id} 0.001"),
                _ if random.u32(..400) == 0 => "FLUSHDB".into(),
                _ => format!("GETDEL string:{id}"),
            };
            for request in requests.split('|') {
                client.send(&request.split(' ').collect::<Vec<_>>());
                replies += 1;
            }
        }
        for _ in 0..replies {
            client.answer();
        }
    }
}

#[test]
fn a_replica_under_mixed_writers_and_its_own_replica_have_the_data_of_the_primary() {
    for workers in ["2", "8"] {
        let own = [
            "--io-threads",
            workers,
            "--enable-debug-command",
            "yes",
            "--replica-apply-threads",
            "4",
        ];
        let primary = Server::start(&own);
        let follow = |of: &Server, more: &[&str]| {
            let follows = format!("127.0.0.1 {}", of.port);
            Server::start(&[&own[..], &["--replicaof", &follows], more].concat())
        };
        let replica = follow(&primary, &["--appendonly", "yes"]);
        let chained = follow(&replica, &[]);
        let mut clients = [&primary, &replica, &chained].map(|server| Client::connect(server.port));
        await_info(&mut clients[1], UP);
        await_info(&mut clients[2], UP);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..4 {
                let (is_over, port) = (&is_over, primary.port);
                scope.spawn(move || write_all_types(port, number, is_over));
            }
            // Readers get into the way of the threads that apply.
            scope.spawn(|| {
                let mut reader = Client::connect(replica.port);
                let mut random = fastrand::Rng::with_seed(9);
                while !is_over.load(Ordering::Relaxed) {
                    let id = random.u32(..300);
                    reader.call(&["LRANGE", &format!("list:{id}"), "0", "-1"]);
                    reader.call(&["HGETALL", &format!("hash:{id}")]);
                }
            });
            for round in 0..8 {
                thread::sleep(Duration::from_millis(400));
                match round % 4 {
                    0 => drop(clients[1].call(&["CLIENT", "KILL", "TYPE", "primary"])),
                    1 => drop(clients[1].call(&["BGREWRITEAOF"])),
                    2 => drop(clients[0].call(&["FLUSHALL"])),
                    _ => drop(clients[2].call(&["CLIENT", "KILL", "TYPE", "primary"])),
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        wait_until("all have the same data and offset", || {
            let mut state = |index: usize| {
                let client = &mut clients[index];
                (client.info("master_repl_offset"), client.call(&["DEBUG", "DIGEST"]))
            };
            let first = state(0);
            first == state(1) && first == state(2) && first == state(0)
        });
        assert_eq!(clients[1].info("weft_workers_active"), workers);
    }
}
