//! Commands that modules have registered, as the dispatcher runs them.

use std::ffi::c_int;
use std::sync::Arc;

use super::Module;
use crate::objects::context::Context;
use crate::objects::string::ModuleString;

/// The function of a module that executes a command (`ValkeyModuleCmdFunc`).
pub type CommandFunction = unsafe extern "C" fn(*mut Context, *mut *mut ModuleString, c_int) -> c_int;

/// A command of a module. The registry that names it is never freed, and so is this.
pub struct ModuleCommand {
    /// The module.
    pub module: Arc<Module>,
    /// The full name of the command, in lower case.
    pub full_name: Box<str>,
    /// The function; `None` for a command that only has subcommands.
    pub function: Option<CommandFunction>,
}
