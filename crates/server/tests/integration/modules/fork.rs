//! Child processes of modules.

use std::net::TcpStream;
use std::time::Duration;

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Longer than any test waits.
const AN_HOUR_MS: &str = "3600000";

fn connect(server: &Server) -> Client {
    Client::connect(server.port)
}

/// Returns `true` if a process exists.
fn exists(pid: &str) -> bool {
    std::path::Path::new("/proc").join(pid).exists()
}

/// Returns `true` if a process has not ended. It may not have been waited for.
fn runs(pid: &str) -> bool {
    let path = std::path::Path::new("/proc").join(pid).join("stat");
    // The state follows the name in parentheses.
    std::fs::read_to_string(path).is_ok_and(|text| text.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}

#[test]
fn a_child_sees_the_data_of_one_moment() {
    for workers in [1, 4] {
        let server = start(workers, "fork");
        let (mut client, mut other) = (connect(&server), connect(&server));
        assert_eq!(client.call(&["fork.misuse"]), "OK");
        assert_eq!(client.call(&["SET", "k", "before"]), "OK");
        let pid = client.call(&["fork.start", "300", "3"]);
        assert!(exists(&pid), "{pid}");
        assert_eq!(other.call(&["SET", "k", "after"]), "OK");
        assert_eq!(other.info("module_fork_in_progress"), "1");
        wait_until("the child reports its progress", || {
            other.info("current_fork_perc") == "25.00"
        });
        wait_until("the child has ended", || {
            client.call(&["fork.state"]).starts_with("(-1 3 0 ")
        });
        assert_eq!(other.info("module_fork_in_progress"), "0");
        assert_ne!(other.info("module_fork_last_cow_size"), "0");
        assert_eq!(other.call(&["GET", "k"]), "after");
        assert!(!exists(&pid), "it was waited for");
        // The pipe was read by one of the calls of `fork.state`.
        assert!(client.call(&["fork.start", "0", "0"]).parse::<u32>().is_ok());
        let mut text = String::new();
        wait_until("the second child has ended", || {
            let state = client.call(&["fork.state"]);
            text.push_str(state.trim_end_matches(')').rsplit(' ').next().unwrap_or_default());
            state.starts_with("(-1 0 0 ")
        });
        assert_eq!(text, "after");
    }
}

#[test]
fn a_child_ends_of_which_the_module_does_not_want_to_hear() {
    let server = start(1, "fork");
    let mut client = connect(&server);
    for _ in 0..2 {
        let pid = client.call(&["fork.start", "0", "0", "unheard"]);
        assert!(pid.parse::<u32>().is_ok(), "{pid}");
        client.wait_for_info("module_fork_in_progress", "0");
        assert!(!exists(&pid), "it was waited for");
    }
    let pid = client.call(&["fork.start", "100000", "0", "unheard"]);
    assert_eq!(client.call(&["fork.kill"]), "OK");
    assert!(!exists(&pid), "it was killed");
    assert_eq!(client.info("module_fork_in_progress"), "0");
}

#[test]
fn a_child_is_killed() {
    for workers in [1, 4] {
        let server = start(workers, "fork");
        let mut client = connect(&server);
        let pid = client.call(&["fork.start", "100000", "3"]);
        assert_eq!(client.call(&["fork.start", "0", "0"]), "ERR errno 114", "one at a time");
        assert_eq!(client.call(&["fork.kill"]), "OK");
        assert!(!exists(&pid), "it was waited for");
        assert_eq!(client.call(&["fork.state"]), "(-1 -2 -2 )", "the handler is not called");
        assert_eq!(client.call(&["PING"]), "PONG");
        assert_eq!(client.info("module_fork_in_progress"), "0");
    }
}

#[test]
fn a_child_that_returns_or_crashes_ends() {
    let server = start(4, "fork");
    let mut client = connect(&server);
    client.call(&["fork.start", "0", "-1"]);
    wait_until("the child has ended", || {
        client.call(&["fork.state"]).starts_with("(-1 1 0 ")
    });
    client.call(&["fork.start", "0", "-2"]);
    wait_until("the child has ended", || {
        client.call(&["fork.state"]).starts_with("(-1 -1 6 ")
    });
    assert_eq!(client.call(&["SET", "k", "v"]), "OK");
}

#[test]
fn a_child_ends_with_the_server_or_the_module() {
    let mut server = start_with(4, &[&["fork"]], &["--enable-module-command", "yes"]);
    let mut client = connect(&server);
    let pid = client.call(&["fork.start", AN_HOUR_MS, "0"]);
    assert_eq!(client.call(&["MODULE", "UNLOAD", "fork"]), "OK");
    assert!(!exists(&pid), "it was killed");
    let path = super::module("fork");
    assert_eq!(client.call(&["MODULE", "LOAD", &path]), "OK");
    let pid = client.call(&["fork.start", AN_HOUR_MS, "0"]);
    let idle = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    server.kill();
    // Clients see the end of the server, and its port is free, although the child lives for a moment.
    idle.set_read_timeout(Some(Duration::from_millis(500)))
        .expect("sets a timeout");
    let end = std::io::Read::read(&mut &idle, &mut [0; 1]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    server.start_again();
    wait_until("the child notices it", || !runs(&pid));
}
