//! Vulnerabilities of a replica whose primary is the attacker.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::Target;
use crate::harness::server::PATIENCE;
use crate::harness::wait_until;

/// An RDB file that Valkey wrote.
const DUMP: &[u8] = include_bytes!("../../../src/persistence/rdb_file/tests/valkey.rdb");
const ID: &str = "1111111111111111111111111111111111111111";

/// Answers the handshake of a replica up to its PSYNC request. A replica that gives up before is not the last one.
fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        let (stream, _) = listener.accept().expect("accepts");
        if let Some(link) = shake_hands(stream) {
            return link;
        }
    }
}

fn shake_hands(stream: TcpStream) -> Option<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let upper = line.trim_end().to_uppercase();
        let reply: &[u8] = match upper.as_str() {
            "PING" => b"+PONG\r\n",
            "REPLCONF" | "AUTH" => b"+OK\r\n",
            "PSYNC" => {
                // The two arguments that follow are of no interest.
                for _ in 0..4 {
                    reader.read_line(&mut line).ok()?;
                }
                return Some(reader.into_inner());
            }
            _ => continue,
        };
        reader.get_mut().write_all(reply).ok()?;
    }
}

/// The data and the libraries are replaced while functions, scripts and their debugger run.
#[test]
fn cve_2026_23631_a_full_synchronisation_waits_for_running_scripts() {
    let mut target = Target::start(&["--busy-reply-threshold", "1", "--repl-diskless-load", "swapdb"]);
    let library = "#!lua name=lib\nlocal kept = {} \
                   server.register_function{function_name = 'run', flags = {'no-writes'}, callback = function(keys, args) \
                   for i = 1, 8000000 do kept[i % 100] = {i} end return 99 end}";
    let script = "#!lua flags=no-writes,allow-stale\nlocal t = {} for i = 1, 8000000 do t[i % 100] = {i} end return 99";
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("is bound").port().to_string();
    for _ in 0..3 {
        assert_eq!(target.attacker.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        assert_eq!(target.attacker.call(&["FUNCTION", "LOAD", "REPLACE", library]), "lib");
        assert_eq!(target.attacker.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        let mut link = accept(&listener);
        let mut runners: Vec<_> = (0..4).map(|_| target.connect()).collect();
        for (index, runner) in runners.iter_mut().enumerate() {
            match index % 2 {
                0 => runner.send(&["FCALL_RO", "run", "0"]),
                _ => runner.send(&["EVAL_RO", script, "0"]),
            }
        }
        wait_until("a script runs for long", || {
            target.witness.call(&["PING"]).starts_with("BUSY")
        });
        link.write_all(format!("+FULLRESYNC {ID} 0\r\n${}\r\n", DUMP.len()).as_bytes())
            .expect("sends");
        link.write_all(DUMP).expect("sends");
        // Each script ends by itself, or its client is told why it did not run.
        for runner in &mut runners {
            let answer = runner.answer();
            let is_refused = ["BUSY", "LOADING", "ERR Function not found", "MASTERDOWN"];
            assert!(
                answer == "99" || is_refused.iter().any(|start| answer.starts_with(start)),
                "{answer}"
            );
        }
        wait_until("the link is up", || {
            target
                .witness
                .call(&["INFO", "replication"])
                .contains("master_link_status:up")
        });
        target.serves();
    }
    target.serves_within(600 << 20);
}

/// A primary that announces more than it sends makes its replica keep little.
#[test]
fn a_primary_that_announces_a_huge_file_takes_no_memory() {
    for announced in [
        "$9223372036854775807",
        "$99999999999999999999",
        "$-5",
        "$EOF:short",
        "$1099511627776",
    ] {
        for load in ["disabled", "swapdb"] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let address = format!("127.0.0.1 {}", listener.local_addr().expect("is bound").port());
            let mut target = Target::start(&["--replicaof", &address, "--repl-diskless-load", load]);
            let mut link = accept(&listener);
            link.write_all(format!("+FULLRESYNC {ID} 0\r\n{announced}\r\n").as_bytes())
                .expect("sends");
            let _ = link.write_all(&DUMP[..DUMP.len() / 2]);
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(10));
                let answer = target.witness.call(&["PING"]);
                assert!(answer == "PONG" || answer.starts_with("LOADING"), "{answer}");
            }
            let resident: u64 = target.witness.info("used_memory_rss").parse().expect("a number");
            assert!(resident <= 200 << 20, "{resident} bytes are in memory");
        }
    }
}
