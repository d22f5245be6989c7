//! End-to-end tests of replication: with a primary and a replica implemented here, whose messages are those of Valkey
//! 9.1.2, and with real servers where they are installed.

mod applying;
mod beside_scripts;
mod dual;
mod dump_files;
mod lasting;
mod local_expiry;
mod mishaps;
mod older;
mod serving;
mod users;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::valkey::Valkey;

/// An RDB file that Valkey wrote.
const DUMP: &[u8] = include_bytes!("../../../src/persistence/rdb_file/tests/valkey.rdb");
/// The line of INFO that shows that a replica's link is up.
const UP: &str = "master_link_status:up";

const FIRST_ID: &str = "1111111111111111111111111111111111111111";
const SECOND_ID: &str = "2222222222222222222222222222222222222222";

/// A primary whose messages the test chooses.
struct Primary {
    listener: TcpListener,
}

/// The primary's link to a replica.
struct Link(BufReader<TcpStream>);

impl Primary {
    fn new() -> Primary {
        Primary {
            listener: TcpListener::bind("127.0.0.1:0").expect("binds"),
        }
    }

    fn port(&self) -> String {
        self.listener.local_addr().expect("is bound").port().to_string()
    }

    /// Accepts the next replica and answers its handshake. Returns the link and the PSYNC request.
    fn accept(&self) -> (Link, Vec<String>) {
        let (stream, _) = self.listener.accept().expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
        let mut link = Link(BufReader::new(stream));
        loop {
            let request = link.request();
            match request[0].as_str() {
                "PING" => link.send(b"+PONG\r\n"),
                "PSYNC" => return (link, request),
                _ => link.send(b"+OK\r\n"),
            }
        }
    }
}

impl Link {
    fn request(&mut self) -> Vec<String> {
        let mut line = String::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).expect("receives");
            // A keep-alive newline.
            if line != "\n" {
                break;
            }
        }
        let words = line.trim_end().trim_start_matches('*').parse().expect("a request");
        let mut word = || {
            let mut size = String::new();
            self.0.read_line(&mut size).expect("receives");
            let size: usize = size.trim_end().trim_start_matches('$').parse().expect("a size");
            let mut bytes = vec![0; size + 2];
            self.0.read_exact(&mut bytes).expect("receives");
            bytes.truncate(size);
            String::from_utf8(bytes).expect("text")
        };
        (0..words).map(|_: usize| word()).collect()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("sends");
    }

    /// Answers PSYNC with a full sync, at offset 0.
    fn send_full_sync(&mut self, dump: &[u8]) {
        self.send(format!("+FULLRESYNC {FIRST_ID} 0\r\n${}\r\n", dump.len()).as_bytes());
        self.send(dump);
    }

    /// Sends a command of the stream and returns its size in bytes.
    fn command(&mut self, words: &[&str]) -> i64 {
        let bytes = command(words);
        self.send(&bytes);
        bytes.len() as i64
    }

    /// Waits until the replica acknowledges `offset`.
    fn await_acknowledged(&mut self, offset: i64) {
        loop {
            let request = self.request();
            assert_eq!(request[..2], ["REPLCONF", "ACK"]);
            let acknowledged: i64 = request[2].parse().expect("an offset");
            assert!(acknowledged <= offset, "{acknowledged} is beyond {offset}");
            if acknowledged == offset {
                return;
            }
        }
    }
}

/// Starts a primary and a server that replicates it.
fn following() -> (Primary, Server) {
    let primary = Primary::new();
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    (primary, replica)
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// Returns `true` if the other side closes the connection, whatever it sends before. A timeout means that it is open.
fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Returns `true` if the other side closes the connection without sending anything.
fn is_closed_at_once(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Waits until INFO contains a line.
fn await_info(client: &mut Client, line: &str) {
    let start = Instant::now();
    while !client.call(&["INFO"]).lines().any(|found| found == line) {
        assert!(start.elapsed() < PATIENCE, "INFO never says {line}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_replica_takes_over_a_dump_and_follows_the_stream_in_order() {
    for (load, with_mark) in [
        ("disabled", false),
        ("disabled", true),
        ("on-empty-db", true),
        ("swapdb", false),
        ("flush-before-load", true),
    ] {
        let primary = Primary::new();
        let follows = format!("127.0.0.1 {}", primary.port());
        let replica = Server::start(&[
            "--replicaof",
            &follows,
            "--repl-diskless-load",
            load,
            "--primaryauth",
            "word",
        ]);
        let mut client = Client::connect(replica.port);
        let (mut link, asked) = primary.accept();
        assert_eq!(asked, ["PSYNC", "?", "-1"]);
        link.send(format!("\n+FULLRESYNC {FIRST_ID} 1000\r\n\n").as_bytes());
        if with_mark {
            let mark = "m".repeat(40);
            link.send(format!("$EOF:{mark}\r\n").as_bytes());
            link.send(DUMP);
            link.send(mark.as_bytes());
        } else {
            link.send(format!("${}\r\n", DUMP.len()).as_bytes());
            link.send(DUMP);
        }
        link.await_acknowledged(1000);
        await_info(&mut client, UP);
        assert_ne!(client.call(&["DBSIZE"]), "0", "{load}");
        let mut offset = 1000;
        offset += link.command(&["SELECT", "9"]);
        offset += link.command(&["SET", "counter", "1"]);
        offset += link.command(&["MULTI"]);
        offset += link.command(&["INCRBY", "counter", "41"]);
        offset += link.command(&["RPUSH", "list", "a", "b"]);
        offset += link.command(&["EXEC"]);
        offset += link.command(&["REPLCONF", "GETACK", "*"]);
        link.await_acknowledged(offset);
        client.call(&["SELECT", "9"]);
        assert_eq!(client.call(&["GET", "counter"]), "42");
        assert_eq!(client.call(&["LRANGE", "list", "0", "-1"]), "(a b)");
        assert_eq!(
            client.call(&["ROLE"]),
            format!("(slave 127.0.0.1 {} connected {offset})", primary.port())
        );
        assert_eq!(
            client.call(&["SET", "counter", "1"]),
            "READONLY You can't write against a read only replica."
        );
        assert_eq!(client.info("master_replid"), FIRST_ID);
    }
}

#[test]
fn a_link_that_breaks_in_a_transaction_continues_before_it() {
    let (primary, replica) = following();
    let mut client = Client::connect(replica.port);
    let (mut link, _) = primary.accept();
    link.send_full_sync(DUMP);
    let mut offset = link.command(&["SELECT", "9"]);
    offset += link.command(&["SET", "counter", "1"]);
    link.command(&["MULTI"]);
    link.command(&["INCR", "counter"]);
    link.send(b"*2\r\n$4\r\nINCR\r\n$7\r\ncoun");
    link.await_acknowledged(offset);
    drop(link);
    let (mut link, asked) = primary.accept();
    assert_eq!(asked, ["PSYNC", FIRST_ID, (offset + 1).to_string().as_str()]);
    link.send(format!("+CONTINUE {SECOND_ID}\r\n").as_bytes());
    let cut = offset;
    offset += link.command(&["MULTI"]);
    offset += link.command(&["INCR", "counter"]);
    offset += link.command(&["INCR", "counter"]);
    offset += link.command(&["EXEC"]);
    link.await_acknowledged(offset);
    client.call(&["SELECT", "9"]);
    assert_eq!(client.call(&["GET", "counter"]), "3");
    assert_eq!(client.info("master_replid"), SECOND_ID);
    assert_eq!(client.info("master_replid2"), FIRST_ID);
    assert_eq!(client.info("second_repl_offset"), (cut + 1).to_string());
    // After the promotion the id of the history becomes the second id.
    assert_eq!(client.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(client.info("master_replid2"), SECOND_ID);
    assert_eq!(client.call(&["INCR", "counter"]), "4");
}

#[test]
fn expired_keys_of_a_replica_are_invisible_and_stay() {
    let (primary, replica) = following();
    let mut client = Client::connect(replica.port);
    let (mut link, _) = primary.accept();
    link.send_full_sync(DUMP);
    let mut offset = link.command(&["SELECT", "9"]);
    offset += link.command(&["SET", "passing", "1", "PXAT", "1000"]);
    offset += link.command(&["HSET", "hash", "field", "5"]);
    offset += link.command(&["HPEXPIREAT", "hash", "1000", "FIELDS", "1", "field"]);
    link.await_acknowledged(offset);
    client.call(&["SELECT", "9"]);
    assert_eq!(client.call(&["GET", "passing"]), "-");
    assert_eq!(client.call(&["HGET", "hash", "field"]), "-");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(client.call(&["DBSIZE"]), "2", "nobody but the primary deletes them");
    // To the primary these keys and fields still exist.
    offset += link.command(&["INCR", "passing"]);
    offset += link.command(&["PERSIST", "passing"]);
    offset += link.command(&["HINCRBY", "hash", "field", "1"]);
    offset += link.command(&["HPERSIST", "hash", "FIELDS", "1", "field"]);
    link.await_acknowledged(offset);
    assert_eq!(client.call(&["GET", "passing"]), "2");
    assert_eq!(client.call(&["HGET", "hash", "field"]), "6");
}

/// To the clients of the replica one of the streams has expired. It is the primary's to delete, also when a blocked
/// client is served under the leases of both.
#[test]
fn a_client_that_is_served_by_a_replica_deletes_no_expired_stream() {
    let (primary, replica) = following();
    let (mut client, mut reader) = (Client::connect(replica.port), Client::connect(replica.port));
    let (mut link, _) = primary.accept();
    link.send_full_sync(DUMP);
    let mut offset = link.command(&["SELECT", "9"]);
    offset += link.command(&["XADD", "expired", "1-1", "field", "value"]);
    offset += link.command(&["PEXPIREAT", "expired", "1000"]);
    link.await_acknowledged(offset);
    client.call(&["SELECT", "9"]);
    reader.call(&["SELECT", "9"]);
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "expired", "$", "$"]);
    await_info(&mut client, "blocked_clients:1");
    offset += link.command(&["MULTI"]);
    offset += link.command(&["XADD", "stream", "1-1", "field", "value"]);
    offset += link.command(&["XADD", "expired", "2-1", "field", "value"]);
    offset += link.command(&["EXEC"]);
    link.await_acknowledged(offset);
    assert_eq!(reader.answer(), "((stream ((1-1 (field value)))))");
    assert_eq!(client.call(&["XLEN", "expired"]), "0");
    offset += link.command(&["PERSIST", "expired"]);
    link.await_acknowledged(offset);
    assert_eq!(client.call(&["XLEN", "expired"]), "2", "the replica has deleted it");
}

#[test]
fn a_replica_repeats_what_its_primary_has_done_under_a_higher_limit() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let follows = format!("127.0.0.1 {}", server.port);
    let replica = Server::start(&["--replicaof", &follows, "--proto-max-bulk-len", "1mb"]);
    let (mut client, mut reader) = (Client::connect(server.port), Client::connect(replica.port));
    await_info(&mut reader, UP);
    let piece = "x".repeat(700_000);
    assert_eq!(client.call(&["APPEND", "key", &piece]), "700000");
    assert_eq!(client.call(&["APPEND", "key", &piece]), "1400000");
    assert_eq!(client.call(&["SETRANGE", "range", "1400000", "x"]), "1400001");
    assert_eq!(client.call(&["SETBIT", "bits", "11200000", "1"]), "0");
    assert_eq!(client.call(&["BITFIELD", "bits", "SET", "u8", "#1400001", "1"]), "(0)");
    assert_eq!(client.call(&["WAIT", "1", "0"]), "1");
    assert_eq!(reader.call(&["STRLEN", "key"]), "1400000");
    assert_eq!(reader.call(&["STRLEN", "range"]), "1400001");
    assert_eq!(reader.call(&["STRLEN", "bits"]), "1400002");
}

#[test]
fn clients_learn_that_a_replica_has_no_primary_or_no_data() {
    let primary = Primary::new();
    let replica = Server::start(&[
        "--replicaof",
        &format!("127.0.0.1 {}", primary.port()),
        "--replica-serve-stale-data",
        "no",
    ]);
    let mut client = Client::connect(replica.port);
    // EXEC is refused for the commands that it would run.
    client.call(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
    client.call(&["MULTI"]);
    assert_eq!(client.call(&["GET", "key"]), "QUEUED");
    let mut other = Client::connect(replica.port);
    other.call(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    assert_eq!(
        client.call(&["EXEC"]),
        "EXECABORT Transaction discarded because of: MASTERDOWN Link with MASTER is down and \
         replica-serve-stale-data is set to 'no'."
    );
    let down = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    assert_eq!(client.call(&["GET", "key"]), down);
    assert_eq!(client.call(&["EVAL", "return 1", "0"]), down);
    assert_eq!(client.call(&["PING"]), down);
    assert!(
        client
            .call(&["INFO", "replication"])
            .contains("master_link_status:down")
    );
    client.call(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
    assert_eq!(client.call(&["GET", "key"]), "-");
    let (mut link, _) = primary.accept();
    client.call(&["CONFIG", "SET", "repl-diskless-load", "flush-before-load"]);
    link.send(format!("+FULLRESYNC {FIRST_ID} 0\r\n${}\r\n", DUMP.len()).as_bytes());
    link.send(&DUMP[..100]);
    await_info(&mut client, "loading:1");
    assert_eq!(
        client.call(&["GET", "key"]),
        "LOADING Valkey is loading the dataset in memory"
    );
    assert_eq!(
        client.call(&["ROLE"]),
        format!("(slave 127.0.0.1 {} sync -1)", primary.port())
    );
    link.send(&DUMP[100..]);
    link.await_acknowledged(0);
    assert_eq!(client.call(&["GET", "key"]), "-");
    await_info(&mut client, "loading:0");
}

#[test]
fn waits_that_a_replica_serves_outlast_the_demotion() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    let mut reader = Client::connect(server.port);
    assert_eq!(reader.call(&["READONLY"]), "OK");
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
    let mut writer = Client::connect(server.port);
    assert_eq!(writer.call(&["READONLY"]), "OK");
    writer.send(&["BLPOP", "list", "0"]);
    let mut redirected = Client::connect(server.port);
    assert_eq!(redirected.call(&["CLIENT", "CAPA", "redirect"]), "OK");
    redirected.send(&["BLPOP", "list", "0"]);
    await_info(&mut other, "blocked_clients:3");
    // No server listens there.
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_eq!(redirected.answer(), "REDIRECT 127.0.0.1:1");
    assert!(writer.answer().starts_with("UNBLOCKED force unblock"));
    await_info(&mut other, "blocked_clients:1");
    assert_eq!(redirected.call(&["PING"]), "PONG", "it stays connected");
    assert_eq!(other.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(other.call(&["XADD", "stream", "1-1", "field", "value"]), "1-1");
    assert_eq!(reader.answer(), "((stream ((1-1 (field value)))))");
}

#[test]
fn blocked_clients_of_a_replica_are_unblocked_when_it_follows_another_primary() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    // No servers listen on these ports.
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let (mut waiting, mut reader) = (Client::connect(server.port), Client::connect(server.port));
    assert_eq!(reader.call(&["READONLY"]), "OK");
    waiting.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
    await_info(&mut other, "blocked_clients:2");
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "2"]), "OK");
    assert!(waiting.answer().starts_with("UNBLOCKED force unblock"));
    assert!(is_closed(&mut waiting.0));
    await_info(&mut other, "blocked_clients:1");
    assert_eq!(other.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(other.call(&["XADD", "stream", "1-1", "field", "value"]), "1-1");
    assert_eq!(reader.answer(), "((stream ((1-1 (field value)))))");
}

#[test]
fn waits_for_replicas_of_clients_that_read_of_a_replica_outlast_the_demotion() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    let (mut plain, mut reader) = (Client::connect(server.port), Client::connect(server.port));
    let id = reader.call(&["CLIENT", "ID"]);
    assert_eq!(reader.call(&["READONLY"]), "OK");
    for client in [&mut plain, &mut reader] {
        assert_eq!(client.call(&["SET", "key", "value"]), "OK");
        client.send(&["WAIT", "1", "0"]);
    }
    await_info(&mut other, "blocked_clients:2");
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert!(plain.answer().starts_with("UNBLOCKED force unblock"));
    await_info(&mut other, "blocked_clients:1");
    assert_eq!(other.call(&["CLIENT", "UNBLOCK", &id]), "1");
    assert_eq!(reader.answer(), "0");
    assert_eq!(reader.call(&["PING"]), "PONG");
}

#[test]
fn blocked_clients_are_unblocked_when_the_server_becomes_a_replica() {
    let primary = Primary::new();
    let server = Server::start(&[]);
    let (mut waiting, mut other) = (Client::connect(server.port), Client::connect(server.port));
    waiting.send(&["BLPOP", "list", "0"]);
    await_info(&mut other, "blocked_clients:1");
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
    assert_eq!(
        waiting.answer(),
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
    );
    let mut rest = Vec::new();
    waiting.0.read_to_end(&mut rest).expect("is closed");
    assert!(rest.is_empty());
    assert_eq!(
        other.call(&["REPLICAOF", "127.0.0.1", &primary.port()]),
        "OK Already connected to specified master"
    );
    assert_eq!(
        other.call(&["REPLICAOF", "127.0.0.1", "99999"]),
        "ERR Invalid master port"
    );
    assert_eq!(
        other.call(&["FAILOVER"]),
        "ERR FAILOVER is not valid when server is a replica."
    );
}

#[test]
fn a_damaged_dump_is_asked_for_again_and_one_of_an_unknown_version_leaves_the_data() {
    let primary = Primary::new();
    let server = Server::start(&["--repl-diskless-load", "flush-before-load"]);
    let mut client = Client::connect(server.port);
    client.call(&["SET", "old", "1"]);
    client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]);
    let (mut link, _) = primary.accept();
    let mut unknown = DUMP.to_vec();
    unknown[6..9].copy_from_slice(b"999");
    link.send_full_sync(&unknown);
    let (mut link, asked) = primary.accept();
    assert_eq!(asked, ["PSYNC", "?", "-1"]);
    assert_eq!(client.call(&["GET", "old"]), "1");
    let mut damaged = DUMP.to_vec();
    let end = damaged.len();
    damaged[end - 1] ^= 1;
    link.send_full_sync(&damaged);
    let (mut link, asked) = primary.accept();
    assert_eq!(asked, ["PSYNC", "?", "-1"]);
    assert_eq!(client.call(&["GET", "old"]), "-");
    link.send_full_sync(DUMP);
    link.await_acknowledged(0);
    await_info(&mut client, UP);
}

// ---- with a real server
// ------------------------------------------------------------------------------------------------
/// Writes of every type, including those that depend on time or randomness.
const WRITES: &str = "for i = 1, 200 do
    redis.call('SET', 'string:' .. i, i)
    redis.call('APPEND', 'long', string.rep('x', i))
    redis.call('SETRANGE', 'range', i * 3, 'y')
    redis.call('HSET', 'hash:' .. i % 5, 'field:' .. i, i)
    redis.call('HINCRBYFLOAT', 'hash:0', 'sum', '0.1')
    redis.call('RPUSH', 'list:' .. i % 3, i, string.rep('z', i % 90))
    redis.call('SADD', 'set:' .. i % 4, i)
    redis.call('SPOP', 'set:1')
    redis.call('ZADD', 'sorted:' .. i % 3, i / 7, 'member:' .. i)
    redis.call('ZINCRBY', 'sorted:0', 1.5, 'member:3')
    redis.call('XADD', 'stream', '*', 'number', i)
    redis.call('PFADD', 'unique', i)
    redis.call('SETBIT', 'bits', i * 7, 1)
    redis.call('GEOADD', 'places', i / 10, i / 10, 'place:' .. i)
    redis.call('INCRBYFLOAT', 'float', '0.3')
    redis.call('PEXPIRE', 'string:' .. i, 100000 + i)
end
redis.call('XGROUP', 'CREATE', 'stream', 'group' .. ARGV[1], '0')
redis.call('XREADGROUP', 'GROUP', 'group' .. ARGV[1], 'reader', 'COUNT', 5, 'STREAMS', 'stream', '>')
redis.call('LMOVE', 'list:0', 'list:1', 'LEFT', 'RIGHT')
redis.call('ZUNIONSTORE', 'union', 2, 'sorted:0', 'sorted:1')
redis.call('RENAME', 'list:2', 'renamed')
return 1";

fn write_everything(client: &mut Client, round: u32) {
    assert_eq!(client.call(&["EVAL", WRITES, "0", &round.to_string()]), "1");
    client.call(&["SELECT", "3"]);
    assert_eq!(client.call(&["MULTI"]), "OK");
    client.call(&["INCR", "transactions"]);
    client.call(&["LPUSH", "transaction", "a"]);
    client.call(&["EXEC"]);
    client.call(&["SET", "passing", "1", "PX", "1"]);
    client.call(&["SELECT", "0"]);
}

/// Waits until a replica has all writes of its primary, and compares the data.
fn compare(primary: &mut Client, replica: &mut Client) {
    // Expired keys must be deleted on both sides, since the digest includes them.
    thread::sleep(Duration::from_millis(250));
    let start = Instant::now();
    let (mut one, mut other) = (String::new(), "different".to_owned());
    while one != other {
        assert!(start.elapsed() < PATIENCE, "the replica has other data");
        thread::sleep(Duration::from_millis(50));
        one = primary.call(&["DEBUG", "DIGEST"]);
        other = replica.call(&["DEBUG", "DIGEST"]);
    }
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn a_replica_of_valkey_has_the_same_data_also_after_its_link_broke() {
    for load in ["disabled", "swapdb"] {
        let valkey = Valkey::start(&[]);
        let replica = Server::start(&["--enable-debug-command", "yes", "--repl-diskless-load", load]);
        let (mut primary, mut client) = (Client::connect(valkey.port), Client::connect(replica.port));
        write_everything(&mut primary, 1);
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &valkey.port.to_string()]), "OK");
        await_info(&mut client, UP);
        compare(&mut primary, &mut client);
        write_everything(&mut primary, 2);
        compare(&mut primary, &mut client);
        assert_eq!(client.call(&["CLIENT", "KILL", "TYPE", "primary"]), "1");
        write_everything(&mut primary, 3);
        await_info(&mut client, UP);
        compare(&mut primary, &mut client);
        assert_eq!(primary.info("sync_full"), "1");
        assert_eq!(primary.info("sync_partial_ok"), "1");
    }
}
