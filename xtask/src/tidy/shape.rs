//! Rules about the shape of source files: their length, the length of functions, the width of comments, module style.

use std::collections::BTreeMap;

use super::{Document, Finding, source};

/// The maximum number of lines of a source file.
const FILE_LINES: usize = 800;
/// The maximum number of lines of a function outside tests.
const FUNCTION_LINES: usize = 80;
/// The number of crates and modules that may define a public type of the same name.
const SAME_TYPE_NAMES: usize = 2;
/// The maximum number of columns of a line with a comment.
const COMMENT_COLUMNS: usize = 120;

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
    type_names(documents, findings);
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

/// Finds public types whose name is defined more than [`SAME_TYPE_NAMES`] times, outside tests.
fn type_names(documents: &[Document], findings: &mut Vec<Finding>) {
    let mut definitions: BTreeMap<String, Vec<(&Document, usize)>> = BTreeMap::new();
    for document in documents {
        if !document.path.ends_with(".rs") || is_test(&document.path) {
            continue;
        }
        for (index, line) in source::code_only(&document.text).lines().enumerate() {
            if let Some(name) = public_type(line) {
                definitions
                    .entry(name.to_owned())
                    .or_default()
                    .push((document, index + 1));
            }
        }
    }
    for (name, places) in definitions {
        for (document, line) in places.iter().skip(SAME_TYPE_NAMES) {
            let (first, first_line) = places[0];
            let message = format!(
                "a public type {name} is defined in {} places, first in {}:{first_line}; qualify its name",
                places.len(),
                first.path
            );
            findings.push(document.finding(*line, message));
        }
    }
}

/// Returns the name of the public type that a line of code defines.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scoped) => scoped.split_once(')')?.1,
        None => rest,
    };
    let (keyword, rest) = rest.trim_start().split_once(' ')?;
    if !matches!(keyword, "struct" | "enum" | "union" | "trait" | "type") {
        return None;
    }
    let end = rest.find(|character: char| !character.is_alphanumeric() && character != '_');
    // A macro's definition has a placeholder instead of a name.
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|name| !name.is_empty())
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
        if length > FUNCTION_LINES {
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
