//! Modules that come while another thread is about to have exclusive mode: for a snapshot, a flush or a load. Their
//! code runs on the home worker all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{module, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

const TEST_DURATION: Duration = Duration::from_secs(4);
const SETTINGS: [&str; 6] = [
    "--enable-module-command",
    "yes",
    "--enable-debug-command",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

fn sends_in_a_loop(port: u16, words: &'static [&'static str], stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let stop = stop.clone();
    thread::spawn(move || {
        let mut client = Client::connect(port);
        while !stop.load(Ordering::Relaxed) {
            client.call(words);
        }
    })
}

/// Returns the reply to a command, which is sent again while the server refuses it because data are loaded. The time of
/// a script goes on once it is overdue, so a script that waits for a time ends while clients are told that it runs.
fn call_once_loaded(client: &mut Client, words: &[&str]) -> String {
    let mut reply = String::new();
    wait_until("the data are loaded", || {
        reply = client.call(words);
        !reply.starts_with("LOADING ") && !reply.starts_with("BUSY ")
    });
    reply
}

#[test]
fn a_module_that_comes_and_goes_is_called_at_home() {
    for workers in [4, 8] {
        let server = start_with(workers, &[], &[&SETTINGS[..], &["--appendonly", "yes"]].concat());
        let mut client = Client::connect(server.port);
        for number in 0..100 {
            client.call(&["SET", &format!("k{number}"), "v"]);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let requests: [&'static [&'static str]; 5] = [
            &["BGSAVE"],
            &["BGREWRITEAOF"],
            &["DEBUG", "RELOAD"],
            &["SAVE"],
            &["FLUSHDB", "ASYNC"],
        ];
        let others: Vec<_> = requests
            .into_iter()
            .map(|words| sends_in_a_loop(server.port, words, &stop))
            .collect();
        let (path, until) = (module("moments"), Instant::now() + TEST_DURATION);
        let mut loads = 0;
        while Instant::now() < until {
            assert_eq!(call_once_loaded(&mut client, &["MODULE", "LOAD", &path]), "OK");
            client.call(&["SET", "k", "v"]);
            assert!(call_once_loaded(&mut client, &["moments.counts"]).starts_with('('));
            assert_eq!(call_once_loaded(&mut client, &["MODULE", "UNLOAD", "moments"]), "OK");
            loads += 1;
        }
        stop.store(true, Ordering::Relaxed);
        others
            .into_iter()
            .for_each(|other| other.join().expect("no thread failed"));
        assert!(loads > 0);
    }
}

/// The dump of a primary comes while a script runs. The module is loaded before the replica drops its data.
#[test]
fn a_module_that_is_loaded_before_a_replica_drops_its_data_is_called_at_home() {
    for workers in [4, 8] {
        let primary = Server::start(&["--repl-diskless-sync-delay", "1"]);
        let mut on_primary = Client::connect(primary.port);
        for number in 0..100 {
            on_primary.call(&["SET", &format!("k{number}"), "v"]);
        }
        let settings = [&SETTINGS[..], &["--repl-diskless-load", "flush-before-load"]].concat();
        let replica = start_with(workers, &[], &settings);
        let mut client = Client::connect(replica.port);
        assert_eq!(client.call(&["SET", "old", "v"]), "OK");
        assert_eq!(
            client.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]),
            "OK"
        );
        let mut scripting = Client::connect(replica.port);
        let script = "local t = server.call('time'); local until_s = tonumber(t[1]) + 3 \
                      repeat local t = server.call('time') until tonumber(t[1]) >= until_s return 1";
        scripting.send(&["EVAL_RO", script, "0"]);
        thread::sleep(Duration::from_millis(200));
        let load = ["MODULE", "LOAD", &module("moments"), "type"];
        assert_eq!(call_once_loaded(&mut client, &load), "OK");
        assert_eq!(scripting.answer(), "1");
        wait_until("the replica has the data", || client.call(&["DBSIZE"]) == "100");
        // A load, and the flush before it, unless the module has come too late.
        let counts = call_once_loaded(&mut client, &["moments.counts"]);
        assert!(counts.starts_with('('), "{counts}");
    }
}
