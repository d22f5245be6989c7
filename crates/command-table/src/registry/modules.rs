//! Commands of modules in the registry.
//!
//! 1. A registry never changes. Modules that are loaded or unloaded make a new one, of which the commands that stay are
//!    the same objects. Registries of the past stay, because threads may still use them; so those made here share the
//!    names that do not change, which are most of a registry.
//! 2. An id belongs to one full name for as long as the process runs: clients have queued commands by their ids, and
//!    statistics and waiting clients know them as well. The id of a command that is gone has a command that answers
//!    with an error, and gets another one when a command of that name comes back.

use super::{Command, NameIndex, Registry};
use crate::spec::{Categories, CommandSpec, Group, command};

/// The largest number of different commands and subcommands that modules may register while the process runs.
const MAX_MODULE_COMMANDS: usize = 1024;

/// The metadata of a command that is gone.
static GONE: CommandSpec = command("", -1, Group::Module, "");

/// A command of a module, or a subcommand, with its handler.
#[derive(Clone, Debug)]
pub struct ModuleCommandBinding<H> {
    /// The metadata. The name may have letters of both cases.
    pub spec: &'static CommandSpec,
    /// The full name.
    pub full_name: &'static str,
    /// The handler.
    pub handler: H,
    /// The subcommands.
    pub subcommands: Vec<ModuleCommandBinding<H>>,
}

/// An ACL category that a module has added.
#[derive(Clone, Copy, Debug)]
pub struct ModuleCategory {
    /// The category.
    pub category: Categories,
    /// The name without the `@`.
    pub name: &'static str,
    /// The name of the module.
    pub module: &'static str,
}

/// The reason why commands were not added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddCommandsError {
    /// Another command has the name, or a client could not send it.
    NameTaken(String),
    /// Modules have registered too many different commands.
    TooMany,
}

impl<H: Copy> Registry<H> {
    /// The largest number of different commands and subcommands that modules may register while the process runs.
    pub const MAX_MODULE_COMMANDS: usize = MAX_MODULE_COMMANDS;

    /// Returns a registry with the commands of this one and those of a module.
    ///
    /// # Errors
    /// If a name is taken, or if there are too many commands.
    pub fn with_module_commands(&self, added: &[ModuleCommandBinding<H>]) -> Result<Registry<H>, AddCommandsError> {
        let mut registry = self.copy();
        let mut new_names = Vec::new();
        for binding in added {
            let name = binding.full_name.to_ascii_lowercase().into_bytes();
            let is_new = |(other, _): &(Vec<u8>, u16)| *other != name;
            let is_free = !name.is_empty()
                && self.command(&name).is_none()
                && self.find_by_original_name(&name).is_none()
                && new_names.iter().all(is_new);
            if !is_free {
                return Err(AddCommandsError::NameTaken(binding.full_name.to_owned()));
            }
            let id = registry.add_module_command(binding)?;
            new_names.push((name, id));
        }
        registry.add_names(&new_names);
        Ok(registry)
    }

    /// Returns a registry without the commands and subcommands of a module. `gone` answers those who still send one
    /// that they have queued.
    pub fn without_module_commands(&self, module: &str, gone: H) -> Registry<H> {
        let mut registry = self.copy();
        let removed: Vec<u16> = self.module_commands(module).map(|command| command.id).collect();
        for id in &removed {
            registry.commands[usize::from(*id)] = Box::leak(Box::new(Command {
                spec: &GONE,
                handler: Some(gone),
                id: *id,
                full_name: "",
                subcommand_ids: Box::default(),
                subcommand_index: NameIndex::default(),
                is_named_by_one_word: true,
            }));
        }
        let mut names = registry.module_index.names.to_vec();
        names.retain(|(_, id)| !removed.contains(id));
        registry.module_index = NameIndex::new(names);
        registry
    }

    /// Returns a registry with further ACL categories. A known one is left out.
    pub fn with_module_categories(&self, added: &[ModuleCategory]) -> Registry<H> {
        let mut registry = self.copy();
        for new in added {
            if registry.category(new.name.as_bytes()).is_none() {
                registry.module_categories.push(*new);
            }
        }
        registry
    }

    fn copy(&self) -> Registry<H> {
        Registry {
            commands: self.commands.clone(),
            index: self.index.clone(),
            original_index: self.original_index.clone(),
            module_index: self.module_index.clone(),
            built_in_count: self.built_in_count,
            module_ids: self.module_ids.clone(),
            module_categories: self.module_categories.clone(),
        }
    }

    /// Adds a command and its subcommands, without its name. Returns its id.
    fn add_module_command(&mut self, binding: &ModuleCommandBinding<H>) -> Result<u16, AddCommandsError> {
        let id = self.id_for(binding.full_name)?;
        let mut subcommands = Vec::new();
        for subcommand in &binding.subcommands {
            let name = subcommand.spec.name.to_ascii_lowercase().into_bytes();
            if name.is_empty() || subcommands.iter().any(|(other, _)| *other == name) {
                return Err(AddCommandsError::NameTaken(subcommand.full_name.to_owned()));
            }
            let id = self.id_for(subcommand.full_name)?;
            self.commands[usize::from(id)] = leak(subcommand, id, Vec::new(), false);
            subcommands.push((name, id));
        }
        let is_one_word = subcommands.is_empty();
        self.commands[usize::from(id)] = leak(binding, id, subcommands, is_one_word);
        Ok(id)
    }

    /// Returns the id of the module command with this full name. A new one gets a place in `commands`.
    fn id_for(&mut self, full_name: &str) -> Result<u16, AddCommandsError> {
        let name = full_name.to_ascii_lowercase();
        if let Some((_, id)) = self.module_ids.iter().find(|(known, _)| *known == name) {
            return Ok(*id);
        }
        if self.module_ids.len() >= MAX_MODULE_COMMANDS {
            return Err(AddCommandsError::TooMany);
        }
        let id = self.commands.len() as u16;
        let placeholder = self.commands[0];
        self.commands.push(placeholder);
        self.module_ids.push((name, id));
        Ok(id)
    }

    fn add_names(&mut self, new_names: &[(Vec<u8>, u16)]) {
        let mut names = self.module_index.names.to_vec();
        names.extend_from_slice(new_names);
        names.sort_unstable_by_key(|(_, id)| *id);
        self.module_index = NameIndex::new(names);
    }
}

impl<H> Registry<H> {
    /// Returns the number of commands and subcommands that are not those of modules. They have the first ids.
    pub fn built_in_count(&self) -> usize {
        self.built_in_count
    }

    /// Returns the commands and subcommands of a module, by id.
    pub fn module_commands(&self, module: &str) -> impl Iterator<Item = &'static Command<H>> {
        let all = self.commands[self.built_in_count..].iter().copied();
        all.filter(move |command| command.spec.module == module)
    }

    /// Returns the ACL categories that modules have added.
    pub fn module_categories(&self) -> &[ModuleCategory] {
        &self.module_categories
    }

    /// Returns the ACL category of that name, in any case and without the `@`.
    pub fn category(&self, name: &[u8]) -> Option<Categories> {
        let is_named = |known: &&ModuleCategory| known.name.as_bytes().eq_ignore_ascii_case(name);
        let of_module = || self.module_categories.iter().find(is_named).map(|known| known.category);
        Categories::parse(name).or_else(of_module)
    }

    /// Returns the names of `categories`, in the order of printing.
    pub fn category_names(&self, categories: Categories) -> Vec<&'static str> {
        let of_modules = self.module_categories.iter();
        let of_modules = of_modules.filter(|known| categories.contains(known.category));
        categories.names().chain(of_modules.map(|known| known.name)).collect()
    }
}

/// Makes a command that lives as long as the process.
fn leak<H: Copy>(
    binding: &ModuleCommandBinding<H>,
    id: u16,
    subcommands: Vec<(Vec<u8>, u16)>,
    is_named_by_one_word: bool,
) -> &'static Command<H> {
    Box::leak(Box::new(Command {
        spec: binding.spec,
        handler: Some(binding.handler),
        id,
        full_name: binding.full_name,
        subcommand_ids: subcommands.iter().map(|(_, id)| *id).collect(),
        subcommand_index: NameIndex::new(subcommands),
        is_named_by_one_word,
    }))
}
