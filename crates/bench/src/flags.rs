//! Command line flags: one table row per flag feeds both the parser and `--help`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// A flag that takes a value, or with an empty `value` a switch.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// The name with its dashes.
    pub name: &'static str,
    /// What the value is called in the help; empty for a switch.
    pub value: &'static str,
    /// The value when the flag is absent; empty for none.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
}

/// Shorthand for a row of a flag table.
pub const fn flag(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag {
        name,
        value,
        default,
        help,
    }
}

/// The flags that were given.
#[derive(Debug)]
pub struct GivenFlags {
    table: &'static [&'static [Flag]],
    values: BTreeMap<&'static str, String>,
}

impl GivenFlags {
    /// Parses `--flag value` and `--flag=value` words by the rows of `table`.
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

    /// Whether the flag was on the command line.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The value given, or the default; `None` if there is neither.
    pub fn text(&self, name: &str) -> Option<&str> {
        let flag = self.table.iter().copied().flatten().find(|flag| flag.name == name);
        let flag = flag.unwrap_or_else(|| panic!("{name} is not in the flag table"));
        let given = self.values.get(name).map(String::as_str);
        given.or(Some(flag.default).filter(|default| !default.is_empty()))
    }

    /// The value as a number or another type that can be parsed; `None` if there is none.
    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let value = text
            .parse()
            .map_err(|_| Error::Usage(format!("{name}: cannot read {text:?}")))?;
        Ok(Some(value))
    }

    /// A number of a flag that has a default, from `least` on.
    pub fn number<T: FromStr + PartialOrd>(&self, name: &str, least: T) -> Result<T> {
        let value = self
            .parsed(name)?
            .ok_or_else(|| Error::Usage(format!("{name} is needed")))?;
        // NaN is not below anything, but it is not a number to count with either.
        if value >= least {
            Ok(value)
        } else {
            Err(Error::Usage(format!("{name} is too small")))
        }
    }

    /// A list of numbers separated by commas; empty if the flag has no value.
    pub fn numbers(&self, name: &str) -> Result<Vec<usize>> {
        let text = self.text(name).unwrap_or_default();
        let items = text.split(',').filter(|item| !item.is_empty());
        let read = |item: &str| item.parse().map_err(|_| Error::Usage(format!("{name}: {item:?}")));
        items.map(read).collect()
    }
}

/// The help text for a flag table.
pub fn help(table: &[&[Flag]]) -> String {
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
