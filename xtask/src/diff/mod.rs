//! `cargo xtask diff`: sends the same commands to Weft and to a real Valkey, and compares the replies byte for byte.

mod case;
mod commands;
mod connection;
mod exceptions;
mod generate;
mod grammar;
mod info;
mod leeway;
mod metadata;
mod modules;
mod normalise;
mod pair;
mod permissions;
mod planted;
mod reply;
mod run;
mod self_check;
mod themes;
mod vocabulary;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::{oracle, workspace};
use case::CaseFile;
use exceptions::Exceptions;
use pair::{ComparedServers, ServerBinaries};

const VALUED: &[&str] = &[
    "weft",
    "weft-args",
    "valkey",
    "filter",
    "seed",
    "seconds",
    "show",
    "only",
    "sequences",
];
const FLAGS: &[&str] = &["no-cases", "self-check", "trace"];
const DEFAULT_SECONDS: u64 = 20;
/// On few cores the self-tuning would keep one worker active, and nothing would happen in parallel.
const DEFAULT_WEFT_ARGUMENTS: &str = "--io-threads 4 --io-threads-always-active yes";
const DEFAULT_SHOWN: usize = 20;
/// Sequences for the module API: about half a minute with a server without optimisation.
const DEFAULT_MODULE_SEQUENCES: u64 = 2000;
/// The seed of these sequences in a run that compares everything: they are the same each time. About one sequence in a
/// thousand differs for a reason that is not known yet, so `--only modules` draws others each time.
const DEFAULT_MODULE_SEED: u64 = 1;

/// The parameters of a run.
struct DiffPlan {
    binaries: ServerBinaries,
    filter: String,
    runs_cases: bool,
    trace: bool,
    seed: u64,
    seconds: u64,
    max_shown: usize,
    /// The number of sequences for the module API.
    module_sequences: u64,
    /// The seed of the first of them.
    module_seed: u64,
}

/// The results of a run.
#[derive(Default)]
struct DiffTally {
    sections: usize,
    compared: usize,
    differing_sections: usize,
    differences: usize,
    generated: usize,
    /// The subjects of generated sequences.
    subjects: usize,
    /// Generated sequences for which the servers differ, at most one for each subject.
    differing_sequences: Vec<generate::DifferingSequence>,
    stale_exceptions: Vec<usize>,
    /// The section runs and generated commands that are skipped because Weft lacks a command, each with the reason.
    skipped: Vec<String>,
    /// Commands that only one of the servers has, without an exception.
    unknown_commands: Vec<String>,
}

/// Runs the case files, then generated sequences. The last line is the count of results.
///
/// # Errors
/// Fails if the servers differ, Weft lacks a command without an exception, an accepted difference has disappeared, or
/// nothing matches the filter.
pub fn main(words: &[String]) -> Result<(), String> {
    run_all(words).map(|_| ())
}

/// Runs the suite. Returns what is skipped, each with the reason.
///
/// # Errors
/// Fails like [`main`].
pub fn run_all(words: &[String]) -> Result<Vec<String>, String> {
    let options = Options::parse(words, VALUED, FLAGS)?;
    if options.is_given("self-check") {
        return self_check::run(&valkey_path(&options)?, !options.is_given("no-cases")).map(|()| Vec::new());
    }
    let only = options.value("only");
    if only.is_some_and(|only| only != "modules") {
        return Err("--only has one value: modules".to_string());
    }
    let plan = DiffPlan {
        binaries: ServerBinaries {
            weft: weft_path(&options)?,
            weft_arguments: split_words(options.value("weft-args").unwrap_or(DEFAULT_WEFT_ARGUMENTS)),
            valkey: valkey_path(&options)?,
        },
        filter: options.value("filter").unwrap_or_default().to_string(),
        trace: options.is_given("trace"),
        runs_cases: !options.is_given("no-cases"),
        seed: options.number("seed", fastrand::u64(1..1 << 32))?,
        seconds: options.number("seconds", DEFAULT_SECONDS)?,
        max_shown: options.number("show", DEFAULT_SHOWN)?,
        module_sequences: options.number("sequences", DEFAULT_MODULE_SEQUENCES)?,
        module_seed: match only {
            None => options.number("seed", DEFAULT_MODULE_SEED)?,
            Some(_) => options.number("seed", fastrand::u64(1..1 << 32))?,
        },
    };
    if only.is_some() {
        return run_modules(&plan).map(|()| Vec::new());
    }
    // A filter names something else, unless the option above is given.
    if plan.filter.is_empty() && plan.seconds > 0 {
        run_modules(&plan)?;
    }
    report_verdict(run_plan(&plan, &read_exceptions()?)?)
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// Returns the path in `--weft`, or the newest build in `target`.
fn weft_path(options: &Options) -> Result<PathBuf, String> {
    if let Some(path) = options.value("weft") {
        return Ok(PathBuf::from(path));
    }
    let builds = ["release", "debug"].map(|profile| {
        let path = workspace::root().join("target").join(profile).join("weft-server");
        let built = fs::metadata(&path).and_then(|data| data.modified()).ok();
        (built, path)
    });
    builds
        .into_iter()
        .filter(|(built, _)| built.is_some())
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| "no weft-server in target; build it or give its path with --weft".to_string())
}

fn valkey_path(options: &Options) -> Result<PathBuf, String> {
    match options.value("valkey") {
        Some(path) => Ok(PathBuf::from(path)),
        None => Ok(oracle::ensure_installed()?.server),
    }
}

fn run_plan(plan: &DiffPlan, exceptions: &Exceptions) -> Result<DiffTally, String> {
    let mut tally = DiffTally::default();
    let mut shared = ComparedServers::start(&plan.binaries, &[])?;
    let names = shared.command_names()?;
    tally.unknown_commands = commands::unknown_commands(&names.weft, &names.valkey, exceptions);
    if plan.runs_cases {
        run_cases(plan, &mut shared, exceptions, &mut tally)?;
    }
    drop(shared);
    if plan.seconds > 0 {
        let duration = Duration::from_secs(plan.seconds);
        println!("generated sequences for {} s, seed {}", plan.seconds, plan.seed);
        let outcome = generate::run(&plan.binaries, plan.seed, duration, &plan.filter, exceptions)?;
        tally.generated = outcome.commands;
        tally.subjects = outcome.subjects.len();
        tally.differing_sequences = outcome.differing_sequences;
        let skip = |command: String| {
            let reason = exceptions.reason_without_command(&command).unwrap_or("Weft lacks it");
            format!("generated {command}: {reason}")
        };
        tally.skipped.extend(outcome.missing_commands.into_iter().map(skip));
    }
    if tally.sections + tally.subjects + tally.skipped.len() == 0 {
        return Err(format!("nothing matches --filter '{}'", plan.filter));
    }
    if plan.filter.is_empty() && plan.runs_cases && plan.seconds > 0 {
        tally.stale_exceptions = exceptions.stale_lines();
    }
    Ok(tally)
}

/// Compares the module API.
fn run_modules(plan: &DiffPlan) -> Result<(), String> {
    println!(
        "{} sequences for the module API, seed {}",
        plan.module_sequences, plan.module_seed
    );
    let outcome = modules::run(&modules::ModulePlan {
        binaries: &plan.binaries,
        seed: plan.module_seed,
        sequences: plan.module_sequences,
        filter: &plan.filter,
        max_shown: plan.max_shown,
    })?;
    println!(
        "{} sequences with {} commands and {} calls of the module API: {} differ",
        outcome.sequences,
        outcome.commands,
        outcome.calls,
        outcome.differing.len()
    );
    match outcome.differing.len() {
        0 => Ok(()),
        count => Err(format!("{count} differences of the module API")),
    }
}

/// Prints the results. Returns what is skipped.
fn report_verdict(tally: DiffTally) -> Result<Vec<String>, String> {
    for found in &tally.differing_sequences {
        println!("{found}");
    }
    for line in &tally.stale_exceptions {
        println!("tests/diff/exceptions.txt:{line}: the servers no longer differ; remove the line");
    }
    for command in &tally.unknown_commands {
        println!("{command}");
    }
    println!(
        "{} section runs, {} replies compared, {} generated commands about {} subjects",
        tally.sections, tally.compared, tally.generated, tally.subjects
    );
    if !tally.skipped.is_empty() {
        println!("skipped:\n  {}", tally.skipped.join("\n  "));
    }
    let failed_sections = tally.differing_sections + tally.differing_sequences.len();
    let failed = failed_sections + tally.stale_exceptions.len() + tally.unknown_commands.len();
    let passed = tally.sections + tally.subjects - failed_sections;
    println!("{passed} passed, {failed} failed, {} skipped", tally.skipped.len());
    if failed == 0 {
        return Ok(tally.skipped);
    }
    Err(format!(
        "{} differences in {} section runs, {} stale exceptions, {} generated sequences, {} unknown commands",
        tally.differences,
        tally.differing_sections,
        tally.stale_exceptions.len(),
        tally.differing_sequences.len(),
        tally.unknown_commands.len()
    ))
}

fn run_cases(
    plan: &DiffPlan,
    shared: &mut ComparedServers,
    exceptions: &Exceptions,
    tally: &mut DiffTally,
) -> Result<(), String> {
    for file in case_files()? {
        let start = Instant::now();
        let before = (tally.sections, tally.differing_sections);
        if file.server_arguments.is_empty() {
            run_file(plan, &file, shared, exceptions, tally)?;
        } else if selected_sections(plan, &file).next().is_some() {
            let mut own = ComparedServers::start(&plan.binaries, &file.server_arguments)?;
            run_file(plan, &file, &mut own, exceptions, tally)?;
        }
        let runs = tally.sections - before.0;
        if runs > 0 {
            let failed = tally.differing_sections - before.1;
            let seconds = start.elapsed().as_secs_f64();
            println!("{:28} {runs:4} runs {failed:4} differ {seconds:6.1} s", file.name);
        }
    }
    Ok(())
}

/// The sections that match the filter, with each of their protocols.
fn selected_sections<'a>(
    plan: &'a DiffPlan,
    file: &'a CaseFile,
) -> impl Iterator<Item = (&'a case::CaseSection, u8)> + 'a {
    let wanted =
        |section: &&case::CaseSection| format!("{} {}", file.name, section.title).contains(plan.filter.as_str());
    file.sections.iter().filter(wanted).flat_map(|section| {
        let protocols = section.protocols.iter();
        protocols.map(move |protocol| (section, *protocol))
    })
}

fn run_file(
    plan: &DiffPlan,
    file: &CaseFile,
    servers: &mut ComparedServers,
    exceptions: &Exceptions,
    tally: &mut DiffTally,
) -> Result<(), String> {
    for (section, protocol) in selected_sections(plan, file) {
        let place = format!("{}: {} (RESP{protocol})", file.name, section.title);
        let lacking = servers
            .missing_commands(&section.required_commands)
            .map_err(|why| format!("{place}: {why}"))?;
        if !lacking.is_empty() {
            tally.skipped.push(format!("{place}: Weft lacks {}", lacking.join(" ")));
            continue;
        }
        let mut report = run::run_section(servers, section, protocol, plan.trace, exceptions)
            .map_err(|why| format!("{place}: {why}{}", servers.exit_report()))?;
        report.differences.retain(|found| {
            let place = [file.name.as_str(), &section.title, &found.command];
            !exceptions.accepts_reply(place, &found.weft, &found.valkey)
        });
        tally.sections += 1;
        tally.compared += report.compared;
        tally.differences += report.differences.len();
        let Some(first) = report.differences.first() else {
            continue;
        };
        tally.differing_sections += 1;
        if tally.differing_sections <= plan.max_shown {
            println!("{place}: {} differences, the first:", report.differences.len());
            println!("  tests/diff/{}:{}: {}", file.name, first.line, first.command);
            println!("    weft:   {}\n    valkey: {}", first.weft, first.valkey);
        }
    }
    Ok(())
}

fn case_files() -> Result<Vec<CaseFile>, String> {
    let directory = workspace::root().join("tests/diff");
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "case"));
    paths.sort();
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        case::parse(&name, &text)
    };
    paths.iter().map(read).collect()
}

fn read_exceptions() -> Result<Exceptions, String> {
    let path = workspace::root().join("tests/diff/exceptions.txt");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Exceptions::parse(&text)
}

#[cfg(test)]
mod tests {
    //! Tests of reading the case files; running them needs servers.

    #[test]
    fn every_case_file_can_be_read_and_compares_something() {
        let files = super::case_files().unwrap();
        assert!(!files.is_empty());
        for file in files {
            assert!(!file.sections.is_empty(), "{}", file.name);
            for section in file.sections {
                assert!(!section.steps.is_empty(), "{}: {}", file.name, section.title);
            }
        }
    }

    #[test]
    fn the_exception_list_can_be_read() {
        super::read_exceptions().unwrap();
    }
}
