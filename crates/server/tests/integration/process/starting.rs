//! Tests the start of the process: options, sockets, its files, supervisors, and errors that prevent the start.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{PATIENCE, SERVER, Server, TestDirectory, assert_in_order, ping, text, wait_until, with_timeouts};
use crate::harness::client::Client;
use crate::harness::port::free_port;

#[test]
fn serves_tcp_and_unix_and_cleans_up_on_sigterm() {
    let place = TestDirectory::new();
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
fn a_client_of_the_unix_socket_has_its_path_as_address() {
    let place = TestDirectory::new();
    let _server = place.start(&["--unixsocket", "socket"]);
    let connect = || {
        Client(BufReader::new(
            UnixStream::connect(place.file("socket")).expect("connects"),
        ))
    };
    let (mut client, mut other) = (connect(), connect());
    assert_eq!(other.call(&["PING"]), "PONG");
    let lines = client.call(&["CLIENT", "LIST"]);
    assert_eq!(
        lines.matches(" addr=[socket:0]:0 laddr=[socket:0]:0 ").count(),
        2,
        "{lines}"
    );
    assert_eq!(client.call(&["CLIENT", "LIST", "IP", "socket:0"]), "");
    let kill = ["CLIENT", "KILL", "ADDR", "[socket:0]:0", "LADDR", "[socket:0]:0"];
    assert_eq!(client.call(&kill), "1");
    assert!(other.try_send(&["PING"]).is_err() || other.0.read(&mut [0]).is_ok_and(|bytes| bytes == 0));
}

#[test]
fn a_daemon_leaves_the_terminal_and_ends_on_sigterm() {
    let place = TestDirectory::new();
    let port = free_port();
    let options = ["--daemonize", "yes", "--pidfile", "pid", "--logfile", "server.log"];
    let parent = place.command(port, &options).output().expect("runs");
    assert_eq!((parent.status.code(), parent.stdout.len()), (Some(0), 0), "{parent:?}");
    wait_until("the daemon", || {
        place.read("server.log").contains("Ready to accept connections")
    });
    ping(&mut with_timeouts(
        TcpStream::connect(("127.0.0.1", port)).expect("connects"),
    ));

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
    // The process that adopted the daemon may not have waited for it yet.
    wait_until("the daemon's end", || {
        field(0).is_none_or(|state| state == "Z" || state.is_empty())
    });
    assert!(!place.file("pid").exists());
    assert!(place.read("server.log").contains("bye bye..."));
}

#[test]
fn file_standard_input_and_options_are_read_in_order() {
    let place = TestDirectory::new();
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
    wait_until("the server", || {
        place.read("log").contains("Ready to accept connections unix")
    });
    ping(&mut server.connect());
    assert!(place.file("two").exists() && !place.file("one").exists());
    server.stop();
}

#[test]
fn a_wrong_configuration_is_reported_and_exits_with_1() {
    let place = TestDirectory::new();
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
fn errors_of_the_configuration_name_the_file_and_what_would_be_valid() {
    let place = TestDirectory::new();
    fs::write(place.file("more.conf"), "# a comment\ntimeout soon\n").expect("writes");
    let include = format!("port 0\ninclude {}\n", place.file("more.conf").display());
    fs::write(place.file("weft.conf"), include).expect("writes");
    for check in [&[][..], &["--check-config"]] {
        let mut command = Command::new(SERVER);
        let output = command.args(check).arg(place.file("weft.conf")).output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***\n\
             Reading the configuration file, at line 2\n>>> 'timeout soon'\n\
             argument couldn't be parsed into an integer\n\
             This is line 2 of {}, included by line 2 of {}.\n\
             timeout takes one value: a number from 0 to 2147483647; the default is 0.\n",
            place.file("more.conf").display(),
            place.file("weft.conf").display()
        );
        assert_eq!(text(&output.stderr), expected);
    }
}

/// The text of Valkey comes first, then the file, the line, the parameter, and what would be valid.
#[test]
fn errors_that_a_start_finds_later_name_the_line_and_what_would_be_valid() {
    let place = TestDirectory::new();
    let file = place.file("weft.conf");
    let port = free_port();
    let is_set = format!("It is set by line 3 of {}.", file.display());
    let this_is = format!("This is line 3 of {}.", file.display());
    let refused = format!("Could not create server TCP listening socket 192.0.2.7:{port}: bind: Cannot assign ");
    let (aborting, name) = (
        format!("Failed listening on port {port} (tcp), aborting."),
        "a".repeat(64),
    );
    let tls_lines = format!("tls-port {port}\nport 0");
    let tls_required = format!("TLS is required by tls-port, set by line 3 of {}.", file.display());
    let cases: [(&str, &[&str]); 9] = [
        (
            "unixsocket /nonexistent/s",
            &[
                "# Failed opening Unix socket: bind: No such file or directory",
                "unixsocket is '/nonexistent/s': a path of at most 107 bytes, ",
            ],
        ),
        (
            "bind 192.0.2.7",
            &[&refused, &aborting, "bind is '192.0.2.7': addresses of this machine "],
        ),
        (
            &format!("bind {name}"),
            &[&aborting, &format!("bind is '{name}': addresses of this machine ")],
        ),
        (
            "metrics-bind 192.0.2.7\nmetrics-port 9121",
            &[
                "Failed listening on port 9121 (metrics), aborting.",
                "metrics-bind is '192.0.2.7': addresses of this machine ",
            ],
        ),
        (
            "user joe on +@nosuch",
            &[
                "Error loading ACL rule '+@nosuch' for the user named 'joe': Unknown command or category name in ACL",
                "ACL CAT lists the categories",
                "# Critical error while loading ACLs. Exiting.",
            ],
        ),
        (
            "aclfile missing",
            &[
                "ACL errors: Error loading ACLs, opening file 'missing': No such file or directory",
                "aclfile is 'missing': a file that exists and that the user of the server may read; it may be empty",
            ],
        ),
        (
            "locale-collate no_SUCH.locale",
            &[
                "# Failed to configure LOCALE for invalid locale name.",
                "locale-collate is 'no_SUCH.locale': ",
            ],
        ),
        (
            "rename-command flusall x",
            &[
                "No such command in rename-command",
                &this_is,
                "There is no command 'flusall'. Did you mean 'flushall'?",
            ],
        ),
        (
            &tls_lines,
            &[
                "# No tls-cert-file configured!",
                "TLS needs both tls-cert-file, ",
                "# Failed to configure TLS. Check logs for more info.",
            ],
        ),
    ];
    for (line, expected) in cases {
        fs::write(&file, format!("bind 127.0.0.1\nport {port}\n{line}\n")).expect("writes");
        for check in [&[][..], &["--check-config"]] {
            let mut command = Command::new(SERVER);
            command.current_dir(&place.0).args(check).arg(&file);
            let output = command.output().expect("runs");
            let printed = text(&output.stdout) + &text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{line}: {printed}");
            assert_in_order(&printed, expected);
            let names_line = [&is_set, &this_is, &tls_required]
                .iter()
                .any(|place| printed.contains(*place));
            assert!(names_line, "{line}: {printed}");
        }
    }
}

#[test]
fn a_check_does_not_disturb_a_server_with_the_same_configuration() {
    let place = TestDirectory::new();
    let server = place.start(&["--unixsocket", "socket"]);
    let mut command = Command::new(SERVER);
    let port = server.port.to_string();
    let output = command
        .current_dir(&place.0)
        .args(["--check-config", "--bind", "127.0.0.1", "--port", &port])
        .args(["--unixsocket", "socket"])
        .output()
        .expect("runs");
    assert_eq!(text(&output.stdout), "The configuration is valid.\n", "{output:?}");
    ping(&mut server.connect());
    ping(&mut UnixStream::connect(place.file("socket")).expect("connects"));
    server.stop();
}

#[test]
fn a_server_that_cannot_listen_reports_it_and_exits_with_1() {
    let place = TestDirectory::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = taken.local_addr().expect("is bound").port();
    let refused = format!("socket 127.0.0.1:{port}: bind: Address already in use");
    let aborting = format!("Failed listening on port {port} (tcp), aborting.");
    let metrics_aborting = format!("Failed listening on port {port} (metrics), aborting.");
    let taken_port = format!("port is '{port}': a port on which no other process listens at the addresses of bind.");
    let bus_aborting = format!("Failed listening on port {port} (cluster), aborting.");
    let taken_bus_port = format!(
        "cluster-port is '{port}': a port that the user of the server may use and no other process listens on. It \
         is set by the option --cluster-port."
    );
    let cases: [(u16, &[&str], &[&str]); 8] = [
        (port, &[], &[&refused, &aborting, &taken_port]),
        (
            free_port(),
            &["--metrics-port", &port.to_string()],
            &[&refused, &metrics_aborting],
        ),
        (
            free_port(),
            &["--cluster-enabled", "yes", "--cluster-port", &port.to_string()],
            &[&refused, &bus_aborting, &taken_bus_port],
        ),
        (
            free_port(),
            &["--metrics-port", "9121", "--metrics-bind", "-192.0.2.7"],
            &["# No address of metrics-bind is available, exiting."],
        ),
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
        (
            0,
            &[],
            &[
                "# Configured to not listen anywhere, exiting.",
                "port and tls-port are 0, and unixsocket is empty: set one of them.",
            ],
        ),
        (
            0,
            &["--unixsocket", "no/socket"],
            &[
                "# Failed opening Unix socket: bind: No such file or directory",
                "may create files. It is set by the option --unixsocket.",
            ],
        ),
    ];
    for (port, options, expected) in cases {
        let output = place.fail(port, options);
        assert_in_order(&text(&output.stdout), expected);
    }
}

/// The sockets for clients and the one of the bus take the same words.
#[test]
fn a_cluster_node_listens_at_the_address_of_a_host_name() {
    let place = TestDirectory::new();
    let bus = free_port();
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus.to_string(),
        "--bind",
        "localhost 127.0.0.1",
    ];
    let server = place.start(&options);
    ping(&mut server.connect());
    TcpStream::connect(("127.0.0.1", bus)).expect("the bus listens");
    server.stop();
}

#[test]
fn a_second_server_leaves_the_files_of_the_first_alone() {
    let place = TestDirectory::new();
    let server = place.start(&["--unixsocket", "socket", "--pidfile", "pid"]);
    place.fail(server.port, &["--unixsocket", "socket", "--pidfile", "pid"]);
    ping(&mut UnixStream::connect(place.file("socket")).expect("connects"));
    assert_eq!(place.read("pid"), format!("{}\n", server.child.id()));
    server.stop();
}

#[test]
fn systemd_is_notified_of_start_and_end() {
    let place = TestDirectory::new();
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
    // A supervised server stays in the foreground, whatever `daemonize` says.
    ping(&mut server.connect());
    server.stop();
    assert_eq!(receive(), "STOPPING=1\n");
}

#[test]
fn upstart_is_notified_by_a_stop_signal() {
    let place = TestDirectory::new();
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
    wait_until("the server", || {
        place.read("log").contains("Ready to accept connections")
    });
    server.stop();
}

#[test]
fn the_program_runs_under_other_names_and_refuses_sentinel() {
    let place = TestDirectory::new();
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

/// The check has the messages of a start, and opens no port.
#[test]
fn a_configuration_is_checked_without_a_start() {
    let place = TestDirectory::new();
    let check = |words: &[&str]| {
        let mut command = Command::new(SERVER);
        command.current_dir(&place.0).arg("--check-config").args(words);
        let output = command.output().expect("runs");
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    fs::write(
        place.file("good"),
        "port 7000\nuser reader on nopass ~* +@read\nmaxmemory 1gb\n",
    )
    .expect("writes");
    assert_eq!(check(&["good"]), (Some(0), "The configuration is valid.\n".into()));
    assert_eq!(check(&["good", "--maxmemory", "2gb"]).0, Some(0));
    assert_eq!(check(&["good", "--logfile", "log"]).0, Some(0));
    assert!(!place.file("log").exists(), "the check leaves no file of its own user");
    fs::write(place.file("aclfile"), "user reader on +@nothing\n").expect("writes");
    fs::write(place.file("certificate"), "not a certificate").expect("writes");
    let tls = [
        "--tls-port",
        "7000",
        "--tls-cert-file",
        "certificate",
        "--tls-key-file",
        "certificate",
    ];
    for (words, message) in [
        (&["missing"][..], "can't open config file"),
        (&["good", "--maxmemory", "much"], "argument must be a memory value"),
        (&["good", "--user", "reader", "on", "+@nothing"], "+@nothing"),
        (&["--aclfile", "aclfile"], "aclfile:1"),
        (
            &["good", "--logfile", "missing/log"],
            "Can't open the log file: No such file or directory",
        ),
        (&["--locale-collate", "xx_XX"], "Failed to configure LOCALE"),
        (&["--locale-collate", "xx_XX"], "locale-collate is 'xx_XX'"),
        (
            &["--port", "7000", "--bind", "-192.0.2.7"],
            "# Configured to not listen anywhere, exiting.",
        ),
        (
            &["good", "--metrics-port", "9121", "--metrics-bind", "-192.0.2.7"],
            "# No address of metrics-bind is available, exiting.",
        ),
        (
            &["good", "--unixsocket", "good"],
            "# Failed opening Unix socket: bind: Address already in use",
        ),
        (
            &["good", "--unixsocket", "s", "--unixsocketgroup", "no-such-group"],
            "unixsocketgroup is 'no-such-group': a group of this machine",
        ),
        (&["--port", "0"], "# Configured to not listen anywhere, exiting."),
        (
            &["--port", "60000", "--cluster-enabled", "yes"],
            "port is '60000': a port from 1 to 55535 with cluster-enabled yes, unless cluster-port names that of the \
             bus. It is set by the option --port.",
        ),
        (&tls, "Failed to configure TLS"),
    ] {
        let (code, printed) = check(words);
        assert!(
            code == Some(1) && printed.contains(message),
            "{words:?}: {code:?} {printed}"
        );
    }
}
