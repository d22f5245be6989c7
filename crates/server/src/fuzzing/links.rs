//! Replication links: what a replica receives from its primary, and what a primary receives from replicas.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::observability::log;
use crate::replication::Endpoint;
use crate::replication::replica::Follower;
use crate::state::Server;
use weft_config::Config;
use weft_config::command_line::CommandLine;
use weft_os::sync::mpsc;

/// The longest that a peer waits for the other side.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prepares the process: the table of commands, and a log that writes nothing.
pub(super) fn set_up_process() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        log::set_threshold(4);
        crate::commands::install_registry(crate::commands::full_registry());
    });
}

/// Creates the configuration of these lines.
pub(super) fn config_of(lines: &str) -> Config {
    let fixed = "databases 4\nsave \"\"\nproto-max-bulk-len 1048576\nloglevel nothing\nrepl-timeout 2\n";
    let command_line = CommandLine {
        options: format!("{fixed}{lines}").into_bytes(),
        ..CommandLine::default()
    };
    Config::load(&command_line).unwrap_or_else(|error| panic!("{error}"))
}

/// Creates a server none of whose threads run.
pub(super) fn create_idle_server(lines: &str) -> Arc<Server> {
    set_up_process();
    let background = || crate::runtime::background::create_queue().0;
    let created = crate::start::create_server(
        config_of(lines),
        1,
        background(),
        background(),
        mpsc::channel().0,
        mpsc::channel().0,
    );
    created.unwrap_or_else(|error| panic!("{error:?}"))
}

/// A replica, and a primary that sends the same bytes over each connection.
struct ReplicaFixture {
    server: Arc<Server>,
    follower: Follower,
    port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl ReplicaFixture {
    fn new() -> std::io::Result<ReplicaFixture> {
        let server = create_idle_server("repl-diskless-load swapdb\ndual-channel-replication-enabled yes\n");
        let follower = Follower::new(&server).ok_or_else(|| std::io::Error::other("no thread index is free"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let sent: Arc<Mutex<Vec<u8>>> = Arc::default();
        let to_send = sent.clone();
        weft_os::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let bytes = to_send.lock().unwrap_or_else(PoisonError::into_inner).clone();
                weft_os::thread::spawn(move || serve(stream, &bytes));
            }
        });
        Ok(ReplicaFixture {
            server,
            follower,
            port,
            sent,
        })
    }
}

/// Sends these bytes, and reads until the other side closes the connection. It may break at any time.
fn serve(mut stream: TcpStream, bytes: &[u8]) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Commands that end the process, run for long or connect to others. A primary is trusted with them.
const EXCLUDED: [&[u8]; 14] = [
    b"debug",
    b"shutdown",
    b"eval",
    b"fcall",
    b"function",
    b"config",
    b"migrate",
    b"replicaof",
    b"slaveof",
    b"save",
    b"rewriteaof",
    b"script",
    b"failover",
    b"pause",
];

/// Follows a primary that sends these bytes over each connection: answers of the handshake, a dump, and the stream. In
/// the end the server must not be loading.
///
/// # Panics
/// If it is.
pub fn check_replica_link(bytes: &[u8]) {
    let lower = bytes.to_ascii_lowercase();
    let contains = |word: &&[u8]| lower.windows(word.len()).any(|found| found == *word);
    if EXCLUDED.iter().any(contains) {
        return;
    }
    static FIXTURE: OnceLock<Mutex<ReplicaFixture>> = OnceLock::new();
    let fixture = FIXTURE.get_or_init(|| Mutex::new(ReplicaFixture::new().unwrap_or_else(|error| panic!("{error}"))));
    let mut fixture = fixture.lock().unwrap_or_else(PoisonError::into_inner);
    *fixture.sent.lock().unwrap_or_else(PoisonError::into_inner) = bytes.to_vec();
    let primary = Endpoint {
        host: "127.0.0.1".into(),
        port: fixture.port,
    };
    fixture.server.replication.start_following(primary, false);
    let begun = Instant::now();
    fixture.follower.follow();
    assert!(begun.elapsed() < 20 * PATIENCE, "the link does not end");
    let repl = &fixture.server.replication;
    repl.stop_following();
    assert!(!repl.is_loading(), "the server is still loading");
}

/// A server in this process, and a client that checks that it works.
struct PrimaryFixture {
    port: u16,
    witness: BufReader<TcpStream>,
}

impl PrimaryFixture {
    fn new() -> std::io::Result<PrimaryFixture> {
        set_up_process();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let lines = format!(
            "bind 127.0.0.1\nport {port}\nio-threads 1\nrepl-diskless-sync-delay 0\n\
             user default on nopass ~* &* -@all +psync +sync +replconf +ping +echo\n"
        );
        let server = crate::start::run_in_background(config_of(&lines))?;
        let start = Instant::now();
        loop {
            assert!(
                !server.is_finished() && start.elapsed() < 10 * PATIENCE,
                "no server runs"
            );
            if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                stream.set_read_timeout(Some(10 * PATIENCE))?;
                let witness = BufReader::new(stream);
                return Ok(PrimaryFixture { port, witness });
            }
            weft_os::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ping(&mut self) -> std::io::Result<String> {
        self.witness.get_mut().write_all(b"PING\r\n")?;
        let mut line = String::new();
        self.witness.read_line(&mut line)?;
        Ok(line)
    }
}

/// Sends these bytes to a server, as a replica: PSYNC, REPLCONF and what follows. Every reply before the
/// synchronisation must begin as a reply does, and the server must serve another client afterwards.
///
/// # Panics
/// If one of this is not so.
pub fn check_primary_link(bytes: &[u8]) {
    static FIXTURE: OnceLock<Mutex<PrimaryFixture>> = OnceLock::new();
    let fixture = FIXTURE.get_or_init(|| Mutex::new(PrimaryFixture::new().unwrap_or_else(|error| panic!("{error}"))));
    let mut fixture = fixture.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, fixture.port)) else {
        panic!("the server accepts no connection");
    };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    // The server closes the connection when it likes.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut replies = Vec::new();
    let _ = stream.take(1 << 20).read_to_end(&mut replies);
    assert!(
        replies.first().is_none_or(|first| b"+-:$*\n".contains(first)),
        "{:?}",
        String::from_utf8_lossy(&replies)
    );
    match fixture.ping() {
        Ok(line) => assert_eq!(line, "+PONG\r\n"),
        Err(error) => panic!("the server does not serve another client: {error}"),
    }
}
