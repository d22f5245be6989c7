//! Vulnerabilities of a replica whose primary is the attacker, and of a primary whose replica is.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{Client, Target};
use crate::harness::played_primary::{DUMP, EMPTY, ID, accept};
use crate::harness::server::PATIENCE;
use crate::harness::wait_until;

/// The data and the libraries are replaced while functions, scripts and their debugger run.
#[test]
fn cve_2026_23631_a_full_synchronisation_waits_for_running_scripts() {
    let mut target = Target::start(&["--busy-reply-threshold", "1", "--repl-diskless-load", "swapdb"]);
    let library = "#!lua name=lib\nlocal kept = {} \
                   server.register_function{function_name = 'run', flags = {'no-writes'}, callback = function(keys, args) \
                   for i = 1, 8000000 do kept[i % 100] = {i} end return 99 end}";
    let script = "#!lua flags=no-writes,allow-stale\nlocal t = {} for i = 1, 8000000 do t[i % 100] = {i} end return 99";
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("is bound").port().to_string();
    for _ in 0..3 {
        assert_eq!(target.attacker.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        assert_eq!(target.attacker.call(&["FUNCTION", "LOAD", "REPLACE", library]), "lib");
        assert_eq!(target.attacker.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        let mut link = accept(&listener);
        let mut runners: Vec<_> = (0..4).map(|_| target.connect()).collect();
        for (index, runner) in runners.iter_mut().enumerate() {
            match index % 2 {
                0 => runner.send(&["FCALL_RO", "run", "0"]),
                _ => runner.send(&["EVAL_RO", script, "0"]),
            }
        }
        wait_until("a script runs for long", || {
            target.witness.call(&["PING"]).starts_with("BUSY")
        });
        link.write_all(format!("+FULLRESYNC {ID} 0\r\n${}\r\n", DUMP.len()).as_bytes())
            .expect("sends");
        link.write_all(DUMP).expect("sends");
        // Each script ends by itself, or its client is told why it did not run.
        for runner in &mut runners {
            let answer = runner.answer();
            let is_refused = ["BUSY", "LOADING", "ERR Function not found", "MASTERDOWN"];
            assert!(
                answer == "99" || is_refused.iter().any(|start| answer.starts_with(start)),
                "{answer}"
            );
        }
        wait_until("the link is up", || {
            target
                .witness
                .call(&["INFO", "replication"])
                .contains("master_link_status:up")
        });
        target.serves();
    }
    target.serves_within(600 << 20);
}

/// A primary that announces more than it sends makes its replica keep little.
#[test]
fn a_primary_that_announces_a_huge_file_takes_no_memory() {
    for announced in [
        "$9223372036854775807",
        "$99999999999999999999",
        "$-5",
        "$EOF:short",
        "$1099511627776",
    ] {
        for load in ["disabled", "swapdb"] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let address = format!("127.0.0.1 {}", listener.local_addr().expect("is bound").port());
            let mut target = Target::start(&["--replicaof", &address, "--repl-diskless-load", load]);
            let mut link = accept(&listener);
            link.write_all(format!("+FULLRESYNC {ID} 0\r\n{announced}\r\n").as_bytes())
                .expect("sends");
            let _ = link.write_all(&DUMP[..DUMP.len() / 2]);
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(10));
                let answer = target.witness.call(&["PING"]);
                assert!(answer == "PONG" || answer.starts_with("LOADING"), "{answer}");
            }
            let resident: u64 = target.witness.info("used_memory_rss").parse().expect("a number");
            assert!(resident <= 200 << 20, "{resident} bytes are in memory");
        }
    }
}

/// Returns `true` if the other side closes the connection. What it sends before is appended to `received`.
fn is_closed(stream: &mut impl Read, received: &mut Vec<u8>) -> bool {
    match stream.read_to_end(received) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Reads up to the line that precedes a dump.
fn dump_header(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    while line.trim_end().is_empty() {
        line.clear();
        assert!(reader.read_line(&mut line).expect("receives") > 0, "the link is closed");
    }
    line
}

/// Commands that a replica must not run at its primary.
const COMMANDS_OF_A_REPLICA: [&str; 36] = [
    "SET planted 1",
    "GET planted",
    "INCR planted",
    "XADD planted * f v",
    "BLPOP none 0",
    "BLMOVE none other LEFT LEFT 0",
    "XREAD BLOCK 0 STREAMS none $",
    "FLUSHALL",
    "MSET planted 1 other 2",
    "PFCOUNT none",
    "SORT none STORE planted",
    "RESTORE planted 0 x",
    "MIGRATE 127.0.0.1 1 none 0 10",
    "EVAL return(redis.call('SET','planted','1')) 0",
    "EVAL_RO return(1) 0",
    "FCALL none 0",
    "FUNCTION FLUSH",
    "SCRIPT LOAD return(1)",
    "MULTI",
    "EXEC",
    "WATCH planted",
    "PUBLISH channel message",
    "SUBSCRIBE channel",
    "PSUBSCRIBE *",
    "MONITOR",
    "WAIT 5 0",
    "CLIENT TRACKING ON",
    "CLIENT REPLY ON",
    "HELLO 3",
    "RESET",
    "SELECT 1",
    "PING",
    "INFO",
    "NOSUCH command",
    "REPLICAOF NO ONE",
    "FAILOVER ABORT",
];

/// A write command of a replica met an assertion of its primary. The replica must be disconnected, whether its dump
/// has not begun or is complete, and the command must have no effect.
#[test]
fn cve_2021_31294_a_replica_cannot_use_the_data_of_its_primary() {
    for delay in ["0", "3600"] {
        let mut target = Target::start(&["--repl-diskless-sync-delay", delay]);
        let mut replicas = COMMANDS_OF_A_REPLICA.map(|command| (command, target.connect()));
        for (_, replica) in &mut replicas {
            replica.send(&["SYNC"]);
        }
        target
            .witness
            .wait_for_info("connected_slaves", &replicas.len().to_string());
        for (command, replica) in &mut replicas {
            if delay == "0" {
                assert_eq!(dump_header(&mut replica.0).as_bytes()[0], b'$', "{command}");
            }
            // The server may close the connection after the first command.
            let _ = replica.try_send(&command.split(' ').collect::<Vec<&str>>());
            let _ = replica.try_send(&["SET", "planted", "2"]);
            assert_disconnected(&mut target, command, replica);
        }
        target.witness.wait_for_info("connected_slaves", "0");
        target.serves_within(200 << 20);
    }
}

/// What a replica sends in one piece with its request for a synchronisation is read like what it sends later.
#[test]
fn cve_2021_31294_commands_that_follow_a_request_for_a_synchronisation_have_no_effect() {
    for delay in ["0", "3600"] {
        let mut target = Target::start(&["--repl-diskless-sync-delay", delay]);
        for command in COMMANDS_OF_A_REPLICA {
            for request in [&["SYNC"][..], &["PSYNC", "?", "-1"]] {
                let mut replica = target.connect();
                let mut bytes = encoded(request);
                bytes.extend(encoded(&command.split(' ').collect::<Vec<&str>>()));
                bytes.extend(encoded(&["SET", "planted", "2"]));
                // The server may close the connection before it has read everything.
                let _ = replica.0.get_mut().write_all(&bytes);
                assert_disconnected(&mut target, command, &mut replica);
            }
        }
        target.witness.wait_for_info("connected_slaves", "0");
        target.serves_within(200 << 20);
    }
}

/// Checks that the target closes the connection of a replica that has sent commands, of which none had an effect.
fn assert_disconnected(target: &mut Target, command: &str, replica: &mut Client) {
    let mut received = Vec::new();
    assert!(is_closed(&mut replica.0, &mut received), "{command}: it is connected");
    let text = String::from_utf8_lossy(&received);
    assert!(!text.contains("+OK") && !text.contains("QUEUED"), "{command}: {text}");
    assert_eq!(target.witness.call(&["DBSIZE"]), "0", "{command}");
}

/// Requests for a synchronisation with impossible values are answered, or their connection is closed.
#[test]
fn requests_for_a_synchronisation_are_checked() {
    let mut target = Target::start(&["--repl-backlog-size", "16kb", "--repl-diskless-sync-delay", "0"]);
    let id = target.witness.info("master_replid");
    let long = "x".repeat(100_000);
    let numbers = [
        "9223372036854775807",
        "-9223372036854775808",
        "-2",
        "0",
        "1",
        "x",
        "99999999999999999999",
    ];
    for first in [id.as_str(), "?", "", &long] {
        for number in numbers {
            for name in ["PSYNC", "SYNC"] {
                let mut replica = target.connect();
                replica.send(&[name, first, number]);
                let mut line = String::new();
                let received = replica.0.read_line(&mut line);
                assert!(received.is_ok(), "{name} {number}: {line}");
                drop(replica);
                target.serves();
            }
        }
    }
    for option in [
        "listening-port",
        "ip-address",
        "capa",
        "ack",
        "fack",
        "getack",
        "rdb-only",
        "rdb-filter-only",
        "version",
        "rdb-channel",
        "set-rdb-client-id",
        "set-cluster-node-id",
    ] {
        for value in numbers.into_iter().chain(["", &long]) {
            let mut replica = target.connect();
            replica.send(&["REPLCONF", option, value, "capa"]);
            replica.send(&["REPLCONF", option, value]);
            replica.send(&["PSYNC", "?", "-1"]);
            // The server may have closed the connection by then.
            let _ = replica.try_send(&["REPLCONF", option, value]);
            let _ = replica.try_send(&["REPLCONF", "ACK", value, "FACK", value]);
            let mut line = String::new();
            let _ = replica.0.read_line(&mut line);
            drop(replica);
            target.serves();
        }
    }
    target.witness.wait_for_info("connected_slaves", "0");
    target.serves_within(300 << 20);
}

/// What follows something that no primary sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sequel {
    /// The replica goes on with the stream.
    Continues,
    /// The replica runs no further command of this link.
    Stops,
    /// Either, or this server is no replica any more.
    Any,
}

/// Things that no primary sends: replies, broken requests, and commands that wait or change the connection.
const ODD_STREAM: [(&str, Sequel); 82] = [
    ("+OK\r\n", Sequel::Continues),
    ("-ERR x\r\n", Sequel::Continues),
    (":5\r\n", Sequel::Continues),
    ("$5\r\nhello\r\n", Sequel::Continues),
    ("*-1\r\n", Sequel::Continues),
    ("*0\r\n", Sequel::Continues),
    ("\r\n", Sequel::Continues),
    ("*3\r\n$3\r\nSET\r\n$0\r\n\r\n$0\r\n\r\n", Sequel::Continues),
    ("*1\r\n$0\r\n\r\n", Sequel::Continues),
    ("\0\0\r\n", Sequel::Stops),
    ("*2147483648\r\n", Sequel::Stops),
    ("*1\r\n$99999999999999999999\r\n", Sequel::Stops),
    ("*1\r\n$-1\r\n", Sequel::Stops),
    ("*1\r\n:5\r\n", Sequel::Stops),
    ("\"x\r\n", Sequel::Stops),
    ("MONITOR", Sequel::Continues),
    ("BLPOP none 0", Sequel::Continues),
    ("XREAD BLOCK 0 STREAMS none $", Sequel::Continues),
    ("BLMOVE a b LEFT LEFT 0", Sequel::Continues),
    ("BZMPOP 0 1 none MIN", Sequel::Continues),
    ("WAIT 5 0", Sequel::Continues),
    ("WAITAOF 1 5 0", Sequel::Continues),
    ("SYNC", Sequel::Continues),
    ("PSYNC ? -1", Sequel::Continues),
    ("REPLCONF", Sequel::Continues),
    ("REPLCONF GETACK", Sequel::Continues),
    ("REPLCONF ACK 5", Sequel::Continues),
    ("REPLCONF listening-port 1", Sequel::Continues),
    ("REPLCONF rdb-only 1", Sequel::Continues),
    ("REPLCONF nosuch 1", Sequel::Continues),
    ("CLIENT KILL TYPE normal SKIPME no", Sequel::Any),
    ("CLIENT REPLY OFF", Sequel::Continues),
    ("CLIENT REPLY SKIP", Sequel::Continues),
    ("CLIENT TRACKING ON", Sequel::Continues),
    ("CLIENT NO-EVICT ON", Sequel::Continues),
    ("CLIENT PAUSE 200", Sequel::Continues),
    ("HELLO 3", Sequel::Continues),
    ("HELLO 9", Sequel::Continues),
    ("AUTH wrong", Sequel::Continues),
    ("RESET", Sequel::Continues),
    ("EXEC", Sequel::Continues),
    ("DISCARD", Sequel::Continues),
    ("WATCH k", Sequel::Continues),
    ("SCRIPT DEBUG YES", Sequel::Continues),
    ("SCRIPT DEBUG YES ; EVAL return(1) 0", Sequel::Continues),
    ("SELECT 99999", Sequel::Continues),
    ("SELECT -1", Sequel::Continues),
    ("ASKING", Sequel::Continues),
    ("READONLY", Sequel::Continues),
    ("READWRITE", Sequel::Continues),
    ("FAILOVER", Sequel::Continues),
    ("CLUSTER RESET", Sequel::Continues),
    ("NOSUCH x", Sequel::Continues),
    ("GET", Sequel::Continues),
    ("KEYS *", Sequel::Continues),
    ("INFO", Sequel::Continues),
    ("DEBUG SLEEP 0", Sequel::Continues),
    ("EVAL return(0) 0", Sequel::Continues),
    ("EVAL return(redis.call(\"BLPOP\",\"none\",0)) 0", Sequel::Continues),
    ("MIGRATE 127.0.0.1 1 k 0 10", Sequel::Continues),
    ("RESTORE k 0 x", Sequel::Continues),
    ("FCALL f 0", Sequel::Continues),
    ("FUNCTION LOAD x", Sequel::Continues),
    ("CONFIG SET nosuch 1", Sequel::Continues),
    ("CLUSTER SYNCSLOTS x", Sequel::Continues),
    ("BGSAVE", Sequel::Continues),
    ("MODULE LOAD /none", Sequel::Continues),
    ("SCRIPT KILL", Sequel::Continues),
    ("CLIENT LIST", Sequel::Continues),
    ("SORT none", Sequel::Continues),
    ("PUBLISH c m", Sequel::Continues),
    ("MULTI ; BLPOP none 0 ; EXEC", Sequel::Continues),
    ("MULTI ; MULTI ; EXEC", Sequel::Continues),
    ("QUIT", Sequel::Stops),
    ("MULTI", Sequel::Stops),
    ("SUBSCRIBE c", Sequel::Stops),
    ("MULTI ; SUBSCRIBE c ; EXEC", Sequel::Stops),
    ("REPLICAOF 127.0.0.1 1", Sequel::Stops),
    ("REPLICAOF NO ONE", Sequel::Any),
    ("MULTI ; REPLICAOF NO ONE ; EXEC", Sequel::Any),
    ("CLIENT KILL TYPE primary", Sequel::Any),
    ("MULTI ; CLIENT KILL TYPE primary ; EXEC", Sequel::Any),
];

/// Makes the target a replica of `listener` without data. Returns the link.
fn follow(target: &mut Target, listener: &TcpListener) -> TcpStream {
    let port = listener.local_addr().expect("is bound").port().to_string();
    assert_eq!(target.attacker.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(target.attacker.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    let mut link = accept(listener);
    link.write_all(format!("+FULLRESYNC {ID} 0\r\n${}\r\n", EMPTY.len()).as_bytes())
        .expect("sends");
    link.write_all(EMPTY).expect("sends");
    target.witness.wait_for_info("master_link_status", "up");
    link
}

/// Returns a command as a primary sends it.
fn encoded(words: &[&str]) -> Vec<u8> {
    let arguments: String = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    format!("*{}\r\n{arguments}", words.len()).into_bytes()
}

/// A primary can send anything in its stream.
#[test]
fn a_replica_survives_what_no_primary_sends_in_its_stream() {
    let mut target = Target::start(&["--enable-debug-command", "yes"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let mut continued = None;
    for (index, (odd, sequel)) in ODD_STREAM.iter().enumerate() {
        let mut link = continued.take().unwrap_or_else(|| follow(&mut target, &listener));
        let marker = format!("marker{index}");
        let mut bytes = Vec::new();
        for part in odd.split(" ; ") {
            match part.ends_with('\n') {
                true => bytes.extend_from_slice(part.as_bytes()),
                false => bytes.extend(encoded(&part.split(' ').collect::<Vec<&str>>())),
            }
        }
        bytes.extend(encoded(&["SELECT", "0"]));
        bytes.extend(encoded(&["SET", &marker, "1"]));
        // The replica may close the link before it has read everything.
        let sent = link.write_all(&bytes);
        match sequel {
            Sequel::Continues => {
                sent.unwrap_or_else(|error| panic!("{odd:?}: {error}"));
                wait_until(&format!("the stream goes on behind {odd:?}"), || {
                    target.witness.call(&["EXISTS", &marker]) == "1"
                });
                continued = Some(link);
            }
            Sequel::Stops => {
                link.shutdown(std::net::Shutdown::Write).expect("shuts down");
                assert!(is_closed(&mut link, &mut Vec::new()), "{odd:?}");
                assert_eq!(target.witness.call(&["EXISTS", &marker]), "0", "{odd:?}");
            }
            Sequel::Any => {
                let _ = link.shutdown(std::net::Shutdown::Write);
                assert!(is_closed(&mut link, &mut Vec::new()), "{odd:?}");
            }
        }
        target.serves();
    }
    target.serves_within(300 << 20);
}

/// Returns `true` if a replica acknowledges its dump, `false` if it closes the link.
fn is_acknowledged(link: &mut TcpStream) -> bool {
    let mut byte = [0];
    loop {
        match link.read(&mut byte) {
            // Empty lines are sent while a dump is loaded.
            Ok(1) if byte[0] == b'\n' => {}
            Ok(count) => return count == 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                return false;
            }
        }
    }
}

/// A dump that is damaged, and has no checksum, is loaded or refused. The same payloads that RESTORE refuses can come
/// from a primary.
#[test]
fn damaged_dumps_of_a_primary_do_not_end_a_replica() {
    for load in ["disabled", "swapdb", "flush-before-load"] {
        let mut target = Target::start(&["--repl-diskless-load", load]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("is bound").port().to_string();
        let (mut loaded, mut refused) = (0, 0);
        let body = DUMP.len() - 8;
        for position in (9..body).step_by(5) {
            assert_eq!(target.attacker.call(&["REPLICAOF", "NO", "ONE"]), "OK");
            assert_eq!(target.attacker.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
            let mut dump = DUMP.to_vec();
            dump[body..].fill(0);
            dump[position] = [0xff, 0x81, 0xc3, 0x00, !dump[position]][position % 5];
            if position % 2 == 0 {
                dump[position + 1] ^= 0xff;
            }
            let mut link = accept(&listener);
            link.write_all(format!("+FULLRESYNC {ID} 0\r\n${}\r\n", dump.len()).as_bytes())
                .expect("sends");
            // A replica that refuses the dump early closes the link.
            let _ = link.write_all(&dump);
            match is_acknowledged(&mut link) {
                true => loaded += 1,
                false => refused += 1,
            }
            target.serves();
        }
        assert!(loaded > 0 && refused > 0, "{loaded} were loaded, {refused} refused");
        assert_eq!(target.attacker.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        target.serves_within(300 << 20);
    }
}

/// Lengths in replies of another server are not trusted: MIGRATE reads what the attacker's server sends.
#[test]
fn cve_2021_32762_lengths_in_replies_of_other_servers_take_no_memory() {
    let mut target = Target::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("is bound").port().to_string();
    let endless = format!("+{}", "x".repeat(4 << 20));
    let replies = [
        "*2147483647\r\n",
        "*4294967297\r\n",
        "*-5\r\n",
        "$9223372036854775807\r\n",
        "$-2\r\n",
        "%2147483647\r\n",
        "-\r\n",
        "-",
        "\r\n",
        "\0\r\n",
        ":99999999999999999999\r\n",
        "+OK\r\n-ERR\r\n",
        "",
        &endless,
    ];
    for reply in replies {
        let shown = &reply[..reply.len().min(40)];
        assert_eq!(target.attacker.call(&["MSET", "a", "1", "b", "2"]), "OK");
        target.attacker.send(&[
            "MIGRATE",
            "127.0.0.1",
            &port,
            "",
            "0",
            "20000",
            "REPLACE",
            "AUTH",
            "p",
            "KEYS",
            "a",
            "b",
        ]);
        let (mut stream, _) = listener.accept().expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
        stream.read_exact(&mut [0; 10]).expect("receives");
        // The server may close the connection at once.
        let _ = stream.write_all(reply.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        target.serves();
        let answer = target.attacker.answer();
        let is_error = answer.starts_with("IOERR") || answer.starts_with("ERR");
        assert!(is_error, "{shown:?}: {answer}");
        target.serves_within(200 << 20);
    }
}
