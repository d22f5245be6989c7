//! Tests commands on background threads concurrently with changes: other long commands, pauses, role changes, migrating
//! keys.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Client, PATIENCE, Server, is_waiting};

/// Runs `story` with one, two and eight active workers.
fn with_workers(story: impl Fn(&[&str])) {
    for threads in ["1", "2", "8"] {
        story(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--enable-debug-command",
            "yes",
        ]);
    }
}

/// Creates a set with this number of members.
fn fill_set(client: &mut Client, key: &str, members: usize) {
    for from in (0..members).step_by(50_000) {
        let names: Vec<String> = (from..members.min(from + 50_000))
            .map(|member| format!("member:{member}"))
            .collect();
        let words: Vec<&str> = ["SADD", key]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .collect();
        client.call(&words);
    }
    assert_eq!(client.call(&["SCARD", key]), members.to_string());
}

/// Repeats a command until the answer is the expected one.
fn await_answer(client: &mut Client, words: &[&str], expected: impl Fn(&str) -> bool) {
    let start = Instant::now();
    loop {
        let answer = client.call(words);
        if expected(&answer) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{words:?}: {answer}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn long_commands_that_change_a_key_do_not_block_those_that_read_it() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut admin = Client::connect(server.port);
        fill_set(&mut admin, "set", 200_000);
        let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        for round in 0..12 {
            for (index, client) in clients.iter_mut().enumerate() {
                match (index + round) % 2 {
                    0 => client.send(&["SPOP", "set", "5000"]),
                    _ => client.send(&["SUNIONSTORE", "union", "set", "set"]),
                }
            }
            assert_eq!(admin.call(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
            assert_eq!(admin.call(&["PING"]), "PONG");
            for client in &mut clients {
                client.answer();
            }
            for name in 0..20 {
                fill_members(&mut admin, name * 1000);
            }
        }
    });
}

/// Several clients always have a reader of the key in the queue. The writer must get its turn all the same: of the
/// many reads that are to come, few may overtake it.
#[test]
fn readers_do_not_starve_a_writer() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut admin = Client::connect(server.port);
        fill_set(&mut admin, "set", 100_000);
        let mut readers: Vec<Client> = (0..6).map(|_| Client::connect(server.port)).collect();
        let (stop, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        let reads_until = |count: usize| {
            while reads.load(Ordering::Relaxed) < count {
                thread::sleep(Duration::from_millis(1));
            }
            reads.load(Ordering::Relaxed)
        };
        thread::scope(|scope| {
            for (number, reader) in readers.iter_mut().enumerate() {
                let (stop, reads) = (&stop, &reads);
                scope.spawn(move || {
                    let destination = format!("union:{number}");
                    for _ in 0..100 {
                        if !stop.load(Ordering::Relaxed) {
                            reader.call(&["SUNIONSTORE", &destination, "set", "set"]);
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let before = reads_until(6);
            for _ in 0..3 {
                admin.call(&["SPOP", "set", "5000"]);
            }
            let overtook = reads.load(Ordering::Relaxed) - before;
            stop.store(true, Ordering::Relaxed);
            assert!(overtook < 200, "{overtook} of 600 reads overtook three writers");
        });
    });
}

/// A transaction that changes several values waits for the readers of all of them at the same time.
#[test]
fn readers_do_not_starve_a_writer_of_several_values() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut admin = Client::connect(server.port);
        let keys = ["set:0", "set:1", "set:2", "set:3", "set:4"];
        keys.iter().for_each(|key| fill_set(&mut admin, key, 20_000));
        let mut readers: Vec<(&str, Client)> = (0..15)
            .map(|number| (keys[number % keys.len()], Client::connect(server.port)))
            .collect();
        let (stop, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for (number, (key, reader)) in readers.iter_mut().enumerate() {
                let (stop, reads) = (&stop, &reads);
                scope.spawn(move || {
                    let destination = format!("union:{number}");
                    for _ in 0..200 {
                        if !stop.load(Ordering::Relaxed) {
                            reader.call(&["SUNIONSTORE", &destination, key, key]);
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            while reads.load(Ordering::Relaxed) < 15 {
                thread::sleep(Duration::from_millis(1));
            }
            let before = reads.load(Ordering::Relaxed);
            admin.call(&["MULTI"]);
            keys.iter().for_each(|key| drop(admin.call(&["SADD", key, "new"])));
            assert_eq!(admin.call(&["EXEC"]), "(1 1 1 1 1)");
            let overtook = reads.load(Ordering::Relaxed) - before;
            stop.store(true, Ordering::Relaxed);
            assert!(overtook < 300, "{overtook} of 3000 reads overtook the writer");
        });
    });
}

/// After a pause others may have pinned the value again, and the next pause may come before they end.
#[test]
fn a_writer_that_waits_for_a_reader_when_clients_are_paused_waits_no_longer_after_that() {
    const MEMBERS: usize = 200_000;
    let writes: [&[&[&str]]; 2] = [
        &[&["SADD", "set", "new"]],
        &[&["MULTI"], &["SADD", "set", "new"], &["EXEC"]],
    ];
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let [mut admin, mut reader, mut writer] = [(); 3].map(|()| Client::connect(server.port));
        fill_set(&mut admin, "set", MEMBERS);
        for write in writes {
            let mut comes_first = |repetitions: usize| {
                let count = repetitions.to_string();
                let words: Vec<&str> = ["SINTERCARD", &count]
                    .into_iter()
                    .chain(std::iter::repeat_n("set", repetitions))
                    .collect();
                reader.send(&words);
                thread::sleep(Duration::from_millis(50));
                let (last, first) = write.split_last().expect("there is a command");
                first.iter().for_each(|words| drop(writer.call(words)));
                writer.send(last);
                thread::sleep(Duration::from_millis(100));
                let was_refused = is_waiting(&mut writer);
                admin.call(&["CLIENT", "PAUSE", "100000", "WRITE"]);
                thread::sleep(Duration::from_millis(100));
                admin.call(&["CLIENT", "UNPAUSE"]);
                writer.answer();
                let comes_first = was_refused && is_waiting(&mut reader);
                let members = reader.answer();
                assert!(!comes_first || members == MEMBERS.to_string(), "{members} members");
                assert_eq!(admin.call(&["SREM", "set", "new"]), "1");
                comes_first
            };
            // The reader takes some tenths of a second at first. With many more keys it would not run on a snapshot. On
            // a busy machine it may end too early more than once.
            let mut lengths = [30, 60, 60, 60].into_iter();
            assert!(lengths.any(&mut comes_first), "{write:?} always waits for the reader");
        }
    });
}

/// A client decides how long MIGRATE waits for its target. Long commands of other clients go on meanwhile.
#[test]
fn migrations_to_a_silent_server_do_not_stop_long_commands() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut admin = Client::connect(server.port);
        fill_set(&mut admin, "a", 50_000);
        fill_set(&mut admin, "b", 50_000);
        let target = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = target.local_addr().expect("is bound").port().to_string();
        let mut senders: Vec<Client> = (0..6).map(|_| Client::connect(server.port)).collect();
        for (number, sender) in senders.iter_mut().enumerate() {
            let key = format!("key:{number}");
            admin.call(&["SET", &key, "value"]);
            sender.send(&["MIGRATE", "127.0.0.1", &port, &key, "0", "1000000"]);
        }
        // The first of them has connected.
        let link = target.accept().expect("accepts");
        assert_eq!(admin.call(&["SUNIONSTORE", "union", "a", "b"]), "50000");
        assert_eq!(admin.call(&["CONFIG", "SET", "hz", "11"]), "OK");
        assert_eq!(admin.call(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "OK");
        assert_eq!(admin.call(&["SINTERCARD", "2", "a", "b"]), "50000");
        assert!(senders.iter_mut().all(is_waiting), "the migrations have ended already");
        drop(link);
    });
}

/// Adds a thousand members again.
fn fill_members(client: &mut Client, from: usize) {
    let names: Vec<String> = (from..from + 1000).map(|member| format!("member:{member}")).collect();
    let words: Vec<&str> = ["SADD", "set"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    client.call(&words);
}

#[test]
fn nothing_is_written_after_the_reply_to_a_pause() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut admin = Client::connect(server.port);
        fill_set(&mut admin, "a", 200_000);
        fill_set(&mut admin, "b", 200_000);
        let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(server.port)).collect();
        for round in 0..10 {
            admin.call(&["DEL", "union", "script"]);
            clients[0].send(&["SUNIONSTORE", "union", "a", "b"]);
            clients[1].send(&["SPOP", "a", "100"]);
            let script = format!("for i = 1, 1e6 do end redis.call('SET', 'script', '1') return {round}");
            clients[2].send(&["EVAL", &script, "1", "script"]);
            thread::sleep(Duration::from_millis(2 * round));
            assert_eq!(admin.call(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "OK");
            let state = |admin: &mut Client| {
                let keys = admin.call(&["EXISTS", "union", "script"]);
                (keys, admin.call(&["SCARD", "a"]))
            };
            let before = state(&mut admin);
            thread::sleep(Duration::from_millis(150));
            assert_eq!(state(&mut admin), before, "round {round}");
            assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
            for client in &mut clients {
                let answer = client.answer();
                assert!(!answer.starts_with("ERR"), "{answer}");
            }
            assert_eq!(admin.call(&["EXISTS", "union", "script"]), "2");
        }
    });
}

#[test]
fn nothing_is_written_once_this_server_is_a_replica() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut admin = Client::connect(server.port);
        fill_set(&mut admin, "a", 200_000);
        fill_set(&mut admin, "b", 200_000);
        let mut refused = 0;
        // On a busy machine the command may often be faster. Then there are more rounds, without a pause.
        for round in 0..50 {
            if round >= 10 && refused > 0 {
                break;
            }
            admin.call(&["DEL", "union"]);
            let mut client = Client::connect(server.port);
            client.send(&["SUNIONSTORE", "union", "a", "b"]);
            if round < 10 {
                thread::sleep(Duration::from_millis(2 * round));
            }
            // No server listens there.
            assert_eq!(admin.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
            let before = admin.call(&["EXISTS", "union"]);
            let answer = client.answer();
            thread::sleep(Duration::from_millis(50));
            assert_eq!(admin.call(&["EXISTS", "union"]), before, "round {round}");
            match before.as_str() {
                "1" => assert!(answer.parse::<u64>().is_ok(), "{answer}"),
                _ => {
                    assert_eq!(answer, "READONLY You can't write against a read only replica.");
                    refused += 1;
                }
            }
            assert_eq!(admin.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        }
        assert!(refused > 0, "every command was faster than the change of the role");
    });
}

/// The role changes repeatedly while long commands run and clients are blocked on keys.
#[test]
fn a_failover_loses_and_duplicates_nothing() {
    with_workers(|arguments| {
        let servers = [Server::start(arguments), Server::start(arguments)];
        let mut admins = [Client::connect(servers[0].port), Client::connect(servers[1].port)];
        let port = servers[0].port.to_string();
        assert_eq!(admins[1].call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        await_answer(&mut admins[1], &["ROLE"], |role| role.contains("connected"));
        fill_set(&mut admins[0], "a", 100_000);
        fill_set(&mut admins[0], "b", 100_000);
        for round in 0..8 {
            let (primary, replica) = (round % 2, 1 - round % 2);
            await_answer(&mut admins[primary], &["WAIT", "1", "1000"], |count| count == "1");
            let mut storing: Vec<Client> = (0..3).map(|_| Client::connect(servers[primary].port)).collect();
            let mut waiting: Vec<Client> = (0..20).map(|_| Client::connect(servers[primary].port)).collect();
            for client in &mut waiting {
                client.send(&["BLPOP", "list", "0"]);
            }
            await_answer(&mut admins[primary], &["INFO", "clients"], |info| {
                info.contains("blocked_clients:20")
            });
            for (index, client) in storing.iter_mut().enumerate() {
                client.send(&["SUNIONSTORE", &format!("union:{round}:{index}"), "a", "b"]);
            }
            thread::sleep(Duration::from_millis(4 * round as u64));
            let answer = admins[primary].call(&["FAILOVER", "TIMEOUT", "100000"]);
            assert_eq!(answer, "OK");
            await_answer(&mut admins[replica], &["ROLE"], |role| role.starts_with("(master"));
            let elements: Vec<String> = (0..30).map(|element| format!("{round}:{element}")).collect();
            for element in &elements {
                admins[replica].call(&["RPUSH", "list", element]);
            }
            for client in &mut waiting {
                let answer = client.answer();
                assert!(answer.starts_with("UNBLOCKED"), "round {round}: {answer}");
            }
            assert_eq!(admins[replica].call(&["LLEN", "list"]), "30", "round {round}");
            for (index, client) in storing.iter_mut().enumerate() {
                let answer = client.answer();
                let exists = admins[replica].call(&["EXISTS", &format!("union:{round}:{index}")]);
                let acknowledged = answer.parse::<u64>().is_ok();
                assert!(
                    acknowledged || answer.starts_with("READONLY"),
                    "round {round}: {answer}"
                );
                assert_eq!(exists == "1", acknowledged, "round {round}: {answer}");
            }
            await_answer(&mut admins[primary], &["ROLE"], |role| role.contains("connected"));
            await_answer(&mut admins[replica], &["WAIT", "1", "1000"], |count| count == "1");
            let digest = admins[replica].call(&["DEBUG", "DIGEST"]);
            assert_eq!(admins[primary].call(&["DEBUG", "DIGEST"]), digest, "round {round}");
            admins[replica].call(&["DEL", "list"]);
        }
    });
}

#[test]
fn wait_covers_functions_and_migrated_keys() {
    with_workers(|arguments| {
        let (server, replica, target) = (
            Server::start(arguments),
            Server::start(arguments),
            Server::start(arguments),
        );
        let mut admin = Client::connect(server.port);
        let port = server.port.to_string();
        assert_eq!(
            Client::connect(replica.port).call(&["REPLICAOF", "127.0.0.1", &port]),
            "OK"
        );
        await_answer(&mut admin, &["SET", "key", "value"], |answer| answer == "OK");
        await_answer(&mut admin, &["WAIT", "1", "1000"], |count| count == "1");
        let library = "#!lua name=l\nredis.register_function('f', function() return 1 end)";
        let dump = {
            assert_eq!(admin.call(&["FUNCTION", "LOAD", library]), "l");
            await_answer(&mut admin, &["WAIT", "1", "1000"], |count| count == "1");
            let mut dumping = Client::connect(server.port);
            dumping.send(&["FUNCTION", "DUMP"]);
            let mut line = String::new();
            std::io::BufRead::read_line(&mut dumping.0, &mut line).expect("receives");
            let mut bytes = vec![0; line[1..].trim_end().parse::<usize>().expect("a length")];
            std::io::Read::read_exact(&mut dumping.0, &mut bytes).expect("receives");
            bytes
        };
        let target_port = target.port.to_string();
        let requests: [Vec<&[u8]>; 3] = [
            vec![b"FUNCTION", b"LOAD", b"REPLACE", library.as_bytes()],
            vec![b"FUNCTION", b"RESTORE", &dump, b"REPLACE"],
            vec![
                b"MIGRATE",
                b"127.0.0.1",
                target_port.as_bytes(),
                b"key",
                b"0",
                b"100000",
            ],
        ];
        for request in requests {
            let mut client = Client::connect(server.port);
            replica.signal(Signal::SIGSTOP);
            client.send(&request);
            let answer = client.answer();
            assert!(["OK", "l"].contains(&answer.as_str()), "{answer}");
            assert_eq!(
                client.call(&["WAIT", "1", "200"]),
                "0",
                "{:?}",
                String::from_utf8_lossy(request[0])
            );
            replica.signal(Signal::SIGCONT);
            await_answer(&mut client, &["WAIT", "1", "1000"], |count| count == "1");
        }
    });
}

#[test]
fn a_key_that_is_deleted_while_it_moves_does_not_come_back() {
    with_workers(|arguments| {
        let (server, target) = (Server::start(arguments), Server::start(arguments));
        let (mut admin, mut there) = (Client::connect(server.port), Client::connect(target.port));
        let port = target.port.to_string();
        // A script that has written cannot wait for a key that it has not declared.
        let delete = "redis.call('SET', 'first', '1') return redis.call('DEL', 'list')";
        let rename = "redis.call('SET', 'first', '1') \
                      local reply = redis.pcall('RENAME', 'list', 'other') return reply.ok and 1 or 0";
        let replace = "redis.call('SET', 'first', '1') \
                       local n = redis.call('DEL', 'list') redis.call('RPUSH', 'list', 'new') return n";
        let deletions: [(&[&str], &str); 4] = [
            (&["EVAL", delete, "0"], "0"),
            (&["EVAL", rename, "0"], "0"),
            (&["FLUSHALL"], "0"),
            (&["EVAL", replace, "0"], "1"),
        ];
        for (words, length) in deletions {
            // On a busy machine the key may often have moved before. Then there are more rounds, without a pause.
            let (mut rounds, mut moved_first) = (0, 0);
            while rounds < 4 || (moved_first == rounds && rounds < 40) {
                rounds += 1;
                admin.call(&["FLUSHALL"]);
                there.call(&["FLUSHALL"]);
                let fill = "for i = 1, 400 do local t = {} for j = 1, 1000 do t[j] = i * j end \
                            redis.call('RPUSH', KEYS[1], unpack(t)) end return redis.call('LLEN', KEYS[1])";
                assert_eq!(admin.call(&["EVAL", fill, "1", "list"]), "400000");
                let mut moving = Client::connect(server.port);
                moving.send(&["MIGRATE", "127.0.0.1", &port, "list", "0", "100000"]);
                if rounds <= 4 {
                    thread::sleep(Duration::from_millis(10 * rounds));
                }
                let answer = admin.call(words);
                assert!(!answer.starts_with("ERR"), "{words:?}: {answer}");
                let moved = moving.answer();
                // The reply does not show if FLUSHALL found the key; a complete list at the target was moved before.
                let is_over_there = words == ["FLUSHALL"] && there.call(&["LLEN", "list"]) == "400000";
                if answer == "0" || is_over_there {
                    moved_first += 1;
                    continue;
                }
                assert_eq!(admin.call(&["EXISTS", "list"]), "0", "{words:?}: {moved}");
                assert_eq!(there.call(&["LLEN", "list"]), length, "{words:?}: {moved}");
            }
            assert!(moved_first < rounds, "{words:?}: every key had moved before");
        }
    });
}

/// A file that is read for as long as nothing writes to it.
struct EndlessFile(std::path::PathBuf);

impl EndlessFile {
    fn new() -> EndlessFile {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-endless-{}-{number}", std::process::id()));
        std::fs::write(&path, "user default on nopass ~* &* +@all\n").expect("writes");
        EndlessFile(path)
    }

    /// From now on, reading the file does not end.
    fn begin(&self) {
        std::fs::remove_file(&self.0).expect("removes");
        nix::unistd::mkfifo(&self.0, nix::sys::stat::Mode::S_IRWXU).expect("makes a pipe");
    }
}

impl Drop for EndlessFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn debug_sleep_needs_no_background_thread() {
    with_workers(|arguments| {
        let users = EndlessFile::new();
        let path = users.0.display().to_string();
        let server = Server::start(&[arguments, &["--aclfile", &path]].concat());
        let mut admin = Client::connect(server.port);
        users.begin();
        // More clients than there are background threads.
        let mut clients: Vec<Client> = (0..64).map(|_| Client::connect(server.port)).collect();
        for client in &mut clients {
            client.send(&["ACL", "LOAD"]);
        }
        assert_eq!(admin.call(&["DEBUG", "SLEEP", "0.01"]), "OK");
        assert_eq!(admin.transact(&[&["DEBUG", "SLEEP", "0.01"]]), "(OK)");
        assert!(clients.iter_mut().all(is_waiting));
    });
}

#[test]
fn a_script_that_sleeps_keeps_all_others_out() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "1"]), "OK");
        let script = "redis.call('SET', 'key', 'value', 'PX', '1')
            redis.call('DEBUG', 'SLEEP', '0.05')
            return redis.call('EXISTS', 'key')";
        let mut other = Client::connect(server.port);
        client.send(&["EVAL", script, "1", "key"]);
        for _ in 0..20 {
            other.call(&["INCR", "other"]);
        }
        assert_eq!(client.answer(), "1");
        assert_eq!(client.call(&["EXISTS", "key"]), "0");
    });
}

#[test]
fn many_clients_sleep_at_the_same_time() {
    with_workers(|arguments| {
        let server = Server::start(arguments);
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
        let requests: [&[&str]; 8] = [
            &["DEBUG", "SLEEP", "0.001"],
            &["SET", "k", "v"],
            &["MULTI"],
            &["debug", "sleep", "0.001"],
            &["EXEC"],
            &["FLUSHALL"],
            &[
                "EVAL",
                "for i = 1, 1000 do redis.call('get', 'k') end return 'done'",
                "0",
            ],
            &["DEBUG", "SLEEP", "0"],
        ];
        for _ in 0..5 {
            for client in &mut clients {
                requests.iter().for_each(|request| client.send(request));
            }
        }
        for _ in 0..5 {
            for client in &mut clients {
                let answers: Vec<String> = requests.iter().map(|_| client.answer()).collect();
                assert_eq!(answers, ["OK", "OK", "OK", "QUEUED", "(OK)", "OK", "done", "OK"]);
            }
        }
    });
}
