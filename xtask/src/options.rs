//! Parses a task's command line: `--name value` pairs and `--flag`s, without positional arguments.

use std::collections::BTreeMap;
use std::str::FromStr;

/// The options with which a task was started.
pub struct Options {
    values: BTreeMap<String, String>,
}

impl Options {
    /// Parses `words`. `valued` names the options that take a value, `flags` those that do not.
    ///
    /// # Errors
    /// Fails for any other word, and for a missing value.
    pub fn parse(words: &[String], valued: &[&str], flags: &[&str]) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| format!("unexpected argument '{word}'"))?;
            if flags.contains(&name) {
                values.insert(name.to_string(), String::new());
            } else if valued.contains(&name) {
                let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
                values.insert(name.to_string(), value.clone());
            } else {
                return Err(format!("unknown option --{name}"));
            }
        }
        Ok(Self { values })
    }

    /// Returns `true` if `--name` was given.
    pub fn is_given(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The text after `--name`, if it was given.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The number after `--name`, or `default`.
    ///
    /// # Errors
    /// Fails if the text is not a number.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        match self.value(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name}: '{text}' is not a number")),
        }
    }

    /// The comma-separated list after `--name`; empty if it was not given.
    pub fn list(&self, name: &str) -> Vec<&str> {
        self.value(name)
            .map(|text| text.split(',').filter(|part| !part.is_empty()).collect())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
