//! Checks that the suite detects differences: Valkey equals itself, and every planted difference is found.
//!
//! Differences are planted in three ways: a server with another parameter, whole lists of commands and of exceptions,
//! and single replies that are altered (see [`planted`](super::planted)). The last kind covers every leeway.

use std::path::Path;

use super::exceptions::Exceptions;
use super::pair::{ComparedServers, ServerBinaries};
use super::{DiffPlan, commands, planted, read_exceptions, run_plan};

/// The planted difference of a server: fewer databases.
const PLANTED: [&str; 2] = ["--databases", "4"];

/// Compares Valkey with itself, in cases too if `runs_cases`, then with altered servers and replies.
///
/// # Errors
/// Fails if Valkey differs from itself, or if a planted difference is not found or not minimised.
pub fn run(valkey: &Path, runs_cases: bool) -> Result<(), String> {
    let exceptions = read_exceptions()?;
    let equal = run_plan(&plan(valkey, &[], runs_cases, ""), &exceptions)?;
    if equal.differences > 0 || !equal.differing_sequences.is_empty() {
        for found in &equal.differing_sequences {
            println!("{found}");
        }
        return Err("Valkey differs from itself: these cases are not deterministic".to_string());
    }
    println!(
        "Valkey equals itself in {} replies and {} generated commands",
        equal.compared, equal.generated
    );
    let mut found = vec![
        check_cases(valkey, &exceptions)?,
        check_generator(valkey, &exceptions)?,
        check_filter(valkey, &exceptions)?,
    ];
    let mut servers = ComparedServers::start(&plan(valkey, &[], false, "").binaries, &[])?;
    found.push(check_commands(&mut servers)?);
    found.extend(planted::check_all(&mut servers, &exceptions)?);
    println!("{} planted differences are found:", found.len());
    for name in &found {
        println!("  {name}");
    }
    println!("{} passed, 0 failed, 0 skipped", found.len());
    Ok(())
}

fn check_cases(valkey: &Path, exceptions: &Exceptions) -> Result<String, String> {
    let cases = run_plan(
        &DiffPlan {
            seconds: 0,
            filter: "connection.case SELECT".to_string(),
            ..plan(valkey, &PLANTED, true, "")
        },
        exceptions,
    )?;
    match cases.differences {
        0 => Err("the cases do not detect a server with fewer databases".to_string()),
        _ => Ok("cases: a server with fewer databases".to_string()),
    }
}

fn check_generator(valkey: &Path, exceptions: &Exceptions) -> Result<String, String> {
    let generated = run_plan(&plan(valkey, &PLANTED, false, "SELECT"), exceptions)?;
    let Some(found) = generated.differing_sequences.first() else {
        return Err("the generator does not detect a server with fewer databases".to_string());
    };
    println!("{found}");
    match found.length() {
        1 => Ok("generated commands: a server with fewer databases, shrunk to one command".to_string()),
        _ => Err("the difference needs one command, but was not shrunk to it".to_string()),
    }
}

fn check_filter(valkey: &Path, exceptions: &Exceptions) -> Result<String, String> {
    match run_plan(&plan(valkey, &[], true, "no such section"), exceptions) {
        Err(why) if why.starts_with("nothing matches --filter") => Ok("filter: nothing matches it".to_string()),
        _ => Err("a filter that matches nothing does not fail".to_string()),
    }
}

fn check_commands(servers: &mut ComparedServers) -> Result<String, String> {
    let names = servers.command_names()?;
    let mut fewer = names.weft.clone();
    if !fewer.remove("cluster|getslotmigrations") {
        return Err("Valkey has no subcommands in its list of commands".to_string());
    }
    let unknown = commands::unknown_commands(&fewer, &names.valkey, &Exceptions::default());
    match unknown.len() {
        1 => Ok("commands: one is missing".to_string()),
        _ => Err(format!("a missing command is not detected: {unknown:?}")),
    }
}

fn plan(valkey: &Path, altered: &[&str], cases: bool, filter: &str) -> DiffPlan {
    DiffPlan {
        binaries: ServerBinaries {
            weft: valkey.to_path_buf(),
            weft_arguments: altered.iter().map(ToString::to_string).collect(),
            valkey: valkey.to_path_buf(),
        },
        filter: filter.to_string(),
        runs_cases: cases,
        trace: false,
        seed: 1,
        seconds: 5,
        max_shown: 10,
        module_sequences: 0,
        module_seed: 0,
    }
}
