//! Tests full syncs whose RDB comes over a separate connection (dual-channel replication).

use std::io::{BufReader, Read};
use std::thread;
use std::time::{Duration, Instant};

use super::lasting::{follow, until};
use super::serving::{AT_ONCE, Replica, settle, under_load};
use super::{
    DUMP, FIRST_ID, Link, Primary, UP, Valkey, await_info, compare, is_closed, is_closed_at_once, write_everything,
};
use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

const DUAL: [&str; 2] = ["--dual-channel-replication-enabled", "yes"];

/// Returns the handshake of a replica that listens on `port`, as it sends it on the connection for the RDB.
#[rustfmt::skip]
fn handshake(port: &str) -> [&str; 11] {
    ["REPLCONF", "capa", "eof", "rdb-only", "1", "rdb-channel", "1", "listening-port", port, "version", "9.1.2"]
}

// ---- a primary, with a replica implemented here
// ------------------------------------------------------------------------
/// The two connections of a replica, and the start of the stream as the primary announced it.
struct DualChannels {
    main: Replica,
    dump: Replica,
    offset: i64,
    id: String,
    client: String,
}

impl DualChannels {
    /// Requests a full sync and reads the position in the stream that the primary announces.
    fn open(port: u16) -> DualChannels {
        let mut main = Replica::connect(port);
        main.handshake();
        main.send(&["REPLCONF", "capa", "dual-channel"]);
        assert_eq!(main.line(), "+OK");
        main.send(&["PSYNC", "?", "-1"]);
        assert_eq!(main.line(), "+DUALCHANNELSYNC");
        let mut dump = Replica::connect(port);
        dump.send(&handshake("1234"));
        assert_eq!(dump.line(), "+OK");
        dump.send(&["SYNC"]);
        let line = dump.line();
        let words: Vec<&str> = line.split([':', ' ']).collect();
        let ["$ENDOFF", offset, id, _db, client] = words[..] else {
            panic!("{line} tells no end");
        };
        DualChannels {
            offset: offset.parse().expect("an offset"),
            id: id.to_owned(),
            client: client.to_owned(),
            main,
            dump,
        }
    }

    fn ask_for_stream(&mut self) -> String {
        self.main.send(&["REPLCONF", "set-rdb-client-id", &self.client]);
        assert_eq!(self.main.line(), "+OK");
        self.main.send(&["PSYNC", &self.id, &(self.offset + 1).to_string()]);
        self.main.line()
    }

    fn dump_is_closed(&mut self) -> bool {
        is_closed_at_once(&mut self.dump.0)
    }
}

fn replicas(client: &mut Client) -> Vec<String> {
    let lines = client.call(&["INFO", "replication"]);
    let replicas = lines.lines().filter(|line| line.starts_with("slave"));
    replicas.map(str::to_owned).collect()
}

#[test]
fn a_primary_sends_the_stream_in_parallel_with_the_dump() {
    let server = Server::start(&[&AT_ONCE[..], &DUAL[..]].concat());
    let mut client = Client::connect(server.port);
    client.call(&["DEBUG", "POPULATE", "200", "key", "100"]);
    // Slow enough to be observed.
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "1000000"]);
    let mut channels = DualChannels::open(server.port);
    await_info(&mut client, "replicas_waiting_psync:1");
    let shown = replicas(&mut client);
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(
        shown[0].ends_with("state=wait_bgsave,offset=0,lag=0,type=rdb-channel"),
        "{shown:?}"
    );
    assert_eq!(
        client.call(&["REPLCONF", "set-rdb-client-id", "1000000"]),
        "ERR Unrecognized RDB client id 1000000"
    );
    assert_eq!(channels.ask_for_stream(), format!("+CONTINUE {}", channels.id));
    await_info(&mut client, "replicas_waiting_psync:0");
    until("the main channel is shown as one", || {
        let shown = replicas(&mut client);
        let main = shown.iter().find(|line| line.ends_with("type=main-channel"));
        main.is_some_and(|line| line.contains("state=bg_transfer,"))
    });
    client.call(&["SET", "later", "1"]);
    assert_eq!(channels.main.command(), "SELECT 0");
    assert_eq!(channels.main.command(), "SET later 1");
    assert_eq!(
        client.info("rdb_bgsave_in_progress"),
        "1",
        "it came before the dump had ended"
    );
    // A change of the setting affects only later replicas.
    client.call(&[
        "CONFIG",
        "SET",
        "dual-channel-replication-enabled",
        "no",
        "rdb-key-save-delay",
        "0",
    ]);
    let dump = channels.dump.take_dump();
    assert!(dump.windows(7).any(|bytes| bytes == b"key:199"));
    assert!(!dump.windows(5).any(|bytes| bytes == b"later"));
    assert!(channels.dump_is_closed());
    let loads = |client: &mut Client| replicas(client).iter().any(|line| line.contains("state=bg_transfer,"));
    assert!(loads(&mut client), "it has not said that it has loaded");
    channels.main.send(&["REPLCONF", "ACK", &channels.offset.to_string()]);
    until("the replica is online", || !loads(&mut client));
    assert!(replicas(&mut client)[0].ends_with("type=replica"));
    assert_eq!(client.info("sync_full"), "1");
    assert_eq!(client.info("sync_partial_ok"), "1");
}

#[test]
fn the_stream_after_a_dump_is_kept_within_limits_of_time_and_size() {
    let limits = [
        "--client-output-buffer-limit",
        "replica 1mb 0 0",
        "--repl-backlog-size",
        "100kb",
    ];
    let server = Server::start(&[&AT_ONCE[..], &DUAL[..], &limits[..]].concat());
    let mut client = Client::connect(server.port);
    client.call(&["SET", "key", "1"]);
    let mut channels = DualChannels::open(server.port);
    channels.dump.take_dump();
    assert!(channels.dump_is_closed());
    assert_eq!(client.info("replicas_waiting_psync"), "1");
    client.call(&["SET", "key", "2"]);
    assert_eq!(channels.ask_for_stream(), format!("+CONTINUE {}", channels.id));
    assert_eq!(channels.main.command(), "SELECT 0");
    assert_eq!(channels.main.command(), "SET key 2");
    drop(channels);
    // The replica does not come back.
    client.call(&["DEBUG", "DELAY-RDB-CLIENT-FREE-SECONDS", "1"]);
    let mut late = DualChannels::open(server.port);
    late.dump.take_dump();
    await_info(&mut client, "replicas_waiting_psync:0");
    late.main.send(&["REPLCONF", "set-rdb-client-id", &late.client]);
    assert_eq!(
        late.main.line(),
        format!("-ERR Unrecognized RDB client id {}", late.client)
    );
    // The backlog exceeds the limit.
    client.call(&["DEBUG", "DELAY-RDB-CLIENT-FREE-SECONDS", "1000"]);
    let mut slow = DualChannels::open(server.port);
    slow.dump.take_dump();
    await_info(&mut client, "replicas_waiting_psync:1");
    let value = "x".repeat(100_000);
    for _ in 0..15 {
        client.call(&["SET", "key", &value]);
    }
    await_info(&mut client, "replicas_waiting_psync:0");
    client.call(&["SET", "key", &value]);
    let kept: u64 = client.info("repl_backlog_histlen").parse().expect("a number");
    assert!(kept < 400_000, "{kept} bytes are kept for nobody");
    slow.main.send(&["PSYNC", &slow.id, &(slow.offset + 1).to_string()]);
    assert_eq!(slow.main.line(), "+DUALCHANNELSYNC");
    assert_eq!(client.info("client_output_buffer_limit_disconnections"), "1");
}

#[test]
fn a_replica_waits_for_stopped_links_and_stops_no_other_client() {
    let server = Server::start(&[&AT_ONCE[..], &DUAL[..]].concat());
    let mut client = Client::connect(server.port);
    // The dump takes ten seconds.
    client.call(&["DEBUG", "POPULATE", "100", "key", "100"]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
    client.call(&["DEBUG", "PAUSE-AFTER-FORK", "1"]);
    let mut channels = DualChannels::open(server.port);
    channels.main.send(&["REPLCONF", "set-rdb-client-id", &channels.client]);
    let start = Instant::now();
    for _ in 0..3 {
        // Each of them stops all threads for a moment. (FLUSHALL would cancel the dump.)
        client.call(&["SWAPDB", "1", "2"]);
        client.call(&["PSYNC", "?", "none"]);
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    // In a transaction there is nothing to wait for.
    client.call(&["MULTI"]);
    client.call(&["REPLCONF", "set-rdb-client-id", &channels.client]);
    assert_eq!(client.call(&["EXEC"]), "(OK)");
    assert!(channels.main.is_waiting(), "the links still sleep");
    assert_eq!(client.info("rdb_bgsave_in_progress"), "1");
    // Otherwise the process would stop itself now.
    client.call(&["DEBUG", "PAUSE-AFTER-FORK", "0"]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    assert_eq!(channels.main.line(), "+OK");
    await_info(&mut client, "rdb_bgsave_in_progress:0");
    channels
        .main
        .send(&["PSYNC", &channels.id, &(channels.offset + 1).to_string()]);
    assert_eq!(channels.main.line(), format!("+CONTINUE {}", channels.id));
}

#[test]
fn a_dump_without_receivers_ends() {
    let server = Server::start(&[&AT_ONCE[..], &DUAL[..]].concat());
    let mut client = Client::connect(server.port);
    client.call(&["DEBUG", "POPULATE", "1000", "key", "100"]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
    let mut channels = DualChannels::open(server.port);
    assert_eq!(channels.ask_for_stream(), format!("+CONTINUE {}", channels.id));
    await_info(&mut client, "rdb_bgsave_in_progress:1");
    assert_eq!(client.call(&["CLIENT", "KILL", "ID", &channels.client]), "1");
    await_info(&mut client, "rdb_bgsave_in_progress:0");
    assert_eq!(replicas(&mut client).len(), 1, "the stream goes on");
    drop(channels);
    await_info(&mut client, "connected_slaves:0");
    // A save for two replicas continues for one.
    client.call(&[
        "CONFIG",
        "SET",
        "repl-diskless-sync-delay",
        "1",
        "rdb-key-save-delay",
        "1000",
    ]);
    let one = thread::spawn(move || DualChannels::open(server.port));
    let mut other = DualChannels::open(server.port);
    drop(one.join().expect("opens"));
    assert_eq!(other.ask_for_stream(), format!("+CONTINUE {}", other.id));
    assert!(other.dump.take_dump().starts_with(b"VALKEY"));
}

// ---- a replica, with a primary implemented here
// ------------------------------------------------------------------------
/// Accepts the connection for the RDB and announces the offset of the RDB.
fn accept_dump(primary: &Primary, offset: i64) -> Link {
    let (stream, _) = primary.listener.accept().expect("accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    let mut dump = Link(BufReader::new(stream));
    let asked = dump.request();
    let port = asked[8].clone();
    assert_eq!(asked, handshake(&port));
    dump.send(b"+OK\r\n");
    let mut sync = [0; 6];
    dump.0.read_exact(&mut sync).expect("receives");
    assert_eq!(&sync, b"SYNC\r\n");
    dump.send(format!("\n$ENDOFF:{offset} {FIRST_ID} -1 77\r\n").as_bytes());
    dump
}

fn expect_psync(main: &mut Link, offset: i64) {
    assert_eq!(main.request(), ["REPLCONF", "set-rdb-client-id", "77"]);
    main.send(b"+OK\r\n");
    assert_eq!(main.request(), ["PSYNC", FIRST_ID, &(offset + 1).to_string()]);
}

fn give_dump(dump: &mut Link) {
    let mark = "m".repeat(40);
    dump.send(&[format!("$EOF:{mark}\r\n").as_bytes(), DUMP, mark.as_bytes()].concat());
}

fn follower_of(primary: &Primary, arguments: &[&str]) -> (Server, Client) {
    let follows = format!("127.0.0.1 {}", primary.port());
    let replica = Server::start(&[&DUAL[..], arguments].concat());
    let mut client = Client::connect(replica.port);
    client.call(&["SET", "old", "1"]);
    let words: Vec<&str> = follows.split(' ').collect();
    assert_eq!(client.call(&["REPLICAOF", words[0], words[1]]), "OK");
    (replica, client)
}

#[test]
fn both_connections_of_a_replica_announce_its_configured_address() {
    let primary = Primary::new();
    let announced = ["--replica-announce-ip", "10.1.2.3", "--replica-announce-port", "6333"];
    let (_replica, _client) = follower_of(&primary, &announced);
    let (mut main, asked) = primary.accept();
    assert_eq!(asked, ["PSYNC", "?", "-1"]);
    main.send(b"+DUALCHANNELSYNC\r\n");
    let (stream, _) = primary.listener.accept().expect("accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    let mut dump = Link(BufReader::new(stream));
    assert_eq!(dump.request(), handshake("6333"));
    dump.send(b"+OK\r\n");
    assert_eq!(dump.request(), ["REPLCONF", "ip-address", "10.1.2.3"]);
}

#[test]
fn a_replica_keeps_the_stream_while_it_loads_and_runs_it_then() {
    for load in ["disabled", "on-empty-db", "swapdb", "flush-before-load"] {
        for is_late in [false, true] {
            let primary = Primary::new();
            let (_replica, mut client) = follower_of(&primary, &["--repl-diskless-load", load]);
            let (mut main, asked) = primary.accept();
            assert_eq!(asked, ["PSYNC", "?", "-1"]);
            main.send(b"+DUALCHANNELSYNC\r\n");
            let mut dump = accept_dump(&primary, 1000);
            expect_psync(&mut main, 1000);
            if is_late {
                give_dump(&mut dump);
                thread::sleep(Duration::from_millis(200));
            }
            main.send(format!("+CONTINUE {FIRST_ID}\r\n").as_bytes());
            let mut offset = 1000;
            offset += main.command(&["SELECT", "9"]);
            let long = "x".repeat(50_000);
            offset += main.command(&["SET", "long", &long]);
            offset += main.command(&["INCR", "counter"]);
            if !is_late {
                until("the stream is kept", || {
                    client
                        .info("replicas_repl_buffer_size")
                        .parse::<u64>()
                        .is_ok_and(|bytes| bytes > 50_000)
                });
                await_info(&mut client, "master_sync_in_progress:1");
                assert_eq!(client.info("master_sync_total_bytes"), "-1");
                assert_eq!(client.info("master_link_status"), "down");
                assert_eq!(client.call(&["GET", "old"]), "1", "nothing has come yet");
                give_dump(&mut dump);
            }
            main.await_acknowledged(offset);
            await_info(&mut client, UP);
            assert_eq!(client.info("replicas_repl_buffer_size"), "0");
            assert!(is_late || client.info("replicas_repl_buffer_peak") != "0");
            offset += main.command(&["INCR", "counter"]);
            main.await_acknowledged(offset);
            assert_eq!(client.call(&["GET", "old"]), "-");
            client.call(&["SELECT", "9"]);
            assert_eq!(client.call(&["GET", "counter"]), "2", "{load}");
            assert_eq!(client.call(&["STRLEN", "long"]), "50000");
        }
    }
}

#[test]
fn a_replica_restarts_the_full_sync_when_either_connection_breaks() {
    let primary = Primary::new();
    let (_replica, mut client) = follower_of(&primary, &["--repl-diskless-load", "swapdb"]);
    for breaks in ["dump", "main", "main before it is asked", "refused"] {
        let (mut main, _) = primary.accept();
        main.send(b"+DUALCHANNELSYNC\r\n");
        let mut dump = accept_dump(&primary, 0);
        dump.send(format!("$EOF:{}\r\n", "m".repeat(40)).as_bytes());
        dump.send(&DUMP[..DUMP.len() / 2]);
        if breaks == "main before it is asked" {
            drop(main);
            assert!(is_closed(&mut dump.0));
            continue;
        }
        expect_psync(&mut main, 0);
        if breaks == "refused" {
            main.send(b"-ERR no\r\n");
            assert!(is_closed(&mut dump.0));
            continue;
        }
        main.send(format!("+CONTINUE {FIRST_ID}\r\n").as_bytes());
        await_info(&mut client, "async_loading:0");
        if breaks == "main" {
            main.command(&["SET", "long", &"x".repeat(1_500_000)]);
            let buffered = |client: &mut Client| client.info("replicas_repl_buffer_size").parse::<u64>();
            until("the stream is buffered", || {
                buffered(&mut client).expect("a number") >= 1_500_000
            });
        }
        let (broken, mut other) = if breaks == "dump" { (dump, main) } else { (main, dump) };
        drop(broken);
        assert!(is_closed(&mut other.0), "{breaks}");
        // The connection may be closed before the load has ended, and until then all commands are refused.
        await_info(&mut client, "loading:0");
        assert_eq!(client.call(&["GET", "old"]), "1", "{breaks}");
        if breaks == "main" {
            let blocks = 1_500_000 / 16_384 + 1;
            await_info(&mut client, "lazyfree_pending_objects:0");
            let freed: u64 = client.info("lazyfreed_objects").parse().expect("a number");
            assert!(freed >= blocks, "{freed} of {blocks} blocks");
        }
    }
    // A promotion ends the full sync, too.
    let (mut main, _) = primary.accept();
    main.send(b"+DUALCHANNELSYNC\r\n");
    let mut dump = accept_dump(&primary, 0);
    expect_psync(&mut main, 0);
    main.send(format!("+CONTINUE {FIRST_ID}\r\n").as_bytes());
    await_info(&mut client, "master_sync_in_progress:1");
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert!(is_closed(&mut dump.0));
    assert_eq!(client.call(&["GET", "old"]), "1");
    assert_eq!(client.call(&["SET", "new", "1"]), "OK");
}

#[test]
fn the_stream_beyond_the_replicas_buffer_waits_at_the_primary() {
    let primary = Primary::new();
    let limit = ["--client-output-buffer-limit", "replica 100kb 0 0"];
    let (_replica, mut client) = follower_of(&primary, &limit);
    let (mut main, _) = primary.accept();
    main.send(b"+DUALCHANNELSYNC\r\n");
    let mut dump = accept_dump(&primary, 0);
    expect_psync(&mut main, 0);
    main.send(format!("+CONTINUE {FIRST_ID}\r\n").as_bytes());
    let mut offset = main.command(&["SELECT", "9"]);
    for _ in 0..10 {
        offset += main.command(&["APPEND", "long", &"x".repeat(50_000)]);
    }
    let size = |client: &mut Client| -> u64 {
        let size = client.info("replicas_repl_buffer_size");
        size.parse().expect("a number")
    };
    until("the buffer is full", || size(&mut client) > 102_400);
    thread::sleep(Duration::from_millis(200));
    assert!(size(&mut client) <= 102_400 + 2 * 16_384, "{}", size(&mut client));
    let kept = client.info("replicas_repl_buffer_size");
    for field in ["mem_replicas_repl_buffer", "mem_total_replication_buffers"] {
        assert_eq!(client.info(field), kept, "{field}");
    }
    let statistics = client.call(&["MEMORY", "STATS"]);
    assert!(
        statistics.contains(&format!("replicas.repl.buffer {kept}")),
        "{statistics}"
    );
    let overhead: u64 = client.info("used_memory_overhead").parse().expect("a number");
    let startup: u64 = client.info("used_memory_startup").parse().expect("a number");
    assert!(
        overhead - startup >= 102_400,
        "{overhead} bytes, {startup} at the start"
    );
    give_dump(&mut dump);
    main.await_acknowledged(offset);
    client.call(&["SELECT", "9"]);
    assert_eq!(client.call(&["STRLEN", "long"]), "500000");
}

#[test]
fn data_that_was_loaded_before_the_link_broke_is_not_asked_for_again() {
    let primary = Primary::new();
    let (_replica, mut client) = follower_of(&primary, &[]);
    let (mut main, _) = primary.accept();
    main.send(b"+DUALCHANNELSYNC\r\n");
    let mut dump = accept_dump(&primary, 500);
    expect_psync(&mut main, 500);
    give_dump(&mut dump);
    until("the dump is loaded", || client.info("master_replid") == FIRST_ID);
    drop(main);
    let (mut link, asked) = primary.accept();
    assert_eq!(asked, ["PSYNC", FIRST_ID, "501"]);
    link.send(b"+CONTINUE\r\n");
    link.await_acknowledged(500);
    await_info(&mut client, UP);
}

// ---- real servers
// ------------------------------------------------------------------------------------------------------

const DEBUG: [&str; 4] = ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "1"];

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn valkey_and_weft_replicate_each_other_over_two_connections() {
    let arguments = [&DUAL[..], &DEBUG[..]].concat();
    let valkey = Valkey::start(&arguments);
    let server = Server::start(&arguments);
    for (primary, replica) in [(valkey.port, server.port), (server.port, valkey.port)] {
        let (mut one, mut other) = (Client::connect(primary), Client::connect(replica));
        let partial: u64 = one.info("sync_partial_ok").parse().expect("a number");
        other.call(&["REPLICAOF", "NO", "ONE"]);
        one.call(&["REPLICAOF", "NO", "ONE"]);
        write_everything(&mut one, 1);
        // A history that cannot be continued.
        other.call(&["DEBUG", "CHANGE-REPL-ID"]);
        one.call(&["DEBUG", "CHANGE-REPL-ID"]);
        one.call(&["CONFIG", "SET", "rdb-key-save-delay", "1000"]);
        under_load(primary, || follow(&mut other, primary));
        settle(&mut one);
        one.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        write_everything(&mut one, 2);
        compare(&mut one, &mut other);
        assert_eq!(one.info("sync_partial_ok"), (partial + 1).to_string());
        one.call(&["FLUSHALL"]);
        // Otherwise a replica that becomes the primary could keep the data.
        wait_until("the replica is flushed, too", || other.call(&["DBSIZE"]) == "0");
    }
}

#[test]
fn replicas_connect_together_and_alone_under_load() {
    let arguments = [&DUAL[..], &DEBUG[..]].concat();
    let primary = Server::start(&arguments);
    let replicas: Vec<Server> = (0..3)
        .map(|number| Server::start(if number == 2 { &DEBUG } else { &arguments }))
        .collect();
    let mut client = Client::connect(primary.port);
    client.call(&["DEBUG", "POPULATE", "2000", "key", "1000"]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "300"]);
    under_load(primary.port, || {
        thread::scope(|scope| {
            for replica in &replicas {
                scope.spawn(|| follow(&mut Client::connect(replica.port), primary.port));
            }
        });
    });
    settle(&mut client);
    assert_eq!(client.info("sync_full"), "3");
    assert_eq!(client.info("sync_partial_ok"), "2");
    for replica in &replicas {
        compare(&mut client, &mut Client::connect(replica.port));
    }
}

#[test]
fn crashes_of_either_side_amid_a_synchronisation_lose_nothing() {
    let arguments = [&DUAL[..], &DEBUG[..]].concat();
    let mut primary = Server::start(&[&arguments[..], &["--appendonly", "yes"]].concat());
    let mut replica = Server::start(&arguments);
    let mut client = Client::connect(primary.port);
    client.call(&["DEBUG", "POPULATE", "3000", "key", "100"]);
    // No dump ends before its server does.
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
    let mut other = Client::connect(replica.port);
    other.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    until("a dump is on its way", || client.info("rdb_bgsave_in_progress") == "1");
    replica.kill();
    until("the primary knows", || client.info("connected_slaves") == "0");
    replica.start_again();
    let mut other = Client::connect(replica.port);
    other.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    await_info(&mut other, "master_sync_in_progress:1");
    client.call(&["SET", "last", "word"]);
    client.call(&["WAITAOF", "1", "0", "0"]);
    primary.kill();
    await_info(&mut other, "master_sync_in_progress:0");
    primary.start_again();
    let start = Instant::now();
    let mut client = Client::connect(primary.port);
    while client.call(&["GET", "last"]) != "word" {
        assert!(start.elapsed() < PATIENCE, "the primary has lost what was on its disk");
        thread::sleep(Duration::from_millis(50));
    }
    await_info(&mut other, UP);
    compare(&mut client, &mut other);
}
