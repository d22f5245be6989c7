//! Tests the files of the append-only log when the server ends, in any way, and starts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use super::server::{Server, TestDirectory, weft};
use crate::harness::valkey::valkey_program;
use crate::harness::wait_until;

pub const ALWAYS: &[&str] = &["--appendfsync", "always"];

/// With any `appendfsync`, an answered write has been passed to the operating system, which outlives the process.
#[test]
fn answered_writes_survive_a_kill() {
    for policy in ["always", "everysec", "no"] {
        answers_survive_a_kill(&["--appendfsync", policy]);
    }
}

fn answers_survive_a_kill(arguments: &[&str]) {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, arguments);
    let port = server.port;
    let begun = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (mut client, begun) = (server.client(), begun.clone());
            std::thread::spawn(move || {
                let mut answered = 0u64;
                let key = format!("counter:{writer}");
                loop {
                    let words = [b"INCR".to_vec(), key.clone().into_bytes()];
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        client.send(&words);
                        client.answer()
                    }));
                    match result.ok().and_then(|reply| reply.parse().ok()) {
                        Some(number) => {
                            begun.fetch_add(usize::from(answered == 0), Ordering::Relaxed);
                            answered = number;
                        }
                        None => return (key, answered),
                    }
                }
            })
        })
        .collect();
    wait_until("each has an answer", || begun.load(Ordering::Relaxed) == 4);
    sleep(Duration::from_millis(300));
    server.kill();
    let answered: Vec<(String, u64)> = writers
        .into_iter()
        .map(|writer| writer.join().expect("it ended"))
        .collect();
    let server = Server::start(&weft(), &place, arguments);
    assert_ne!(server.port, port);
    let mut client = server.client();
    for (key, answered) in answered {
        let kept: u64 = client.call(&["GET", &key]).parse().expect("a number");
        assert!(
            answered > 0 && kept >= answered,
            "{arguments:?} {key}: {kept} of {answered}"
        );
        // One command may have been in progress.
        assert!(kept <= answered + 1, "{arguments:?} {key}: {kept} of {answered}");
    }
}

#[test]
fn all_written_data_is_loaded_again() {
    written_data_is_loaded_by(&weft());
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn all_written_data_is_loaded_by_valkey() {
    written_data_is_loaded_by(&valkey_program());
}

fn written_data_is_loaded_by(reader: &Path) {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &[]);
    let mut client = server.client();
    for words in [
        &["SET", "s", "v"][..],
        &["RPUSH", "l", "a", "b", "c"],
        &["HSET", "h", "f", "1"],
        &["SADD", "set", "x", "y"],
        &["ZADD", "z", "1", "one"],
        &["XADD", "x", "*", "f", "v"],
        &["CONFIG", "SET", "stream-node-max-entries", "1"],
        &["XADD", "trimmed", "1-1", "a", "b"],
        &["XADD", "trimmed", "2-1", "a", "b"],
        &["XADD", "trimmed", "3-1", "a", "b"],
        &["XADD", "trimmed", "4-1", "a", "b"],
        &["XADD", "trimmed", "MAXLEN", "~", "1", "LIMIT", "1", "5-1", "a", "b"],
        &["CONFIG", "SET", "stream-node-max-entries", "100"],
        &["SELECT", "9"],
        &["SET", "other", "1", "EX", "1000"],
        &["MULTI"],
        &["INCR", "n"],
        &["INCR", "n"],
        &["EXEC"],
        &[
            "EVAL",
            "server.call('set', 'a', 1); return server.call('incr', 'a')",
            "0",
        ],
        &[
            "FUNCTION",
            "LOAD",
            "#!lua name=lib\nserver.register_function('f', function() return 7 end)",
        ],
    ] {
        client.call(words);
    }
    let digest = client.call(&["DEBUG", "DIGEST"]);
    client.send(&[b"SHUTDOWN".to_vec()]);
    assert!(server.wait_for_end().success());
    let server = Server::start(reader, &place, &[]);
    let mut client = server.client();
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    assert_eq!(client.call(&["FCALL", "f", "0"]), "7");
    assert!(place.log().contains("DB loaded from append only file"));
    assert_eq!(client.call(&["XLEN", "trimmed"]), "4");
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn files_written_by_valkey_are_loaded() {
    let oracle = valkey_program();
    for preamble in ["yes", "no"] {
        let place = TestDirectory::new();
        let valkey = Server::start(&oracle, &place, &["--aof-use-rdb-preamble", preamble]);
        let mut client = valkey.client();
        client.call(&["DEBUG", "POPULATE", "1000"]);
        client.call(&["RPUSH", "l", "a", "b", "c"]);
        client.call(&["BGREWRITEAOF"]);
        wait_until("the rewrite ends", || client.info("aof_rewrite_in_progress") == "0");
        client.call(&["HSET", "h", "f", "1"]);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        client.send(&[b"SHUTDOWN".to_vec()]);
        assert!(valkey.wait_for_end().success());
        let server = Server::start(&weft(), &place, &[]);
        assert_eq!(server.client().call(&["DEBUG", "DIGEST"]), digest, "{preamble}");
    }
}

/// Returns a directory with these increments and no base.
fn place_with(increments: &[&[u8]]) -> TestDirectory {
    let place = TestDirectory::new();
    fs::create_dir(place.0.join("appendonlydir")).expect("creates a directory");
    let mut manifest = String::new();
    for (index, bytes) in increments.iter().enumerate() {
        let name = format!("appendonly.aof.{}.incr.aof", index + 1);
        fs::write(place.part(&name), bytes).expect("writes");
        manifest += &format!("file {name} seq {} type i\n", index + 1);
    }
    fs::write(place.part("appendonly.aof.manifest"), manifest).expect("writes");
    place
}

const COMMANDS: &[u8] =
    b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n*1\r\n$5\r\nMULTI\r\n\
    *3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n*1\r\n$4\r\nEXEC\r\n";

#[test]
fn a_file_cut_at_any_byte_is_loaded_up_to_there_or_refused() {
    let set = COMMANDS
        .windows(5)
        .position(|part| part == b"MULTI")
        .expect("it is there")
        - 8;
    for cut in (0..=COMMANDS.len()).rev() {
        let place = place_with(&[&COMMANDS[..cut]]);
        let server = Server::start(&weft(), &place, &[]);
        let mut client = server.client();
        assert_eq!(
            client.call(&["GET", "a"]),
            if cut >= set { "1" } else { "-" },
            "cut at {cut}"
        );
        assert_eq!(
            client.call(&["GET", "b"]),
            if cut == COMMANDS.len() { "2" } else { "-" },
            "cut at {cut}"
        );
        client.call(&["SET", "c", "3"]);
        client.send(&[b"SHUTDOWN".to_vec()]);
        server.wait_for_end();
        let server = Server::start(&weft(), &place, &[]);
        assert_eq!(server.client().call(&["GET", "c"]), "3", "cut at {cut}");
    }
    for cut in [10, 40, set + 20, COMMANDS.len() - 1] {
        let place = place_with(&[&COMMANDS[..cut]]);
        let server = Server::spawn(&weft(), &place, &["--aof-load-truncated", "no"]);
        assert_eq!(server.wait_for_end().code(), Some(1), "cut at {cut}");
        assert!(
            place
                .log()
                .contains("Unexpected end of file reading the append only file appendonly.aof.1.incr.aof")
        );
    }
}

#[test]
fn a_file_that_is_not_an_append_only_file_is_refused() {
    let refused = |place: &TestDirectory, text: &str| {
        let server = Server::spawn(&weft(), place, &[]);
        assert_eq!(server.wait_for_end().code(), Some(1), "{text}");
        assert!(place.log().contains(text), "{text} is not in {}", place.log());
    };
    refused(
        &place_with(&[b"hello\r\n"]),
        "Bad file format reading the append only file",
    );
    for (command, error) in [
        (
            &b"*2\r\n$3\r\nFOO\r\n$3\r\nbar\r\n"[..],
            "unknown command 'FOO', with args beginning with: 'bar'",
        ),
        (
            b"*1\r\n$7\r\ncluster\r\n",
            "wrong number of arguments for 'cluster' command",
        ),
        (
            b"*2\r\n$7\r\ncluster\r\n$4\r\nxxxx\r\n",
            "unknown subcommand 'xxxx'. Try CLUSTER HELP.",
        ),
        (
            b"*3\r\n$7\r\ncluster\r\n$5\r\nslots\r\n$1\r\nx\r\n",
            "wrong number of arguments for 'cluster|slots' command",
        ),
    ] {
        let text = format!("Error reading the append only file appendonly.aof.1.incr.aof, error: {error}");
        refused(&place_with(&[command]), &text);
    }
    let place = place_with(&[COMMANDS]);
    fs::remove_file(place.increment()).expect("it was there");
    refused(
        &place,
        "Unable to obtain the AOF file appendonly.aof.1.incr.aof length. stat: No such file or directory",
    );
    let place = place_with(&[COMMANDS]);
    let mut manifest = fs::OpenOptions::new()
        .append(true)
        .open(place.part("appendonly.aof.manifest"))
        .expect("it is there");
    manifest.write_all(b"file x seq 1 type q\n").expect("writes");
    refused(&place, "Unknown AOF file type");
}

/// A start that truncated the file would make the next start load the data with a gap.
#[test]
fn a_damaged_file_that_is_not_the_last_one_is_refused_at_every_start() {
    let transaction = COMMANDS
        .windows(4)
        .position(|part| part == b"EXEC")
        .expect("it is there")
        - 8;
    for cut in [60, transaction, COMMANDS.len() - 1] {
        let damaged = &COMMANDS[..cut];
        let place = place_with(&[damaged, COMMANDS]);
        for starts in 1..=2 {
            let server = Server::spawn(&weft(), &place, &[]);
            assert_eq!(server.wait_for_end().code(), Some(1), "cut at {cut}, start {starts}");
            let text = "Fatal error: the truncated file is not the last file";
            assert_eq!(place.log().matches(text).count(), starts, "{}", place.log());
            let kept = fs::read(place.part("appendonly.aof.1.incr.aof")).expect("it is there");
            assert_eq!(kept, damaged, "cut at {cut}, start {starts}");
        }
    }
}

#[test]
fn a_single_file_of_old_servers_is_converted() {
    let place = TestDirectory::new();
    fs::write(place.0.join("appendonly.aof"), COMMANDS).expect("writes");
    let server = Server::start(&weft(), &place, &[]);
    assert_eq!(server.client().call(&["GET", "b"]), "2");
    assert!(place.log().contains("Successfully migrated an old-style AOF file"));
    assert!(place.part("appendonly.aof").exists() && !place.0.join("appendonly.aof").exists());
}

#[test]
fn timestamps_are_written_and_skipped_when_loading() {
    let place = TestDirectory::new();
    let server = Server::start(
        &weft(),
        &place,
        &["--aof-timestamp-enabled", "yes", "--appendfsync", "always"],
    );
    assert_eq!(server.client().call(&["SET", "k", "v"]), "OK");
    let text = fs::read(place.increment()).expect("it is there");
    assert!(text.starts_with(b"#TS:1"), "{}", String::from_utf8_lossy(&text));
    drop(server);
    let server = Server::start(&weft(), &place, &[]);
    assert_eq!(server.client().call(&["GET", "k"]), "v");
}

/// A client that writes until it is stopped, and counts its writes.
struct Writer {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Writer {
    fn start(server: &Server) -> Writer {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (mut client, stops) = (server.client(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stops.load(std::sync::atomic::Ordering::Relaxed) {
                count = client.call(&["INCR", "count"]).parse().expect("a number");
                client.call(&["RPUSH", "list", &count.to_string()]);
            }
            count
        });
        Writer { stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().expect("it wrote")
    }
}

fn rewrite(client: &mut super::server::Client) {
    let before: u64 = client.info("aof_rewrites").parse().expect("a number");
    assert_eq!(
        client.call(&["BGREWRITEAOF"]),
        "Background append only file rewriting started"
    );
    wait_until("the rewrite ends", || client.info("aof_rewrite_in_progress") == "0");
    let after: u64 = client.info("aof_rewrites").parse().expect("a number");
    assert_eq!(
        (after, client.info("aof_last_bgrewrite_status")),
        (before + 1, "ok".to_owned())
    );
}

#[test]
fn a_rewrite_loses_nothing_that_is_written_meanwhile() {
    rewritten_data_is_loaded_by(&weft());
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn a_rewrite_under_load_is_loaded_by_valkey() {
    rewritten_data_is_loaded_by(&valkey_program());
}

fn rewritten_data_is_loaded_by(reader: &Path) {
    for preamble in ["yes", "no"] {
        let place = TestDirectory::new();
        let server = Server::start(&weft(), &place, &["--aof-use-rdb-preamble", preamble]);
        let mut client = server.client();
        client.call(&["DEBUG", "POPULATE", "20000"]);
        for words in [
            &["HSET", "h", "f", "1", "g", "2"][..],
            &["HEXPIRE", "h", "1000", "FIELDS", "1", "f"],
            &["ZADD", "z", "1.5", "a"],
            &["SADD", "s", "1", "2"],
            &["XADD", "x", "1-1", "a", "b"],
            &["XGROUP", "CREATE", "x", "g", "0"],
            &["SET", "e", "1", "EX", "1000"],
            &[
                "FUNCTION",
                "LOAD",
                "#!lua name=lib\nserver.register_function('f', function() return 7 end)",
            ],
        ] {
            client.call(words);
        }
        let writer = Writer::start(&server);
        for _ in 0..3 {
            rewrite(&mut client);
        }
        let count = writer.stop();
        let digest = client.call(&["DEBUG", "DIGEST"]);
        client.send(&[b"SHUTDOWN".to_vec()]);
        assert!(server.wait_for_end().success());
        let mut names: Vec<String> = fs::read_dir(place.0.join("appendonlydir"))
            .expect("it is there")
            .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        let format = if preamble == "yes" { "rdb" } else { "aof" };
        let base = format!("appendonly.aof.4.base.{format}");
        assert_eq!(
            names,
            [&base, "appendonly.aof.4.incr.aof", "appendonly.aof.manifest"],
            "{preamble}"
        );
        let server = Server::start(reader, &place, &[]);
        let mut client = server.client();
        assert_eq!(client.call(&["GET", "count"]), count.to_string());
        assert_eq!(client.call(&["LLEN", "list"]), count.to_string());
        assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest, "{preamble}");
        assert_eq!(client.call(&["FCALL", "f", "0"]), "7");
    }
}

#[test]
fn appendonly_can_be_enabled_and_disabled_under_load() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--appendonly", "no"]);
    let mut client = server.client();
    let writer = Writer::start(&server);
    for round in 0..3 {
        assert_eq!(client.info("aof_enabled"), "0");
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
        wait_until("the rewrite ends", || {
            client.info("aof_rewrite_in_progress") == "0" && client.info("aof_rewrite_scheduled") == "0"
        });
        assert_eq!(client.info("aof_enabled"), "1", "{round}");
        if round < 2 {
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        }
    }
    let count = writer.stop();
    // WAITAOF waits for the caller's writes, and so for all earlier ones.
    assert_eq!(client.call(&["SET", "last", "write"]), "OK");
    assert_eq!(client.call(&["WAITAOF", "1", "0", "5000"]), "(1 0)");
    server.kill();
    let server = Server::start(&weft(), &place, &[]);
    let mut client = server.client();
    let kept: u64 = client.call(&["GET", "count"]).parse().expect("a number");
    assert!(
        kept + 1 >= count,
        "{kept} of {count}: only what was not synced yet may be missing"
    );
    assert_eq!(client.call(&["LLEN", "list"]), kept.to_string());
}

#[test]
fn waiting_for_the_disk_and_loading_again() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--appendfsync", "everysec"]);
    let mut client = server.client();
    client.call(&["SET", "k", "v"]);
    assert_eq!(client.call(&["WAITAOF", "1", "0", "100000"]), "(1 0)");
    assert_eq!(client.call(&["WAITAOF", "0", "1", "10"]).chars().last(), Some(')'));
    client.call(&["CONFIG", "SET", "appendfsync", "no"]);
    client.call(&["SET", "k", "w"]);
    assert_eq!(client.call(&["WAITAOF", "1", "0", "50"]), "(0 0)");
    assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(client.call(&["GET", "k"]), "w");
    client.call(&["SET", "k", "x"]);
    assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(client.call(&["GET", "k"]), "x");
    let mut other = server.client();
    other.send(&[b"WAITAOF".to_vec(), b"1".to_vec(), b"0".to_vec(), b"0".to_vec()]);
    other.answer();
    client.call(&["CONFIG", "SET", "appendonly", "no"]);
    assert!(
        client
            .call(&["WAITAOF", "1", "0", "0"])
            .contains("appendonly is disabled")
    );
}

/// Returns a directory whose increment is a device that is always full.
pub fn full_place() -> TestDirectory {
    let place = TestDirectory::new();
    fs::create_dir_all(place.part("")).expect("creates a directory");
    let manifest = "file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n";
    fs::write(place.part("appendonly.aof.manifest"), manifest).expect("writes");
    fs::write(place.part("appendonly.aof.1.base.rdb"), "").expect("writes");
    std::os::unix::fs::symlink("/dev/full", place.part("appendonly.aof.1.incr.aof")).expect("makes a link");
    place
}

#[test]
fn writes_are_refused_while_the_disk_is_full() {
    let place = full_place();
    let server = Server::start(&weft(), &place, &["--appendfsync", "everysec"]);
    let mut client = server.client();
    let full = "MISCONF Errors writing to the AOF file: No space left on device";
    wait_until("writing fails", || client.call(&["SET", "key", "value"]) == full);
    assert_eq!(client.call(&["PING"]), full);
    assert_eq!(client.call(&["GET", "key"]), "value");
    let writes = "return redis.call('SET', 'key', 'script')";
    for script in [
        writes,
        &format!("redis.call('GET', 'key') {writes}"),
        &format!("#!lua\n{writes}"),
    ] {
        let answer = client.call(&["EVAL", script, "1", "key"]);
        assert!(answer.starts_with(full), "{script}: {answer}");
    }
    let caught = "local reply = redis.pcall('SET', 'key', 'script') return reply.err";
    assert_eq!(client.call(&["EVAL", caught, "1", "key"]), full);
    assert_eq!(
        client.call(&["EVAL", "return redis.call('GET', 'key')", "1", "key"]),
        "value"
    );
    assert_eq!(client.call(&["MULTI"]), "OK");
    assert_eq!(client.call(&["EVAL", writes, "1", "key"]), "QUEUED");
    assert!(client.call(&["EXEC"]).contains(full));
    assert_eq!(client.call(&["GET", "key"]), "value");
    assert_eq!(client.info("aof_last_write_status"), "err");
    assert!(
        place
            .log()
            .contains("Error writing to the AOF file: No space left on device")
    );
    // A rewrite starts another file, which is on a disk with free space.
    client.call(&["BGREWRITEAOF"]);
    wait_until("writing works again", || {
        client.call(&["SET", "key", "other"]) == "OK" && client.info("aof_last_write_status") == "ok"
    });
    wait_until("the rewrite ends", || client.info("aof_rewrite_in_progress") == "0");
    assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(client.call(&["GET", "key"]), "other");
}

#[test]
fn a_server_that_promises_every_write_ends_when_the_disk_is_full() {
    let place = full_place();
    let server = Server::start(&weft(), &place, ALWAYS);
    let mut client = server.client();
    client.send(&["SET", "key", "value"]);
    assert_eq!(server.wait_for_end().code(), Some(1));
    let reason = "Can't recover from AOF write error when the AOF fsync policy is 'always'. Exiting...";
    assert!(place.log().contains(reason), "{}", place.log());
}
