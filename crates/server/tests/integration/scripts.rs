//! End-to-end tests of scripts: they are atomic with regard to all other commands, can be killed, and libraries are
//! persisted.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client;
use crate::harness::connection::open;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Server) -> Self {
        Client(open(server.port))
    }

    fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes()).expect("sends");
    }

    /// Returns the next reply as text, the elements of an array separated by spaces.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("receives");
        let line = line.trim_end();
        let (kind, rest) = line.split_at(1);
        match kind {
            "*" => {
                let elements: Vec<String> = (0..rest.parse::<i64>().expect("a length"))
                    .map(|_| self.answer())
                    .collect();
                elements.join(" ")
            }
            "$" if rest == "-1" => "(nil)".to_owned(),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("receives");
                bytes.truncate(bytes.len() - 2);
                String::from_utf8_lossy(&bytes).into_owned()
            }
            _ => line.to_owned(),
        }
    }

    fn call(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }

    /// Repeats a command until the answer begins with `wanted`.
    fn call_until(&mut self, words: &[&str], wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.call(words);
            if answer.starts_with(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?} answered {answer}, not {wanted}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

const ACCOUNTS: usize = 20;
/// A script that moves one unit between two undeclared accounts.
const TRANSFER: &str = "if tonumber(redis.call('get', 'acc:' .. ARGV[1])) > 0 then \
                        redis.call('decr', 'acc:' .. ARGV[1]) redis.call('incr', 'acc:' .. ARGV[2]) end return 1";
/// The same between declared accounts.
const DECLARED: &str = "redis.call('decr', KEYS[1]) return redis.call('incr', KEYS[2])";
/// A script that finds all accounts itself and returns their sum.
const SUM: &str = "local sum = 0 for _, key in ipairs(redis.call('keys', 'acc:*')) do \
                   sum = sum + tonumber(redis.call('get', key)) end return sum";
/// A script that reads the accounts one after the other and returns their sum.
const READ: &str = "local sum = 0 for i = 0, 19 do sum = sum + tonumber(redis.call('get', 'acc:' .. i)) end return sum";

/// Runs one client's share of the work. The seed makes a failure reproducible.
fn run_client(server: &Server, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = Client::connect(server);
    let total = format!(":{}", ACCOUNTS * 100);
    while !stop.load(Ordering::Relaxed) {
        let (one, other) = (
            random.usize(..ACCOUNTS).to_string(),
            random.usize(..ACCOUNTS).to_string(),
        );
        let (key, other_key) = (format!("acc:{one}"), format!("acc:{other}"));
        match random.u8(..7) {
            0 | 1 => assert_eq!(client.call(&["EVAL", TRANSFER, "0", &one, &other]), ":1"),
            2 => assert!(client.call(&["EVAL", DECLARED, "2", &key, &other_key]).starts_with(':')),
            3 => assert_eq!(client.call(&["EVAL_RO", READ, "0"]), total, "seed {seed}"),
            4 => assert_eq!(client.call(&["EVAL", SUM, "0"]), total, "seed {seed}"),
            5 => {
                client.call(&["MULTI"]);
                client.call(&["DECR", &key]);
                client.call(&["EVAL", TRANSFER, "0", &other, &one]);
                client.call(&["INCR", &key]);
                assert!(!client.call(&["EXEC"]).contains("ERR"));
            }
            _ => {
                let mut words = vec!["MGET".to_owned()];
                words.extend((0..ACCOUNTS).map(|account| format!("acc:{account}")));
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let sum: i64 = client
                    .call(&words)
                    .split(' ')
                    .map(|word| word.parse::<i64>().unwrap())
                    .sum();
                assert_eq!(format!(":{sum}"), total, "seed {seed}");
            }
        }
    }
}

#[test]
fn no_client_sees_a_partially_executed_script() {
    let server = Server::start(&["--io-threads", "4"]);
    let mut client = Client::connect(&server);
    for account in 0..ACCOUNTS {
        client.call(&["SET", &format!("acc:{account}"), "100"]);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (server, stop) = (&server, &stop);
        let workers: Vec<_> = (1..=8)
            .map(|seed| scope.spawn(move || run_client(server, seed, stop)))
            .collect();
        thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().expect("no client saw anything wrong");
        }
    });
}

#[test]
fn an_endless_script_delays_only_clients_that_need_its_keys_and_can_be_killed() {
    for threads in ["1", "2", "4", "8"] {
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--busy-reply-threshold",
            "20",
            "--busy-reply-scope",
            "affected",
        ]);
        let mut runner = Client::connect(&server);
        // At least one client of each worker.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(&server)).collect();
        clients[0].call(&["MSET", "mine", "1", "yours", "1"]);
        runner.send(&["EVAL", "while true do end", "1", "mine"]);
        for client in &mut clients {
            client.call_until(&["GET", "mine"], "-BUSY");
            assert_eq!(client.call(&["SET", "yours", "2"]), "+OK");
            assert!(client.call(&["FLUSHALL"]).starts_with("-BUSY"), "nobody waits for ever");
            assert!(client.call(&["KEYS", "*"]).starts_with("-BUSY"));
            assert!(client.call(&["FUNCTION", "KILL"]).starts_with("-BUSY"));
        }
        assert_eq!(clients[0].call(&["SCRIPT", "KILL"]), "+OK");
        assert!(
            runner
                .answer()
                .starts_with("-ERR Script killed by user with SCRIPT KILL.")
        );
        for client in &mut clients {
            assert_eq!(client.call(&["GET", "mine"]), "1");
            assert_eq!(client.call(&["GET", "yours"]), "2");
            assert!(client.call(&["SCRIPT", "KILL"]).starts_with("-NOTBUSY"));
        }
    }
}

#[test]
fn a_busy_script_is_reported_to_all_clients_within_its_scope() {
    let server = Server::start(&["--busy-reply-threshold", "20"]);
    let (mut runner, mut client) = (Client::connect(&server), Client::connect(&server));
    let mut in_multi = Client::connect(&server);
    assert_eq!(in_multi.call(&["MULTI"]), "+OK");
    runner.send(&["EVAL", "while true do end", "0"]);
    client.call_until(
        &["PING"],
        "-BUSY Valkey is busy running a script. You can only call SCRIPT KILL",
    );
    for words in [
        &["GET", "key"][..],
        &["CONFIG", "GET", "port"],
        &["INFO"],
        &["EVAL", "return 1", "0"],
    ] {
        assert!(client.call(words).starts_with("-BUSY"), "{words:?}");
    }
    // A refused command makes the transaction fail.
    assert!(in_multi.call(&["INCR", "key"]).starts_with("-BUSY"));
    assert!(in_multi.call(&["EXEC"]).starts_with("-EXECABORT"));
    assert_eq!(client.call(&["SCRIPT", "KILL"]), "+OK");
    assert!(runner.answer().starts_with("-ERR Script killed by user"));
    client.call_until(&["PING"], "+PONG");
    assert_eq!(client.call(&["EXISTS", "key"]), ":0");
}

#[test]
fn texts_name_redis_with_extended_compatibility() {
    let server = Server::start(&["--busy-reply-threshold", "20", "--enable-debug-command", "yes"]);
    let (mut runner, mut client) = (Client::connect(&server), Client::connect(&server));
    for (extended, name, field) in [("yes", "Redis", "redis_mode:"), ("no", "Valkey", "server_mode:")] {
        assert_eq!(
            client.call(&["CONFIG", "SET", "extended-redis-compatibility", extended]),
            "+OK"
        );
        let info = client.call(&["INFO", "server"]);
        assert!(info.contains(field), "{info}");
        assert!(client.call(&["LOLWUT"]).contains(&format!("{name} ver. ")));
        runner.send(&["EVAL", "while true do end", "0"]);
        let busy = format!("-BUSY {name} is busy running a script. You can only call SCRIPT KILL");
        client.call_until(&["PING"], &busy);
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "+OK");
        assert!(runner.answer().starts_with("-ERR Script killed by user"));
        client.call_until(&["PING"], "+PONG");
    }
}

/// A script on a script thread queries the workers about their clients and waits for the replies.
#[test]
fn a_long_script_sees_clients() {
    for threads in ["2", "4", "8"] {
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--busy-reply-threshold",
            "20",
            "--enable-debug-command",
            "yes",
        ]);
        let mut runner = Client::connect(&server);
        // At least one client of each worker.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(&server)).collect();
        clients[0].call(&["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "1"]);
        runner.send(&[
            "EVAL",
            "redis.call('lpush', KEYS[1], 'a') while true do local clients = redis.call('client', 'list') \
             local _, named = string.gsub(clients, 'name=please%-end', '') \
             if named == tonumber(ARGV[1]) then return clients end end",
            "1",
            "list",
            "16",
        ]);
        clients[0].call_until(&["PING"], "-BUSY");
        for client in &mut clients {
            client.call(&["HELLO", "2", "SETNAME", "please-end"]);
        }
        assert_eq!(runner.answer().matches("name=please-end").count(), clients.len());
        clients[0].call_until(&["PING"], "+PONG");
    }
}

#[test]
fn a_script_that_has_written_is_not_killed() {
    // The script is never reported as busy, so other clients are served meanwhile.
    let server = Server::start(&["--busy-reply-threshold", "600000"]);
    let (mut runner, mut client) = (client::Client::connect(server.port), Client::connect(&server));
    // On a busy machine the script may end before a client tries to kill it. Then a longer one follows.
    let is_refused = [1, 4, 16, 40].into_iter().any(|seconds| {
        let script = format!(
            "redis.call('set', KEYS[1], 'x') local s = os.clock() while os.clock() - s < {seconds} do end return 1"
        );
        server.run_script(&mut runner, &["EVAL", &script, "1", "k"]);
        let answer = client.call(&["SCRIPT", "KILL"]);
        assert_eq!(client.call(&["PING"]), "+PONG");
        assert_eq!(runner.answer(), "1");
        assert_eq!(client.call(&["GET", "k"]), "x");
        answer.starts_with("-UNKILLABLE")
    });
    assert!(is_refused, "SCRIPT KILL says that no script is running");
}

#[test]
fn an_endless_script_that_has_written_ends_with_the_server() {
    let server = Server::start(&["--busy-reply-threshold", "20"]);
    let (mut runner, mut client) = (Client::connect(&server), Client::connect(&server));
    runner.send(&["EVAL", "redis.call('set', KEYS[1], 'x') while true do end", "1", "k"]);
    client.call_until(&["PING"], "-BUSY");
    assert!(client.call(&["SCRIPT", "KILL"]).starts_with("-UNKILLABLE"));
    client.send(&["SHUTDOWN", "NOSAVE"]);
    let ended = client.0.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
}

#[test]
fn a_script_is_killed_while_native_code_visits_its_values() {
    let server = Server::start(&["--busy-reply-threshold", "20"]);
    let mut client = Client::connect(&server);
    // Some tables that have 4^12 elements if each occurrence counts.
    let shared = "local t = {0, 0, 0, 0} for _ = 1, 11 do t = {t, t, t, t} end ";
    for walk in [
        "return t",
        "pcall(cjson.encode, t) return 1",
        "pcall(cmsgpack.pack, t) return 1",
    ] {
        let mut runner = Client::connect(&server);
        runner.send(&["EVAL", &format!("{shared}{walk}"), "0"]);
        client.call_until(&["PING"], "-BUSY");
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "+OK", "{walk}");
        let answer = runner.answer();
        let killed = "-ERR Script killed by user with SCRIPT KILL.";
        assert!(answer.starts_with(killed), "{walk}: {} bytes", answer.len());
    }
    let mut runner = Client::connect(&server);
    let written = format!("redis.call('set', KEYS[1], 'x') {shared}return t");
    runner.send(&["EVAL", &written, "1", "k"]);
    client.call_until(&["PING"], "-BUSY");
    assert!(client.call(&["SCRIPT", "KILL"]).starts_with("-UNKILLABLE"));
    client.send(&["SHUTDOWN", "NOSAVE"]);
    let ended = client.0.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    let ended = runner.0.read(&mut [0]).map_err(|error| error.kind());
    assert!(
        matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)),
        "no reply is sent: {ended:?}"
    );
}

#[test]
fn eval_scripts_are_evicted_and_loaded_scripts_stay() {
    let server = Server::start(&[]);
    let mut client = Client::connect(&server);
    let kept = client.call(&["SCRIPT", "LOAD", "return 'kept'"]);
    for number in 0..520 {
        client.call(&["EVAL", &format!("return {number}"), "0"]);
    }
    assert_eq!(client.call(&["EVALSHA", &kept, "0"]), "kept");
    let statistics = client.call(&["INFO"]);
    assert!(statistics.contains("evicted_scripts:20\r\n"));
    assert!(statistics.contains("number_of_cached_scripts:501\r\n"));
}

#[test]
fn libraries_are_in_dumps() {
    let server = Server::start(&["--enable-debug-command", "yes"]);
    let mut client = Client::connect(&server);
    let code = "#!lua name=lib\nredis.register_function('f', function() return 'there' end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", code]), "lib");
    assert_eq!(client.call(&["DEBUG", "RELOAD"]), "+OK");
    assert_eq!(client.call(&["FCALL", "f", "0"]), "there");
    assert!(
        client.call(&["DEBUG", "RELOAD", "NOFLUSH"]).starts_with("-ERR"),
        "the name is taken"
    );
    assert_eq!(client.call(&["DEBUG", "RELOAD", "NOFLUSH", "MERGE"]), "+OK");
    assert_eq!(client.call(&["FUNCTION", "DELETE", "lib"]), "+OK");
    assert_eq!(client.call(&["FCALL", "f", "0"]), "-ERR Function not found");
}

/// Starts a server with a library whose code runs for long. It is in a dump file, because FUNCTION LOAD has a limit.
fn start_with_long_library(arguments: &[&str]) -> Server {
    let code = b"#!lua name=lib\nfor i = 1, 1e8 do end\nredis.register_function('f', function() return 1 end)";
    let length = (code.len() as u32).to_be_bytes();
    // Opcode 245 and a length of 32 bits; the file has no checksum.
    let dump = [&b"REDIS0011\xf5\x80"[..], &length, &code[..], b"\xff\0\0\0\0\0\0\0\0"].concat();
    let mut server = Server::start(arguments);
    server.kill();
    std::fs::write(server.directory.join("dump.rdb"), dump).expect("writes");
    server.start_again();
    Client::connect(&server).call_until(&["PING"], "+PONG");
    server
}

#[test]
fn loading_a_library_for_a_call_stops_no_worker_and_can_be_killed() {
    for threads in ["1", "8"] {
        let server = start_with_long_library(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--busy-reply-threshold",
            "20",
            "--busy-reply-scope",
            "affected",
        ]);
        let mut caller = client::Client::connect(server.port);
        // At least one client of each worker.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(&server)).collect();
        // On a busy machine a script thread may have loaded the library before a client can kill it. Then another one
        // of the 8 is likely to run the next call.
        let is_killed = (0..8).any(|_| {
            caller.send(&["FCALL", "f", "0"]);
            wait_until("the function runs", || {
                let stats = clients[0].call(&["FUNCTION", "STATS"]);
                stats.starts_with("running_script name f command FCALL f 0 ") || !caller.is_waiting()
            });
            for client in &mut clients {
                assert_eq!(client.call(&["SET", "k", "v"]), "+OK");
            }
            clients[0].call(&["FUNCTION", "KILL"]);
            let answer = caller.answer();
            let killed = "ERR Script killed by user with FUNCTION KILL. script: on @user_function:";
            assert!(answer == "1" || answer.starts_with(killed), "{answer}");
            answer != "1"
        });
        assert!(is_killed, "FUNCTION KILL does not end the load");
        assert!(clients[0].call(&["FUNCTION", "KILL"]).starts_with("-NOTBUSY"));
        // This transaction stays on its worker, where no other thread can load the library for it.
        let changing = [&["CLIENT", "SETNAME", "caller"][..], &["FCALL", "f", "0"]];
        let answer = caller.transact(&changing);
        assert!(answer.contains("ERR Script killed by the server"), "{answer}");
    }
}

/// In a transaction the thread has the slots of all commands when it loads the library of a function.
#[test]
fn a_library_that_is_loaded_in_a_transaction_holds_the_slots_of_the_transaction() {
    let server = start_with_long_library(&["--busy-reply-threshold", "20", "--busy-reply-scope", "affected"]);
    let mut caller = client::Client::connect(server.port);
    let mut other = Client::connect(&server);
    // After one call, the thread that has served it has the library. Then another one of the 8 is likely to run the
    // next.
    let is_refused = (0..8).any(|_| {
        for words in [&["MULTI"][..], &["SET", "mine", "1"], &["FCALL", "f", "0"], &["EXEC"]] {
            caller.send(words);
        }
        for reply in ["OK", "QUEUED", "QUEUED"] {
            assert_eq!(caller.answer(), reply);
        }
        let mut is_refused = false;
        while !is_refused && caller.is_waiting() {
            is_refused = other.call(&["GET", "mine"]).starts_with("-BUSY");
        }
        assert_eq!(caller.answer(), "(OK 1)");
        is_refused
    });
    assert!(is_refused, "the client waits for the end of the load");
}

#[test]
fn a_function_of_a_library_that_loads_slowly_is_called_from_all_workers() {
    let library = "#!lua name=lib\nfor i = 1, 1e6 do end\nredis.register_function('f', function() return 1 end)";
    for threads in ["2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(&server)).collect();
        assert_eq!(clients[0].call(&["FUNCTION", "LOAD", library]), "lib");
        for _ in 0..2 {
            for client in &mut clients {
                client.send(&["FCALL", "f", "0"]);
            }
            for client in &mut clients {
                assert_eq!(client.answer(), ":1");
            }
        }
    }
}

/// The declared flags of a queued script count when EXEC runs, not only when the script is queued.
#[test]
fn a_transaction_is_refused_for_a_script_that_may_write() {
    let server = Server::start(&[]);
    let (mut client, mut other) = (Client::connect(&server), Client::connect(&server));
    for (script, wanted) in [
        (
            "#!lua\nreturn 1",
            "-EXECABORT Transaction discarded because of: NOREPLICAS",
        ),
        ("#!lua flags=no-writes\nreturn 1", ":1"),
        ("return 1", ":1"),
    ] {
        assert_eq!(client.call(&["MULTI"]), "+OK");
        assert_eq!(client.call(&["EVAL", script, "0"]), "+QUEUED");
        assert_eq!(other.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "+OK");
        let answer = client.call(&["EXEC"]);
        assert!(answer.starts_with(wanted), "{script}: {answer}");
        assert_eq!(other.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]), "+OK");
    }
}

/// Earlier, an interpreter had no room for more than about 8000 compiled scripts and refused the next one.
#[test]
fn any_number_of_scripts_can_be_loaded() {
    let server = Server::start(&[]);
    let mut client = Client::connect(&server);
    let mut first = String::new();
    for number in 0..9000 {
        let digest = client.call(&["SCRIPT", "LOAD", &format!("return {number}")]);
        assert_eq!(digest.len(), 40, "script {number}: {digest}");
        if number == 0 {
            first = digest;
        }
    }
    assert_eq!(client.call(&["EVALSHA", &first, "0"]), ":0");
    assert_eq!(client.call(&["EVAL", "return 8999", "0"]), ":8999");
}

#[test]
fn a_function_can_call_with_as_many_arguments_as_a_script() {
    let server = Server::start(&[]);
    let mut client = Client::connect(&server);
    let body = "local a = {} for i = 1, 7970 do a[i] = i end return redis.call('RPUSH', KEY, unpack(a))";
    let script = body.replace("KEY", "KEYS[1]");
    let library = format!(
        "#!lua name=many\nredis.register_function('many', function(keys) {} end)",
        body.replace("KEY", "keys[1]")
    );
    assert_eq!(client.call(&["FUNCTION", "LOAD", &library]), "many");
    assert_eq!(client.call(&["EVAL", &script, "1", "list"]), ":7970");
    assert_eq!(client.call(&["FCALL", "many", "1", "list"]), ":15940");
    assert_eq!(client.call(&["LINDEX", "list", "-1"]), "7970");
}

/// The reply to a last call may be written as it is. The value that a script returns otherwise has the same reply.
#[test]
fn a_script_has_the_same_reply_however_it_returns_the_reply_to_a_command() {
    let server = Server::start(&[]);
    let mut client = Client::connect(&server);
    client.call(&["SET", "text", "a b"]);
    client.call(&["SET", "large", "9007199254740993"]);
    client.call(&["SET", "small", "-12"]);
    client.call(&["RPUSH", "list", "x", "y"]);
    let calls = [
        ("'get', 'text'", "a b"),
        ("'incrby', 'small', '0'", ":-12"),
        ("'incrby', 'large', '0'", ":9007199254740992"),
        ("'set', 'other', ''", "+OK"),
        ("'get', 'other'", ""),
        ("'type', 'list'", "+list"),
        ("'lrange', 'list', 0, -1", "x y"),
        ("'exists', 'none'", ":0"),
    ];
    for protocol in ["2", "3"] {
        client.call(&["HELLO", protocol]);
        let mut answer = client.call(&["ECHO", "end of the properties"]);
        while answer != "end of the properties" {
            answer = client.answer();
        }
        for (call, expected) in calls {
            for form in [
                "return redis.call(CALL)",
                "return redis.pcall(CALL)",
                "local reply = redis.call(CALL) return reply",
                "redis.call(CALL) return redis.call(CALL)",
                "redis.setresp(3) return redis.call(CALL)",
                "local function last() return redis.call(CALL) end return last()",
            ] {
                let script = form.replace("CALL", call);
                assert_eq!(client.call(&["EVAL", &script, "0"]), expected, "{script}");
            }
        }
        let missing = [
            "return redis.call('get', 'none')",
            "local value = redis.call('get', 'none') return value",
        ];
        let replies = missing.map(|script| client.call(&["EVAL", script, "0"]));
        assert_eq!(replies[0], replies[1]);
        let refused = client.call(&["EVAL", "return redis.call('get', 'list')", "0"]);
        assert!(refused.starts_with("-WRONGTYPE"), "{refused}");
    }
    let statistics = Client::connect(&server).call(&["INFO", "commandstats"]);
    assert!(statistics.contains("cmdstat_exists:calls=14,"), "{statistics}");
}

/// The values that a script can reach in an interpreter, which it shares with the scripts of all other users.
const LIBRARIES: &str = "{redis=redis, server=server, string=string, table=table, math=math, os=os, bit=bit, struct=struct, \
                         cjson=cjson, cmsgpack=cmsgpack, coroutine=coroutine, G=_G, meta=getmetatable(''), \
                         methods=getmetatable('').__index, around=getmetatable(_G)}";

/// Searches for the table behind each read-only proxy with every function that takes a table, and tries to change what
/// it finds. The scripts of other users must not see a change: replacing `redis.call` would give the attacker the
/// permissions of the next caller.
#[test]
fn no_script_changes_what_scripts_of_other_users_see() {
    let attack = format!(
        "local function candidates(t)
           local all = {{t}}
           local function add(...) for i = 1, select('#', ...) do
             local x = select(i, ...) if type(x) == 'table' then all[#all + 1] = x end
           end end
           for _, walk in ipairs({{pairs, ipairs, next, getmetatable, rawget, table.foreach, table.foreachi, unpack}}) do
             add(select(2, pcall(walk, t)))
             add(select(2, pcall(walk, t, function(...) add(...) end)))
             add(select(2, coroutine.resume(coroutine.create(function() return walk(t) end))))
           end
           pcall(function() add(pcall(error, t)) end)
           pcall(function() add(xpcall(function() error(t) end, function(e) add(e) return e end)) end)
           pcall(function() add(xpcall(function() error(t) end, redis.pcall)) end)
           pcall(function() add(coroutine.resume(coroutine.create(function() error(t) end))) end)
           pcall(function() add(pcall(coroutine.wrap(function() error(t, 0) end))) end)
           pcall(function() add(pcall(setmetatable, t, {{}})) end)
           return all
         end
         for _, library in next, {LIBRARIES} do
           for _, t in next, candidates(library) do
             pcall(function() t.stolen = 1 end)
             pcall(function() t.call = function() return 'stolen' end end)
             pcall(rawset, t, 'stolen', 1)
             pcall(rawset, t, '__index', function() return 'stolen' end)
             pcall(table.insert, t, 'stolen')
             pcall(table.insert, t, 1, 'stolen')
             pcall(table.remove, t)
             pcall(table.sort, t, function() return true end)
             pcall(setmetatable, t, {{__index = function() return 'stolen' end}})
           end
         end
         return 'done'"
    );
    let check = format!(
        "local found = {{}}
         for name, t in next, {LIBRARIES} do
           if rawget(t, 'stolen') or rawget(t, 1) then found[#found + 1] = name end
           local ok, value = pcall(function() return t.stolen end)
           if ok and value then found[#found + 1] = name end
         end
         found[#found + 1] = redis.call('PING').ok
         found[#found + 1] = ('x'):rep(2)
         return found"
    );
    let server = Server::start(&[]);
    let (mut admin, mut user) = (Client::connect(&server), Client::connect(&server));
    admin.call(&["ACL", "SETUSER", "user", "on", "nopass", "+eval"]);
    admin.call(&[
        "FUNCTION",
        "LOAD",
        &format!("#!lua name=checks\nredis.register_function('check', function() {check} end)"),
    ]);
    assert_eq!(user.call(&["AUTH", "user", "x"]), "+OK");
    // Every script thread has its own interpreter. With this many attempts, attack and check use the same one.
    for _ in 0..40 {
        assert_eq!(user.call(&["EVAL", &attack, "0"]), "done");
    }
    for _ in 0..40 {
        assert_eq!(admin.call(&["EVAL", &check, "0"]), "PONG xx");
    }
    // Functions have their own interpreter, and their environment differs while their library is loaded.
    let of_function = format!("#!lua name=a\nredis.register_function('attack', function() {attack} end)");
    admin.call(&["FUNCTION", "LOAD", &of_function]);
    for _ in 0..40 {
        assert_eq!(admin.call(&["FCALL", "attack", "0"]), "done");
    }
    let while_loaded = "#!lua name=b\n\
        for _, t in next, {redis, server, select(2, pairs(redis)), select(2, pairs(_G)), getmetatable(_G)} do \
        pcall(function() t.stolen = 1 end) pcall(rawset, t, 'stolen', 1) end \
        redis.register_function('b', function() return 1 end)";
    admin.call(&["FUNCTION", "LOAD", while_loaded]);
    for _ in 0..40 {
        assert_eq!(admin.call(&["FCALL", "check", "0"]), "PONG xx");
    }
}

/// Each of these has crashed a process that runs Lua 5.1: by a range whose size overflows, by recursion on a small
/// stack, by compiled code, or by values that the parser does not keep alive.
#[test]
fn no_script_crashes_the_process() {
    let nested = |body: &str| {
        format!(
            "local function f(n) if n == 0 then {body} end \
             return (string.gsub('a', 'a', function() return f(n - 1) end)) end return f(150)"
        )
    };
    let deep_json = nested("return #cjson.decode(string.rep('[', 999) .. string.rep(']', 999)) .. ''");
    let deep_pattern = nested("return tostring(pcall(string.find, string.rep('a', 1e5), string.rep('a?', 1e5)))");
    let deepest = nested(
        "return tostring(string.find(string.rep('a', 190), string.rep('a?', 190))) .. \
         tostring(#cmsgpack.pack(cjson.decode(string.rep('[', 999) .. string.rep(']', 999))))",
    );
    let scripts: [(&str, &str); 16] = [
        ("return {unpack({}, -2, 2147483647)}", "too many results to unpack"),
        (
            "return {unpack({}, -2147483648, 2147483647)}",
            "too many results to unpack",
        ),
        ("return {unpack({}, 0, 2147483647)}", "too many results to unpack"),
        ("return {unpack({}, 1, 8001)}", "too many results to unpack"),
        ("return select('#', unpack({}, 2147483647, 2147483647))", ":1"),
        ("return select('#', unpack({}, 1, 7000))", ":7000"),
        (
            "return string.find(string.rep('a', 1e5), string.rep('a?', 1e5))",
            "pattern too complex",
        ),
        (
            "return string.find(string.rep('a', 1e5), string.rep('a-', 1e5) .. 'b')",
            "pattern too complex",
        ),
        (
            "return string.gsub(string.rep('a', 1e5), string.rep('a*', 1e5), '')",
            "pattern too complex",
        ),
        (
            "for x in string.gmatch('aaa', string.rep('a+', 1e5)) do end return 'fine'",
            "fine",
        ),
        (&deep_json, "1"),
        (&deep_pattern, "false"),
        (&deepest, "1"),
        (
            "return select(2, loadstring(string.dump(function() return 1 end)))",
            "unexpected symbol near 'char(27)'",
        ),
        ("\x1bLua", "unexpected symbol near 'char(27)'"),
        (
            "for i = 1, 50 do loadstring(string.rep('local a = {} ', 100), 'chunk' .. i) collectgarbage('step', 100) end \
             local n = 0 local ok, e = loadstring('return \"' .. string.rep('x', 1e5) .. '\" +', string.rep('n', 1e5)) return e and 'fine'",
            "fine",
        ),
    ];
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        for (script, wanted) in &scripts {
            for _ in 0..2 {
                let answer = Client::connect(&server).call(&["EVAL", script, "0"]);
                assert!(answer.contains(wanted), "{script}: {answer}");
            }
        }
        assert_eq!(Client::connect(&server).call(&["PING"]), "+PONG");
    }
}

/// The clock of expiry times and that of TIME are the same for a script: both stand still from its start.
#[test]
fn a_script_sees_the_time_of_its_start_however_late_it_asks() {
    // On a busy machine the second of processor time takes longer, and TIME advances for busy scripts.
    let server = Server::start(&["--busy-reply-threshold", "600000"]);
    let mut client = Client::connect(&server);
    let source = "redis.call('set', KEYS[1], 'v', 'px', 100000)
        local start = redis.call('pexpiretime', KEYS[1]) - 100000
        local clock = os.clock()
        while os.clock() - clock < 1 do end
        local time = redis.call('time')
        return time[1] * 1000 + math.floor(time[2] / 1000) - start";
    // The process may be stopped for a while before the script starts, but not each time.
    let is_start = (0..5).any(|_| {
        let answer = client.call(&["EVAL", source, "1", "k"]);
        let late_ms: i64 = answer.trim_start_matches(':').parse().expect("a number");
        late_ms < 1000
    });
    assert!(is_start, "TIME is at least a second after the start of the script");
}

/// From `busy-reply-threshold` on TIME advances, so that a script which waits for a time ends. The clock of expiry
/// times stands still, so that a key expires at one point of the script at most.
#[test]
fn a_busy_script_sees_time_advance() {
    let wait = "local function now_us()
            local time = redis.call('time')
            return time[1] * 1000000 + time[2]
        end
        redis.call('set', KEYS[1], 'v', 'px', 10)
        local start_us = now_us()
        repeat until now_us() - start_us > 200000
        return redis.call('exists', KEYS[1])";
    let function = format!("#!lua name=waits\nredis.register_function('wait', function(KEYS) {wait} end)")
        .replace("KEYS[1]", "'k'");
    for workers in ["2", "8"] {
        let server = Server::start(&["--io-threads", workers, "--busy-reply-threshold", "100"]);
        let mut client = Client::connect(&server);
        assert_eq!(client.call(&["FUNCTION", "LOAD", &function]), "waits");
        let calls: [&[&str]; 2] = [&["EVAL", wait, "1", "k"], &["FCALL", "wait", "0"]];
        for call in calls {
            assert_eq!(client.call(call), ":1");
            assert_eq!(client.call(&["MULTI"]), "+OK");
            assert_eq!(client.call(call), "+QUEUED");
            assert_eq!(client.call(&["EXEC"]), ":1");
        }
    }
}

#[test]
fn a_script_that_is_never_busy_sees_the_time_of_its_start() {
    let server = Server::start(&["--busy-reply-threshold", "0"]);
    let source = "local start, clock = redis.call('time'), os.clock()
        while os.clock() - clock < 0.3 do end
        local time = redis.call('time')
        return start[1] == time[1] and start[2] == time[2]";
    assert_eq!(Client::connect(&server).call(&["EVAL", source, "0"]), ":1");
}

#[test]
fn a_script_frees_the_large_values_that_it_replaces_and_deletes() {
    let server = Server::start(&[]);
    let source = "local values = {}
        for i = 1, 1000 do values[i] = string.rep('x', 1000) end
        for i = 1, 100 do
            redis.call('set', 'k', string.rep('x', 1000000))
            redis.call('rpush', 'l', unpack(values))
            redis.call('del', 'l')
        end
        return tonumber(string.match(redis.call('info', 'memory'), 'used_memory:(%d+)'))";
    let reply = Client::connect(&server).call(&["EVAL", source, "0"]);
    let used: usize = reply[1..].parse().expect("a number");
    assert!(used < 64 << 20, "{used} bytes");
}
