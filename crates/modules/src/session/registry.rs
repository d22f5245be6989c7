//! The commands of the server, as modules see them.

use std::cell::Cell;
use std::sync::Arc;

use weft_command_table::registry::ModuleCategory;
use weft_command_table::spec::{Categories, KeyFlags};

use crate::module::Module;

/// The reason why the keys of a command are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysUnknown {
    /// There is no such command.
    NoSuchCommand,
    /// The number of arguments is wrong.
    WrongArity,
}

/// What modules may ask about commands, and change.
pub trait RegistryHost {
    /// Returns `true` if a new command may not have this name.
    fn is_command_name_taken(&self, name: &str) -> bool;
    /// Returns `true` if the server is a node of a cluster.
    fn is_clustered(&self) -> bool;
    /// Returns the ACL category of this name, in any case.
    fn acl_category(&self, name: &str) -> Option<Categories>;
    /// Returns the ACL categories that modules have added.
    fn module_categories(&self) -> Vec<ModuleCategory>;
    /// Returns the positions of the keys in a request, and the use of each.
    ///
    /// # Errors
    /// If the command does not exist or cannot have so many arguments.
    fn keys_of_command(&self, words: &[&[u8]]) -> Result<Vec<(usize, KeyFlags)>, KeysUnknown>;
    /// Makes the commands and ACL categories of a module available. The caller holds exclusive mode, or there are no
    /// clients yet.
    ///
    /// # Errors
    /// The reason for the log, if the server cannot have these commands.
    fn publish_commands(&self, module: &Arc<Module>) -> Result<(), String>;
    /// Removes the commands of a module; its ACL categories stay. The caller holds exclusive mode.
    fn remove_commands(&self, module: &str);
}

thread_local! {
    static IS_HOME_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread call modules without a session, for the positions of keys. The home worker calls this once.
pub fn become_home_thread() {
    IS_HOME_THREAD.set(true);
}

/// Returns `true` if the calling thread may call modules without a session.
pub fn is_home_thread() -> bool {
    IS_HOME_THREAD.get()
}
