//! The commands and ACL categories that one module has registered.

use std::sync::Arc;

use weft_command_table::registry::ModuleCategory;
use weft_os::sync::Mutex;

use super::Module;
use super::command::ModuleCommand;
use crate::objects::user::end_authentications;
use crate::session::{current, host};

/// What a module has registered. A module registers commands only while its load function runs; the server takes them
/// over when that has succeeded ([`publish`]).
#[derive(Default)]
pub struct RegisteredCommands(Mutex<State>);

#[derive(Default)]
struct State {
    commands: Vec<&'static ModuleCommand>,
    categories: Vec<ModuleCategory>,
    is_published: bool,
}

impl RegisteredCommands {
    /// Adds a command or subcommand.
    pub fn add(&self, command: &'static ModuleCommand) {
        self.0.lock().commands.push(command);
    }

    /// Returns all commands and subcommands, containers before their subcommands.
    pub fn all(&self) -> Vec<&'static ModuleCommand> {
        self.0.lock().commands.clone()
    }

    /// Returns the command or subcommand of this full name, in any case.
    pub fn find(&self, full_name: &[u8]) -> Option<&'static ModuleCommand> {
        let state = self.0.lock();
        let is_it = |command: &&&ModuleCommand| command.full_name.as_bytes().eq_ignore_ascii_case(full_name);
        state.commands.iter().find(is_it).copied()
    }

    /// Adds an ACL category.
    pub fn add_category(&self, category: ModuleCategory) {
        self.0.lock().categories.push(category);
    }

    /// Returns the ACL categories.
    pub fn categories(&self) -> Vec<ModuleCategory> {
        self.0.lock().categories.clone()
    }

    /// Returns `true` if clients can use the commands.
    pub fn are_published(&self) -> bool {
        self.0.lock().is_published
    }
}

/// Makes the commands of a module available to clients, or what it has added to them later. The caller holds exclusive
/// mode, or there are no clients yet.
///
/// # Errors
/// The reason for the log, if the server cannot have these commands.
pub fn publish(module: &Arc<Module>) -> Result<(), String> {
    let Some(host) = host() else { return Ok(()) };
    host.publish_commands(module)?;
    if !std::mem::replace(&mut module.commands.0.lock().is_published, true) {
        let gone = module.clone();
        module.add_cleanup(move || {
            for client_id in end_authentications(&gone) {
                current(|session| session.deauthenticate(client_id));
            }
            host.remove_commands(&gone.name());
        });
    }
    Ok(())
}
