//! Tests parameters that affect the process itself: number of clients, thread affinity, title, locale, hash seed, OOM
//! score.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{PATIENCE, SERVER, Server, TestDirectory, assert_in_order, exchange, ping, text, wait_until};
use crate::harness::port::free_port;

#[test]
fn clients_beyond_maxclients_are_refused() {
    let place = TestDirectory::new();
    let server = place.start(&["--maxclients", "2"]);
    let (mut first, mut second) = (server.connect(), server.connect());
    ping(&mut first);
    ping(&mut second);
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).expect("is closed");
    assert_eq!(answer, "-ERR max number of clients reached\r\n");
    ping(&mut first);
    drop(second);
    wait_until("a free place", || {
        let mut third = server.connect();
        let mut reply = [0; 7];
        third.write_all(b"PING\r\n").is_ok() && third.read_exact(&mut reply).is_ok() && &reply == b"+PONG\r\n"
    });
    server.stop();
}

#[test]
fn maxclients_is_lowered_to_what_the_limit_on_open_files_allows() {
    let place = TestDirectory::new();
    // No kernel permits this many files.
    let server = place.start(&["--maxclients", "4294967295"]);
    ping(&mut server.connect());
    assert_in_order(
        &place.read("log"),
        &[
            "# You requested maxclients of 4294967295 requiring at least 4294967327 max file descriptors.",
            "# Server can't set maximum open files to 4294967327 because of OS error: ",
            "maxclients has been reduced to",
        ],
    );
    server.stop();
}

#[test]
fn threads_have_their_names_and_configured_cpus() {
    let place = TestDirectory::new();
    let cpu = weft_reactor::allowed_cpus().expect("knows its CPUs")[0].to_string();
    let server = place.start(&["--server-cpulist", &cpu, "--bio-cpulist", "9999"]);
    ping(&mut server.connect());
    let tasks = format!("/proc/{}/task", server.child.id());
    let threads = || {
        let tasks = fs::read_dir(&tasks).expect("has threads");
        // A thread that has ended meanwhile is skipped.
        tasks.filter_map(|task| {
            let task = task.expect("has a name").path();
            let name = fs::read_to_string(task.join("comm")).ok()?.trim().to_owned();
            let status = fs::read_to_string(task.join("status")).ok()?;
            let allowed = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some((name, allowed.trim().to_owned()))
        })
    };
    // A thread sets its name and affinity when it first runs, which may be after a client was served.
    let start = Instant::now();
    let patient = || {
        sleep(Duration::from_millis(1));
        start.elapsed() < PATIENCE
    };
    let expected = ["weft-worker-0", "weft-worker-1", "weft-bg-0", "weft-lazyfree"];
    let is_there = |expected: &&str| threads().any(|(name, _)| name == *expected);
    while !expected.iter().all(is_there) {
        assert!(patient(), "{expected:?} in {:?}", threads().collect::<Vec<_>>());
    }
    let is_pinned = |(name, allowed): (String, String)| !name.starts_with("weft-worker-") || allowed == cpu;
    while !threads().all(is_pinned) {
        assert!(
            patient(),
            "workers are not on CPU {cpu}: {:?}",
            threads().collect::<Vec<_>>()
        );
    }
    assert!(place.read("log").contains("bio-cpulist '9999' names no CPU"));
    server.stop();
}

/// Returns the command line that the system shows; `None` if the kernel does not permit processes to change theirs.
fn title(server: &Server) -> Option<String> {
    let shown = fs::read(format!("/proc/{}/cmdline", server.child.id())).expect("reads");
    let has_arguments = shown.windows(6).any(|part| part == b"--bind");
    (!has_arguments).then(|| text(&shown).trim_end_matches('\0').to_owned())
}

#[test]
fn the_process_title_follows_the_template() {
    let place = TestDirectory::new();
    let server = place.start(&[
        "--loglevel",
        "debug",
        "--proc-title-template",
        "{title} at {listen-addr} {config-file} {tls-port}",
    ]);
    let Some(shown) = title(&server) else {
        // Kernels without CONFIG_CHECKPOINT_RESTORE refuse, and the server says so.
        assert!(place.read("log").contains("The process title could not be set"));
        return;
    };
    let port = server.port;
    assert_eq!(shown, format!("{SERVER} at 127.0.0.1:{port} - 0"));
    let mut client = server.connect();
    let set = |client: &mut TcpStream, template: &str| {
        let request = format!(
            "*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$19\r\nproc-title-template\r\n${}\r\n{template}\r\n",
            template.len()
        );
        exchange(client, request.as_bytes(), b"+OK\r\n");
    };
    let long = "x".repeat(300);
    set(&mut client, &format!("{long} {{port}} {{server-mode}}"));
    assert_eq!(title(&server), Some(format!("{long} {port}")));
    set(&mut client, "short {port}");
    assert_eq!(title(&server), Some(format!("short {port}")));
    let other = free_port();
    let request = format!("CONFIG SET port {other}\r\n");
    exchange(&mut client, request.as_bytes(), b"+OK\r\n");
    assert_eq!(title(&server), Some(format!("short {other}")));
    drop(client);
    server.stop();

    fs::remove_file(place.file("log")).expect("removes");
    let server = place.start(&["--set-proc-title", "no", "--proc-title-template", "nobody sees this"]);
    assert_eq!(title(&server), None);
    server.stop();
}

#[test]
fn a_missing_locale_is_refused() {
    let place = TestDirectory::new();
    let output = place.fail(free_port(), &["--locale-collate", "no_SUCH.locale"]);
    assert!(text(&output.stdout).contains("Failed to configure LOCALE for invalid locale name."));
    let server = place.start(&["--locale-collate", "C"]);
    let mut client = server.connect();
    let refused = b"-ERR CONFIG SET failed (possibly related to argument 'locale-collate') - Invalid locale name\r\n";
    exchange(&mut client, b"CONFIG SET locale-collate no_SUCH.locale\r\n", refused);
    exchange(
        &mut client,
        b"CONFIG GET locale-collate\r\n",
        b"*2\r\n$14\r\nlocale-collate\r\n$1\r\nC\r\n",
    );
    exchange(&mut client, b"RPUSH l b B a\r\n", b":3\r\n");
    let sorted = b"*3\r\n$1\r\nB\r\n$1\r\na\r\n$1\r\nb\r\n";
    exchange(&mut client, b"SORT l ALPHA\r\n", sorted);
    exchange(&mut client, b"CONFIG SET locale-collate POSIX\r\n", b"+OK\r\n");
    exchange(&mut client, b"SORT l ALPHA\r\n", sorted);
    drop(client);
    server.stop();
}

/// A collation order that is the order of no other locale: `b B a A`.
const BACKWARD_LOCALE: &str = "LC_COLLATE
order_start forward
<U0062>
<U0042>
<U0061>
<U0041>
order_end
END LC_COLLATE
";

#[test]
fn sort_alpha_follows_the_locale() {
    let place = TestDirectory::new();
    fs::write(place.file("backward.txt"), BACKWARD_LOCALE).expect("writes");
    // Its status is 1 because the other categories are not defined, and `-c` makes the locale nevertheless.
    let made = Command::new("localedef")
        .args(["-c", "--quiet", "-i"])
        .args([place.file("backward.txt"), place.file("weft_BACKWARD")])
        .output()
        .expect("localedef, a program of the C library, is installed");
    assert!(place.file("weft_BACKWARD/LC_COLLATE").exists(), "{made:?}");
    let port = free_port();
    let mut command = place.command(port, &["--locale-collate", "weft_BACKWARD"]);
    let child = place.spawn(command.env("LOCPATH", &place.0));
    let server = Server { child, port };
    wait_until("the server", || {
        place.read("log").contains("Ready to accept connections")
    });
    let mut client = server.connect();
    exchange(&mut client, b"RPUSH l a A b B\r\n", b":4\r\n");
    let sorted = b"*4\r\n$1\r\nb\r\n$1\r\nB\r\n$1\r\na\r\n$1\r\nA\r\n";
    exchange(&mut client, b"SORT l ALPHA\r\n", sorted);
    exchange(&mut client, b"CONFIG SET locale-collate C\r\n", b"+OK\r\n");
    let sorted = b"*4\r\n$1\r\nA\r\n$1\r\nB\r\n$1\r\na\r\n$1\r\nb\r\n";
    exchange(&mut client, b"SORT l ALPHA\r\n", sorted);
    drop(client);
    server.stop();
}

#[test]
fn the_same_seed_puts_keys_into_the_same_order() {
    let place = TestDirectory::new();
    let order = |seed: &str| {
        let server = place.start(&["--hash-seed", seed, "--save", ""]);
        let mut client = server.connect();
        for key in 0..20 {
            exchange(
                &mut client,
                format!("SADD s{key} a b c {key} e f\r\n").as_bytes(),
                b":6\r\n",
            );
        }
        client.write_all(b"KEYS *\r\nSMEMBERS s7\r\nPING\r\n").expect("sends");
        let mut reply = Vec::new();
        while !reply.ends_with(b"+PONG\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("receives");
            reply.push(byte[0]);
        }
        drop(client);
        server.stop();
        fs::remove_file(place.file("log")).expect("removes");
        text(&reply)
    };
    let first = order("a seed");
    assert_eq!(first, order("a seed"));
    assert_ne!(first, order("another"));
}

#[test]
fn the_oom_score_follows_the_configuration() {
    let place = TestDirectory::new();
    let before: i64 = fs::read_to_string("/proc/self/oom_score_adj")
        .expect("reads")
        .trim()
        .parse()
        .expect("a number");
    for (mode, expected) in [
        ("no", before),
        ("relative", (before + 7).min(1000)),
        ("absolute", before.max(0) + 7),
    ] {
        let wanted = if mode == "absolute" { expected.min(1000) } else { 7 };
        let values = format!("{wanted} 0 0");
        let server = place.start(&["--oom-score-adj", mode, "--oom-score-adj-values", &values]);
        let path = format!("/proc/{}/oom_score_adj", server.child.id());
        let adjusted = || fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        wait_until(mode, || adjusted() == Some(expected.min(1000)));
        server.stop();
        fs::remove_file(place.file("log")).expect("removes");
    }
}
