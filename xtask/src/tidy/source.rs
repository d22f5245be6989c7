//! Rules about single files: module headers, allowed places of `unsafe`, leftover markers, names.

use super::{Document, Finding};

/// The crates that may contain `unsafe`.
const UNSAFE_CRATES: [&str; 6] = [
    "crates/sync/",
    "crates/table/",
    "crates/reactor/",
    "crates/lua/",
    "crates/modules/",
    "crates/sim/",
];

/// The crates whose threads can be simulated. They take threads, locks, atomics and clocks from `weft-os`.
const SIMULATED_CRATES: [&str; 11] = [
    "crates/acl/",
    "crates/base/",
    "crates/cluster/",
    "crates/config/",
    "crates/modules/",
    "crates/rdb/",
    "crates/reactor/",
    "crates/scripting/",
    "crates/server/",
    "crates/sync/",
    "crates/tls/",
];

/// Paths that bypass the scheduler of a simulation.
const UNSCHEDULED_PATHS: [&str; 9] = [
    "std::thread::spawn",
    "std::thread::sleep",
    "std::thread::Builder",
    "std::thread::park",
    "std::sync::mpsc",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::sync::Condvar",
    "parking_lot::",
];

/// The files that need none of it in a simulation: signal handlers, what only starts a process, and what runs in a
/// forked one.
const UNSCHEDULED_FILES: [&str; 4] = [
    "crates/modules/src/module/fork/child.rs",
    "crates/reactor/src/crash.rs",
    "crates/server/src/replication/replica/rdb_channel.rs",
    "crates/server/src/keyspace/hash.rs",
];

/// File and directory names that do not describe a module's purpose.
const MEANINGLESS_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// The number of code lines above an `unsafe` block after which the search for its `// SAFETY:` comment ends.
const MAX_SAFETY_DISTANCE_LINES: usize = 4;

/// Markers of unfinished work. Written in halves, so that this file does not report itself.
const MARKERS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "finish the work or describe the limit in docs"),
    (concat!("FIX", "ME"), "fix it or describe the limit in docs"),
    (concat!("X", "XX"), "finish the work or describe the limit in docs"),
    (concat!("HA", "CK"), "say why the code is as it is"),
    (concat!("todo", "!"), "write the code"),
    (concat!("unimplemented", "!"), "write the code, or return an error"),
    (concat!("dbg", "!"), "remove the debugging output"),
];

/// Checks one file.
pub fn check(document: &Document, findings: &mut Vec<Finding>) {
    check_markers(document, findings);
    if document.path.ends_with(".rs") {
        check_header(document, findings);
        check_names(document, findings);
        check_unsafe(document, findings);
        check_scheduling(document, findings);
    }
}

fn check_scheduling(document: &Document, findings: &mut Vec<Finding>) {
    let path = &*document.path;
    let is_checked = SIMULATED_CRATES.iter().any(|prefix| path.starts_with(prefix))
        && !path.contains("tests")
        && !path.contains("/examples/")
        && !UNSCHEDULED_FILES.contains(&path);
    if !is_checked {
        return;
    }
    let code = code_only(&document.text);
    let before_tests = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (index, line) in before_tests.lines().enumerate() {
        if let Some(found) = UNSCHEDULED_PATHS.iter().find(|path| line.contains(**path)) {
            let message = format!("`{found}` bypasses the scheduler of a simulation; take it from weft-os");
            findings.push(document.finding(index + 1, message));
        }
    }
}

fn check_header(document: &Document, findings: &mut Vec<Finding>) {
    if !document.text.starts_with("//!") {
        let message = "begin the file with `//!` and one sentence that states the module's purpose";
        findings.push(document.finding(1, message));
    }
}

fn check_names(document: &Document, findings: &mut Vec<Finding>) {
    let parts = document.path.trim_end_matches(".rs").split('/');
    for part in parts.skip_while(|part| *part != "src") {
        if MEANINGLESS_NAMES.contains(&part) {
            let message = format!("'{part}' does not describe a purpose; name the module after what it does");
            findings.push(document.finding(1, message));
        }
    }
    let code = code_only(&document.text);
    for (index, line) in code.lines().enumerate() {
        // The simulated types have the names of the standard library's methods.
        let is_standard = document.path.starts_with("crates/os/src/simulated/");
        if line.contains("fn get_") && !is_standard {
            let message = "drop the `get_`: a function that returns a thing is named after it";
            findings.push(document.finding(index + 1, message));
        }
    }
}

fn check_markers(document: &Document, findings: &mut Vec<Finding>) {
    // Test data may need any byte sequence, and generated lock files are not written by hand.
    if document.path.ends_with(".case") || document.path.ends_with(".lock") {
        return;
    }
    for (index, line) in document.text.lines().enumerate() {
        for (marker, remedy) in MARKERS {
            if contains_word(line, marker) {
                let message = format!("leftover `{marker}`: {remedy}");
                findings.push(document.finding(index + 1, message));
            }
        }
    }
}

/// Returns `true` if `word` occurs in `line` with no letter, digit or underscore next to it.
fn contains_word(line: &str, word: &str) -> bool {
    let bounded = |byte: Option<u8>| !byte.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    line.match_indices(word).any(|(start, _)| {
        let bytes = line.as_bytes();
        let before = start.checked_sub(1).and_then(|index| bytes.get(index));
        let after = bytes.get(start + word.len());
        bounded(before.copied()) && (word.ends_with('!') || bounded(after.copied()))
    })
}

fn check_unsafe(document: &Document, findings: &mut Vec<Finding>) {
    let code = code_only(&document.text);
    let lines: Vec<&str> = document.text.lines().collect();
    for (index, line) in code.lines().enumerate() {
        if !contains_word(line, "unsafe") {
            continue;
        }
        let allowed = UNSAFE_CRATES.iter().any(|prefix| document.path.starts_with(prefix));
        if !allowed {
            let allowed = UNSAFE_CRATES.map(|prefix| prefix.trim_end_matches('/')).join(", ");
            let message = format!("no `unsafe` here; it belongs behind a safe interface in one of {allowed}");
            findings.push(document.finding(index + 1, message));
        } else if needs_safety_comment(line) && !has_safety_comment(&lines, index) {
            let message = "put a `// SAFETY:` comment above that cites a rule of the crate";
            findings.push(document.finding(index + 1, message));
        }
    }
}

fn needs_safety_comment(line: &str) -> bool {
    line.contains("unsafe {") || line.contains("unsafe impl") || line.trim_end().ends_with("unsafe")
}

/// Returns `true` if the line itself or a comment above it contains `SAFETY:`. The search skips all comments and
/// attributes, and a few lines of a statement that contains the block.
fn has_safety_comment(lines: &[&str], index: usize) -> bool {
    if lines[index].contains("SAFETY:") {
        return true;
    }
    let mut code_lines = 0;
    for line in lines[..index].iter().rev() {
        let line = line.trim_start();
        if line.starts_with("//") {
            if line.contains("SAFETY:") {
                return true;
            }
        } else if !line.starts_with("#[") {
            code_lines += 1;
            if code_lines >= MAX_SAFETY_DISTANCE_LINES {
                return false;
            }
        }
    }
    false
}

/// Returns `text` with comments, strings and character literals replaced by blanks; line breaks stay.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let end = skip_non_code(bytes, position);
        if end == position {
            code.push(bytes[position]);
            position += 1;
        } else {
            for byte in &bytes[position..end] {
                code.push(if *byte == b'\n' { b'\n' } else { b' ' });
            }
            position = end;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Returns the end of the comment, string or character literal that begins at `start`; otherwise `start`.
fn skip_non_code(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start..];
    let in_name = start > 0 && (bytes[start - 1].is_ascii_alphanumeric() || bytes[start - 1] == b'_');
    if rest.starts_with(b"//") {
        start + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
    } else if rest.starts_with(b"/*") {
        start + block_comment_length(rest)
    } else if rest[0] == b'"' {
        start + quoted_length(rest)
    } else if rest[0] == b'r' && !in_name {
        start + raw_string_length(rest)
    } else if rest[0] == b'\'' {
        start + character_length(rest)
    } else {
        start
    }
}

fn block_comment_length(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut position = 0;
    while position < rest.len() {
        if rest[position..].starts_with(b"/*") {
            depth += 1;
            position += 2;
        } else if rest[position..].starts_with(b"*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += 1;
        }
    }
    rest.len()
}

fn quoted_length(rest: &[u8]) -> usize {
    let mut position = 1;
    while position < rest.len() {
        match rest[position] {
            b'\\' => position += 2,
            b'"' => return position + 1,
            _ => position += 1,
        }
    }
    rest.len()
}

/// Returns the length of `r"…"` or `r#"…"#` at the start of `rest`; 0 if it is neither.
fn raw_string_length(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    let body = hashes + 2;
    rest[body..]
        .windows(closing.len())
        .position(|window| window == closing)
        .map_or(rest.len(), |found| body + found + closing.len())
}

/// Returns the length of a character literal at the start of `rest`; 0 if it is a lifetime.
fn character_length(rest: &[u8]) -> usize {
    match rest.get(1) {
        Some(b'\\') => {
            let tail = rest.get(3..).unwrap_or_default();
            tail.iter().position(|byte| *byte == b'\'').map_or(0, |found| found + 4)
        }
        Some(_) => {
            let limit = rest.len().min(6);
            rest[..limit]
                .iter()
                .skip(2)
                .position(|byte| *byte == b'\'')
                .filter(|found| *found == 0 || !rest[1].is_ascii())
                .map_or(0, |found| found + 3)
        }
        None => 0,
    }
}
