//! Tests commands that read an expired key that was not deleted yet: replicas and a reloaded append-only file must have
//! the results that these commands store.

use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// Waits until the digests of all data are the same on two servers. Some keys may still be about to expire.
pub(super) fn await_same_digest(one: &mut Client, other: &mut Client, what: &str) {
    let start = Instant::now();
    loop {
        let digests = [&mut *one, other].map(|client| client.call(&["DEBUG", "DIGEST"]));
        if digests[0] == digests[1] {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {digests:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Asserts that a replica, and the primary after it has reloaded its file, have the primary's data.
pub(super) fn assert_all_same(primary: &Server, replica: &Server) {
    let (mut one, mut other) = (Client::connect(primary.port), Client::connect(replica.port));
    await_same_digest(&mut one, &mut other, "the replica differs");
    assert_eq!(one.call(&["DEBUG", "LOADAOF"]), "OK");
    // The replica has not loaded anything.
    await_same_digest(&mut one, &mut other, "the reloaded file differs");
}

/// The numbers of workers with which every test runs.
pub(super) const WORKERS: [&str; 3] = ["1", "2", "8"];

/// Commands that read `src`, each after the writes that precede the expiry of `src`. Commands are separated by `;`.
const FORMS: &[(&str, &str)] = &[
    ("SADD src a b;SADD oth b c", "SUNIONSTORE dst src oth"),
    ("SADD src a b;SADD oth b c", "SUNIONSTORE dst oth src"),
    ("SADD src b;SADD oth b c", "SDIFFSTORE dst oth src"),
    ("SADD src b;SADD oth b c;SADD dst x", "SINTERSTORE dst src oth"),
    ("SADD src b;SADD oth b c", "SUNIONSTORE src src oth"),
    ("ZADD src 1 a 2 b;ZADD oth 3 b 4 c", "ZUNIONSTORE dst 2 src oth"),
    ("SADD src a b;ZADD oth 3 b 4 c", "ZUNIONSTORE dst 2 oth src WEIGHTS 1 5"),
    (
        "ZADD src 1 a 2 b;ZADD oth 3 b 4 c;SET dst x",
        "ZINTERSTORE dst 2 src oth",
    ),
    ("ZADD src 1 a 2 b;ZADD oth 3 b 4 c", "ZDIFFSTORE dst 2 oth src"),
    ("ZADD src 1 a 2 b;ZADD dst 3 c", "ZRANGESTORE dst src 0 -1"),
    ("ZADD src 1 a 2 b;ZADD dst 3 c", "ZRANGESTORE dst src 0 9 BYSCORE"),
    ("SET src abc;SET oth xyz", "BITOP OR dst src oth"),
    ("SET src abc;SET oth xyz", "BITOP AND dst oth src"),
    ("SET src abc;SET oth xyz", "BITOP XOR dst oth src"),
    ("SET src abc;SET dst xyz", "BITOP NOT dst src"),
    ("SADD src x;SET oth xyz", "BITOP OR dst src oth"),
    ("PFADD src a b;PFADD oth c d e", "PFMERGE dst src oth"),
    ("PFADD src a b;PFADD oth c d e", "PFMERGE oth src"),
    ("SET src x;PFADD oth c d e", "PFMERGE dst oth src"),
    (
        "GEOADD src 13 38 a;GEOADD dst 13 38 b",
        "GEOSEARCHSTORE dst src FROMLONLAT 13 38 BYRADIUS 9 km",
    ),
    (
        "GEOADD src 13 38 a;GEOADD dst 13 38 b",
        "GEORADIUS src 13 38 9 km STORE dst",
    ),
    (
        "GEOADD src 13 38 a;GEOADD dst 13 38 b",
        "GEORADIUS src 13 38 9 km STOREDIST dst",
    ),
    ("RPUSH src 3 1 2;RPUSH dst 9", "SORT src STORE dst"),
    ("SADD src 3 1 2;RPUSH dst 9", "SORT src BY nosort STORE dst"),
    ("SET src text;RPUSH dst 9", "SORT src STORE dst"),
    (
        "RPUSH oth 1 2;SET w-src-1 9;SET w-src-2 5;EXPIRED w-src-1",
        "SORT oth BY w-src-* STORE dst",
    ),
    (
        "RPUSH oth 1 2;SET w-src-1 9;SET w-src-2 5;RPUSH dst x;EXPIRED w-src-1;EXPIRED dst",
        "SORT oth BY w-src-* STORE dst",
    ),
    (
        "SADD src a b;SADD oth b c;SADD dst x;EXPIRED src;EXPIRED dst",
        "SUNIONSTORE dst src oth",
    ),
    (
        "ZADD src 1 a;SADD dst x;EXPIRED src;EXPIRED dst",
        "ZRANGESTORE dst src 0 -1",
    ),
    (
        "RPUSH oth 1 2;SET w-src-1 9;SET w-src-2 5;EXPIRED w-src-2",
        "SORT oth GET # GET w-src-* STORE dst",
    ),
    (
        "RPUSH oth 1 2;HSET h-src-1 f 9;HSET h-src-2 f 5;EXPIRED h-src-1",
        "SORT oth BY h-src-*->f STORE dst",
    ),
    (
        "RPUSH oth 1 2;HSET h-src-1 f 9;HSET h-src-2 f 5;EXPIRED h-src-2",
        "SORT oth GET h-src-*->f STORE dst",
    ),
    (
        "RPUSH oth 1 2;HSET h-src-1 f 9 g 1;HSET h-src-2 f 5;FIELD h-src-1",
        "SORT oth BY h-src-*->f STORE dst",
    ),
    (
        "RPUSH oth 1 2;HSET h-src-1 f 9 g 1;HSET h-src-2 f 5;FIELD h-src-1",
        "SORT oth GET h-src-*->f STORE dst",
    ),
    (
        "RPUSH oth 1;HSET h-src-1 f 9;FIELD h-src-1",
        "SORT oth GET h-src-*->f STORE dst",
    ),
    ("SET src x;SET dst y", "COPY src dst"),
    ("SET src x;SET dst y", "COPY src dst REPLACE"),
    ("SET src x;SET oth y", "COPY oth src"),
    ("SET src x;SET oth y", "RENAMENX oth src"),
    ("SET src x;SET oth y", "RENAME oth src"),
    ("SET src x;SET oth y", "RENAME src oth"),
    ("SET src x;SET oth y", "MSETNX src 1 oth2 2"),
    ("SET src x;SET oth y", "MSETEX 2 src 1 oth2 2 NX"),
    ("RPUSH src 1 2;RPUSH oth 3", "LMOVE src oth LEFT RIGHT"),
    ("RPUSH src 1 2;RPUSH oth 3", "LMOVE oth src LEFT RIGHT"),
    ("RPUSH src 1 2;RPUSH oth 3", "RPOPLPUSH oth src"),
    ("RPUSH src 1 2;RPUSH oth 3 4", "LMPOP 2 src oth LEFT"),
    ("RPUSH src 1 2;RPUSH oth 3 4", "BLMPOP 1 2 src oth LEFT"),
    ("RPUSH src 1 2;RPUSH oth 3 4", "BLPOP src oth 1"),
    ("ZADD src 1 2;ZADD oth 3 4 5 6", "ZMPOP 2 src oth MIN"),
    ("ZADD src 1 2;ZADD oth 3 4 5 6", "BZPOPMIN src oth 1"),
    ("SADD src a b;SADD oth b c", "SMOVE src oth a"),
    ("SADD src a b;SADD oth b c", "SMOVE oth src b"),
    ("SET src x;SET oth y", "DEL src oth"),
    ("SET src x;SET oth y", "MSET src 1 oth 2"),
    ("SET src 5", "INCR src"),
    ("SET src abc", "APPEND src d"),
    ("SET src abc", "SET src d KEEPTTL"),
    ("HSET src f 1", "HINCRBY src f 2"),
    ("HSET src f 1", "HSETNX src f 2"),
    ("XADD src 1-1 a b", "XADD src * a b"),
    ("SET src abc", "SETRANGE src 5 x"),
    ("SET src abc", "SETBIT src 5 1"),
];

/// The way in which a form is executed.
#[derive(Clone, Copy, Debug)]
enum ExecutionMode {
    Plain,
    /// In a transaction.
    Exec,
    /// In a transaction, after a SELECT of the database of the keys.
    ExecInOtherDatabase,
    /// In a script that declares no keys.
    Script,
    /// In a transaction with a script.
    ScriptInExec,
}

const WAYS: [ExecutionMode; 5] = [
    ExecutionMode::Plain,
    ExecutionMode::Exec,
    ExecutionMode::ExecInOtherDatabase,
    ExecutionMode::Script,
    ExecutionMode::ScriptInExec,
];

/// Returns the words of a command, with `tag` added to its key names.
pub(super) fn words(command: &str, tag: &str) -> Vec<String> {
    let names = ["src", "dst", "oth", "oth2"];
    command
        .split(' ')
        .map(|word| match names.contains(&word) {
            true => format!("{word}{tag}"),
            false => word.replace("-src-", &format!("-src{tag}-")),
        })
        .collect()
}

pub(super) fn call(client: &mut Client, words: &[String]) -> String {
    client.send(words);
    client.answer()
}

/// Writes the data of a form, and lets the keys and fields that it names expire, or else `src`.
fn prepare(client: &mut Client, commands: &str, tag: &str) {
    let expiry = |key: &str| ["PEXPIRE", key, "1"].map(str::to_owned).to_vec();
    let mut expiries = Vec::new();
    for command in commands.split(';') {
        let words = words(command, tag);
        match words[0].as_str() {
            "EXPIRED" => expiries.push(expiry(&words[1])),
            "FIELD" => {
                let words = ["HPEXPIRE", &words[1], "1", "FIELDS", "1", "f"];
                expiries.push(words.map(str::to_owned).to_vec());
            }
            _ => drop(call(client, &words)),
        }
    }
    if expiries.is_empty() {
        expiries.push(expiry(&format!("src{tag}")));
    }
    for request in expiries {
        call(client, &request);
    }
}

/// Returns the database in which a form's keys are.
fn database(way: ExecutionMode) -> &'static str {
    match way {
        ExecutionMode::ExecInOtherDatabase => "1",
        _ => "0",
    }
}

fn run(client: &mut Client, command: &str, tag: &str, way: ExecutionMode) {
    let words = words(command, tag);
    let script = ["EVAL", "return redis.call(unpack(ARGV))", "0"].map(str::to_owned);
    let script: Vec<String> = script.into_iter().chain(words.iter().cloned()).collect();
    match way {
        ExecutionMode::Plain => drop(call(client, &words)),
        ExecutionMode::Script => drop(call(client, &script)),
        ExecutionMode::Exec | ExecutionMode::ScriptInExec | ExecutionMode::ExecInOtherDatabase => {
            client.call(&["MULTI"]);
            if matches!(way, ExecutionMode::ExecInOtherDatabase) {
                client.call(&["SELECT", "1"]);
            }
            match way {
                ExecutionMode::ScriptInExec => call(client, &script),
                _ => call(client, &words),
            };
            client.call(&["EXEC"]);
        }
    }
}

/// Waits until `replica` has executed all writes of `primary`.
pub(super) fn await_replica(primary: &mut Client, replica: &mut Client) {
    let offset = |client: &mut Client, field: &str| {
        let info = client.call(&["INFO", "replication"]);
        let found = info
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .map(str::to_owned);
        found.unwrap_or_default()
    };
    let start = Instant::now();
    let up = "master_link_status:";
    while offset(replica, up) != "up" || offset(primary, "master_repl_offset:") != offset(replica, "slave_repl_offset:")
    {
        assert!(start.elapsed() < PATIENCE, "the replica does not get there");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the digests of the keys that a form writes.
fn digests(client: &mut Client, tag: &str, way: ExecutionMode) -> String {
    client.call(&["SELECT", database(way)]);
    let names = ["dst", "oth", "oth2", "src"].map(|name| format!("{name}{tag}"));
    let mut request = vec!["DEBUG", "DIGEST-VALUE"];
    request.extend(names.iter().map(String::as_str));
    client.call(&request)
}

/// Starts a primary with an append-only file, and a replica of it.
pub(super) fn pair(workers: &str) -> (Server, Server) {
    let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
    let common = [&threads[..], &["--enable-debug-command", "yes"]].concat();
    let file = [
        "--appendonly",
        "yes",
        "--appendfsync",
        "no",
        "--aof-use-rdb-preamble",
        "no",
    ];
    let primary = Server::start(&[&common[..], &file, &["--repl-diskless-sync-delay", "0"]].concat());
    let replica = Server::start(&[&common[..], &["--replicaof", &format!("127.0.0.1 {}", primary.port)]].concat());
    let (mut one, mut other) = (Client::connect(primary.port), Client::connect(replica.port));
    one.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    await_replica(&mut one, &mut other);
    (primary, replica)
}

/// Asserts that the replica, and the primary after it has reloaded its file, have the primary's data.
fn assert_same(primary: &Server, replica: &Server, runs: &[(String, String, ExecutionMode)]) {
    let (mut one, mut other) = (Client::connect(primary.port), Client::connect(replica.port));
    await_replica(&mut one, &mut other);
    let live: Vec<String> = runs.iter().map(|(_, tag, way)| digests(&mut one, tag, *way)).collect();
    let copied: Vec<String> = runs
        .iter()
        .map(|(_, tag, way)| digests(&mut other, tag, *way))
        .collect();
    assert_eq!(one.call(&["DEBUG", "LOADAOF"]), "OK");
    let reloaded: Vec<String> = runs.iter().map(|(_, tag, way)| digests(&mut one, tag, *way)).collect();
    let differs = |others: &[String]| -> Vec<String> {
        let pairs = runs.iter().zip(&live).zip(others);
        pairs
            .filter(|((_, live), other)| live != other)
            .map(|(((command, _, way), _), _)| format!("{command:.80} ({way:?})"))
            .collect()
    };
    let (copied, reloaded) = (differs(&copied), differs(&reloaded));
    assert!(
        copied.is_empty() && reloaded.is_empty(),
        "{} differ on the replica: {copied:#?}\n{} differ after a reload: {reloaded:#?}",
        copied.len(),
        reloaded.len()
    );
}

#[test]
fn results_computed_without_an_expired_key_are_the_same_everywhere() {
    for workers in WORKERS {
        let (primary, replica) = pair(workers);
        let mut runs = Vec::new();
        for (number, (setup, command)) in FORMS.iter().enumerate() {
            for way in WAYS {
                let tag = format!("-{number}-{way:?}");
                let mut client = Client::connect(primary.port);
                client.call(&["SELECT", database(way)]);
                prepare(&mut client, setup, &tag);
                runs.push(((*command).to_owned(), tag, way));
            }
        }
        thread::sleep(Duration::from_millis(5));
        for (command, tag, way) in &runs {
            run(&mut Client::connect(primary.port), command, tag, *way);
        }
        assert_same(&primary, &replica, &runs);
    }
}

/// Commands that take so long that they run outside their worker.
const LONG: &[&str] = &[
    "SUNIONSTORE dst src oth",
    "SDIFFSTORE dst oth src",
    "SINTERSTORE dst src oth",
    "ZUNIONSTORE dst 2 src oth",
    "ZDIFFSTORE dst 2 oth src",
    "SORT oth BY w-src-* STORE dst",
    "SORT oth GET h-src-*->f STORE dst",
];

#[test]
fn a_long_command_that_meets_an_expired_key_stores_the_same_everywhere() {
    for workers in WORKERS {
        let (primary, replica) = pair(workers);
        let mut client = Client::connect(primary.port);
        let mut runs = Vec::new();
        for (number, command) in LONG.iter().enumerate() {
            let tag = format!("-{number}");
            let members: Vec<String> = (0..20_000).map(|member| member.to_string()).collect();
            call(&mut client, &[words("SADD oth", &tag), members].concat());
            let setup = "SADD src 1 2 a;SET w-src-7 -5;HSET h-src-7 f x g y";
            prepare(&mut client, setup, &tag);
            prepare(&mut client, "RPUSH dst x;EXPIRED w-src-7;EXPIRED dst", &tag);
            prepare(&mut client, "FIELD h-src-7", &tag);
            runs.push(((*command).to_owned(), tag, ExecutionMode::Plain));
        }
        let tag = "-many".to_owned();
        prepare(&mut client, "SADD src a b;SADD oth b c", &tag);
        let many: Vec<String> = (0..6000).map(|number| format!("none-{number}")).collect();
        runs.push((
            format!("SUNIONSTORE dst src oth {}", many.join(" ")),
            tag,
            ExecutionMode::Plain,
        ));
        thread::sleep(Duration::from_millis(5));
        for (command, tag, way) in &runs {
            run(&mut client, command, tag, *way);
        }
        assert_same(&primary, &replica, &runs);
    }
}

#[test]
fn a_reload_leaves_no_key_behind_on_replicas() {
    for workers in WORKERS {
        let (primary, replica) = pair(workers);
        let (mut client, mut other) = (Client::connect(primary.port), Client::connect(replica.port));
        assert_eq!(client.call(&["SET", "k", "v", "PX", "1"]), "OK");
        assert_eq!(client.call(&["HSET", "h", "f", "1", "g", "2"]), "2");
        assert_eq!(client.call(&["HPEXPIRE", "h", "1", "FIELDS", "1", "f"]), "(1)");
        thread::sleep(Duration::from_millis(5));
        assert_eq!(client.call(&["DEBUG", "RELOAD"]), "OK");
        assert_eq!(client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]), "OK");
        let start = Instant::now();
        while client.call(&["DBSIZE"]) != "1" || client.call(&["HLEN", "h"]) != "1" {
            assert!(start.elapsed() < PATIENCE, "what has expired stays");
            thread::sleep(Duration::from_millis(5));
        }
        await_replica(&mut client, &mut other);
        assert_eq!(
            (other.call(&["DBSIZE"]), other.call(&["HLEN", "h"])),
            ("1".into(), "1".into())
        );
    }
}

/// The user loses a database after SELECT was queued for it: the commands after it run in the database before.
#[test]
fn a_command_after_a_denied_select_stores_the_same_everywhere() {
    for workers in ["1", "4"] {
        let (primary, replica) = pair(workers);
        let (mut admin, mut joe) = (Client::connect(primary.port), Client::connect(primary.port));
        assert_eq!(
            admin.call(&["ACL", "SETUSER", "joe", "on", "nopass", "~*", "&*", "+@all"]),
            "OK"
        );
        assert_eq!(joe.call(&["AUTH", "joe", "x"]), "OK");
        let mut runs = Vec::new();
        for (number, (setup, command)) in FORMS.iter().enumerate() {
            let tag = format!("-{number}");
            prepare(&mut admin, setup, &tag);
            runs.push(((*command).to_owned(), tag, ExecutionMode::Exec));
        }
        thread::sleep(Duration::from_millis(5));
        for (command, tag, _) in &runs {
            joe.call(&["MULTI"]);
            assert_eq!(joe.call(&["SELECT", "1"]), "QUEUED");
            assert_eq!(call(&mut joe, &words(command, tag)), "QUEUED");
            assert_eq!(admin.call(&["ACL", "SETUSER", "joe", "db=0"]), "OK");
            let replies = joe.call(&["EXEC"]);
            assert!(replies.starts_with("(NOPERM "), "{command}: {replies}");
            assert_eq!(admin.call(&["ACL", "SETUSER", "joe", "alldbs"]), "OK");
        }
        assert_same(&primary, &replica, &runs);
    }
}

/// As in Valkey, a key that has expired is a part of the data until it is deleted.
#[test]
fn a_digest_includes_expired_keys_that_are_not_deleted() {
    let server = Server::start(&["--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "OK");
    assert_eq!(client.call(&["SET", "key", "value", "PX", "1000000"]), "OK");
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let value = client.call(&["DEBUG", "DIGEST-VALUE", "key"]);
    // Digests omit the time of the expiry.
    assert_eq!(client.call(&["PEXPIRE", "key", "1"]), "1");
    thread::sleep(Duration::from_millis(5));
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    assert_eq!(client.call(&["DEBUG", "DIGEST-VALUE", "key"]), value);
    assert_eq!(client.transact(&[&["DEBUG", "DIGEST"]]), format!("({digest})"));
    assert_eq!(client.call(&["GET", "key"]), "-", "it has expired");
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), "0".repeat(40), "and is deleted");
}
