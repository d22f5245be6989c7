//! The commands and categories that ACL rules can name.
//!
//! Rules use the original names of commands, regardless of `rename-command`, and may name every command of Valkey. The
//! first ids are those of the commands that exist here.

use std::collections::HashMap;

/// The id of a command or subcommand.
pub type CommandId = u16;

/// A command or subcommand.
#[derive(Debug)]
pub struct CatalogueEntry {
    /// The full name, for example `get` or `config|get`.
    pub full_name: Box<str>,
    /// The ids of the subcommands.
    pub subcommands: Vec<CommandId>,
}

impl CatalogueEntry {
    /// Returns `true` if it is a subcommand.
    pub fn is_subcommand(&self) -> bool {
        self.full_name.contains('|')
    }
}

/// A category: its name after `@`, and its members in the order of their ids.
#[derive(Debug)]
pub struct Category {
    /// The name.
    pub name: &'static str,
    /// The commands and subcommands.
    pub members: Vec<CommandId>,
}

/// All commands and categories.
#[derive(Debug)]
pub struct CommandCatalogue {
    entries: Vec<CatalogueEntry>,
    ids: HashMap<Box<str>, CommandId>,
    categories: Vec<Category>,
}

impl CommandCatalogue {
    /// Creates a catalogue. The ids of `entries` are their indexes.
    pub fn new(entries: Vec<CatalogueEntry>, categories: Vec<Category>) -> CommandCatalogue {
        let ids = entries.iter().map(|entry| entry.full_name.clone()).zip(0..).collect();
        CommandCatalogue {
            entries,
            ids,
            categories,
        }
    }

    /// Returns the number of commands and subcommands.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the id of the command or subcommand with this full name, ignoring case.
    pub fn find(&self, full_name: &[u8]) -> Option<CommandId> {
        let name = std::str::from_utf8(full_name).ok()?.to_ascii_lowercase();
        self.ids.get(name.as_str()).copied()
    }

    /// Returns the entry of an id that [`CommandCatalogue::find`] has returned.
    pub fn entry(&self, id: CommandId) -> &CatalogueEntry {
        &self.entries[usize::from(id)]
    }

    /// Returns all categories, in the order in which they are listed.
    pub fn categories(&self) -> &[Category] {
        &self.categories
    }

    /// Returns the category with this name, without the `@`, ignoring case.
    pub fn category(&self, name: &[u8]) -> Option<&Category> {
        let is_it = |category: &&Category| category.name.as_bytes().eq_ignore_ascii_case(name);
        self.categories.iter().find(is_it)
    }
}
