//! Tests concurrent rewrites, and disks that fail.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use super::files::{ALWAYS, full_place};
use super::server::{Client, Server, TestDirectory, weft};
use crate::harness::wait_until;

/// Sends one command from each of two connections at the same time.
fn send_together(server: &Server, commands: [&[&str]; 2]) {
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for words in commands {
            let (barrier, mut client) = (&barrier, server.client());
            scope.spawn(move || {
                client.call(&["PING"]);
                barrier.wait();
                client.call(words);
            });
        }
    });
}

fn await_rest(client: &mut Client) {
    wait_until("no rewrite is under way", || {
        client.info("aof_rewrite_in_progress") == "0"
            && client.info("aof_rewrite_scheduled") == "0"
            && client.info("rdb_bgsave_in_progress") == "0"
    });
}

/// Checks that however two requests interleave, answered writes survive a kill and the server starts again.
fn lose_nothing(workers: &[&str], first: &[&str], second: &[&str]) {
    const ROUNDS: u64 = 20;
    let place = TestDirectory::new();
    let arguments = [ALWAYS, workers].concat();
    let server = Server::start(&weft(), &place, &arguments);
    let mut client = server.client();
    for round in 0..ROUNDS {
        if first.contains(&"appendonly") || second.contains(&"appendonly") {
            await_rest(&mut client);
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        }
        send_together(&server, [first, second]);
        await_rest(&mut client);
        assert_eq!(client.info("aof_enabled"), "1", "{first:?} {second:?}");
        assert_eq!(client.call(&["SET", &format!("key:{round}"), "value"]), "OK");
    }
    server.kill();
    let server = Server::start(&weft(), &place, &arguments);
    let kept = server.client().call(&["DBSIZE"]);
    assert_eq!(kept, ROUNDS.to_string(), "{first:?} {second:?}: {}", place.log());
}

#[test]
fn the_file_is_switched_on_and_off_within_a_transaction() {
    for first in ["yes", "no"] {
        let place = TestDirectory::new();
        let server = Server::start(&weft(), &place, &["--appendonly", "no"]);
        let mut client = server.client();
        let second = if first == "yes" { "no" } else { "yes" };
        if first == "no" {
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
        }
        assert_eq!(client.call(&["MULTI"]), "OK");
        for value in [first, second] {
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", value]), "QUEUED");
        }
        client.call(&["EXEC"]);
        // Waits until the changes are applied.
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", second]), "OK");
        assert_eq!(client.call(&["SET", "key", "value"]), "OK");
    }
}

#[test]
fn concurrent_rewrites_lose_no_later_write() {
    let workers: [&[&str]; 3] = [
        &["--io-threads", "1"],
        &["--io-threads", "2", "--io-threads-always-active", "yes"],
        &["--io-threads", "8", "--io-threads-always-active", "yes"],
    ];
    for workers in workers {
        lose_nothing(workers, &["BGREWRITEAOF"], &["BGREWRITEAOF"]);
        lose_nothing(workers, &["BGREWRITEAOF"], &["CONFIG", "SET", "appendonly", "yes"]);
        lose_nothing(workers, &["BGREWRITEAOF"], &["BGSAVE"]);
    }
}

/// The rewrite prepares its increment while the file is being switched off, with writes under way.
#[test]
fn a_rewrite_that_begins_while_the_file_is_switched_off_resumes_no_logging() {
    let place = TestDirectory::new();
    let arguments = [ALWAYS, &["--io-threads", "4", "--io-threads-always-active", "yes"]].concat();
    let server = Server::start(&weft(), &place, &arguments);
    let mut client = server.client();
    for round in 0..100 {
        send_together(&server, [&["CONFIG", "SET", "appendonly", "no"], &["BGREWRITEAOF"]]);
        assert_eq!(client.info("aof_enabled"), "0", "round {round}");
        assert_eq!(client.call(&["SET", "key", &round.to_string()]), "OK");
        await_rest(&mut client);
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
        assert_eq!(client.call(&["SET", "key", &round.to_string()]), "OK");
        await_rest(&mut client);
    }
    server.kill();
    let server = Server::start(&weft(), &place, &arguments);
    assert_eq!(server.client().call(&["GET", "key"]), "99", "{}", place.log());
}

#[test]
fn a_client_that_has_waited_for_the_disk_finds_the_rewrite_ended() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, ALWAYS);
    let (mut client, mut admin) = (server.client(), server.client());
    for round in 0..40 {
        assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
        assert_eq!(client.call(&["SET", "key", &round.to_string()]), "OK");
        assert_eq!(client.call(&["WAITAOF", "1", "0", "100000"]), "(1 0)");
        let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
        assert_eq!(fields.map(|field| client.info(field)), ["0", "0"], "round {round}");
    }
}

/// The base contains the commands that could not be written before it, so none of them may be appended after it.
#[test]
fn a_rewrite_on_a_full_disk_repeats_no_command_after_its_base() {
    let place = full_place();
    let server = Server::start(&weft(), &place, &["--appendfsync", "everysec"]);
    let mut client = server.client();
    let mut count = 0;
    wait_until("writing fails", || {
        let reply = client.call(&["INCR", "count"]);
        count += u64::from(reply == (count + 1).to_string());
        reply.starts_with("MISCONF")
    });
    assert!(count > 0);
    client.call(&["BGREWRITEAOF"]);
    wait_until("writing works again", || client.call(&["SET", "key", "value"]) == "OK");
    await_rest(&mut client);
    assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(client.call(&["GET", "count"]), count.to_string());
    assert_eq!(client.call(&["GET", "key"]), "value");
}

#[test]
fn an_empty_increment_after_a_truncated_one_does_not_prevent_the_start() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, ALWAYS);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "whole", "value"]), "OK");
    assert_eq!(client.call(&["SET", "cut", "value"]), "OK");
    server.kill();
    let last = place.increment();
    let bytes = fs::read(&last).expect("reads");
    fs::write(&last, &bytes[..bytes.len() - 3]).expect("writes");
    let manifest = place.part("appendonly.aof.manifest");
    let text = fs::read_to_string(&manifest).expect("reads");
    fs::write(&manifest, text + "file appendonly.aof.2.incr.aof seq 2 type i\n").expect("writes");
    fs::write(place.part("appendonly.aof.2.incr.aof"), "").expect("writes");
    for _ in 0..2 {
        let server = Server::start(&weft(), &place, ALWAYS);
        let mut client = server.client();
        assert_eq!(client.call(&["GET", "whole"]), "value");
        assert_eq!(client.call(&["GET", "cut"]), "-");
        assert_eq!(client.call(&["SET", "later", "value"]), "OK");
        server.kill();
    }
    assert!(!place.log().contains("Fatal"), "{}", place.log());
}

/// While the file is off, a rewrite still replaces what there was, as in Valkey. What was logged before the file was
/// switched off must not come back behind the new base.
#[test]
fn what_was_logged_before_the_file_was_off_does_not_return() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, ALWAYS);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "deleted", "value"]), "OK");
    assert_eq!(client.call(&["INCR", "count"]), "1");
    server.kill();
    let server = Server::start(&weft(), &place, &["--appendonly", "no"]);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "count", "5"]), "OK");
    client.call(&["BGREWRITEAOF"]);
    await_rest(&mut client);
    server.kill();
    for round in ["1", "2"] {
        let server = Server::start(&weft(), &place, ALWAYS);
        let mut client = server.client();
        assert_eq!(client.call(&["GET", "count"]), "5", "round {round}: {}", place.log());
        assert_eq!(client.call(&["GET", "deleted"]), "-", "round {round}");
        assert_eq!(client.call(&["SET", "later", round]), "OK");
        server.kill();
    }
    let names = fs::read_dir(place.part("")).expect("reads");
    let old = names
        .flatten()
        .filter(|name| name.file_name() == "appendonly.aof.1.base.rdb");
    assert_eq!(old.count(), 0, "the replaced files are deleted");
}

/// A server that ended between the naming of its first increment and the manifest leaves a file that no manifest names.
#[test]
fn a_file_that_no_manifest_names_is_not_appended_to() {
    let place = TestDirectory::new();
    fs::create_dir(place.part("")).expect("creates");
    let stray = b"*3\r\n$3\r\nSET\r\n$5\r\nstray\r\n$5\r\nvalue\r\n";
    fs::write(place.part("appendonly.aof.1.incr.aof"), stray).expect("writes");
    for round in ["1", "2"] {
        let server = Server::start(&weft(), &place, ALWAYS);
        let mut client = server.client();
        assert_eq!(client.call(&["GET", "stray"]), "-", "round {round}");
        assert_eq!(client.call(&["SET", "key", round]), "OK");
        server.kill();
    }
}

#[test]
fn a_time_that_was_cut_off_is_removed_before_anything_is_appended_to_it() {
    let place = TestDirectory::new();
    let arguments = [ALWAYS, &["--aof-timestamp-enabled", "yes"]].concat();
    let server = Server::start(&weft(), &place, &arguments);
    assert_eq!(server.client().call(&["SET", "key", "value"]), "OK");
    server.kill();
    let last = place.increment();
    let mut bytes = fs::read(&last).expect("reads");
    bytes.extend_from_slice(b"#TS:17");
    fs::write(&last, bytes).expect("writes");
    // The next record is not a timestamp, which would merge both into one comment.
    for _ in 0..2 {
        let server = Server::start(&weft(), &place, ALWAYS);
        let mut client = server.client();
        assert_eq!(client.call(&["GET", "key"]), "value");
        assert_eq!(client.call(&["SET", "later", "value"]), "OK");
        server.kill();
    }
}

/// Other users may read the directory but not write into it, whatever the umask permits for other files.
#[test]
fn only_its_owner_can_write_the_directory() {
    let place = TestDirectory::new();
    let weft = weft();
    let script = format!(
        "umask 0; exec {} --port 0 --unixsocket socket --appendonly yes --dir {} --logfile log",
        weft.display(),
        place.0.display()
    );
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    wait_until("there is a manifest", || place.part("appendonly.aof.manifest").exists());
    let mode = fs::metadata(place.part("")).expect("it is there").permissions().mode();
    child.kill().expect("it runs");
    let _ = child.wait();
    assert_eq!(mode & 0o777, 0o755);
}

/// While a slow rewrite runs, no reply waits for its end.
#[test]
fn writes_do_not_wait_for_snapshots_during_which_syncs_are_omitted() {
    let place = TestDirectory::new();
    let arguments = [
        ALWAYS,
        &["--no-appendfsync-on-rewrite", "yes", "--rdb-key-save-delay", "100000"],
    ]
    .concat();
    let server = Server::start(&weft(), &place, &arguments);
    let mut client = server.client();
    assert_eq!(client.call(&["DEBUG", "POPULATE", "10000"]), "OK");
    for command in ["BGREWRITEAOF", "BGSAVE"] {
        let running = match command {
            "BGSAVE" => "rdb_bgsave_in_progress",
            _ => "aof_rewrite_in_progress",
        };
        client.call(&[command]);
        wait_until("it is under way", || client.info(running) == "1");
        for _ in 0..20 {
            assert_eq!(client.call(&["SET", "key", "value"]), "OK");
        }
        assert_eq!(client.info(running), "1", "{command}: writes have waited for its end");
        // The omitted sync is made up for: afterwards replies wait for the disk again.
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        await_rest(&mut client);
        assert_eq!(client.call(&["SET", "key", "other"]), "OK");
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "(1 0)");
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "100000"]);
    }
}

/// CONFIG SET dir changes the directory of the process, and later rewrites use the new one.
#[test]
fn a_rewrite_ends_in_the_directory_in_which_it_began() {
    for as_dump in ["yes", "no"] {
        let place = TestDirectory::new();
        let other = place.0.join("other");
        fs::create_dir(&other).expect("creates");
        let own = ["--enable-protected-configs", "yes", "--aof-use-rdb-preamble", as_dump];
        let arguments = [ALWAYS, &own].concat();
        let server = Server::start(&weft(), &place, &arguments);
        let mut client = server.client();
        assert_eq!(client.call(&["DEBUG", "POPULATE", "100"]), "OK");
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]);
        client.call(&["BGREWRITEAOF"]);
        wait_until("the base is being written", || {
            let names = fs::read_dir(&place.0).expect("lists").flatten();
            names
                .map(|entry| entry.file_name())
                .any(|name| name.to_string_lossy().starts_with("temp-rewriteaof"))
        });
        assert_eq!(client.call(&["CONFIG", "SET", "dir", &other.to_string_lossy()]), "OK");
        assert_eq!(client.call(&["SET", "key", "value"]), "OK");
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        await_rest(&mut client);
        assert_eq!(client.info("aof_last_bgrewrite_status"), "ok", "{}", place.log());
        assert_eq!(fs::read_dir(&other).expect("lists").count(), 0);
        let mut names: Vec<_> = fs::read_dir(&place.0).expect("lists").flatten().collect();
        names.retain(|entry| entry.file_name().to_string_lossy().starts_with("temp-"));
        assert!(names.is_empty(), "{names:?}");
        let extension = if as_dump == "yes" { "rdb" } else { "aof" };
        assert!(place.part(&format!("appendonly.aof.2.base.{extension}")).exists());
        server.kill();
        let server = Server::start(&weft(), &place, &arguments);
        let kept = server.client().call(&["DBSIZE"]);
        assert_eq!(kept, "101", "{}", place.log());
    }
}

/// One key is written slowly: bytes on their way to the file are not data, and their number is limited.
#[test]
fn output_waiting_for_the_file_evicts_no_keys() {
    let place = TestDirectory::new();
    let arguments = ["--maxmemory", "60mb", "--maxmemory-policy", "allkeys-lru"];
    let server = Server::start(&weft(), &place, &arguments);
    let mut client = server.client();
    assert_eq!(client.call(&["DEBUG", "POPULATE", "10000", "key", "1000"]), "OK");
    // Every write to the file takes 0.2 seconds.
    assert_eq!(client.call(&["DEBUG", "AOF-FLUSH-SLEEP", "200000"]), "OK");
    let value = "v".repeat(64 << 10);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (server, value) = (&server, &value);
            scope.spawn(move || {
                let mut client = server.client();
                for _ in 0..400 {
                    client.send(&["SET", &format!("one:{writer}"), value]);
                }
                for _ in 0..400 {
                    assert_eq!(client.answer(), "OK");
                }
            });
        }
    });
    assert_eq!(client.call(&["DEBUG", "AOF-FLUSH-SLEEP", "0"]), "OK");
    assert_eq!(client.info("evicted_keys"), "0");
}
