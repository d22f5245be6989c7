//! End-to-end tests of background saving: each RDB file is a snapshot of all data at one moment, whatever happens
//! meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::{endless_library_dump, wait_until};

/// The number of keys that no client changes, so that a walk over the slots takes time.
const FILLERS: usize = 20_000;
const ACCOUNTS: usize = 48;
const TOKENS: usize = 8;
const PLACES: usize = 12;
const LISTS: usize = 6;
const ELEMENTS: usize = 400;
/// The number of elements that makes lists and hashes too large to be copied.
const MANY: usize = 12_000;
const LARGE_BYTES: usize = 700_000;
const SWAPPED: usize = 300;
const LETTERS: &str = "abcdefghijklmnopqrst";

impl Client {
    fn number(&mut self, words: &[&str]) -> i64 {
        let reply = self.call(words);
        reply.parse().unwrap_or_else(|_| panic!("{words:?}: {reply}"))
    }

    /// Saves in the background and waits for the end.
    fn dump(&mut self) {
        assert_eq!(self.call(&["BGSAVE"]), "Background saving started");
        self.wait_for_info("rdb_bgsave_in_progress", "0");
        assert_eq!(self.info("rdb_last_bgsave_status"), "ok");
    }

    fn directory(&mut self) -> PathBuf {
        let reply = self.call(&["CONFIG", "GET", "dir"]);
        reply.trim_matches(['(', ')']).split(' ').nth(1).expect("a path").into()
    }
}

/// Returns a server that has loaded a copy of the RDB file that `from` wrote.
fn start_with_dump(from: &mut Client) -> Server {
    let server = Server::start(&["--databases", "8", "--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    let dump = from.directory().join("dump.rdb");
    std::fs::copy(dump, client.directory().join("dump.rdb")).expect("copies");
    assert_eq!(client.call(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    server
}

/// A load that changes data without end; it gets a random number each time.
type Load = Box<dyn FnMut(&mut Client, usize) + Send>;

fn run_loads(server: &Server, works: Vec<Load>, until: impl FnOnce(&mut Client)) {
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = works
        .into_iter()
        .map(|mut work| {
            let (stop, port) = (stop.clone(), server.port);
            thread::spawn(move || {
                let mut client = Client::connect(port);
                while !stop.load(Ordering::Relaxed) {
                    work(&mut client, fastrand::usize(..1 << 30));
                }
            })
        })
        .collect();
    until(&mut Client::connect(server.port));
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no thread failed");
    }
}

fn fill(client: &mut Client) {
    client.call(&["DEBUG", "POPULATE", &FILLERS.to_string(), "filler", "40"]);
    for index in 0..ACCOUNTS {
        client.call(&["SET", &format!("account:{index}"), "1000"]);
        client.call(&["HSET", &format!("purse:{}", index % 8), &format!("coin:{index}"), "100"]);
    }
    for token in 0..TOKENS {
        client.call(&["RPUSH", &format!("token:{token}:0"), "a", "b"]);
    }
    for element in 0..ELEMENTS {
        client.call(&[
            "RPUSH",
            &format!("list:{}", element % LISTS),
            &format!("element:{element}"),
        ]);
        client.call(&[
            "SADD",
            &format!("set:{}", element % LISTS),
            &format!("member:{element}"),
        ]);
    }
    for half in 0..2 {
        for part in 0..MANY / 100 {
            let elements: Vec<String> = (0..100)
                .map(|index| format!("{half}-{part}-{index}-and-more"))
                .collect();
            let words: Vec<&str> = elements.iter().map(String::as_str).collect();
            client.call(&[&["RPUSH", &format!("large:list:{half}")], &words[..]].concat());
            let fields: Vec<&str> = words.iter().flat_map(|word| [*word, "5"]).collect();
            client.call(&[&["HSET", &format!("large:hash:{half}")], &fields[..]].concat());
        }
        client.call(&["SET", &format!("large:text:{half}"), &"x".repeat(LARGE_BYTES)]);
    }
    for db in 1..=2 {
        client.call(&["SELECT", &db.to_string()]);
        for index in 0..SWAPPED {
            client.call(&["SET", &format!("key:{index}"), &format!("of:{db}")]);
        }
    }
    client.call(&["SELECT", "0"]);
}

/// Returns the loads, each of which preserves sums and counts.
fn loads() -> Vec<Load> {
    let mut works: Vec<Load> = Vec::new();
    for _ in 0..3 {
        works.push(Box::new(|client, random| {
            let (from, to) = (random % ACCOUNTS, random / 64 % ACCOUNTS);
            let (from, to) = (format!("account:{from}"), format!("account:{to}"));
            client.transact(&[&["DECRBY", &from, "7"], &["INCRBY", &to, "7"]]);
            let script = "redis.call('INCRBY', KEYS[1], 3) return redis.call('DECRBY', KEYS[2], 3)";
            client.call(&["EVAL", script, "2", &from, &to]);
        }));
    }
    works.push(Box::new(|client, random| {
        let (one, other) = (random % 8, random / 8 % 8);
        let coins = [format!("coin:{one}"), format!("coin:{other}")];
        let purses = [format!("purse:{one}"), format!("purse:{other}")];
        client.transact(&[
            &["HINCRBY", &purses[0], &coins[0], "-2"],
            &["HINCRBY", &purses[1], &coins[1], "2"],
        ]);
    }));
    works.push(Box::new(|client, random| {
        let value = random.to_string();
        let pair = random % 50;
        client.call(&[
            "MSET",
            &format!("left:{pair}"),
            &value,
            &format!("right:{pair}"),
            &value,
        ]);
        client.call(&["SET", &format!("passing:{}", random % 500), &value, "PX", "3"]);
    }));
    works.push(Box::new({
        let mut places = [0; TOKENS];
        move |client, random| {
            let token = random % TOKENS;
            let next = (places[token] + 1 + random / 16 % (PLACES - 1)) % PLACES;
            let name = |place: usize| format!("token:{token}:{place}");
            assert_eq!(client.call(&["RENAME", &name(places[token]), &name(next)]), "OK");
            places[token] = next;
        }
    }));
    works.push(Box::new(|client, random| {
        let (from, to) = (random % LISTS, random / 8 % LISTS);
        client.call(&["LMOVE", &format!("list:{from}"), &format!("list:{to}"), "LEFT", "RIGHT"]);
        let member = format!("member:{}", random % ELEMENTS);
        client.call(&["SMOVE", &format!("set:{from}"), &format!("set:{to}"), &member]);
    }));
    works.push(Box::new(|client, random| {
        let ends = ["large:list:0", "large:list:1"];
        let (from, to) = (ends[random % 2], ends[1 - random % 2]);
        client.call(&["LMOVE", from, to, "RIGHT", "LEFT"]);
        let field = format!("{}-{}-3-and-more", random % 2, random % (MANY / 100));
        let hash = format!("large:hash:{}", random % 2);
        client.transact(&[&["HINCRBY", &hash, &field, "-1"], &["INCRBY", "large:balance", "1"]]);
    }));
    works.push(Box::new(|client, _| {
        client.transact(&[&["APPEND", "large:text:0", "y"], &["APPEND", "large:text:1", "y"]]);
        thread::sleep(Duration::from_millis(1));
    }));
    works.push(Box::new(|client, _| {
        client.call(&["BLMOVE", "belt:0", "belt:1", "LEFT", "RIGHT", "0.01"]);
    }));
    works.push(Box::new(|client, random| {
        client.call(&["LMOVE", "belt:1", "belt:0", "LEFT", "RIGHT"]);
        if random % 64 == 0 {
            client.transact(&[&["RPUSH", "belt:0", "a"], &["INCR", "belts"]]);
        }
    }));
    works.push(Box::new(|client, _| {
        client.call(&["SWAPDB", "1", "2"]);
        thread::sleep(Duration::from_millis(3));
    }));
    works.push(Box::new(|client, random| {
        client.call(&["SELECT", "3"]);
        let value = random.to_string();
        let names: Vec<String> = LETTERS.chars().map(String::from).collect();
        let words: Vec<&str> = names.iter().flat_map(|name| [name.as_str(), &value]).collect();
        client.transact(&[&["FLUSHDB"], &[&["MSET"], &words[..]].concat()]);
        thread::sleep(Duration::from_millis(5));
    }));
    works
}

fn sum_of(client: &mut Client, names: impl Iterator<Item = String>) -> i64 {
    names.map(|name| client.number(&["GET", &name])).sum()
}

fn check(client: &mut Client) {
    let accounts = sum_of(client, (0..ACCOUNTS).map(|index| format!("account:{index}")));
    assert_eq!(accounts, ACCOUNTS as i64 * 1000, "transfers are whole");
    let mut coins = 0;
    for purse in 0..8 {
        let values = client.call(&["HVALS", &format!("purse:{purse}")]);
        let values = values.trim_matches(['(', ')']).split(' ');
        coins += values.map(|value| value.parse::<i64>().expect("a number")).sum::<i64>();
    }
    assert_eq!(coins, ACCOUNTS as i64 * 100, "transfers between hashes are whole");
    for pair in 0..50 {
        let reply = client.call(&["MGET", &format!("left:{pair}"), &format!("right:{pair}")]);
        let (left, right) = reply.trim_matches(['(', ')']).split_once(' ').expect("two");
        assert_eq!(left, right, "MSET is whole");
    }
    for token in 0..TOKENS {
        let names: Vec<String> = (0..PLACES).map(|place| format!("token:{token}:{place}")).collect();
        let words: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(client.number(&[&["EXISTS"], &words[..]].concat()), 1, "RENAME is whole");
    }
    let mut total = |command: &str, name: &str, count: usize| -> i64 {
        let names = (0..count).map(|index| format!("{name}:{index}"));
        names.map(|name| client.number(&[command, &name])).sum()
    };
    assert_eq!(total("LLEN", "list", LISTS), ELEMENTS as i64, "LMOVE is whole");
    assert_eq!(total("SCARD", "set", LISTS), ELEMENTS as i64, "SMOVE is whole");
    assert_eq!(total("LLEN", "large:list", 2), 2 * MANY as i64, "LMOVE is whole");
    assert_eq!(total("HLEN", "large:hash", 2), 2 * MANY as i64);
    let on_belts = total("LLEN", "belt", 2);
    let belts = client.call(&["GET", "belts"]).parse().unwrap_or(0);
    assert_eq!(on_belts, belts, "what a waiting client is served with is whole");
    let mut fields = 0;
    for half in 0..2 {
        let values = client.call(&["HVALS", &format!("large:hash:{half}")]);
        let values = values.trim_matches(['(', ')']).split(' ');
        fields += values.map(|value| value.parse::<i64>().expect("a number")).sum::<i64>();
    }
    let balance = client.call(&["GET", "large:balance"]).parse().unwrap_or(0);
    assert_eq!(
        fields + balance,
        10 * MANY as i64,
        "large hashes are of the same moment"
    );
    let texts = [0, 1].map(|half| client.number(&["STRLEN", &format!("large:text:{half}")]));
    assert_eq!(texts[0], texts[1], "large strings are of the same moment");
    check_databases(client);
}

/// Checks the databases that change only as a whole.
fn check_databases(client: &mut Client) {
    let mut owners = BTreeMap::new();
    for db in ["1", "2"] {
        client.call(&["SELECT", db]);
        assert_eq!(client.number(&["DBSIZE"]), SWAPPED as i64);
        let first = client.call(&["GET", "key:0"]);
        for index in 0..SWAPPED {
            assert_eq!(
                client.call(&["GET", &format!("key:{index}")]),
                first,
                "databases are swapped as a whole"
            );
        }
        owners.insert(first, db);
    }
    assert_eq!(owners.len(), 2, "each of the two is there");
    client.call(&["SELECT", "3"]);
    let names: Vec<String> = LETTERS.chars().map(String::from).collect();
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    let reply = client.call(&[&["MGET"], &words[..]].concat());
    let mut values = reply.trim_matches(['(', ')']).split(' ');
    let first = values.next().expect("a value");
    assert!(
        values.all(|value| value == first),
        "a database that is emptied and filled is whole: {reply}"
    );
    client.call(&["SELECT", "0"]);
    for index in (0..FILLERS).step_by(97) {
        let (name, value) = (format!("filler:{index}"), format!("value:{index}"));
        assert!(
            client.call(&["GET", &name]).starts_with(&value),
            "what nobody touches is there"
        );
    }
}

fn start() -> Server {
    Server::start(&["--io-threads", "4", "--databases", "8", "--enable-debug-command", "yes"])
}

#[test]
fn a_dump_shows_all_data_at_one_moment() {
    let server = start();
    fill(&mut Client::connect(server.port));
    run_loads(&server, loads(), |client| {
        for round in 0..6 {
            // Some saves are slow, so that much changes in slots that are saved, not saved, and partly saved.
            let delay = ["0", "15", "40"][round % 3];
            client.call(&["CONFIG", "SET", "rdb-key-save-delay", delay]);
            thread::sleep(Duration::from_millis(100));
            client.dump();
            let copy = start_with_dump(client);
            check(&mut Client::connect(copy.port));
        }
    });
    check(&mut Client::connect(server.port));
}

/// Starts a background save that takes minutes, and waits until some keys are saved. A delay of 0 ends it soon.
fn begin_dump(client: &mut Client) {
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
    assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
    wait_until("some keys are saved", || {
        client.info("current_save_keys_processed") != "0"
    });
}

/// Starts a background save that takes very long.
fn slow_dump(client: &mut Client, keys: usize) {
    client.call(&["DEBUG", "POPULATE", &keys.to_string()]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]);
    assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
    assert_eq!(client.info("rdb_bgsave_in_progress"), "1");
}

fn files(client: &mut Client) -> Vec<String> {
    files_in(&client.directory())
}

fn files_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("lists");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn one_dump_at_a_time_until_it_is_cancelled() {
    let server = start();
    let mut client = Client::connect(server.port);
    let none = "ERR Background saving is currently not in progress or scheduled";
    assert_eq!(client.call(&["BGSAVE", "CANCEL"]), none);
    slow_dump(&mut client, 100);
    for words in [&["BGSAVE"][..], &["BGSAVE", "SCHEDULE"], &["SAVE"]] {
        assert_eq!(client.call(words), "ERR Background save already in progress");
    }
    assert_eq!(client.info("current_save_keys_total"), "100");
    assert_eq!(client.call(&["SET", "key", "value"]), "OK", "nobody waits for a dump");
    assert_eq!(client.call(&["BGSAVE", "CANCEL"]), "Background saving cancelled");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(client.info("rdb_last_bgsave_status"), "ok", "a wish is no failure");
    assert_eq!(files(&mut client), Vec::<String>::new());
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    client.dump();
    assert_eq!(files(&mut client), ["dump.rdb"]);
    assert_eq!(client.info("rdb_changes_since_last_save"), "0");
    assert_eq!(client.info("rdb_saves"), "2");
}

#[test]
fn a_dump_within_a_transaction_comes_after_it() {
    let server = start();
    let mut client = Client::connect(server.port);
    let replies = client.transact(&[&["SET", "key", "value"], &["BGSAVE"], &["SET", "key", "other"]]);
    assert_eq!(replies, "(OK Background saving scheduled OK)");
    client.wait_for_info("rdb_saves", "1");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    let copy = start_with_dump(&mut client);
    assert_eq!(Client::connect(copy.port).call(&["GET", "key"]), "other");
    client.call(&["DEBUG", "PAUSE-CRON", "1"]);
    client.transact(&[&["BGSAVE"]]);
    assert_eq!(
        client.call(&["BGSAVE", "CANCEL"]),
        "Scheduled background saving cancelled"
    );
}

#[test]
fn a_failed_dump_is_reported_and_nothing_is_lost() {
    let server = start();
    let mut client = Client::connect(server.port);
    client.call(&["CONFIG", "SET", "save", "3600 1000000"]);
    client.call(&["SET", "key", "value"]);
    client.dump();
    let dump = client.directory().join("dump.rdb");
    let kept = std::fs::read(&dump).expect("reads");
    std::fs::remove_file(&dump).expect("removes");
    std::fs::create_dir_all(dump.join("in-the-way")).expect("makes a directory");
    client.call(&["SET", "key", "other"]);
    client.call(&["BGSAVE"]);
    client.wait_for_info("rdb_last_bgsave_status", "err");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(files(&mut client), ["dump.rdb"], "no file is left over");
    assert_eq!(client.info("rdb_changes_since_last_save"), "1");
    let refused = "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk. \
                   Commands that may modify the data set are disabled, because this instance is configured to report \
                   errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the \
                   Valkey logs for details about the RDB error.";
    for words in [
        &["SET", "key", "third"][..],
        &["PING"],
        &["FLUSHALL"],
        &["EVAL", "return redis.pcall('SET', 'key', 'third').err", "0"],
        &["EVAL", "#!lua\nreturn redis.call('GET', 'key')", "0"],
    ] {
        assert_eq!(client.call(words), refused, "{words:?}");
    }
    for words in [
        &["GET", "key"][..],
        &["EVAL", "return redis.call('GET', 'key')", "0"],
        &["EVAL", "#!lua flags=no-writes\nreturn redis.call('GET', 'key')", "0"],
    ] {
        assert_eq!(client.call(words), "other", "{words:?}");
    }
    assert!(client.transact(&[&["SET", "key", "third"]]).starts_with("EXECABORT"));
    client.call(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert_eq!(client.call(&["SET", "key", "third"]), "OK");
    client.call(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
    std::fs::remove_dir_all(&dump).expect("removes");
    std::fs::write(&dump, kept).expect("writes");
    client.dump();
    assert_eq!(client.call(&["SET", "key", "fourth"]), "OK");
}

#[test]
fn save_points_start_dumps() {
    let server = start();
    let mut client = Client::connect(server.port);
    client.call(&["CONFIG", "SET", "save", "1 3"]);
    for value in ["1", "2"] {
        client.call(&["SET", "key", value]);
    }
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(client.info("rdb_saves"), "0", "two changes are too few");
    client.call(&["SET", "key", "3"]);
    client.wait_for_info("rdb_saves", "1");
    client.wait_for_info("rdb_changes_since_last_save", "0");
    let copy = start_with_dump(&mut client);
    assert_eq!(Client::connect(copy.port).call(&["GET", "key"]), "3");
}

#[test]
fn flushall_ends_a_dump_and_replaces_the_last_one() {
    let server = start();
    let mut client = Client::connect(server.port);
    client.call(&["SET", "key", "value"]);
    client.dump();
    client.call(&["CONFIG", "SET", "save", "3600 1000000"]);
    slow_dump(&mut client, 1000);
    assert_eq!(client.call(&["FLUSHALL"]), "OK");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(files(&mut client), ["dump.rdb"]);
    let copy = start_with_dump(&mut client);
    assert_eq!(Client::connect(copy.port).call(&["DBSIZE"]), "0");
    assert_eq!(client.info("rdb_changes_since_last_save"), "0");
}

/// The dump is claimed, and waits for a script until its moment. Whichever comes first then, the data is deleted.
#[test]
fn a_flush_beside_a_dump_that_has_just_begun_leaves_an_empty_dump() {
    for (workers, how) in [("2", "SYNC"), ("8", "ASYNC"), ("8", "SYNC")] {
        let arguments = ["--io-threads", workers, "--busy-reply-threshold", "0"];
        let server = Server::start(&[&arguments[..], &["--enable-debug-command", "yes"]].concat());
        let [mut client, mut script, mut flusher, mut background] = [(); 4].map(|()| Client::connect(server.port));
        assert_eq!(client.call(&["CONFIG", "SET", "save", "3600 1000000"]), "OK");
        client.call(&["DEBUG", "POPULATE", "500"]);
        client.dump();
        server.run_script(&mut script, &["EVAL", "while true do end", "0"]);
        background.send(&["BGSAVE"]);
        client.wait_for_info("rdb_bgsave_in_progress", "1");
        flusher.send(&["FLUSHALL", how]);
        thread::sleep(Duration::from_millis(20));
        assert!(
            flusher.is_waiting() && background.is_waiting(),
            "both wait for the script"
        );
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        check_empty_dump(&mut client, &mut flusher, &mut background);
        // The two meet at other moments.
        for _ in 0..15 {
            client.call(&["DEBUG", "POPULATE", "500"]);
            background.send(&["BGSAVE"]);
            flusher.send(&["FLUSHALL", how]);
            check_empty_dump(&mut client, &mut flusher, &mut background);
        }
    }
}

/// Checks the replies to FLUSHALL and BGSAVE, and what they have left.
fn check_empty_dump(client: &mut Client, flusher: &mut Client, background: &mut Client) {
    assert_eq!(flusher.answer(), "OK");
    assert_eq!(background.answer(), "Background saving started");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
    assert_eq!(client.info("rdb_changes_since_last_save"), "0");
    assert_eq!(files(client), ["dump.rdb"]);
    assert_eq!(client.call(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    assert_eq!(client.call(&["DBSIZE"]), "0");
}

#[test]
fn flushdb_does_not_end_a_dump() {
    let server = start();
    let mut client = Client::connect(server.port);
    client.call(&["DEBUG", "POPULATE", "2000"]);
    client.call(&["RPUSH", "list", "a", "b"]);
    begin_dump(&mut client);
    assert_eq!(client.call(&["FLUSHDB"]), "OK");
    assert_eq!(client.call(&["SET", "key:1", "new"]), "OK");
    assert_eq!(client.info("rdb_bgsave_in_progress"), "1", "nobody waited for it");
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    let copy = start_with_dump(&mut client);
    let mut other = Client::connect(copy.port);
    assert_eq!(other.call(&["DBSIZE"]), "2001");
    assert_eq!(other.call(&["GET", "key:1"]), "value:1");
    assert_eq!(client.call(&["DBSIZE"]), "1");
}

#[test]
fn data_can_be_reloaded_while_a_dump_is_written() {
    let server = start();
    let mut client = Client::connect(server.port);
    client.call(&["DEBUG", "POPULATE", "2000"]);
    for how in [&["DEBUG", "RELOAD"][..], &["DEBUG", "RELOAD", "NOFLUSH", "MERGE"]] {
        begin_dump(&mut client);
        client.call(&["SET", "key:7", "changed"]);
        assert_eq!(client.call(how), "OK");
        assert_eq!(client.call(&["GET", "key:7"]), "changed");
        assert_eq!(client.info("rdb_bgsave_in_progress"), "1", "it goes on");
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        let copy = start_with_dump(&mut client);
        let mut other = Client::connect(copy.port);
        assert_eq!(other.call(&["DBSIZE"]), "2000");
        assert_eq!(other.call(&["GET", "key:7"]), "value:7", "that is what it was");
        client.call(&["SET", "key:7", "value:7"]);
    }
}

#[test]
fn a_dump_that_began_meanwhile_is_not_replaced_by_save() {
    let server = start();
    let mut client = Client::connect(server.port);
    client.call(&["DEBUG", "POPULATE", "500"]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
    let [mut script, mut saver, mut background] = [(); 3].map(|()| Client::connect(server.port));
    // SAVE and BGSAVE wait for the script. Then one of them is first.
    server.run_script(&mut script, &["EVAL", "while true do redis.call('GET', 'k') end", "0"]);
    saver.send(&["SAVE"]);
    thread::sleep(Duration::from_millis(200));
    background.send(&["BGSAVE"]);
    wait_until("the background save has begun", || {
        client.info("rdb_bgsave_in_progress") == "1"
    });
    assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
    let reply = saver.answer();
    assert!(reply.contains("Background save already in progress"), "{reply}");
    assert_eq!(background.answer(), "Background saving started");
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    client.wait_for_info("rdb_bgsave_in_progress", "0");
}

/// CONFIG SET dir changes the directory of the process. In Valkey the child that saves keeps its own.
#[test]
fn a_dump_stays_in_the_directory_in_which_it_began() {
    let server = Server::start(&["--enable-debug-command", "yes", "--enable-protected-configs", "yes"]);
    let mut client = Client::connect(server.port);
    let (first, second) = (&server.directory, server.directory.join("second"));
    std::fs::create_dir(&second).expect("creates");
    slow_dump(&mut client, 100);
    let change = |client: &mut Client, directory: &Path| {
        let directory = directory.to_string_lossy();
        assert_eq!(client.call(&["CONFIG", "SET", "dir", &directory]), "OK");
    };
    change(&mut client, &second);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
    assert_eq!(files_in(first), ["dump.rdb", "second"]);
    assert_eq!(files_in(&second), Vec::<String>::new());
    // One that is cancelled removes its file.
    slow_dump(&mut client, 100);
    wait_until("the file is being written", || !files_in(&second).is_empty());
    change(&mut client, first);
    assert_eq!(client.call(&["BGSAVE", "CANCEL"]), "Background saving cancelled");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(files_in(&second), Vec::<String>::new());
}

#[test]
fn the_end_of_the_process_ends_a_dump() {
    for how in [&["SHUTDOWN", "NOSAVE"][..], &["SHUTDOWN", "SAVE"]] {
        let server = start();
        let mut client = Client::connect(server.port);
        let directory = client.directory();
        slow_dump(&mut client, 500);
        client.call(&["SET", "key", "value"]);
        assert_eq!(
            client.info("rdb_bgsave_in_progress"),
            "1",
            "the dump has not ended before"
        );
        if how[1] == "SAVE" {
            // The final dump is not slow. The other one is still within the delay of its first key.
            client.call(&["CONFIG", "SET", "rdb-key-save-delay", "-1000000"]);
        }
        client.send(how);
        let expected: &[&str] = if how[1] == "SAVE" { &["dump.rdb"] } else { &[] };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", server.port)).is_ok() || files_in(&directory) != expected {
            assert!(start.elapsed() < PATIENCE, "{how:?}: {:?}", files_in(&directory));
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_second_interrupt_leaves_no_unfinished_dump() {
    let mut server = Server::start(&["--save", "3600 1", "--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DEBUG", "POPULATE", "100"]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]), "OK");
    let unfinished = [format!("temp-{}.rdb", client.info("process_id"))];
    let directory = client.directory();
    server.signal(Signal::SIGINT);
    wait_until("the final dump has begun", || files_in(&directory) == unfinished);
    server.signal(Signal::SIGINT);
    assert_eq!(server.wait_for_exit(), Some(1));
    assert_eq!(files_in(&directory), Vec::<String>::new());
}

#[test]
fn a_full_disk_concerns_only_the_dumps_of_a_directory_on_it() {
    let mut server = Server::start(&["--enable-debug-command", "yes", "--enable-protected-configs", "yes"]);
    let mut client = Client::connect(server.port);
    let (full, free) = (server.directory.clone(), server.directory.join("free"));
    std::fs::create_dir(&free).expect("creates");
    let temporary = full.join(format!("temp-{}.rdb", client.info("process_id")));
    // The next dump in that directory goes to a device that is always full.
    let fill = || std::os::unix::fs::symlink("/dev/full", &temporary).expect("makes a link");
    let change = |client: &mut Client, directory: &Path| {
        let directory = directory.to_string_lossy();
        assert_eq!(client.call(&["CONFIG", "SET", "dir", &directory]), "OK");
    };
    assert_eq!(client.call(&["SET", "key", "old"]), "OK");
    assert_eq!(client.call(&["SAVE"]), "OK");
    let old = std::fs::read(full.join("dump.rdb")).expect("is there");
    for value in ["first", "second"] {
        assert_eq!(client.call(&["SET", "key", value]), "OK");
        fill();
        change(&mut client, &free);
        assert_eq!(client.call(&["SAVE"]), "OK");
        assert_eq!(files_in(&free), ["dump.rdb"]);
        assert_eq!(client.call(&["SET", "key", "lost"]), "OK");
        assert_eq!(client.call(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
        assert_eq!(client.call(&["GET", "key"]), value);
        change(&mut client, &full);
        assert_eq!(client.call(&["SAVE"]), "ERR");
        assert_eq!(
            files_in(&full),
            ["dump.rdb", "free"],
            "nothing is left of the failed dump"
        );
        assert!(std::fs::read(full.join("dump.rdb")).expect("is there") == old);
    }
    // The process goes on if its last dump fails.
    fill();
    let failed = "ERR Errors trying to SHUTDOWN. Check logs.";
    assert_eq!(client.call(&["SHUTDOWN", "SAVE"]), failed);
    assert_eq!(client.call(&["SET", "key", "third"]), "OK");
    let before = std::fs::read(free.join("dump.rdb")).expect("is there");
    change(&mut client, &free);
    client.send(&["SHUTDOWN", "SAVE"]);
    assert_eq!(server.wait_for_exit(), Some(0));
    assert!(std::fs::read(full.join("dump.rdb")).expect("is there") == old);
    assert!(std::fs::read(free.join("dump.rdb")).expect("is there") != before);
}

/// An earlier process has loaded the library, so its code has no time limit here.
#[test]
fn the_end_of_the_process_stops_a_load_whose_library_never_ends() {
    const BACKGROUND_THREADS: &str = "weft-bg";
    let mut server = Server::start(&["--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    let dump = server.directory.join("dump.rdb");
    std::fs::write(&dump, endless_library_dump()).expect("writes");
    let before = server.thread_ticks(BACKGROUND_THREADS);
    client.send(&["DEBUG", "RELOAD", "NOSAVE"]);
    wait_until("the code runs", || {
        server.thread_ticks(BACKGROUND_THREADS) >= before + 3
    });
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_for_exit(), Some(0));
    assert!(std::fs::read(&dump).expect("is there") == endless_library_dump());
}
