//! Vulnerabilities before authentication, in the protocol, and of clients that are closed by others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PAUSE, Target};
use crate::harness::server::PATIENCE;
use crate::harness::wait_until;

/// Writes `piece` without reading, until the server closes the connection. Returns `false` if it does not.
fn is_closed_on_flood(port: u16, piece: &[u8]) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream
        .set_write_timeout(Some(Duration::from_secs(1)))
        .expect("sets the timeout");
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        match stream.write(piece) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return true,
        }
    }
    false
}

/// The memory that the server keeps for clients without a password is limited.
#[test]
fn cve_2025_21605_output_of_unauthenticated_clients_is_limited() {
    let mut target = Target::start(&[]);
    target.answers(&[(&["CONFIG", "SET", "requirepass", "secret"], "OK")]);
    let requests = [
        "x\r\n",
        "PING\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "AUTH wrong\r\n",
        "HELLO 9\r\n",
        "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    ];
    let port = target.server.port;
    thread::scope(|scope| {
        for request in requests {
            scope.spawn(move || assert!(is_closed_on_flood(port, request.repeat(2000).as_bytes()), "{request:?}"));
        }
    });
    target.serves_within(200 << 20);
}

/// CVE-2021-32675: a client without a password can announce few and short arguments only.
#[test]
fn cve_2021_32675_requests_of_unauthenticated_clients_are_limited() {
    let mut target = Target::start(&[]);
    target.answers(&[(&["CONFIG", "SET", "requirepass", "secret"], "OK")]);
    let count = "ERR Protocol error: unauthenticated multibulk length";
    let bulk = "ERR Protocol error: unauthenticated bulk length";
    for (request, reply) in [
        ("*11\r\n", count),
        ("*2147483647\r\n", count),
        ("*2\r\n$16385\r\n", bulk),
        ("*2\r\n$536870912\r\n", bulk),
    ] {
        for _ in 0..50 {
            let mut client = target.connect();
            client.0.get_mut().write_all(request.as_bytes()).expect("sends");
            assert_eq!(client.answer(), reply, "{request:?}");
            assert_eq!(client.0.read(&mut [0]).unwrap_or(0), 0, "{request:?}");
        }
    }
    // Many connections, each of which announces the most that is allowed and sends little of it.
    let mut clients: Vec<Client> = (0..300).map(|_| target.connect()).collect();
    for client in &mut clients {
        client.0.get_mut().write_all(b"*10\r\n$16384\r\nx").expect("sends");
    }
    target.serves_within(200 << 20);
    // With a password, a count that no memory is enough for takes none either.
    for client in &mut clients {
        *client = target.connect();
        assert_eq!(client.call(&["AUTH", "secret"]), "OK");
        client
            .0
            .get_mut()
            .write_all(b"*2147483647\r\n$3\r\nSET\r\n")
            .expect("sends");
    }
    target.serves_within(200 << 20);
}

/// CVE-2025-48367: clients that break the protocol are closed, and no other client notices.
#[test]
fn cve_2025_48367_protocol_errors_close_one_connection() {
    let mut target = Target::start(&[]);
    let port = target.server.port;
    let broken = [
        "*-\r\n",
        "*1\r\n:\r\n",
        "*1\r\n$a\r\n",
        "*99999999999999\r\n",
        "$\r\n\0\"x",
        "*1\r\n$-10\r\n",
    ];
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for request in broken.iter().cycle().take(600) {
                    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
                    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
                    let _ = stream.write_all(request.as_bytes());
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            });
        }
        for _ in 0..200 {
            target.serves();
        }
    });
    wait_until("only two clients are left", || {
        target.witness.info("connected_clients") == "2"
    });
    target.serves_within(200 << 20);
}

/// CVE-2016-10517: a browser that was made to send a request over HTTP is not a client.
#[test]
fn cve_2016_10517_requests_of_http_are_refused() {
    let mut target = Target::start(&[]);
    for request in [
        "POST / HTTP/1.1\r\nHost: x\r\n\r\nSET planted 1\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nSET planted 1\r\n",
        "host: x\r\nSET planted 1\r\n",
    ] {
        let mut client = target.connect();
        client.0.get_mut().write_all(request.as_bytes()).expect("sends");
        let mut said = Vec::new();
        let _ = client.0.read_to_end(&mut said);
        assert!(!String::from_utf8_lossy(&said).contains("+OK"));
        target.answers(&[(&["EXISTS", "planted"], "0")]);
    }
}

/// The state of the parser is reset after an empty request, so that the next request may be of the other kind.
#[test]
fn cve_2026_27623_the_kind_of_a_request_is_reset_after_an_empty_one() {
    let mut target = Target::start(&[]);
    let empty = ["*0\r\n", "*-1\r\n", "\r\n", "\n", "*-5\r\n", "   \r\n"];
    let real = [
        ("*1\r\n$4\r\nPING\r\n", "PONG"),
        ("PING\r\n", "PONG"),
        ("*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n", "x"),
    ];
    for first in empty {
        for second in empty {
            for (request, reply) in real {
                let all = format!("{first}{second}{request}{first}{request}");
                // In one piece, and byte by byte.
                for piece in [all.len(), 1] {
                    let mut client = target.connect();
                    for bytes in all.as_bytes().chunks(piece) {
                        client.0.get_mut().write_all(bytes).expect("sends");
                    }
                    assert_eq!(client.answer(), reply, "{all:?}");
                    assert_eq!(client.answer(), reply, "{all:?}");
                }
            }
        }
    }
    target.serves();
}

/// No error text that a client chooses can end its line and begin another reply.
#[test]
fn cve_2025_67733_error_replies_are_one_line() {
    let mut target = Target::start(&["--enable-debug-command", "yes"]);
    target.answers(&[
        (
            &["EVAL", "return redis.error_reply('My Err\\r\\n:1\\r\\n')", "0"],
            "My Err  :1",
        ),
        (&["EVAL", "return {err = 'A\\r\\nB'}", "0"], "A  B"),
        (&["EVAL", "return {ok = 'A\\r\\nB'}", "0"], "A  B"),
        (
            &["EVAL", "return redis.status_reply('A\\r\\n$5\\r\\nhello')", "0"],
            "A  $5  hello",
        ),
        (
            &["EVAL", "error('x\\r\\n+y')", "0"],
            "ERR user_script:1: x  +y script: on @user_script:1.",
        ),
        (
            &["EVAL", "error({err = 'x\\r\\n+y'})", "0"],
            "x  +y script: on @user_script:1.",
        ),
        (
            &["FUNCTION", "LOAD", "#!\"lu\\r\\n+a\" name=x\nreturn 1"],
            "ERR Engine 'lu  +a' not found",
        ),
        (
            &["EVAL", "#!\"lu\\r\\n+a\"\nreturn 1", "0"],
            "ERR Could not find scripting engine 'lu  +a'",
        ),
    ]);
    // Whatever a word with a line break in it is answered, the next reply is that of the next request.
    let words = "x\r\n:1\r\n+y";
    let commands = [
        "{}",
        "GET a {}",
        "CONFIG {}",
        "CONFIG SET {} 1",
        "CONFIG SET loglevel {}",
        "CONFIG SET save {}",
        "CONFIG SET notify-keyspace-events {}",
        "ACL SETUSER u {}",
        "ACL SETUSER u +{}",
        "ACL SETUSER u ({}",
        "ACL SETUSER u +get|{}",
        "ACL DELUSER {}",
        "ACL DRYRUN {} get a",
        "ACL DRYRUN default {}",
        "ACL CAT {}",
        "CLIENT {}",
        "CLIENT KILL TYPE {}",
        "CLIENT KILL USER {}",
        "CLIENT SETINFO {} x",
        "CLIENT SETINFO lib-name {}",
        "CLIENT SETNAME {}",
        "CLIENT TRACKING on PREFIX {}",
        "CLIENT REPLY {}",
        "CLIENT NO-EVICT {}",
        "CLUSTER {}",
        "AUTH {} c",
        "OBJECT {}",
        "SCRIPT {}",
        "EVALSHA {} 0",
        "FCALL {} 0",
        "FUNCTION {}",
        "FUNCTION DELETE {}",
        "FUNCTION LIST {}",
        "FUNCTION RESTORE {}",
        "FUNCTION LOAD {}",
        "DEBUG {}",
        "HELLO {}",
        "HELLO 3 AUTH {} x",
        "HELLO 3 SETNAME {}",
        "HELLO 3 {}",
        "MODULE LOAD {}",
        "REPLICAOF {} c",
        "XGROUP {}",
        "XGROUP CREATE none {} $",
        "XREADGROUP GROUP {} c STREAMS none >",
        "XADD none {} f v",
        "SORT none {}",
        "ZADD none {} m",
        "GEOADD none {} 1 m",
        "BITFIELD none GET {} 0",
        "BITOP {} d s",
        "SET k v {}",
        "LPOS none e {} 1",
        "LMPOP 1 none {}",
        "PUBSUB {}",
        "LATENCY {}",
        "LATENCY GRAPH {}",
        "MEMORY {}",
        "SLOWLOG {}",
        "COMMANDLOG GET 1 {}",
        "COMMAND {}",
        "COMMAND LIST FILTERBY {} x",
        "COMMAND GETKEYS {}",
        "FAILOVER {}",
        "MIGRATE h {} k 0 1",
        "RESTORE k 0 {}",
        "SCAN 0 TYPE {}",
        "SCAN {}",
        "SHUTDOWN {}",
        "WAITAOF {} 1 1",
        "BLPOP none {}",
        "EXPIRE none {}",
        "SELECT {}",
        "COPY a b {} 1",
        "INCRBY none {}",
        "SETRANGE none {} x",
        "LINSERT none {} a b",
        "PSYNC {} x",
        "REPLCONF {} x",
        "RESET {}",
        "SUBSCRIBE",
        "LOLWUT VERSION {}",
        "INFO {}",
        "EVAL {} 0",
        "EVAL x {}",
        "CONFIG GET {}",
        "XAUTOCLAIM none {} c 0 0",
        "XCLAIM none {} c 0 {}",
        "HEXPIRE none 1 {} FIELDS 1 a",
        "ZRANGE none 0 1 {}",
        "MSETEX 1 a b {}",
    ];
    for command in commands {
        let command: Vec<String> = command.split(' ').map(|word| word.replace("{}", words)).collect();
        let mut client = target.connect();
        client.send(&command);
        client.send(&["ECHO", "the next reply"]);
        client.answer();
        assert_eq!(client.answer(), "the next reply", "{command:?}");
        target.serves();
    }
}

/// Clients that wait for keys are closed in all ways at the moment at which the keys get elements.
#[test]
fn cve_2026_23479_a_client_that_ends_while_it_is_unblocked_is_not_used() {
    let mut target = Target::start(&["--maxmemory-clients", "20mb"]);
    let start = Instant::now();
    let mut round = 0;
    while start.elapsed() < Duration::from_secs(8) || round <= 2 {
        round += 1;
        // Requests of clients that have gone may still run in the next round.
        let [list, other, sorted, stream] = ["l", "o", "z", "x"].map(|name| format!("{name}{round}"));
        let mut blocked: Vec<Client> = (0..16).map(|_| target.connect()).collect();
        let mut ids = Vec::new();
        for (index, client) in blocked.iter_mut().enumerate() {
            ids.push(client.call(&["CLIENT", "ID"]));
            match index % 4 {
                0 => client.send(&["BLPOP", &list, "0"]),
                1 => client.send(&["BLMOVE", &list, &other, "LEFT", "RIGHT", "0"]),
                2 => client.send(&["BZPOPMIN", &sorted, "0"]),
                _ => client.send(&["XREAD", "BLOCK", "0", "STREAMS", &stream, "$"]),
            }
        }
        wait_until("all are blocked", || target.witness.info("blocked_clients") == "16");
        let mut killer = target.connect();
        let mut evictee = target.connect();
        thread::scope(|scope| {
            scope.spawn(|| {
                for id in ids.iter().step_by(2) {
                    killer.call(&["CLIENT", "KILL", "ID", id]);
                }
            });
            scope.spawn(|| {
                // The client that pushes is large enough to be evicted, and so are those that get what it pushes.
                let long = "x".repeat(3 << 20);
                for _ in 0..4 {
                    let pushes = [&["RPUSH", &list, &long, &long][..], &["ZADD", &sorted, "1", &long][..]];
                    if pushes.iter().any(|push| evictee.try_send(push).is_err()) {
                        break;
                    }
                }
            });
            for _ in 0..8 {
                target.attacker.send(&["RPUSH", &list, "a", "b"]);
                target.attacker.send(&["ZADD", &sorted, "1", "a", "2", "b"]);
                target.attacker.send(&["XADD", &stream, "*", "f", "v"]);
            }
            for _ in 0..24 {
                target.attacker.answer();
            }
            blocked.truncate(8);
        });
        drop(blocked);
        drop(evictee);
        target.serves();
        wait_until("no client is blocked", || target.witness.info("blocked_clients") == "0");
        // The address space is limited, and late requests have made keys as well.
        target.attacker.call(&["FLUSHALL"]);
    }
    wait_until("memory is free again", || {
        target.attacker.call(&["FLUSHALL"]);
        thread::sleep(PAUSE);
        target.witness.info("used_memory").parse::<u64>().expect("a number") < 100 << 20
    });
}

/// The space for a count that is filled in later may lie before, behind and across the end of a block of output.
#[test]
fn cve_2025_49112_counts_that_are_filled_in_later_lie_at_all_offsets_of_the_output() {
    const BLOCK: usize = 16 * 1024;
    let mut target = Target::start(&[]);
    target.answers(&[
        (&["ZADD", "z", "1", "a", "2", "b"], "2"),
        (&["XADD", "x", "1-1", "f", "v"], "1-1"),
        (&["RPUSH", "l", "2", "1"], "2"),
    ]);
    let requests: [(&[&str], &str); 6] = [
        (&["ZRANGEBYSCORE", "z", "-inf", "+inf"], "(a b)"),
        (&["XRANGE", "x", "-", "+"], "((1-1 (f v)))"),
        (&["KEYS", "none*"], "()"),
        (&["SCAN", "0", "MATCH", "none*", "COUNT", "1000"], "(0 ())"),
        (&["SORT", "l"], "(1 2)"),
        (&["LPOS", "l", "1", "COUNT", "0"], "(1)"),
    ];
    for base in [BLOCK, 2 * BLOCK, 4 * BLOCK] {
        for bytes in base - 120..base + 20 {
            let filler = "x".repeat(bytes);
            // All replies are collected before the client reads.
            target.attacker.send(&["MULTI"]);
            target.attacker.send(&["ECHO", &filler]);
            for (words, _) in requests {
                target.attacker.send(words);
            }
            target.attacker.send(&["EXEC"]);
            let expected: Vec<&str> = requests.iter().map(|(_, reply)| *reply).collect();
            for _ in 0..requests.len() + 2 {
                target.attacker.answer();
            }
            let answer = target.attacker.answer();
            assert!(
                answer == format!("({filler} {})", expected.join(" ")),
                "{bytes}: {}",
                &answer[bytes.min(answer.len())..]
            );
        }
        target.serves();
    }
    target.serves_within(200 << 20);
}
