//! `cargo xtask clients`: runs real client libraries and tools against a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::options::Options;
use crate::server_process::ServerProcess;
use crate::{oracle, workspace};

mod exporter;

/// The result of a client's run that did not fail.
enum ClientOutcome {
    Passed,
    Skipped(&'static str),
}

/// The server that the clients use.
struct ServerUnderTest {
    binary: PathBuf,
    port: String,
}

struct ClientCheck {
    name: &'static str,
    run: fn(server: &ServerUnderTest) -> Result<ClientOutcome, String>,
}

/// The clients. To add a client, add a line.
#[rustfmt::skip]
const CLIENTS: &[ClientCheck] = &[
    ClientCheck { name: "redis-cli",       run: redis_cli },
    ClientCheck { name: "redis-benchmark", run: redis_benchmark },
    ClientCheck { name: "python",          run: python },
    ClientCheck { name: "node",            run: node },
    ClientCheck { name: "go",              run: go },
    ClientCheck { name: "java",            run: java },
    ClientCheck { name: "redis_exporter",  run: exporter::run },
    ClientCheck { name: "weft-top",        run: weft_top },
];

/// Runs every client whose tools are installed on this machine. The last line is the count of results.
///
/// # Errors
/// Fails if a client fails or the server cannot be started.
pub fn main(words: &[String]) -> Result<(), String> {
    run_all(words).map(|_| ())
}

/// Runs the clients, or those that `words` name. Returns those that are skipped, each with the reason.
///
/// # Errors
/// Fails like [`main`].
pub fn run_all(words: &[String]) -> Result<Vec<String>, String> {
    let options = Options::parse(words, &["server", "only"], &[])?;
    let binary = match options.value("server") {
        Some(path) => PathBuf::from(path),
        None => workspace::root().join("target/release/weft-server"),
    };
    let only = options.list("only");
    for name in &only {
        if !CLIENTS.iter().any(|client| client.name == *name) {
            return Err(format!("unknown client '{name}'"));
        }
    }
    // On few cores the self-tuning would keep one worker active.
    let arguments = ["--io-threads", "4", "--io-threads-always-active", "yes"].map(str::to_owned);
    let server = ServerProcess::start(&binary, &arguments)?;
    let under_test = ServerUnderTest {
        binary,
        port: server.address.port().to_string(),
    };
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), Vec::new());
    for client in CLIENTS {
        if !only.is_empty() && !only.contains(&client.name) {
            continue;
        }
        match (client.run)(&under_test) {
            Ok(ClientOutcome::Passed) => {
                passed += 1;
                println!("{}: passed", client.name);
            }
            Ok(ClientOutcome::Skipped(why)) => skipped.push(format!("client {}: {why}", client.name)),
            Err(message) => {
                println!("{}: FAILED: {message}", client.name);
                failed.push(client.name);
            }
        }
    }
    if !skipped.is_empty() {
        println!("skipped:\n  {}", skipped.join("\n  "));
    }
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    if failed.is_empty() {
        Ok(skipped)
    } else {
        Err(format!("failed: {}\n{}", failed.join(", "), server.log_tail()))
    }
}

/// A tool of Redis, and the directory of the libraries that were unpacked with it.
struct RedisTool {
    program: PathBuf,
    libraries: PathBuf,
}

impl RedisTool {
    /// Finds a tool. If it is not installed, the packages of Debian that contain it are unpacked below `target/tools`,
    /// which changes nothing on the machine. Returns `None` if that is not possible either.
    fn find(name: &str) -> Option<Self> {
        let directory = workspace::root().join("target/tools/redis");
        let libraries = directory.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let installed = Self {
            program: PathBuf::from(name),
            libraries: libraries.clone(),
        };
        if installed.starts() {
            return Some(installed);
        }
        let unpacked = Self {
            program: directory.join("usr/bin").join(name),
            libraries,
        };
        if !unpacked.program.exists() {
            // Another step may look for the tools at the same time, and must not find a part of them.
            let scratch = directory.with_extension(format!("new-{}", std::process::id()));
            let is_there = Self::unpack(&scratch) && move_into_place(&scratch, &directory).is_ok();
            // There is nothing left if it was moved.
            let _ = fs::remove_dir_all(&scratch);
            if !is_there && !unpacked.program.exists() {
                return None;
            }
        }
        unpacked.starts().then_some(unpacked)
    }

    /// Unpacks the packages of Debian into `directory`. Returns `false` if they cannot be downloaded.
    fn unpack(directory: &Path) -> bool {
        let script = "apt-get download redis-tools liblzf1 libjemalloc2 libatomic1 \
                      && for package in *.deb; do dpkg -x \"$package\" . || exit 1; done";
        let mut command = workspace::command("sh", &["-c", script]);
        fs::create_dir_all(directory).is_ok() && workspace::run(command.current_dir(directory)).is_ok()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries).stdin(Stdio::null());
        command
    }

    fn starts(&self) -> bool {
        self.command()
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// Runs the tool and returns its output.
    ///
    /// # Errors
    /// Fails if the tool cannot be started or does not exit with 0.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let name = self.program.display();
        let output = self
            .command()
            .args(arguments)
            .output()
            .map_err(|error| format!("{name}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name}: {}: {text}{errors}", output.status))
        }
    }
}

/// Unpacks the tools of Redis, unless they are there already. The checks of the book and of the packages use them, too.
/// Returns `false` if they are not to be had.
pub fn unpack_redis_tools() -> bool {
    RedisTool::find("redis-cli").is_some()
}

/// Moves a complete directory to `target`, instead of what an attempt that has failed left there.
fn move_into_place(complete: &Path, target: &Path) -> std::io::Result<()> {
    if target.exists() {
        fs::remove_dir_all(target)?;
    }
    fs::rename(complete, target)
}

fn redis_cli(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    let Some(tool) = RedisTool::find("redis-cli") else {
        return Ok(ClientOutcome::Skipped("redis-cli is not installed"));
    };
    // (protocol, words, expected output)
    let exchanges: &[(&str, &[&str], &str)] = &[
        ("-2", &["FLUSHALL"], "OK"),
        ("-2", &["SET", "cli:key", "a b"], "OK"),
        ("-2", &["GET", "cli:key"], "a b"),
        ("-3", &["GET", "cli:key"], "a b"),
        ("-3", &["INCR", "cli:count"], "1"),
        ("-2", &["MGET", "cli:count", "cli:none"], "1\n"),
        (
            "-2",
            &["NOSUCHCOMMAND"],
            "ERR unknown command 'NOSUCHCOMMAND', with args beginning with:",
        ),
        ("-3", &["--scan", "--pattern", "cli:c*"], "cli:count"),
    ];
    for (protocol, words, expected) in exchanges {
        let arguments = [&["-h", "127.0.0.1", "-p", &server.port, protocol], *words].concat();
        let answer = tool.run(&arguments)?;
        if answer.trim_end_matches([' ', '\n']) != expected.trim_end() {
            return Err(format!("{words:?}: expected {expected:?}, got {answer:?}"));
        }
    }
    Ok(ClientOutcome::Passed)
}

fn redis_benchmark(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    let Some(tool) = RedisTool::find("redis-benchmark") else {
        return Ok(ClientOutcome::Skipped("redis-benchmark is not installed"));
    };
    for pipeline in ["1", "16"] {
        let load = [
            "-n",
            "20000",
            "-P",
            pipeline,
            "-r",
            "1000",
            "-t",
            "ping,set,get,incr,mset",
        ];
        let answer = tool.run(&[&["-h", "127.0.0.1", "-p", &server.port, "--csv"], &load[..]].concat())?;
        for test in ["PING_INLINE", "SET", "GET", "INCR", "MSET (10 keys)"] {
            if !answer.contains(&format!("\"{test}\"")) {
                return Err(format!("no result for {test} in:\n{answer}"));
            }
        }
    }
    Ok(ClientOutcome::Passed)
}

fn python(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    let oracle = oracle::ensure_installed()?;
    workspace::run(&mut workspace::command(
        oracle.python,
        &["tests/clients/python/smoke.py", &server.port],
    ))?;
    Ok(ClientOutcome::Passed)
}

fn node(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    if !workspace::succeeds("node", &["--version"]) || !workspace::succeeds("npm", &["--version"]) {
        return Ok(ClientOutcome::Skipped("node or npm is not installed"));
    }
    let project = copy_project("node")?;
    if !project.join("node_modules/ioredis").exists() {
        let options = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"];
        workspace::run(workspace::command("npm", &options).current_dir(&project))?;
    }
    workspace::run(workspace::command("node", &["smoke.js", &server.port]).current_dir(&project))?;
    Ok(ClientOutcome::Passed)
}

fn go(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    if !workspace::succeeds("go", &["version"]) {
        return Ok(ClientOutcome::Skipped("go is not installed"));
    }
    let project = copy_project("go")?;
    workspace::run(workspace::command("go", &["run", ".", &server.port]).current_dir(&project))?;
    Ok(ClientOutcome::Passed)
}

fn java(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    if !workspace::succeeds("java", &["-version"]) || !workspace::succeeds("mvn", &["-v"]) {
        return Ok(ClientOutcome::Skipped("java or mvn is not installed"));
    }
    let project = copy_project("java")?;
    let goals = ["-q", "-B", "compile", "exec:java"];
    let argument = format!("-Dexec.args={}", server.port);
    let mut command = workspace::command("mvn", &goals);
    workspace::run(command.arg(argument).current_dir(&project))?;
    Ok(ClientOutcome::Passed)
}

/// The dashboard in a terminal emulator. It starts servers of its own: this one and Valkey.
fn weft_top(server: &ServerUnderTest) -> Result<ClientOutcome, String> {
    let oracle = oracle::ensure_installed()?;
    let build = ["build", "--quiet", "--package", "weft-top"];
    workspace::run(&mut workspace::command("cargo", &build))?;
    let mut command = workspace::command(oracle.python, &["tests/top/check.py", "--top", "target/debug/weft-top"]);
    command.arg("--server").arg(&server.binary);
    command.arg("--valkey").arg(&oracle.server);
    workspace::run(&mut command)?;
    Ok(ClientOutcome::Passed)
}

/// Copies the sources of a client project to `target/clients` and returns the copy's path.
fn copy_project(name: &str) -> Result<PathBuf, String> {
    let from = workspace::root().join("tests/clients").join(name);
    let to = workspace::root().join("target/clients").join(name);
    copy_directory(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(to)
}

fn copy_directory(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_directory_replaces_an_incomplete_one() {
        let parent = std::env::temp_dir().join(format!("weft-clients-test-{}", std::process::id()));
        let (complete, target) = (parent.join("new"), parent.join("tools"));
        for name in ["first", "second"] {
            fs::create_dir_all(&complete).expect("is made");
            fs::write(complete.join(name), name).expect("is written");
            move_into_place(&complete, &target).expect("is moved");
            let entries = fs::read_dir(&target).expect("is there").flatten();
            let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            assert_eq!(names, [name]);
            assert!(!complete.exists());
        }
        fs::remove_dir_all(&parent).expect("is removed");
    }
}
