//! Tests what survives restarts and broken links: replication histories continue after a restart, and the data is the
//! same after any crash.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    DUMP, FIRST_ID, Link, Primary, SECOND_ID, UP, await_info, command, compare, is_closed_at_once, write_everything,
};
use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};

const AT_ONCE: [&str; 8] = [
    "--repl-diskless-sync-delay",
    "0",
    "--enable-debug-command",
    "yes",
    "--repl-ping-replica-period",
    "3600",
    "--repl-timeout",
    "7200",
];

/// Makes the client's server a replica of the server at that port, and waits until the link is up.
pub fn follow(client: &mut Client, port: u16) {
    assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port.to_string()]), "OK");
    await_info(client, UP);
}

/// Waits until the condition holds.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn same_offset(one: &mut Client, other: &mut Client) {
    until("the replica gets everything", || {
        one.info("master_repl_offset") == other.info("master_repl_offset")
    });
}

#[test]
fn a_restarted_primary_continues_with_its_replicas() {
    let mut server = Server::start(&AT_ONCE);
    let (middle, last) = (Server::start(&AT_ONCE), Server::start(&AT_ONCE));
    let mut primary = Client::connect(server.port);
    let (mut replica, mut chained) = (Client::connect(middle.port), Client::connect(last.port));
    follow(&mut replica, server.port);
    follow(&mut chained, middle.port);
    write_everything(&mut primary, 1);
    // The key expires, is not deleted, and is in the RDB file.
    primary.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    primary.call(&["SELECT", "5"]);
    primary.call(&["SET", "passing", "1", "PX", "1"]);
    same_offset(&mut primary, &mut replica);
    same_offset(&mut primary, &mut chained);
    let (id, offset) = (primary.info("master_replid"), primary.info("master_repl_offset"));
    replica.call(&["SELECT", "5"]);
    until("it expires", || replica.call(&["GET", "passing"]) == "-");
    assert_eq!(replica.call(&["DBSIZE"]), "1");
    // Without NOW, replicas could be asked for their offsets, which extends the stream.
    primary.send(&["SHUTDOWN", "SAVE", "NOW"]);
    server.start_again_with(&AT_ONCE);
    let mut primary = Client::connect(server.port);
    assert_eq!(primary.info("master_replid2"), id);
    let second: i64 = primary.info("second_repl_offset").parse().expect("a number");
    assert_eq!(second, offset.parse::<i64>().expect("a number") + 1);
    until("the replica comes back", || primary.info("connected_slaves") == "1");
    await_info(&mut replica, UP);
    assert_eq!(primary.info("sync_full"), "0");
    assert_eq!(primary.info("sync_partial_ok"), "1");
    until("the key is deleted", || replica.call(&["DBSIZE"]) == "0");
    primary.call(&["SET", "after", "1"]);
    compare(&mut primary, &mut replica);
    await_info(&mut chained, UP);
    compare(&mut primary, &mut chained);
    assert_eq!(replica.info("sync_full"), "1");
    replica.call(&["CONFIG", "RESETSTAT"]);
    assert_eq!(replica.info("sync_full"), "0");
}

#[test]
fn a_restarted_replica_continues_at_its_offset_and_database() {
    let server = Server::start(&AT_ONCE);
    let mut follower = Server::start(&AT_ONCE);
    let mut primary = Client::connect(server.port);
    let mut replica = Client::connect(follower.port);
    follow(&mut replica, server.port);
    primary.call(&["SELECT", "3"]);
    primary.call(&["SET", "before", "1"]);
    same_offset(&mut primary, &mut replica);
    replica.send(&["SHUTDOWN", "SAVE"]);
    until("the replica goes", || primary.info("connected_slaves") == "0");
    // The stream does not repeat the SELECT of the database.
    primary.call(&["SET", "after", "1"]);
    let port = server.port.to_string();
    follower.start_again_with(&[&AT_ONCE[..], &["--replicaof", "127.0.0.1", &port]].concat());
    let mut replica = Client::connect(follower.port);
    await_info(&mut replica, UP);
    compare(&mut primary, &mut replica);
    replica.call(&["SELECT", "3"]);
    assert_eq!(replica.call(&["GET", "after"]), "1");
    assert_eq!(primary.info("sync_full"), "1");
    assert_eq!(primary.info("sync_partial_ok"), "1");
}

#[test]
fn a_chained_replica_starts_in_the_selected_database() {
    let servers = [
        Server::start(&AT_ONCE),
        Server::start(&AT_ONCE),
        Server::start(&AT_ONCE),
    ];
    let [mut primary, mut middle, mut last] = [0, 1, 2].map(|at: usize| Client::connect(servers[at].port));
    follow(&mut middle, servers[0].port);
    primary.call(&["SELECT", "9"]);
    primary.call(&["SET", "before", "1"]);
    same_offset(&mut primary, &mut middle);
    follow(&mut last, servers[1].port);
    primary.call(&["SET", "after", "1"]);
    last.call(&["SELECT", "9"]);
    until("the write arrives", || last.call(&["GET", "after"]) == "1");
    compare(&mut primary, &mut last);
}

/// A promotion right after a demotion comes before the log thread has seen the end of the time as a primary. The next
/// demotion must nevertheless stop the server from adding its own pings to its primary's stream.
#[test]
fn a_server_that_was_demoted_and_promoted_at_once_adds_nothing_to_its_next_primarys_stream() {
    let middle_arguments = [&AT_ONCE[..], &["--repl-ping-replica-period", "1"]].concat();
    let servers = [
        Server::start(&AT_ONCE),
        Server::start(&middle_arguments),
        Server::start(&AT_ONCE),
    ];
    let [mut primary, mut middle, mut last] = [0, 1, 2].map(|at: usize| Client::connect(servers[at].port));
    follow(&mut last, servers[1].port);
    for round in 0..3 {
        for words in [
            &["MULTI"][..],
            &["REPLICAOF", "127.0.0.1", "1"],
            &["REPLICAOF", "NO", "ONE"],
        ] {
            middle.call(words);
        }
        assert_eq!(middle.call(&["EXEC"]), "(OK OK)");
        follow(&mut middle, servers[0].port);
        await_info(&mut last, UP);
        // Time for more than one ping.
        thread::sleep(Duration::from_millis(2500));
        primary.call(&["SET", "round", &round.to_string()]);
        same_offset(&mut primary, &mut middle);
        same_offset(&mut primary, &mut last);
        assert_eq!(middle.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        until("the last one follows again", || last.info("master_link_status") == "up");
    }
}

#[test]
fn a_writable_replica_deletes_what_its_clients_let_expire_and_nothing_else() {
    let server = Server::start(&AT_ONCE);
    let follower = Server::start(&[&AT_ONCE[..], &["--replica-read-only", "no"]].concat());
    let mut primary = Client::connect(server.port);
    let mut replica = Client::connect(follower.port);
    primary.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    follow(&mut replica, server.port);
    primary.call(&["SET", "theirs", "1", "PX", "1"]);
    same_offset(&mut primary, &mut replica);
    replica.call(&["SET", "own", "1", "PX", "1"]);
    replica.call(&["SET", "renamed", "1"]);
    replica.call(&["SADD", "set", "a"]);
    replica.call(&["PEXPIRE", "set", "1"]);
    replica.call(&["SET", "kept", "1", "PX", "1"]);
    replica.call(&["SET", "kept", "1"]);
    replica.call(&["RENAME", "renamed", "own:2"]);
    replica.call(&["PEXPIRE", "own:2", "2"]);
    until("its own keys go", || replica.call(&["DBSIZE"]) == "2");
    assert_eq!(replica.call(&["GET", "kept"]), "1");
    assert_eq!(replica.call(&["GET", "theirs"]), "-");
    await_info(&mut replica, "slave_expires_tracked_keys:0");
    assert_eq!(
        replica.call(&["DBSIZE"]),
        "2",
        "what the primary let expire is the primary's to delete"
    );
    // A client of the replica that writes the key deletes the expired value.
    assert_eq!(replica.call(&["SET", "theirs", "2", "NX"]), "OK");
    assert_eq!(replica.call(&["PTTL", "theirs"]), "-1");
}

#[test]
fn clients_wait_for_the_disks_of_replicas() {
    let server = Server::start(&AT_ONCE);
    let follower = Server::start(&[&AT_ONCE[..], &["--appendonly", "yes"]].concat());
    let mut primary = Client::connect(server.port);
    let mut replica = Client::connect(follower.port);
    primary.call(&["SET", "key", "1"]);
    follow(&mut replica, server.port);
    // Writes from before the replica connected count too: the replica's files contain them once a file with the new
    // data exists.
    assert_eq!(primary.call(&["WAITAOF", "0", "1", "0"]), "(0 1)");
    for round in 0..3 {
        primary.call(&["SET", "key", &round.to_string()]);
        assert_eq!(primary.call(&["WAITAOF", "0", "1", "0"]), "(0 1)");
    }
    // A client that disconnects is not waited for; a later client is served.
    primary.call(&["SET", "key", "again"]);
    let mut leaves = Client::connect(server.port);
    leaves.call(&["SET", "key", "gone"]);
    leaves.send(&["WAITAOF", "0", "5", "0"]);
    drop(leaves);
    assert_eq!(primary.call(&["WAITAOF", "0", "1", "0"]), "(0 1)");
    replica.call(&["CONFIG", "SET", "appendonly", "no"]);
    primary.call(&["SET", "key", "nowhere"]);
    assert_eq!(primary.call(&["WAITAOF", "0", "1", "50"]), "(0 0)");
    assert_eq!(primary.call(&["WAIT", "1", "0"]), "1");
    // A primary without an append-only file cannot be waited for.
    assert!(
        primary
            .call(&["WAITAOF", "1", "0", "0"])
            .contains("appendonly is disabled")
    );
}

#[test]
fn waitaof_fails_when_appendonly_is_disabled() {
    for replicas in ["0", "1"] {
        let server = Server::start(&["--appendonly", "yes", "--appendfsync", "no"]);
        let (mut waiting, mut client) = (Client::connect(server.port), Client::connect(server.port));
        waiting.call(&["SET", "key", "1"]);
        waiting.send(&["WAITAOF", "1", replicas, "0"]);
        await_info(&mut client, "blocked_clients:1");
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        assert_eq!(
            waiting.answer(),
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."
        );
    }
}

#[test]
fn exec_redirects_clients_with_the_redirect_capability() {
    let server = Server::start(&AT_ONCE);
    let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
    client.call(&["CLIENT", "CAPA", "redirect"]);
    client.call(&["MULTI"]);
    client.call(&["SET", "key", "1"]);
    // No server listens there.
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_eq!(client.call(&["EXEC"]), "REDIRECT 127.0.0.1:1");
    assert_eq!(client.call(&["EXEC"]), "ERR EXEC without MULTI");
    // A client that accepts stale data (READONLY) may read here.
    assert_eq!(client.call(&["GET", "key"]), "REDIRECT 127.0.0.1:1");
    assert_eq!(client.call(&["READONLY"]), "OK");
    assert_eq!(client.call(&["GET", "key"]), "-");
    assert_eq!(client.call(&["SET", "key", "1"]), "REDIRECT 127.0.0.1:1");
    assert_eq!(client.call(&["READWRITE"]), "OK");
    assert_eq!(client.call(&["GET", "key"]), "REDIRECT 127.0.0.1:1");
}

#[test]
fn a_shutdown_waits_for_replicas_and_can_be_aborted() {
    let server = Server::start(&[&AT_ONCE[..], &["--shutdown-timeout", "1000"]].concat());
    let mut client = Client::connect(server.port);
    let mut silent = Client::connect(server.port);
    silent.call(&["REPLCONF", "capa", "eof", "capa", "psync2"]);
    silent.send(&["PSYNC", "?", "-1"]);
    await_info(&mut client, "connected_slaves:1");
    client.call(&["SET", "key", "1"]);
    let mut ends = [Client::connect(server.port), Client::connect(server.port)];
    for ending in &mut ends {
        ending.send(&["SHUTDOWN", "NOSAVE"]);
    }
    await_info(&mut client, "blocked_clients:2");
    until("INFO tells how long", || {
        client.call(&["INFO"]).contains("shutdown_in_milliseconds:")
    });
    // Meanwhile reads are served and writes wait.
    let mut writer = Client::connect(server.port);
    writer.send(&["SET", "key", "2"]);
    assert_eq!(client.call(&["GET", "key"]), "1");
    until("it is under way", || client.call(&["SHUTDOWN", "ABORT"]) == "OK");
    for ending in &mut ends {
        assert_eq!(ending.answer(), "ERR Errors trying to SHUTDOWN. Check logs.");
    }
    assert_eq!(writer.answer(), "OK");
    assert_eq!(client.call(&["SHUTDOWN", "ABORT"]), "ERR No shutdown in progress.");
    // SHUTDOWN NOW does not wait for replicas.
    ends[0].send(&["SHUTDOWN", "NOSAVE", "NOW"]);
    until("it ends", || TcpStream::connect(("127.0.0.1", server.port)).is_err());
}

/// Writes until `stop` is set, to the server that listens on the port at the moment.
fn write_continuously(port: u16, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        let _ = stream.set_read_timeout(Some(PATIENCE));
        while !stop.load(Ordering::Relaxed) {
            let (key, number) = (random.u32(..200).to_string(), random.u32(..1000).to_string());
            let mut bytes = command(&["SELECT", &random.u32(..3).to_string()]);
            bytes.extend(match random.u32(..5) {
                0 => command(&["SET", &key, &number]),
                1 => command(&["RPUSH", &format!("list:{key}"), &number]),
                2 => command(&["HSET", &format!("hash:{key}"), &number, &key]),
                3 => command(&["INCR", &format!("count:{key}")]),
                _ => [
                    command(&["MULTI"]),
                    command(&["INCR", "count:all"]),
                    command(&["SADD", &format!("set:{key}"), &number]),
                    command(&["EXEC"]),
                ]
                .concat(),
            });
            let mut replies = [0; 512];
            if stream.write_all(&bytes).is_err() || !matches!(stream.read(&mut replies), Ok(1..)) {
                break;
            }
        }
    }
}

#[test]
fn after_crashes_of_either_side_under_load_the_data_is_the_same() {
    let durable = [&AT_ONCE[..], &["--appendonly", "yes"]].concat();
    let mut server = Server::start(&durable);
    let port = server.port.to_string();
    let following = [&AT_ONCE[..], &["--replicaof", "127.0.0.1", &port]].concat();
    let (mut follower, last) = (Server::start(&following), Server::start(&AT_ONCE));
    let mut chained = Client::connect(last.port);
    chained.call(&["REPLICAOF", "127.0.0.1", &follower.port.to_string()]);
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            let (port, seed, stop) = (server.port, random.u64(..), &stop);
            scope.spawn(move || write_continuously(port, seed, stop));
        }
        for round in 0..6 {
            thread::sleep(Duration::from_millis(random.u64(1..300)));
            if round % 2 == 0 {
                follower.kill();
                follower.start_again_with(&following);
            } else {
                server.kill();
                server.start_again_with(&durable);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (mut primary, mut replica) = (Client::connect(server.port), Client::connect(follower.port));
    await_info(&mut replica, UP);
    await_info(&mut chained, UP);
    primary.call(&["SET", "last", "1"]);
    compare(&mut primary, &mut replica);
    compare(&mut primary, &mut chained);
}

#[test]
fn the_append_only_file_has_the_old_data_until_it_has_all_of_the_new() {
    let primary = Primary::new();
    let mut replica = Server::start(&["--appendonly", "yes", "--repl-diskless-load", "flush-before-load"]);
    let mut client = Client::connect(replica.port);
    client.call(&["SET", "old", "1"]);
    for ends in [false, true] {
        let delay = if ends { "0" } else { "1000000" };
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", delay]);
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
        let (mut link, _) = primary.accept();
        link.send_full_sync(DUMP);
        let mut offset = link.command(&["SELECT", "9"]);
        offset += link.command(&["SET", "new", "1"]);
        link.await_acknowledged(offset);
        if ends {
            await_info(&mut client, "aof_rewrites:1");
            await_info(&mut client, "aof_rewrite_in_progress:0");
        } else {
            await_info(&mut client, "aof_rewrite_in_progress:1");
        }
        replica.kill();
        replica.start_again();
        client = Client::connect(replica.port);
        await_info(&mut client, "loading:0");
        let (old, new) = if ends { ("-", "1") } else { ("1", "-") };
        assert_eq!(client.call(&["GET", "old"]), old);
        client.call(&["SELECT", "9"]);
        assert_eq!(client.call(&["GET", "new"]), new);
        client.call(&["SELECT", "0"]);
    }
}

/// The replica has given up its data for the dump, which it has received.
#[test]
fn a_received_dump_is_loaded_although_its_primary_ends() {
    let mut primary = Server::start(&AT_ONCE);
    let mut writer = Client::connect(primary.port);
    let script = "for i = 1, 300 do redis.call('SET', i, i) end";
    writer.call(&["EVAL", script, "0"]);
    let replica = Server::start(&["--key-load-delay", "20000"]);
    let mut client = Client::connect(replica.port);
    client.call(&["SET", "old", "1"]);
    client.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    await_info(&mut client, "loading:1");
    primary.kill();
    await_info(&mut client, "loading:0");
    assert_eq!(client.call(&["DBSIZE"]), "300");
}

/// A replica whose full sync fails has no data. If it is promoted, its own replicas must not go on with theirs.
#[test]
fn replicas_do_not_continue_from_a_server_that_has_given_up_its_data() {
    let primary = Primary::new();
    let follows = format!("127.0.0.1 {}", primary.port());
    let options = ["--replicaof", &follows, "--repl-diskless-load", "flush-before-load"];
    let middle = Server::start(&[&options[..], &AT_ONCE].concat());
    let mut client = Client::connect(middle.port);
    let (mut link, _) = primary.accept();
    link.send_full_sync(DUMP);
    link.await_acknowledged(0);
    await_info(&mut client, UP);
    let last = Server::start(&["--replicaof", &format!("127.0.0.1 {}", middle.port)]);
    let mut reader = Client::connect(last.port);
    await_info(&mut reader, UP);
    drop(link);
    let (mut link, _) = primary.accept();
    link.send(format!("+FULLRESYNC {SECOND_ID} 1000\r\n$EOF:{SECOND_ID}\r\n").as_bytes());
    link.send(&DUMP[..DUMP.len() / 2]);
    await_info(&mut client, "loading:1");
    drop((link, primary));
    await_info(&mut client, "loading:0");
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(client.call(&["SET", "new", "1"]), "OK");
    crate::harness::wait_until("the last one has the data of the middle one", || {
        reader.call(&["GET", "new"]) == "1"
    });
    for server in [&mut client, &mut reader] {
        assert_eq!(server.call(&["DBSIZE"]), "1");
        assert_eq!(server.call(&["SELECT", "9"]), "OK");
        assert_eq!(server.call(&["DBSIZE"]), "0");
    }
}

/// Sends the first half of a full sync to a server, which then has none of its keys, and lets it be for three seconds.
fn hold_full_sync(primary: &Primary, client: &mut Client) -> Link {
    assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
    let (mut link, _) = primary.accept();
    link.send(format!("+FULLRESYNC {FIRST_ID} 0\r\n${}\r\n", DUMP.len()).as_bytes());
    link.send(&DUMP[..DUMP.len() / 2]);
    await_info(client, "loading:1");
    std::thread::sleep(Duration::from_secs(3));
    link
}

/// Breaks the link amid a full sync, so that the server has neither its old data nor that of the primary, and lets it
/// be for three seconds.
fn fail_full_sync(link: Link, client: &mut Client) {
    drop(link);
    await_info(client, "loading:0");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(client.call(&["DBSIZE"]), "0");
}

/// The moment and the way in which a replica ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReplicaEnd {
    KilledWhileLoading,
    KilledAfterFailedLoad,
    ShutDownAfterFailedLoad,
}

impl ReplicaEnd {
    const ALL: [ReplicaEnd; 3] = [
        ReplicaEnd::KilledWhileLoading,
        ReplicaEnd::KilledAfterFailedLoad,
        ReplicaEnd::ShutDownAfterFailedLoad,
    ];

    /// Ends the replica, whose full sync is held by `link`, and starts it again. Returns a client.
    fn restart(self, replica: &mut Server, mut client: Client, link: Link) -> Client {
        assert_eq!(client.info("loading"), "1");
        // The link stays open until the end of a replica that is still loading.
        let held = match self {
            ReplicaEnd::KilledWhileLoading => Some(link),
            ReplicaEnd::KilledAfterFailedLoad | ReplicaEnd::ShutDownAfterFailedLoad => {
                fail_full_sync(link, &mut client);
                None
            }
        };
        if self == ReplicaEnd::ShutDownAfterFailedLoad {
            client.send(&["SHUTDOWN"]);
            assert_eq!(replica.wait_for_exit(), Some(0));
        } else {
            replica.kill();
        }
        drop(held);
        replica.start_again();
        let mut client = Client::connect(replica.port);
        await_info(&mut client, "loading:0");
        client
    }
}

#[test]
fn no_save_replaces_the_dump_while_a_full_sync_is_loaded() {
    for end in ReplicaEnd::ALL {
        let primary = Primary::new();
        let mut replica = Server::start(&["--repl-diskless-load", "flush-before-load"]);
        let mut client = Client::connect(replica.port);
        client.call(&["SET", "old", "1"]);
        // The save point is reached while the data is loaded.
        assert_eq!(client.call(&["CONFIG", "SET", "save", "1 1"]), "OK");
        assert_eq!(client.call(&["SAVE"]), "OK");
        client.call(&["SET", "later", "1"]);
        let link = hold_full_sync(&primary, &mut client);
        let mut client = end.restart(&mut replica, client, link);
        assert_eq!(client.call(&["GET", "old"]), "1", "{end:?}");
    }
}

/// A client that wants the files to hold what is there now, which is nothing, may request it.
#[test]
fn a_client_can_save_and_rewrite_after_a_failed_full_sync() {
    let primary = Primary::new();
    let options = ["--appendonly", "yes", "--repl-diskless-load", "flush-before-load"];
    let mut replica = Server::start(&options);
    let mut client = Client::connect(replica.port);
    client.call(&["SET", "old", "1"]);
    let link = hold_full_sync(&primary, &mut client);
    fail_full_sync(link, &mut client);
    assert_eq!(client.call(&["SAVE"]), "OK");
    assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
    await_info(&mut client, "rdb_bgsave_in_progress:0");
    assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
    assert_eq!(
        client.call(&["BGREWRITEAOF"]),
        "Background append only file rewriting started"
    );
    await_info(&mut client, "aof_rewrite_in_progress:0");
    assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
    replica.kill();
    replica.start_again();
    client = Client::connect(replica.port);
    await_info(&mut client, "loading:0");
    assert_eq!(client.call(&["DBSIZE"]), "0");
}

#[test]
fn the_append_only_file_of_a_promoted_replica_has_nothing_of_the_data_that_it_gave_up() {
    let primary = Primary::new();
    let mut replica = Server::start(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--repl-diskless-load",
        "flush-before-load",
    ]);
    let mut client = Client::connect(replica.port);
    assert_eq!(client.call(&["SET", "c", "41"]), "OK");
    let link = hold_full_sync(&primary, &mut client);
    fail_full_sync(link, &mut client);
    assert_eq!(client.info("aof_rewrites"), "0");
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(client.call(&["INCR", "c"]), "1");
    await_info(&mut client, "aof_rewrites:1");
    await_info(&mut client, "aof_rewrite_in_progress:0");
    assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
    assert_eq!(client.call(&["INCR", "d"]), "1");
    replica.kill();
    replica.start_again();
    client = Client::connect(replica.port);
    await_info(&mut client, "loading:0");
    assert_eq!(client.call(&["GET", "c"]), "1");
    assert_eq!(client.call(&["GET", "d"]), "1");
}

/// The number of times that a save and a load wait for the same script. Which of them comes first is up to chance.
const MEETINGS: usize = 6;

/// Lets a full sync and a save that a client requests wait for a script, and then begin in any order. Ends the server
/// with `end` while the load has not ended, and checks that the next start finds the old data.
fn let_save_meet_load(save: &[&str], end: impl Fn(&mut Server, &mut Client)) {
    for _ in 0..MEETINGS {
        let primary = Primary::new();
        let options = [
            "--repl-diskless-load",
            "flush-before-load",
            "--busy-reply-threshold",
            "0",
        ];
        let mut replica = Server::start(&options);
        let (mut client, mut saving) = (Client::connect(replica.port), Client::connect(replica.port));
        let mut script = Client::connect(replica.port);
        client.call(&["SET", "old", "1"]);
        assert_eq!(client.call(&["SAVE"]), "OK");
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
        let (mut link, _) = primary.accept();
        replica.run_script(&mut script, &["EVAL_RO", "while true do end", "0"]);
        saving.send(save);
        link.send(format!("+FULLRESYNC {FIRST_ID} 0\r\n${}\r\n", DUMP.len()).as_bytes());
        link.send(&DUMP[..DUMP.len() / 2]);
        // Both have arrived, and wait.
        std::thread::sleep(Duration::from_millis(100));
        assert!(saving.is_waiting() && client.info("loading") == "0");
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        end(&mut replica, &mut client);
        drop((link, primary));
        replica.start_again();
        client = Client::connect(replica.port);
        await_info(&mut client, "loading:0");
        assert_eq!(client.call(&["GET", "old"]), "1");
    }
}

#[test]
fn a_background_save_that_meets_a_load_saves_all_data_or_nothing() {
    let_save_meet_load(&["BGSAVE"], |replica, client| {
        await_info(client, "loading:1");
        await_info(client, "rdb_bgsave_in_progress:0");
        replica.kill();
    });
}

#[test]
fn the_final_save_that_meets_a_load_saves_all_data_or_nothing() {
    let_save_meet_load(&["SHUTDOWN", "SAVE"], |replica, _| {
        assert_eq!(replica.wait_for_exit(), Some(0));
    });
}

#[test]
fn no_rewrite_replaces_the_append_only_file_while_a_full_sync_is_loaded() {
    for end in ReplicaEnd::ALL {
        let primary = Primary::new();
        let options = ["--appendonly", "yes", "--repl-diskless-load", "flush-before-load"];
        let mut replica = Server::start(&options);
        let mut client = Client::connect(replica.port);
        client.call(&["SET", "old", "1"]);
        client.call(&["SET", "other", "1"]);
        // The automatic rewrite is under way when the load cancels it, and it stays due.
        for (name, value) in [
            ("rdb-key-save-delay", "1000000"),
            ("auto-aof-rewrite-percentage", "1"),
            ("auto-aof-rewrite-min-size", "1"),
        ] {
            assert_eq!(client.call(&["CONFIG", "SET", name, value]), "OK");
        }
        await_info(&mut client, "aof_rewrite_in_progress:1");
        let link = hold_full_sync(&primary, &mut client);
        let mut client = end.restart(&mut replica, client, link);
        assert_eq!(client.call(&["GET", "old"]), "1", "{end:?}");
        assert_eq!(client.call(&["GET", "other"]), "1", "{end:?}");
    }
}

#[test]
fn a_dump_file_that_a_replica_has_loaded_becomes_the_base_of_its_append_only_file() {
    let primary = Primary::new();
    let mut replica = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = Client::connect(replica.port);
    // The second synchronization replaces a base that was a dump.
    for round in ["1", "2"] {
        client.call(&["SET", "old", round]);
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
        let (mut link, _) = primary.accept();
        link.send_full_sync(DUMP);
        let mut offset = link.command(&["SELECT", "9"]);
        offset += link.command(&["SET", "new", round]);
        link.await_acknowledged(offset);
        assert_eq!(client.info("aof_rewrites"), "0");
        replica.kill();
        replica.start_again();
        client = Client::connect(replica.port);
        await_info(&mut client, "loading:0");
        assert_eq!(client.call(&["GET", "old"]), "-");
        client.call(&["SELECT", "9"]);
        assert_eq!(client.call(&["GET", "new"]), round);
        client.call(&["SELECT", "0"]);
    }
}

#[test]
fn a_replica_exits_on_stream_or_disk_errors_if_configured() {
    let begin = |arguments: &[&str]| {
        let primary = Primary::new();
        let follows = ["--replicaof", &format!("127.0.0.1 {}", primary.port())];
        let replica = Server::start(&[&follows[..], arguments].concat());
        let client = Client::connect(replica.port);
        let (mut link, _) = primary.accept();
        link.send_full_sync(DUMP);
        link.await_acknowledged(0);
        (primary, replica, client, link)
    };
    let has_ended = |client: &mut Client| is_closed_at_once(&mut client.0);
    let fail = |link: &mut Link| link.command(&["SET", "word", "a"]) + link.command(&["INCR", "word"]);
    for behaviour in ["ignore", "panic-on-replicas", "panic"] {
        let (_primary, _replica, mut client, mut link) = begin(&["--propagation-error-behavior", behaviour]);
        let offset = fail(&mut link);
        if behaviour == "ignore" {
            link.await_acknowledged(offset);
            assert_eq!(client.info("unexpected_error_replies"), "1");
        } else {
            assert!(has_ended(&mut client), "{behaviour}");
        }
    }
    for goes_on in ["yes", "no"] {
        let arguments = ["--save", "3600 1", "--replica-ignore-disk-write-errors", goes_on];
        let (_primary, _replica, mut client, mut link) = begin(&arguments);
        // A directory, which cannot be replaced by a file.
        let directory = client.call(&["CONFIG", "GET", "dir"]);
        let directory = directory
            .trim_matches(['(', ')'])
            .split(' ')
            .nth(1)
            .expect("a directory")
            .to_owned();
        std::fs::remove_file(format!("{directory}/dump.rdb")).expect("removes the dump");
        std::fs::create_dir_all(format!("{directory}/dump.rdb/in-the-way")).expect("makes a directory");
        client.call(&["BGSAVE"]);
        await_info(&mut client, "rdb_last_bgsave_status:err");
        let offset = link.command(&["SET", "key", "1"]);
        if goes_on == "yes" {
            link.await_acknowledged(offset);
        } else {
            assert!(has_ended(&mut client));
        }
    }
}

/// A write that has begun before a shutdown is answered, so the replica must have it.
#[test]
fn a_shutdown_waits_for_writes_that_run_and_for_their_replication() {
    let primary = Server::start(&AT_ONCE);
    let mut client = Client::connect(primary.port);
    for key in ["one", "two"] {
        for part in 0..20 {
            let members: Vec<String> = (0..20_000).map(|member| format!("{key}:{part}:{member}")).collect();
            let words: Vec<&str> = ["SADD", key]
                .into_iter()
                .chain(members.iter().map(String::as_str))
                .collect();
            client.call(&words);
        }
    }
    let replica = Server::start(&[]);
    let mut on_replica = Client::connect(replica.port);
    follow(&mut on_replica, primary.port);
    same_offset(&mut client, &mut on_replica);
    let mut writer = Client::connect(primary.port);
    writer.send(&["SUNIONSTORE", "both", "one", "two"]);
    std::thread::sleep(Duration::from_millis(30));
    client.send(&["SHUTDOWN", "NOSAVE"]);
    until("it ends", || TcpStream::connect(("127.0.0.1", primary.port)).is_err());
    let mut reply = String::new();
    let _ = std::io::BufRead::read_line(&mut writer.0, &mut reply);
    if reply == ":800000\r\n" {
        until("the replica has it", || on_replica.call(&["SCARD", "both"]) == "800000");
    }
}
