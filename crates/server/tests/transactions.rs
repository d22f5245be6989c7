//! Transactions seen from outside, on many more workers than there are cores.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LASTING: Duration = Duration::from_secs(3);

/// A running server; killed at the end of the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Server {
        let start = Instant::now();
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            let port = listener.local_addr().expect("is bound").port();
            drop(listener);
            let child = Command::new(env!("CARGO_BIN_EXE_weft-server"))
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
                .args(["--io-threads", "8", "--enable-debug-command", "yes"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("starts");
            let mut server = Server { child, port };
            if server.listens() {
                return server;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not listen");
        }
    }

    /// Waits until the server listens; false if somebody else got the port first.
    fn listens(&mut self) -> bool {
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                let info = self.connect().call(&["INFO", "server"]);
                return info.contains(&format!("process_id:{}\r\n", self.child.id()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn connect(&self) -> Client {
        connect(self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(port: u16) -> Client {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    stream.set_nodelay(true).expect("sets an option");
    Client(BufReader::new(stream))
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).expect("sends");
    }

    /// The next reply, in one line: `(a b c)` for an array, `-` for null.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("receives");
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "*" | "$" if rest == "-1" => "-".to_owned(),
            "*" => {
                let elements: Vec<String> = (0..rest.parse().expect("a length")).map(|_| self.answer()).collect();
                format!("({})", elements.join(" "))
            }
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("receives");
                bytes.truncate(bytes.len() - 2);
                String::from_utf8(bytes).expect("text")
            }
            _ => rest.to_owned(),
        }
    }

    fn call(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }
}

impl Client {
    /// The replies to a whole transaction, MULTI and EXEC sent together with its commands.
    fn transact(&mut self, commands: &[&[&str]]) -> String {
        self.send(&["MULTI"]);
        for command in commands {
            self.send(command);
        }
        self.send(&["EXEC"]);
        for _ in 0..=commands.len() {
            self.answer();
        }
        self.answer()
    }
}

fn sum(replies: &str) -> i64 {
    let words = replies.trim_matches(['(', ')']).split(' ');
    words.map(|word| word.parse::<i64>().expect("a number")).sum()
}

const ACCOUNTS: usize = 32;

/// Runs `work` on some threads for a while, each with a connection of its own.
fn for_a_while(server: &Server, threads: usize, work: impl Fn(&mut Client, usize) + Send + Sync + 'static) {
    let (work, stop, port) = (Arc::new(work), Arc::new(AtomicBool::new(false)), server.port);
    let threads: Vec<_> = (0..threads)
        .map(|index| {
            let (work, stop) = (work.clone(), stop.clone());
            thread::spawn(move || {
                let mut client = connect(port);
                while !stop.load(Ordering::Relaxed) {
                    work(&mut client, index);
                }
            })
        })
        .collect();
    thread::sleep(LASTING);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no thread failed");
    }
}

#[test]
fn readers_of_many_slots_see_transfers_whole() {
    let server = Server::start();
    let names: Vec<String> = (0..ACCOUNTS).map(|index| format!("account:{index}")).collect();
    let mut client = server.connect();
    for name in &names {
        client.call(&["SET", name, "1000"]);
    }
    let expected = ACCOUNTS as i64 * 1000;
    for_a_while(&server, 16, move |client, index| match index % 4 {
        0 => {
            let reads: Vec<[&str; 2]> = names.iter().map(|name| ["GET", name]).collect();
            let reads: Vec<&[&str]> = reads.iter().map(|read| &read[..]).collect();
            assert_eq!(sum(&client.transact(&reads)), expected);
        }
        1 => {
            let words: Vec<&str> = std::iter::once("MGET")
                .chain(names.iter().map(String::as_str))
                .collect();
            assert_eq!(sum(&client.call(&words)), expected);
        }
        _ => {
            let (from, to) = (&names[fastrand::usize(..ACCOUNTS)], &names[fastrand::usize(..ACCOUNTS)]);
            let amount = fastrand::u64(1..10).to_string();
            client.transact(&[&["DECRBY", from, &amount], &["INCRBY", to, &amount]]);
        }
    });
}

#[test]
fn check_and_set_loses_no_increment() {
    let server = Server::start();
    let done = Arc::new(AtomicU64::new(0));
    let counting = done.clone();
    for_a_while(&server, 16, move |client, _| {
        let name = ["one", "two"][fastrand::usize(..2)];
        client.call(&["WATCH", name]);
        let next = client.call(&["GET", name]).parse::<u64>().unwrap_or(0) + 1;
        if client.transact(&[&["SET", name, &next.to_string()]]) == "(OK)" {
            counting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut client = server.connect();
    let counted: u64 = ["one", "two"]
        .iter()
        .filter_map(|name| client.call(&["GET", name]).parse::<u64>().ok())
        .sum();
    assert!(counted > 0);
    assert_eq!(counted, done.load(Ordering::Relaxed));
}

#[test]
fn transactions_over_the_whole_keyspace_mix_with_others() {
    let server = Server::start();
    for_a_while(&server, 12, |client, index| match index % 3 {
        // Both keys are there, or none is, whatever happens in between.
        0 => {
            client.transact(&[
                &["SET", "left", "1"],
                &["SET", "right", "1"],
                &["DBSIZE"],
                &["SCAN", "0"],
            ]);
        }
        1 => {
            client.transact(&[&["FLUSHALL", "ASYNC"]]);
        }
        _ => {
            let seen = client.transact(&[&["EXISTS", "left"], &["EXISTS", "right"]]);
            assert!(seen == "(0 0)" || seen == "(1 1)", "{seen}");
        }
    });
}

#[test]
fn answers_of_other_threads_keep_their_place() {
    let server = Server::start();
    let mut client = server.connect();
    for _ in 0..20 {
        let replies = client.transact(&[
            &["SET", "k", "first"],
            &["CLIENT", "LIST"],
            &["GET", "k"],
            &["INFO", "clients"],
            &["CONFIG", "SET", "maxmemory", "0"],
            &["MEMORY", "STATS"],
            &["ECHO", "last"],
        ]);
        let places: Vec<_> = [
            "OK",
            "id=",
            "first",
            "connected_clients:",
            "OK",
            "peak.allocated",
            "last",
        ]
        .iter()
        .scan(0, |from, word| {
            let found = replies[*from..].find(word).map(|at| at + *from);
            *from = found.unwrap_or(*from);
            Some(found)
        })
        .collect();
        assert!(places.iter().all(Option::is_some), "{places:?} in {replies}");
        assert_eq!(client.call(&["PING"]), "PONG");
    }
}

#[test]
fn an_expired_watched_key_fails_exec() {
    let server = Server::start();
    let mut client = server.connect();
    for active in ["0", "1"] {
        client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", active]);
        client.call(&["SET", "k", "v", "PX", "100"]);
        client.call(&["WATCH", "k"]);
        thread::sleep(Duration::from_millis(300));
        assert_eq!(client.transact(&[&["PING"]]), "-");
        assert_eq!(client.transact(&[&["PING"]]), "(PONG)");
    }
}

#[test]
fn watches_of_clients_that_are_gone_leave_nothing() {
    let server = Server::start();
    let mut observer = server.connect();
    let clients: Vec<Client> = (0..40)
        .map(|index| {
            let mut client = server.connect();
            client.call(&["WATCH", "shared", &format!("own:{index}")]);
            client
        })
        .collect();
    let info = observer.call(&["INFO", "clients"]);
    assert!(
        info.contains("total_watched_keys:41\r\n") && info.contains("watching_clients:40\r\n"),
        "{info}"
    );
    drop(clients);
    let start = Instant::now();
    while !observer.call(&["INFO", "clients"]).contains("total_watched_keys:0\r\n") {
        assert!(start.elapsed() < PATIENCE, "watches are left");
        thread::sleep(Duration::from_millis(5));
    }
}
