//! Tests the second step of FLUSHALL: a background thread frees the data and replaces the dump. The data is deleted by
//! then, so this step is done whatever becomes of the client.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Client, Server};

const KEY: &str = "precious-key";
/// The contents of the configuration file.
const CONFIGURATION: &str = "maxmemory-samples 7\n";
/// The number of threads for long commands.
const THREADS: usize = 2;

/// A server whose dump has a key, and whose threads for long commands are all occupied.
struct BusyServer {
    server: Server,
    admin: Client,
    /// The configuration file, from which CONFIG REWRITE reads until something is written to it.
    file: PathBuf,
    /// Clients that rewrite the file: one thread reads it, and the other one waits for the first.
    rewriting: Vec<Client>,
    background_commands: usize,
}

impl BusyServer {
    fn start(workers: &str) -> BusyServer {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("weft-flushes-{}-{number}.conf", std::process::id()));
        fs::write(&file, CONFIGURATION).expect("writes");
        let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let server = Server::start_from(Some(&file.display().to_string()), &threads);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CONFIG", "SET", "save", "3600 1"]), "OK");
        assert_eq!(
            admin.call(&["ACL", "SETUSER", "joe", "on", "nopass", "~*", "&*", "+@all"]),
            "OK"
        );
        assert_eq!(admin.call(&["SET", KEY, "value"]), "OK");
        assert_eq!(admin.call(&["SAVE"]), "OK");
        fs::remove_file(&file).expect("removes");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("makes a pipe");
        let before: usize = admin.info("weft_background_commands").parse().expect("a number");
        let mut rewriting: Vec<Client> = (0..THREADS).map(|_| Client::connect(server.port)).collect();
        for client in &mut rewriting {
            client.send(&["CONFIG", "REWRITE"]);
        }
        let mut busy = BusyServer {
            server,
            admin,
            file,
            rewriting,
            background_commands: before,
        };
        busy.await_background_commands(THREADS);
        busy
    }

    /// Waits until this number of further commands has left for a background thread.
    fn await_background_commands(&mut self, count: usize) {
        self.background_commands += count;
        let expected = self.background_commands.to_string();
        self.admin.wait_for_info("weft_background_commands", &expected);
    }

    /// Connects as joe, and sends a FLUSHALL, whose second step waits for a thread. Returns the client and its id.
    fn flush(&mut self, words: &[&str]) -> (Client, String) {
        let mut joe = Client::connect(self.server.port);
        assert_eq!(joe.call(&["AUTH", "joe", "x"]), "OK");
        let id = joe.call(&["CLIENT", "ID"]);
        joe.send(words);
        self.await_background_commands(1);
        assert_eq!(self.admin.call(&["DBSIZE"]), "0");
        assert!(self.dump_has_key() && joe.is_waiting(), "the second step waits");
        (joe, id)
    }

    fn dump_has_key(&self) -> bool {
        let dump = fs::read(self.server.directory.join("dump.rdb")).expect("reads");
        dump.windows(KEY.len()).any(|bytes| bytes == KEY.as_bytes())
    }

    /// Lets the threads go on, and waits until they have no work.
    fn release(&mut self) {
        fs::write(&self.file, CONFIGURATION).expect("writes");
        for client in &mut self.rewriting {
            assert_eq!(client.answer(), "OK");
        }
        self.admin.wait_for_info("weft_unfinished_jobs", "0");
    }
}

impl Drop for BusyServer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

#[test]
fn the_dump_is_replaced_although_the_client_of_the_flush_is_killed() {
    for workers in ["2", "8"] {
        for words in [&["FLUSHALL", "ASYNC"], &["FLUSHALL", "SYNC"]] {
            let mut busy = BusyServer::start(workers);
            let (_joe, id) = busy.flush(words);
            assert_eq!(busy.admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
            busy.release();
            assert!(!busy.dump_has_key(), "{workers} workers, {words:?}");
        }
    }
}

#[test]
fn a_flush_is_not_refused_after_it_has_taken_effect() {
    for words in [&["FLUSHALL", "ASYNC"], &["FLUSHALL", "SYNC"]] {
        let mut busy = BusyServer::start("2");
        let (mut joe, _) = busy.flush(words);
        assert_eq!(busy.admin.call(&["ACL", "SETUSER", "joe", "-flushall"]), "OK");
        busy.release();
        assert_eq!(joe.answer(), "OK", "{words:?}");
        assert!(!busy.dump_has_key(), "{words:?}");
        assert!(joe.call(words).starts_with("NOPERM"), "the next one is refused");
    }
}
