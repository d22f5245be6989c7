//! The command line: subcommands, their flags, their help, and their output.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::churn::{self, ChurnOptions};
use crate::compare::{self, CompareOptions, DataSize};
use crate::control::ControlConnection;
use crate::draw::{KeyOrder, Zipf};
use crate::error::{Error, ErrorContext, Result};
use crate::eviction::{self, EvictionOptions};
use crate::expect;
use crate::fill::{self, FillParameters};
use crate::flag_tables;
use crate::flags::{GivenFlags, help_text};
use crate::html_report::{self, ReportOptions};
use crate::interleave::{self, InterleaveOptions};
use crate::interruption::Interruption;
use crate::keyspace;
use crate::load::{self, LOADS, LoadParameters, MIXED, Workload};
use crate::process;
use crate::report;
use crate::run::{self, RunParameters};
use crate::scripts;
use crate::sets;
use crate::template;

#[cfg(test)]
mod tests;

/// The number of keys of the largest key space of `report`, to which `--keys` scales all others.
const REPORT_KEYS: u64 = 3_000_000;

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
        "run" | "fill" | "compare" | "report" | "churn" | "eviction" | "keyspace" | "lab" if wants_help => {
            print!("{}", help_for(name));
        }
        "run" => run_load(&GivenFlags::parse(flag_tables::RUN, rest)?)?,
        "fill" => fill_keyspace(&GivenFlags::parse(flag_tables::FILL, rest)?)?,
        "compare" => {
            let mut options = compare_options(&GivenFlags::parse(flag_tables::COMPARE, rest)?)?;
            options.interruption = Interruption::on_signals()?;
            compare::compare(&options)?;
        }
        "report" => {
            let mut options = report_options(&GivenFlags::parse(flag_tables::REPORT, rest)?)?;
            options.compare.interruption = Interruption::on_signals()?;
            html_report::run(&options)?;
        }
        "churn" => {
            let mut options = churn_options(&GivenFlags::parse(flag_tables::CHURN, rest)?)?;
            options.compare.interruption = Interruption::on_signals()?;
            churn::run(&options)?;
        }
        "eviction" => {
            let mut options = eviction_options(&GivenFlags::parse(flag_tables::EVICTION, rest)?)?;
            options.compare.interruption = Interruption::on_signals()?;
            eviction::run(&options)?;
        }
        "lab" => run_experiment(rest)?,
        "keyspace" => keyspace::run(keyspace_options(&GivenFlags::parse(flag_tables::KEYSPACE, rest)?)?)?,
        _ => return Err(Error::Usage(format!("unknown command {name:?}"))),
    }
    Ok(())
}

/// Runs an experiment of `lab`.
fn run_experiment(words: &[String]) -> Result<()> {
    let (name, rest) = words
        .split_first()
        .ok_or_else(|| Error::Usage("lab needs the name of an experiment".into()))?;
    match name.as_str() {
        "interleave" => {
            let mut options = interleave_options(&GivenFlags::parse(flag_tables::INTERLEAVE, rest)?)?;
            options.interruption = Interruption::on_signals()?;
            interleave::run(&options)
        }
        _ => Err(Error::Usage(format!("unknown experiment {name:?}"))),
    }
}

fn interleave_options(given: &GivenFlags) -> Result<InterleaveOptions> {
    Ok(InterleaveOptions {
        lists: given.number("--lists", 1)?,
        nodes: given.number("--nodes", 1)?,
        work: given.number("--work", 0)?,
        rounds: given.number("--rounds", 1)?,
        seed: given.number("--seed", 0)?,
        core: given.parse_value("--core")?,
        command_line: command_line(std::env::args()),
        interruption: Interruption::default(),
    })
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
     \x20 weft-bench report    start Weft and Valkey, run the published loads in turn, write an HTML page\n\
     \x20 weft-bench churn     memory of Weft and Valkey while their data change, and after they have shrunk\n\
     \x20 weft-bench eviction  hit rates of Weft and Valkey as caches, and latencies of writes that evict\n\
     \x20 weft-bench lab       experiments; `lab interleave` shows why prefetching works\n\
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
        "run" => ("runs one load", flag_tables::RUN),
        "fill" => ("fills the key space and checks DBSIZE", flag_tables::FILL),
        "keyspace" => ("measures the keyspace without sockets", flag_tables::KEYSPACE),
        "report" => ("measures the published loads and writes a page", flag_tables::REPORT),
        "churn" => (
            "measures the memory of servers whose data change all the time",
            flag_tables::CHURN,
        ),
        "eviction" => (
            "measures the hit rates of servers that evict keys",
            flag_tables::EVICTION,
        ),
        "lab" => (
            "walks along linked lists with and without prefetching",
            flag_tables::INTERLEAVE,
        ),
        _ => ("compares Weft with Valkey on this machine", flag_tables::COMPARE),
    };
    let command = if name == "lab" { "lab interleave" } else { name };
    let mut text = format!("weft-bench {command}: {purpose}\n\n{}", help_text(table));
    if name == "report" {
        text.push_str("\nParts:\n");
        let parts = sets::PART_NAMES.iter().zip(sets::PUBLISHED.comparisons);
        text.extend(parts.map(|(name, comparison)| format!("  {name:<26} {}\n", comparison.title)));
        text.push_str(
            "\nCtrl-C stops the servers, and writes the page with the rows that are finished.\n\
             A short run: --keys 100000 --seconds 0.3 --rounds 1\n",
        );
    }
    if ["compare", "churn", "eviction"].contains(&name) {
        text.push_str("\nCtrl-C stops the servers, and writes the files with what was measured until then.\n");
    }
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
        interruption: Interruption::default(),
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
        interruption: Interruption::default(),
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

/// Returns the length of time of a flag that may be absent.
fn optional_seconds(given: &GivenFlags, name: &str, least: f64) -> Result<Option<Duration>> {
    given.value(name).map(|_| seconds(given, name, least)).transpose()
}

/// Returns the options of a command that starts servers and writes its results to a folder, with the defaults of the
/// options that it does not have.
fn sides_and_folder(given: &GivenFlags) -> Result<CompareOptions> {
    Ok(CompareOptions {
        out_dir: PathBuf::from(given.value("--out-dir").unwrap_or_default()),
        ..sides_options(given)?
    })
}

/// Returns the options that all commands have in common which start servers, with the defaults of the others.
fn sides_options(given: &GivenFlags) -> Result<CompareOptions> {
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
    Ok(CompareOptions {
        weft: PathBuf::from(weft),
        valkey: given.value("--valkey").map(PathBuf::from),
        preload: given.value("--preload").map(PathBuf::from),
        valkey_tls: None,
        valkey_huge_pages: false,
        weft_args: words("--weft-args"),
        valkey_args: words("--valkey-args"),
        sets: Vec::new(),
        rounds: None,
        window: None,
        warmup: None,
        data_size: DataSize::AsInSets,
        settle_interval: fill::SETTLE_INTERVAL,
        workers: compared_workers(process::processor_count()),
        connections: given.number("--connections", 1)?,
        server_cores: given.numbers("--server-cores")?,
        client_cores: given.numbers("--client-cores")?,
        client_threads: 1,
        out_dir: PathBuf::new(),
        command_line: command_line(std::env::args()),
        interruption: Interruption::default(),
    })
}

/// Returns the numbers of workers that are compared on a machine with this number of CPUs: at least 1 and 2.
fn compared_workers(processors: usize) -> Vec<usize> {
    let most = processors.max(2);
    [1, 2, 4, 8, 16]
        .into_iter()
        .filter(|workers| *workers <= most)
        .collect()
}

fn compare_options(given: &GivenFlags) -> Result<CompareOptions> {
    if given.is_given("--valkey-huge-pages") && !given.is_given("--preload") {
        return Err(Error::Usage(
            "--valkey-huge-pages needs --preload: its jemalloc reads MALLOC_CONF".into(),
        ));
    }
    let keys = given.optional_number("--keys", 1)?;
    Ok(CompareOptions {
        valkey_tls: given.value("--valkey-tls").map(PathBuf::from),
        valkey_huge_pages: given.is_given("--valkey-huge-pages"),
        sets: sets::sets_by_name(given.value("--set").unwrap_or_default())?,
        rounds: given.optional_number("--rounds", 1)?,
        window: optional_seconds(given, "--seconds", 0.001)?,
        warmup: optional_seconds(given, "--warmup", 0.0)?,
        data_size: keys.map_or(DataSize::AsInSets, DataSize::Keys),
        ..sides_and_folder(given)?
    })
}

fn report_options(given: &GivenFlags) -> Result<ReportOptions> {
    let processors = process::processor_count();
    let window = seconds(given, "--seconds", 0.001)?;
    // A window of a second or more has the warm-up and the settling time of the set, a shorter one has less of both. A
    // run with short windows must be short, so settling, which takes several intervals, is reduced further.
    let share = window.as_secs_f64().min(1.0);
    let warmup = optional_seconds(given, "--warmup", 0.0)?;
    let warmup = warmup.unwrap_or(Duration::from_secs_f64(sets::PUBLISHED.warmup).mul_f64(share));
    let workers = match given.numbers("--workers")? {
        none if none.is_empty() => compared_workers(processors),
        workers => workers,
    };
    if let Some(unknown) = workers.iter().find(|number| !compared_workers(16).contains(number)) {
        return Err(Error::Usage(format!(
            "--workers: {unknown} is none of 1, 2, 4, 8 and 16"
        )));
    }
    let client_threads = given.optional_number("--client-threads", 1)?;
    Ok(ReportOptions {
        compare: CompareOptions {
            rounds: Some(given.number("--rounds", 1)?),
            window: Some(window),
            warmup: Some(warmup),
            data_size: DataSize::Scaled {
                keys: given.number("--keys", 1)?,
                full: REPORT_KEYS,
            },
            settle_interval: fill::SETTLE_INTERVAL.mul_f64(share * share),
            workers,
            client_threads: client_threads.unwrap_or((processors / 2).max(1)),
            ..sides_options(given)?
        },
        parts: sets::parts_by_name(given.value("--parts").unwrap_or_default())?,
        page: PathBuf::from(given.value("--out").unwrap_or_default()),
        figure: given.value("--figure").map(PathBuf::from),
    })
}

fn churn_options(given: &GivenFlags) -> Result<ChurnOptions> {
    let flush_interval = seconds(given, "--flush-every", 0.0)?;
    let options = ChurnOptions {
        servers: given.list("--servers")?,
        max_memory: given.bytes("--maxmemory", 1 << 20)?,
        duration: seconds(given, "--seconds", 0.1)?,
        flush_interval: Some(flush_interval).filter(|interval| !interval.is_zero()),
        settle: seconds(given, "--settle", 0.0)?,
        keys: given.optional_number("--keys", 1)?,
        pipeline: given.number("--pipeline", 2)?,
        seed: given.number("--seed", 0)?,
        compare: sides_and_folder(given)?,
    };
    options.check()?;
    Ok(options)
}

fn eviction_options(given: &GivenFlags) -> Result<EvictionOptions> {
    let options = EvictionOptions {
        policies: given.list("--policies")?,
        exponents: given.list("--exponents")?,
        fit: given.number("--fit", 100)?,
        value_size: given.number("--value-size", 0)?,
        samples: given.number("--samples", 1)?,
        rate: given.number("--rate", 1.0)?,
        pipeline: given.number("--pipeline", 1)?,
        warmup: seconds(given, "--warmup", 0.0)?,
        window: seconds(given, "--seconds", 0.001)?,
        write_rate: given.number("--write-rate", 1.0)?,
        rounds: given.number("--rounds", 1)?,
        seed: given.number("--seed", 0)?,
        compare: sides_and_folder(given)?,
    };
    options.check()?;
    Ok(options)
}
