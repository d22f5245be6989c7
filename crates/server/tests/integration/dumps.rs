//! End-to-end tests of RDB files: written, loaded by the next server, refused when damaged, and saved at shutdown.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::port::free_port;
use crate::harness::server::{MANY_WORKERS, PATIENCE};

/// A temporary directory for one test, removed at its end.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> TestDirectory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-dumps-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("creates a directory");
        TestDirectory(path)
    }

    fn dump(&self) -> PathBuf {
        self.0.join("dump.rdb")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Starts a server in the directory. The server may end at once.
    fn spawn(&self, options: &[&str]) -> Server {
        let port = free_port();
        let built = || env!("CARGO_BIN_EXE_weft-server").into();
        let child = Command::new(std::env::var_os("WEFT_SERVER").unwrap_or_else(built))
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(MANY_WORKERS)
            .args(["--dir", &self.0.display().to_string(), "--logfile", "log"])
            .args(["--enable-debug-command", "yes"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        Server { child, port }
    }

    /// Starts a server in the directory, and connects a client.
    fn start(&self, options: &[&str]) -> (Server, Client) {
        let server = self.spawn(options);
        let start = Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", server.port)) {
                Ok(stream) => break stream,
                Err(_) => assert!(start.elapsed() < PATIENCE, "the server does not listen"),
            }
            sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
        (server, Client(BufReader::new(stream)))
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        // Anything left over is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server; killed at the end of the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn terminate(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).expect("signals");
    }

    fn wait_for_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the server has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, command: &str) {
        let request = format!("{command}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).expect("sends");
    }

    /// Returns the reply to a command: the line, or the string that follows it.
    fn call(&mut self, command: &str) -> String {
        self.send(command);
        let mut line = String::new();
        self.0.read_line(&mut line).expect("receives");
        let line = line.trim_end().to_owned();
        match line.strip_prefix('$').map(str::parse::<usize>) {
            Some(Ok(length)) => {
                let mut text = vec![0; length + 2];
                self.0.read_exact(&mut text).expect("receives");
                String::from_utf8_lossy(&text[..length]).into_owned()
            }
            _ => line,
        }
    }

    /// Returns a field of INFO.
    fn info(&mut self, field: &str) -> String {
        let text = self.call("INFO everything");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().to_owned()
    }
}

fn fill(client: &mut Client) -> String {
    for number in 0..2000 {
        client.call(&format!("RPUSH list:{number} a b {number}"));
        client.call(&format!("HSET hash:{} field:{number} value", number % 7));
    }
    client.call("SET later value EX 10000");
    client.call("DEBUG DIGEST")
}

#[test]
fn the_next_server_loads_the_saved_data() {
    let place = TestDirectory::new();
    let (server, mut client) = place.start(&["--save", ""]);
    let digest = fill(&mut client);
    assert_ne!(client.info("rdb_changes_since_last_save"), "0");
    assert_eq!(client.call("SAVE"), "+OK");
    assert_eq!(client.info("rdb_changes_since_last_save"), "0");
    assert_eq!(client.info("rdb_saves"), "1");
    assert_eq!(
        client.call("LASTSAVE"),
        format!(":{}", client.info("rdb_last_save_time"))
    );
    client.call("SET after save");
    drop(server);

    let (_server, mut client) = place.start(&["--save", ""]);
    assert_eq!(client.call("DEBUG DIGEST"), digest);
    assert_eq!(client.info("rdb_last_load_keys_loaded"), "2008");
    assert_eq!(client.info("db0").split(",avg").next(), Some("keys=2008,expires=1"));
    assert!(
        place
            .log()
            .contains("Done loading RDB, keys loaded: 2008, keys expired: 0")
    );
}

#[test]
fn data_is_reloaded_in_place() {
    let place = TestDirectory::new();
    let (_server, mut client) = place.start(&["--save", ""]);
    let digest = fill(&mut client);
    assert_eq!(client.call("DEBUG RELOAD"), "+OK");
    assert_eq!(client.call("DEBUG DIGEST"), digest);
    client.call("SET list:0 other");
    assert_eq!(
        client.call("DEBUG RELOAD NOSAVE NOFLUSH"),
        "-ERR Error trying to load the RDB dump, check server logs."
    );
    assert_eq!(client.call("DEBUG RELOAD NOSAVE NOFLUSH MERGE"), "+OK");
    assert_eq!(client.call("DEBUG DIGEST"), digest);
    assert_eq!(client.call("DBSIZE"), ":2008");
}

#[test]
fn the_last_dump_is_written_before_the_end() {
    for by_signal in [true, false] {
        let place = TestDirectory::new();
        let (mut server, mut client) = place.start(&["--save", "3600 1"]);
        client.call("SET key value");
        if by_signal {
            server.terminate();
        } else {
            client.send("SHUTDOWN");
        }
        assert!(server.wait_for_end().success());
        let (mut server, mut client) = place.start(&["--save", "3600 1"]);
        assert_eq!(client.call("GET key"), "value");
        client.call("SET key other");
        client.send("SHUTDOWN NOSAVE");
        assert!(server.wait_for_end().success());
        let (_server, mut client) = place.start(&["--save", ""]);
        assert_eq!(client.call("GET key"), "value");
    }
}

#[test]
fn a_server_that_cannot_save_does_not_end() {
    let place = TestDirectory::new();
    let (mut server, mut client) = place.start(&["--save", ""]);
    client.call("SET key value");
    // A directory cannot be replaced by a file.
    fs::create_dir(place.dump()).expect("creates a directory");
    assert_eq!(client.call("SAVE"), "-ERR");
    assert_eq!(
        client.call("SHUTDOWN SAVE"),
        "-ERR Errors trying to SHUTDOWN. Check logs."
    );
    assert_eq!(client.call("SET key other"), "+OK");
    assert!(place.log().contains("Error trying to save the DB, can't exit."));
    let left: Vec<_> = fs::read_dir(&place.0).expect("reads").filter_map(Result::ok).collect();
    assert!(
        left.iter()
            .all(|file| !file.file_name().to_string_lossy().starts_with("temp-"))
    );
    client.send("SHUTDOWN SAVE FORCE");
    assert!(server.wait_for_end().success());
}

#[test]
fn a_damaged_dump_prevents_the_start() {
    let place = TestDirectory::new();
    let (server, mut client) = place.start(&["--save", ""]);
    fill(&mut client);
    assert_eq!(client.call("SAVE"), "+OK");
    drop(server);
    let whole = fs::read(place.dump()).expect("reads");
    fs::write(place.dump(), &whole[..whole.len() / 2]).expect("writes");
    let mut server = place.spawn(&["--save", ""]);
    assert_eq!(server.wait_for_end().code(), Some(1));
    let log = place.log();
    for line in [
        "Short read or OOM loading DB. Unrecoverable error, aborting now.",
        "Unexpected EOF reading RDB file",
        "Fatal error loading the DB, check server logs. Exiting.",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert!(log.trim_end().ends_with("Exiting."), "nothing follows: {log}");
}

/// Newer versions of other servers use these types and opcodes in a different way.
#[test]
fn a_type_newer_than_its_file_prevents_the_start() {
    let place = TestDirectory::new();
    let (server, mut client) = place.start(&["--save", ""]);
    assert_eq!(client.call("HSETEX hash EX 1000 FIELDS 1 field value"), ":1");
    assert_eq!(client.call("SAVE"), "+OK");
    drop(server);
    let mut dump = fs::read(place.dump()).expect("reads");
    assert!(dump.starts_with(b"VALKEY080"));
    dump[..9].copy_from_slice(b"REDIS0011");
    fs::write(place.dump(), &dump).expect("writes");
    let mut server = place.spawn(&["--save", "", "--rdbchecksum", "no"]);
    assert_eq!(server.wait_for_end().code(), Some(1));
    let log = place.log();
    let line = "Can't handle foreign type or opcode 22 in RDB with version 11";
    assert!(log.contains(line), "{log}");
}

#[test]
fn a_dump_with_a_truncated_checksum_prevents_the_start() {
    let place = TestDirectory::new();
    let (server, mut client) = place.start(&["--save", ""]);
    fill(&mut client);
    assert_eq!(client.call("SAVE"), "+OK");
    drop(server);
    let whole = fs::read(place.dump()).expect("reads");
    for missing in [1, 4, 8] {
        fs::write(place.dump(), &whole[..whole.len() - missing]).expect("writes");
        let mut server = place.spawn(&["--save", "", "--rdbchecksum", "no"]);
        assert_eq!(server.wait_for_end().code(), Some(1), "{missing} bytes are missing");
    }
}

/// Any client may send payloads, so the number of log lines that they cause is limited.
#[test]
fn invalid_payloads_do_not_flood_the_log() {
    let place = TestDirectory::new();
    let (server, mut client) = place.start(&["--save", ""]);
    assert_eq!(client.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "+OK");
    let start = Instant::now();
    for _ in 0..500 {
        let answer = client.call("RESTORE key 0 \"\\x16\\x05\\x01\\x50\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"");
        assert_eq!(answer, "-ERR Bad data format");
    }
    let lines = place.log().matches("RESTORE was given a payload").count() as u64;
    let seconds = start.elapsed().as_secs() + 2;
    assert!((1..=seconds).contains(&lines), "{lines} lines");
    drop(server);
}
