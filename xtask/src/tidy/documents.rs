//! Rules about documentation: links have a target, every page can be reached, and the tests that a page names exist.

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
    for page in documents.iter().filter(|d| d.path.ends_with(".md")) {
        find_missing_tests(page, documents, findings);
    }
}

/// Checks the tests that a page names in the form `file::test`: a function of a Rust file, or a section of a case file.
/// The path of the file may lack its beginning.
fn find_missing_tests(page: &Document, documents: &[Document], findings: &mut Vec<Finding>) {
    for (line, file, test) in named_tests(&page.text) {
        let end = format!("/{file}");
        let mut files = documents.iter().filter(|document| document.path.ends_with(&end));
        if !files.any(|document| has_test(document, &test)) {
            let message = format!("no {file} has a test '{test}'; name one that exists");
            findings.push(page.finding(line, message));
        }
    }
}

/// Returns the line, the file and the name of each test that a page names in a code span.
fn named_tests(text: &str) -> Vec<(usize, String, String)> {
    let mut tests = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // Every second part is within backquotes.
        for span in line.split('`').skip(1).step_by(2) {
            if let Some((file, test)) = span.split_once("::")
                && (file.ends_with(".rs") || file.ends_with(".case"))
            {
                tests.push((index + 1, file.to_string(), test.to_string()));
            }
        }
    }
    tests
}

fn has_test(document: &Document, test: &str) -> bool {
    let (function, section) = (format!("fn {test}("), format!("== {test}"));
    let mut lines = document.text.lines().map(str::trim);
    match document.path.ends_with(".case") {
        true => lines.any(|line| line == section),
        false => lines.any(|line| line.starts_with(&function)),
    }
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
