//! Tests a replica that cannot execute a command of its primary, or cannot write it to disk.

use std::io::Write;

use nix::sys::signal::Signal;

use super::serving::AT_ONCE;
use super::{Client, DUMP, FIRST_ID, Link, Primary, Server, UP, await_info, command, is_closed, is_closed_at_once};
use crate::harness::{endless_library_dump, wait_until};

/// Starts a replica of `primary` with these arguments, and completes its full sync.
fn following(primary: &Primary, arguments: &[&str]) -> (Server, Client, Link) {
    let follows = format!("127.0.0.1 {}", primary.port());
    let own = ["--replicaof", follows.as_str(), "--repl-diskless-load", "swapdb"];
    let replica = Server::start(&[&own, arguments].concat());
    let mut client = Client::connect(replica.port);
    let (mut link, _) = primary.accept();
    link.send(format!("+FULLRESYNC {FIRST_ID} 1000\r\n$EOF:{FIRST_ID}\r\n").as_bytes());
    link.send(DUMP);
    link.send(FIRST_ID.as_bytes());
    link.await_acknowledged(1000);
    await_info(&mut client, UP);
    (replica, client, link)
}

#[test]
fn an_error_in_the_stream_ends_the_replica_only_if_configured() {
    for behaviour in ["ignore", "panic", "panic-on-replicas"] {
        let primary = Primary::new();
        let (_replica, mut client, mut link) = following(&primary, &["--propagation-error-behavior", behaviour]);
        let mut offset = 1000;
        offset += link.command(&["SELECT", "9"]);
        offset += link.command(&["RPUSH", "l", "a"]);
        link.await_acknowledged(offset);
        assert_eq!(client.info("unexpected_error_replies"), "0");
        offset += link.command(&["INCR", "l"]);
        if behaviour != "ignore" {
            assert!(is_closed_at_once(&mut client.0), "{behaviour}");
            continue;
        }
        offset += link.command(&["SET", "k", "v"]);
        link.await_acknowledged(offset);
        assert_eq!(client.info("unexpected_error_replies"), "1");
    }
}

#[test]
fn a_replica_that_cannot_write_does_not_diverge_from_its_primary() {
    for ignores in ["no", "yes"] {
        let primary = Primary::new();
        let arguments = [
            "--enable-protected-configs",
            "yes",
            "--save",
            "3600 1000000",
            "--replica-ignore-disk-write-errors",
            ignores,
        ];
        let (_replica, mut client, mut link) = following(&primary, &arguments);
        assert_eq!(client.call(&["CONFIG", "SET", "dir", "/proc"]), "OK");
        client.call(&["BGSAVE"]);
        await_info(&mut client, "rdb_last_bgsave_status:err");
        let mut offset = 1000;
        offset += link.command(&["PING"]);
        link.await_acknowledged(offset);
        offset += link.command(&["SELECT", "9"]);
        offset += link.command(&["SET", "k", "v"]);
        if ignores == "no" {
            assert!(is_closed_at_once(&mut client.0));
            continue;
        }
        link.await_acknowledged(offset);
        client.call(&["SELECT", "9"]);
        assert_eq!(client.call(&["GET", "k"]), "v");
    }
}

/// A primary that disconnects behind its dump, and before the mark that ends it, must not leave a server that refuses
/// every command, REPLICAOF included, because it seems to be loading.
#[test]
fn a_load_ends_when_the_link_breaks_behind_the_dump() {
    for load in ["flush-before-load", "swapdb"] {
        let primary = Primary::new();
        let follows = format!("127.0.0.1 {}", primary.port());
        let replica = Server::start(&["--replicaof", &follows, "--repl-diskless-load", load]);
        let mut client = Client::connect(replica.port);
        let (mut link, _) = primary.accept();
        link.send(format!("+FULLRESYNC {FIRST_ID} 1000\r\n$EOF:{FIRST_ID}\r\n").as_bytes());
        link.send(DUMP);
        drop(link);
        // The replica connects again once it has given up the first link.
        let _second = primary.accept();
        assert_eq!(client.info("loading"), "0", "{load}");
        assert_eq!(client.info("async_loading"), "0", "{load}");
        assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        assert_eq!(client.call(&["SET", "k", "v"]), "OK");
    }
}

#[test]
fn a_dump_that_is_cut_short_is_requested_again_at_once() {
    let log = std::env::temp_dir().join(format!("weft-cut-short-{}.log", std::process::id()));
    for load in ["flush-before-load", "swapdb"] {
        let primary = Primary::new();
        let follows = format!("127.0.0.1 {}", primary.port());
        let logfile = log.display().to_string();
        let options = [
            "--replicaof",
            &follows,
            "--repl-diskless-load",
            load,
            "--logfile",
            &logfile,
        ];
        let _replica = Server::start(&options);
        let (mut link, _) = primary.accept();
        link.send(format!("+FULLRESYNC {FIRST_ID} 1000\r\n$EOF:{FIRST_ID}\r\n").as_bytes());
        link.send(&DUMP[..DUMP.len() / 2]);
        drop(link);
        let _second = primary.accept();
        let lines = std::fs::read_to_string(&log).expect("reads the log");
        std::fs::remove_file(&log).expect("removes the log");
        for line in [
            "-> Unexpected EOF reading RDB file. Failure loading rdb format from socket, assuming connection error",
            "Failed trying to load the PRIMARY synchronization DB from socket, check server logs.",
            &format!("Reconnecting to PRIMARY {} after failure", follows.replace(' ', ":")),
        ] {
            assert!(lines.contains(line), "{line}: {lines}");
        }
    }
}

/// Offsets near the limits of their type would overflow with the first bytes of the stream.
#[test]
fn a_primary_with_an_impossible_offset_is_not_followed() {
    for offset in [i64::MAX, -1, i64::MIN] {
        let primary = Primary::new();
        let follows = format!("127.0.0.1 {}", primary.port());
        let replica = Server::start(&["--replicaof", &follows]);
        let mut client = Client::connect(replica.port);
        let (mut link, _) = primary.accept();
        link.send(format!("+FULLRESYNC {FIRST_ID} {offset}\r\n").as_bytes());
        assert!(is_closed_at_once(&mut link.0), "{offset}");
        let (mut link, asked) = primary.accept();
        assert_eq!(asked, ["PSYNC", "?", "-1"]);
        link.send_full_sync(DUMP);
        await_info(&mut client, UP);
    }
}

/// Starts a replica with several workers and apply threads, and completes its full sync.
fn following_in_parallel(primary: &Primary) -> (Server, Client, Link) {
    following(primary, &["--io-threads", "4", "--replica-apply-threads", "4"])
}

/// A stream of writes that several threads may apply.
fn writes(prefix: &str) -> Vec<u8> {
    let set = |number| command(&["SET", &format!("{prefix}:{number}"), "v"]);
    (0..2000).flat_map(set).collect()
}

/// Checks that the replica answers commands which need the whole keyspace, and has the keys of `writes`.
fn check_writes(client: &mut Client, prefix: &str) {
    client.call(&["SELECT", "9"]);
    let matching = format!("{prefix}:*");
    let found = client.call(&["KEYS", &matching]);
    assert_eq!(found.split_whitespace().count(), 2000, "{prefix}");
}

/// A primary that ends its own connection must not leave a replica that applies nothing and never releases the gate.
#[test]
fn a_stream_that_quits_continues_behind_quit() {
    let primary = Primary::new();
    let (_replica, mut client, mut link) = following_in_parallel(&primary);
    let mut bytes = command(&["SELECT", "9"]);
    bytes.extend(writes("before"));
    bytes.extend(command(&["QUIT"]));
    let reached = 1000 + bytes.len() as i64;
    bytes.extend(writes("behind"));
    // The replica may have closed the link by the end.
    let _ = link.0.get_mut().write_all(&bytes);
    assert!(is_closed(&mut link.0), "the link is open");
    let (mut link, asked) = primary.accept();
    assert_eq!(asked, ["PSYNC", FIRST_ID, (reached + 1).to_string().as_str()]);
    check_writes(&mut client, "before");
    assert_eq!(client.call(&["EXISTS", "behind:0", "behind:1999"]), "0");
    link.send(b"+CONTINUE\r\n");
    let rest = writes("behind");
    link.send(&rest);
    link.await_acknowledged(reached + rest.len() as i64);
    check_writes(&mut client, "behind");
}

/// No link can continue before these commands, because it would end again, and none can continue behind them.
#[test]
fn a_stream_that_cannot_go_on_is_requested_from_its_start() {
    let quits_in_transaction = [command(&["MULTI"]), command(&["SET", "k", "v"]), command(&["QUIT"])].concat();
    for closing in [&b"POST x\r\n"[..], b"*1\r\n$5\r\nhost:\r\n", &quits_in_transaction] {
        let shown = String::from_utf8_lossy(closing);
        let primary = Primary::new();
        let (_replica, mut client, mut link) = following_in_parallel(&primary);
        let bytes = [&command(&["SELECT", "9"]), closing, &writes("behind")].concat();
        let _ = link.0.get_mut().write_all(&bytes);
        assert!(is_closed(&mut link.0), "{shown}: the link is open");
        let (mut link, asked) = primary.accept();
        assert_eq!(asked, ["PSYNC", "?", "-1"], "{shown}");
        client.call(&["SELECT", "9"]);
        assert_eq!(client.call(&["KEYS", "*"]), "()", "{shown}");
        link.send_full_sync(DUMP);
        let mut offset = link.command(&["SELECT", "9"]);
        let rest = writes("next");
        link.send(&rest);
        offset += rest.len() as i64;
        link.await_acknowledged(offset);
        check_writes(&mut client, "next");
    }
}

/// After RESET the link would count as a client, whose writes a replica refuses.
#[test]
fn a_link_is_not_reset() {
    let primary = Primary::new();
    let (_replica, mut client, mut link) = following(&primary, &[]);
    let mut offset = 1000;
    offset += link.command(&["SELECT", "9"]);
    offset += link.command(&["RESET"]);
    offset += link.command(&["SET", "k", "v"]);
    link.await_acknowledged(offset);
    client.call(&["SELECT", "9"]);
    assert_eq!(client.call(&["GET", "k"]), "v");
    assert_eq!(client.info("unexpected_error_replies"), "1");
}

/// XCLAIM takes a signed count of deliveries, and the next delivery exceeds it.
#[test]
fn a_replica_accepts_claims_with_every_count_of_deliveries() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
    let (mut client, mut reader) = (Client::connect(primary.port), Client::connect(replica.port));
    await_info(&mut reader, UP);
    for request in [
        "XADD s 1-1 f v",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c1 STREAMS s >",
        "XCLAIM s g c2 0 1-1 RETRYCOUNT 9223372036854775807",
        "XCLAIM s g c3 0 1-1",
        "XAUTOCLAIM s g c4 0 0",
    ] {
        client.call(&request.split(' ').collect::<Vec<_>>());
    }
    assert_eq!(client.call(&["WAIT", "1", "0"]), "1");
    assert_eq!(reader.info("unexpected_error_replies"), "0");
    for server in [&mut client, &mut reader] {
        let pending = server.call(&["XPENDING", "s", "g"]);
        assert!(pending.contains("(c4 1)"), "{pending}");
    }
}

#[test]
fn the_log_shows_the_end_of_a_link_before_what_follows() {
    const STEPS: [&str; 7] = [
        "Connection with primary lost.",
        "Caching the disconnected primary state.",
        "Connecting to PRIMARY",
        "REPLICAOF 127.0.0.1",
        "Discarding previously cached primary state.",
        "Setting secondary replication ID",
        "PRIMARY MODE enabled",
    ];
    let primaries = [Server::start(&AT_ONCE), Server::start(&AT_ONCE)];
    let replica = Server::start(&["--logfile", "log"]);
    let mut client = Client::connect(replica.port);
    for primary in &primaries {
        let port = primary.port.to_string();
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        client.wait_for_info("master_link_status", "up");
    }
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    let log = std::fs::read_to_string(replica.directory.join("log")).expect("there is a log");
    let step_of = |line: &str| STEPS.into_iter().find(|step| line.contains(step));
    let steps: Vec<&str> = log.lines().filter_map(step_of).collect();
    let [lost, caching, connecting, follows, discarding, renaming, promoted] = STEPS;
    let expected = [
        &[connecting, follows][..],
        &[lost, caching, connecting, follows],
        &[lost, caching, discarding, renaming, promoted],
    ];
    assert_eq!(steps, expected.concat(), "{log}");
}

/// DEBUG FORCE-FREE-PRIMARY-ASYNC concerns one change of the role, and the link that is up then.
#[test]
fn a_link_whose_end_is_left_to_its_thread_ends_after_the_change_of_the_role() {
    const STEPS: [&str; 4] = [
        "Connection with primary lost.",
        "Caching the disconnected primary state.",
        "Connecting to PRIMARY",
        "Discarding previously cached primary state.",
    ];
    let primaries = [Server::start(&AT_ONCE), Server::start(&AT_ONCE)];
    let replica = Server::start(&["--logfile", "log", "--enable-debug-command", "yes"]);
    let mut client = Client::connect(replica.port);
    let read_log = || std::fs::read_to_string(replica.directory.join("log")).expect("there is a log");
    let follow = |client: &mut Client, primary: &Server| {
        let port = primary.port.to_string();
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        client.wait_for_info("master_link_status", "up");
    };
    let leave_open = ["DEBUG", "FORCE-FREE-PRIMARY-ASYNC", "1"];
    follow(&mut client, &primaries[0]);
    assert_eq!(client.call(&leave_open), "OK");
    follow(&mut client, &primaries[1]);
    follow(&mut client, &primaries[0]);
    assert_eq!(client.call(&leave_open), "OK");
    assert_eq!(client.call(&leave_open), "OK");
    assert_eq!(client.call(&["DEBUG", "FORCE-FREE-PRIMARY-ASYNC", "0"]), "OK");
    follow(&mut client, &primaries[1]);
    assert_eq!(client.call(&leave_open), "OK");
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    wait_until("the last link has ended", || {
        read_log().matches("Caching the disconnected").count() == 4
    });
    let log = read_log();
    let step_of = |line: &str| STEPS.into_iter().find(|step| line.contains(step));
    let steps: Vec<&str> = log.lines().filter_map(step_of).collect();
    let [lost, caching, connecting, _] = STEPS;
    let expected = [
        &[connecting][..],
        &[connecting, lost, caching],
        &[lost, caching, connecting],
        &[lost, caching, connecting],
        &[lost, caching],
    ];
    assert_eq!(steps, expected.concat(), "{log}");
}

/// The primary has loaded the library, so its code has no time limit here.
#[test]
fn the_end_of_the_process_stops_a_full_synchronisation_whose_library_never_ends() {
    const LINK_THREAD: &str = "weft-replica";
    for (load, by_signal) in [("disabled", true), ("swapdb", false)] {
        let primary = Primary::new();
        let follows = format!("127.0.0.1 {}", primary.port());
        let mut replica = Server::start(&["--replicaof", &follows, "--repl-diskless-load", load]);
        let (mut link, _) = primary.accept();
        let before = replica.thread_ticks(LINK_THREAD);
        link.send(format!("+FULLRESYNC {FIRST_ID} 1000\r\n$EOF:{FIRST_ID}\r\n").as_bytes());
        link.send(&endless_library_dump());
        link.send(FIRST_ID.as_bytes());
        wait_until("the code runs", || replica.thread_ticks(LINK_THREAD) >= before + 3);
        let mut client = Client::connect(replica.port);
        assert!(
            client
                .call(&["INFO", "replication"])
                .contains("master_link_status:down")
        );
        match by_signal {
            true => replica.signal(Signal::SIGTERM),
            false => client.send(&["SHUTDOWN", "NOSAVE"]),
        }
        assert_eq!(replica.wait_for_exit(), Some(0), "{load}");
    }
}
