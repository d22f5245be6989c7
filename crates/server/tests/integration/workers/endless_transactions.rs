//! Tests transactions with scripts that do not end by themselves: other clients go on, and SCRIPT KILL ends them.

use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server, is_waiting, lengthen_until};

/// Runs `story` with one, two and eight active workers. Unless the arguments say otherwise, no script counts as busy,
/// however long it takes.
fn with_workers(arguments: &[&str], story: impl Fn(&Server)) {
    for threads in ["1", "2", "8"] {
        let own = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let never_busy = ["--busy-reply-threshold", "0"];
        story(&Server::start(&[&own, &never_busy[..], arguments].concat()));
    }
}

/// Queues the commands, sends EXEC, and does not wait for its reply.
fn send_transaction(client: &mut Client, commands: &[&[&str]]) {
    assert_eq!(client.call(&["MULTI"]), "OK");
    for command in commands {
        assert_eq!(client.call(command), "QUEUED", "{command:?}");
    }
    client.send(&["EXEC"]);
}

/// Sends SCRIPT KILL and FUNCTION KILL until a script was running.
fn kill_script(admin: &mut Client) {
    let started = Instant::now();
    loop {
        let replies = ["SCRIPT", "FUNCTION"].map(|kind| admin.call(&[kind, "KILL"]));
        if replies.iter().any(|reply| reply == "OK") {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "no script was running");
        thread::sleep(Duration::from_millis(5));
    }
}

const ENDLESS: &str = "while true do end";
/// A script that reads a key and does not end.
const HOLDER: &str = "redis.call('GET', KEYS[1]) while true do end";

#[test]
fn an_endless_script_in_a_transaction_stops_nobody_and_can_be_killed() {
    let library = "#!lua name=l\nredis.register_function('endless', function() while true do end end)";
    let by_argument = "for i = 1, tonumber(ARGV[1]) do end return 1";
    let loaded = "return loadstring('whi' .. 'le true do end')()";
    let transactions: [&[&[&str]]; 10] = [
        &[&["EVAL", ENDLESS, "0"]],
        &[&["FLUSHALL"], &["EVAL", ENDLESS, "1", "a"]],
        &[&["KEYS", "*"], &["EVAL", ENDLESS, "0"]],
        &[
            &["SET", "a", "1"],
            &["INFO"],
            &["EVAL", ENDLESS, "0"],
            &["SET", "b", "1"],
        ],
        &[&["EVAL", "redis.call('INFO') while true do end", "0"]],
        &[&["CLIENT", "LIST"], &["EVAL_RO", ENDLESS, "0"]],
        &[&["SCAN", "0"], &["FCALL", "endless", "0"]],
        &[&["FCALL", "endless", "0"]],
        &[&["EVAL", by_argument, "0", "1e15"]],
        &[&["DBSIZE"], &["EVAL", loaded, "0"]],
    ];
    with_workers(&[], |server| {
        let mut admin = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        assert_eq!(admin.call(&["FUNCTION", "LOAD", library]), "l");
        // The server learns that this script is short. With other arguments it is not.
        for _ in 0..5 {
            assert_eq!(admin.call(&["EVAL", by_argument, "0", "1"]), "1");
        }
        for commands in transactions {
            send_transaction(&mut client, commands);
            for _ in 0..8 {
                let mut other = Client::connect(server.port);
                assert_eq!(other.call(&["PING"]), "PONG");
            }
            assert!(is_waiting(&mut client), "{commands:?} has ended by itself");
            kill_script(&mut admin);
            let reply = client.answer();
            assert!(reply.contains("killed by user"), "{commands:?}: {reply}");
            assert_eq!(client.call(&["PING"]), "PONG");
            assert_eq!(client.call(&["SET", "c", "1"]), "OK", "a lease was kept");
        }
        assert_eq!(
            client.call(&["DBSIZE"]),
            "3",
            "the rest of a transaction runs: a, b and c"
        );
    });
}

#[test]
fn a_transaction_that_leaves_its_worker_selects_databases_and_watches_keys() {
    let sum = "local n = 0 for i = 1, 3 do n = n + redis.call('INCR', KEYS[1]) end return n";
    with_workers(&[], |server| {
        let mut client = Client::connect(server.port);
        let mut other = Client::connect(server.port);
        for with_keys in [false, true] {
            assert_eq!(client.call(&["FLUSHALL"]), "OK");
            assert_eq!(client.call(&["SELECT", "0"]), "OK");
            assert_eq!(client.call(&["WATCH", "n", "m"]), "OK");
            let reads: &[&str] = if with_keys {
                &["KEYS", "none"]
            } else {
                &["EXISTS", "none"]
            };
            let none = if with_keys { "()" } else { "0" };
            let list = client.transact(&[&["SELECT", "3"], &["CLIENT", "LIST"], &["EVAL", sum, "1", "none"]]);
            assert!(list.contains(" db=3 ") && list.contains(" watch=0 "), "{list}");
            assert_eq!(client.call(&["FLUSHALL"]), "OK");
            assert_eq!(client.call(&["SELECT", "0"]), "OK");
            assert_eq!(client.call(&["WATCH", "n", "m"]), "OK");
            let commands: [&[&str]; 6] = [
                &["EVAL", sum, "1", "n"],
                reads,
                &["SELECT", "3"],
                &["EVAL", sum, "1", "n"],
                &["INCR", "n"],
                &["PING"],
            ];
            assert_eq!(client.transact(&commands), format!("(6 {none} OK 6 4 PONG)"));
            assert_eq!(client.call(&["INCR", "n"]), "5", "the database stays selected");
            let list = other.call(&["CLIENT", "LIST"]);
            assert!(list.contains("db=3 sub=0 psub=0 ssub=0 multi=0 watch=0"), "{list}");

            assert_eq!(client.call(&["WATCH", "n"]), "OK");
            assert_eq!(client.call(&["MULTI"]), "OK");
            assert_eq!(client.call(&["EVAL", sum, "1", "n"]), "QUEUED");
            assert_eq!(client.call(reads), "QUEUED");
            assert_eq!(other.call(&["SELECT", "3"]), "OK");
            assert_eq!(other.call(&["SET", "n", "100"]), "OK");
            assert_eq!(client.call(&["EXEC"]), "-");
            assert_eq!(client.call(&["GET", "n"]), "100");
            assert_eq!(other.call(&["SELECT", "0"]), "OK");
            assert_eq!(other.call(&["GET", "n"]), "3");
        }
    });
}

/// EXEC waits for a script that holds its key, and the watched key changes meanwhile.
#[test]
fn a_watched_key_that_changes_while_exec_waits_discards_the_transaction() {
    with_workers(&[], |server| {
        let mut holder = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        let mut other = Client::connect(server.port);
        for reads in [&["KEYS", "none"][..], &["EXISTS", "none"][..]] {
            lengthen_until("the script has always ended before the key changed", |rounds| {
                assert_eq!(client.call(&["WATCH", "w"]), "OK");
                let script = format!("redis.call('SET', KEYS[1], 1) for i = 1, {rounds} do end return 1");
                server.run_script(&mut holder, &["EVAL", &script, "1", "held"]);
                let incr = ["EVAL", "for i = 1, 2 do redis.call('INCR', 'n') end", "1", "held"];
                send_transaction(&mut client, &[reads, &incr]);
                assert_ne!(other.call(&["INCR", "w"]), "0");
                let is_before = is_waiting(&mut holder);
                assert_eq!(holder.answer(), "1");
                let reply = client.answer();
                if is_before {
                    assert_eq!(reply, "-", "the transaction ran although its watched key had changed");
                }
                is_before
            });
        }
        assert_eq!(client.call(&["PING"]), "PONG");
    });
}

/// These transactions change their client or the server, so they stay on their worker, where SCRIPT KILL may not
/// arrive.
#[test]
fn an_endless_script_in_a_transaction_that_stays_on_its_worker_ends_when_it_is_busy() {
    let transactions: [&[&[&str]]; 4] = [
        &[&["CLIENT", "SETNAME", "x"], &["EVAL", ENDLESS, "0"], &["SET", "a", "1"]],
        &[&["CLIENT", "SETNAME", "x"], &["KEYS", "*"], &["EVAL", ENDLESS, "0"]],
        &[&["CONFIG", "SET", "hz", "20"], &["EVAL", ENDLESS, "0"]],
        &[
            &["SUBSCRIBE", "channel"],
            &["FLUSHALL"],
            &["EVAL", ENDLESS, "0"],
            &["SET", "b", "1"],
        ],
    ];
    with_workers(&["--busy-reply-threshold", "200"], |server| {
        for commands in transactions {
            let mut client = Client::connect(server.port);
            let mut others: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
            send_transaction(&mut client, commands);
            for other in &mut others {
                let reply = other.call(&["PING"]);
                // Between the moment at which the script counts as busy and its end, other workers refuse commands.
                assert!(reply == "PONG" || reply.starts_with("BUSY "), "{reply}");
            }
            let reply = client.answer();
            assert!(reply.contains("killed by the server"), "{commands:?}: {reply}");
        }
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["KEYS", "*"]), "(b)", "the rest of each transaction runs");
    });
}

/// Another client's script holds a slot that EXEC needs, and does not end.
#[test]
fn a_transaction_that_needs_all_slots_gives_way_to_a_busy_script() {
    let arguments = ["--busy-reply-threshold", "100", "--busy-reply-scope", "affected"];
    with_workers(&arguments, |server| {
        let mut runner = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["MSET", "a", "1", "b", "2", "c", "3"]), "OK");
        server.run_script(&mut runner, &["EVAL_RO", HOLDER, "1", "held"]);
        send_transaction(&mut client, &[&["EVAL", "for i = 1, 2 do end", "0"], &["FLUSHALL"]]);
        let reply = client.answer();
        assert!(
            reply.starts_with("EXECABORT Transaction discarded because of: BUSY"),
            "{reply}"
        );
        assert_eq!(
            client.call(&["MGET", "a", "b", "c"]),
            "(1 2 3)",
            "no slot is held any more"
        );
        assert_eq!(
            client.call(&["EVAL", "return redis.call('SET', 'a', '4')", "1", "a"]),
            "OK",
            "the token was kept"
        );
        kill_script(&mut admin);
        assert!(runner.answer().contains("killed by user"));
    });
}

/// The client of a transaction that waits for all slots is killed.
#[test]
fn a_transaction_that_waits_for_all_slots_does_not_run_once_its_client_is_killed() {
    with_workers(&[], |server| {
        let mut runner = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["SET", "a", "1"]), "OK");
        let id = client.call(&["CLIENT", "ID"]);
        server.run_script(&mut runner, &["EVAL_RO", HOLDER, "1", "held"]);
        send_transaction(&mut client, &[&["EVAL", "for i = 1, 2 do end", "0"], &["FLUSHALL"]]);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
        kill_script(&mut admin);
        assert!(runner.answer().contains("killed by user"));
        admin.wait_for_info("weft_unfinished_jobs", "0");
        assert_eq!(
            admin.call(&["GET", "a"]),
            "1",
            "FLUSHALL ran after CLIENT KILL was answered"
        );
    });
}

/// A library that another client loads does not appear in the middle of a transaction that has deleted it.
#[test]
fn no_library_is_loaded_in_the_middle_of_a_transaction_that_changes_libraries() {
    let library = "#!lua name=l\nredis.register_function('f', function() return 1 end)";
    let changes: [&[&str]; 2] = [&["FUNCTION", "FLUSH"], &["FUNCTION", "DELETE", "l"]];
    with_workers(&[], |server| {
        let mut client = Client::connect(server.port);
        let mut other = Client::connect(server.port);
        assert_eq!(other.call(&["FUNCTION", "LOAD", "REPLACE", library]), "l");
        for change in changes {
            let commands = [
                change,
                &["EVAL", "for i = 1, 5e7 do end return 1", "0"],
                &["FCALL", "f", "0"],
            ];
            send_transaction(&mut client, &commands);
            thread::sleep(Duration::from_millis(30));
            assert_eq!(other.call(&["FUNCTION", "LOAD", "REPLACE", library]), "l");
            assert_eq!(client.answer(), "(OK 1 ERR Function not found)", "{change:?}");
            // The load may have come before the transaction.
            assert_eq!(other.call(&["FUNCTION", "LOAD", "REPLACE", library]), "l");
        }
    });
}

/// A script of a transaction may lease further slots and publish messages late in its run.
#[test]
fn nothing_of_a_transaction_happens_after_the_reply_to_client_kill() {
    let transactions: [&[&[&str]]; 2] = [&[], &[&["DBSIZE"]]];
    with_workers(&[], |server| {
        let mut admin = Client::connect(server.port);
        for further in transactions {
            lengthen_until("the transaction has always ended before the kill", |rounds| {
                let mut client = Client::connect(server.port);
                let mut subscriber = Client::connect(server.port);
                assert_eq!(subscriber.call(&["SUBSCRIBE", "channel"]), "(subscribe channel 1)");
                admin.call(&["DEL", "declared", "late"]);
                let id = client.call(&["CLIENT", "ID"]);
                let body = format!(
                    "redis.call('SET', KEYS[1], 'x') for i = 1, {rounds} do end redis.call('SET', ARGV[1], 'x') \
                     redis.call('PUBLISH', 'channel', 'late')"
                );
                assert_eq!(client.call(&["MULTI"]), "OK");
                for command in further {
                    assert_eq!(client.call(command), "QUEUED");
                }
                assert_eq!(client.call(&["EVAL", &body, "1", "declared", "late"]), "QUEUED");
                server.run_script(&mut client, &["EXEC"]);
                let is_running = is_waiting(&mut client);
                // A client that has its reply may have been disconnected by then.
                let killed = admin.call(&["CLIENT", "KILL", "ID", &id]);
                admin.call(&["PUBLISH", "channel", "after the kill"]);
                let (message, after) = (subscriber.answer(), admin.call(&["EXISTS", "late"]));
                admin.wait_for_info("weft_unfinished_jobs", "0");
                let is_complete = (after.as_str(), message.as_str()) == ("1", "(message channel late)");
                let is_prevented = (after.as_str(), message.as_str()) == ("0", "(message channel after the kill)");
                assert!(
                    is_complete || is_prevented,
                    "{further:?}, {killed} killed: {after}, {message}"
                );
                assert_eq!(admin.call(&["EXISTS", "late"]), after, "{further:?}, {killed} killed");
                is_running
            });
        }
    });
}
