//! The accepted differences, each with its reason: `tests/diff/exceptions.txt`.

use std::cell::Cell;

/// The list of accepted differences.
#[derive(Debug)]
pub struct Exceptions {
    entries: Vec<AcceptedDifference>,
}

#[derive(Debug)]
struct AcceptedDifference {
    line: usize,
    file: String,
    section: String,
    command: String,
    is_used: Cell<bool>,
}

impl Exceptions {
    /// Parses lines of the form `file | section | start of the command | reason`.
    ///
    /// # Errors
    /// Fails if a line has another form or an empty part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let parts: Vec<&str> = line.split('|').map(str::trim).collect();
            let [file, section, command, reason] = parts.as_slice() else {
                let form = "file | section | start of the command | reason";
                return Err(format!("exceptions.txt:{}: write {form}", index + 1));
            };
            if [file, section, command, reason].iter().any(|part| part.is_empty()) {
                return Err(format!("exceptions.txt:{}: a part is empty", index + 1));
            }
            entries.push(AcceptedDifference {
                line: index + 1,
                file: (*file).to_string(),
                section: (*section).to_string(),
                command: (*command).to_string(),
                is_used: Cell::new(false),
            });
        }
        Ok(Self { entries })
    }

    /// Returns `true` if a difference of this command is accepted. The entry then counts as used.
    pub fn accepts(&self, file: &str, section: &str, command: &str) -> bool {
        let found = self
            .entries
            .iter()
            .find(|entry| entry.file == file && entry.section == section && command.starts_with(&entry.command));
        if let Some(entry) = found {
            entry.is_used.set(true);
        }
        found.is_some()
    }

    /// Returns the line numbers of entries whose difference has disappeared. These lines must be removed.
    pub fn stale_lines(&self) -> Vec<usize> {
        let unused = self.entries.iter().filter(|entry| !entry.is_used.get());
        unused.map(|entry| entry.line).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the exception list.

    use super::Exceptions;

    #[test]
    fn an_entry_accepts_its_command_and_unused_ones_are_stale() {
        let text = "# remark\n\na.case | one | GET k | because\nb.case | two | SET | because\n";
        let exceptions = Exceptions::parse(text).unwrap();
        assert!(exceptions.accepts("a.case", "one", "GET key"));
        assert!(!exceptions.accepts("a.case", "two", "GET key"));
        assert!(!exceptions.accepts("a.case", "one", "SET key"));
        assert_eq!(exceptions.stale_lines(), [4]);
    }

    #[test]
    fn an_entry_without_a_reason_is_refused() {
        for text in ["a.case | one | GET", "a.case | one | GET | "] {
            assert!(Exceptions::parse(text).is_err(), "{text}");
        }
    }
}
