//! The command line: subcommands, their flags, their help, and their output.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::compare::{self, CompareOptions};
use crate::control::ControlConnection;
use crate::draw::{KeyOrder, Zipf};
use crate::error::{Error, ErrorContext, Result};
use crate::expect;
use crate::fill::{self, FillParameters};
use crate::flags::{Flag, GivenFlags, flag, help_text};
use crate::keyspace;
use crate::load::{self, LOADS, LoadParameters, MIXED, Workload};
use crate::report;
use crate::run::{self, RunParameters};
use crate::scripts;
use crate::sets;
use crate::template;

#[cfg(test)]
mod tests;

const SERVER_FLAGS: &[Flag] = &[
    flag("--host", "HOST", "127.0.0.1", "address of the server"),
    flag("--port", "PORT", "6379", "port of the server"),
    flag("--protocol", "2|3", "2", "RESP version"),
];

const DATA_FLAGS: &[Flag] = &[
    flag("--keys", "N", "3000000", "size of the key space"),
    flag("--value-size", "BYTES", "64", "bytes of each value"),
];

const RUN_FLAGS: &[Flag] = &[
    flag(
        "--load",
        "NAME",
        "",
        "a named load or a mixture such as get:80,set:20 (see `loads`)",
    ),
    flag("--mix", "MIXTURE", "", "the same as --load"),
    flag(
        "--command",
        "COMMAND",
        "",
        "a command with placeholders instead of a named load",
    ),
    flag("--expect", "KIND", "", "the kind of reply of --command"),
    flag("--expire", "SECONDS", "", "expiry that {expire} sets on written keys"),
    flag(
        "--zipf",
        "EXPONENT",
        "",
        "Zipf-distributed keys instead of uniform ones, such as 0.99",
    ),
    flag("--connections", "N", "50", "connections over all threads"),
    flag("--threads", "N", "1", "client threads"),
    flag(
        "--pipeline",
        "N",
        "1",
        "maximum number of outstanding requests per connection",
    ),
    flag(
        "--rate",
        "R",
        "",
        "open loop: requests per second in total, latency from the due time",
    ),
    flag("--seconds", "S", "3", "length of the measured window"),
    flag("--warmup", "S", "0.5", "seconds of load before the window"),
    flag("--drain", "S", "10", "seconds to wait for replies after the window"),
    flag(
        "--verify-every",
        "N",
        "16",
        "compare the full value in every N-th reply",
    ),
    flag("--seed", "N", "1", "seed of all random choices"),
    flag("--cores", "LIST", "", "cores for the client threads, such as 1 or 2,3"),
    flag(
        "--pid",
        "PID",
        "",
        "the server's process id (queried with INFO if the host is local)",
    ),
    flag("--json", "", "", "print JSON"),
];

const FILL_FLAGS: &[Flag] = &[
    flag("--ttl", "SECONDS", "", "expiry of each key"),
    flag(
        "--command",
        "COMMAND",
        load::FILL_STRINGS,
        "the command that creates one key",
    ),
    flag("--load", "NAME", "", "create the data for a named load"),
    flag("--connections", "N", "8", "connections"),
    flag("--pipeline", "N", "64", "outstanding requests per connection"),
    flag("--cores", "LIST", "", "core for the client"),
];

const COMPARE_FLAGS: &[Flag] = &[
    flag("--weft", "PATH", "", "the weft-server binary"),
    flag(
        "--valkey",
        "PATH",
        "",
        "the valkey-server binary; without it only Weft is measured",
    ),
    flag(
        "--preload",
        "LIBRARY",
        "",
        "LD_PRELOAD for Valkey, such as .../libjemalloc.so.2",
    ),
    flag(
        "--valkey-tls",
        "PATH",
        "",
        "a valkey-server built with TLS, for the set tls; --valkey is used without it",
    ),
    flag(
        "--valkey-huge-pages",
        "",
        "",
        "add a side to the sets strings and memory: Valkey with MALLOC_CONF=thp:always, which --preload reads",
    ),
    flag(
        "--weft-args",
        "ARGS",
        "",
        "further arguments for Weft, separated by blanks",
    ),
    flag("--valkey-args", "ARGS", "", "further arguments for Valkey"),
    flag(
        "--set",
        "NAME",
        "smoke",
        "which loads (below), or several separated by commas, or all",
    ),
    flag("--rounds", "N", "", "interleaved rounds per load instead of the set's"),
    flag(
        "--seconds",
        "S",
        "",
        "length of each measured window instead of the set's",
    ),
    flag("--warmup", "S", "", "load before each window instead of the set's"),
    flag("--keys", "N", "", "size of the key space instead of the set's"),
    flag("--connections", "N", "50", "connections"),
    flag("--server-cores", "LIST", "0", "cores for the servers"),
    flag("--client-cores", "LIST", "1", "cores for the client, one thread each"),
    flag(
        "--out-dir",
        "FOLDER",
        "results",
        "folder for the Markdown and JSON files",
    ),
];

const KEYSPACE_FLAGS: &[Flag] = &[
    flag("--keys", "N", "3000000", "keys in the keyspace"),
    flag("--value-size", "BYTES", "64", "bytes of each value"),
    flag("--threads", "N", "2", "threads, in addition to a run with one"),
    flag("--seconds", "S", "2", "length of each measurement"),
    flag("--rounds", "N", "5", "interleaved rounds"),
];

const KEYSPACE_TABLE: &[&[Flag]] = &[KEYSPACE_FLAGS];
const RUN_TABLE: &[&[Flag]] = &[SERVER_FLAGS, DATA_FLAGS, RUN_FLAGS];
const FILL_TABLE: &[&[Flag]] = &[SERVER_FLAGS, DATA_FLAGS, FILL_FLAGS];
const COMPARE_TABLE: &[&[Flag]] = &[COMPARE_FLAGS];

/// Runs the program with its arguments.
///
/// # Errors
/// Fails with [`Error::Usage`] for wrong arguments, and as the subcommands do.
pub fn run(words: &[String]) -> Result<()> {
    let (name, rest) = match words.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("--help", words),
    };
    let wants_help = rest.iter().any(|word| word == "--help" || word == "-h");
    match name {
        "--help" | "-h" | "help" => print!("{}", overview_text()),
        "loads" => print!("{}", loads_text()),
        "run" | "fill" | "compare" | "keyspace" if wants_help => print!("{}", help_for(name)),
        "run" => run_load(&GivenFlags::parse(RUN_TABLE, rest)?)?,
        "fill" => fill_keyspace(&GivenFlags::parse(FILL_TABLE, rest)?)?,
        "compare" => compare::compare(&compare_options(&GivenFlags::parse(COMPARE_TABLE, rest)?)?)?,
        "keyspace" => keyspace::run(keyspace_options(&GivenFlags::parse(KEYSPACE_TABLE, rest)?)?)?,
        _ => return Err(Error::Usage(format!("unknown command {name:?}"))),
    }
    Ok(())
}

fn keyspace_options(given: &GivenFlags) -> Result<keyspace::KeyspaceOptions> {
    Ok(keyspace::KeyspaceOptions {
        keys: given.number("--keys", 1)?,
        value_bytes: given.number("--value-size", 0)?,
        threads: given.number("--threads", 1)?,
        seconds: given.number("--seconds", 0.01)?,
        rounds: given.number("--rounds", 1)?,
    })
}

fn overview_text() -> String {
    "weft-bench: loads a RESP server and measures the cost of a request\n\n\
     \x20 weft-bench fill      fill the key space, verified by DBSIZE\n\
     \x20 weft-bench run       run one load: requests/s, server CPU-µs per request, latencies\n\
     \x20 weft-bench compare   start Weft and Valkey, run a set of loads in turn, write tables\n\
     \x20 weft-bench keyspace  leases and tables without sockets, one thread against several\n\
     \x20 weft-bench loads     list the named loads, placeholders and kinds of replies\n\n\
     Each has --help. Every reply is checked; a wrong one ends the run with exit code 1.\n\n\
     \x20 weft-bench fill --keys 3000000 --value-size 512\n\
     \x20 weft-bench run --load get --value-size 512 --pipeline 16 --cores 1\n\
     \x20 weft-bench run --command 'GETRANGE {key} 0 9' --expect bulk --rate 20000\n"
        .to_string()
}

fn help_for(name: &str) -> String {
    let (purpose, table) = match name {
        "run" => ("runs one load", RUN_TABLE),
        "fill" => ("fills the key space and checks DBSIZE", FILL_TABLE),
        "keyspace" => ("measures the keyspace without sockets", KEYSPACE_TABLE),
        _ => ("compares Weft with Valkey on this machine", COMPARE_TABLE),
    };
    let mut text = format!("weft-bench {name}: {purpose}\n\n{}", help_text(table));
    if name == "compare" {
        text.push_str("\nSets:\n");
        text.extend(
            sets::SETS
                .iter()
                .map(|set| format!("  {:<26} {}\n", set.name, set.about)),
        );
    }
    text
}

fn loads_text() -> String {
    let mut text = String::from("Loads:\n");
    for load in LOADS {
        text.push_str(&format!("  {:<24} {:<62} {}\n", load.name, load.command, load.expect));
    }
    text.push_str(&format!("  {:<24} {MIXED}\n\nPlaceholders:\n", "mixed"));
    for (name, meaning) in template::PLACEHOLDERS {
        text.push_str(&format!("  {name:<14} {meaning}\n"));
    }
    text.push_str("\nScripts:\n");
    for script in scripts::SCRIPTS {
        text.push_str(&format!("  {:<15} {}\n", script.name, script.source));
    }
    text.push_str("\nKinds of replies:\n");
    for (name, meaning) in expect::KINDS {
        text.push_str(&format!("  {name:<14} {meaning}\n"));
    }
    text
}

fn address(given: &GivenFlags) -> Result<SocketAddr> {
    let host = given.value("--host").unwrap_or_default();
    let port: u16 = given.number("--port", 1)?;
    let mut found = (host, port).to_socket_addrs().context(format!("looking up {host}"))?;
    found
        .next()
        .ok_or_else(|| Error::Usage(format!("{host} has no address")))
}

fn protocol(given: &GivenFlags) -> Result<u8> {
    match given.number("--protocol", 2)? {
        protocol @ (2 | 3) => Ok(protocol),
        _ => Err(Error::Usage("--protocol must be 2 or 3".into())),
    }
}

fn seconds(given: &GivenFlags, name: &str, least: f64) -> Result<Duration> {
    let seconds = given.number(name, least)?;
    Duration::try_from_secs_f64(seconds).map_err(|_| Error::Usage(format!("{name} is too large")))
}

fn workload(given: &GivenFlags) -> Result<Workload> {
    let keys = given.number("--keys", 1)?;
    let order = match given.parse_value::<f64>("--zipf")? {
        None => KeyOrder::Uniform { keys },
        Some(exponent) if exponent > 0.0 && exponent < 20.0 => KeyOrder::Zipf(Zipf::new(keys, exponent)),
        Some(_) => return Err(Error::Usage("--zipf must be above 0 and below 20".into())),
    };
    let subject = LoadParameters {
        order,
        value_size: given.number("--value-size", 0)?,
        expire_s: given.parse_value("--expire")?,
        verify_every: given.number("--verify-every", 1)?,
    };
    match (given.value("--load"), given.value("--mix"), given.value("--command")) {
        (Some(name), None, None) | (None, Some(name), None) => Workload::from_name(name, &subject),
        (None, None, Some(command)) => {
            let expect = given.value("--expect");
            let expect = expect.ok_or_else(|| Error::Usage("--command needs --expect".into()))?;
            Workload::from_command(command, expect, &subject)
        }
        _ => Err(Error::Usage("give one of --load, --mix, --command".into())),
    }
}

/// Returns the process id of the server: as given, or from INFO if the server runs on this machine.
fn server_pid(given: &GivenFlags, address: SocketAddr) -> Result<Option<u32>> {
    if let Some(pid) = given.parse_value("--pid")? {
        return Ok(Some(pid));
    }
    if !address.ip().is_loopback() {
        return Ok(None);
    }
    let pid = ControlConnection::connect(address, 2)?.info_field("process_id")?;
    Ok(pid.and_then(|pid| pid.parse().ok()))
}

fn run_load(given: &GivenFlags) -> Result<()> {
    let address = address(given)?;
    let workload = workload(given)?;
    let rate: Option<f64> = given.parse_value("--rate")?;
    if rate.is_some_and(|rate| !(rate > 0.0 && rate < 1e9)) {
        return Err(Error::Usage("--rate must be above 0".into()));
    }
    let shape = RunParameters {
        address,
        connections: given.number("--connections", 1)?,
        threads: given.number("--threads", 1)?,
        pipeline: given.number("--pipeline", 1)?,
        rate,
        warmup: seconds(given, "--warmup", 0.0)?,
        window: seconds(given, "--seconds", 0.001)?,
        drain: seconds(given, "--drain", 0.0)?,
        seed: given.number("--seed", 0)?,
        first_new_key: given.number("--keys", 1)?,
        subscribers: None,
        protocol: protocol(given)?,
        tls: None,
        cores: given.numbers("--cores")?,
        server_pid: server_pid(given, address)?,
    };
    if workload.uses_scripts() {
        scripts::load_all(&mut ControlConnection::connect(address, 2)?)?;
    }
    let measurement = run::measure(&shape, &workload)?;
    if given.is_given("--json") {
        println!("{:#}", report::measurement_json(&measurement));
    } else {
        print!("{}", report::measurement_text(&measurement));
    }
    Ok(())
}

fn fill_keyspace(given: &GivenFlags) -> Result<()> {
    let address = address(given)?;
    let command = match given.value("--load") {
        Some(name) => load::load_by_name(name)?.fill,
        None => given.value("--command").unwrap_or_default(),
    };
    let keys = given.number("--keys", 1)?;
    let filling = FillParameters {
        command,
        keys,
        value_size: given.number("--value-size", 0)?,
        ttl_s: given.parse_value("--ttl")?,
        connections: given.number("--connections", 1)?,
        pipeline: given.number("--pipeline", 1)?,
        cores: given.numbers("--cores")?,
    };
    let mut control = ControlConnection::connect(address, protocol(given)?)?;
    let before = control.key_count()?;
    let time = fill::fill(address, &filling)?;
    let after = control.key_count()?;
    // Keys that existed before may be among the filled ones.
    if after < keys || after > before + keys {
        return Err(Error::Server(format!(
            "DBSIZE is {after} after filling {keys} keys (was {before})"
        )));
    }
    let summary = json!({ "keys": keys, "dbsize": after, "seconds": time.as_secs_f64() });
    println!("{summary}");
    Ok(())
}

/// Returns a command line as text that a shell reads as the same arguments.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./,:=+@%".contains(character);
    let quote = |word: String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.map(quote).collect::<Vec<String>>().join(" ")
}

fn compare_options(given: &GivenFlags) -> Result<CompareOptions> {
    let words = |name| -> Vec<String> {
        given
            .value(name)
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_string)
            .collect()
    };
    let weft = given
        .value("--weft")
        .ok_or_else(|| Error::Usage("--weft is needed".into()))?;
    if given.is_given("--valkey-huge-pages") && !given.is_given("--preload") {
        return Err(Error::Usage(
            "--valkey-huge-pages needs --preload: its jemalloc reads MALLOC_CONF".into(),
        ));
    }
    Ok(CompareOptions {
        weft: PathBuf::from(weft),
        valkey: given.value("--valkey").map(PathBuf::from),
        preload: given.value("--preload").map(PathBuf::from),
        valkey_tls: given.value("--valkey-tls").map(PathBuf::from),
        valkey_huge_pages: given.is_given("--valkey-huge-pages"),
        weft_args: words("--weft-args"),
        valkey_args: words("--valkey-args"),
        sets: sets::sets_by_name(given.value("--set").unwrap_or_default())?,
        rounds: given
            .value("--rounds")
            .map(|_| given.number("--rounds", 1))
            .transpose()?,
        window: given
            .value("--seconds")
            .map(|_| seconds(given, "--seconds", 0.001))
            .transpose()?,
        warmup: given
            .value("--warmup")
            .map(|_| seconds(given, "--warmup", 0.0))
            .transpose()?,
        keys: given.value("--keys").map(|_| given.number("--keys", 1)).transpose()?,
        connections: given.number("--connections", 1)?,
        server_cores: given.numbers("--server-cores")?,
        client_cores: given.numbers("--client-cores")?,
        out_dir: PathBuf::from(given.value("--out-dir").unwrap_or_default()),
        command_line: command_line(std::env::args()),
    })
}
