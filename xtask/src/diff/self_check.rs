//! Checks that the suite detects differences: Valkey equals itself, and a planted difference is found.

use std::path::Path;

use super::pair::ServerBinaries;
use super::{DiffPlan, run_plan};

/// The planted difference: a server with fewer databases.
const PLANTED: [&str; 2] = ["--databases", "4"];

/// Compares Valkey with itself, then with an altered Valkey.
///
/// # Errors
/// Fails if Valkey differs from itself, or if the planted difference is not found or not minimised.
pub fn run(valkey: &Path) -> Result<(), String> {
    let equal = run_plan(&plan(valkey, &[], true, ""))?;
    if equal.differences > 0 || !equal.differing_sequences.is_empty() {
        for found in &equal.differing_sequences {
            println!("{found}");
        }
        return Err("Valkey differs from itself: these cases are not deterministic".to_string());
    }
    let cases = run_plan(&DiffPlan {
        seconds: 0,
        filter: "connection.case SELECT".to_string(),
        ..plan(valkey, &PLANTED, true, "")
    })?;
    if cases.differences == 0 {
        return Err("the cases do not detect a server with fewer databases".to_string());
    }
    let generated = run_plan(&plan(valkey, &PLANTED, false, "SELECT"))?;
    let Some(found) = generated.differing_sequences.first() else {
        return Err("the generator does not detect a server with fewer databases".to_string());
    };
    println!("{found}");
    if found.length() != 1 {
        return Err("the difference needs one command, but was not shrunk to it".to_string());
    }
    println!(
        "Valkey equals itself in {} replies and {} generated commands; planted differences are found",
        equal.compared, equal.generated
    );
    Ok(())
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
    }
}
