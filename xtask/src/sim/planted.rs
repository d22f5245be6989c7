//! Planted faults: patches that break the server, each of which the simulation must find.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::seeds::{self, SeedRuns, TimeLimit};
use crate::workspace;

/// The patches, relative to the root. The lines before the first `diff` describe the fault. A line that begins with
/// [`ENVIRONMENT`] sets a variable for its runs: a fault of a cluster is looked for in clusters.
const PATCHES: &str = "tests/sim/planted";
/// The work tree in which the patches are applied, and its build directory. It is not that of the root: cargo takes
/// crates at the same place in two work trees for one.
const TREE: &str = "target/sim-planted/tree";
const TARGET: &str = "target/sim-planted/build";
/// The beginning of a line of a patch that sets a variable.
const ENVIRONMENT: &str = "Environment: ";
/// The first seed: fixed, so that the effort is comparable.
const FIRST_SEED: u64 = 1;

/// Applies each named patch (`all`: every one), and runs seeds until one fails that passes without the patch, or so
/// much processor time is used.
///
/// # Errors
/// If a fault is not found, or a patch cannot be applied or built.
pub fn run(names: &str, jobs: usize, limit: Duration) -> Result<(), String> {
    let patches = select(names)?;
    let tree = workspace::root().join(TREE);
    make_tree(&tree)?;
    let intact = super::build(&tree, Path::new(TARGET))?;
    let kept = intact.with_file_name("weft-sim-intact");
    fs::copy(&intact, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let intact = kept;
    let mut missed = Vec::new();
    println!("| planted fault | found after | seeds |\n|---|---:|---:|");
    for patch in &patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        git(&tree, &["apply", &patch.to_string_lossy()])?;
        let program = super::build(&tree, Path::new(TARGET));
        git(&tree, &["checkout", "--quiet", "--", "."])?;
        let search = Search {
            program: program?,
            intact: intact.clone(),
            jobs,
            limit,
            environment: environment_of(patch)?,
        };
        let (elapsed, seeds, is_found) = search.run(&name)?;
        if is_found {
            println!("| `{name}` | {:.1} s | {seeds} |", elapsed.as_secs_f64());
        } else {
            println!("| `{name}` | not in {} s | {seeds} |", limit.as_secs());
            missed.push(name);
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!("not found: {}", missed.join(", ")))
}

/// The search for a planted fault.
struct Search {
    /// The program with the fault.
    program: PathBuf,
    /// The program without it.
    intact: PathBuf,
    jobs: usize,
    limit: Duration,
    environment: Vec<(String, String)>,
}

impl Search {
    /// Tries seeds until one fails that passes without the fault. Returns the processor time, the number of seeds, and
    /// `true` if there is such a seed.
    fn run(&self, name: &str) -> Result<(Duration, u64, bool), String> {
        let (mut elapsed, mut seeds) = (Duration::ZERO, 0);
        let mut first = FIRST_SEED;
        loop {
            let runs = SeedRuns {
                program: self.program.clone(),
                first,
                jobs: self.jobs,
                limit: TimeLimit::Processor(self.limit.saturating_sub(elapsed)),
                environment: self.environment.clone(),
            };
            let results = runs.run()?;
            let (used, tried) = results.effort();
            elapsed += used;
            seeds += tried;
            let Some(failure) = results.failure else {
                return Ok((elapsed, seeds, false));
            };
            if seeds::passes(&self.intact, failure.seed, &self.environment)? {
                return Ok((elapsed, seeds, true));
            }
            println!("{name}: seed {} fails without the fault, too", failure.seed);
            first = failure.seed + 1;
        }
    }
}

/// Returns the variables that a patch sets for its runs.
fn environment_of(patch: &Path) -> Result<Vec<(String, String)>, String> {
    let text = fs::read_to_string(patch).map_err(|error| format!("{}: {error}", patch.display()))?;
    let head = text.lines().take_while(|line| !line.starts_with("diff "));
    Ok(head
        .filter_map(|line| line.strip_prefix(ENVIRONMENT)?.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// Returns the patches in the order of their names.
///
/// # Errors
/// If their directory cannot be read.
pub fn patches() -> Result<Vec<PathBuf>, String> {
    let directory = workspace::root().join(PATCHES);
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut all: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    all.sort();
    Ok(all)
}

/// Checks that a patch applies to the files of the repository.
///
/// # Errors
/// With what git says if it does not.
pub fn check_patch(patch: &Path) -> Result<(), String> {
    let output = workspace::command("git", &["apply", "--check", &patch.to_string_lossy()])
        .current_dir(workspace::root())
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

fn select(names: &str) -> Result<Vec<PathBuf>, String> {
    let all = patches()?;
    if names == "all" {
        return Ok(all);
    }
    names
        .split(',')
        .map(|name| {
            let found = all
                .iter()
                .find(|path| path.file_stem().is_some_and(|stem| stem == name));
            found
                .cloned()
                .ok_or_else(|| format!("no planted fault is called '{name}'"))
        })
        .collect()
}

/// Makes a work tree of the last commit, or brings an existing one to it.
fn make_tree(tree: &Path) -> Result<(), String> {
    let root = workspace::root();
    if !tree.join(".git").exists() {
        let _ = git(&root, &["worktree", "prune"]);
        git(
            &root,
            &[
                "worktree",
                "add",
                "--quiet",
                "--force",
                "--detach",
                &tree.to_string_lossy(),
                "HEAD",
            ],
        )?;
    }
    let head = workspace::command("git", &["rev-parse", "HEAD"])
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    let head = String::from_utf8_lossy(&head.stdout).trim().to_owned();
    git(tree, &["checkout", "--quiet", "--force", "--detach", &head])
}

fn git(directory: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = workspace::command("git", arguments);
    workspace::run(command.current_dir(directory))
}
