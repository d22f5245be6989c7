//! The part about replication and the append-only file: a primary that writes the file and has a replica runs all
//! scenarios, beside a server that becomes its replica and a primary by turns. At the end the digests of the primary,
//! of the replica and of a server that has loaded the file agree.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::client::{CallError, StressClient, StressReply};
use super::driver::Part;
use super::run::StressRun;
use super::scenarios::{SCENARIOS, Scenario, no_op};
use super::watchdog::RequestRegistry;
use super::{DATABASES, arguments};
use crate::server_process::ServerProcess;

/// The time for replicas to catch up, and for a server to load its file.
pub const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: u32 = 8;

/// The number of digits of a digest.
const DIGEST_LENGTH: usize = 40;

/// The number of connections that write after each change of the role.
const FRESH_WRITERS: usize = 6;

/// The kinds of achievements of `switching`.
const SWITCHING_KINDS: &[&str] = &[SYNCHRONIZED, REFUSED, ABSENT, ACCEPTED];
const SYNCHRONIZED: &str = "synchronized";
const REFUSED: &str = "write refused by a replica";
const ABSENT: &str = "refused write absent";
const ACCEPTED: &str = "write accepted after REPLICAOF NO ONE";

/// The code of the errors with which a replica refuses a write. The error of a script may have it in its middle.
const REFUSAL: &str = "READONLY";

/// The number of changes of the role. It is odd from the reply to REPLICAOF until REPLICAOF NO ONE is sent.
static TURN: AtomicU64 = AtomicU64::new(0);

fn is_replica_turn(turn: u64) -> bool {
    turn % 2 == 1
}

/// The scenario of the server that changes its role. Its addresses are its own and that of the primary.
#[rustfmt::skip]
const SWITCHING: &[Scenario] = &[
    Scenario { name: "switching", threads: 8, prepare: forget, work: switching, check: no_op, kinds: SWITCHING_KINDS },
];

/// Runs the part.
pub fn run(binary: &Path, duration: Duration, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    let durable = [
        "--databases",
        DATABASES,
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
    ];
    let primary = ServerProcess::start(binary, &arguments(WORKERS, 2, &durable))?;
    let port = primary.address.port().to_string();
    let following = ["--databases", DATABASES, "--replicaof", "127.0.0.1", &port];
    let replica = ServerProcess::start(binary, &arguments(WORKERS, 2, &following))?;
    let switching = ServerProcess::start(binary, &arguments(4, 2, &["--databases", DATABASES]))?;
    await_info(replica.address, "replication", "master_link_status:up")?;

    let mut part = Part::new("replication".to_owned(), seed, duration);
    part.add_scenarios(SCENARIOS, &[primary.address]);
    part.add_scenarios(SWITCHING, &[switching.address, primary.address]);
    let mut servers = [primary, replica, switching];
    part.run(&mut servers)?;

    let [primary, replica, _] = &mut servers;
    let digest = await_same_digests(&[primary.address, replica.address])?;
    match connect(primary.address)?.call("SHUTDOWN") {
        Err(CallError::Closed) => {}
        other => return Err(format!("SHUTDOWN was answered by {other:?}")),
    }
    primary.await_success(PATIENCE)?;
    primary.start_again()?;
    await_info(primary.address, "persistence", "loading:0")?;
    let loaded = await_same_digests(&[primary.address])?;
    if loaded != digest {
        return Err(format!(
            "the digest was {digest}, and is {loaded} after loading the append-only file"
        ));
    }
    println!(
        "replication: primary, replica and loaded file agree ({digest}), {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Opens a connection outside the scenarios.
///
/// # Errors
/// Fails if the server does not accept the connection.
pub fn connect(address: SocketAddr) -> Result<StressClient, String> {
    StressClient::connect(address, PATIENCE, &RequestRegistry::default())
}

/// Waits until a section of INFO has a line.
///
/// # Errors
/// Fails after [`PATIENCE`].
pub fn await_info(address: SocketAddr, section: &str, line: &str) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut client = connect(address)?;
    loop {
        let info = client.call(&format!("INFO {section}"))?.text();
        if info.lines().any(|other| other == line) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{address} does not reach {line}:\n{info}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until servers have the same data, none of which expires, and returns its digest.
///
/// # Errors
/// Fails after [`PATIENCE`].
pub fn await_same_digests(addresses: &[SocketAddr]) -> Result<String, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut digests = Vec::new();
        let mut expires = false;
        for address in addresses {
            let mut client = connect(*address)?;
            let keyspace = client.call("INFO keyspace")?.text();
            expires |= keyspace
                .lines()
                .any(|line| line.contains("keys=") && !line.contains("expires=0,"));
            digests.push(client.call("DEBUG DIGEST")?.text());
        }
        // A server that is loading answers with an error.
        let are_digests = digests.iter().all(|digest| digest.len() == DIGEST_LENGTH);
        if !expires && are_digests && digests.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(digests.swap_remove(0));
        }
        if Instant::now() > deadline {
            return Err(differences(addresses, &digests));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Describes how the data of servers differs: the digest of each, and the keys with different values.
fn differences(addresses: &[SocketAddr], digests: &[String]) -> String {
    let mut story = format!("the servers {addresses:?} have different data: {digests:?}");
    let values = |address: SocketAddr, db: &str| -> Result<Vec<(String, String)>, String> {
        let mut client = connect(address)?;
        client.call(&format!("SELECT {db}"))?;
        let keys = client.call("KEYS *")?;
        let mut values = Vec::new();
        for key in keys.items() {
            let digest = client.call(&format!("DEBUG DIGEST-VALUE {}", key.text()))?;
            values.push((
                key.text(),
                digest.items().first().map_or(String::new(), |digest| digest.text()),
            ));
        }
        values.sort();
        Ok(values)
    };
    let databases: u32 = DATABASES.parse().unwrap_or(1);
    for db in (0..databases).map(|db| db.to_string()) {
        let all: Vec<_> = addresses.iter().map(|address| values(*address, &db)).collect();
        if let [Ok(one), Ok(other)] = all.as_slice() {
            let only = |these: &[(String, String)], those: &[(String, String)]| -> Vec<String> {
                let missing = these.iter().filter(|pair| those.binary_search(pair).is_err());
                missing.take(10).map(|(key, _)| key.clone()).collect()
            };
            let (one, other) = (only(one, other), only(other, one));
            if !one.is_empty() || !other.is_empty() {
                story += &format!("\ndatabase {db}: the first has {one:?}, the second has {other:?}");
            }
        }
    }
    story
}

/// Makes a server a replica and a primary by turns, while clients use it. From the reply to REPLICAOF until REPLICAOF
/// NO ONE is sent, it refuses every write that is sent, and a refused write leaves no data.
fn switching(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    if thread == 0 {
        return switch(run, &mut rng);
    }
    let mut round = 0u64;
    while run.is_running() {
        let mut client = run.connect()?;
        for _ in 0..rng.usize(1..50) {
            round += 1;
            let (command, is_write) = random_command(thread, round, &mut rng);
            let turn = TURN.load(Ordering::SeqCst);
            let reply = match client.call(&command) {
                Ok(reply) => reply,
                // A client that waits for keys is disconnected when the server becomes a replica.
                Err(CallError::Closed) => break,
                Err(other) => return Err(format!("{command}: {}", String::from(other))),
            };
            run.count_commands(1);
            if let StressReply::Error(error) = &reply
                && !is_error_of_role(error)
            {
                return Err(format!("{command} was answered by {error}"));
            }
            let is_refused = is_refusal(&reply);
            // EVAL is no write until its script writes, so a server that is loading refuses it for that reason.
            let is_loading = command.starts_with("EVAL ") && is_loading(&reply);
            if is_write && !is_loading && is_replica_turn(turn) && TURN.load(Ordering::SeqCst) == turn {
                if !is_refused {
                    return Err(format!("a replica answered {command} by {reply:?}"));
                }
                run.succeed_in(REFUSED);
            }
            if is_refused && command.starts_with("SET ") {
                check_absent(run, &mut client, &fresh_key(thread, round))?;
            }
        }
    }
    Ok(())
}

/// Returns a command, and `true` if a replica must refuse it.
fn random_command(thread: usize, round: u64, rng: &mut Rng) -> (String, bool) {
    let key = format!("switching:{}", rng.usize(..20));
    match rng.u8(..9) {
        0 => (format!("BLPOP list:{key} 0.2"), true),
        1 => (format!("RPUSH list:{key} x"), true),
        2 => (format!("EVAL return{{redis.call('incr',KEYS[1])}} 1 {key}"), true),
        3 => (format!("XREAD BLOCK 100 STREAMS stream:{key} $"), false),
        4 => (format!("MGET {key} counter:1"), false),
        5 => ("DBSIZE".to_owned(), false),
        6 => (format!("SET {} x", fresh_key(thread, round)), true),
        _ => (format!("INCR {key}"), true),
    }
}

/// Returns the name of a key that is written at most once.
fn fresh_key(thread: usize, round: u64) -> String {
    format!("fresh:{thread}:{round}")
}

/// Returns `true` for the errors of a server that is a replica, is becoming one, or loads the data of its primary.
pub fn is_error_of_role(error: &str) -> bool {
    let codes = ["LOADING ", "MASTERDOWN ", "UNBLOCKED "];
    codes.iter().any(|code| error.starts_with(code)) || error.contains(REFUSAL)
}

fn is_refusal(reply: &StressReply) -> bool {
    matches!(reply, StressReply::Error(error) if error.contains(REFUSAL))
}

fn is_loading(reply: &StressReply) -> bool {
    matches!(reply, StressReply::Error(error) if error.starts_with("LOADING"))
}

/// Checks that a write that was refused has left nothing.
fn check_absent(run: &StressRun, client: &mut StressClient, key: &str) -> Result<(), String> {
    match client.call(&format!("EXISTS {key}"))? {
        StressReply::Integer(0) => run.succeed_in(ABSENT),
        StressReply::Integer(_) => return Err(format!("{key} exists, although its SET was refused")),
        // While the server loads the primary's data, it answers no reads.
        reply if is_loading(&reply) => {}
        other => return Err(format!("EXISTS {key} was answered by {other:?}")),
    }
    Ok(())
}

/// Makes the server a replica and a primary by turns. After each reply it writes itself over connections of its own,
/// which the workers share.
fn switch(run: &StressRun, rng: &mut Rng) -> Result<(), String> {
    let mut client = run.connect()?;
    let mut writers = (0..FRESH_WRITERS)
        .map(|_| run.connect())
        .collect::<Result<Vec<_>, _>>()?;
    let primary = run.addresses[1].port();
    for round in 0.. {
        if !run.is_running() {
            break;
        }
        expect_ok(&mut client, &format!("REPLICAOF 127.0.0.1 {primary}"))?;
        TURN.fetch_add(1, Ordering::SeqCst);
        for writer in &mut writers {
            let reply = writer.call(&format!("SET {} x", fresh_key(0, round)))?;
            if !is_refusal(&reply) {
                return Err(format!("SET after the reply to REPLICAOF was answered by {reply:?}"));
            }
            run.succeed_in(REFUSED);
        }
        // Some synchronizations are given up before their end.
        let looks = if rng.bool() { rng.u16(..80) } else { 1000 };
        for _ in 0..looks {
            if !run.is_running() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            let info = client.call("INFO replication")?.text();
            if info.contains("master_link_status:up") {
                run.succeed_in(SYNCHRONIZED);
                break;
            }
        }
        TURN.fetch_add(1, Ordering::SeqCst);
        expect_ok(&mut client, "REPLICAOF NO ONE")?;
        check_absent(run, &mut writers[0], &fresh_key(0, round))?;
        expect_ok(&mut writers[0], &format!("SET {} x", fresh_key(0, round)))?;
        run.succeed_in(ACCEPTED);
        std::thread::sleep(Duration::from_millis(rng.u64(..200)));
    }
    Ok(())
}

/// Sends a command, again as long as the server is loading.
fn expect_ok(client: &mut StressClient, command: &str) -> Result<(), String> {
    loop {
        match client.call(command)? {
            StressReply::Simple(text) if text == "OK" => return Ok(()),
            reply if is_loading(&reply) => std::thread::sleep(Duration::from_millis(5)),
            other => return Err(format!("{command} was answered by {other:?}")),
        }
    }
}

/// Forgets the turns of an earlier run.
fn forget(_: &StressRun) -> Result<(), String> {
    TURN.store(0, Ordering::SeqCst);
    Ok(())
}
