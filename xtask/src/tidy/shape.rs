//! Rules about the shape of source files: their length, the length of functions, the width of comments, module style.

use super::{Document, Finding, source};

/// The maximum number of lines of a source file.
const FILE_LINES: usize = 800;
/// The maximum number of lines of a function outside tests.
const FUNCTION_LINES: usize = 80;
/// The maximum number of columns of a line with a comment.
const COMMENT_COLUMNS: usize = 120;

/// Functions that are longer and have not been cut yet: file and name. The list may only shrink.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    ("crates/server/src/commands/server/debug.rs", "debug"),
    ("crates/server/src/dispatch/batch.rs", "run_until_exclusive"),
    ("crates/server/src/dispatch/execute.rs", "run_as"),
    ("crates/server/src/dispatch/transaction.rs", "run_queued"),
    ("crates/server/src/runtime/config_changes.rs", "apply"),
];

/// Checks the sources among `documents`.
pub fn check(documents: &[Document], findings: &mut Vec<Finding>) {
    for document in documents.iter().filter(|document| document.path.ends_with(".rs")) {
        file_length(document, findings);
        comment_width(document, findings);
        if !is_test(&document.path) {
            function_length(document, findings);
        }
    }
    module_style(documents, findings);
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/")
}

fn file_length(document: &Document, findings: &mut Vec<Finding>) {
    let lines = document.text.lines().count();
    if lines > FILE_LINES {
        let message = format!("{lines} lines; a file is one job and has at most {FILE_LINES}");
        findings.push(document.finding(FILE_LINES + 1, message));
    }
}

fn comment_width(document: &Document, findings: &mut Vec<Finding>) {
    for (index, line) in document.text.lines().enumerate() {
        if line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS {
            let message = format!("wrap the comment at {COMMENT_COLUMNS} columns");
            findings.push(document.finding(index + 1, message));
        }
    }
}

/// Finds functions by their signature's indentation: rustfmt puts the closing brace at the same column.
fn function_length(document: &Document, findings: &mut Vec<Finding>) {
    let code = source::code_only(&document.text);
    let lines: Vec<&str> = code.lines().collect();
    for (start, line) in lines.iter().enumerate() {
        if line.trim_start().starts_with("mod tests") {
            break;
        }
        let Some(name) = function_name(line) else {
            continue;
        };
        let signature_end = lines[start..].iter().find(|line| line.trim_end().ends_with(['{', ';']));
        if signature_end.is_some_and(|line| line.trim_end().ends_with(';')) {
            continue;
        }
        let indentation = &line[..line.len() - line.trim_start().len()];
        let closing = format!("{indentation}}}");
        let end = lines[start..].iter().position(|line| *line == closing);
        let length = end.map_or(0, |end| end + 1);
        let is_known = LONG_FUNCTIONS.contains(&(document.path.as_str(), name));
        if length > FUNCTION_LINES && !is_known {
            let message = format!("{name} has {length} lines; a function is one thought of at most {FUNCTION_LINES}");
            findings.push(document.finding(start + 1, message));
        }
    }
}

/// The name of the function whose signature starts on this line and does not end on it.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_signature = before
        .split_whitespace()
        .all(|word| matches!(word, "const" | "async" | "unsafe" | "extern") || word.starts_with("pub"));
    let name_end = after.find(|character: char| !character.is_alphanumeric() && character != '_')?;
    (is_signature && name_end > 0 && !line.trim_end().ends_with('}')).then(|| &after[..name_end])
}

/// A module with submodules is `x/mod.rs`. A module whose only child is its tests may be `x.rs`.
fn module_style(documents: &[Document], findings: &mut Vec<Finding>) {
    for document in documents.iter().filter(|document| document.path.contains("/src/")) {
        let Some(folder) = document.path.strip_suffix(".rs").map(|path| format!("{path}/")) else {
            continue;
        };
        let has_submodules = documents.iter().any(|other| {
            other
                .path
                .strip_prefix(&folder)
                .is_some_and(|rest| rest.ends_with(".rs") && rest != "tests.rs" && !rest.starts_with("tests/"))
        });
        if has_submodules {
            let message = format!("a module with submodules is {folder}mod.rs");
            findings.push(document.finding(1, message));
        }
    }
}
