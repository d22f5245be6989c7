//! Rules about documentation: links have a target, and every page can be reached.

use std::collections::BTreeSet;

use super::{Document, Finding};

/// The pages from which a reader starts. Each file under docs/ must be linked from one of them.
const ENTRY_PAGES: &[&str] = &["README.md", "docs/ARCHITECTURE.md", "docs/book/src/SUMMARY.md"];

/// Checks the links between the documents of the repository.
pub fn check(documents: &[Document], findings: &mut Vec<Finding>) {
    let mut paths: BTreeSet<String> = BTreeSet::new();
    for document in documents {
        paths.insert(document.path.clone());
        let mut directory = document.path.as_str();
        while let Some((parent, _)) = directory.rsplit_once('/') {
            paths.insert(parent.to_string());
            directory = parent;
        }
    }
    let mut reached = BTreeSet::new();
    for document in documents.iter().filter(|d| d.path.ends_with(".md")) {
        for (line, link) in relative_links(&document.text) {
            let target = resolve(&document.path, &link);
            if !paths.contains(&target) {
                let message = format!("link to '{link}', but {target} does not exist; fix the link");
                findings.push(document.finding(line, message));
            }
            if ENTRY_PAGES.contains(&document.path.as_str()) {
                reached.insert(target);
            }
        }
    }
    find_unreachable_pages(documents, &reached, findings);
}

fn find_unreachable_pages(documents: &[Document], reached: &BTreeSet<String>, findings: &mut Vec<Finding>) {
    for document in documents {
        let path = document.path.as_str();
        if path.starts_with("docs/") && !ENTRY_PAGES.contains(&path) && !reached.contains(path) {
            let message = format!("link this file from {}", ENTRY_PAGES.join(" or "));
            findings.push(document.finding(1, message));
        }
    }
}

/// Returns the targets of Markdown links into the repository, without `#fragment`s, with their line numbers.
fn relative_links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut in_code_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        }
        if in_code_block {
            continue;
        }
        for (start, _) in line.match_indices("](") {
            let rest = &line[start + 2..];
            let Some(end) = rest.find([')', ' ']) else {
                continue;
            };
            let target = rest[..end].split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains(':') {
                links.push((index + 1, target.to_string()));
            }
        }
    }
    links
}

/// Returns the repository path to which `link` refers in the document at `from`.
fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = match link.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}
