//! Tests long commands concurrently with short ones that need the same slots or the same keys.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};

/// The size of a set whose union takes a test server some 50 ms or more.
const MEMBERS: usize = 200_000;

fn start() -> Server {
    Server::start(&[])
}

fn fill_set(client: &mut Client, key: &str, members: std::ops::Range<usize>) {
    let names: Vec<String> = members.map(|member| format!("member:{member}")).collect();
    for part in names.chunks(1000) {
        let mut words = vec!["SADD", key];
        words.extend(part.iter().map(String::as_str));
        assert_eq!(client.call(&words), part.len().to_string());
    }
}

fn fill_sorted_set(client: &mut Client, key: &str, members: usize) {
    for from in (0..members).step_by(1000) {
        let mut words = vec!["ZADD".to_owned(), key.to_owned()];
        for member in from..from + 1000 {
            words.extend([member.to_string(), format!("member:{member}")]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(client.call(&words), "1000");
    }
}

/// Runs `beside` repeatedly while a client repeats a long command: `rounds` times, and more often if necessary, until
/// `beside` has run between the first and the last of them. Returns the replies to the long command.
fn run_while_repeated(server: &Server, rounds: usize, line: &str, mut beside: impl FnMut(usize)) -> Vec<String> {
    let done = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let runs_beside = AtomicUsize::new(0);
    thread::scope(|scope| {
        let long = scope.spawn(|| {
            let mut client = Client::connect(server.port);
            let words: Vec<&str> = line.split(' ').collect();
            let mut replies = vec![client.call(&words)];
            answered.fetch_add(1, Ordering::Relaxed);
            let (start, before) = (Instant::now(), runs_beside.load(Ordering::Relaxed));
            let mut has_run_beside = false;
            while replies.len() < rounds || (!has_run_beside && start.elapsed() < PATIENCE) {
                // One run may have begun before the first reply.
                has_run_beside = runs_beside.load(Ordering::Relaxed) > before + 1;
                replies.push(client.call(&words));
                answered.fetch_add(1, Ordering::Relaxed);
            }
            done.store(true, Ordering::Relaxed);
            replies
        });
        while !done.load(Ordering::Relaxed) {
            beside(answered.load(Ordering::Relaxed));
            runs_beside.fetch_add(1, Ordering::Relaxed);
        }
        long.join().expect("the long client")
    })
}

fn figure(client: &mut Client, section: &str, name: &str) -> u64 {
    let info = client.call(&["INFO", section]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .expect("the figure");
    line.split(&[',', '='][..])
        .find_map(|word| word.parse().ok())
        .expect("a number")
}

#[test]
fn a_writer_of_the_same_key_waits_for_the_reader_and_then_runs() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "set", 0..MEMBERS);
    let mut writer = Client::connect(server.port);
    let mut added = 0;
    let replies = run_while_repeated(&server, 6, "SUNION set", |_| {
        assert_eq!(writer.call(&["SADD", "set", &format!("further:{added}")]), "1");
        assert_eq!(writer.call(&["SISMEMBER", "set", &format!("further:{added}")]), "1");
        added += 1;
    });
    // Every reply shows one moment, later replies show later moments, and the writer ran between them.
    let sizes: Vec<usize> = replies.iter().map(|reply| reply.split(' ').count()).collect();
    assert!(sizes.is_sorted(), "{sizes:?}");
    for (reply, size) in replies.iter().zip(&sizes) {
        let further = reply.matches("further:").count();
        assert_eq!(*size, MEMBERS + further);
        let all = (0..further).all(|number| reply.contains(&format!("further:{number}")));
        assert!(
            all,
            "members were added in order, and {further} were seen, but not the first ones"
        );
    }
    assert!(sizes.last() > sizes.first(), "{sizes:?}: the writer never got in");
    assert_eq!(client.call(&["SCARD", "set"]), (MEMBERS + added).to_string());
}

/// Returns `true` if a reply has arrived.
fn is_answered(client: &Client) -> bool {
    let stream = client.0.get_ref();
    stream
        .set_read_timeout(Some(Duration::from_millis(1)))
        .expect("sets a timeout");
    let answered = stream.peek(&mut [0]).is_ok();
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    answered
}

#[test]
fn writers_of_other_keys_of_the_slots_do_not_wait() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "set", 0..MEMBERS);
    // This many keys are spread over all slots, except for one in forty.
    let names: Vec<String> = (0..60_000).map(|name| format!("neighbour:{name}")).collect();
    let mut long = Client::connect(server.port);
    let mut words = vec!["SUNIONSTORE", "union"];
    words.extend(["set"; 40]);
    let overtaken = (0..20).any(|round: u32| {
        long.send(&words);
        let round = round.to_string();
        for part in names.chunks(4000) {
            let mut words = vec!["MSET"];
            words.extend(part.iter().flat_map(|name| [name.as_str(), round.as_str()]));
            assert_eq!(client.call(&words), "OK");
        }
        let overtaken = !is_answered(&long);
        assert_eq!(long.answer(), MEMBERS.to_string());
        overtaken
    });
    assert!(overtaken, "a long command kept all writers of its slots waiting");
}

#[test]
fn a_stored_result_reflects_the_moment_of_storing() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "one", 0..MEMBERS / 2);
    fill_set(&mut client, "two", MEMBERS / 2..MEMBERS);
    // The sources change meanwhile: by replacement, deletion, expiry, creation, or in place.
    let changes: [(&[&[&str]], &str, usize); 5] = [
        (&[&["SUNIONSTORE", "two", "three"]], "replaced", MEMBERS / 2 + 3),
        (&[&["DEL", "two"]], "deleted", MEMBERS / 2 + 3),
        (&[&["PEXPIRE", "two", "1"]], "expired", MEMBERS / 2 + 3),
        (&[&["SADD", "four", "d", "e"]], "made", MEMBERS + 5),
        (&[&["SREM", "three", "a", "b"]], "made smaller", MEMBERS + 1),
    ];
    for (change, what, wanted) in changes {
        client.call(&["DEL", "two", "three", "four", "union"]);
        client.call(&["SADD", "three", "a", "b", "c"]);
        fill_set(&mut client, "two", MEMBERS / 2..MEMBERS);
        let mut long = Client::connect(server.port);
        let detached = figure(&mut client, "weft", "weft_background_commands:");
        long.send(&["SUNIONSTORE", "union", "one", "two", "three", "four"]);
        while figure(&mut client, "weft", "weft_background_commands:") == detached {}
        for words in change {
            client.call(words);
        }
        let before_answer: bool = client.call(&["EXISTS", "union"]) == "0";
        let answer: usize = long.answer().parse().expect("a number");
        assert_eq!(client.call(&["SCARD", "union"]), answer.to_string(), "{what}");
        let early = MEMBERS + 3;
        assert!(answer == wanted || answer == early, "{what}: {answer} members");
        if before_answer && what != "expired" {
            assert_eq!(
                answer, wanted,
                "{what}: it was stored after the change, and is of before"
            );
        }
    }
}

#[test]
fn the_destination_may_be_a_source_and_of_any_type() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "set", 0..MEMBERS);
    fill_set(&mut client, "more", MEMBERS..MEMBERS + 1000);
    let all = (MEMBERS + 1000).to_string();
    assert_eq!(client.call(&["SUNIONSTORE", "set", "set", "more"]), all);
    assert_eq!(client.call(&["SCARD", "set"]), all);
    client.call(&["SET", "union", "a string", "EX", "1000"]);
    assert_eq!(client.call(&["SUNIONSTORE", "union", "set"]), all);
    assert_eq!(
        (client.call(&["SCARD", "union"]), client.call(&["TTL", "union"])),
        (all.clone(), "-1".into())
    );
    // An empty result deletes the destination, and the reply is 0.
    assert_eq!(client.call(&["SDIFFSTORE", "union", "set", "union"]), "0");
    assert_eq!(client.call(&["EXISTS", "union"]), "0");
    assert_eq!(client.call(&["SDIFFSTORE", "union", "set", "set"]), "0");
    client.call(&["SET", "string", "x"]);
    assert!(
        client
            .call(&["SUNIONSTORE", "union", "set", "string"])
            .starts_with("WRONGTYPE")
    );
    assert_eq!(client.call(&["EXISTS", "union"]), "0");
    let keys = client.call(&["DBSIZE"]);
    assert_eq!(keys, "3", "keys are counted where they are, not in snapshots");
}

#[test]
fn a_large_value_is_copied_outside_its_worker() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "set", 0..MEMBERS);
    client.call(&["PEXPIREAT", "set", "9999999999999"]);
    let before = figure(&mut client, "weft", "weft_background_commands:");
    assert_eq!(client.call(&["COPY", "set", "copy"]), "1");
    assert!(figure(&mut client, "weft", "weft_background_commands:") > before);
    assert_eq!(client.call(&["PEXPIRETIME", "copy"]), "9999999999999");
    assert_eq!(client.call(&["COPY", "set", "copy"]), "0");
    client.call(&["SREM", "copy", "member:0"]);
    assert_eq!(client.call(&["SCARD", "set"]), MEMBERS.to_string());
    assert_eq!(client.call(&["COPY", "set", "copy", "REPLACE"]), "1");
    assert_eq!(client.call(&["SCARD", "copy"]), MEMBERS.to_string());
    assert_eq!(client.call(&["COPY", "set", "copy", "DB", "5"]), "1");
    assert_eq!(client.call(&["COPY", "set", "copy", "DB", "5"]), "0");
    client.call(&["SELECT", "5"]);
    assert_eq!(client.call(&["SCARD", "copy"]), MEMBERS.to_string());
    assert_eq!(client.call(&["DBSIZE"]), "1");
}

#[test]
fn a_flush_does_not_wait_for_long_readers_nor_disturb_them() {
    let server = start();
    let mut client = Client::connect(server.port);
    for round in 0..5 {
        fill_sorted_set(&mut client, "zset", MEMBERS);
        let mut reader = Client::connect(server.port);
        let mut storer = Client::connect(server.port);
        reader.send(&["ZRANGE", "zset", "0", "-1"]);
        storer.send(&["ZUNIONSTORE", "union", "1", "zset"]);
        thread::sleep(Duration::from_millis(round));
        let how = if round % 2 == 0 { "ASYNC" } else { "SYNC" };
        assert_eq!(client.call(&["FLUSHALL", how]), "OK");
        let read = reader.answer();
        let read = read
            .trim_matches(['(', ')'])
            .split(' ')
            .filter(|word| !word.is_empty())
            .count();
        assert!(read == MEMBERS || read == 0, "{read} members");
        let stored = storer.answer();
        assert!(stored == "0" || stored == MEMBERS.to_string(), "{stored} members");
        client.call(&["FLUSHALL"]);
        assert_eq!(client.call(&["DBSIZE"]), "0");
    }
}

#[test]
fn a_hash_that_is_being_read_loses_its_fields_later() {
    let server = start();
    let mut client = Client::connect(server.port);
    let fields = 100_000;
    for from in (0..fields).step_by(1000) {
        let words: Vec<String> = (from..from + 1000)
            .flat_map(|field| [format!("field:{field}"), "v".into()])
            .collect();
        let mut all = vec!["HSET", "hash"];
        all.extend(words.iter().map(String::as_str));
        client.call(&all);
    }
    assert_eq!(
        client.call(&["HPEXPIRE", "hash", "30", "FIELDS", "2", "field:1", "field:2"]),
        "(1 1)"
    );
    let replies = run_while_repeated(&server, 12, "HGETALL hash", |_| thread::sleep(Duration::from_millis(1)));
    for reply in &replies {
        let words = reply.split(' ').count();
        assert!(words == 2 * fields || words == 2 * (fields - 2), "{words} words");
    }
    let start = Instant::now();
    while client.call(&["HLEN", "hash"]) != (fields - 2).to_string() {
        assert!(start.elapsed() < PATIENCE, "the fields never go");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn transactions_that_change_what_is_being_read_wait_too_and_blocked_clients_are_served() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "set", 0..MEMBERS);
    let mut writer = Client::connect(server.port);
    let mut watcher = Client::connect(server.port);
    let mut number = 0;
    let replies = run_while_repeated(&server, 5, "SUNION set", |_| {
        watcher.call(&["WATCH", "set"]);
        writer.call(&["MULTI"]);
        writer.call(&["SADD", "set", &format!("further:{number}")]);
        writer.call(&["SADD", "set", &format!("other:{number}")]);
        assert_eq!(writer.call(&["EXEC"]), "(1 1)");
        watcher.call(&["MULTI"]);
        watcher.call(&["PING"]);
        assert_eq!(watcher.call(&["EXEC"]), "-", "the watched key was changed");
        number += 1;
    });
    for reply in replies {
        assert_eq!(reply.matches("further:").count(), reply.matches("other:").count());
    }
    // A blocked client is served by the result of a command that used a snapshot.
    let mut waiting = Client::connect(server.port);
    fill_sorted_set(&mut client, "zset", 20_000);
    waiting.send(&["BZPOPMIN", "awaited", "0"]);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(client.call(&["ZUNIONSTORE", "awaited", "1", "zset"]), "20000");
    assert_eq!(waiting.answer(), "(awaited member:0 0)");
    assert_eq!(client.call(&["ZCARD", "awaited"]), "19999");
}

#[test]
fn a_storing_command_is_counted_once() {
    let server = start();
    let mut client = Client::connect(server.port);
    fill_set(&mut client, "set", 0..MEMBERS);
    client.call(&["CONFIG", "RESETSTAT"]);
    let mut changer = Client::connect(server.port);
    let mut changes = 0;
    let replies = run_while_repeated(&server, 5, "SUNIONSTORE union set small", |_| {
        // A small set is changed immediately, and the result computed from its old value is discarded.
        changer.call(&["SADD", "small", &changes.to_string()]);
        changes += 1;
        thread::sleep(Duration::from_millis(3));
    });
    let rounds = replies.len() as u64;
    assert_eq!(
        figure(&mut client, "commandstats", "cmdstat_sunionstore:calls="),
        rounds
    );
    let hits = figure(&mut client, "stats", "keyspace_hits:") + figure(&mut client, "stats", "keyspace_misses:");
    assert_eq!(hits, 2 * rounds, "two sources each time");
    let changed: u64 = figure(&mut client, "persistence", "rdb_changes_since_last_save:");
    assert_eq!(changed, (MEMBERS + changes) as u64 + rounds);
    client.call(&["CONFIG", "RESETSTAT"]);
    assert_eq!(client.call(&["SUNIONSTORE", "union", "set"]), MEMBERS.to_string());
    assert_eq!(figure(&mut client, "stats", "keyspace_hits:"), 1);
    assert_eq!(figure(&mut client, "commandstats", "cmdstat_sunionstore:calls="), 1);
}
