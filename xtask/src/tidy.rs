//! `cargo xtask tidy`: the rules of the house that a program can check, each with a remedy.

mod documents;
mod imports;
mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::options::Options;
use crate::workspace;

/// One broken rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path relative to the workspace root.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what to do instead.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A text file of the repository, with its path relative to the root.
pub struct Document {
    /// Path with forward slashes.
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
pub fn main(words: &[String]) -> Result<(), String> {
    Options::parse(words, &[], &[])?;
    let documents = read_documents()?;
    let findings = check(&documents);
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

/// All findings in `documents`, which must be the whole repository.
pub fn check(documents: &[Document]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents {
        source::check(document, &mut findings);
        imports::check(document, &mut findings);
    }
    documents::check(documents, &mut findings);
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    findings
}

/// Every file of the repository that is text.
fn read_documents() -> Result<Vec<Document>, String> {
    let mut documents = Vec::new();
    for path in workspace::files()? {
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
