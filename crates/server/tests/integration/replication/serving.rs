//! End-to-end tests of a primary: what replicas receive, also under load.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{UP, Valkey, await_info, command, compare, is_closed_at_once, write_everything};
use crate::harness::client::Client;
use crate::harness::connection::open;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

/// A replica implemented here.
pub struct Replica(pub BufReader<TcpStream>);

impl Replica {
    pub fn connect(port: u16) -> Replica {
        Replica(open(port))
    }

    pub fn send(&mut self, words: &[&str]) {
        self.0.get_mut().write_all(&command(words)).expect("sends");
    }

    /// Returns `true` if nothing but empty lines has arrived.
    pub fn is_waiting(&self) -> bool {
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).expect("sets the mode");
        let mut bytes = [0; 64];
        let peeked = stream.peek(&mut bytes);
        stream.set_nonblocking(false).expect("sets the mode");
        let arrived = match peeked {
            Ok(length) => &bytes[..length],
            Err(error) if error.kind() == ErrorKind::WouldBlock => &[],
            Err(error) => panic!("the link is lost: {error}"),
        };
        self.0.buffer().iter().chain(arrived).all(|&byte| byte == b'\n')
    }

    /// Returns the next line that is not empty.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("receives");
            if line.trim_end() != "" {
                return line.trim_end().to_owned();
            }
        }
    }

    pub fn handshake(&mut self) {
        for words in [
            &["REPLCONF", "listening-port", "1234"][..],
            &["REPLCONF", "ip-address", "10.1.2.3"],
            &["REPLCONF", "capa", "eof", "capa", "psync2"],
            &["REPLCONF", "version", "9.1.2"],
        ] {
            self.send(words);
            assert_eq!(self.line(), "+OK");
        }
    }

    /// Reads a whole RDB, whose header selects how its end is found.
    pub fn take_dump(&mut self) -> Vec<u8> {
        let head = self.line();
        let head = head.strip_prefix('$').expect("a dump");
        let Some(mark) = head.strip_prefix("EOF:") else {
            let mut dump = vec![0; head.parse().expect("a size")];
            self.0.read_exact(&mut dump).expect("receives");
            return dump;
        };
        let mut dump = Vec::new();
        while !dump.ends_with(mark.as_bytes()) {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("receives");
            dump.push(byte[0]);
        }
        dump.truncate(dump.len() - mark.len());
        dump
    }

    /// Returns the next command of the stream except PING and REPLCONF GETACK.
    pub fn command(&mut self) -> String {
        loop {
            let (words, _) = self.next_command().expect("the link is open");
            if words[0] != "PING" && words[0] != "REPLCONF" {
                return words.join(" ");
            }
        }
    }

    /// Returns the next command of the stream and its size in bytes, or `None` at the end of the stream.
    fn next_command(&mut self) -> Option<(Vec<String>, i64)> {
        let mut bytes = 0;
        let count = self.number('*', &mut bytes)?;
        let words = (0..count).map(|_| {
            let mut word = vec![0; self.number('$', &mut bytes)? + 2];
            self.0.read_exact(&mut word).expect("receives");
            bytes += word.len() as i64;
            word.truncate(word.len() - 2);
            Some(String::from_utf8_lossy(&word).into_owned())
        });
        let words: Option<Vec<String>> = words.collect();
        words.map(|words| (words, bytes))
    }

    /// Returns the number in the next line, which begins with `mark`, and adds the size of the line to `bytes`.
    fn number(&mut self, mark: char, bytes: &mut i64) -> Option<usize> {
        let mut line = String::new();
        loop {
            line.clear();
            let size = self.0.read_line(&mut line).unwrap_or(0);
            // A keep-alive newline is not a part of the stream.
            if line != "\n" {
                *bytes += size as i64;
                break;
            }
        }
        let number = line.trim_end().strip_prefix(mark)?;
        Some(number.parse().expect("a number"))
    }

    /// Acknowledges each GETACK with the offset in front of it, as Valkey does, until the stream ends. It begins at
    /// `offset`.
    fn acknowledge_requests(&mut self, mut offset: i64) {
        while let Some((words, bytes)) = self.next_command() {
            if words[0] == "REPLCONF" {
                self.send(&["REPLCONF", "ACK", &offset.to_string()]);
            }
            offset += bytes;
        }
    }
}

/// Returns the id and the offset of `+FULLRESYNC id offset`.
fn full_resync_position(line: &str) -> (String, i64) {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[0], "+FULLRESYNC", "{line}");
    (words[1].to_owned(), words[2].parse().expect("an offset"))
}

pub const AT_ONCE: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];

#[test]
fn a_replica_gets_a_dump_and_then_every_write_in_order() {
    for diskless in ["yes", "no"] {
        let arguments = [&AT_ONCE[..], &["--repl-diskless-sync", diskless]].concat();
        let server = Server::start(&arguments);
        let mut client = Client::connect(server.port);
        client.call(&["SET", "before", "1"]);
        let mut replica = Replica::connect(server.port);
        replica.handshake();
        replica.send(&["PSYNC", "?", "-1"]);
        let (id, offset) = full_resync_position(&replica.line());
        let dump = replica.take_dump();
        assert!(dump.starts_with(b"VALKEY") && dump.windows(6).any(|bytes| bytes == b"before"));
        for field in ["total_net_repl_output_bytes", "total_net_output_bytes"] {
            // The end of the dump may arrive here before the server has counted it.
            wait_until(&format!("{field} counts the dump"), || {
                let sent: usize = client.info(field).parse().expect("a number");
                sent >= dump.len()
            });
        }
        let start = Instant::now();
        while !client.info("slave0").starts_with("ip=10.1.2.3,port=1234,state=online,") {
            assert!(start.elapsed() < PATIENCE);
        }
        replica.send(&["REPLCONF", "ACK", &offset.to_string()]);
        client.call(&["SELECT", "2"]);
        client.call(&["SET", "key", "1"]);
        client.call(&["SET", "key", "2", "PX", "100000"]);
        client.call(&["MULTI"]);
        client.call(&["INCR", "counter"]);
        client.call(&["INCR", "counter"]);
        client.call(&["EXEC"]);
        assert_eq!(replica.command(), "SELECT 2");
        assert_eq!(replica.command(), "SET key 1");
        let passing = replica.command();
        assert!(passing.starts_with("SET key 2 PXAT "), "{passing}");
        let rest: Vec<String> = (0..4).map(|_| replica.command()).collect();
        assert_eq!(rest, ["MULTI", "INCR counter", "INCR counter", "EXEC"]);
        assert_eq!(client.info("sync_full"), "1");
        // The link breaks and continues.
        drop(replica);
        await_info(&mut client, "connected_slaves:0");
        client.call(&["SET", "missed", "1"]);
        let end: i64 = client.info("master_repl_offset").parse().expect("an offset");
        let mut replica = Replica::connect(server.port);
        replica.handshake();
        let missed = command(&["SET", "missed", "1"]).len() as i64;
        replica.send(&["PSYNC", &id, &(end - missed + 1).to_string()]);
        assert_eq!(replica.line(), format!("+CONTINUE {id}"));
        assert_eq!(replica.command(), "SET missed 1");
        assert_eq!(client.info("sync_partial_ok"), "1");
        // A replica with another history, or with an offset beyond the end, gets a full sync.
        for (id, offset) in [("x".repeat(40), 1), (id, end + 1000)] {
            let mut replica = Replica::connect(server.port);
            replica.handshake();
            replica.send(&["PSYNC", &id, &offset.to_string()]);
            full_resync_position(&replica.line());
        }
        assert_eq!(client.info("sync_partial_err"), "2");
    }
}

#[test]
fn a_replica_counts_no_more_once_it_is_killed() {
    let server = Server::start(&AT_ONCE);
    let mut client = Client::connect(server.port);
    for round in 0..20 {
        let mut replica = Replica::connect(server.port);
        replica.handshake();
        replica.send(&["PSYNC", "?", "-1"]);
        let (_, offset) = full_resync_position(&replica.line());
        replica.take_dump();
        replica.send(&["REPLCONF", "ACK", &offset.to_string()]);
        wait_until("the replica is online", || client.call(&["WAIT", "1", "10"]) == "1");
        client.send(&["CLIENT", "KILL", "TYPE", "replica"]);
        client.send(&["INFO", "replication"]);
        client.send(&["WAIT", "0", "1"]);
        client.send(&["ROLE"]);
        assert_eq!(client.answer(), "1", "round {round}");
        let info = client.answer();
        assert!(info.contains("connected_slaves:0"), "round {round}: {info}");
        assert_eq!(client.answer(), "0", "round {round}");
        assert!(client.answer().ends_with("())"), "round {round}");
    }
}

#[test]
fn a_shorter_timeout_disconnects_a_replica_that_accepts_no_more_of_its_dump() {
    let arguments = ["--repl-timeout", "100000", "--rdbcompression", "no"];
    let server = Server::start(&[&AT_ONCE[..], &arguments].concat());
    let mut client = Client::connect(server.port);
    // More than the buffers of a socket hold.
    assert_eq!(client.call(&["DEBUG", "POPULATE", "400", "key", "100000"]), "OK");
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    full_resync_position(&replica.line());
    await_info(&mut client, "rdb_bgsave_in_progress:1");
    assert_eq!(client.call(&["CONFIG", "SET", "repl-timeout", "1"]), "OK");
    await_info(&mut client, "connected_slaves:0");
}

/// A test that waits until a replica has all writes compares the offsets of both sides. The log writer appends writes
/// to the backlog after they were replied to, and INFO used to show an offset without them.
#[test]
fn the_reported_offset_covers_all_answered_writes() {
    let server = Server::start(&[&AT_ONCE[..], &["--io-threads", "4"]].concat());
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    full_resync_position(&replica.line());
    replica.take_dump();
    // Without a replica, the stream contains no REPLCONF GETACK or PING.
    drop(replica);
    await_info(&mut clients[0], "connected_slaves:0");
    clients[0].call(&["SET", "key", "0000"]);
    let offset = |client: &mut Client| -> i64 { client.info("master_repl_offset").parse().expect("an offset") };
    let start = offset(&mut clients[0]);
    let write_bytes = command(&["SET", "key", "0000"]).len() as i64;
    for round in 1..=1000 {
        let writer = round % clients.len();
        clients[writer].call(&["SET", "key", &format!("{round:04}")]);
        let told = offset(&mut clients[(round + 1) % 4]);
        assert_eq!(told, start + write_bytes * round as i64, "round {round}");
    }
}

/// A transaction disconnects the replica and writes more than the backlog holds. The replica connects again while the
/// log writer appends these writes.
#[test]
fn a_backlog_that_a_transaction_has_overrun_resumes_no_replica() {
    let server = Server::start(&[&AT_ONCE[..], &["--io-threads", "4", "--repl-backlog-size", "16384"]].concat());
    let mut client = Client::connect(server.port);
    let value = "A".repeat(16384);
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    for round in 0..30 {
        let (id, offset) = full_resync_position(&replica.line());
        replica.take_dump();
        replica.send(&["REPLCONF", "ACK", &offset.to_string()]);
        wait_until("the replica is online", || client.call(&["WAIT", "1", "10"]) == "1");
        let mut again = Replica::connect(server.port);
        again.handshake();
        let reconnection = thread::spawn(move || {
            // The link ends amid the transaction.
            let _ = replica.0.read_to_end(&mut Vec::new());
            again.send(&["PSYNC", &id, &(offset + 1).to_string()]);
            again
        });
        client.call(&["MULTI"]);
        client.call(&["CLIENT", "KILL", "TYPE", "replica"]);
        for key in 0..20 {
            client.call(&["SET", &format!("key{key}"), &value]);
        }
        client.call(&["EXEC"]);
        replica = reconnection.join().expect("reconnects");
        assert_eq!(client.info("sync_partial_ok"), "0", "round {round}");
    }
}

#[test]
fn sync_and_dumps_without_a_stream() {
    let server = Server::start(&AT_ONCE);
    let mut client = Client::connect(server.port);
    client.call(&["SET", "key", "1"]);
    // The old protocol: the reply does not state an offset.
    let mut replica = Replica::connect(server.port);
    replica.0.get_mut().write_all(b"SYNC\r\n").expect("sends");
    assert!(replica.take_dump().starts_with(b"VALKEY"));
    client.call(&["SET", "key", "2"]);
    assert_eq!(replica.command(), "SELECT 0");
    assert_eq!(replica.command(), "SET key 2");
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["REPLCONF", "rdb-only", "1"]);
    assert_eq!(replica.line(), "+OK");
    replica.send(&["PSYNC", "?", "-1"]);
    full_resync_position(&replica.line());
    replica.take_dump();
    let mut rest = Vec::new();
    replica.0.read_to_end(&mut rest).expect("is closed");
    assert!(rest.is_empty());
}

#[test]
fn clients_wait_for_replicas_and_writes_may_need_some() {
    let needed = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1000"];
    let server = Server::start(&[&AT_ONCE[..], &needed].concat());
    let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
    let lacking = "NOREPLICAS Not enough good replicas to write.";
    assert_eq!(client.call(&["SET", "key", "1"]), lacking);
    assert_eq!(
        client
            .call(&["EVAL", "return redis.call('SET', 'key', 1)", "0"])
            .split(' ')
            .next(),
        Some("NOREPLICAS")
    );
    assert_eq!(client.call(&["GET", "key"]), "-");
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    let (_, offset) = full_resync_position(&replica.line());
    replica.take_dump();
    replica.send(&["REPLCONF", "ACK", &offset.to_string()]);
    await_info(&mut other, "min_slaves_good_slaves:1");
    let start = Instant::now();
    while client.call(&["SET", "key", "1"]) == lacking {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.call(&["WAIT", "1", "50"]), "0", "it has said nothing");
    client.send(&["WAIT", "1", "0"]);
    await_info(&mut other, "blocked_clients:1");
    let end = other.info("master_repl_offset");
    replica.send(&["REPLCONF", "ACK", &end]);
    assert_eq!(client.answer(), "1");
    assert_eq!(client.call(&["WAIT", "1", "0"]), "1");
    assert_eq!(client.call(&["WAIT", "2", "50"]), "1");
    assert_eq!(client.call(&["WAITAOF", "0", "1", "50"]), "(0 0)");
    let mut reader = Client::connect(server.port);
    assert_eq!(
        reader.call(&["WAITAOF", "0", "1", "50"]),
        "(0 1)",
        "it has written nothing"
    );
    assert_eq!(reader.call(&["WAITAOF", "0", "2", "50"]), "(0 1)");
    replica.send(&["REPLCONF", "ACK", &end, "FACK", &end]);
    let role = client.call(&["ROLE"]);
    assert!(
        role.starts_with("(master ") && role.ends_with(&format!("((10.1.2.3 1234 {end})))")),
        "{role}"
    );
    assert_eq!(client.call(&["WAITAOF", "0", "1", "0"]), "(0 1)");
    assert_eq!(other.call(&["CLIENT", "KILL", "TYPE", "replica"]), "1");
    await_info(&mut other, "connected_slaves:0");
    let start = Instant::now();
    while client.call(&["SET", "key", "2"]) != lacking {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
}

/// A write and the request for acknowledgements that WAIT sends behind it come to the log together.
#[test]
fn a_write_needs_no_acknowledgement_of_the_request_behind_it() {
    const WRITES: usize = 300;
    let server = Server::start(&[&AT_ONCE[..], &["--repl-ping-replica-period", "3600"]].concat());
    let mut client = Client::connect(server.port);
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    let (_, offset) = full_resync_position(&replica.line());
    replica.take_dump();
    assert_eq!(client.call(&["SET", "key", "first"]), "OK");
    // An acknowledgement that comes before the end of the dump counts for nothing.
    wait_until("the stream begins", || {
        replica.send(&["REPLCONF", "ACK", &offset.to_string()]);
        !replica.is_waiting()
    });
    let acknowledging = thread::spawn(move || replica.acknowledge_requests(offset));
    for round in 0..WRITES {
        client.send(&["SET", "key", &round.to_string()]);
        client.send(&["WAIT", "1", "400"]);
        assert_eq!(client.answer(), "OK");
        assert_eq!(client.answer(), "1", "round {round}");
    }
    drop(server);
    acknowledging.join().expect("the replica reads until the stream ends");
}

/// Sends random writes of one client: some are propagated in a different form, some not at all, some with other
/// effects.
fn write_randomly(port: u16, seed: u64, stop: &AtomicBool) {
    let mut client = Client::connect(port);
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let key = |random: &mut fastrand::Rng, kind: &str| format!("{kind}:{}", random.u32(..40));
        let number = random.u32(..1000).to_string();
        let (one, two) = (random.u32(..50).to_string(), random.u32(..50).to_string());
        let words: Vec<String> = match random.u32(..22) {
            0 => vec!["SET".into(), key(&mut random, "s"), number],
            1 => vec!["SET".into(), key(&mut random, "s"), number, "PX".into(), one],
            2 => vec!["INCRBYFLOAT".into(), key(&mut random, "f"), "0.1".into()],
            3 => vec!["SPOP".into(), key(&mut random, "set"), "2".into()],
            4 => vec!["SADD".into(), key(&mut random, "set"), number, one, two],
            5 => vec!["LPUSH".into(), key(&mut random, "l"), number, one],
            6 => vec![
                "LMOVE".into(),
                key(&mut random, "l"),
                key(&mut random, "l"),
                "LEFT".into(),
                "RIGHT".into(),
            ],
            7 => vec!["HSET".into(), key(&mut random, "h"), one, number],
            8 => vec!["HINCRBYFLOAT".into(), key(&mut random, "h"), two, "1.5".into()],
            9 => vec!["ZADD".into(), key(&mut random, "z"), number, one],
            10 => vec!["ZPOPMIN".into(), key(&mut random, "z")],
            11 => vec![
                "XADD".into(),
                key(&mut random, "x"),
                "MAXLEN".into(),
                "~".into(),
                "50".into(),
                "*".into(),
                one,
                two,
            ],
            12 => vec!["PEXPIRE".into(), key(&mut random, "h"), number],
            13 => vec!["GETEX".into(), key(&mut random, "s"), "PX".into(), number],
            14 => vec![
                "DEL".into(),
                key(&mut random, "s"),
                key(&mut random, "l"),
                key(&mut random, "z"),
            ],
            15 => vec![
                "HPEXPIRE".into(),
                key(&mut random, "h"),
                number,
                "FIELDS".into(),
                "2".into(),
                one,
                two,
            ],
            16 => vec!["RENAME".into(), key(&mut random, "l"), key(&mut random, "l")],
            17 => vec![
                "SUNIONSTORE".into(),
                key(&mut random, "set"),
                key(&mut random, "set"),
                key(&mut random, "set"),
            ],
            18 => vec![
                "EVAL".into(),
                "redis.call('INCR', KEYS[1]) return redis.call('LPUSH', KEYS[2], ARGV[1])".into(),
                "2".into(),
                key(&mut random, "n"),
                key(&mut random, "l"),
                number,
            ],
            19 => vec!["BLPOP".into(), key(&mut random, "l"), "0.01".into()],
            20 => vec![
                "COPY".into(),
                key(&mut random, "h"),
                key(&mut random, "h"),
                "REPLACE".into(),
            ],
            _ => {
                client.call(&["MULTI"]);
                client.call(&["INCR", &key(&mut random, "n")]);
                client.call(&["SADD", &key(&mut random, "set"), &number]);
                vec!["EXEC".into()]
            }
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        client.call(&words);
    }
}

/// Runs `during` while four clients write.
pub fn under_load(port: u16, during: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..4 {
            let stop = &stop;
            scope.spawn(move || write_randomly(port, seed, stop));
        }
        during();
        stop.store(true, Ordering::Relaxed);
    });
}

/// Removes the expiry times of keys that are about to expire, so that the data of both sides becomes stable.
pub fn settle(primary: &mut Client) {
    thread::sleep(Duration::from_millis(1200));
    for kind in ["s", "h"] {
        for number in 0..40 {
            primary.call(&["PERSIST", &format!("{kind}:{number}")]);
        }
    }
}

#[test]
fn replicas_converge_after_reconnects_under_load() {
    chain_converges_after_reconnects_under_load(|| None);
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn a_valkey_at_the_end_of_a_chain_converges_after_reconnects_under_load() {
    chain_converges_after_reconnects_under_load(|| Some(Valkey::start(&[])));
}

/// Lets a replica of a primary reconnect several times. `start_last` starts a replica of that replica.
fn chain_converges_after_reconnects_under_load(start_last: impl Fn() -> Option<Valkey>) {
    for diskless in ["yes", "no"] {
        let arguments = [&AT_ONCE[..], &["--io-threads", "4", "--repl-diskless-sync", diskless]].concat();
        let server = Server::start(&arguments);
        let chained = Server::start(&AT_ONCE);
        let (mut primary, mut middle) = (Client::connect(server.port), Client::connect(chained.port));
        write_everything(&mut primary, 1);
        let valkey = start_last();
        let mut last = valkey.as_ref().map(|valkey| Client::connect(valkey.port));
        under_load(server.port, || {
            thread::sleep(Duration::from_millis(200));
            middle.call(&["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
            await_info(&mut middle, UP);
            if let Some(last) = &mut last {
                last.call(&["REPLICAOF", "127.0.0.1", &chained.port.to_string()]);
                await_info(last, UP);
            }
            for round in 1..=3 {
                thread::sleep(Duration::from_millis(150));
                assert_eq!(middle.call(&["CLIENT", "KILL", "TYPE", "primary"]), "1");
                await_info(&mut primary, &format!("sync_partial_ok:{round}"));
                await_info(&mut middle, UP);
            }
        });
        settle(&mut primary);
        compare(&mut primary, &mut middle);
        assert_eq!(primary.info("sync_full"), "1");
        assert_eq!(primary.info("sync_partial_ok"), "3");
        if let Some(last) = &mut last {
            await_info(last, UP);
            compare(&mut primary, last);
            // It continues as a replica of the first server, whose stream it has.
            last.call(&["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
            await_info(last, UP);
            primary.call(&["SET", "behind", "everything"]);
            compare(&mut primary, last);
            assert_eq!(primary.info("sync_partial_ok"), "4");
        }
    }
}

#[test]
fn a_primary_hands_over_its_role_and_becomes_a_replica() {
    let other = Server::start(&AT_ONCE);
    hands_over_its_role(other.port);
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn a_primary_hands_over_its_role_to_a_valkey() {
    let valkey = Valkey::start(&[]);
    hands_over_its_role(valkey.port);
}

/// Lets a primary hand over its role to the server on `port` and back, and then fail to do so.
fn hands_over_its_role(port: u16) {
    let server = Server::start(&AT_ONCE);
    let mut primary = Client::connect(server.port);
    assert_eq!(primary.call(&["FAILOVER"]), "ERR FAILOVER requires connected replicas.");
    assert_eq!(primary.call(&["FAILOVER", "ABORT"]), "ERR No failover in progress.");
    let mut replica = Client::connect(port);
    replica.call(&["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
    await_info(&mut replica, UP);
    primary.call(&["SET", "key", &port.to_string()]);
    assert_eq!(primary.call(&["WAIT", "1", "0"]), "1");
    let port = port.to_string();
    assert_eq!(
        primary.call(&["FAILOVER", "TO", "127.0.0.1", "1"]),
        "ERR FAILOVER target HOST and PORT is not a replica."
    );
    assert_eq!(
        primary.call(&["FAILOVER", "TO", "127.0.0.1", &port, "TIMEOUT", "60000"]),
        "OK"
    );
    await_info(&mut replica, "role:master");
    await_info(&mut primary, "role:slave");
    await_info(&mut primary, UP);
    assert_eq!(primary.info("master_failover_state"), "no-failover");
    assert_eq!(replica.info("sync_partial_ok"), "1");
    assert_eq!(replica.call(&["SET", "behind", "it"]), "OK");
    compare(&mut replica, &mut primary);
    // And back, with explicit commands.
    replica.call(&["REPLICAOF", "NO", "ONE"]);
    primary.call(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(primary.call(&["SET", "key", "again"]), "OK");
    // This replica never catches up, so the failover cannot complete.
    let mut silent = Replica::connect(server.port);
    silent.handshake();
    silent.send(&["PSYNC", "?", "-1"]);
    let (_, offset) = full_resync_position(&silent.line());
    silent.take_dump();
    silent.send(&["REPLCONF", "ACK", &(offset - 1).to_string()]);
    await_info(&mut primary, "connected_slaves:1");
    let start = Instant::now();
    while primary.call(&["FAILOVER", "TO", "10.1.2.3", "1234", "TIMEOUT", "1000000"]) != "OK" {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        primary.call(&["REPLICAOF", "NO", "ONE"]),
        "ERR REPLICAOF not allowed while failing over."
    );
    assert_eq!(primary.call(&["FAILOVER"]), "ERR FAILOVER already in progress.");
    assert_eq!(primary.call(&["FAILOVER", "ABORT"]), "OK");
    await_info(&mut primary, "master_failover_state:no-failover");
    assert_eq!(
        primary.call(&["FAILOVER", "TO", "10.1.2.3", "1234", "TIMEOUT", "1000"]),
        "OK"
    );
    await_info(&mut primary, "master_failover_state:no-failover");
    assert_eq!(primary.call(&["SET", "key", "still"]), "OK");
}

/// Commands after which a primary disconnects its replicas.
const DISCONNECTING: [&[&[&str]]; 2] = [
    &[&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]],
    &[&["CLIENT", "KILL", "TYPE", "replica"]],
];

#[test]
fn a_replica_that_is_being_disconnected_is_no_target_of_a_failover() {
    for threads in ["2", "8"] {
        let arguments = [
            &AT_ONCE[..],
            &["--io-threads", threads, "--io-threads-always-active", "yes"],
        ]
        .concat();
        let (server, other) = (Server::start(&arguments), Server::start(&AT_ONCE));
        let (mut primary, mut replica) = (Client::connect(server.port), Client::connect(other.port));
        replica.call(&["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
        for round in 0..10 {
            let start = Instant::now();
            while !primary.call(&["ROLE"]).contains("127.0.0.1") {
                assert!(
                    start.elapsed() < PATIENCE,
                    "round {round}: the replica does not come back"
                );
                thread::sleep(Duration::from_millis(10));
            }
            primary.call(&["MULTI"]);
            for command in DISCONNECTING[round % DISCONNECTING.len()] {
                assert_eq!(primary.call(command), "QUEUED");
            }
            // A failover would wait for a replica that cannot come back before it ends.
            for command in ["FAILOVER", "ROLE"] {
                assert_eq!(primary.call(&[command]), "QUEUED");
            }
            let replies = primary.call(&["EXEC"]);
            assert!(
                replies.contains("ERR FAILOVER requires connected replicas."),
                "{threads} threads, round {round}: {replies}"
            );
            let role = replies.split("(master ").nth(1).expect("ROLE is answered");
            assert!(!role.contains("127.0.0.1"), "{replies}");
            assert_eq!(primary.call(&["SET", "round", &round.to_string()]), "OK");
        }
    }
}

#[test]
fn blocked_clients_wait_until_a_failover_succeeds_or_is_aborted() {
    let log = std::env::temp_dir().join(format!("weft-failover-{}.log", std::process::id()));
    let logfile = log.display().to_string();
    let server = Server::start(&[&AT_ONCE[..], &["--logfile", &logfile]].concat());
    let other = Server::start(&AT_ONCE);
    let (mut primary, mut replica) = (Client::connect(server.port), Client::connect(other.port));
    let port = other.port.to_string();
    replica.call(&["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
    await_info(&mut replica, UP);
    for is_aborted in [true, false] {
        wait_until("the replica is online", || {
            primary.call(&["INFO", "replication"]).contains("state=online")
        });
        let mut blocked = Client::connect(server.port);
        blocked.send(&["BLPOP", "list", "0"]);
        await_info(&mut primary, "blocked_clients:1");
        other.signal(Signal::SIGSTOP);
        let request = ["FAILOVER", "TO", "127.0.0.1", &port, "TIMEOUT", "100", "FORCE"];
        assert_eq!(primary.call(&["SET", "key", "not acknowledged"]), "OK");
        assert_eq!(primary.call(&request), "OK");
        await_info(&mut primary, "master_failover_state:failover-in-progress");
        assert_eq!(primary.info("blocked_clients"), "1");
        assert!(blocked.is_waiting());
        if is_aborted {
            assert_eq!(primary.call(&["FAILOVER", "ABORT"]), "OK");
            assert_eq!(primary.call(&["RPUSH", "list", "element"]), "1");
            assert_eq!(blocked.answer(), "(list element)");
            other.signal(Signal::SIGCONT);
        } else {
            other.signal(Signal::SIGCONT);
            await_info(&mut primary, "master_failover_state:no-failover");
            assert!(blocked.answer().starts_with("UNBLOCKED "));
        }
    }
    let lines = std::fs::read_to_string(&log).expect("reads the log");
    std::fs::remove_file(&log).expect("removes the log");
    assert_eq!(lines.matches("time out exceeded, failing over.").count(), 2, "{lines}");
}

#[test]
fn a_replica_that_would_get_a_reply_is_disconnected() {
    let server = Server::start(&AT_ONCE);
    let mut client = Client::connect(server.port);
    for words in [
        &["PING"][..],
        &["GET", "key"],
        &["SLOWLOG", "GET"],
        &["NOSUCH", "COMMAND"],
    ] {
        let mut replica = Replica::connect(server.port);
        replica.send(&["SYNC"]);
        replica.take_dump();
        await_info(&mut client, "connected_slaves:1");
        replica.send(words);
        assert!(is_closed_at_once(&mut replica.0), "{words:?}");
        await_info(&mut client, "connected_slaves:0");
    }
}

/// Replicas send short commands. A peer that goes on for ever with one must not fill the memory.
#[test]
fn a_replica_with_an_endless_request_is_closed() {
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    stream
        .write_all(b"REPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n")
        .expect("sends");
    let mut client = Client::connect(server.port);
    await_info(&mut client, "connected_slaves:1");
    let argument = format!("${}\r\n{}\r\n", 60_000, "x".repeat(60_000));
    let mut is_refused = stream.write_all(b"*1000000\r\n").is_err();
    for _ in 0..2000 {
        is_refused |= stream.write_all(argument.as_bytes()).is_err();
        if is_refused {
            break;
        }
    }
    assert!(is_refused, "it has received 120 MB of one request");
    await_info(&mut client, "connected_slaves:0");
}
