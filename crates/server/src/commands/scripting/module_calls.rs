//! Scripts that call commands of modules.

use crate::commands::context::Binding;
use weft_command_table::registry::Command;
use weft_modules::module::command::Concurrency;

/// Returns `true` if the code of a script contains the name of a command of a module that runs at home.
pub fn names_module_command(code: &[u8]) -> bool {
    let code = code.to_ascii_lowercase();
    let commands = crate::commands::registry().commands().iter();
    let mut names = commands
        .filter(|command| runs_at_home(command))
        .map(|command| command.full_name);
    names.any(|name| {
        let name = name.split('|').next().unwrap_or_default().to_ascii_lowercase();
        memchr::memmem::find(&code, name.as_bytes()).is_some()
    })
}

/// Returns `true` if a script may call a command of a module only on the home worker. One of the serial way cannot wait
/// for the others while the script holds leases; in exclusive mode there are none.
pub fn runs_at_home(command: &Command<Binding>) -> bool {
    let is_home = |binding: Binding| match binding.module_command {
        Some(command) => command.concurrency() != Concurrency::SlotSafe,
        None => binding.calls_modules,
    };
    command.handler.is_some_and(is_home)
}
