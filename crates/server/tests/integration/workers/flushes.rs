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
    /// The file of users, from which ACL LOAD does.
    users_file: PathBuf,
    /// The client that rewrites the configuration.
    rewriting: Client,
    /// The client that loads the users.
    loading: Client,
    background_commands: usize,
}

impl BusyServer {
    fn start(workers: &str) -> BusyServer {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("weft-flushes-{}-{number}.conf", std::process::id()));
        let users_file = file.with_extension("acl");
        fs::write(&file, CONFIGURATION).expect("writes");
        fs::write(&users_file, "").expect("writes");
        let users = users_file.display().to_string();
        let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let arguments = [&threads[..], &["--aclfile", &users]].concat();
        let server = Server::start_from(Some(&file.display().to_string()), &arguments);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CONFIG", "SET", "save", "3600 1"]), "OK");
        assert_eq!(
            admin.call(&["ACL", "SETUSER", "joe", "on", "nopass", "~*", "&*", "+@all"]),
            "OK"
        );
        assert_eq!(admin.call(&["SET", KEY, "value"]), "OK");
        assert_eq!(admin.call(&["SAVE"]), "OK");
        for pipe in [&file, &users_file] {
            fs::remove_file(pipe).expect("removes");
            nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).expect("makes a pipe");
        }
        let before: usize = admin.info("weft_background_commands").parse().expect("a number");
        let [mut rewriting, mut loading] = [0; THREADS].map(|_| Client::connect(server.port));
        rewriting.send(&["CONFIG", "REWRITE"]);
        loading.send(&["ACL", "LOAD"]);
        let mut busy = BusyServer {
            server,
            admin,
            file,
            users_file,
            rewriting,
            loading,
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
        assert_eq!(self.rewriting.answer(), "OK");
        // Rules that are refused change no user.
        fs::write(&self.users_file, "no rule").expect("writes");
        let answer = self.loading.answer();
        assert!(answer.contains("should start with user keyword"), "{answer}");
        self.admin.wait_for_info("weft_unfinished_jobs", "0");
    }
}

impl Drop for BusyServer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(&self.users_file);
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
