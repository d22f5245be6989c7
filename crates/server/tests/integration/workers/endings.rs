//! Tests connections that end: half-closed ones, clients that disconnect while they wait, and reused tokens.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server, lengthen_until};
use crate::harness::wait_until;

/// Encodes a request.
fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// Sends `bytes`, closes this side of the connection, and returns all bytes that the server still sends.
fn exchange(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("sets the timeout");
    let mut sender = stream.try_clone().expect("clones");
    let bytes = bytes.to_vec();
    let sending = thread::spawn(move || {
        sender.write_all(&bytes).expect("sends");
        sender.shutdown(Shutdown::Write).expect("ends its side");
    });
    let mut replies = String::new();
    stream.read_to_string(&mut replies).expect("reads to the end");
    sending.join().expect("has sent");
    replies
}

/// Runs `story` with one, two and eight active workers. Unless the arguments say otherwise, no script counts as busy,
/// however long it takes.
fn with_workers(arguments: &[&str], story: impl Fn(&Server)) {
    for threads in ["1", "2", "8"] {
        let own = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let never_busy = ["--busy-reply-threshold", "0"];
        story(&Server::start(&[&own, &never_busy[..], arguments].concat()));
    }
}

/// Waits until INFO contains this line.
fn await_info(client: &mut Client, line: &str) {
    let start = Instant::now();
    while !client.call(&["INFO", "everything"]).lines().any(|other| other == line) {
        assert!(start.elapsed() < PATIENCE, "never {line}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn requests_sent_before_a_half_close_are_executed_and_answered() {
    with_workers(&[], |server| {
        let mut admin = Client::connect(server.port);
        for round in 0..10 {
            let pipeline: Vec<u8> = (0..1000)
                .flat_map(|key| request(&["SET", &format!("key:{round}:{key}"), "value"]))
                .collect();
            assert_eq!(exchange(server.port, &pipeline).matches("+OK\r\n").count(), 1000);
        }
        assert_eq!(admin.call(&["DBSIZE"]), "10000");
        // More than the socket buffers hold, in both directions.
        let echoes: Vec<u8> = (0..400).flat_map(|_| request(&["ECHO", &"x".repeat(50_000)])).collect();
        assert_eq!(
            exchange(server.port, &echoes).len(),
            400 * (50_000 + "$50000\r\n\r\n".len())
        );
        // The last request is incomplete and gets no reply.
        let cut = [request(&["PING"]), b"*2\r\n$4\r\nECHO\r\n$5\r\nhe".to_vec()].concat();
        assert_eq!(exchange(server.port, &cut), "+PONG\r\n");
        await_info(&mut admin, "connected_clients:1");
    });
}

#[test]
fn commands_that_are_answered_later_are_answered_after_a_half_close() {
    let directory = std::env::temp_dir().join(format!("weft-half-closed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    with_workers(&["--dir", directory.to_str().expect("text")], |server| {
        let mut admin = Client::connect(server.port);
        // The previous server saved its data in this directory.
        assert_eq!(admin.call(&["FLUSHALL"]), "OK");
        for set in ["a", "b"] {
            let members: Vec<String> = (0..100_000).map(|member: u32| format!("m{member}")).collect();
            let words: Vec<&str> = ["SADD", set]
                .into_iter()
                .chain(members.iter().map(String::as_str))
                .collect();
            assert_eq!(admin.call(&words), "100000");
        }
        let commands: [(&[&str], &str); 8] = [
            (
                &[
                    "EVAL",
                    "for i = 1, 3000000 do end return redis.call('SET', 'x', 'y')",
                    "1",
                    "x",
                ],
                "+OK\r\n",
            ),
            (
                &["EVAL", "return redis.call('INFO') and redis.call('DBSIZE') >= 2", "0"],
                ":1\r\n",
            ),
            (&["SUNIONSTORE", "c", "a", "b"], ":100000\r\n"),
            (&["SINTERCARD", "2", "a", "b"], ":100000\r\n"),
            (&["CONFIG", "SET", "maxmemory", "0"], "+OK\r\n"),
            (&["SAVE"], "+OK\r\n"),
            (&["BGSAVE"], "+Background saving started\r\n"),
            (&["CLIENT", "NO-EVICT", "on"], "+OK\r\n"),
        ];
        for (words, reply) in commands {
            await_info(&mut admin, "rdb_bgsave_in_progress:0");
            let bytes = [request(words), request(&["PING"])].concat();
            assert_eq!(exchange(server.port, &bytes), format!("{reply}+PONG\r\n"), "{words:?}");
        }
        // Writes that CLIENT PAUSE delays.
        assert_eq!(admin.call(&["CLIENT", "PAUSE", "400", "WRITE"]), "OK");
        let bytes = [
            request(&["GET", "missing"]),
            request(&["SET", "held", "1"]),
            request(&["PING"]),
        ]
        .concat();
        assert_eq!(exchange(server.port, &bytes), "$-1\r\n+OK\r\n+PONG\r\n");
    });
    let _ = std::fs::remove_dir_all(directory);
}

/// The first request waits for the slot of a script, the second one parks, and the half-close is seen before either
/// runs.
#[test]
fn requests_after_a_deferred_one_are_executed_after_a_half_close() {
    with_workers(&[], |server| {
        for round in 0..3 {
            let mut runner = Client::connect(server.port);
            let script = format!("redis.call('SET', KEYS[1], '1') for i = 1, 2e7 do end return {round}");
            server.run_script(&mut runner, &["EVAL", &script, "1", "key"]);
            let bytes = [
                request(&["SET", "key", "2"]),
                request(&[
                    "EVAL",
                    "for i = 1, 1000000 do end return redis.call('GET', KEYS[1])",
                    "1",
                    "key",
                ]),
                request(&["ECHO", "end"]),
            ];
            assert_eq!(
                exchange(server.port, &bytes.concat()),
                "+OK\r\n$1\r\n2\r\n$3\r\nend\r\n"
            );
            assert_eq!(runner.answer(), round.to_string());
        }
    });
}

#[test]
fn a_blocked_client_that_half_closes_is_disconnected() {
    with_workers(&[], |server| {
        let mut admin = Client::connect(server.port);
        let bytes = [request(&["PING"]), request(&["BLPOP", "list", "0"]), request(&["PING"])].concat();
        assert_eq!(exchange(server.port, &bytes), "+PONG\r\n");
        // The same if the client blocks before it closes its side, and behind a command whose reply comes later.
        let behind = [
            request(&["EVAL", "for i = 1, 1000000 do end return 1", "0"]),
            request(&["BLPOP", "list", "0"]),
        ];
        assert_eq!(exchange(server.port, &behind.concat()), ":1\r\n");
        await_info(&mut admin, "blocked_clients:0");
        assert_eq!(admin.call(&["RPUSH", "list", "element"]), "1");
        assert_eq!(admin.call(&["LLEN", "list"]), "1", "nobody took it");
    });
}

/// The reply to a write waits for the disk while the client is blocked already.
#[test]
fn a_blocked_client_that_half_closes_gets_its_earlier_replies() {
    let directory = std::env::temp_dir().join(format!("weft-blocked-half-close-{}", std::process::id()));
    for threads in ["1", "2", "8"] {
        std::fs::create_dir_all(&directory).expect("makes the directory");
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--dir",
            directory.to_str().expect("a path of ASCII"),
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]);
        let mut admin = Client::connect(server.port);
        for _ in 0..50 {
            let bytes = [
                request(&["SET", "key", "value"]),
                request(&["BLPOP", "list", "0"]),
                request(&["PING"]),
            ];
            assert_eq!(exchange(server.port, &bytes.concat()), "+OK\r\n");
        }
        await_info(&mut admin, "blocked_clients:0");
        await_info(&mut admin, "connected_clients:1");
        drop(server);
        std::fs::remove_dir_all(&directory).expect("removes the directory");
    }
}

/// In one turn a busy worker finds the end of a client whose input is paused, the request to close that client, and a
/// new connection. The new connection must not be taken for the old one.
#[test]
fn a_new_client_is_not_closed_for_the_end_of_another() {
    for threads in ["1", "2", "4", "8"] {
        connect_beside_ending_clients(&Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
        ]));
    }
}

fn connect_beside_ending_clients(server: &Server) {
    let mut busy: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
    let mut killers: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
    assert_eq!(busy[0].call(&["SETRANGE", "large", "2000000", "x"]), "2000001");
    for round in 0..60 {
        let mut victims: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        let mut kill = vec!["CLIENT".to_owned(), "KILL".to_owned(), "ID".to_owned()];
        kill.extend(victims.iter_mut().map(|victim| victim.call(&["CLIENT", "ID"])));
        for victim in &mut victims {
            victim.send(&["BLPOP", "none", "0"]);
            victim.send(&["PING"]);
        }
        // One worker is busy; another one gets CLIENT KILL.
        let worked = &mut busy[round % 4];
        for _ in 0..40 {
            worked.send(&["BITCOUNT", "large"]);
        }
        for victim in victims {
            victim.0.get_ref().shutdown(Shutdown::Both).expect("ends");
        }
        for killer in &mut killers {
            killer.send(&kill);
        }
        let mut newcomers: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        for _ in 0..40 {
            worked.answer();
        }
        for killer in &mut killers {
            killer.answer();
        }
        for newcomer in &mut newcomers {
            newcomer.send(&["PING"]);
            let mut reply = [0; 7];
            let read = newcomer.0.read_exact(&mut reply);
            assert!(read.is_ok(), "round {round}: a new client was closed");
        }
    }
}

/// The commands of killed clients wait on other threads for a key that a script holds.
#[test]
fn a_command_that_waits_on_another_thread_does_not_run_once_its_client_is_killed() {
    let members: Vec<String> = (0..20_000).map(|member| member.to_string()).collect();
    for threads in ["1", "2", "8"] {
        let own = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let server = Server::start(&[&own[..], &["--busy-reply-threshold", "0"]].concat());
        let mut admin = Client::connect(server.port);
        for key in ["s", "t"] {
            let words: Vec<&str> = ["SADD", key]
                .into_iter()
                .chain(members.iter().map(String::as_str))
                .collect();
            assert_eq!(admin.call(&words), "20000");
        }
        let looped = "for i = 1, 1 do redis.call('SET', KEYS[1], 'late') end";
        let commands: [&[&[&str]]; 3] = [
            &[&["EVAL", looped, "1", "k"]],
            &[&["SUNIONSTORE", "k", "s", "t"]],
            &[&["MULTI"], &["EVAL", looped, "1", "k"], &["EXEC"]],
        ];
        lengthen_until("the script has always ended before CLIENT KILL", |rounds| {
            let mut holder = Client::connect(server.port);
            let body = format!("redis.call('SET', KEYS[1], 'held') for i = 1, 4 * {rounds} do end return 1");
            server.run_script(&mut holder, &["EVAL", &body, "1", "k"]);
            let mut clients: Vec<Client> = commands.iter().map(|_| Client::connect(server.port)).collect();
            for (client, commands) in clients.iter_mut().zip(commands) {
                commands.iter().for_each(|command| client.send(command));
            }
            thread::sleep(Duration::from_millis(50));
            admin.wait_for_info("connected_clients", "5");
            assert_eq!(admin.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]), "4");
            admin.wait_for_info("connected_clients", "1");
            // The script of the first client was running: it still ends.
            let first = admin.call(&["GET", "k"]);
            thread::sleep(Duration::from_millis(100));
            let second = admin.call(&["GET", "k"]);
            // A script that ended before CLIENT KILL has sent its reply, and the other commands ran.
            let mut reply = Vec::new();
            let _ = holder.0.read_to_end(&mut reply);
            if reply.is_empty() {
                assert_eq!([first, second], ["held", "held"], "{threads} workers");
            }
            reply.is_empty()
        });
    }
}

/// What follows the reply to CLIENT KILL may rely on the end of the killed client's script, whatever keys it names.
#[test]
fn client_kill_stops_a_script_or_waits_for_its_end() {
    for threads in ["2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        lengthen_until("the script has always ended before CLIENT KILL", |rounds| {
            let kill = |admin: &mut Client, script: &str| {
                admin.call(&["DEL", "key", "late"]);
                let mut victim = Client::connect(server.port);
                let id = victim.call(&["CLIENT", "ID"]);
                server.run_script(&mut victim, &["EVAL", script, "0"]);
                assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
                let late = admin.call(&["GET", "late"]);
                let mut reply = Vec::new();
                let _ = victim.0.read_to_end(&mut reply);
                reply.is_empty().then_some(late)
            };
            // It has written, and so it goes on.
            let lasting = format!(
                "redis.call('SET', 'key', '1') for i = 1, {rounds} do end return redis.call('SET', 'late', '1')"
            );
            let Some(late) = kill(&mut admin, &lasting) else {
                return false;
            };
            assert_eq!(late, "1", "{threads} workers");
            let harmless = format!("for i = 1, {rounds} do end return redis.call('SET', 'late', '1')");
            let Some(late) = kill(&mut admin, &harmless) else {
                return false;
            };
            assert_eq!(late, "-", "{threads} workers");
            // A script that begins later and takes as long has ended.
            let other = format!("for i = 1, 2 * {rounds} do end return redis.call('GET', 'late')");
            assert_eq!(admin.call(&["EVAL", &other, "0"]), "-", "{threads} workers");
            true
        });
    }
}

/// An element that is pushed after the reply to CLIENT KILL is not given to a killed client.
#[test]
fn a_killed_client_gets_no_element_that_is_pushed_later() {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut admin = Client::connect(server.port);
        // The connection that checked that the server listens is closed.
        admin.wait_for_info("connected_clients", "1");
        for round in 0..200 {
            let mut victims: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
            for victim in &mut victims {
                victim.send(&["BLPOP", "list", "0"]);
            }
            admin.wait_for_info("blocked_clients", "8");
            admin.send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            assert_eq!(admin.answer(), "8");
            assert_eq!(admin.call(&["RPUSH", "list", "x"]), "1");
            assert_eq!(admin.call(&["LPOP", "list"]), "x", "round {round}, {threads} workers");
        }
    }
}

/// The ways in which a client ends a connection without reading its replies.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// It closes the socket at once.
    AtOnce,
    /// It closes the socket once replies have arrived, which resets the connection.
    WithUnreadReplies,
    /// It half-closes the connection first.
    AfterHalfClose,
}

/// More requests follow QUIT than one turn of a worker executes, and its reply follows more than the socket holds.
#[test]
fn a_connection_that_breaks_behind_quit_is_closed() {
    with_workers(&[], |server| {
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["SET", "large", &"x".repeat(1_000_000)]), "OK");
        let behind = [request(&["QUIT"]), request(&["PING"]).repeat(5000)].concat();
        let much = [request(&["GET", "large"]).repeat(16), behind.clone()].concat();
        for ending in [Ending::AtOnce, Ending::WithUnreadReplies, Ending::AfterHalfClose] {
            for bytes in [&behind, &much] {
                for _ in 0..20 {
                    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
                    stream.set_read_timeout(Some(PATIENCE)).expect("sets the timeout");
                    // The server may have closed the connection before all requests are sent.
                    let _ = stream.write_all(bytes);
                    if matches!(ending, Ending::AfterHalfClose) {
                        let _ = stream.shutdown(Shutdown::Write);
                    }
                    if !matches!(ending, Ending::AtOnce) {
                        let _ = stream.peek(&mut [0]);
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                println!("{ending:?}, {} bytes", bytes.len());
                await_info(&mut admin, "connected_clients:1");
            }
        }
    });
}

/// Returns a listener that accepts without waiting, and its port.
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.set_nonblocking(true).expect("sets the mode");
    let port = listener.local_addr().expect("is bound").port().to_string();
    (listener, port)
}

/// Waits for a connection.
fn accept(listener: &TcpListener) -> TcpStream {
    let mut accepted = None;
    wait_until("a connection arrives", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    accepted.expect("it has arrived").0
}

/// Some commands of a transaction end on other threads. They run one after the other, even if the client has been
/// killed meanwhile.
#[test]
fn the_rest_of_a_killed_clients_transaction_runs_after_its_current_command() {
    with_workers(&[], |server| {
        let (mut client, mut admin) = (Client::connect(server.port), Client::connect(server.port));
        let ((first, first_port), (second, second_port), (third, third_port)) = (listen(), listen(), listen());
        let id = client.call(&["CLIENT", "ID"]);
        for key in ["a", "b", "c"] {
            assert_eq!(client.call(&["SET", key, "value"]), "OK");
        }
        assert_eq!(client.call(&["MULTI"]), "OK");
        for (port, key) in [(&first_port, "a"), (&second_port, "b")] {
            let words = ["MIGRATE", "127.0.0.1", port, key, "0", "100000"];
            assert_eq!(client.call(&words), "QUEUED");
        }
        client.send(&["EXEC"]);
        let connection = accept(&first);
        assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
        // Two threads do such work, so it is not delayed if the transaction uses one of them.
        admin.send(&["MIGRATE", "127.0.0.1", &third_port, "c", "0", "100000"]);
        let other_connection = accept(&third);
        assert!(second.accept().is_err(), "the first command has not ended");
        drop((connection, first));
        drop(accept(&second));
        drop((second, other_connection, third));
        let reply = admin.answer();
        assert!(reply.starts_with("IOERR"), "{reply}");
    });
}
