//! Tests of DEBUG RESTART and DEBUG CRASH-AND-RECOVER, which start the program again in the same process.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{SERVER, Server, TestDirectory, exchange, ping, wait_until, with_timeouts};

/// Sends a request that ends the connection without a reply.
fn end_connection(mut stream: TcpStream, request: &[u8]) {
    stream.write_all(request).expect("sends");
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "a reply: {}", String::from_utf8_lossy(&rest)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// Connects to the server once it serves clients again.
fn reconnect(server: &Server) -> TcpStream {
    let mut stream = None;
    wait_until("the server serves clients again", || {
        stream = try_connect(server).ok();
        stream.is_some()
    });
    stream.expect("connects")
}

/// Connects to a server that is not loading. The listening socket of the process before may still accept a connection,
/// which is then reset.
fn try_connect(server: &Server) -> std::io::Result<TcpStream> {
    let mut stream = with_timeouts(TcpStream::connect(("127.0.0.1", server.port))?);
    stream.write_all(b"PING\r\n")?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply)?;
    match reply == *b"+PONG\r\n" {
        true => Ok(stream),
        false => Err(ErrorKind::WouldBlock.into()),
    }
}

/// The value of a field of INFO.
fn info(stream: &mut TcpStream, field: &str) -> String {
    stream.write_all(b"INFO server\r\nECHO the-end\r\n").expect("sends");
    let mut text = String::new();
    while !text.ends_with("the-end\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("receives");
        text.push(byte[0].into());
    }
    let start = format!("{field}:");
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("no {field} in {text}")).to_owned()
}

#[test]
fn a_restart_saves_the_data_and_rewrites_the_configuration() {
    for workers in ["1", "8"] {
        let place = TestDirectory::new();
        let file = place.file("weft.conf");
        fs::write(&file, "enable-debug-command yes\nmaxmemory-samples 4\n").expect("writes the file");
        let server = start_with_file(&place, &["--io-threads", workers, "--save", "3600 1"]);
        let mut client = server.connect();
        let other = server.connect();
        exchange(&mut client, b"SET key value\r\n", b"+OK\r\n");
        exchange(&mut client, b"CONFIG SET maxmemory-samples 7\r\n", b"+OK\r\n");
        let run_id = info(&mut client, "run_id");
        end_connection(client, b"DEBUG RESTART\r\n");
        end_connection(other, b"");
        let mut client = reconnect(&server);
        exchange(&mut client, b"GET key\r\n", b"$5\r\nvalue\r\n");
        let value = b"*2\r\n$17\r\nmaxmemory-samples\r\n$1\r\n7\r\n";
        exchange(&mut client, b"CONFIG GET maxmemory-samples\r\n", value);
        assert_eq!(info(&mut client, "process_id"), server.child.id().to_string());
        assert_ne!(info(&mut client, "run_id"), run_id);
        let text = fs::read_to_string(&file).expect("reads the file");
        assert!(text.contains("maxmemory-samples 7"), "{text}");
        server.stop();
    }
}

/// Starts a server with the configuration file of its directory.
fn start_with_file(place: &TestDirectory, options: &[&str]) -> Server {
    let port = super::free_port();
    let mut command = std::process::Command::new(SERVER);
    command
        .current_dir(&place.0)
        .arg("weft.conf")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(options)
        .stdin(std::process::Stdio::null());
    let child = place.spawn(&mut command);
    let server = Server { child, port };
    wait_until("the server", || {
        place.read("log").contains("Ready to accept connections")
    });
    server
}

#[test]
fn a_crash_keeps_what_is_in_the_append_only_file_alone() {
    for (appendonly, expected) in [("yes", &b"$5\r\nvalue\r\n"[..]), ("no", b"$-1\r\n")] {
        let place = TestDirectory::new();
        let options = ["--enable-debug-command", "yes", "--save", "3600 1"];
        let log = ["--appendonly", appendonly, "--appendfsync", "always"];
        let server = place.start(&[options, log].concat());
        let mut client = server.connect();
        exchange(&mut client, b"SET key value\r\n", b"+OK\r\n");
        end_connection(client, b"DEBUG CRASH-AND-RECOVER\r\n");
        let mut client = reconnect(&server);
        exchange(&mut client, b"GET key\r\n", expected);
        assert_eq!(info(&mut client, "process_id"), server.child.id().to_string());
        // A later restart must not wait for the delay of an earlier one.
        end_connection(client, b"DEBUG CRASH-AND-RECOVER 10\r\n");
        let client = reconnect(&server);
        end_connection(client, b"DEBUG CRASH-AND-RECOVER\r\n");
        ping(&mut reconnect(&server));
    }
}

#[test]
fn a_delay_passes_before_the_program_starts_again() {
    const DELAY: Duration = Duration::from_millis(700);
    for subcommand in ["RESTART", "CRASH-AND-RECOVER"] {
        let place = TestDirectory::new();
        let server = place.start(&["--enable-debug-command", "yes"]);
        let start = Instant::now();
        let request = format!("DEBUG {subcommand} {}\r\n", DELAY.as_millis());
        end_connection(server.connect(), request.as_bytes());
        let _client = reconnect(&server);
        assert!(start.elapsed() >= DELAY, "{:?}", start.elapsed());
    }
}

#[test]
fn a_restart_that_is_not_possible_is_an_error_and_changes_nothing() {
    let refused = b"-ERR failed to restart the server. Check server logs.\r\n";
    let place = TestDirectory::new();
    let options = ["--enable-debug-command", "yes", "--save", "3600 1"];
    let server = place.start(&options);
    let mut client = server.connect();
    exchange(&mut client, b"SET key value\r\n", b"+OK\r\n");
    let not_a_number = b"-ERR value is not an integer or out of range\r\n";
    exchange(&mut client, b"DEBUG RESTART soon\r\n", not_a_number);
    exchange(&mut client, b"DEBUG CRASH-AND-RECOVER soon\r\n", not_a_number);
    // The final dump cannot be written where a directory has its name.
    let dump = place.file("dump.rdb");
    fs::create_dir_all(dump.join("occupied")).expect("creates a directory");
    exchange(&mut client, b"DEBUG RESTART\r\n", refused);
    exchange(&mut client, b"GET key\r\n", b"$5\r\nvalue\r\n");
    exchange(&mut client, b"SET key other\r\n", b"+OK\r\n");
    fs::remove_dir_all(&dump).expect("removes the directory");
    end_connection(client, b"DEBUG RESTART\r\n");
    exchange(&mut reconnect(&server), b"GET key\r\n", b"$5\r\nother\r\n");
    server.stop();
    refuse_without_program(&place, &options, refused);
}

/// The program of a running server may be gone, or no program any more.
fn refuse_without_program(place: &TestDirectory, options: &[&str], refused: &[u8]) {
    let program = place.file("program");
    // Another process writes the copy: a process that another test starts meanwhile would inherit our descriptor, and a
    // file that is open for writing cannot be executed.
    let copied = std::process::Command::new("cp").arg(SERVER).arg(&program).status();
    assert!(copied.expect("runs cp").success(), "copies the program");
    let port = super::free_port();
    let mut command = std::process::Command::new(&program);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]);
    command.arg(&place.0).args(options).stdin(std::process::Stdio::null());
    let server = Server {
        child: place.spawn(&mut command),
        port,
    };
    let mut client = reconnect(&server);
    fs::remove_file(&program).expect("removes the program");
    exchange(&mut client, b"DEBUG RESTART\r\n", refused);
    exchange(&mut client, b"DEBUG CRASH-AND-RECOVER\r\n", refused);
    ping(&mut client);
    server.stop();
}
