//! `cargo xtask clients`: runs real client libraries and tools against a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::options::Options;
use crate::server_process::ServerProcess;
use crate::{oracle, workspace};

/// The result of a client's run that did not fail.
enum Outcome {
    Passed,
    Skipped(&'static str),
}

struct Client {
    name: &'static str,
    run: fn(port: &str) -> Result<Outcome, String>,
}

/// The clients. To add a client, add a line.
#[rustfmt::skip]
const CLIENTS: &[Client] = &[
    Client { name: "redis-cli",       run: redis_cli },
    Client { name: "redis-benchmark", run: redis_benchmark },
    Client { name: "python",          run: python },
    Client { name: "node",            run: node },
    Client { name: "go",              run: go },
    Client { name: "java",            run: java },
];

/// Runs every client whose tools are installed on this machine.
///
/// # Errors
/// Fails if a client fails or the server cannot be started.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["server", "only"], &[])?;
    let binary = match options.text("server") {
        Some(path) => PathBuf::from(path),
        None => workspace::root().join("target/release/weft-server"),
    };
    let only = options.list("only");
    for name in &only {
        if !CLIENTS.iter().any(|client| client.name == *name) {
            return Err(format!("unknown client '{name}'"));
        }
    }
    let server = ServerProcess::start(&binary, &[])?;
    let port = server.address.port().to_string();
    let mut failures = Vec::new();
    for client in CLIENTS {
        if !only.is_empty() && !only.contains(&client.name) {
            continue;
        }
        match (client.run)(&port) {
            Ok(Outcome::Passed) => println!("{}: passed", client.name),
            Ok(Outcome::Skipped(why)) => println!("{}: skipped, {why}", client.name),
            Err(message) => {
                println!("{}: FAILED: {message}", client.name);
                failures.push(client.name);
            }
        }
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}\n{}", failures.join(", "), server.log_tail()))
    }
}

/// Runs a tool and returns its output.
///
/// # Errors
/// Fails if the tool cannot be started or does not exit with 0.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program}: {}: {text}{errors}", output.status))
    }
}

fn redis_cli(port: &str) -> Result<Outcome, String> {
    if !workspace::works("redis-cli", &["--version"]) {
        return Ok(Outcome::Skipped("redis-cli is not installed"));
    }
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
        let arguments = [&["-h", "127.0.0.1", "-p", port, protocol], *words].concat();
        let answer = output("redis-cli", &arguments)?;
        if answer.trim_end_matches([' ', '\n']) != expected.trim_end() {
            return Err(format!("{words:?}: expected {expected:?}, got {answer:?}"));
        }
    }
    Ok(Outcome::Passed)
}

fn redis_benchmark(port: &str) -> Result<Outcome, String> {
    if !workspace::works("redis-benchmark", &["--version"]) {
        return Ok(Outcome::Skipped("redis-benchmark is not installed"));
    }
    for pipeline in ["1", "16"] {
        let answer = output(
            "redis-benchmark",
            &[
                "-h",
                "127.0.0.1",
                "-p",
                port,
                "-n",
                "20000",
                "-P",
                pipeline,
                "-r",
                "1000",
                "-t",
                "ping,set,get,incr,mset",
                "--csv",
            ],
        )?;
        for test in ["PING_INLINE", "SET", "GET", "INCR", "MSET (10 keys)"] {
            if !answer.contains(&format!("\"{test}\"")) {
                return Err(format!("no result for {test} in:\n{answer}"));
            }
        }
    }
    Ok(Outcome::Passed)
}

fn python(port: &str) -> Result<Outcome, String> {
    let oracle = oracle::ensure()?;
    workspace::run(&mut workspace::command(
        oracle.python,
        &["tests/clients/python/smoke.py", port],
    ))?;
    Ok(Outcome::Passed)
}

fn node(port: &str) -> Result<Outcome, String> {
    if !workspace::works("node", &["--version"]) || !workspace::works("npm", &["--version"]) {
        return Ok(Outcome::Skipped("node or npm is not installed"));
    }
    let project = project("node")?;
    if !project.join("node_modules/ioredis").exists() {
        let options = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"];
        workspace::run(workspace::command("npm", &options).current_dir(&project))?;
    }
    workspace::run(workspace::command("node", &["smoke.js", port]).current_dir(&project))?;
    Ok(Outcome::Passed)
}

fn go(port: &str) -> Result<Outcome, String> {
    if !workspace::works("go", &["version"]) {
        return Ok(Outcome::Skipped("go is not installed"));
    }
    let project = project("go")?;
    workspace::run(workspace::command("go", &["run", ".", port]).current_dir(&project))?;
    Ok(Outcome::Passed)
}

fn java(port: &str) -> Result<Outcome, String> {
    if !workspace::works("java", &["-version"]) || !workspace::works("mvn", &["-v"]) {
        return Ok(Outcome::Skipped("java or mvn is not installed"));
    }
    let project = project("java")?;
    let goals = ["-q", "-B", "compile", "exec:java"];
    let argument = format!("-Dexec.args={port}");
    let mut command = workspace::command("mvn", &goals);
    workspace::run(command.arg(argument).current_dir(&project))?;
    Ok(Outcome::Passed)
}

/// Copies the sources of a client project to `target/clients` and returns the copy's path.
fn project(name: &str) -> Result<PathBuf, String> {
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
