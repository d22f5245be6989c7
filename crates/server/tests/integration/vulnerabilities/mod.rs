//! One test for each class of published vulnerabilities of Redis and Valkey, named by its CVE. A test sends what an
//! attacker sends to a server with 4 active workers and a limited address space. The server must give Valkey's error,
//! stay alive, need little memory, and serve another client.
//!
//! Replies that Valkey 9.1.2 gives as well are held against a real one. Tests that do this are ignored by name, as all
//! that need Valkey.

mod access;
mod check_programs;
mod cluster_bus;
mod connections;
mod integers;
mod lua_libraries;
mod lua_sandbox;
mod patterns;
mod payloads;
mod replication;
mod sandbox_names;
mod streams;

use std::time::{Duration, Instant};

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::valkey::Valkey;

/// The limit of a server's address space in KiB. An idle server uses about 330,000 KiB of it.
const ADDRESS_SPACE_KIB: u64 = 2 << 20;

/// A command and the reply that it must get, as [`Client::answer`] writes it.
type Case<'a> = (&'a [&'a str], &'a str);

/// A server under attack, the attacker's connection, and that of another client.
struct Target {
    server: Server,
    attacker: Client,
    witness: Client,
}

impl Target {
    fn start(arguments: &[&str]) -> Target {
        let workers = ["--io-threads", "4", "--io-threads-always-active", "yes"];
        let server = Server::start_limited(ADDRESS_SPACE_KIB, &[&workers, arguments].concat());
        let (mut attacker, mut witness) = (Client::connect(server.port), Client::connect(server.port));
        // Both are accepted before a test changes what new connections may do.
        for client in [&mut attacker, &mut witness] {
            assert_eq!(client.call(&["PING"]), "PONG");
        }
        Target {
            server,
            attacker,
            witness,
        }
    }

    /// Checks that the server serves another client.
    fn serves(&mut self) {
        assert_eq!(self.witness.call(&["PING"]), "PONG");
    }

    /// Checks that the server serves another client, and that its process has at most this many bytes in memory.
    fn serves_within(&mut self, bytes: u64) {
        self.serves();
        let resident: u64 = self.witness.info("used_memory_rss").parse().expect("a number");
        assert!(resident <= bytes, "{resident} bytes are in memory");
    }

    /// Sends each command and checks its reply, with another client served in between.
    fn answers(&mut self, cases: &[Case<'_>]) {
        for (words, reply) in cases {
            assert_eq!(self.attacker.call(words), *reply, "{words:?}");
            self.serves();
        }
    }

    fn connect(&self) -> Client {
        Client::connect(self.server.port)
    }
}

/// Starts a server, sends each command and checks its reply. A Valkey must give the same replies.
fn like_valkey(arguments: &[&str], cases: &[Case<'_>]) -> Target {
    let mut target = Target::start(arguments);
    target.answers(cases);
    let valkey = Valkey::start(arguments);
    let mut client = Client::connect(valkey.port);
    for (words, reply) in cases {
        assert_eq!(client.call(words), *reply, "Valkey: {words:?}");
    }
    target
}

/// Runs each script and checks its reply, as [`like_valkey`] does.
fn scripts_like_valkey(scripts: &[(&str, &str)]) -> Target {
    let commands: Vec<[&str; 3]> = scripts.iter().map(|(script, _)| ["EVAL", script, "0"]).collect();
    let cases: Vec<Case<'_>> = commands
        .iter()
        .zip(scripts)
        .map(|(words, case)| (&words[..], case.1))
        .collect();
    like_valkey(&[], &cases)
}

/// Returns the error reply of a script that failed with this message in its first line.
fn failed(message: &str) -> String {
    format!("ERR user_script:1: {message} script: on @user_script:1.")
}

/// Runs each script and checks the message with which it fails, as [`like_valkey`] does.
fn scripts_fail_like_valkey(scripts: &[(&str, &str)]) -> Target {
    let replies: Vec<String> = scripts.iter().map(|(_, message)| failed(message)).collect();
    let cases: Vec<(&str, &str)> = scripts
        .iter()
        .zip(&replies)
        .map(|(case, reply)| (case.0, reply.as_str()))
        .collect();
    scripts_like_valkey(&cases)
}

/// Checks that `action` takes less than a test's time limit.
fn in_time(action: impl FnOnce()) {
    let start = Instant::now();
    action();
    assert!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
}

/// A pause between two looks at something that has to happen.
const PAUSE: Duration = Duration::from_millis(10);
