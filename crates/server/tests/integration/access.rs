//! End-to-end tests of access control: changes of users while their clients are active, and users in files.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

/// A temporary directory for one test, removed at its end.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> TestDirectory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-access-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("creates a directory");
        TestDirectory(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("writes");
        path.display().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    fn directory(&self) -> String {
        self.0.display().to_string()
    }

    /// Returns the output of a server that refuses to start.
    fn output_of_refused_start(&self, options: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_weft-server"))
            .args(options)
            .args(["--port", "0", "--unixsocket", "socket", "--dir", &self.directory()])
            .stdin(Stdio::null())
            .output()
            .expect("runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn connect_as(server: &Server, user: &str) -> Client {
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["AUTH", user, "x"]), "OK");
    client
}

const ALLOW_ALL: &[&str] = &["ACL", "SETUSER", "joe", "reset", "on", "nopass", "~*", "&*", "+@all"];

/// The number of requests that are sent together, so that a change occurs while a worker executes them.
const PIPELINE: usize = 100;

/// Starts clients of user joe that increment `n` as fast as they can, directly or in transactions, until `stop` is set.
fn start_counting_clients(server: &Server, clients: usize, stop: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    (0..clients)
        .map(|index| {
            let mut client = connect_as(server, "joe");
            let stop = stop.clone();
            let requests: &[&[&str]] = if index % 3 == 0 {
                &[&["MULTI"], &["INCR", "n"], &["EXEC"]]
            } else {
                &[&["INCR", "n"]]
            };
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let all: Vec<&[&str]> = std::iter::repeat_n(requests, PIPELINE).flatten().copied().collect();
                    client.send_all(&all);
                    for _ in all {
                        client.answer();
                    }
                }
            })
        })
        .collect()
}

#[test]
fn after_the_reply_to_a_change_the_old_rules_no_longer_apply() {
    let server = Server::start(&["--io-threads", "8"]);
    let mut admin = Client::connect(server.port);
    admin.call(ALLOW_ALL);
    let stop = Arc::new(AtomicBool::new(false));
    let clients = start_counting_clients(&server, 12, &stop);
    let mut counted = 0;
    for round in 0..150 {
        let rule = ["-incr", "resetkeys", "db=5"][round % 3];
        // Sent together: the second command is executed as soon as the first is answered.
        admin.send_all(&[&["ACL", "SETUSER", "joe", rule], &["GET", "n"]]);
        assert_eq!(admin.answer(), "OK");
        let before = admin.answer();
        thread::sleep(Duration::from_millis(3));
        assert_eq!(admin.call(&["GET", "n"]), before, "after {rule}");
        counted = counted.max(before.parse().unwrap_or(0));
        admin.call(ALLOW_ALL);
        thread::sleep(Duration::from_millis(3));
        let start = Instant::now();
        while admin.call(&["GET", "n"]).parse().unwrap_or(0) < counted + 10 {
            assert!(start.elapsed() < PATIENCE, "nobody counts");
            thread::sleep(Duration::from_millis(1));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("a client that went well");
    }
    assert!(counted > 1000, "{counted}");
}

#[test]
fn clients_of_a_deleted_user_are_disconnected() {
    let server = Server::start(&["--io-threads", "4"]);
    let mut admin = Client::connect(server.port);
    for round in 0..20 {
        admin.call(ALLOW_ALL);
        let mut idle: Vec<Client> = (0..6).map(|_| connect_as(&server, "joe")).collect();
        let mut waiting = connect_as(&server, "joe");
        waiting.send(&["BLPOP", "list", "0"]);
        if round % 2 == 0 {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(admin.call(&["ACL", "DELUSER", "joe"]), "1");
        assert_eq!(admin.call(&["RPUSH", "list", "a"]), "1");
        assert_eq!(admin.call(&["LRANGE", "list", "0", "-1"]), "(a)");
        admin.call(&["DEL", "list"]);
        waiting.expect_end();
        idle.iter_mut().for_each(Client::expect_end);
    }
}

impl Client {
    /// Sends requests in one write.
    fn send_all(&mut self, requests: &[&[&str]]) {
        let mut bytes = String::new();
        for words in requests {
            bytes += &format!("*{}\r\n", words.len());
            words
                .iter()
                .for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(bytes.as_bytes()).expect("sends");
    }

    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut self.0, &mut rest);
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }
}

#[test]
fn users_are_loaded_from_their_file_and_saved_to_it() {
    let place = TestDirectory::new();
    let file = place.write("users.acl", "user joe on nopass ~* +@all\nuser ann on nopass +ping\n");
    let server = Server::start(&["--aclfile", &file, "--dir", &place.directory()]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&["ACL", "USERS"]), "(ann default joe)");
    let mut joe = connect_as(&server, "joe");
    let mut ann = connect_as(&server, "ann");
    assert!(ann.call(&["GET", "k"]).starts_with("NOPERM"));

    assert_eq!(admin.call(&["ACL", "SETUSER", "bob", "on", ">b", "(+get ~b)"]), "OK");
    assert_eq!(admin.call(&["ACL", "SAVE"]), "OK");
    let saved = place.read("users.acl");
    let hash = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";
    let expected = format!(
        "user ann on nopass resetchannels -@all +ping\n\
         user bob on #{hash} resetchannels -@all (~b resetchannels -@all +get)\n\
         user default on nopass ~* &* +@all\n\
         user joe on nopass ~* resetchannels +@all\n"
    );
    assert_eq!(saved, expected);

    place.write("users.acl", "user ann on nopass +get ~*\nuser bob oops\n");
    let errors = admin.call(&["ACL", "LOAD"]);
    assert!(
        errors.contains(":2: Syntax error. WARNING: ACL errors detected"),
        "{errors}"
    );
    assert_eq!(admin.call(&["ACL", "USERS"]), "(ann bob default joe)");

    place.write("users.acl", "user ann on nopass +get ~*\n");
    for (words, expected) in [
        (&["MULTI"][..], "OK"),
        (&["ACL", "LOAD"], "QUEUED"),
        (&["ACL", "USERS"], "QUEUED"),
        (&["EXEC"], "(OK (ann default))"),
    ] {
        assert_eq!(admin.call(words), expected, "{words:?}");
    }
    joe.expect_end();
    assert_eq!(ann.call(&["GET", "k"]), "-");
    assert!(ann.call(&["PING"]).starts_with("NOPERM"));
    assert_eq!(admin.call(&["ACL", "LOAD"]), "OK");
}

#[test]
fn a_client_whose_user_its_acl_load_removes_gets_the_reply() {
    for workers in ["2", "8"] {
        let place = TestDirectory::new();
        let path = place.write("users.acl", "user default on nopass ~* &* +@all\n");
        let server = Server::start(&["--io-threads", workers, "--aclfile", &path]);
        let mut admin = Client::connect(server.port);
        for in_transaction in [false, true] {
            assert_eq!(admin.call(ALLOW_ALL), "OK");
            let mut joe = connect_as(&server, "joe");
            let mut other = connect_as(&server, "joe");
            if in_transaction {
                assert_eq!(joe.transact(&[&["ACL", "LOAD"]]), "(OK)");
            } else {
                // The second request is not executed.
                joe.send_all(&[&["ACL", "LOAD"], &["SET", "k", "v"]]);
                assert_eq!(joe.answer(), "OK");
            }
            joe.expect_end();
            other.expect_end();
            assert_eq!(admin.call(&["ACL", "USERS"]), "(default)");
            assert_eq!(admin.call(&["EXISTS", "k"]), "0");
        }
    }
}

/// A script keeps ACL LOAD from its change. Both threads for long commands wait for that, so the commands of the user
/// begin after it.
#[test]
fn queued_work_is_judged_by_the_rules_at_its_beginning() {
    const ALL: &str = "user default on nopass ~* &* +@all\nuser u on nopass ~* &* +@all";
    let directory = TestDirectory::new();
    let file = directory.write("users.acl", ALL);
    let server = Server::start(&["--aclfile", &file, "--busy-reply-threshold", "600000"]);
    let mut admin = Client::connect(server.port);
    let mut users: Vec<Client> = (0..2).map(|_| connect_as(&server, "u")).collect();
    let samples = admin.call(&["CONFIG", "GET", "maxmemory-samples"]);
    let mut script = Client::connect(server.port);
    server.run_script(&mut script, &["EVAL", "while true do end", "0"]);
    let before: usize = admin.info("weft_background_commands").parse().expect("a number");
    directory.write("users.acl", &format!("{ALL} -function -config"));
    let mut loaders: Vec<Client> = (0..2).map(|_| Client::connect(server.port)).collect();
    for loader in &mut loaders {
        loader.send(&["ACL", "LOAD"]);
    }
    admin.wait_for_info("weft_background_commands", &(before + 2).to_string());
    let library = "#!lua name=l\nserver.register_function('f', function() return 1 end)";
    users[0].send(&["FUNCTION", "LOAD", library]);
    users[1].send(&["CONFIG", "SET", "maxmemory-samples", "17"]);
    admin.wait_for_info("weft_background_commands", &(before + 4).to_string());
    assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
    for loader in &mut loaders {
        assert_eq!(loader.answer(), "OK");
    }
    let denied = |command: &str| format!("NOPERM User u has no permissions to run the '{command}' command");
    assert_eq!(users[0].answer(), denied("function|load"));
    assert_eq!(users[1].answer(), denied("config|set"));
    assert_eq!(admin.call(&["FUNCTION", "LIST"]), "()");
    assert_eq!(admin.call(&["CONFIG", "GET", "maxmemory-samples"]), samples);
    let log = admin.call(&["ACL", "LOG"]);
    assert!(log.contains("function|load") && log.contains("config|set"), "{log}");
}

#[test]
fn a_queued_change_of_the_cluster_ends_with_its_client() {
    let directory = TestDirectory::new();
    let file = directory.write("users.acl", "user default on nopass ~* &* +@all");
    let server = Server::start_node(&["--aclfile", &file, "--busy-reply-threshold", "600000"]);
    let mut admin = Client::connect(server.port);
    let mut script = Client::connect(server.port);
    server.run_script(&mut script, &["EVAL", "while true do end", "0"]);
    let before: usize = admin.info("weft_background_commands").parse().expect("a number");
    let mut loaders: Vec<Client> = (0..2).map(|_| Client::connect(server.port)).collect();
    for loader in &mut loaders {
        loader.send(&["ACL", "LOAD"]);
    }
    admin.wait_for_info("weft_background_commands", &(before + 2).to_string());
    let id = admin.call(&["CLUSTER", "MYID"]);
    let mut killed = Client::connect(server.port);
    let killed_id = killed.call(&["CLIENT", "ID"]);
    killed.send(&["CLUSTER", "SETSLOT", "5", "NODE", &id]);
    wait_until("it is queued", || {
        admin
            .call(&["CLIENT", "LIST", "ID", &killed_id])
            .contains("cmd=cluster|setslot")
    });
    assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &killed_id]), "1");
    assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
    for loader in &mut loaders {
        assert_eq!(loader.answer(), "OK");
    }
    admin.wait_for_info("weft_unfinished_jobs", "0");
    assert!(admin.call(&["CLUSTER", "INFO"]).contains("cluster_slots_assigned:0"));
    assert_eq!(admin.call(&["CLUSTER", "SETSLOT", "5", "NODE", &id]), "OK");
    assert!(admin.call(&["CLUSTER", "INFO"]).contains("cluster_slots_assigned:1"));
}

#[test]
fn users_of_the_configuration_are_created_and_written_back() {
    let place = TestDirectory::new();
    let config = place.write("weft.conf", "user joe on nopass (+get ~a +set)\nuser ann on >x +ping\n");
    let server = Server::start_from(Some(&config), &[]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&["ACL", "USERS"]), "(ann default joe)");
    assert_eq!(admin.call(&["ACL", "DELUSER", "ann"]), "1");
    assert_eq!(admin.call(&["ACL", "SETUSER", "bob", "~k", "db=1"]), "OK");
    assert_eq!(admin.call(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
    assert_eq!(admin.call(&["CONFIG", "REWRITE"]), "OK");
    let written = place.read("weft.conf");
    let users: Vec<&str> = written.lines().filter(|line| line.starts_with("user ")).collect();
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let default = format!("user default on #{hash} ~* &* +@all");
    let expected = [
        "user joe on nopass resetchannels -@all (~a resetchannels -@all +get +set)",
        "user bob off ~k resetchannels db=1 -@all",
        default.as_str(),
    ];
    let mut sorted = users.clone();
    sorted.sort_unstable();
    let mut wanted = expected;
    wanted.sort_unstable();
    assert_eq!(sorted, wanted, "{written}");
}

#[test]
fn invalid_users_prevent_the_start() {
    let place = TestDirectory::new();
    let file = place.write("users.acl", "user joe on\nuser joe off\nwhat\n");
    let missing = place.directory() + "/missing";
    let cases: [(&[&str], &str); 7] = [
        (
            &["--user", "joe", "oops"],
            "Error in user declaration 'user': Syntax error",
        ),
        (
            &["--user", "joe", "on", "(+get"],
            "Error in user declaration 'joe': Wrong format",
        ),
        (
            &["--user", "joe", "on", "--user", "joe", "off"],
            "Error in user declaration 'joe': Duplicate user found.",
        ),
        (
            &["--user", "joe", "+nosuch"],
            "Error loading ACL rule '+nosuch' for the user named 'joe': Unknown command or category name in ACL",
        ),
        (&["--aclfile", &file], "WARNING: Duplicate user 'joe' found on line 2. "),
        (&["--aclfile", &missing], "missing': No such file or directory"),
        (&["--aclfile", &file, "--user", "joe", "on"], "in one place"),
    ];
    for (options, expected) in cases {
        let said = place.output_of_refused_start(options);
        assert!(said.contains(expected), "{options:?}: {said}");
    }
}

/// The password of the default user may come from ACL SETUSER, and the parameter is empty then.
#[test]
fn a_refused_change_of_parameters_leaves_the_default_user_its_password() {
    let server = Server::start(&[]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(&["ACL", "SETUSER", "default", "resetpass", ">secret"]), "OK");
    let rules = admin.call(&["ACL", "LIST"]);
    let refused = admin.call(&["CONFIG", "SET", "requirepass", "new", "maxclients", "4294967295"]);
    assert!(refused.starts_with("ERR CONFIG SET failed"), "{refused}");
    assert_eq!(admin.call(&["ACL", "LIST"]), rules);
    let mut other = Client::connect(server.port);
    assert_eq!(other.call(&["PING"]), "NOAUTH Authentication required.");
    assert_eq!(
        other.call(&["AUTH", "new"]),
        "WRONGPASS invalid username-password pair or user is disabled."
    );
    assert_eq!(other.call(&["AUTH", "secret"]), "OK");
    // The parameter is applied if nothing is refused.
    assert_eq!(
        admin.call(&["CONFIG", "SET", "requirepass", "new", "maxclients", "100"]),
        "OK"
    );
    assert_eq!(Client::connect(server.port).call(&["AUTH", "new"]), "OK");
}

/// A client has to authenticate unless it was authenticated when it connected, or no password is needed at the moment.
#[test]
fn requests_are_short_only_while_the_client_must_authenticate() {
    let server = Server::start(&[]);
    let mut admin = Client::connect(server.port);
    assert_eq!(admin.call(ALLOW_ALL), "OK");
    let mut admin = connect_as(&server, "joe");
    let value = "v".repeat(20_000);
    let short: Vec<&str> = [&["MSET"][..], &["k", "v"].repeat(10)[..]].concat();
    let serves = |client: &mut Client| {
        // The second request is already there when the first one runs.
        client.send(&["SET", "key", &value]);
        client.send(&short);
        assert_eq!((client.answer(), client.answer()), ("OK".to_owned(), "OK".to_owned()));
    };
    for rules in [&["resetpass", ">x"][..], &["off"][..]] {
        let closed = ["ACL", "SETUSER", "default", "on", "resetpass", ">x"];
        assert_eq!(admin.call(&closed), "OK");
        let mut early = Client::connect(server.port);
        assert_eq!(early.call(&["PING"]), "NOAUTH Authentication required.");
        assert_eq!(admin.call(&["ACL", "SETUSER", "default", "nopass"]), "OK");
        let mut late = Client::connect(server.port);
        assert_eq!(late.call(&["PING"]), "PONG");
        serves(&mut early);
        serves(&mut late);
        assert_eq!(admin.call(&[&["ACL", "SETUSER", "default"][..], rules].concat()), "OK");
        serves(&mut late);
        early.0.get_mut().write_all(b"*2\r\n$16385\r\n").expect("sends");
        assert_eq!(
            early.answer(),
            "ERR Protocol error: unauthenticated bulk length",
            "{rules:?}"
        );
    }
}

/// Changes a user and saves all users, again and again. From each save to the next change, the user stays the same: it
/// is as it was saved, with the change unless a load has come between the two.
fn change_and_save(server: &Server, name: &str) {
    let mut client = Client::connect(server.port);
    let mut saved = client.call(&["ACL", "GETUSER", name]);
    let start = Instant::now();
    for number in 0.. {
        let pattern = format!("~{name}{number}");
        assert_eq!(client.call(&["ACL", "SETUSER", name, "resetkeys", &pattern]), "OK");
        assert_eq!(client.call(&["ACL", "SAVE"]), "OK");
        let now = client.call(&["ACL", "GETUSER", name]);
        let is_changed = now.contains(&format!("keys {pattern} "));
        assert!(is_changed || now == saved, "{pattern}: {now}, saved before: {saved}");
        saved = now;
        if start.elapsed() >= Duration::from_secs(1) {
            break;
        }
        // Other clients load meanwhile, and one saves.
        thread::sleep(Duration::from_millis(2));
        assert_eq!(client.call(&["ACL", "GETUSER", name]), saved, "{pattern}");
    }
}

#[test]
fn users_that_are_saved_beside_loads_stay_as_they_were_saved() {
    let directory = TestDirectory::new();
    let file = directory.write("users.acl", "user default on nopass ~* &* +@all\n");
    let server = &Server::start(&["--aclfile", &file]);
    let stop = &AtomicBool::new(false);
    let load_repeatedly = || {
        let mut client = Client::connect(server.port);
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(client.call(&["ACL", "LOAD"]), "OK");
            count += 1;
        }
        count
    };
    thread::scope(|scope| {
        let others = [(), ()].map(|()| scope.spawn(load_repeatedly));
        let writers = ["a", "b"].map(|name| scope.spawn(move || change_and_save(server, name)));
        let results = writers.map(std::thread::ScopedJoinHandle::join);
        // Before a failure is passed on: the other threads would run for ever.
        stop.store(true, Ordering::Relaxed);
        assert!(results.into_iter().all(|result| result.is_ok()));
        for other in others {
            assert!(other.join().expect("ends") > 0);
        }
    });
    let listed = Client::connect(server.port).call(&["ACL", "LIST"]);
    let lines: Vec<String> = directory.read("users.acl").lines().map(str::to_owned).collect();
    assert_eq!(
        listed,
        format!("({})", lines.join(" ")),
        "the file has the users of the memory"
    );
}
