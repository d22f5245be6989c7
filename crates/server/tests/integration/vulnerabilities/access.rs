//! Vulnerabilities of access control.

use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::{Target, like_valkey};
use crate::harness::client::Client;
use crate::harness::server::PATIENCE;

const NO_KEY: &str = "User sr has no permissions to access the 'other' key";

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2024_31227_a_selector_without_a_permission_is_a_syntax_error() {
    let wrong = |rule: &str| format!("ERR Error in ACL SETUSER modifier '{rule}': Syntax error");
    let unmatched = |rule: &str| format!("ERR Unmatched parenthesis in acl selector starting at '{rule}'.");
    like_valkey(
        &[],
        &[
            (&["ACL", "SETUSER", "u", "%~x"], &wrong("%~x")),
            (&["ACL", "SETUSER", "u", "%"], &wrong("%")),
            (&["ACL", "SETUSER", "u", "(%~x)"], &wrong("(%~x)")),
            (&["ACL", "SETUSER", "u", "%RWX~a"], &wrong("%RWX~a")),
            (&["ACL", "SETUSER", "u", "(()"], &wrong("(()")),
            (&["ACL", "SETUSER", "u", ")"], &wrong(")")),
            (&["ACL", "SETUSER", "u", "("], &unmatched("(")),
            (&["ACL", "SETUSER", "u", "(+@all"], &unmatched("(+@all")),
            (&["ACL", "SETUSER", "u", "+config|"], &wrong("+config|")),
            (&["ACL", "LIST"], "(user default on nopass ~* &* +@all)"),
        ],
    )
    .serves();
}

/// A permission without a pattern gives access to no key, and checking it must not end the server.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2024_51741_a_permission_without_a_pattern_gives_no_access() {
    for rule in ["%R", "%W", "%RW", "%RW~"] {
        let mut target = like_valkey(
            &[],
            &[
                (&["ACL", "SETUSER", "u", "on", "nopass", "+@all", rule], "OK"),
                (
                    &["ACL", "DRYRUN", "u", "GET", "x"],
                    "User u has no permissions to access the 'x' key",
                ),
                (
                    &["ACL", "DRYRUN", "u", "SET", "x", "1"],
                    "User u has no permissions to access the 'x' key",
                ),
            ],
        );
        let mut user = target.connect();
        assert_eq!(user.call(&["AUTH", "u", "any"]), "OK");
        assert_eq!(user.call(&["SET", "x", "5"]), "NOPERM No permissions to access a key");
        let selected = format!("({rule} +set)");
        assert_eq!(target.attacker.call(&["ACL", "SETUSER", "u", &selected]), "OK");
        assert_eq!(user.call(&["SET", "x", "5"]), "NOPERM No permissions to access a key");
        target.serves();
    }
}

/// The keys that are checked are those that the command uses, where options repeat or look like keywords.
#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn cve_2023_41053_keys_of_commands_are_those_that_are_checked() {
    let rules = [
        "ACL",
        "SETUSER",
        "sr",
        "on",
        "nopass",
        "resetkeys",
        "~ok*",
        "+@read",
        "+@write",
        "+@connection",
    ];
    let mut target = like_valkey(
        &[],
        &[
            (&rules, "OK"),
            (&["ACL", "DRYRUN", "sr", "SORT_RO", "other"], NO_KEY),
            (&["ACL", "DRYRUN", "sr", "SORT_RO", "ok1", "BY", "nosort"], "OK"),
            (&["ACL", "DRYRUN", "sr", "SORT", "ok1", "STORE", "other"], NO_KEY),
            (
                &["ACL", "DRYRUN", "sr", "SORT", "ok1", "STORE", "ok2", "STORE", "other"],
                NO_KEY,
            ),
            (
                &["ACL", "DRYRUN", "sr", "SORT", "ok1", "BY", "STORE", "STORE", "other"],
                NO_KEY,
            ),
            (
                &[
                    "ACL",
                    "DRYRUN",
                    "sr",
                    "GEORADIUS",
                    "ok1",
                    "1",
                    "1",
                    "1",
                    "m",
                    "STORE",
                    "ok2",
                    "STOREDIST",
                    "other",
                ],
                NO_KEY,
            ),
            (
                &["ACL", "DRYRUN", "sr", "XREAD", "COUNT", "1", "STREAMS", "other", "0"],
                NO_KEY,
            ),
            (
                &[
                    "ACL",
                    "DRYRUN",
                    "sr",
                    "XREADGROUP",
                    "GROUP",
                    "STREAMS",
                    "ok1",
                    "STREAMS",
                    "other",
                    "0",
                ],
                NO_KEY,
            ),
            (
                &[
                    "ACL",
                    "DRYRUN",
                    "sr",
                    "XREADGROUP",
                    "GROUP",
                    "STREAMS",
                    "STREAMS",
                    "STREAMS",
                    "other",
                    "0",
                ],
                NO_KEY,
            ),
            (&["ACL", "DRYRUN", "sr", "MIGRATE", "h", "1", "other", "0", "1"], NO_KEY),
        ],
    );
    target.answers(&[(&["RPUSH", "other", "secret"], "1"), (&["RPUSH", "ok1", "1"], "1")]);
    let mut user = target.connect();
    assert_eq!(user.call(&["AUTH", "sr", "any"]), "OK");
    let denied = "NOPERM No permissions to access a key";
    let patterns = "ERR BY option of SORT denied due to insufficient ACL permissions.";
    let get = "ERR GET option of SORT denied due to insufficient ACL permissions.";
    for (words, reply) in [
        (&["SORT_RO", "other"][..], denied),
        (&["SORT", "ok1", "STORE", "ok2", "STORE", "other"], denied),
        (&["SORT_RO", "ok1", "BY", "other*"], patterns),
        (&["SORT_RO", "ok1", "GET", "other"], get),
    ] {
        assert_eq!(user.call(words), reply, "{words:?}");
    }
    assert_eq!(target.witness.call(&["LRANGE", "other", "0", "-1"]), "(secret)");
}

/// The socket has its permissions before a client can connect. Between bind and chmod it has others, but is not
/// listening.
#[test]
fn cve_2023_45145_the_unix_socket_accepts_no_client_before_it_has_its_permissions() {
    let mut target = Target::start(&[]);
    let directory = target.witness.call(&["CONFIG", "GET", "dir"]);
    let directory = directory.trim_start_matches("(dir ").trim_end_matches(')').to_owned();
    for mode in [0o700, 0o600, 0o770] {
        let path = format!("{directory}/s{mode:o}");
        let octal = format!("{mode:o}");
        let mode_of = |path: &str| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        std::thread::scope(|scope| {
            // Connects as soon as anything listens.
            let early = scope.spawn(|| {
                let start = Instant::now();
                loop {
                    if let Ok(stream) = UnixStream::connect(&path) {
                        return (stream, mode_of(&path));
                    }
                    assert!(start.elapsed() < PATIENCE, "no server listens");
                }
            });
            let mut target = Target::start(&["--unixsocket", &path, "--unixsocketperm", &octal]);
            let (stream, seen) = early.join().expect("connects");
            assert_eq!((seen, mode_of(&path)), (mode, mode), "{seen:o}");
            assert_eq!(Client(BufReader::new(stream)).call(&["PING"]), "PONG");
            target.serves();
        });
    }
}
