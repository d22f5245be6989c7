//! Clients of several workers store results computed from keys and fields that expire meanwhile. In the end a replica,
//! and the primary after it has reloaded its append-only file, must have the same data.

use std::thread;

use super::Client;
use super::expired_keys::{WORKERS, assert_all_same, await_replica, pair};

/// Commands about random keys (`s?` a set, `z?` a sorted set, `h?` a hash, `l?` a list, `t?` a string), fields (`f?`),
/// numbers (`#`) and times to live (`ms`).
const COMMANDS: &[&str] = &[
    "SADD s? # #",
    "ZADD z? # # # #",
    "HSET h? f? # f? #",
    "RPUSH l? # #",
    "SET t? # PX ms",
    "PEXPIRE s? ms",
    "PEXPIRE z? ms",
    "PEXPIRE h? ms",
    "PEXPIRE l? ms",
    "HPEXPIRE h? ms FIELDS 2 f? f?",
    "HPEXPIRE h? ms FIELDS 1 f?",
    "SUNIONSTORE s? s? s?",
    "SDIFFSTORE s? s? s?",
    "SMOVE s? s? #",
    "ZUNIONSTORE z? 2 z? z?",
    "ZRANGESTORE z? z? 0 -1",
    "COPY s? s? REPLACE",
    "COPY h? h? REPLACE",
    "RENAME h? h?",
    "HSETEX h? KEEPTTL FIELDS 2 f? # f? #",
    "HSETEX h? FNX PX ms FIELDS 1 f? #",
    "HDEL h? f? f?",
    "HGETDEL h? FIELDS 2 f? f?",
    "HINCRBY h? f? 3",
    "HPERSIST h? FIELDS 2 f? f?",
    "HEXPIRE h? 100 FIELDS 2 f? f?",
    "SORT l? LIMIT 0 20 STORE l?",
    "SORT l? BY h?->f1 GET h*->f2 GET # LIMIT 0 9 ALPHA STORE l?",
    "SORT l? BY t* GET t* GET # LIMIT 0 9 ALPHA STORE l?",
    "LMOVE l? l? LEFT RIGHT",
    "LTRIM l? 0 20",
    "BITOP OR t? t? t?",
    "BITOP XOR t? t? t?",
    "SET t? # KEEPTTL",
    "GET t?",
    "SUNION s? s?",
];

/// The number of keys of each kind.
const KEYS: u8 = 6;
/// The number of commands of each client.
const COMMANDS_EACH: usize = 6000;

fn words(random: &mut fastrand::Rng) -> Vec<String> {
    let command = random.choice(COMMANDS).expect("there are some");
    let mut word = |word: &str| match word {
        "ms" => random
            .choice(["1", "2", "3", "5", "20"])
            .expect("there are some")
            .into(),
        // In SORT, `#` represents the element.
        "#" if !command.starts_with("SORT") => random.u8(..20).to_string(),
        "h?->f1" => "h*->f1".to_owned(),
        _ => match word.strip_suffix('?') {
            Some("f") => format!("f{}", random.u8(..4)),
            Some(kind) => format!("{kind}{}", random.u8(..KEYS)),
            None => word.to_owned(),
        },
    };
    command.split(' ').map(&mut word).collect()
}

/// Runs commands directly, in transactions and in scripts.
fn run(port: u16, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Client::connect(port);
    let mut left = COMMANDS_EACH;
    while left > 0 {
        let count = random.usize(1..6);
        let way = random.u8(..5);
        let mut replies = 0;
        if way == 0 {
            client.send(&["MULTI"]);
            replies += 2;
        }
        for _ in 0..count {
            let mut words = words(&mut random);
            if way == 1 {
                let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"].map(str::to_owned);
                words.splice(0..0, script);
            }
            client.send(&words);
        }
        replies += count;
        if way == 0 {
            client.send(&["EXEC"]);
        }
        for _ in 0..replies {
            client.answer();
        }
        left = left.saturating_sub(count);
    }
}

#[test]
fn a_load_of_expiring_keys_and_fields_leaves_the_same_everywhere() {
    for workers in WORKERS {
        let (primary, replica) = pair(workers);
        let mut client = Client::connect(primary.port);
        client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let port = primary.port;
        let clients: Vec<_> = (0..4)
            .map(|number| thread::spawn(move || run(port, seed ^ number)))
            .collect();
        for client in clients {
            client.join().expect("the client gets its replies");
        }
        await_replica(&mut client, &mut Client::connect(replica.port));
        assert_all_same(&primary, &replica);
    }
}
