//! End-to-end tests of transactions, with many more workers than cores.

use std::io::{BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Client;
use crate::harness::server::{MOVES, PATIENCE, Server};

const TEST_DURATION: Duration = Duration::from_secs(3);

fn start() -> Server {
    Server::start(&[&["--io-threads", "8", "--enable-debug-command", "yes"], &MOVES[..]].concat())
}

fn connect(port: u16) -> Client {
    Client::connect(port)
}

fn sum(replies: &str) -> i64 {
    let words = replies.trim_matches(['(', ')']).split(' ');
    words.map(|word| word.parse::<i64>().expect("a number")).sum()
}

const ACCOUNTS: usize = 32;

/// Runs `work` on some threads for [`TEST_DURATION`], each with its own connection.
fn for_a_while(server: &Server, threads: usize, work: impl Fn(&mut Client, usize) + Send + Sync + 'static) {
    let (work, stop, port) = (Arc::new(work), Arc::new(AtomicBool::new(false)), server.port);
    let threads: Vec<_> = (0..threads)
        .map(|index| {
            let (work, stop) = (work.clone(), stop.clone());
            thread::spawn(move || {
                let mut client = connect(port);
                while !stop.load(Ordering::Relaxed) {
                    work(&mut client, index);
                }
            })
        })
        .collect();
    thread::sleep(TEST_DURATION);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no thread failed");
    }
}

#[test]
fn readers_of_many_slots_see_transfers_whole() {
    let server = start();
    let names: Vec<String> = (0..ACCOUNTS).map(|index| format!("account:{index}")).collect();
    let mut client = connect(server.port);
    for name in &names {
        client.call(&["SET", name, "1000"]);
    }
    let expected = ACCOUNTS as i64 * 1000;
    for_a_while(&server, 16, move |client, index| match index % 4 {
        0 => {
            let reads: Vec<[&str; 2]> = names.iter().map(|name| ["GET", name]).collect();
            let reads: Vec<&[&str]> = reads.iter().map(|read| &read[..]).collect();
            assert_eq!(sum(&client.transact(&reads)), expected);
        }
        1 => {
            let words: Vec<&str> = std::iter::once("MGET")
                .chain(names.iter().map(String::as_str))
                .collect();
            assert_eq!(sum(&client.call(&words)), expected);
        }
        _ => {
            let (from, to) = (&names[fastrand::usize(..ACCOUNTS)], &names[fastrand::usize(..ACCOUNTS)]);
            let amount = fastrand::u64(1..10).to_string();
            client.transact(&[&["DECRBY", from, &amount], &["INCRBY", to, &amount]]);
        }
    });
}

#[test]
fn check_and_set_loses_no_increment() {
    let server = start();
    let done = Arc::new(AtomicU64::new(0));
    let counting = done.clone();
    for_a_while(&server, 16, move |client, _| {
        let name = ["one", "two"][fastrand::usize(..2)];
        client.call(&["WATCH", name]);
        let next = client.call(&["GET", name]).parse::<u64>().unwrap_or(0) + 1;
        if client.transact(&[&["SET", name, &next.to_string()]]) == "(OK)" {
            counting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut client = connect(server.port);
    let counted: u64 = ["one", "two"]
        .iter()
        .filter_map(|name| client.call(&["GET", name]).parse::<u64>().ok())
        .sum();
    assert!(counted > 0);
    assert_eq!(counted, done.load(Ordering::Relaxed));
}

#[test]
fn transactions_over_the_whole_keyspace_mix_with_others() {
    let server = start();
    for_a_while(&server, 12, |client, index| match index % 3 {
        // Either both keys exist or none, whatever happens meanwhile.
        0 => {
            client.transact(&[
                &["SET", "left", "1"],
                &["SET", "right", "1"],
                &["DBSIZE"],
                &["SCAN", "0"],
            ]);
        }
        1 => {
            client.transact(&[&["FLUSHALL", "ASYNC"]]);
        }
        _ => {
            let seen = client.transact(&[&["EXISTS", "left"], &["EXISTS", "right"]]);
            assert!(seen == "(0 0)" || seen == "(1 1)", "{seen}");
        }
    });
}

#[test]
fn time_stands_still_within_a_transaction() {
    let server = start();
    let mut client = connect(server.port);
    let show: &[&str] = &["EVAL", "return redis.call('TIME')", "0"];
    let wait: &[&str] = &["EVAL", "for i = 1, 1000000 do end", "0"];
    let mut times = Vec::new();
    for _ in 0..2 {
        let replies = client.transact(&[&["TIME"], wait, &["TIME"], show]);
        let (first, rest) = replies.trim_start_matches('(').split_once(") - (").expect("replies");
        assert_eq!(rest, format!("{first}) ({first}))"));
        times.push(first.to_owned());
    }
    assert_ne!(times[0], times[1]);
}

#[test]
fn replies_of_other_threads_keep_their_order() {
    let server = start();
    let mut client = connect(server.port);
    for _ in 0..20 {
        let replies = client.transact(&[
            &["SET", "k", "first"],
            &["CLIENT", "LIST"],
            &["GET", "k"],
            &["INFO", "clients"],
            &["CONFIG", "SET", "maxmemory", "0"],
            &["MEMORY", "STATS"],
            &["ECHO", "last"],
        ]);
        let places: Vec<_> = [
            "OK",
            "id=",
            "first",
            "connected_clients:",
            "OK",
            "peak.allocated",
            "last",
        ]
        .iter()
        .scan(0, |from, word| {
            let found = replies[*from..].find(word).map(|at| at + *from);
            *from = found.unwrap_or(*from);
            Some(found)
        })
        .collect();
        assert!(places.iter().all(Option::is_some), "{places:?} in {replies}");
        assert_eq!(client.call(&["PING"]), "PONG");
    }
}

#[test]
fn an_expired_watched_key_fails_exec() {
    let server = start();
    let mut client = connect(server.port);
    for active in ["0", "1"] {
        client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", active]);
        loop {
            let start = Instant::now();
            client.call(&["SET", "k", "v", "PX", "100"]);
            client.call(&["WATCH", "k"]);
            // A slow machine may execute WATCH when the key has already expired.
            if start.elapsed() < Duration::from_millis(100) {
                break;
            }
            client.call(&["UNWATCH"]);
        }
        thread::sleep(Duration::from_millis(300));
        assert_eq!(client.transact(&[&["PING"]]), "-");
        assert_eq!(client.transact(&[&["PING"]]), "(PONG)");
    }
}

#[test]
fn watches_of_disconnected_clients_are_removed() {
    let server = start();
    let mut observer = connect(server.port);
    let clients: Vec<Client> = (0..40)
        .map(|index| {
            let mut client = connect(server.port);
            client.call(&["WATCH", "shared", &format!("own:{index}")]);
            client
        })
        .collect();
    let info = observer.call(&["INFO", "clients"]);
    assert!(
        info.contains("total_watched_keys:41\r\n") && info.contains("watching_clients:40\r\n"),
        "{info}"
    );
    drop(clients);
    let start = Instant::now();
    while !observer.call(&["INFO", "clients"]).contains("total_watched_keys:0\r\n") {
        assert!(start.elapsed() < PATIENCE, "watches are left");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn monitors_see_scripts_of_a_transaction_that_cannot_run() {
    let server = start();
    let mut monitor = connect(server.port);
    assert_eq!(monitor.call(&["MONITOR"]), "OK");
    let mut client = connect(server.port);
    let unknown = "0".repeat(40);
    let replies = client.transact(&[
        &["EVALSHA", &unknown, "1", "a"],
        &["EVAL", "no lua", "0"],
        &["FCALL", "nosuch", "0"],
        &["SET", "a", "b"],
    ]);
    assert!(replies.starts_with("(NOSCRIPT"), "{replies}");
    let seen: Vec<String> = (0..6)
        .map(|_| {
            let line = monitor.answer();
            line.split_once("] ")
                .map_or(line.clone(), |(_, words)| words.to_owned())
        })
        .collect();
    let evalsha = format!("\"EVALSHA\" \"{unknown}\" \"1\" \"a\"");
    let expected = [
        "\"MULTI\"",
        &evalsha,
        "\"EVAL\" \"no lua\" \"0\"",
        "\"FCALL\" \"nosuch\" \"0\"",
        "\"SET\" \"a\" \"b\"",
        "\"EXEC\"",
    ];
    assert_eq!(seen, expected);
}

/// Returns the value of a field of INFO.
fn field(info: &str, name: &str) -> String {
    let prefix = format!("{name}:");
    let value = info.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_default().to_owned()
}

/// Returns the replies to the commands of a transaction that are all sent together.
fn replies(client: &mut Client, commands: &[&[&str]]) -> Vec<String> {
    client.send(&["MULTI"]);
    commands.iter().for_each(|command| client.send(command));
    client.send(&["EXEC"]);
    (0..=commands.len()).for_each(|_| drop(client.answer()));
    let mut header = String::new();
    client.0.read_line(&mut header).expect("receives");
    assert_eq!(header.trim_end(), format!("*{}", commands.len()));
    commands.iter().map(|_| client.answer()).collect()
}

#[test]
fn info_shows_the_state_at_its_position_in_a_transaction() {
    let server = start();
    let (mut client, mut waiting) = (connect(server.port), connect(server.port));
    let id = waiting.call(&["CLIENT", "ID"]);
    waiting.send(&["BLPOP", "list", "0"]);
    while field(&client.call(&["INFO", "clients"]), "blocked_clients") != "1" {
        thread::sleep(Duration::from_millis(1));
    }
    let told = replies(
        &mut client,
        &[
            &["INFO"],
            &["SET", "a", "1"],
            &["INFO"],
            &["CLIENT", "UNBLOCK", &id],
            &["LPUSH", "list", "v"],
            &["INFO"],
            &["EVAL", "return redis.call('INFO')", "0"],
            &["CLIENT", "UNBLOCK", &id],
        ],
    );
    let figures = [0, 2, 5, 6].map(|index: usize| {
        let info = &told[index];
        let keys = field(info, "db0");
        let keys = keys.split(',').next().unwrap_or_default().to_owned();
        let [changes, blocked] = ["rdb_changes_since_last_save", "blocked_clients"].map(|name| field(info, name));
        (changes, keys, blocked)
    });
    let expected = [
        ("0", "", "1"),
        ("1", "keys=1", "1"),
        ("2", "keys=2", "0"),
        ("2", "keys=2", "0"),
    ];
    let expected = expected.map(|(changes, keys, blocked)| (changes.to_owned(), keys.to_owned(), blocked.to_owned()));
    assert_eq!(figures, expected);
    assert_eq!([&told[3], &told[7]], ["1", "0"], "it does not wait any more");
    assert_eq!(waiting.answer(), "-", "and gets nothing of what came later");
    assert_eq!(client.call(&["LRANGE", "list", "0", "-1"]), "(v)");
    // The same holds in one batch without a transaction.
    for command in [
        &["SET", "a", "2"][..],
        &["INFO", "persistence"],
        &["SET", "a", "3"],
        &["INFO", "persistence"],
    ] {
        client.send(command);
    }
    let changes: Vec<String> = (0..4)
        .map(|_| field(&client.answer(), "rdb_changes_since_last_save"))
        .collect();
    assert_eq!([&changes[1], &changes[3]], ["3", "4"]);
}

#[test]
fn clients_are_listed_and_killed_at_the_position_in_a_transaction() {
    let server = start();
    let mut client = connect(server.port);
    let mut others: Vec<Client> = (0..16).map(|_| connect(server.port)).collect();
    let ids: Vec<String> = others.iter_mut().map(|other| other.call(&["CLIENT", "ID"])).collect();
    // The connection that checked that the server listens is closed.
    client.wait_for_info("connected_clients", "17");
    let told = replies(
        &mut client,
        &[
            &["CLIENT", "LIST"],
            &["CLIENT", "SETNAME", "me"],
            &["SELECT", "3"],
            &["CLIENT", "KILL", "ID", &ids[4]],
            &["CLIENT", "KILL", "ID", &ids[4]],
            &["CLIENT", "LIST"],
            &["INFO", "clients"],
            &["SELECT", "0"],
        ],
    );
    assert_eq!(told[0].lines().count(), 17);
    assert!(told[0].contains(" name= ") && !told[0].contains(" name=me "));
    assert_eq!([&told[3], &told[4]], ["1", "0"]);
    assert_eq!(told[5].lines().count(), 16);
    let own = told[5]
        .lines()
        .find(|line| line.contains(" name=me "))
        .expect("it is listed");
    assert!(
        own.contains(" flags=x ") && own.contains(" db=3 ") && own.contains(" multi=8 "),
        "{own}"
    );
    assert!(own.contains(" cmd=exec "), "{own}");
    assert_eq!(field(&told[6], "connected_clients"), "16");
    let mut rest = Vec::new();
    assert_eq!(
        others[4].0.read_to_end(&mut rest).unwrap_or_default(),
        0,
        "it is closed"
    );
    assert_eq!(others[5].call(&["PING"]), "PONG");
}

#[test]
fn a_transaction_that_does_not_run_kills_no_client() {
    let server = start();
    let (mut client, mut other) = (connect(server.port), connect(server.port));
    let id = other.call(&["CLIENT", "ID"]);
    client.call(&["WATCH", "a"]);
    other.call(&["SET", "a", "1"]);
    assert_eq!(client.transact(&[&["CLIENT", "KILL", "ID", &id]]), "-");
    assert_eq!(other.call(&["PING"]), "PONG");
}

#[test]
fn debug_and_memory_see_the_data_in_the_middle_of_a_transaction() {
    let server = start();
    let mut client = connect(server.port);
    client.call(&["SET", "a", "1"]);
    let before = client.call(&["DEBUG", "DIGEST"]);
    let told = replies(
        &mut client,
        &[
            &["SET", "a", "2"],
            &["DEBUG", "DIGEST"],
            &["SET", "a", "1"],
            &["DEBUG", "DIGEST"],
            &["DEBUG", "POPULATE", "10", "more"],
            &["DBSIZE"],
            &["MEMORY", "STATS"],
        ],
    );
    assert_ne!(told[1], before);
    assert_eq!(told[3], before);
    assert_eq!([&told[4], &told[5]], ["OK", "11"]);
    assert!(told[6].contains("keys.count 11 "), "{}", told[6]);
    let in_script = client.call(&["EVAL", "return redis.call('MEMORY', 'STATS')[31]", "0"]);
    assert!(
        !in_script.is_empty() && !in_script.contains("cannot be run"),
        "{in_script}"
    );
}

#[test]
fn scripts_know_all_clients_wherever_they_run() {
    let server = start();
    let mut client = connect(server.port);
    let mut waiting = connect(server.port);
    waiting.send(&["BLPOP", "list", "0"]);
    while field(&client.call(&["INFO", "clients"]), "blocked_clients") != "1" {
        thread::sleep(Duration::from_millis(1));
    }
    let scripts = [
        "redis.call('SET', KEYS[1], 1); return redis.call('info', 'clients')",
        "return redis.call('in' .. 'fo', 'clients')",
        "local all = ''; for _ = 1, 2 do all = redis.pcall( \"INFO\", 'clients') end; return all",
    ];
    for script in scripts.iter().cycle().take(9) {
        let info = client.call(&["EVAL", script, "1", "key"]);
        assert_eq!(field(&info, "blocked_clients"), "1", "{script}: {info}");
    }
    let told = client.transact(&[&["EVAL", scripts[0], "1", "key"]]);
    assert!(told.contains("blocked_clients:1"), "{told}");
}

/// A client that has read the reply to EXEC finds the connections of the clients that the transaction has killed
/// closed, whichever workers they belong to.
#[test]
fn killed_clients_are_disconnected_once_exec_replies() {
    let server = start();
    let mut killer = connect(server.port);
    for round in 0..40 {
        let mut victims: Vec<Client> = (0..12).map(|_| connect(server.port)).collect();
        let ids: Vec<String> = victims
            .iter_mut()
            .map(|client| client.call(&["CLIENT", "ID"]))
            .collect();
        let kill: Vec<&str> = ["CLIENT", "KILL", "ID"]
            .into_iter()
            .chain(ids.iter().map(String::as_str))
            .collect();
        let replies = match round % 2 {
            0 => killer.transact(&[&["SET", "k", "v"], &kill, &["PING"]]),
            _ => killer.transact(&[&kill]),
        };
        assert_eq!(replies, if round % 2 == 0 { "(OK 12 PONG)" } else { "(12)" });
        for victim in &mut victims {
            victim.0.get_ref().set_nonblocking(true).expect("sets the mode");
            let mut byte = [0];
            let read = victim.0.read(&mut byte);
            assert!(matches!(read, Ok(0)), "the connection is still open: {read:?}");
        }
    }
}
