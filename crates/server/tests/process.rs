//! The life of the process, seen from outside: start, log, sockets, signals, end.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

#[path = "harness/port.rs"]
mod port;

use port::free_port;

const SERVER: &str = env!("CARGO_BIN_EXE_weft-server");
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of its own for a test, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-process-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("creates a directory");
        Place(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn command(&self, port: u16, options: &[&str]) -> Command {
        let mut command = Command::new(SERVER);
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--io-threads", "2"])
            .args(["--dir", &self.0.display().to_string()])
            .args(options)
            .stdin(Stdio::null());
        command
    }

    /// Starts a server whose log goes to `log`, and waits until it serves.
    fn start(&self, options: &[&str]) -> Server {
        let port = free_port();
        let child = self.spawn(&mut self.command(port, options));
        let server = Server { child, port };
        wait_for("the server", || {
            self.read("log").contains("Ready to accept connections")
        });
        server
    }

    fn spawn(&self, command: &mut Command) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.file("log"));
        command.stdout(log.expect("opens the log")).spawn().expect("starts")
    }

    /// Runs a server that is going to fail.
    fn fail(&self, port: u16, options: &[&str]) -> Output {
        let output = self.command(port, options).output().expect("runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        output
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server; killed at the end of a test that failed.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn connect(&self) -> TcpStream {
        patient(TcpStream::connect(("127.0.0.1", self.port)).expect("connects"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("sends a signal");
    }

    fn wait(mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end of the server", || {
            status = self.child.try_wait().expect("waits");
            status.is_some()
        });
        status.expect("has ended")
    }

    fn stop(self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    stream
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} takes too long");
        sleep(Duration::from_millis(5));
    }
}

/// Sends a request and reads as many bytes as the expected reply has.
fn exchange(stream: &mut (impl Read + Write), request: &[u8], expected: &[u8]) {
    stream.write_all(request).expect("sends");
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).expect("receives");
    assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(expected));
}

fn ping(stream: &mut (impl Read + Write)) {
    exchange(stream, b"PING\r\n", b"+PONG\r\n");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails unless the lines of `log` contain `expected` in this order.
fn assert_in_order(log: &str, expected: &[&str]) {
    let mut lines = log.lines();
    for part in expected {
        assert!(
            lines.any(|line| line.contains(part)),
            "no {part:?} at its place in\n{log}"
        );
    }
}

#[test]
fn serves_tcp_and_unix_and_cleans_up_on_sigterm() {
    let place = Place::new();
    let server = place.start(&["--unixsocket", "socket", "--unixsocketperm", "700", "--pidfile", "pid"]);
    ping(&mut server.connect());
    ping(&mut UnixStream::connect(place.file("socket")).expect("connects"));
    assert!(
        fs::metadata(place.file("socket"))
            .expect("exists")
            .file_type()
            .is_socket()
    );
    assert_eq!(place.read("pid"), format!("{}\n", server.child.id()));

    let (process, port) = (server.child.id(), server.port);
    server.stop();
    assert!(!place.file("socket").exists() && !place.file("pid").exists());
    let version = format!("bits={}, commit=", usize::BITS);
    assert_in_order(
        &place.read("log"),
        &[
            "* oO0OoO0OoO0Oo Weft is starting oO0OoO0OoO0Oo",
            "Valkey version=9.1.2, ",
            "* Configuration loaded",
            "* monotonic clock: ",
            &format!("* Running mode=standalone, port={port}."),
            "* Server initialized",
            "* Ready to accept connections tcp",
            "* Ready to accept connections unix",
            "# Received SIGTERM scheduling shutdown...",
            "* User requested shutdown...",
            "* Removing the pid file.",
            "* Removing the unix socket file.",
            "is now ready to exit, bye bye...",
        ],
    );
    assert!(
        place.read("log").contains(&version) && place.read("log").contains(&format!("pid={process}, just started"))
    );
}

#[test]
fn the_drawing_tells_process_and_port() {
    let place = Place::new();
    let server = place.start(&["--always-show-logo", "yes"]);
    let expected = [format!("Port: {}", server.port), format!("PID: {}", server.child.id())];
    assert_in_order(&place.read("log"), &[&expected[0], &expected[1], "Server initialized"]);
    server.stop();
}

#[test]
fn a_daemon_leaves_the_terminal_and_ends_on_sigterm() {
    let place = Place::new();
    let port = free_port();
    let options = ["--daemonize", "yes", "--pidfile", "pid", "--logfile", "server.log"];
    let parent = place.command(port, &options).output().expect("runs");
    assert_eq!((parent.status.code(), parent.stdout.len()), (Some(0), 0), "{parent:?}");
    wait_for("the daemon", || {
        place.read("server.log").contains("Ready to accept connections")
    });
    ping(&mut patient(TcpStream::connect(("127.0.0.1", port)).expect("connects")));

    let process: i32 = place.read("pid").trim().parse().expect("a process id");
    let stat = || fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let field = |number: usize| {
        stat()
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.split(' ').nth(number).map(str::to_owned))
    };
    assert_eq!(
        field(3).as_deref(),
        Some(process.to_string().as_str()),
        "it leads a session"
    );
    for descriptor in 0..3 {
        let target = fs::read_link(format!("/proc/{process}/fd/{descriptor}")).expect("is open");
        assert_eq!(target, Path::new("/dev/null"));
    }
    let directory = fs::read_link(format!("/proc/{process}/cwd")).expect("has a directory");
    assert_eq!(directory, fs::canonicalize(&place.0).expect("exists"));

    kill(Pid::from_raw(process), Signal::SIGTERM).expect("sends a signal");
    // Who inherited the daemon may not have waited for it yet.
    wait_for("the daemon's end", || {
        field(0).is_none_or(|state| state == "Z" || state.is_empty())
    });
    assert!(!place.file("pid").exists());
    assert!(place.read("server.log").contains("bye bye..."));
}

#[test]
fn file_standard_input_and_options_follow_each_other() {
    let place = Place::new();
    let port = free_port();
    fs::write(
        place.file("weft.conf"),
        "bind 127.0.0.1\nport 1\nunixsocket one\nloglevel warning\n",
    )
    .expect("writes");
    let mut command = Command::new(SERVER);
    command
        .arg(place.file("weft.conf"))
        .args(["--loglevel", "notice", "--dir"])
        .arg(&place.0)
        .arg("-")
        .stdin(Stdio::piped());
    let mut child = place.spawn(&mut command);
    let mut input = child.stdin.take().expect("is piped");
    write!(input, "port {port}\nunixsocket two\nloglevel nothing\n").expect("writes");
    drop(input);
    let server = Server { child, port };
    wait_for("the server", || {
        place.read("log").contains("Ready to accept connections unix")
    });
    ping(&mut server.connect());
    assert!(place.file("two").exists() && !place.file("one").exists());
    server.stop();
}

#[test]
fn a_wrong_configuration_is_shown_and_ends_with_1() {
    let place = Place::new();
    let cases: [(&[&str], &str); 4] = [
        (&["--bogus", "1"], "Bad directive or wrong number of arguments"),
        (&["--port", "70000"], "argument must be between 0 and 65535 inclusive"),
        (&["--rename-command", "nope", "x"], "No such command in rename-command"),
        (&["--dir", "/nonexistent"], "No such file or directory"),
    ];
    for (options, reason) in cases {
        let output = place.fail(free_port(), options);
        let shown = text(&output.stderr);
        assert!(
            shown.contains("*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***"),
            "{shown}"
        );
        assert!(shown.contains(reason), "{shown}");
        assert_eq!(text(&output.stdout), "", "nothing is logged yet");
    }
}

#[test]
fn a_server_that_cannot_listen_says_so_and_ends_with_1() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = taken.local_addr().expect("is bound").port();
    let refused = format!("socket 127.0.0.1:{port}: bind: Address already in use");
    let aborting = format!("Failed listening on port {port} (tcp), aborting.");
    let cases: [(u16, &[&str], &[&str]); 5] = [
        (port, &[], &[&refused, &aborting]),
        (
            free_port(),
            &["--bind", "192.0.2.7"],
            &["bind: Cannot assign requested address", "(tcp), aborting."],
        ),
        (
            free_port(),
            &["--bind", "-192.0.2.7"],
            &["# Configured to not listen anywhere, exiting."],
        ),
        (0, &[], &["# Configured to not listen anywhere, exiting."]),
        (
            0,
            &["--unixsocket", "no/socket"],
            &["# Failed opening Unix socket: bind: No such file or directory"],
        ),
    ];
    for (port, options, expected) in cases {
        let output = place.fail(port, options);
        assert_in_order(&text(&output.stdout), expected);
    }
}

#[test]
fn a_second_server_leaves_the_files_of_the_first_alone() {
    let place = Place::new();
    let server = place.start(&["--unixsocket", "socket", "--pidfile", "pid"]);
    place.fail(server.port, &["--unixsocket", "socket", "--pidfile", "pid"]);
    ping(&mut UnixStream::connect(place.file("socket")).expect("connects"));
    assert_eq!(place.read("pid"), format!("{}\n", server.child.id()));
    server.stop();
}

#[test]
fn more_than_maxclients_are_turned_away() {
    let place = Place::new();
    let server = place.start(&["--maxclients", "2"]);
    let (mut first, mut second) = (server.connect(), server.connect());
    ping(&mut first);
    ping(&mut second);
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).expect("is closed");
    assert_eq!(answer, "-ERR max number of clients reached\r\n");
    ping(&mut first);
    drop(second);
    wait_for("a free place", || {
        let mut third = server.connect();
        let mut reply = [0; 7];
        third.write_all(b"PING\r\n").is_ok() && third.read_exact(&mut reply).is_ok() && &reply == b"+PONG\r\n"
    });
    server.stop();
}

#[test]
fn maxclients_is_lowered_to_what_the_limit_on_open_files_allows() {
    let place = Place::new();
    // No kernel allows so many files.
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
fn every_log_format_can_be_parsed() {
    let cases = [
        ("legacy", "legacy"),
        ("legacy", "iso8601"),
        ("legacy", "milliseconds"),
        ("logfmt", "iso8601"),
        ("json", "milliseconds"),
    ];
    for (format, timestamps) in cases {
        let place = Place::new();
        let server = place.start(&["--log-format", format, "--log-timestamp-format", timestamps]);
        let process = server.child.id().to_string();
        server.stop();
        let log = place.read("log");
        assert!(log.lines().count() > 8, "{log}");
        for line in log.lines() {
            let (head, time, message) = parse(format, line).unwrap_or_else(|| panic!("{format}: {line}"));
            assert_eq!(head, process, "{line}");
            assert!(is_time(timestamps, time), "{timestamps}: {time:?} in {line}");
            assert!(!message.is_empty(), "{line}");
        }
    }
}

/// Process, time and message of a line.
fn parse<'line>(format: &str, line: &'line str) -> Option<(&'line str, &'line str, &'line str)> {
    match format {
        "legacy" => {
            let (process, rest) = line.split_once(":M ")?;
            let sign = [" * ", " # ", " - ", " . "]
                .iter()
                .filter_map(|sign| rest.find(sign))
                .min()?;
            Some((process, &rest[..sign], &rest[sign + 3..]))
        }
        "logfmt" => {
            let (process, rest) = line.strip_prefix("pid=")?.split_once(" role=primary timestamp=\"")?;
            let (time, rest) = rest.split_once("\" level=")?;
            let (level, message) = rest.split_once(" message=\"")?;
            is_level(level).then_some((process, time, message.strip_suffix('"')?))
        }
        _ => {
            let (process, rest) = line
                .strip_prefix("{\"pid\":")?
                .split_once(",\"role\":\"primary\",\"timestamp\":\"")?;
            let (time, rest) = rest.split_once("\",\"level\":\"")?;
            let (level, message) = rest.split_once("\",\"message\":\"")?;
            is_level(level).then_some((process, time, message.strip_suffix("\"}")?))
        }
    }
}

fn is_level(word: &str) -> bool {
    ["debug", "info", "notice", "warning"].contains(&word)
}

/// Whether `time` has the digits and signs of a timestamp where they belong.
fn is_time(timestamps: &str, time: &str) -> bool {
    let shape: String = time
        .chars()
        .map(|character| match character {
            '0'..='9' => '9',
            'A'..='Z' | 'a'..='z' if timestamps == "legacy" => 'a',
            other => other,
        })
        .collect();
    match timestamps {
        "legacy" => shape == "99 aaa 9999 99:99:99.999",
        "iso8601" => ["9999-99-99T99:99:99.999+99:99", "9999-99-99T99:99:99.999-99:99"].contains(&shape.as_str()),
        _ => shape == "9999999999999",
    }
}

#[test]
fn levels_below_the_threshold_are_left_out() {
    let place = Place::new();
    let port = free_port();
    let server = Server {
        child: place.spawn(&mut place.command(port, &["--loglevel", "warning"])),
        port,
    };
    wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    server.stop();
    let log = place.read("log");
    assert!(
        log.lines().count() > 0 && log.lines().all(|line| line.contains(" # ")),
        "{log}"
    );

    let place = Place::new();
    let server = Server {
        child: place.spawn(&mut place.command(port, &["--loglevel", "nothing"])),
        port,
    };
    wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    server.stop();
    assert_eq!(place.read("log"), "");

    let place = Place::new();
    let server = place.start(&["--loglevel", "debug"]);
    wait_for("a report", || {
        place.read("log").contains(" . Total: 0 clients connected")
    });
    server.stop();
}

#[test]
fn a_log_file_that_was_moved_is_started_anew() {
    let place = Place::new();
    let port = free_port();
    let server = Server {
        child: place.spawn(&mut place.command(port, &["--logfile", "server.log"])),
        port,
    };
    wait_for("the server", || {
        place.read("server.log").contains("Ready to accept connections")
    });
    fs::rename(place.file("server.log"), place.file("old.log")).expect("moves");
    server.stop();
    assert!(place.read("server.log").contains("bye bye..."));
    assert!(!place.read("old.log").contains("bye bye..."));
}

#[test]
fn systemd_hears_of_start_and_end() {
    let place = Place::new();
    let manager = UnixDatagram::bind(place.file("notify")).expect("binds");
    manager.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    let port = free_port();
    let mut command = place.command(port, &["--supervised", "auto", "--daemonize", "yes"]);
    command
        .env("NOTIFY_SOCKET", place.file("notify"))
        .env_remove("UPSTART_JOB");
    let server = Server {
        child: place.spawn(&mut command),
        port,
    };
    let receive = || {
        let mut buffer = [0; 256];
        let count = manager.recv(&mut buffer).expect("receives");
        text(&buffer[..count])
    };
    assert_eq!(receive(), "STATUS=Weft is loading...\n");
    assert_eq!(receive(), "STATUS=Ready to accept connections\nREADY=1\n");
    // A supervised server stays in the foreground whatever daemonize says.
    ping(&mut server.connect());
    server.stop();
    assert_eq!(receive(), "STOPPING=1\n");
}

#[test]
fn upstart_is_told_by_a_stop() {
    let place = Place::new();
    let port = free_port();
    let mut command = place.command(port, &["--supervised", "upstart"]);
    command.env("UPSTART_JOB", "weft");
    let server = Server {
        child: place.spawn(&mut command),
        port,
    };
    let process = Pid::from_raw(server.child.id() as i32);
    let status = waitpid(process, Some(WaitPidFlag::WUNTRACED)).expect("waits");
    assert_eq!(status, WaitStatus::Stopped(process, Signal::SIGSTOP));
    assert!(!place.read("log").contains("Weft is starting"));
    server.signal(Signal::SIGCONT);
    wait_for("the server", || {
        place.read("log").contains("Ready to accept connections")
    });
    server.stop();
}

/// A client with a reply on its way that does not fit into the sockets' buffers.
fn client_of_a_large_reply(server: &Server, length: usize) -> TcpStream {
    let mut client = server.connect();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n");
    let request = [head.as_bytes(), &vec![b'x'; length], b"\r\n"].concat();
    exchange(&mut client, &request, b"+OK\r\n");
    client.write_all(b"GET k\r\n").expect("sends");
    let head = format!("${length}\r\n");
    exchange(&mut client, b"", head.as_bytes());
    client
}

#[test]
fn replies_on_their_way_arrive_before_the_end() {
    const LENGTH: usize = 16 << 20;
    let place = Place::new();
    let server = place.start(&[]);
    let mut client = client_of_a_large_reply(&server, LENGTH);
    server.signal(Signal::SIGTERM);
    wait_for("the shutdown", || {
        place.read("log").contains("User requested shutdown...")
    });
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("reads to the end");
    assert_eq!(rest.len(), LENGTH + 2);
    assert_eq!(server.wait().code(), Some(0));
}

/// Whether a second SIGINT came while the first one was being followed, and ended the process.
fn insists(place: &Place) -> bool {
    let server = place.start(&[]);
    // It does not read its reply, so the end takes a while.
    let _client = client_of_a_large_reply(&server, 64 << 20);
    server.signal(Signal::SIGINT);
    wait_for("the shutdown", || {
        place.read("log").contains("User requested shutdown...")
    });
    server.signal(Signal::SIGINT);
    server.wait().code() == Some(1)
}

#[test]
fn a_second_sigint_ends_the_process_at_once() {
    // On a busy machine the first one may have been followed to the end before the second is sent.
    for _ in 0..5 {
        let place = Place::new();
        if insists(&place) {
            let log = place.read("log");
            assert_in_order(
                &log,
                &["Received SIGINT scheduling shutdown...", "You insist... exiting now."],
            );
            assert!(!log.contains("bye bye"), "{log}");
            return;
        }
    }
    panic!("the second SIGINT does nothing");
}

#[test]
fn a_client_that_does_not_read_cannot_hold_up_the_end() {
    const LENGTH: usize = 64 << 20;
    for options in [&[][..], &["--shutdown-on-sigterm", "nosave now"]] {
        let place = Place::new();
        let server = place.start(options);
        let mut client = client_of_a_large_reply(&server, LENGTH);
        server.stop();
        assert!(place.read("log").contains("bye bye..."));
        let mut rest = Vec::new();
        // What the kernel had taken arrives, and perhaps an error after it.
        let _ = client.read_to_end(&mut rest);
        assert!(rest.len() < LENGTH);
    }
}

#[test]
fn a_crash_leaves_a_report_unless_it_is_switched_off() {
    let place = Place::new();
    let server = place.start(&[]);
    server.signal(Signal::SIGSEGV);
    assert_eq!(server.wait().signal(), Some(11));
    assert_in_order(
        &place.read("log"),
        &[
            "WEFT BUG REPORT START",
            "Weft crashed by signal: 11",
            "weft_version:",
            "STACK TRACE",
            "WEFT BUG REPORT END",
        ],
    );

    let place = Place::new();
    let server = place.start(&["--crash-log-enabled", "no"]);
    server.signal(Signal::SIGSEGV);
    assert_eq!(server.wait().signal(), Some(11));
    assert!(!place.read("log").contains("REPORT"));
}

#[test]
fn the_program_answers_to_other_names_and_refuses_other_programs() {
    let place = Place::new();
    let run = |name: &str, argument: &str| {
        let path = place.file(name);
        std::os::unix::fs::symlink(SERVER, &path).expect("links");
        Command::new(path).arg(argument).output().expect("runs")
    };
    for name in ["valkey-server", "redis-server"] {
        let output = run(name, "--version");
        assert!(text(&output.stdout).starts_with("Valkey server v=9.1.2 "), "{output:?}");
        assert_eq!(output.status.code(), Some(0));
    }
    for (name, version) in [
        ("redis-check-rdb", "valkey-check-rdb v=9.1.2 "),
        ("valkey-check-aof", "valkey-check-aof v=9.1.2 "),
    ] {
        let output = run(name, "--version");
        assert!(text(&output.stdout).starts_with(version), "{output:?}");
        assert_eq!(output.status.code(), Some(0));
    }
    let output = run("valkey-sentinel", "file");
    assert!(text(&output.stderr).contains("no Sentinel mode"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn threads_have_names_and_the_cpus_they_were_given() {
    let place = Place::new();
    let cpu = weft_reactor::allowed_cpus().expect("knows its CPUs")[0].to_string();
    let server = place.start(&["--server-cpulist", &cpu, "--bio-cpulist", "9999"]);
    ping(&mut server.connect());
    let tasks = format!("/proc/{}/task", server.child.id());
    let threads = || {
        let tasks = fs::read_dir(&tasks).expect("has threads");
        let read = |task: &Path, file: &str| fs::read_to_string(task.join(file)).expect("can be read");
        tasks.map(move |task| {
            let task = task.expect("has a name").path();
            (read(&task, "comm").trim().to_owned(), read(&task, "status"))
        })
    };
    // A thread takes its name when it first runs, which may be after a client was served.
    let expected = ["weft-worker-0", "weft-worker-1", "weft-bg-0", "weft-lazyfree"];
    let start = Instant::now();
    let is_there = |expected: &&str| threads().any(|(name, _)| name == *expected);
    while !expected.iter().all(is_there) {
        let names: Vec<String> = threads().map(|(name, _)| name).collect();
        assert!(start.elapsed() < PATIENCE, "{expected:?} in {names:?}");
        sleep(Duration::from_millis(1));
    }
    for (name, status) in threads().filter(|(name, _)| name.starts_with("weft-worker-")) {
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed.map(str::trim), Some(cpu.as_str()), "{name}");
    }
    assert!(place.read("log").contains("bio-cpulist '9999' names no CPU"));
    server.stop();
}

#[test]
fn an_alarm_makes_the_threads_tell_what_they_do() {
    let place = Place::new();
    let server = place.start(&[]);
    server.signal(Signal::SIGALRM);
    wait_for("the report", || place.read("log").contains("'weft-worker-1': "));
    assert_in_order(&place.read("log"), &["# Received SIGALRM", "# Thread "]);
    ping(&mut server.connect());
    server.stop();
}

/// The command line that the system shows; `None` if the kernel does not let processes change theirs.
fn title(server: &Server) -> Option<String> {
    let shown = fs::read(format!("/proc/{}/cmdline", server.child.id())).expect("reads");
    let has_arguments = shown.windows(6).any(|part| part == b"--bind");
    (!has_arguments).then(|| text(&shown).trim_end_matches('\0').to_owned())
}

#[test]
fn the_title_is_what_the_template_says() {
    let place = Place::new();
    let server = place.start(&[
        "--proc-title-template",
        "{title} at {listen-addr} {config-file} {tls-port}",
    ]);
    let Some(shown) = title(&server) else {
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
fn a_locale_must_be_there() {
    let place = Place::new();
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

#[test]
fn the_same_seed_puts_keys_into_the_same_order() {
    let place = Place::new();
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
    let place = Place::new();
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
        wait_for(mode, || adjusted() == Some(expected.min(1000)));
        server.stop();
        fs::remove_file(place.file("log")).expect("removes");
    }
}
