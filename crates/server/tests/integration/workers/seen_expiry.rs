//! Tests that a key which one client has seen expired is not alive for another one, whose worker has an older time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// The number of scripts in front of the command that reads the key. They run in the same batch, and with them it lasts
/// for some milliseconds.
const SCRIPTS: usize = 60;
/// A script that is too short to leave its worker.
const SCRIPT: &[&str] = &["EVAL", "for i = 1, 10000 do end return 7", "0"];
/// The life of the key.
const LIFE: Duration = Duration::from_millis(8);
/// The requests are sent so long before the end of that life.
const LEAD: Duration = Duration::from_millis(1);
/// The number of times that a client must see the end of that life during a batch of another one.
const NEEDED_TIMES: usize = 5;

/// Encodes requests as one pipeline.
fn pipeline(requests: &[&[&str]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for words in requests {
        bytes.extend(format!("*{}\r\n", words.len()).bytes());
        for word in *words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }
    bytes
}

/// Reads until the server has sent `end`.
fn read_until(stream: &mut TcpStream, end: &[u8]) -> String {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while !bytes.ends_with(end) {
        let len = stream.read(&mut piece).expect("a reply");
        assert!(len > 0, "the server has closed the connection");
        bytes.extend_from_slice(&piece[..len]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Every request of a batch has the time of its beginning, unless another client has seen that a key has expired
/// meanwhile.
#[test]
fn a_key_that_was_seen_expired_is_not_found_alive() {
    let readers: [(&[&str], &str); 3] = [
        (&["GET", "key"], "$-1\r\n"),
        (&["EVAL", "return redis.call('EXISTS', KEYS[1])", "1", "key"], ":0\r\n"),
        (&["EXISTS", "key"], ":0\r\n"),
    ];
    for workers in ["2", "8"] {
        let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        // Otherwise the client that sees that the key has expired deletes it.
        let server = Server::start(&[&threads[..], &["--import-mode", "yes"]].concat());
        let mut other = Client::connect(server.port);
        for (reader, none) in readers {
            let (start, mut seen) = (Instant::now(), 0);
            while seen < NEEDED_TIMES {
                assert!(
                    start.elapsed() < PATIENCE,
                    "{workers} workers: no key expires in a batch"
                );
                let Some(reply) = reply_after_expiry(&server, &mut other, reader) else {
                    continue;
                };
                assert_eq!(
                    reply, none,
                    "{workers} workers, {reader:?}: another client saw it expired"
                );
                seen += 1;
            }
        }
    }
}

/// Returns the reply to `reader` at the end of a batch, if another client saw the key expired before that.
fn reply_after_expiry(server: &Server, other: &mut Client, reader: &[&str]) -> Option<String> {
    assert_eq!(other.call(&["SET", "marker", "alive"]), "OK");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    let requests = [
        &vec![SCRIPT; SCRIPTS][..],
        &[&["GET", "marker"], reader, &["ECHO", "end"]],
    ]
    .concat();
    let requests = pipeline(&requests);
    let due = Instant::now() + LIFE;
    assert_eq!(
        other.call(&["SET", "key", "v", "PX", &LIFE.as_millis().to_string()]),
        "OK"
    );
    while Instant::now() < due - LEAD {}
    stream.write_all(&requests).expect("the requests are sent");
    while other.call(&["GET", "key"]) != "-" {}
    assert_eq!(other.call(&["SET", "marker", "expired"]), "OK");
    let end = "$3\r\nend\r\n";
    let replies = read_until(&mut stream, end.as_bytes());
    let replies = replies.replace(":7\r\n", "");
    let reply = replies.strip_prefix("$7\r\nexpired\r\n")?;
    reply.strip_suffix(end).map(str::to_owned)
}
