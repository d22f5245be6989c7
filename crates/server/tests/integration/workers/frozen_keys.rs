//! Tests keys that MIGRATE is sending: a write to such a key waits until MIGRATE has ended, from whatever database it
//! comes.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::expired_keys::WORKERS;
use super::{Client, PATIENCE, Server};
use crate::harness::wait_until;

/// Reads a request and returns its first word.
fn request(link: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let mut number = |link: &mut BufReader<TcpStream>| -> usize {
        line.clear();
        link.read_line(&mut line).expect("receives");
        line.trim_end()[1..].parse().expect("a number")
    };
    let count = number(link);
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(link) + 2];
        link.read_exact(&mut word).expect("receives");
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    words.swap_remove(0)
}

/// Asserts that no reply arrives within 200 milliseconds.
fn assert_waits(client: &mut Client, why: &str) {
    let stream = client.0.get_ref();
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("sets a timeout");
    let error = client.0.fill_buf().map(<[u8]>::to_vec).expect_err(why);
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    let stream = client.0.get_ref();
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
}

/// Runs the commands of each writer while MIGRATE sends the key `k` of database 1, and asserts that the last of them
/// waits until MIGRATE has ended, and then sets the key.
fn assert_writers_wait(writers: &[&[&[&str]]]) {
    for workers in WORKERS {
        for writer in writers {
            let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
            let target = TcpListener::bind("127.0.0.1:0").expect("binds");
            let port = target.local_addr().expect("is bound").port().to_string();
            let mut sender = Client::connect(server.port);
            assert_eq!(sender.call(&["SELECT", "1"]), "OK");
            assert_eq!(sender.call(&["SET", "k", "old"]), "OK");
            let mut other = Client::connect(server.port);
            assert_eq!(other.call(&["SET", "l", "new"]), "OK");
            sender.send(&["MIGRATE", "127.0.0.1", &port, "k", "0", "60000"]);
            let mut link = BufReader::new(target.accept().expect("accepts").0);
            while !request(&mut link).starts_with("RESTORE") {}
            let (last, first) = writer.split_last().expect("a command");
            for command in first {
                other.call(command);
            }
            other.send(last);
            assert_waits(&mut other, "the writer does not wait");
            // One reply for SELECT, one for RESTORE.
            link.get_mut().write_all(b"+OK\r\n+OK\r\n").expect("sends");
            assert_eq!(sender.answer(), "OK");
            let answer = other.answer();
            assert!(!answer.contains("ERR"), "{workers} workers: {writer:?}: {answer}");
            assert_eq!(sender.call(&["GET", "k"]), "new", "{workers} workers: {writer:?}");
        }
    }
}

#[test]
fn writers_from_other_databases_wait_for_a_migrating_key() {
    assert_writers_wait(&[
        &[&["SELECT", "1"], &["SET", "k", "new"]],
        &[&["MULTI"], &["SELECT", "1"], &["SET", "k", "new"], &["EXEC"]],
        &[&["SET", "l", "new"], &["COPY", "l", "k", "DB", "1", "REPLACE"]],
        &[&["MULTI"], &["COPY", "l", "k", "DB", "1", "REPLACE"], &["EXEC"]],
    ]);
}

#[test]
fn scripts_wait_for_a_migrating_key() {
    const DECLARED: &str = "redis.call('SET', 'other', '1') return redis.call('SET', KEYS[1], 'new')";
    const UNDECLARED: &str = "redis.call('GET', 'k') return redis.call('SET', 'k', 'new')";
    const LOOP: &str = "for i = 1, 10 do redis.call('SET', KEYS[1], 'new') end";
    assert_writers_wait(&[
        &[&["SELECT", "1"], &["EVAL", DECLARED, "1", "k"]],
        &[&["SELECT", "1"], &["EVAL", UNDECLARED, "0"]],
        &[&["SELECT", "1"], &["EVAL", LOOP, "1", "k"]],
        &[&["SELECT", "1"], &["MULTI"], &["EVAL", DECLARED, "1", "k"], &["EXEC"]],
        &[&["SELECT", "1"], &["MULTI"], &["EVAL", LOOP, "1", "k"], &["EXEC"]],
    ]);
}

#[test]
fn transactions_that_need_the_whole_keyspace_wait_for_a_migrating_key() {
    const LOOP: &str = "for i = 1, 10 do redis.call('SET', KEYS[1], 'new') end";
    assert_writers_wait(&[
        &[
            &["SELECT", "1"],
            &["MULTI"],
            &["SET", "k", "new"],
            &["SCAN", "0"],
            &["EXEC"],
        ],
        &[
            &["SELECT", "1"],
            &["MULTI"],
            &["EVAL", LOOP, "1", "k"],
            &["SCAN", "0"],
            &["EXEC"],
        ],
        &[
            &["MULTI"],
            &["SET", "l", "new"],
            &["COPY", "l", "k", "DB", "1", "REPLACE"],
            &["KEYS", "*"],
            &["EXEC"],
        ],
        &[
            &["SELECT", "1"],
            &["MULTI"],
            &["SET", "k", "new"],
            &["CLIENT", "LIST"],
            &["EXEC"],
        ],
    ]);
}

/// Transactions that wait for a key on its way to another server: in exclusive mode, with a report on all clients, and
/// on a script thread.
const WAITING_TRANSACTIONS: [&[&[&str]]; 3] = [
    &[&["SET", "k", "new"], &["SCAN", "0"]],
    &[&["SET", "k", "new"], &["CLIENT", "LIST"]],
    &[
        &[
            "EVAL",
            "for i = 1, 10 do redis.call('SET', KEYS[1], 'new') end",
            "1",
            "k",
        ],
        &["SCAN", "0"],
    ],
];

/// A transaction that waits for a key on its way to another server starts again many times. Meanwhile it takes no
/// leases and stops no thread, and it counts as one command.
#[test]
fn a_transaction_that_waits_for_a_migrating_key_does_not_disturb_others() {
    for workers in WORKERS {
        for transaction in WAITING_TRANSACTIONS {
            let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
            let mut admin = Client::connect(server.port);
            admin.call(&["SET", "k", "old"]);
            let mut mover = Client::connect(server.port);
            let link = begin_migration(&mut mover);
            let mut waiting = Client::connect(server.port);
            let id = waiting.call(&["CLIENT", "ID"]);
            waiting.call(&["MULTI"]);
            for words in transaction {
                assert_eq!(waiting.call(words), "QUEUED");
            }
            waiting.send(&["EXEC"]);
            assert_waits(&mut waiting, "the transaction does not wait");
            let exclusive = admin.info("weft_exclusive_commands");
            let deferrals = |admin: &mut Client| admin.info("weft_deferrals").parse::<u64>().expect("a number");
            let deferrals_before = deferrals(&mut admin);
            let mut others: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
            for round in 0..500 {
                for (index, other) in others.iter_mut().enumerate() {
                    other.send(&["INCR", &format!("n{index}:{round}")]);
                }
                for other in &mut others {
                    assert_eq!(other.answer(), "1");
                }
            }
            let context = format!("{workers} workers: {transaction:?}");
            if transaction[0][0] == "EVAL" {
                // The transaction waits on a script thread, so these are the deferrals of the others.
                let count = deferrals(&mut admin) - deferrals_before;
                assert!(count < 50, "{context}: {count}");
            }
            assert_eq!(admin.info("weft_exclusive_commands"), exclusive, "{context}");
            drop(link);
            assert!(mover.answer().starts_with("IOERR"));
            assert!(waiting.answer().starts_with('('), "{context}");
            assert_eq!(admin.call(&["GET", "k"]), "new", "{context}");
            let list = admin.call(&["CLIENT", "LIST", "ID", &id]);
            // CLIENT ID, MULTI, EXEC, what it executes, and the ten commands of the script.
            let commands = 3 + transaction.len() + if transaction[0][0] == "EVAL" { 10 } else { 0 };
            assert!(list.contains(&format!(" tot-cmds={commands}")), "{context}: {list}");
        }
    }
}

/// Starts a MIGRATE of the key `k` of database 0 to a target that does not answer, and returns once the target has the
/// value. MIGRATE ends when the returned connection is dropped.
fn begin_migration(mover: &mut Client) -> BufReader<TcpStream> {
    let target = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = target.local_addr().expect("is bound").port().to_string();
    mover.send(&["MIGRATE", "127.0.0.1", &port, "k", "0", "1000000"]);
    let mut link = BufReader::new(target.accept().expect("accepts").0);
    while !request(&mut link).starts_with("RESTORE") {}
    link
}

/// A script that waits for a key which it has not declared runs again when a MIGRATE has ended, not all the time. A
/// long one waits on a script thread.
#[test]
fn a_script_that_waits_for_a_migrating_key_is_not_repeated_meanwhile() {
    // Each with the number of commands that it calls in one run.
    const SCRIPTS: [(&str, usize); 3] = [
        ("redis.pcall('FLUSHALL') return redis.call('SET', 'k', 'new')", 1),
        (
            "redis.pcall('FLUSHALL') for i = 1, 1000000 do end return redis.call('SET', 'k', 'new')",
            1,
        ),
        (
            "redis.pcall('FLUSHALL') for i = 1, 5000 do redis.call('GET', 'x') end return redis.call('SET', 'k', 'new')",
            5001,
        ),
    ];
    for (workers, (script, calls)) in WORKERS
        .into_iter()
        .flat_map(|workers| SCRIPTS.map(|script| (workers, script)))
    {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        admin.call(&["ACL", "SETUSER", "limited", "on", "nopass", "~*", "+@all", "-flushall"]);
        admin.call(&["SET", "k", "old"]);
        let mut mover = Client::connect(server.port);
        let link = begin_migration(&mut mover);
        let mut waiting = Client::connect(server.port);
        let id = waiting.call(&["CLIENT", "ID"]);
        assert_eq!(waiting.call(&["AUTH", "limited", "any"]), "OK");
        let sent = Instant::now();
        waiting.send(&["EVAL", script, "0"]);
        assert_waits(&mut waiting, "the script does not wait");
        drop(link);
        assert!(mover.answer().starts_with("IOERR"));
        assert_eq!(waiting.answer(), "OK");
        // Each run is denied FLUSHALL once. What waits on another thread is admitted again once a second.
        let denials: u32 = admin.info("acl_access_denied_cmd").parse().expect("a number");
        let expected = 1..=3 + sent.elapsed().as_secs() as u32;
        assert!(expected.contains(&denials), "{workers} workers: {denials} runs");
        let list = admin.call(&["CLIENT", "LIST", "ID", &id]);
        // CLIENT ID, AUTH, EVAL, and what it calls.
        let commands = 3 + calls;
        assert!(
            list.contains(&format!(" tot-cmds={commands}")),
            "{workers} workers: {list}"
        );
    }
}

/// The append-only file contains transactions that write a key which is being migrated. They are replayed nevertheless.
#[test]
fn transactions_in_a_file_that_is_loaded_do_not_wait_for_a_migrating_key() {
    let directory = std::env::temp_dir().join(format!("weft-frozen-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    let path = directory.to_str().expect("text");
    let server = Server::start(&["--dir", path, "--appendonly", "yes", "--enable-debug-command", "yes"]);
    let mut admin = Client::connect(server.port);
    for words in [
        &["MULTI"][..],
        &["SET", "k", "1"],
        &["SET", "x", "1"],
        &["EXEC"],
        &["SET", "later", "1"],
    ] {
        admin.call(words);
    }
    let mut mover = Client::connect(server.port);
    let link = begin_migration(&mut mover);
    assert_eq!(admin.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(admin.call(&["MGET", "k", "x", "later"]), "(1 1 1)");
    drop(link);
    mover.answer();
    drop(server);
    let _ = std::fs::remove_dir_all(directory);
}

/// A client decides how long MIGRATE takes. If its server becomes a replica, the stream of the primary does not wait.
#[test]
fn the_stream_of_a_primary_does_not_wait_for_a_migrating_key() {
    for workers in WORKERS {
        let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let (primary, server) = (Server::start(&threads), Server::start(&threads));
        let mut mover = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        client.call(&["SET", "k", "own"]);
        let link = begin_migration(&mut mover);
        assert_eq!(
            client.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]),
            "OK"
        );
        client.wait_for_info("master_link_status", "up");
        let mut writer = Client::connect(primary.port);
        let commands: [&[&str]; 5] = [
            &["SET", "k", "1"],
            &["MULTI"],
            &["APPEND", "k", "2"],
            &["EXEC"],
            &["SET", "other", "1"],
        ];
        for words in commands {
            writer.call(words);
        }
        crate::harness::wait_until("the replica has the last write", || {
            client.call(&["GET", "other"]) == "1"
        });
        assert_eq!(client.call(&["GET", "k"]), "12", "{workers} workers");
        drop(link);
    }
}

/// A script that waits for a key on its way to another server may be refused meanwhile. The next script of its
/// connection waits for nothing.
#[test]
fn the_request_after_a_refused_one_does_not_wait_for_a_migrating_key() {
    for workers in WORKERS {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        admin.call(&["ACL", "SETUSER", "limited", "on", "nopass", "~*", "+@all"]);
        admin.call(&["SET", "k", "old"]);
        let mut mover = Client::connect(server.port);
        let link = begin_migration(&mut mover);
        let mut waiting = Client::connect(server.port);
        assert_eq!(waiting.call(&["AUTH", "limited", "any"]), "OK");
        waiting.send(&["EVAL", "return redis.call('SET', 'k', 'new')", "0"]);
        assert_waits(&mut waiting, "the script does not wait");
        admin.call(&["ACL", "SETUSER", "limited", "-eval"]);
        let refusal = waiting.answer();
        assert!(refusal.contains("NOPERM"), "{workers} workers: {refusal}");
        admin.call(&["ACL", "SETUSER", "limited", "+eval"]);
        assert_eq!(waiting.call(&["EVAL", "return 1", "0"]), "1", "{workers} workers");
        drop(link);
    }
}

/// A long command that waits for a key on its way to another server keeps nobody from its other keys, however long it
/// waits.
#[test]
fn a_long_command_that_waits_for_a_migrating_key_does_not_keep_others_from_its_keys() {
    let absent: Vec<String> = (0..6000).map(|number| format!("n{number}")).collect();
    for workers in WORKERS {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        admin.call(&["MSET", "k", "old", "other", "1"]);
        let mut mover = Client::connect(server.port);
        let link = begin_migration(&mut mover);
        let mut waiting = Client::connect(server.port);
        let mut words = vec!["DEL", "other", "k"];
        words.extend(absent.iter().map(String::as_str));
        waiting.send(&words);
        assert_waits(&mut waiting, "the command does not wait");
        // A closed port: MIGRATE of the other key fails at once, and is not put off.
        let closed = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = closed.local_addr().expect("is bound").port().to_string();
        drop(closed);
        let reply = admin.call(&["MIGRATE", "127.0.0.1", &port, "other", "0", "1000"]);
        assert!(reply.starts_with("IOERR"), "{workers} workers: {reply}");
        drop(link);
        assert!(mover.answer().starts_with("IOERR"));
        assert_eq!(waiting.answer(), "2", "{workers} workers");
    }
}

/// A long command that waits for a key on its way to another server is admitted again meanwhile: here, the server
/// becomes a replica.
#[test]
fn a_long_command_that_waits_for_a_migrating_key_learns_of_a_new_role() {
    let absent: Vec<String> = (0..6000).map(|number| format!("n{number}")).collect();
    for workers in WORKERS {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        admin.call(&["SET", "k", "old"]);
        let mut mover = Client::connect(server.port);
        let link = begin_migration(&mut mover);
        let mut waiting = Client::connect(server.port);
        let mut words = vec!["DEL", "k"];
        words.extend(absent.iter().map(String::as_str));
        waiting.send(&words);
        assert_waits(&mut waiting, "the command does not wait");
        assert_eq!(admin.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
        let reply = waiting.answer();
        assert!(reply.starts_with("READONLY"), "{workers} workers: {reply}");
        drop(link);
    }
}

/// MIGRATE has two threads. What waits for one of them does not begin once its client is killed.
#[test]
fn a_migration_of_a_killed_client_does_not_begin() {
    for workers in WORKERS {
        let server = Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["SET", "k", "old"]), "OK");
        assert_eq!(admin.call(&["SET", "victim", "old"]), "OK");
        let mut busy: Vec<(Client, TcpListener)> = Vec::new();
        for key in ["first", "second"] {
            assert_eq!(admin.call(&["SET", key, "old"]), "OK");
            let target = TcpListener::bind("127.0.0.1:0").expect("binds");
            let port = target.local_addr().expect("is bound").port().to_string();
            let mut mover = Client::connect(server.port);
            mover.send(&["MIGRATE", "127.0.0.1", &port, key, "0", "1000000"]);
            busy.push((mover, target));
        }
        let links: Vec<TcpStream> = busy
            .iter()
            .map(|(_, target)| target.accept().expect("accepts").0)
            .collect();
        let target = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = target.local_addr().expect("is bound").port().to_string();
        let mut killed = Client::connect(server.port);
        let id = killed.call(&["CLIENT", "ID"]);
        killed.send(&["MIGRATE", "127.0.0.1", &port, "victim", "0", "1000000"]);
        wait_until("the request has arrived", || {
            admin.call(&["CLIENT", "LIST", "ID", &id]).contains("cmd=migrate")
        });
        assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
        drop(links);
        for (mover, _) in &mut busy {
            assert!(mover.answer().starts_with("IOERR"), "{workers} workers");
        }
        // The threads are free, and have taken the next one.
        let answer = admin.call(&["MIGRATE", "127.0.0.1", "1", "k", "0", "1000"]);
        assert!(answer.starts_with("IOERR"), "{workers} workers: {answer}");
        target.set_nonblocking(true).expect("is set");
        let error = target.accept().expect_err("the migration has begun");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(admin.call(&["GET", "victim"]), "old");
        assert_eq!(admin.call(&["SET", "victim", "new"]), "OK");
    }
}
