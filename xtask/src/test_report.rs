//! Reads the output of `cargo test`: how many tests passed, which were ignored, and the part that explains a failure.

/// The number of lines of a failed step that are shown.
const MAX_SHOWN_LINES: usize = 300;

/// The results in the output of `cargo test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestReport {
    /// The number of tests that passed.
    pub passed: u64,
    /// The names of ignored tests, each with the reason that it gives.
    pub ignored: Vec<String>,
}

/// Parses the output of `cargo test`.
pub fn parse(output: &str) -> TestReport {
    let mut report = TestReport::default();
    for line in output.lines() {
        if let Some(result) = line.strip_prefix("test result: ") {
            let passed = result
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(" passed"));
            report.passed += passed.and_then(|count| count.parse::<u64>().ok()).unwrap_or_default();
        } else if let Some((name, reason)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... ignored"))
        {
            report.ignored.push(format!("{name}{reason}"));
        }
    }
    report
}

/// Returns the end of a step's output without the lines of what went well.
pub fn explain_failure(output: &str) -> String {
    let is_routine = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("Compiling ")
            || line.starts_with("Running ")
            || line.starts_with("Doc-tests ")
            || line.starts_with("test result: ok")
            || (line.starts_with("running ") && line.ends_with(" tests"))
            || (line.starts_with("test ") && (line.ends_with(" ... ok") || line.contains(" ... ignored")))
            || line.is_empty()
    };
    let lines: Vec<&str> = output.lines().filter(|line| !is_routine(line)).collect();
    lines[lines.len().saturating_sub(MAX_SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests;
