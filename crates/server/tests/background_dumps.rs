//! Dumps in the background, seen from outside: each shows all data at one moment, whatever happens meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[path = "harness/client.rs"]
mod client;
#[path = "harness/server.rs"]
mod server;

use client::Client;
use server::{PATIENCE, Server};

/// Keys that nobody touches, so that a walk over the slots takes its time.
const FILLERS: usize = 20_000;
const ACCOUNTS: usize = 48;
const TOKENS: usize = 8;
const PLACES: usize = 12;
const LISTS: usize = 6;
const ELEMENTS: usize = 400;
/// Elements of lists and hashes that are too large to be copied.
const MANY: usize = 12_000;
const LARGE_BYTES: usize = 700_000;
const SWAPPED: usize = 300;
const LETTERS: &str = "abcdefghijklmnopqrst";

impl Client {
    /// The reply to the EXEC of these commands, sent all at once.
    fn transact(&mut self, commands: &[&[&str]]) -> String {
        self.send(&["MULTI"]);
        commands.iter().for_each(|command| self.send(command));
        self.send(&["EXEC"]);
        (0..=commands.len()).for_each(|_| drop(self.answer()));
        self.answer()
    }

    fn number(&mut self, words: &[&str]) -> i64 {
        let reply = self.call(words);
        reply.parse().unwrap_or_else(|_| panic!("{words:?}: {reply}"))
    }

    fn info(&mut self, field: &str) -> String {
        let text = self.call(&["INFO", "everything"]);
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field}")).trim().to_owned()
    }

    fn wait_for(&mut self, field: &str, value: &str) {
        let start = Instant::now();
        while self.info(field) != value {
            assert!(start.elapsed() < PATIENCE, "{field} does not become {value}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Writes a dump in the background, and waits for it.
    fn dump(&mut self) {
        assert_eq!(self.call(&["BGSAVE"]), "Background saving started");
        self.wait_for("rdb_bgsave_in_progress", "0");
        assert_eq!(self.info("rdb_last_bgsave_status"), "ok");
    }

    fn directory(&mut self) -> PathBuf {
        let reply = self.call(&["CONFIG", "GET", "dir"]);
        reply.trim_matches(['(', ')']).split(' ').nth(1).expect("a path").into()
    }
}

/// A server that has loaded a copy of the dump that `from` wrote.
fn loaded(from: &mut Client) -> Server {
    let server = Server::start(&["--io-threads", "1", "--databases", "8", "--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    let dump = from.directory().join("dump.rdb");
    std::fs::copy(dump, client.directory().join("dump.rdb")).expect("copies");
    assert_eq!(client.call(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    server
}

/// Somebody who changes data without end; gets a random number each time.
type Work = Box<dyn FnMut(&mut Client, usize) + Send>;

fn at_once(server: &Server, works: Vec<Work>, until: impl FnOnce(&mut Client)) {
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
        client.call(&["RPUSH", &format!("list:{}", element % LISTS), &format!("element:{element}")]);
        client.call(&["SADD", &format!("set:{}", element % LISTS), &format!("member:{element}")]);
    }
    for half in 0..2 {
        for part in 0..MANY / 100 {
            let elements: Vec<String> = (0..100).map(|index| format!("{half}-{part}-{index}-and-more")).collect();
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

/// What keeps sums and counts as they are.
fn works() -> Vec<Work> {
    let mut works: Vec<Work> = Vec::new();
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
        client.call(&["MSET", &format!("left:{pair}"), &value, &format!("right:{pair}"), &value]);
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
        client.transact(&[
            &["HINCRBY", &hash, &field, "-1"],
            &["INCRBY", "large:balance", "1"],
        ]);
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
    assert_eq!(fields + balance, 10 * MANY as i64, "large hashes are of the same moment");
    let texts = [0, 1].map(|half| client.number(&["STRLEN", &format!("large:text:{half}")]));
    assert_eq!(texts[0], texts[1], "large strings are of the same moment");
    check_databases(client);
}

/// Databases that change as a whole.
fn check_databases(client: &mut Client) {
    let mut owners = BTreeMap::new();
    for db in ["1", "2"] {
        client.call(&["SELECT", db]);
        assert_eq!(client.number(&["DBSIZE"]), SWAPPED as i64);
        let first = client.call(&["GET", "key:0"]);
        for index in 0..SWAPPED {
            assert_eq!(client.call(&["GET", &format!("key:{index}")]), first, "databases are swapped as a whole");
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
    assert!(values.all(|value| value == first), "a database that is emptied and filled is whole: {reply}");
    client.call(&["SELECT", "0"]);
    for index in (0..FILLERS).step_by(97) {
        let (name, value) = (format!("filler:{index}"), format!("value:{index}"));
        assert!(client.call(&["GET", &name]).starts_with(&value), "what nobody touches is there");
    }
}

fn start() -> Server {
    Server::start(&["--io-threads", "4", "--databases", "8", "--enable-debug-command", "yes"])
}

#[test]
fn a_dump_shows_all_data_at_one_moment() {
    let server = start();
    fill(&mut Client::connect(server.port));
    at_once(&server, works(), |client| {
        for round in 0..6 {
            // Some are slow, so that much changes in slots that are saved, that are not, and that are so in part.
            let delay = ["0", "15", "40"][round % 3];
            client.call(&["CONFIG", "SET", "rdb-key-save-delay", delay]);
            thread::sleep(Duration::from_millis(100));
            client.dump();
            let copy = loaded(client);
            check(&mut Client::connect(copy.port));
        }
    });
    check(&mut Client::connect(server.port));
}
