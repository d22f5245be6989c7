//! Command line flags: one table row per flag serves both the parser and `--help`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// A flag that takes a value; with an empty `value`, a switch.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// The name with its dashes.
    pub name: &'static str,
    /// The name of the value in the help; empty for a switch.
    pub value: &'static str,
    /// The value when the flag is absent; empty for none.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
}

/// Creates a row of a flag table.
pub const fn flag(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag {
        name,
        value,
        default,
        help,
    }
}

/// The flags that were given on the command line.
#[derive(Debug)]
pub struct GivenFlags {
    table: &'static [&'static [Flag]],
    values: BTreeMap<&'static str, String>,
}

impl GivenFlags {
    /// Parses `--flag value` and `--flag=value` words by the rows of `table`.
    ///
    /// # Errors
    /// Fails for unknown or repeated flags, and for a missing or unexpected value.
    pub fn parse(table: &'static [&'static [Flag]], words: &[String]) -> Result<GivenFlags> {
        let mut values = BTreeMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => (word.as_str(), None),
            };
            let known = table.iter().copied().flatten().find(|flag| flag.name == name);
            let flag = known.ok_or_else(|| Error::Usage(format!("unknown argument {word:?}")))?;
            let value = match (flag.value.is_empty(), attached) {
                (true, None) => String::new(),
                (true, Some(_)) => return Err(Error::Usage(format!("{name} takes no value"))),
                (false, Some(value)) => value,
                (false, None) => words
                    .next()
                    .ok_or_else(|| Error::Usage(format!("{name} needs {}", flag.value)))?
                    .clone(),
            };
            if values.insert(flag.name, value).is_some() {
                return Err(Error::Usage(format!("{name} is given twice")));
            }
        }
        Ok(GivenFlags { table, values })
    }

    /// Returns `true` if the flag was on the command line.
    pub fn is_given(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The value given, or the default; `None` if there is neither.
    ///
    /// # Panics
    /// Panics if `name` is not in the flag table.
    pub fn value(&self, name: &str) -> Option<&str> {
        let flag = self.table.iter().copied().flatten().find(|flag| flag.name == name);
        let flag = flag.unwrap_or_else(|| panic!("{name} is not in the flag table"));
        let given = self.values.get(name).map(String::as_str);
        given.or(Some(flag.default).filter(|default| !default.is_empty()))
    }

    /// Parses the value as a number or another type; `None` if there is no value.
    ///
    /// # Errors
    /// Fails if the value cannot be parsed.
    pub fn parse_value<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.value(name) else {
            return Ok(None);
        };
        let value = text
            .parse()
            .map_err(|_| Error::Usage(format!("{name}: cannot read {text:?}")))?;
        Ok(Some(value))
    }

    /// Parses the number of a flag that has a default.
    ///
    /// # Errors
    /// Fails if the value is missing, is not a number or is less than `least`.
    pub fn number<T: FromStr + PartialOrd>(&self, name: &str, least: T) -> Result<T> {
        let value = self
            .parse_value(name)?
            .ok_or_else(|| Error::Usage(format!("{name} is needed")))?;
        // NaN is not less than `least`, but it must be refused too.
        if value >= least {
            Ok(value)
        } else {
            Err(Error::Usage(format!("{name} is too small")))
        }
    }

    /// Parses the number of a flag that may be absent; `None` if it is, and has no default.
    ///
    /// # Errors
    /// Fails if the value is not a number or is less than `least`.
    pub fn optional_number<T: FromStr + PartialOrd>(&self, name: &str, least: T) -> Result<Option<T>> {
        self.value(name).map(|_| self.number(name, least)).transpose()
    }

    /// Parses a number of bytes, with a unit as in the parameters of the servers: 64mb are 64 * 1024 * 1024 bytes.
    ///
    /// # Errors
    /// Fails if the value is missing, cannot be read or is less than `least`.
    pub fn bytes(&self, name: &str, least: u64) -> Result<u64> {
        let text = self.value(name).unwrap_or_default();
        let bytes = parse_bytes(text).ok_or_else(|| Error::Usage(format!("{name}: cannot read {text:?}")))?;
        if bytes >= least {
            Ok(bytes)
        } else {
            Err(Error::Usage(format!("{name} is too small")))
        }
    }

    /// Parses a list of numbers separated by commas; empty if the flag has no value.
    ///
    /// # Errors
    /// Fails if an item is not a number.
    pub fn numbers(&self, name: &str) -> Result<Vec<usize>> {
        self.list(name)
    }

    /// Parses a list of values separated by commas; empty if the flag has no value.
    ///
    /// # Errors
    /// Fails if an item cannot be parsed.
    pub fn list<T: FromStr>(&self, name: &str) -> Result<Vec<T>> {
        let text = self.value(name).unwrap_or_default();
        let items = text.split(',').filter(|item| !item.is_empty());
        let read = |item: &str| item.parse().map_err(|_| Error::Usage(format!("{name}: {item:?}")));
        items.map(read).collect()
    }
}

/// Parses a number of bytes with a unit. `kb` is 1024 bytes, `k` is 1000.
fn parse_bytes(text: &str) -> Option<u64> {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Returns the help text of a flag table.
pub fn help_text(table: &[&[Flag]]) -> String {
    let mut text = String::new();
    for flag in table.iter().copied().flatten() {
        let left = format!("{} {}", flag.name, flag.value);
        let default = match flag.default {
            "" => String::new(),
            default => format!(" [{default}]"),
        };
        let _ = writeln!(text, "  {left:<26} {}{default}", flag.help);
    }
    text
}
