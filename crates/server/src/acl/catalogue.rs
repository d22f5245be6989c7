//! The commands as rules see them: their names, which belong together, which categories they are in.
//!
//! Rules go by the names that commands were born with, whatever `rename-command` made of them, and may name every
//! command that Valkey has. The first numbers are those of the commands that exist here.

use std::collections::HashMap;

/// The number of a command or subcommand.
pub type CommandId = u16;

/// A command or subcommand.
#[derive(Debug)]
pub struct Entry {
    /// `get`, or `config|get`.
    pub full_name: Box<str>,
    /// The subcommands.
    pub subcommands: Vec<CommandId>,
}

impl Entry {
    /// Whether it is a subcommand.
    pub fn is_subcommand(&self) -> bool {
        self.full_name.contains('|')
    }
}

/// A category: the name that stands behind `@`, and its members in the order of their numbers.
#[derive(Debug)]
pub struct Category {
    /// The name.
    pub name: &'static str,
    /// The commands and subcommands.
    pub members: Vec<CommandId>,
}

/// All commands and categories.
#[derive(Debug)]
pub struct Catalogue {
    entries: Vec<Entry>,
    ids: HashMap<Box<str>, CommandId>,
    categories: Vec<Category>,
}

impl Catalogue {
    /// A catalogue of `entries`, whose numbers are their places.
    pub fn new(entries: Vec<Entry>, categories: Vec<Category>) -> Catalogue {
        let ids = entries.iter().map(|entry| entry.full_name.clone()).zip(0..).collect();
        Catalogue {
            entries,
            ids,
            categories,
        }
    }

    /// How many commands and subcommands there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The command or subcommand with that full name, in any case.
    pub fn find(&self, full_name: &[u8]) -> Option<CommandId> {
        let name = std::str::from_utf8(full_name).ok()?.to_ascii_lowercase();
        self.ids.get(name.as_str()).copied()
    }

    /// The command of a number that [`Catalogue::find`] gave.
    pub fn entry(&self, id: CommandId) -> &Entry {
        &self.entries[usize::from(id)]
    }

    /// All categories, in the order in which they are shown.
    pub fn categories(&self) -> &[Category] {
        &self.categories
    }

    /// The category with that name, in any case, without the `@`.
    pub fn category(&self, name: &[u8]) -> Option<&Category> {
        let is_it = |category: &&Category| category.name.as_bytes().eq_ignore_ascii_case(name);
        self.categories.iter().find(is_it)
    }
}
