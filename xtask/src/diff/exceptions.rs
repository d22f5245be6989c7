//! The accepted differences, each with its reason: `tests/diff/exceptions.txt`.
//!
//! The file is a list of blocks. A block begins with a line that says what is accepted, and has a reason:
//!
//! ```text
//! == reply FILE | SECTION | COMMAND      a step's replies; both texts follow, as the comparison prints them
//! reason: why
//! weft: *2["a", "b"]                     `…` stands for any text; several pairs may follow each other
//! valkey: *0[]
//!
//! == command NAME                        Weft lacks this command; sections and generated commands with it are skipped
//! == info SECTION | FIELD                Weft's INFO lacks this field
//! == values SECTION                      fields of INFO whose values are not compared
//! fields: NAME NAME.PART                 `PART=` inside the value of NAME; `*` stands for any text
//! == generated NAME                      generated commands may differ in the way that the code calls NAME
//! ```
//!
//! An entry that a complete run does not need is stale and fails that run, but for those of generated commands.

use std::cell::Cell;

/// The differences of generated commands that the code can recognise and accepts if the file names them.
pub const GENERATED: &[&str] = &[
    "index beyond 32 bits",
    "key called FIELDS",
    "order of more than 100 elements",
    "sort converts a sorted set",
    "nodes of the index of a stream",
];

/// The list of accepted differences.
#[derive(Debug, Default)]
pub struct Exceptions {
    entries: Vec<ExceptionEntry>,
}

#[derive(Debug)]
struct ExceptionEntry {
    line: usize,
    subject: ExceptionSubject,
    reason: String,
    is_used: Cell<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum ExceptionSubject {
    Reply {
        place: [String; 3],
        weft: String,
        valkey: String,
    },
    Command(String),
    InfoField {
        section: String,
        field: String,
    },
    InfoValue {
        section: String,
        field: String,
    },
    Generated(String),
}

/// A block of the file while it is read.
#[derive(Default)]
struct ExceptionBlock {
    line: usize,
    head: String,
    reason: String,
    weft: Option<String>,
    pairs: Vec<(usize, String, String)>,
    fields: Vec<(usize, String)>,
}

impl Exceptions {
    /// Parses the file.
    ///
    /// # Errors
    /// Fails if a line or a block has another form; the error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        let mut block: Option<ExceptionBlock> = None;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let located = |why: &str| format!("exceptions.txt:{number}: {why}");
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(head) = line.strip_prefix("== ") {
                list.close(block.take())?;
                block = Some(ExceptionBlock {
                    line: number,
                    head: head.trim().to_string(),
                    ..ExceptionBlock::default()
                });
                continue;
            }
            let open = block.as_mut().ok_or_else(|| located("outside a block"))?;
            let (key, value) = line.split_once(':').ok_or_else(|| located("write `key: text`"))?;
            let value = value.strip_prefix(' ').unwrap_or(value).to_string();
            match (key, open.weft.take()) {
                ("reason", None) => open.reason = value,
                ("weft", None) => open.weft = Some(value),
                ("valkey", Some(weft)) => open.pairs.push((number, weft, value)),
                ("fields", None) => open
                    .fields
                    .extend(value.split_whitespace().map(|name| (number, name.to_string()))),
                _ => return Err(located("an unexpected line")),
            }
        }
        list.close(block)?;
        Ok(list)
    }

    /// Adds the entries of a block that is complete.
    fn close(&mut self, block: Option<ExceptionBlock>) -> Result<(), String> {
        let Some(block) = block else {
            return Ok(());
        };
        let located = |why: &str| format!("exceptions.txt:{}: {why}", block.line);
        if block.reason.trim().is_empty() {
            return Err(located("a block needs a reason"));
        }
        let (kind, rest) = block.head.split_once(' ').unwrap_or((&block.head, ""));
        // The name of a subcommand contains the separator.
        let parts: Vec<String> = match kind {
            "command" => vec![rest.to_string()],
            _ => rest.split('|').map(|part| part.trim().to_string()).collect(),
        };
        if parts.iter().any(String::is_empty) || block.weft.is_some() {
            return Err(located("a part is empty"));
        }
        let mut subjects = Vec::new();
        match (kind, parts.as_slice()) {
            ("reply", [file, section, command]) => {
                for (line, weft, valkey) in &block.pairs {
                    let place = [file, section, command].map(Clone::clone);
                    let (weft, valkey) = (weft.clone(), valkey.clone());
                    subjects.push((*line, ExceptionSubject::Reply { place, weft, valkey }));
                }
            }
            ("command", [name]) => subjects.push((block.line, ExceptionSubject::Command(name.to_lowercase()))),
            ("info", [section, field]) => {
                let (section, field) = (section.clone(), field.clone());
                subjects.push((block.line, ExceptionSubject::InfoField { section, field }));
            }
            ("values", [section]) => {
                for (line, field) in &block.fields {
                    let (section, field) = (section.clone(), field.clone());
                    subjects.push((*line, ExceptionSubject::InfoValue { section, field }));
                }
            }
            ("generated", [name]) if GENERATED.contains(&name.as_str()) => {
                subjects.push((block.line, ExceptionSubject::Generated(name.clone())));
            }
            _ => return Err(located("an unknown kind of exception")),
        }
        if subjects.is_empty() {
            return Err(located("the block names no difference"));
        }
        self.entries
            .extend(subjects.into_iter().map(|(line, subject)| ExceptionEntry {
                line,
                subject,
                reason: block.reason.clone(),
                is_used: Cell::new(false),
            }));
        Ok(())
    }

    /// Finds the first entry with this subject and marks it as used.
    fn find(&self, wanted: impl Fn(&ExceptionSubject) -> bool) -> Option<&ExceptionEntry> {
        let found = self.entries.iter().find(|entry| wanted(&entry.subject))?;
        found.is_used.set(true);
        Some(found)
    }

    /// Returns `true` if exactly this difference of a step is accepted.
    pub fn accepts_reply(&self, place: [&str; 3], weft: &str, valkey: &str) -> bool {
        self.find(|subject| match subject {
            ExceptionSubject::Reply {
                place: known,
                weft: known_weft,
                valkey: known_valkey,
            } => {
                known.iter().zip(place).all(|(known, found)| known == found)
                    && matches_text(known_weft, weft)
                    && matches_text(known_valkey, valkey)
            }
            _ => false,
        })
        .is_some()
    }

    /// Returns the reason why Weft may lack a command; `None` if it must have it.
    pub fn reason_without_command(&self, name: &str) -> Option<&str> {
        let name = name.to_lowercase();
        self.find(|subject| matches!(subject, ExceptionSubject::Command(known) if *known == name))
            .map(|entry| entry.reason.as_str())
    }

    /// Returns `true` if Weft's INFO may lack a field.
    pub fn may_lack_info_field(&self, section: &str, field: &str) -> bool {
        let is_it = |known_section: &str, known_field: &str| known_section == section && known_field == field;
        self.find(|subject| matches!(subject, ExceptionSubject::InfoField { section, field } if is_it(section, field)))
            .is_some()
    }

    /// Returns `true` if the value of a field of INFO is not compared.
    pub fn ignores_info_value(&self, section: &str, field: &str) -> bool {
        self.find(|subject| match subject {
            ExceptionSubject::InfoValue {
                section: known_section,
                field: known,
            } => known_section == section && matches_text(&known.replace('*', "…"), field),
            _ => false,
        })
        .is_some()
    }

    /// Returns `true` if generated commands may differ in the way that is called `name`.
    pub fn accepts_generated(&self, name: &str) -> bool {
        debug_assert!(GENERATED.contains(&name), "{name}");
        self.find(|subject| matches!(subject, ExceptionSubject::Generated(known) if known == name))
            .is_some()
    }

    /// Returns the line numbers of entries that were not needed. These lines must be removed. It is random which
    /// differences generated commands meet, so their entries are never stale.
    pub fn stale_lines(&self) -> Vec<usize> {
        let is_certain = |entry: &&ExceptionEntry| !matches!(entry.subject, ExceptionSubject::Generated(_));
        let unused = self
            .entries
            .iter()
            .filter(is_certain)
            .filter(|entry| !entry.is_used.get());
        unused.map(|entry| entry.line).collect()
    }
}

/// Returns `true` if `text` is `pattern`, in which each `…` stands for any text.
fn matches_text(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests;
