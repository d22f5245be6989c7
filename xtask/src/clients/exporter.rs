//! redis_exporter, as its authors publish it: it scrapes a server alone, a primary with a replica, the replica and a
//! node of a cluster, without an error, and finds all metrics that it finds in Valkey in the same situation.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{ClientOutcome, ServerUnderTest, copy_project};
use crate::server_process::{ServerProcess, unused_address};
use crate::stress::client::StressClient;
use crate::stress::watchdog::RequestRegistry;
use crate::{oracle, workspace};

/// The program's package, whose version `tests/clients/exporter/go.mod` pins.
const PACKAGE: &str = "github.com/oliver006/redis_exporter";
/// The name of the built program.
const PROGRAM: &str = "redis_exporter";
/// The time limit for a start, a reply, and for a state that the servers must reach.
const PATIENCE: Duration = Duration::from_secs(30);
/// The lines that a scrape without an error has.
const SUCCESS: [&str; 2] = ["redis_up 1", "redis_exporter_last_scrape_error{err=\"\"} 0"];
/// Commands after which a server has keys, an expiry, statistics of commands and of errors.
const COMMANDS: &[&str] = &[
    "SET string value",
    "SET expiring value EX 5000",
    "RPUSH list a b",
    "XADD stream 1-1 field value",
    "EVAL return{} 0",
    "GET string",
    "GET list",
];

/// The check of `cargo xtask clients`.
///
/// # Errors
/// Fails if the exporter cannot be built, if a scrape fails, or if a metric is missing.
pub(super) fn run(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    if !workspace::succeeds("go", &["version"]) {
        return Ok(ClientOutcome::Skipped("go is not installed"));
    }
    let project = copy_project("exporter")?;
    if !download_modules(&project)? {
        return Ok(ClientOutcome::Skipped(
            "the modules of redis_exporter cannot be downloaded",
        ));
    }
    let build = ["build", "-o", PROGRAM, PACKAGE];
    workspace::run(workspace::command("go", &build).current_dir(&project))?;
    let exporter = Exporter::start(&project.join(PROGRAM))?;
    let valkey = Situations::start(&oracle::ensure_installed()?.server)?.scrape(&exporter)?;
    let weft = Situations::start(&server.binary)?;
    // Some metrics appear only after periodic work.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let missing = missing_names(&valkey, &weft.scrape(&exporter)?);
        if missing.is_empty() {
            return Ok(ClientOutcome::Passed);
        }
        if Instant::now() > deadline {
            return Err(format!("Valkey has these metrics, too: {}", missing.join(", ")));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Downloads what `go.mod` names. Returns `false` if the module proxy cannot be reached.
///
/// # Errors
/// Fails if a module is not the one that `go.sum` names.
fn download_modules(project: &Path) -> Result<bool, String> {
    let mut command = workspace::command("go", &["mod", "download"]);
    let output = command.current_dir(project).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("go mod download: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("SECURITY ERROR") {
        return Err(format!("go mod download: {errors}"));
    }
    if !output.status.success() {
        println!("go mod download: {errors}");
    }
    Ok(output.status.success())
}

/// The names of the metrics in each situation.
type Scrapes = Vec<(&'static str, BTreeSet<String>)>;

/// Returns the metrics that are only in `expected`, each after its situation.
fn missing_names(expected: &Scrapes, actual: &Scrapes) -> Vec<String> {
    let pairs = expected.iter().zip(actual);
    let missing = pairs.flat_map(|((situation, expected), (_, actual))| {
        expected
            .difference(actual)
            .map(move |name| format!("{situation}: {name}"))
    });
    missing.collect()
}

/// The servers of one kind that are scraped.
struct Situations {
    servers: [(&'static str, ServerProcess); 4],
}

impl Situations {
    fn start(binary: &Path) -> Result<Self, String> {
        let start = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
            ServerProcess::start(binary, &arguments)
        };
        let alone = start(&[])?;
        let primary = start(&["--repl-diskless-sync-delay", "0"])?;
        let node = start(&["--cluster-enabled", "yes"])?;
        connect(&node)?.execute("CLUSTER ADDSLOTSRANGE 0 16383")?;
        await_reply(&node, "CLUSTER INFO", "cluster_state:ok")?;
        for server in [&alone, &primary, &node] {
            let mut client = connect(server)?;
            for command in COMMANDS {
                // The last command is refused, which servers count.
                client.call(command)?;
            }
        }
        let port = primary.address.port().to_string();
        let replica = start(&["--replicaof", "127.0.0.1", &port])?;
        await_reply(&replica, "INFO replication", "master_link_status:up")?;
        await_reply(&primary, "INFO replication", "state=online")?;
        connect(&replica)?.execute("GET string")?;
        let servers = [
            ("alone", alone),
            ("primary", primary),
            ("replica", replica),
            ("node", node),
        ];
        Ok(Self { servers })
    }

    /// Returns the names of all metrics.
    ///
    /// # Errors
    /// Fails if a scrape fails, or reports an error.
    fn scrape(&self, exporter: &Exporter) -> Result<Scrapes, String> {
        let mut scrapes = Vec::new();
        for (situation, server) in &self.servers {
            let text = exporter.scrape(server.address)?;
            for line in SUCCESS {
                if !text.lines().any(|found| found == line) {
                    let program = &server.command_line()[0];
                    return Err(format!(
                        "{program}, {situation}: the scrape has no line {line:?}:\n{text}"
                    ));
                }
            }
            scrapes.push((*situation, metric_names(&text)));
        }
        Ok(scrapes)
    }
}

/// Returns the names of the metrics of a server in the text of a scrape.
fn metric_names(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| line.starts_with("redis_"));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

fn connect(server: &ServerProcess) -> Result<StressClient, String> {
    StressClient::connect(server.address, PATIENCE, &RequestRegistry::default())
}

/// Waits until the reply to a command contains a text.
fn await_reply(server: &ServerProcess, command: &str, expected: &str) -> Result<(), String> {
    let mut client = connect(server)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = client.execute(command)?.text();
        if text.contains(expected) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{command}: no {expected:?} in:\n{text}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A running redis_exporter, killed when it is dropped.
struct Exporter {
    child: Child,
    address: SocketAddr,
}

impl Exporter {
    /// Starts the program and waits until it accepts connections.
    fn start(program: &Path) -> Result<Self, String> {
        let address = unused_address()?;
        let child = Command::new(program)
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let exporter = Self { child, address };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err("redis_exporter accepts no connections".to_owned());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(exporter)
    }

    /// Lets the exporter scrape a server. Returns the response with its header.
    fn scrape(&self, server: SocketAddr) -> Result<String, String> {
        let explain = |error: std::io::Error| format!("redis_exporter: {error}");
        let mut stream = TcpStream::connect(self.address).map_err(explain)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(explain)?;
        // A response of HTTP/1.0 ends with the connection.
        write!(stream, "GET /scrape?target=redis://{server} HTTP/1.0\r\n\r\n").map_err(explain)?;
        let mut response = String::new();
        stream.read_to_string(&mut response).map_err(explain)?;
        Ok(response)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended, which is the desired state.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_samples_of_the_server() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# TYPE redis_up gauge\nredis_up 1\nredis_db_keys{db=\"db0\"} 2\n\
                    redis_db_keys{db=\"db1\"} 0\ngo_threads 8\n";
        let names: Vec<String> = metric_names(text).into_iter().collect();
        assert_eq!(names, ["redis_db_keys", "redis_up"]);
    }

    #[test]
    fn metrics_that_only_valkey_has_are_missing() {
        let scrape = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let valkey = vec![("alone", scrape(&["a", "b"])), ("node", scrape(&["a"]))];
        let weft = vec![("alone", scrape(&["a", "c"])), ("node", scrape(&["a"]))];
        assert_eq!(missing_names(&valkey, &weft), ["alone: b"]);
        assert!(missing_names(&weft, &weft).is_empty());
    }
}
