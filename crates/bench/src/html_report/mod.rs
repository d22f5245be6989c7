//! `report`: the published loads on Weft and Valkey in turn, and the results as one HTML page.
//!
//! Whatever ends the run, a signal or a failure, the servers are stopped, and the page is written with the rows that
//! were finished.

mod markup;
mod page;
mod plots;
mod scaling;

use std::fs;
use std::path::{Path, PathBuf};

use crate::compare::{self, CompareOptions};
use crate::comparison::ComparisonRunner;
use crate::error::{Error, ErrorContext, Result};
use crate::progress::{self, Progress};
use crate::report::Report;
use crate::sets::{Comparison, PUBLISHED};
use page::PageFacts;

#[cfg(test)]
mod tests;

/// The options of `report`.
#[derive(Debug)]
pub struct ReportOptions {
    /// The servers and the measurements. The sets are not used.
    pub compare: CompareOptions,
    /// The comparisons to run.
    pub parts: Vec<&'static Comparison>,
    /// The file for the page.
    pub page: PathBuf,
    /// The file for a plot of the CPU time per request, if one is requested.
    pub figure: Option<PathBuf>,
}

/// Runs the comparisons and writes the page.
///
/// # Errors
/// Fails if a binary is missing, a server fails, a reply is wrong, the run is interrupted, or a file cannot be written.
/// Rows that were finished before a failure or an interruption are written all the same.
pub fn run(options: &ReportOptions) -> Result<()> {
    options.compare.check_files()?;
    for path in [Some(&options.page), options.figure.as_ref()].into_iter().flatten() {
        check_folder(path)?;
    }
    let mut facts = facts(&options.compare);
    let mut report = options.compare.new_report();
    let progress = Progress::bars();
    let outcome = run_parts(options, &progress, &mut report);
    let outcome = options.compare.interruption.explain(outcome);
    progress.finish();
    facts.early_end = compare::early_end(&outcome);
    finish(options, &report, &facts, outcome)
}

fn run_parts(options: &ReportOptions, progress: &Progress, report: &mut Report) -> Result<()> {
    let runner = |&part: &&'static Comparison| ComparisonRunner::new(&options.compare, &PUBLISHED, part, progress);
    let runners = options
        .parts
        .iter()
        .map(runner)
        .collect::<Result<Vec<ComparisonRunner<'_>>>>()?;
    progress.begin(runners.iter().map(ComparisonRunner::measurements).sum());
    for (part, runner) in options.parts.iter().zip(&runners) {
        progress.begin_part(part.title, runner.measurements());
        runner.run(report)?;
    }
    Ok(())
}

/// Writes the files if the report has results. Returns the outcome of the run, or else that of writing.
fn finish(options: &ReportOptions, report: &Report, facts: &PageFacts, outcome: Result<()>) -> Result<()> {
    match report.has_rows() {
        true => compare::first_error(outcome, write_files(options, report, facts)),
        false => outcome,
    }
}

fn write_files(options: &ReportOptions, report: &Report, facts: &PageFacts) -> Result<()> {
    write_file(&options.page, &page::page(report, facts)?)?;
    if let Some(path) = &options.figure {
        write_file(path, &page::figure(report)?)?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(format!("writing {}", path.display()))?;
    progress::print_result(&format!("{} is written\n", path.display()));
    Ok(())
}

/// Checks before a long run that the folder of a file exists.
fn check_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            let text = format!("folder {} does not exist", folder.display());
            Err(Error::Usage(text))
        }
        _ => Ok(()),
    }
}

fn facts(options: &CompareOptions) -> PageFacts {
    let window_s = options.window.map_or(PUBLISHED.seconds, |window| window.as_secs_f64());
    let warmup_s = options.warmup.map_or(PUBLISHED.warmup, |warmup| warmup.as_secs_f64());
    PageFacts {
        pinning: format!(
            "{}, unless a section says that nothing is pinned",
            options.pinning_text()
        ),
        rounds: options.rounds.unwrap_or(PUBLISHED.rounds),
        window_s,
        warmup_s,
        early_end: None,
    }
}
