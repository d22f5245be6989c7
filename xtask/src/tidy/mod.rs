//! `cargo xtask tidy`: checks the project rules that a program can check, and proposes a remedy for each violation.

mod cycles;
mod documents;
mod imports;
mod shape;
mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::options::Options;
use crate::sim::planted;
use crate::workspace;

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path relative to the workspace root.
    pub file: String,
    /// The line number, from 1.
    pub line: usize,
    /// The violation and its remedy.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A text file of the repository, with its path relative to the root.
pub struct Document {
    /// The path with forward slashes.
    pub path: String,
    /// The whole content.
    pub text: String,
}

impl Document {
    fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            file: self.path.clone(),
            line,
            message: message.into(),
        }
    }
}

/// Checks the repository and prints every finding.
///
/// # Errors
/// Fails if there are findings, or if a file cannot be read.
pub fn main(words: &[String]) -> Result<(), String> {
    Options::parse(words, &[], &[])?;
    let documents = read_documents()?;
    let mut findings = check(&documents);
    findings.extend(check_planted_faults()?);
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("{} files are tidy", documents.len());
        Ok(())
    } else {
        Err(format!("{} findings", findings.len()))
    }
}

/// Checks that the patches of the planted faults apply: a change of the code that they break must be made there too.
fn check_planted_faults() -> Result<Vec<Finding>, String> {
    let stale = |patch: PathBuf| {
        let reason = planted::check_patch(&patch).err()?;
        let path = patch.strip_prefix(workspace::root()).unwrap_or(&patch);
        Some(Finding {
            file: slashed(path),
            line: 1,
            message: format!("the planted fault does not apply to the tree any more; adapt its diff. {reason}"),
        })
    };
    Ok(planted::patches()?.into_iter().filter_map(stale).collect())
}

/// Returns all findings in `documents`, which must be the whole repository.
pub fn check(documents: &[Document]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents {
        source::check(document, &mut findings);
        imports::check(document, &mut findings);
    }
    shape::check(documents, &mut findings);
    cycles::check(documents, &mut findings);
    documents::check(documents, &mut findings);
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    findings
}

/// Reads every text file of the repository.
fn read_documents() -> Result<Vec<Document>, String> {
    let mut documents = Vec::new();
    for path in workspace::tracked_files()? {
        let bytes =
            std::fs::read(workspace::root().join(&path)).map_err(|error| format!("{}: {error}", path.display()))?;
        if let Ok(text) = String::from_utf8(bytes) {
            documents.push(Document {
                path: slashed(&path),
                text,
            });
        }
    }
    Ok(documents)
}

fn slashed(path: &Path) -> String {
    let parts: Vec<String> = PathBuf::from(path)
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    parts.join("/")
}
