//! Scripting engines of modules: what they need of the server.

use std::sync::Arc;

use crate::module::engines::Engine;

/// What a thread may do while a function of an engine runs.
pub trait EngineSession {
    /// Lets other clients be served if the script that runs has lasted long. Returns `true` if the script is to end,
    /// because a client has killed it. Returns `false` if no script runs.
    fn check_script(&mut self) -> bool;
    /// Returns the debugger's connection to its user, if the script that runs is debugged.
    fn console(&mut self) -> Option<&mut dyn EngineConsole>;
}

/// What the user of a debugger has sent.
pub enum ConsoleInput {
    /// A command and its arguments.
    Words(Vec<Vec<u8>>),
    /// Bytes that are no command; this is the error.
    Invalid(&'static str),
    /// The user has disconnected.
    Disconnected,
}

/// A command of a debugger, for its help text.
pub struct CommandHelp {
    /// The name.
    pub name: String,
    /// The length of its short form; 0 if there is none.
    pub short_len: usize,
    /// What is shown behind the name.
    pub parameters: String,
    /// The description.
    pub description: String,
}

/// The connection of a debugger to its user. Lines are kept until they are sent together.
pub trait EngineConsole {
    /// Adds a line. With `is_trimmed`, at most as much of it is shown as the user wants to see.
    fn log(&mut self, line: &[u8], is_trimmed: bool);
    /// Adds a line with a reply of a command, in readable form.
    fn log_reply(&mut self, reply: &[u8]);
    /// Adds the help text for these commands of an engine, and those that all engines have.
    fn log_help(&mut self, engine: &str, commands: &[CommandHelp]);
    /// Sends all lines.
    fn flush(&mut self);
    /// Shows or sets how much of a long line is shown.
    fn set_shown_bytes(&mut self, word: Option<&[u8]>);
    /// Waits for input of the user.
    fn next_input(&mut self) -> ConsoleInput;
}

/// What any thread may do with engines.
pub trait EngineHost {
    /// Makes an engine available. Returns `false` if there is one of its name.
    fn add_engine(&self, engine: &Arc<Engine>) -> bool;
    /// Removes an engine, with all its scripts and libraries. The caller holds exclusive mode.
    fn remove_engine(&self, engine: &Engine);
}

#[cfg(test)]
impl EngineSession for super::fake::FakeSession {
    fn check_script(&mut self) -> bool {
        false
    }

    fn console(&mut self) -> Option<&mut dyn EngineConsole> {
        None
    }
}
