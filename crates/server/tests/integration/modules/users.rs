//! Users of modules, permissions, and clients that modules authenticate.

use std::io::BufRead;

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::wait_until;

/// Returns `true` if the server has closed the connection, and answers no request any more.
fn is_closed(client: &mut Client) -> bool {
    let is_sent = client.try_send(&["PING"]).is_ok();
    !is_sent || matches!(client.0.read_line(&mut String::new()), Ok(0) | Err(_))
}

#[test]
fn users_of_modules_have_rules() {
    let server = start(2, "users");
    let mut client = Client::connect(server.port);
    let mut call = |words: &[&str]| client.call(words);
    let described = "on sanitize-payload ~a* resetchannels &c alldbs";
    let created = call(&["users.create", "someone", "on ~a* +get +set &c"]);
    assert!(created.ends_with("-@all +get +set"), "{described} {created}");
    let unknown = "ERR Error in ACL SETUSER modifier '+nosuch': Unknown command or category name in ACL";
    assert_eq!(call(&["users.create", "someone", "on +nosuch"]), unknown);
    let open = "ERR Unmatched parenthesis in acl selector starting at '(+get'.";
    assert_eq!(call(&["users.create", "someone", "on (+get ~b"]), open);
    call(&["users.create", "someone", "on ~a* +get"]);
    assert_eq!(call(&["users.rule", "+set"]), "0");
    assert_eq!(call(&["users.rule", "+nosuch"]), "-1");
    assert_eq!(call(&["users.call", "set", "a1", "v"]), "OK");
    assert_eq!(call(&["users.call", "get", "a1"]), "v");
    assert_eq!(
        call(&["users.call", "get", "b1"]),
        "NOPERM No permissions to access a key"
    );
    let denied = "NOPERM User someone has no permissions to run the 'del' command";
    assert_eq!(call(&["users.call", "del", "a1"]), denied);
    assert!(!call(&["ACL", "LIST"]).contains("someone"));
    assert!(call(&["ACL", "LOG", "1"]).contains("context module object del username someone"));
}

#[test]
fn clients_that_modules_authenticate_are_told_apart() {
    for workers in [1, 4] {
        let server = start(workers, "users");
        let (mut admin, mut client) = (Client::connect(server.port), Client::connect(server.port));
        admin.call(&[
            "users.create",
            "someone",
            "on ~a* +get +users.name +users.login +acl|whoami +auth",
        ]);
        assert_eq!(client.call(&["users.login"]), "OK");
        assert_eq!(client.call(&["ACL", "WHOAMI"]), "someone");
        assert_eq!(client.call(&["users.name"]), "someone");
        assert_eq!(client.call(&["GET", "a"]), "-");
        assert_eq!(client.call(&["GET", "b"]), "NOPERM No permissions to access a key");
        assert_eq!(admin.call(&["users.changes"]), "0");
        assert_eq!(client.call(&["AUTH", "default", "x"]), "OK");
        wait_until("the module is told", || admin.call(&["users.changes"]) == "1");
        assert_eq!(client.call(&["AUTH", "default", "x"]), "OK");
        admin.call(&["ACL", "SETUSER", "real", "on", "+@all", "~r*"]);
        assert_eq!(client.call(&["users.login", "real"]), "OK");
        assert_eq!(client.call(&["users.login", "real"]), "OK");
        assert_eq!(
            client.call(&["users.changes"]),
            "2",
            "the module is told within the command"
        );
        assert_eq!(client.call(&["ACL", "WHOAMI"]), "real");
        drop(client);
        wait_until("the module is told of the disconnection", || {
            admin.call(&["users.changes"]) == "3"
        });
    }
}

#[test]
fn clients_lose_their_users_with_their_connections() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["users"]], &["--enable-module-command", "yes"]);
        let mut admin = Client::connect(server.port);
        let rules = "on ~* +@all &*";
        admin.call(&["users.create", "someone", rules]);
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
        for client in &mut clients {
            assert_eq!(client.call(&["users.login"]), "OK");
        }
        let id = clients[0].call(&["CLIENT", "ID"]);
        assert_eq!(admin.call(&["users.close", &id]), "0");
        assert_eq!(admin.call(&["users.close", "123456"]), "1");
        assert!(is_closed(&mut clients[0]));
        // The user ends with its replacement; a client that runs the command gets the reply.
        assert!(clients[1].call(&["users.create", "someone", rules]).starts_with("on "));
        for client in &mut clients[1..] {
            assert!(is_closed(client));
        }
        wait_until("the module is told", || admin.call(&["users.changes"]) == "4");
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["users.login"]), "OK");
        assert_eq!(admin.call(&["MODULE", "UNLOAD", "users"]), "OK");
        assert!(is_closed(&mut client));
    }
}

#[test]
fn permissions_are_checked_for_modules() {
    let server = start(2, "users");
    let mut client = Client::connect(server.port);
    let mut call = |line: &str| client.call(&line.split(' ').collect::<Vec<_>>());
    call("ACL SETUSER real on >pw ~r* +@all -set resetchannels &r*");
    for (line, expected) in [
        ("users.may 0 real get r1", "OK"),
        ("users.may 0 real get x1", "-13"),
        ("users.may 0 nosuch get x1", "ERR no user"),
        ("users.may -1 real get r1", "-22"),
        ("users.may 16 real get r1", "-22"),
        ("users.may 0 real nosuch", "-22"),
        ("users.may -2 real nosuch", "-2"),
        ("users.may -2 real get r1", "OK"),
        ("users.may 0 real set r1 x", "-13"),
        ("users.may 0 real publish r1 x", "OK"),
        ("users.may 0 real publish s1 x", "-13"),
    ] {
        assert_eq!(call(line), expected, "{line}");
    }
    assert!(call("ACL LOG 1").contains("reason channel context module object x username real"));
    call("ACL SETUSER real resetdbs db=0,1");
    assert_eq!(call("users.may 1 real get r1"), "OK");
    assert_eq!(call("users.may 2 real get r1"), "-13");
    assert_eq!(call("users.may -2 real get r1"), "-13", "without a database");
    call("ACL SETUSER real resetkeys ~rw* %R~ro* %W~wo* resetchannels &c*");
    for (line, expected) in [
        ("users.key real rw1 240", "OK"),
        ("users.key real ro1 16", "OK"),
        ("users.key real ro1 0", "OK"),
        ("users.key real ro1 32", "-13"),
        ("users.key real x 0", "-13"),
        ("users.key real rw1 1", "-22"),
        ("users.prefix real rw 16", "OK"),
        ("users.prefix real r 16", "-13"),
        ("users.prefix real ro 32", "-13"),
        ("users.channel real c1 2", "OK"),
        ("users.channel real c* 5", "OK"),
        ("users.channel real c1* 5", "0"),
        ("users.channel real x 8", "OK"),
        ("users.channel real x 16", "-22"),
    ] {
        assert_eq!(call(line), expected, "{line}");
    }
}

#[test]
fn arguments_can_be_hidden_from_logs_and_monitors() {
    let server = start(2, "users");
    let (mut client, mut monitor) = (Client::connect(server.port), Client::connect(server.port));
    assert_eq!(monitor.call(&["MONITOR"]), "OK");
    // Monitors do not see it.
    client.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    assert_eq!(client.call(&["users.secret", "a", "b", "c", "d"]), "OK");
    assert!(
        monitor
            .answer()
            .ends_with("\"users.secret\" \"(redacted)\" \"b\" \"(redacted)\" \"d\"")
    );
    assert_eq!(client.call(&["users.secret", "a"]), "OK");
    assert!(monitor.answer().ends_with("\"users.secret\" \"(redacted)\""));
    assert_eq!(client.call(&["ECHO", "a"]), "a");
    assert!(monitor.answer().ends_with("\"ECHO\" \"a\""));
    let log = client.call(&["SLOWLOG", "GET"]);
    for shown in [
        "(users.secret (redacted) b (redacted) d)",
        "(users.secret (redacted))",
        "(ECHO a)",
    ] {
        assert!(log.contains(shown), "{shown} is not in {log}");
    }
}
