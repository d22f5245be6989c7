//! Recognises file name patterns and expands them.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use weft_resp::glob::matches;

/// Returns `true` if the text contains a wildcard.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Returns the existing paths that match a pattern, sorted. Each part between slashes is matched separately. A name
/// that starts with a dot matches only a part that starts with a dot.
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
        .filter(|name| name.starts_with(b".") == part.starts_with(b".") && matches(part, name, false))
        .collect();
    names.sort();
    names
        .iter()
        .map(|name| directory.join(OsStr::from_bytes(name)))
        .collect()
}
