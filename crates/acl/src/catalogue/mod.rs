//! The commands and categories that ACL rules can name.
//!
//! Rules use the original names of commands, regardless of `rename-command`, and may name every command of Valkey. The
//! first ids are those of the commands that exist here.

use std::collections::{HashMap, HashSet};

use weft_command_table::registry::ModuleCategory;
use weft_command_table::spec::{Categories, CommandSpec, Group, command};
use weft_command_table::tables::TABLES;

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
        let lower_case = |entry: &CatalogueEntry| entry.full_name.to_ascii_lowercase().into_boxed_str();
        let ids = entries
            .iter()
            .map(lower_case)
            .zip(0..)
            .filter(|(name, _)| !name.is_empty());
        let ids = ids.collect();
        CommandCatalogue {
            entries,
            ids,
            categories,
        }
    }

    /// Creates the catalogue of all commands of Valkey and of modules. Those in `implemented`, which yields full names,
    /// get the first ids, in the same order. Rules cannot name a command whose name is empty. The other commands get
    /// ids from `reserved` on, so that ids do not change when modules add commands.
    pub fn of_table<'a>(
        implemented: impl IntoIterator<Item = (&'a str, &'static CommandSpec)>,
        reserved: usize,
        module_categories: &[ModuleCategory],
    ) -> CommandCatalogue {
        static NO_COMMAND: CommandSpec = command("", -1, Group::Module, "");
        let mut specs: Vec<(Box<str>, &'static CommandSpec)> = implemented
            .into_iter()
            .map(|(name, spec)| (name.into(), spec))
            .collect();
        let missing = reserved.saturating_sub(specs.len());
        specs.extend(std::iter::repeat_n(("".into(), &NO_COMMAND), missing));
        add_missing(&mut specs);
        let of_modules = module_categories.iter().map(|known| (known.category, known.name));
        let categories = Categories::named().chain(of_modules).map(|(category, name)| Category {
            name,
            members: (0..)
                .zip(&specs)
                .filter(|(_, (full_name, spec))| !full_name.is_empty() && spec.acl_categories.contains(category))
                .map(|(id, _)| id)
                .collect(),
        });
        let categories = categories.collect();
        let mut entries: Vec<CatalogueEntry> = specs
            .into_iter()
            .map(|(full_name, _)| CatalogueEntry {
                full_name,
                subcommands: Vec::new(),
            })
            .collect();
        attach_subcommands(&mut entries);
        CommandCatalogue::new(entries, categories)
    }

    /// Returns the number of commands and subcommands.
    pub fn command_count(&self) -> usize {
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

/// Adds the commands of the table that are not in `specs`.
fn add_missing(specs: &mut Vec<(Box<str>, &'static CommandSpec)>) {
    let known: HashSet<Box<str>> = specs.iter().map(|(name, _)| name.clone()).collect();
    let mut add = |name: Box<str>, spec| {
        if !known.contains(&name) {
            specs.push((name, spec));
        }
    };
    for spec in TABLES.iter().copied().flatten() {
        add(spec.name.into(), spec);
        for subcommand in spec.subcommands {
            add(format!("{}|{}", spec.name, subcommand.name).into(), subcommand);
        }
    }
}

/// Enters each subcommand in the list of its container.
fn attach_subcommands(entries: &mut [CatalogueEntry]) {
    for id in 0..entries.len() {
        let Some((container, _)) = entries[id].full_name.split_once('|') else {
            continue;
        };
        let is_container = |entry: &CatalogueEntry| entry.full_name.eq_ignore_ascii_case(container);
        let container = entries.iter().position(is_container);
        if let Some(container) = container {
            entries[container].subcommands.push(id as CommandId);
        }
    }
}

#[cfg(test)]
mod tests;
