//! Patterns with `*`, `?`, `[...]` and `\`: against names of parameters and against names of files.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Whether the text contains a character that makes it a pattern.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether `text` matches `pattern`; `fold` makes both sides alike, for instance by lowering letters.
///
/// One star is remembered at a time: when the rest does not match, the last star swallows one byte more. Earlier
/// stars need no second chance, because a later star can always swallow what they would.
pub fn matches(pattern: &[u8], text: &[u8], fold: fn(u8) -> u8) -> bool {
    let (mut at_pattern, mut at_text) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while at_text < text.len() {
        if pattern.get(at_pattern) == Some(&b'*') {
            at_pattern += 1;
            last_star = Some((at_pattern, at_text));
        } else if let Some(width) = matches_one(&pattern[at_pattern..], text[at_text], fold) {
            at_pattern += width;
            at_text += 1;
        } else if let Some((after_star, swallowed)) = last_star {
            last_star = Some((after_star, swallowed + 1));
            (at_pattern, at_text) = (after_star, swallowed + 1);
        } else {
            return false;
        }
    }
    pattern[at_pattern..].iter().all(|&byte| byte == b'*')
}

/// The length of the element at the start of `pattern`, if it matches `byte`.
fn matches_one(pattern: &[u8], byte: u8, fold: fn(u8) -> u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (matched, width) = matches_class(class, byte, fold);
            matched.then_some(1 + width)
        }
        [b'\\', literal, ..] => (fold(*literal) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
    }
}

/// Whether a class, without its opening bracket, contains `byte`, and its length with the closing bracket, which
/// may be missing at the end of the pattern.
fn matches_class(class: &[u8], byte: u8, fold: fn(u8) -> u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut matched = false;
    loop {
        match class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                matched |= fold(literal) == fold(byte);
                at += 2;
            }
            [first, b'-', last, ..] => {
                let (first, last) = (fold(first).min(fold(last)), fold(first).max(fold(last)));
                matched |= (first..=last).contains(&fold(byte));
                at += 3;
            }
            [literal, ..] => {
                matched |= fold(literal) == fold(byte);
                at += 1;
            }
        }
    }
    (matched != negated, at)
}

/// The existing paths that match a pattern, sorted. Each part between slashes is matched on its own,
/// and a name that starts with a dot must be asked for with a dot.
pub fn expand_paths(pattern: &[u8]) -> Vec<PathBuf> {
    let root = if pattern.starts_with(b"/") { "/" } else { "" };
    let mut paths = vec![PathBuf::from(root)];
    for part in pattern.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        paths = paths.iter().flat_map(|path| children(path, part)).collect();
    }
    paths
}

fn children(directory: &Path, part: &[u8]) -> Vec<PathBuf> {
    if !is_pattern(part) {
        let path = directory.join(OsStr::from_bytes(part));
        return if path.symlink_metadata().is_ok() {
            vec![path]
        } else {
            Vec::new()
        };
    }
    let place = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let Ok(entries) = std::fs::read_dir(place) else {
        return Vec::new();
    };
    let mut names: Vec<Vec<u8>> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().into_vec()))
        .filter(|name| name.starts_with(b".") == part.starts_with(b".") && matches(part, name, |byte| byte))
        .collect();
    names.sort();
    names
        .iter()
        .map(|name| directory.join(OsStr::from_bytes(name)))
        .collect()
}
