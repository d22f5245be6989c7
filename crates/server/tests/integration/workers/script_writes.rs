//! Tests scripts that write at the same time: one of them can no longer be stopped, the others can be undone.

use std::thread;
use std::time::{Duration, Instant};

use super::{Client, Server, is_waiting, lengthen_until};
use crate::harness::wait_until;

/// Runs `story` with two and eight active workers. No script counts as busy, however long it takes.
fn with_workers(arguments: &[&str], story: impl Fn(&Server)) {
    for threads in ["2", "8"] {
        let own = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let never_busy = ["--busy-reply-threshold", "0"];
        story(&Server::start(&[&own, &never_busy[..], arguments].concat()));
    }
}

/// Sends a script that writes `first` and then runs for long. It has the token. Returns once it has written.
fn start_long_writer(server: &Server, client: &mut Client, rounds: u64) {
    let body = format!("redis.call('SET', KEYS[1], '1') for i = 1, {rounds} do end return 'first'");
    server.run_script(client, &["EVAL", &body, "1", "first"]);
}

fn figure(client: &mut Client, field: &str) -> u64 {
    client.info(field).parse().expect("a number")
}

#[test]
fn a_script_writes_beside_one_that_has_written_and_runs_for_long() {
    with_workers(&["--appendonly", "yes", "--enable-debug-command", "yes"], |server| {
        let (mut long, mut short) = (Client::connect(server.port), Client::connect(server.port));
        lengthen_until("the first script was faster", |rounds| {
            start_long_writer(server, &mut long, rounds);
            let before = figure(&mut short, "weft_scripts_written_in_parallel");
            let body = "redis.call('SET', KEYS[1], '2') redis.call('RPUSH', KEYS[2], 'a', 'b') \
                        return redis.call('LLEN', KEYS[2])";
            short.call(&["DEL", "list"]);
            assert_eq!(short.call(&["EVAL", body, "2", "string", "list"]), "2");
            let is_in_time = is_waiting(&mut long);
            assert_eq!(long.answer(), "first");
            let after = figure(&mut short, "weft_scripts_written_in_parallel");
            assert!(!is_in_time || after > before, "the script had the token");
            is_in_time
        });
        let digest = short.call(&["DEBUG", "DIGEST"]);
        assert_eq!(short.call(&["DEBUG", "LOADAOF"]), "OK");
        assert_eq!(short.call(&["DEBUG", "DIGEST"]), digest);
    });
}

#[test]
fn a_script_that_needs_a_held_slot_is_undone_and_restarts() {
    with_workers(&[], |server| {
        let (mut long, mut second) = (Client::connect(server.port), Client::connect(server.port));
        let mut reader = Client::connect(server.port);
        second.call(&["SET", "old", "before"]);
        lengthen_until("the first script was faster", |rounds| {
            reader.call(&["DEL", "new"]);
            start_long_writer(server, &mut long, rounds);
            let before = figure(&mut reader, "weft_scripts_undone");
            // `first` is not declared, and the other script holds its slot.
            second.send(&[
                "EVAL",
                "redis.call('SET', KEYS[1], 'after') redis.call('SET', KEYS[2], '1') \
                 redis.call('SET', 'fir' .. 'st', '2') return 'second'",
                "2",
                "old",
                "new",
            ]);
            wait_until("the script is undone", || {
                !is_waiting(&mut long) || figure(&mut reader, "weft_scripts_undone") > before
            });
            let mut seen = Vec::new();
            for _ in 0..20 {
                seen.push((reader.call(&["GET", "old"]), reader.call(&["EXISTS", "new"])));
            }
            let is_in_time = is_waiting(&mut long);
            if is_in_time {
                assert!(seen.iter().all(|(old, new)| old == "before" && new == "0"), "{seen:?}");
            }
            assert_eq!(long.answer(), "first");
            assert_eq!(second.answer(), "second");
            assert_eq!(reader.call(&["MGET", "old", "new", "first"]), "(after 1 2)");
            reader.call(&["SET", "old", "before"]);
            is_in_time
        });
    });
}

#[test]
fn a_script_that_can_be_undone_can_be_killed() {
    with_workers(&[], |server| {
        let (mut long, mut second) = (Client::connect(server.port), Client::connect(server.port));
        let mut admin = Client::connect(server.port);
        lengthen_until("the first script was faster", |rounds| {
            admin.call(&["DEL", "list", "new"]);
            admin.call(&["RPUSH", "list", "a"]);
            start_long_writer(server, &mut long, rounds);
            let before = figure(&mut admin, "weft_scripts_undone");
            let body = format!(
                "redis.call('RPUSH', KEYS[1], 'b') redis.call('SET', KEYS[2], '1') for i = 1, {rounds} do end return 2"
            );
            server.run_script(&mut second, &["EVAL", &body, "2", "list", "new"]);
            wait_until("the second script is killed", || {
                !is_waiting(&mut long) || admin.call(&["SCRIPT", "KILL"]) == "OK"
            });
            let (answer, is_in_time) = (second.answer(), is_waiting(&mut long));
            assert_eq!(long.answer(), "first");
            if !is_in_time || figure(&mut admin, "weft_scripts_undone") == before {
                return false;
            }
            assert!(
                answer.starts_with("ERR Script killed by user with SCRIPT KILL."),
                "{answer}"
            );
            assert_eq!(admin.call(&["LRANGE", "list", "0", "-1"]), "(a)");
            assert_eq!(admin.call(&["EXISTS", "new"]), "0");
            true
        });
    });
}

/// Monitors and subscribers learn of each command of a script once, however often the script restarts.
#[test]
fn the_commands_of_a_script_that_restarts_are_shown_once() {
    let arguments = ["--notify-keyspace-events", "Km", "--slowlog-log-slower-than", "0"];
    with_workers(&arguments, |server| {
        let (mut long, mut second) = (Client::connect(server.port), Client::connect(server.port));
        let mut admin = Client::connect(server.port);
        let mut monitor = Client::connect(server.port);
        let mut subscriber = Client::connect(server.port);
        let user = "ACL SETUSER limited on nopass ~* &* +@all -lpush";
        assert_eq!(admin.call(&user.split(' ').collect::<Vec<_>>()), "OK");
        assert_eq!(second.call(&["AUTH", "limited", "x"]), "OK");
        assert_eq!(monitor.call(&["MONITOR"]), "OK");
        assert!(
            subscriber
                .call(&["SUBSCRIBE", "__keyspace@0__:absent"])
                .starts_with("(subscribe")
        );
        lengthen_until("the first script was faster", |rounds| {
            assert_eq!(admin.call(&["SLOWLOG", "RESET"]), "OK");
            assert_eq!(admin.call(&["ACL", "LOG", "RESET"]), "OK");
            start_long_writer(server, &mut long, rounds);
            // `first` is not declared, and the other script holds its slot.
            let body = format!(
                "redis.call('GET', KEYS[1]) redis.pcall('LPUSH', KEYS[1], '1') redis.call('GET', 'fir' .. 'st') \
                 return 'second' -- {rounds}"
            );
            second.send(&["EVAL", &body, "1", "absent"]);
            thread::sleep(Duration::from_millis(50));
            let is_in_time = is_waiting(&mut long);
            assert_eq!(
                (long.answer(), second.answer()),
                ("first".to_owned(), "second".to_owned())
            );
            assert_eq!(admin.call(&["ECHO", "end"]), "end");
            let lines: Vec<String> = std::iter::from_fn(|| Some(monitor.answer()))
                .take_while(|line| !line.contains("\"end\""))
                .collect();
            let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
            assert_eq!(count("lua] \"GET\" \"absent\""), 1, "{lines:?}");
            assert_eq!(count("lua] \"GET\" \"first\""), 1, "{lines:?}");
            assert_eq!(count("\"EVAL\""), 2, "{lines:?}");
            assert_eq!(subscriber.answer(), "(message __keyspace@0__:absent keymiss)");
            assert_eq!(admin.call(&["PUBLISH", "__keyspace@0__:absent", "."]), "1");
            assert_eq!(subscriber.answer(), "(message __keyspace@0__:absent .)");
            let slow = admin.call(&["SLOWLOG", "GET", "-1"]);
            assert_eq!(slow.matches("(GET absent)").count(), 1, "{slow}");
            let denied = admin.call(&["ACL", "LOG"]);
            assert!(
                denied.contains("(count 1 reason command context lua object lpush"),
                "{denied}"
            );
            is_in_time
        });
    });
}

/// The token is for scripts that wait for slots or cannot be undone. A script that was refused the slot of its key, and
/// then holds it, needs no token.
#[test]
fn a_script_that_was_refused_a_slot_does_not_wait_for_a_busy_script_on_other_slots() {
    let own = ["--io-threads", "4", "--io-threads-always-active", "yes"];
    let busy = ["--busy-reply-threshold", "1000", "--busy-reply-scope", "affected"];
    let server = Server::start(&[own, busy].concat());
    let (mut writer, mut holder) = (Client::connect(server.port), Client::connect(server.port));
    let mut client = Client::connect(server.port);
    server.run_script(
        &mut writer,
        &["EVAL", "redis.call('SET', KEYS[1], '1') while true do end", "1", "mine"],
    );
    // It has the token.
    wait_until("the script is busy", || {
        client.call(&["GET", "mine"]).starts_with("BUSY")
    });
    let scripts = [
        ("return redis.call('SET', KEYS[1], '1')", "OK"),
        ("return redis.call('GET', KEYS[1])", "1"),
        ("return redis.call('SET', 'he' .. 'ld', '2')", "OK"),
        ("return redis.call('GET', 'he' .. 'ld')", "1"),
    ];
    for (script, expected) in scripts {
        let keys: &[&str] = if script.contains("KEYS") {
            &["1", "held"]
        } else {
            &["0"]
        };
        let mut rounds = 10_000_000_u64;
        let is_shown = (0..8).any(|_| {
            let started = Instant::now();
            let body = format!("redis.call('SET', KEYS[1], '1') for i = 1, {rounds} do end return 'held'");
            holder.send(&["EVAL", &body, "1", "held"]);
            thread::sleep(Duration::from_millis(20));
            client.send(&[&["EVAL", script], keys].concat());
            thread::sleep(Duration::from_millis(40));
            let is_in_time = is_waiting(&mut holder);
            let (held, answer) = (holder.answer(), client.answer());
            // The holder is busy, too, if it takes long.
            let is_busy = started.elapsed() > Duration::from_millis(900);
            if !is_busy {
                assert_eq!((held.as_str(), answer.as_str()), ("held", expected), "{script}");
            }
            rounds = if is_in_time { rounds / 2 } else { rounds * 2 };
            is_in_time && !is_busy
        });
        assert!(is_shown, "the holder was too fast or too slow");
    }
    assert!(client.call(&["GET", "mine"]).starts_with("BUSY"));
}

/// What a script under an undo log publishes is received once, and nothing of what was undone is.
#[test]
fn events_of_a_script_that_was_undone_are_received_once() {
    with_workers(&["--notify-keyspace-events", "K$"], |server| {
        let (mut long, mut second) = (Client::connect(server.port), Client::connect(server.port));
        let mut admin = Client::connect(server.port);
        let mut subscriber = Client::connect(server.port);
        subscriber.send(&["SUBSCRIBE", "__keyspace@0__:second", "end"]);
        for channel in 1..=2 {
            assert!(subscriber.answer().ends_with(&format!(" {channel})")));
        }
        lengthen_until("the first script was faster", |rounds| {
            start_long_writer(server, &mut long, rounds);
            let before = figure(&mut admin, "weft_scripts_undone");
            second.send(&[
                "EVAL",
                "redis.call('SET', KEYS[1], '1') redis.call('SET', 'fir' .. 'st', '2') return 'second'",
                "1",
                "second",
            ]);
            wait_until("the script is undone", || {
                !is_waiting(&mut long) || figure(&mut admin, "weft_scripts_undone") > before
            });
            let is_in_time = is_waiting(&mut long);
            assert_eq!(
                (long.answer(), second.answer()),
                ("first".to_owned(), "second".to_owned())
            );
            assert_eq!(admin.call(&["PUBLISH", "end", "."]), "1");
            assert_eq!(subscriber.answer(), "(message __keyspace@0__:second set)");
            assert_eq!(subscriber.answer(), "(message end .)");
            is_in_time
        });
    });
}

const ACCOUNTS: usize = 12;

/// Moves amounts between accounts and adds all of them up, many times. Some of the scripts wait for so many `rounds`
/// between their writes.
fn transfer_and_sum(port: u16, seed: u64, rounds: &str) {
    const TRANSFER: &str =
        "local a = redis.call('DECRBY', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], ARGV[1]) return a";
    const UNDECLARED: &str = "redis.call('DECRBY', 'account:' .. ARGV[2], ARGV[1]) for i = 1, ARGV[4] do end \
                              redis.call('INCRBY', 'account:' .. ARGV[3], ARGV[1]) return 1";
    const SUM: &str = "local sum = 0 for i = 0, 11 do sum = sum + redis.call('GET', 'account:' .. i) end return sum";
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Client::connect(port);
    for _ in 0..400 {
        let (from, to) = (random.usize(..ACCOUNTS), random.usize(..ACCOUNTS));
        let amount = random.u32(1..50).to_string();
        let (from_name, to_name) = (format!("account:{from}"), format!("account:{to}"));
        let (from, to) = (from.to_string(), to.to_string());
        let answer = match random.u32(..4) {
            0 => client.call(&["EVAL_RO", SUM, "0"]),
            1 => client.call(&["EVAL", UNDECLARED, "0", &amount, &from, &to, rounds]),
            _ => client.call(&["EVAL", TRANSFER, "2", &from_name, &to_name, &amount]),
        };
        assert!(!answer.starts_with("ERR"), "{answer}");
        assert_eq!(client.call(&["EVAL_RO", SUM, "0"]), "1200");
    }
}

/// Scripts move amounts between accounts, with declared and undeclared keys, while others add them up.
#[test]
fn the_sum_of_all_accounts_stays() {
    with_workers(&["--appendonly", "yes", "--enable-debug-command", "yes"], |server| {
        let mut admin = Client::connect(server.port);
        for account in 0..ACCOUNTS {
            admin.call(&["SET", &format!("account:{account}"), "100"]);
        }
        // The longer the scripts are, the more of them begin while another one writes.
        let is_parallel = ["100", "1000", "10000", "100000"].into_iter().any(|rounds| {
            let transfer = |number| transfer_and_sum(server.port, number, rounds);
            thread::scope(|scope| {
                for number in 0..8 {
                    scope.spawn(move || transfer(number));
                }
            });
            figure(&mut admin, "weft_scripts_written_in_parallel") > 0
        });
        assert!(is_parallel, "no two scripts wrote at the same time");
        let digest = admin.call(&["DEBUG", "DIGEST"]);
        assert_eq!(admin.call(&["DEBUG", "LOADAOF"]), "OK");
        assert_eq!(admin.call(&["DEBUG", "DIGEST"]), digest);
    });
}

/// A script that holds all slots is not undone after it has emptied the database: that cannot be undone.
#[test]
fn a_script_empties_the_database_only_with_the_token() {
    const KEYS: usize = 300_000;
    let server = Server::start(&["--busy-reply-threshold", "0", "--enable-debug-command", "yes"]);
    let (mut long, mut second) = (Client::connect(server.port), Client::connect(server.port));
    let mut admin = Client::connect(server.port);
    // It has the token from its start and holds no slot.
    let first = "for i = 1, tonumber(ARGV[1]) do end return redis.call('SET', 'first', '1')";
    assert_eq!(long.call(&["EVAL", first, "0", "0"]), "OK");
    lengthen_until("the first script was faster", |rounds| {
        admin.call(&["DEBUG", "POPULATE", &KEYS.to_string(), "k"]);
        let before = figure(&mut admin, "weft_scripts_undone");
        server.run_script(&mut long, &["EVAL", first, "0", &(rounds * 4).to_string()]);
        // A script that needed the token begins with it the next time. This one is new each time.
        let flush = format!(
            "local found = 0 for i = 0, {KEYS} - 1 do if redis.call('GET', 'k:' .. i) then found = found + 1 end end \
             redis.call('FLUSHALL') redis.call('PUBLISH', 'channel', 'message') return found -- {rounds}"
        );
        second.send(&["EVAL", &flush, "0"]);
        wait_until("the second script is undone", || {
            !is_waiting(&mut long) || figure(&mut admin, "weft_scripts_undone") > before
        });
        let is_in_time = figure(&mut admin, "weft_scripts_undone") > before;
        assert_eq!(
            second.answer(),
            KEYS.to_string(),
            "it has seen a part of its own effects"
        );
        assert_eq!(long.answer(), "OK");
        is_in_time
    });
}

/// A stream, and a hash whose fields expire, are as before after a script that changed them was undone.
#[test]
fn streams_and_expiring_fields_are_undone() {
    with_workers(&[], |server| {
        let (mut long, mut second) = (Client::connect(server.port), Client::connect(server.port));
        let mut reader = Client::connect(server.port);
        let state = |reader: &mut Client| {
            [
                reader.call(&["XINFO", "STREAM", "stream"]),
                reader.call(&["XPENDING", "stream", "group"]),
                reader.call(&["HGETALL", "hash"]),
                reader.call(&["HPEXPIRETIME", "hash", "FIELDS", "2", "a", "b"]),
            ]
        };
        lengthen_until("the first script was faster", |rounds| {
            reader.call(&["DEL", "stream", "hash"]);
            reader.call(&["XADD", "stream", "1-1", "f", "v"]);
            reader.call(&["XGROUP", "CREATE", "stream", "group", "0"]);
            reader.call(&["HSET", "hash", "a", "1", "b", "2"]);
            reader.call(&["HPEXPIREAT", "hash", "4102444800000", "FIELDS", "1", "a"]);
            let expected = state(&mut reader);
            start_long_writer(server, &mut long, rounds);
            let before = figure(&mut reader, "weft_scripts_undone");
            let body = format!(
                "redis.call('XADD', KEYS[1], '2-1', 'f', 'v') \
                 redis.call('XREADGROUP', 'GROUP', 'group', 'c', 'STREAMS', KEYS[1], '>') \
                 redis.call('HDEL', KEYS[2], 'b') redis.call('HPERSIST', KEYS[2], 'FIELDS', '1', 'a') \
                 redis.call('GET', 'fir' .. 'st') return 'second' -- {rounds}"
            );
            second.send(&["EVAL", &body, "2", "stream", "hash"]);
            wait_until("the script is undone", || {
                !is_waiting(&mut long) || figure(&mut reader, "weft_scripts_undone") > before
            });
            let seen = state(&mut reader);
            let is_in_time = is_waiting(&mut long);
            if is_in_time {
                assert_eq!(seen, expected);
            }
            assert_eq!(
                (long.answer(), second.answer()),
                ("first".to_owned(), "second".to_owned())
            );
            is_in_time
        });
    });
}
