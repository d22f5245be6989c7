//! Tests how debugger sessions affect other clients: those continue or wait, and see the writes that are kept. The
//! messages to the user of a session are compared with Valkey (`tests/diff/script_debug.case`).

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};

/// The time after which the absence of a reply is certain enough.
const QUIET_TIME: Duration = Duration::from_millis(150);

/// Starts a session; the script is stopped at its first line.
fn start_session(server: &Server, mode: &str, words: &[&str]) -> Client {
    let mut client = Client::connect(server.port);
    begin_session(&mut client, mode, words);
    client
}

/// Starts a session of a client; the script is stopped at its first line.
fn begin_session(client: &mut Client, mode: &str, words: &[&str]) {
    assert_eq!(client.call(&["SCRIPT", "DEBUG", mode]), "OK");
    let stop = client.call(words);
    assert!(
        stop.starts_with("(* Stopped at 1, stop reason = step over -> 1 "),
        "{stop}"
    );
}

/// Connects a client that logs in as the user `joe`, who needs no password. Returns it and its id.
fn connect_as_joe(server: &Server) -> (Client, String) {
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["AUTH", "joe", "x"]), "OK");
    let id = client.call(&["CLIENT", "ID"]);
    (client, id)
}

/// Returns what the client of a session receives until its connection is closed.
fn rest(session: &mut Client) -> String {
    let mut rest = Vec::new();
    if let Err(error) = session.0.read_to_end(&mut rest) {
        let is_timeout = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!is_timeout, "the session goes on");
    }
    String::from_utf8_lossy(&rest).into_owned()
}

fn await_no_session(admin: &mut Client) {
    let (pid, deadline) = (pid_of(admin), Instant::now() + PATIENCE);
    while threads_named(&pid, "weft-debug") > 0 {
        assert!(Instant::now() < deadline, "sessions still run");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Continues a script to its end and returns its reply.
fn finish(client: &mut Client) -> String {
    assert_eq!(client.call(&["continue"]), "(<endsession>)");
    let reply = client.answer();
    let mut rest = Vec::new();
    // The connection may end with a reset, since the session leaves input unread.
    let _ = client.0.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    reply
}

/// Repeats a command until the answer satisfies `wanted`.
fn call_until(client: &mut Client, words: &[&str], wanted: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = client.call(words);
        if wanted(&answer) {
            return;
        }
        assert!(Instant::now() < deadline, "{words:?} answered {answer}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn clients(client: &mut Client) -> usize {
    client.call(&["CLIENT", "LIST"]).lines().count()
}

#[test]
fn other_clients_continue_during_a_session_and_see_none_of_its_writes() {
    for threads in ["1", "4"] {
        let server = Server::start(&["--io-threads", threads]);
        let mut other = Client::connect(server.port);
        other.call(&["MSET", "mine", "1", "later", "1"]);
        other.call(&["RPUSH", "list", "a"]);
        other.call(&["SUBSCRIBE", "news"]);
        let mut other = Client::connect(server.port);
        let mut waiting = Client::connect(server.port);
        waiting.send(&["BLPOP", "queue", "0"]);
        call_until(&mut other, &["INFO", "clients"], |info| {
            info.contains("blocked_clients:1")
        });
        // The connection that checked that the server listens is closed.
        other.wait_for_info("connected_clients", "3");
        let before = clients(&mut other);
        let script = "redis.call('incr', 'mine')\nredis.call('rpush', 'queue', 'x')\n\
                      redis.call('publish', 'news', 'x')\nreturn redis.call('get', 'later')";
        let mut session = start_session(&server, "YES", &["EVAL", script, "0"]);
        assert_eq!(clients(&mut other), before, "a session is no client");
        assert_eq!(
            session.call(&["step"]),
            "(<command> incr mine <reply> 2 * Stopped at 2, stop reason = step over -> 2   \
             redis.call('rpush', 'queue', 'x'))"
        );
        assert_eq!(other.call(&["GET", "mine"]), "1");
        assert_eq!(other.call(&["INCRBY", "mine", "10"]), "11");
        assert_eq!(
            session.call(&["v", "get", "mine"]),
            "(<command> get mine <reply> \"2\")"
        );
        // The session gets its own copy of a key when it first accesses the key.
        assert_eq!(other.call(&["SET", "later", "2"]), "OK");
        assert_eq!(
            session.call(&["v", "get", "later"]),
            "(<command> get later <reply> \"2\")"
        );
        assert_eq!(other.call(&["SET", "later", "3"]), "OK");
        assert_eq!(
            session.call(&["v", "rpush", "list", "b"]),
            "(<command> rpush list b <reply> 2)"
        );
        assert_eq!(other.call(&["FLUSHALL"]), "OK");
        assert_eq!(session.call(&["v", "dbsize"]), "(<command> dbsize <reply> 3)");
        assert_eq!(finish(&mut session), "2");
        assert_eq!(other.call(&["DBSIZE"]), "0");
        assert_eq!(other.call(&["RPUSH", "queue", "y"]), "1");
        assert_eq!(waiting.answer(), "(queue y)", "nobody was served by the session");
    }
}

#[test]
fn all_clients_wait_for_a_synchronous_session_and_its_writes_stay() {
    for threads in ["1", "4"] {
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]);
        let mut other = Client::connect(server.port);
        let mut waiting = Client::connect(server.port);
        waiting.send(&["BLPOP", "queue", "0"]);
        call_until(&mut other, &["INFO", "clients"], |info| {
            info.contains("blocked_clients:1")
        });
        let script =
            "redis.call('set', 'key', '1')\nredis.call('rpush', 'queue', 'x')\nreturn redis.call('incr', 'key')";
        let mut session = start_session(&server, "SYNC", &["EVAL", script, "0"]);
        session.call(&["step"]);
        let since = Instant::now();
        let asking = thread::spawn(move || {
            let answer = other.call(&["GET", "key"]);
            (answer, since.elapsed(), other)
        });
        thread::sleep(QUIET_TIME);
        assert!(!asking.is_finished(), "it waits");
        assert_eq!(finish(&mut session), "2");
        let (answer, waited, mut other) = asking.join().expect("it is answered");
        assert_eq!(answer, "2");
        assert!(waited >= QUIET_TIME);
        assert_eq!(waiting.answer(), "(queue x)", "who waits for keys is served");
        assert_eq!(other.call(&["DBSIZE"]), "1");
        // The propagation log contains the session as one transaction.
        drop((other, waiting));
        let mut server = server;
        server.kill();
        server.start_again();
        let mut other = Client::connect(server.port);
        call_until(&mut other, &["GET", "key"], |answer| answer == "2");
        assert_eq!(other.call(&["DBSIZE"]), "1");
    }
}

#[test]
fn a_user_that_disconnects_is_not_waited_for() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    let script = "local n = 1\nredis.call('set', 'left', n)\nreturn n";
    // The writes of this session are discarded.
    drop(start_session(&server, "YES", &["EVAL", script, "0"]));
    assert_eq!(other.call(&["GET", "left"]), "-");
    // The script runs to its end.
    drop(start_session(&server, "SYNC", &["EVAL", script, "0"]));
    assert_eq!(other.call(&["GET", "left"]), "1");
    assert_eq!(other.call(&["DEL", "left"]), "1");
    // Only half of the connection is closed: the client still reads.
    let mut session = start_session(&server, "SYNC", &["EVAL", script, "0"]);
    session.0.get_mut().shutdown(Shutdown::Write).expect("closes");
    assert_eq!(session.answer(), "(<endsession>)");
    assert_eq!(session.answer(), "1");
    assert_eq!(other.call(&["GET", "left"]), "1");
}

#[test]
fn a_session_without_a_user_ends_even_if_its_script_does_not() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    for way in 0..2 {
        let mut session = start_session(
            &server,
            "YES",
            &["EVAL", "local n = 1\nwhile true do n = n + 1 end", "0"],
        );
        match way {
            0 => session.send(&["continue"]),
            _ => session.send(&["eval", "while true do end"]),
        }
        thread::sleep(QUIET_TIME);
        drop(session);
    }
    await_no_session(&mut other);
    assert_eq!(other.call(&["PING"]), "PONG");
}

/// Returns the process id of the server.
fn pid_of(client: &mut Client) -> String {
    let info = client.call(&["INFO", "server"]);
    let number = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    number.expect("it is told").to_owned()
}

/// Returns the number of threads of a process with this name.
fn threads_named(pid: &str, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("lists threads");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[test]
fn the_process_ends_despite_sessions() {
    for mode in ["YES", "SYNC"] {
        let mut server = Server::start(&["--save", "3600 1"]);
        let mut other = Client::connect(server.port);
        other.call(&["SET", "key", "1"]);
        let pid = pid_of(&mut other);
        let mut session = start_session(
            &server,
            mode,
            &["EVAL", "redis.call('set', 'written', 1)\nreturn 1", "0"],
        );
        session.call(&["step"]);
        let told = Command::new("kill").arg(&pid).status();
        assert!(told.is_ok_and(|status| status.success()), "it is told to end");
        let mut rest = Vec::new();
        let _ = session.0.read_to_end(&mut rest);
        server.start_again_with(&[]);
        let mut other = Client::connect(server.port);
        call_until(&mut other, &["GET", "key"], |answer| answer == "1");
        let written = if mode == "SYNC" { "1" } else { "-" };
        assert_eq!(other.call(&["GET", "written"]), written, "{mode}");
    }
}

/// The script does not end, so a part of it could remain.
#[test]
fn nothing_remains_of_a_synchronous_session_that_the_end_of_the_process_stops() {
    for threads in ["1", "4"] {
        let mut server = Server::start(&["--io-threads", threads, "--appendonly", "yes"]);
        let mut other = Client::connect(server.port);
        assert_eq!(other.call(&["SET", "key", "1"]), "OK");
        let pid = pid_of(&mut other);
        let script = "redis.call('set', 'written', 1)\nlocal n = 1\nwhile true do n = n + 1 end";
        let mut session = start_session(&server, "SYNC", &["EVAL", script, "0"]);
        session.call(&["step"]);
        let told = Command::new("kill").arg(&pid).status();
        assert!(told.is_ok_and(|status| status.success()), "it is told to end");
        rest(&mut session);
        server.start_again_with(&["--appendonly", "yes"]);
        let mut other = Client::connect(server.port);
        call_until(&mut other, &["GET", "key"], |answer| answer == "1");
        assert_eq!(other.call(&["GET", "written"]), "-");
    }
}

#[test]
fn several_sessions_run_at_a_time() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    other.call(&["SET", "n", "0"]);
    let script = "local n = redis.call('incr', 'n')\nn = redis.call('incrby', 'n', ARGV[1])\nreturn n";
    let mut sessions: Vec<Client> = (0..12)
        .map(|number| start_session(&server, "YES", &["EVAL", script, "0", &number.to_string()]))
        .collect();
    for session in &mut sessions {
        assert!(session.call(&["step"]).contains("<reply> 1"));
    }
    assert_eq!(other.call(&["INCR", "n"]), "1");
    for (number, session) in sessions.iter_mut().enumerate() {
        assert_eq!(finish(session), (number + 1).to_string());
    }
    // A debugged script is not added to the shared cache.
    assert!(other.call(&["INFO", "memory"]).contains("number_of_cached_scripts:0"));
}

#[test]
fn large_values_are_copied_while_writers_continue() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    let members: Vec<String> = (0..20_000).map(|number| format!("member:{number}")).collect();
    for chunk in members.chunks(1000) {
        let mut words = vec!["SADD", "set"];
        words.extend(chunk.iter().map(String::as_str));
        other.call(&words);
    }
    other.call(&["SET", "text", &"x".repeat(100_000)]);
    other.call(&["HSET", "hash", "f", "v", "g", "w"]);
    other.call(&["HEXPIREAT", "hash", "9999999999", "FIELDS", "1", "f"]);
    let script = "local n = redis.call('scard', 'set')\nn = redis.call('sadd', 'set', 'new')\n\
                  redis.call('append', 'text', 'y')\n\
                  return {redis.call('scard', 'set'), redis.call('strlen', 'text'), #redis.call('keys', '*')}";
    let mut session = start_session(&server, "YES", &["EVAL", script, "0"]);
    session.call(&["step"]);
    session.call(&["step"]);
    assert_eq!(other.call(&["SADD", "set", "other", "new"]), "2");
    assert_eq!(other.call(&["APPEND", "text", "yy"]), "100002");
    assert_eq!(
        session.call(&["v", "hexpiretime", "hash", "fields", "1", "f"]),
        "(<command> hexpiretime hash fields 1 f <reply> [9999999999])"
    );
    assert_eq!(finish(&mut session), "(20001 100003 3)");
    assert_eq!(other.call(&["SCARD", "set"]), "20002");
}

#[test]
fn a_session_respects_permissions_and_limits() {
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    other.call(&["ACL", "SETUSER", "reader", "on", ">word", "+@all", "-set", "~*", "&*"]);
    let mut session = Client::connect(server.port);
    session.call(&["AUTH", "reader", "word"]);
    session.call(&["SCRIPT", "DEBUG", "YES"]);
    session.call(&["EVAL", "local r = redis.pcall('set', 'k', '1')\nreturn r", "0"]);
    let stop = session.call(&["step"]);
    assert!(
        stop.contains("<reply> \"-NOPERM User reader has no permissions to run the 'set' command\""),
        "{stop}"
    );
    assert!(finish(&mut session).contains("ACL failure in script"));
    // Memory is short: commands that may need some are refused.
    other.call(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut session = start_session(&server, "YES", &["EVAL", "return redis.call('set', 'k', '1')", "0"]);
    assert!(finish(&mut session).starts_with("OOM"));
    other.call(&["CONFIG", "SET", "maxmemory", "0"]);
}

const ALLOW_JOE: [&str; 8] = ["ACL", "SETUSER", "joe", "on", "nopass", "~*", "&*", "+@all"];

#[test]
fn a_session_ends_with_its_client_or_its_acl_user() {
    for (threads, is_running) in [("1", true), ("4", false)] {
        let server = Server::start(&["--io-threads", threads]);
        let mut admin = Client::connect(server.port);
        for change in ["ID", "USER", "EXEC", "DELUSER"] {
            assert_eq!(admin.call(&ALLOW_JOE), "OK");
            let (mut session, id) = connect_as_joe(&server);
            let script = "local n = 1\nwhile true do n = n + 1 end";
            begin_session(&mut session, "YES", &["EVAL", script, "0"]);
            if is_running {
                session.send(&["continue"]);
            }
            let answer = match change {
                "ID" => admin.call(&["CLIENT", "KILL", "ID", &id]),
                "USER" => admin.call(&["CLIENT", "KILL", "USER", "joe"]),
                "EXEC" => admin.transact(&[&["CLIENT", "KILL", "ID", &id]]),
                _ => admin.call(&["ACL", "DELUSER", "joe"]),
            };
            assert_eq!(answer.trim_matches(['(', ')']), "1", "{change}");
            assert_eq!(rest(&mut session), "", "{change}");
            await_no_session(&mut admin);
            assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "0");
        }
    }
}

#[test]
fn a_session_has_the_present_permissions_of_its_acl_user() {
    let server = Server::start(&[]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&ALLOW_JOE), "OK");
    admin.call(&["MSET", "a", "1", "b", "2"]);
    let (mut session, _) = connect_as_joe(&server);
    let script = "local n = redis.pcall('get', 'a')\nreturn n";
    begin_session(&mut session, "YES", &["EVAL", script, "0"]);
    let get = |name: &str, reply: &str| format!("(<command> get {name} <reply> {reply}");
    let denied = "\"-NOPERM No permissions to access a key\"";
    let said = session.call(&["v", "get", "a"]);
    assert!(said.starts_with(&get("a", "\"1\"")), "{said}");
    // A key that the session has copied already, and one that it has not.
    assert_eq!(admin.call(&["ACL", "SETUSER", "joe", "resetkeys", "~c"]), "OK");
    admin.call(&["MSET", "b", "secret", "c", "3"]);
    for name in ["a", "b"] {
        let said = session.call(&["v", "get", name]);
        assert!(said.starts_with(&get(name, denied)), "{said}");
    }
    let said = session.call(&["v", "get", "c"]);
    assert!(said.starts_with(&get("c", "\"3\"")), "{said}");
    assert_eq!(admin.call(&["ACL", "SETUSER", "joe", "-dbsize"]), "OK");
    let said = session.call(&["v", "dbsize"]);
    assert!(said.contains("NOPERM User joe has no permissions"), "{said}");
    assert_eq!(admin.call(&ALLOW_JOE), "OK");
    let said = session.call(&["v", "get", "b"]);
    assert!(said.starts_with(&get("b", "\"secret\"")), "{said}");
    let said = session.call(&["v", "dbsize"]);
    assert!(said.starts_with("(<command> dbsize <reply> 3"), "{said}");
    assert_eq!(finish(&mut session), "1");
}

#[test]
fn a_synchronous_session_whose_client_is_killed_does_not_begin() {
    let server = Server::start(&["--busy-reply-threshold", "600000"]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&ALLOW_JOE), "OK");
    let mut script = Client::connect(server.port);
    server.run_script(&mut script, &["EVAL", "while true do end", "0"]);
    let (mut session, id) = connect_as_joe(&server);
    assert_eq!(session.call(&["SCRIPT", "DEBUG", "SYNC"]), "OK");
    session.send(&["EVAL", "redis.call('set', 'key', '1')\nreturn 1", "0"]);
    // The session waits for the script.
    call_until(&mut admin, &["CLIENT", "LIST", "ID", &id], |list| {
        list.trim().is_empty()
    });
    assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
    assert_eq!(rest(&mut session), "");
    assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
    await_no_session(&mut admin);
    assert_eq!(admin.call(&["EXISTS", "key"]), "0");
}

#[test]
fn sessions_do_not_wait_for_an_overdue_script() {
    let server = Server::start(&["--busy-reply-threshold", "20", "--busy-reply-scope", "affected"]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&["SET", "key", "1"]), "OK");
    let mut script = Client::connect(server.port);
    server.run_script(&mut script, &["EVAL", "while true do end", "1", "key"]);
    call_until(&mut admin, &["GET", "key"], |answer| answer.starts_with("BUSY "));
    let mut session = Client::connect(server.port);
    assert_eq!(session.call(&["SCRIPT", "DEBUG", "SYNC"]), "OK");
    let refused = session.call(&["EVAL", "return 1", "0"]);
    assert!(refused.starts_with("BUSY "), "{refused}");
    let body = "local r = redis.pcall('get', 'key')\nreturn r";
    begin_session(&mut session, "YES", &["EVAL", body, "0"]);
    for words in [&["step"][..], &["v", "keys", "*"]] {
        let said = session.call(words);
        assert!(said.contains("BUSY "), "{words:?}: {said}");
    }
    assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
    script.answer();
    let said = session.call(&["v", "get", "key"]);
    assert!(said.starts_with("(<command> get key <reply> \"1\""), "{said}");
    let reply = finish(&mut session);
    assert!(reply.starts_with("BUSY "), "{reply}");
}

#[test]
fn in_a_cluster_a_session_knows_its_own_slots() {
    let server = Server::start_node(&["--cluster-require-full-coverage", "no"]);
    let mut other = Client::connect(server.port);
    assert_eq!(
        other.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "12181", "12183", "16383"]),
        "OK"
    );
    call_until(&mut other, &["CLUSTER", "INFO"], |info| {
        info.contains("cluster_state:ok")
    });
    call_until(&mut other, &["SET", "{a}k", "1"], |answer| answer == "OK");
    let script = "local n = redis.call('get', KEYS[1])\nreturn {n, #redis.call('keys', '*')}";
    for mode in ["YES", "SYNC"] {
        let mut session = start_session(&server, mode, &["EVAL", script, "1", "{a}k"]);
        // The slot of foo is not assigned.
        let refused = session.call(&["v", "get", "foo"]);
        assert!(refused.contains("-ERR"), "{refused}");
        assert_eq!(finish(&mut session), "(1 1)");
    }
}

#[test]
fn scripts_without_a_session_run_normally() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    assert_eq!(
        client.call(&["EVAL", "redis.debug('x') return tostring(redis.breakpoint())", "0"]),
        "false"
    );
    let library = "#!lua name=l\nlocal kept\nserver.register_function('f', function(keys)\n\
                   kept = kept or redis.call\nreturn kept('incr', keys[1])\nend)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", library]), "l");
    // A reference to the API that a function keeps stays valid for later calls, and functions are not debugged.
    assert_eq!(client.call(&["SCRIPT", "DEBUG", "YES"]), "OK");
    for expected in ["1", "2", "3"] {
        assert_eq!(client.call(&["FCALL", "f", "1", "n"]), expected);
    }
    // Scripts in transactions are not debugged.
    client.call(&["MULTI"]);
    client.call(&["EVAL", "return redis.call('incr', 'n')", "0"]);
    assert_eq!(client.call(&["EXEC"]), "(4)");
    assert_eq!(client.call(&["RESET"]), "RESET");
    let stop = client.call(&["EVAL", "return 1", "0"]);
    assert!(stop.starts_with("(* Stopped at 1"), "RESET leaves it: {stop}");
}
