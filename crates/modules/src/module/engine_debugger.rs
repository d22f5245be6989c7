//! The debugger for scripts of engines: commands of its user, which the engine executes.
//!
//! An engine that stops calls [`process_commands`]. Two commands are the same for all engines, `help` and `maxlen`; the
//! others are functions of the engine. One engine at a time has its debugger enabled.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use weft_os::sync::Mutex;

use super::engines::Engine;
use crate::objects::string::ModuleString;
use crate::session;
use crate::session::engines::{CommandHelp, ConsoleInput, EngineConsole};

/// A parameter of a command (`ValkeyModuleScriptingEngineDebuggerCommandParam`).
#[repr(C)]
struct Parameter {
    name: *const c_char,
    is_optional: c_int,
    is_variadic: c_int,
}

/// The function of a command. It returns a number other than 0 if further commands are to be read.
type CommandFunction = unsafe extern "C" fn(*mut *mut ModuleString, usize, *mut c_void) -> c_int;

/// A command of an engine (`ValkeyModuleScriptingEngineDebuggerCommand`).
#[repr(C)]
pub struct DebuggerCommand {
    version: u64,
    name: *const c_char,
    prefix_len: usize,
    parameters: *const Parameter,
    parameter_count: usize,
    description: *const c_char,
    is_invisible: c_int,
    function: Option<CommandFunction>,
    context: *mut c_void,
}

const _: () = assert!(size_of::<DebuggerCommand>() == 72 && size_of::<Parameter>() == 16);

/// The commands of the engine whose debugger is enabled.
struct EnabledCommands {
    engine: Arc<Engine>,
    commands: *const DebuggerCommand,
    count: usize,
}

// SAFETY: the commands are the engine's, and are only used where the code of modules runs.
unsafe impl Send for EnabledCommands {}

static ENABLED: Mutex<Option<EnabledCommands>> = Mutex::new(None);

/// Sets the commands of an engine whose debugger was enabled. They live as long as it is.
pub(super) fn set_commands(engine: &Arc<Engine>, commands: *const DebuggerCommand, count: usize) {
    *ENABLED.lock() = Some(EnabledCommands {
        engine: engine.clone(),
        commands,
        count: if commands.is_null() { 0 } else { count },
    });
}

/// Forgets the commands of an engine.
pub(super) fn forget_commands(engine: &Engine) {
    ENABLED.lock().take_if(|enabled| std::ptr::eq(&*enabled.engine, engine));
}

/// Returns `true` if the debugger of an engine is enabled.
pub fn is_enabled(engine: &Engine) -> bool {
    let enabled = ENABLED.lock();
    enabled
        .as_ref()
        .is_some_and(|enabled| std::ptr::eq(&*enabled.engine, engine))
}

/// Calls `run` with the console of the script that runs, if it is debugged.
pub fn with_console<R>(run: impl FnOnce(&mut dyn EngineConsole) -> R) -> Option<R> {
    session::current(|session| session.console().map(run)).flatten()
}

/// The reason why no further commands are read.
pub enum CommandsEnd {
    /// The script goes on.
    Continues,
    /// The user has disconnected.
    Disconnected,
    /// The input is no command; this is the error.
    Failed(&'static str),
}

/// Executes commands of the user until one lets the script go on.
pub fn process_commands() -> CommandsEnd {
    loop {
        let words = match with_console(|console| console.next_input()) {
            None | Some(ConsoleInput::Disconnected) => return CommandsEnd::Disconnected,
            Some(ConsoleInput::Invalid(text)) => return CommandsEnd::Failed(text),
            Some(ConsoleInput::Words(words)) => words,
        };
        if !execute(&words) {
            return CommandsEnd::Continues;
        }
    }
}

/// Returns `true` if a word is a command: its name, or the first letters that abbreviate it.
fn is_called(name: &[u8], prefix_len: usize, word: &[u8]) -> bool {
    let is_short = word.len() == prefix_len
        && name
            .get(..prefix_len)
            .is_some_and(|prefix| prefix.eq_ignore_ascii_case(word));
    (prefix_len > 0 && is_short) || name.eq_ignore_ascii_case(word)
}

/// Executes a command. Returns `false` if the script goes on.
fn execute(words: &[Vec<u8>]) -> bool {
    let Some(name) = words.first() else {
        return true;
    };
    if is_called(b"help", 1, name) && words.len() == 1 {
        with_console(|console| {
            let (engine, commands) = help();
            console.log_help(&engine, &commands);
            console.flush();
        });
        return true;
    }
    if is_called(b"maxlen", 3, name) && words.len() <= 2 {
        with_console(|console| {
            console.set_shown_bytes(words.get(1).map(Vec::as_slice));
            console.flush();
        });
        return true;
    }
    let Some((function, context)) = find(words) else {
        with_console(|console| {
            console.log(b"<error> Unknown debugger command or wrong number of arguments.", false);
            console.flush();
        });
        return true;
    };
    let mut strings: Vec<*mut ModuleString> = words.iter().map(|word| ModuleString::create(word)).collect();
    // SAFETY: the function and its context are the engine's, and the strings live until it has returned.
    let result = unsafe { function(strings.as_mut_ptr(), strings.len(), context) };
    for string in strings {
        // SAFETY: this function is a holder of each string.
        unsafe { ModuleString::release(string) };
    }
    result != 0
}

/// Returns the bytes of a C string; none for null.
///
/// # Safety
/// The pointer is null, or that of a C string that lives for `'a`.
unsafe fn text_of<'a>(text: *const c_char) -> &'a [u8] {
    match text.is_null() {
        true => b"",
        // SAFETY: the caller promises it.
        false => unsafe { CStr::from_ptr(text) }.to_bytes(),
    }
}

impl EnabledCommands {
    fn commands(&self) -> &[DebuggerCommand] {
        match self.count {
            0 => &[],
            // SAFETY: the engine has returned a list of this length, which lives as long as its debugger is enabled.
            count => unsafe { std::slice::from_raw_parts(self.commands, count) },
        }
    }
}

impl DebuggerCommand {
    fn parameters(&self) -> &[Parameter] {
        match self.parameters.is_null() {
            true => &[],
            // SAFETY: the engine has returned a list of this length.
            false => unsafe { std::slice::from_raw_parts(self.parameters, self.parameter_count) },
        }
    }

    fn accepts(&self, arguments: usize) -> bool {
        let parameters = self.parameters();
        let mandatory = parameters.iter().filter(|parameter| parameter.is_optional == 0).count();
        let is_variadic = parameters.iter().any(|parameter| parameter.is_variadic != 0);
        (is_variadic && arguments > 0) || (mandatory..=parameters.len()).contains(&arguments)
    }
}

/// Returns the function of the engine's command that the words call, and its context.
fn find(words: &[Vec<u8>]) -> Option<(CommandFunction, *mut c_void)> {
    let enabled = ENABLED.lock();
    let (name, arguments) = words.split_first()?;
    let mut commands = enabled.as_ref()?.commands().iter();
    let command = commands.find(|command| {
        // SAFETY: names are C strings of the engine.
        is_called(unsafe { text_of(command.name) }, command.prefix_len, name) && command.accepts(arguments.len())
    })?;
    Some((command.function?, command.context))
}

/// Returns the name of the engine and its commands, for the help text.
fn help() -> (String, Vec<CommandHelp>) {
    let enabled = ENABLED.lock();
    let Some(enabled) = enabled.as_ref() else {
        return Default::default();
    };
    let shown = |text: *const c_char| {
        // SAFETY: names and descriptions are C strings of the engine.
        String::from_utf8_lossy(unsafe { text_of(text) }).into_owned()
    };
    let parameter = |parameter: &Parameter| match parameter.is_optional {
        0 => format!(" <{}>", shown(parameter.name)),
        _ => format!(" [{}]", shown(parameter.name)),
    };
    let visible = enabled.commands().iter().filter(|command| command.is_invisible == 0);
    let commands = visible.map(|command| CommandHelp {
        name: shown(command.name),
        short_len: command.prefix_len,
        parameters: command.parameters().iter().map(parameter).collect(),
        description: shown(command.description),
    });
    (enabled.engine.name.to_string(), commands.collect())
}

#[cfg(test)]
mod tests {
    use super::is_called;

    #[test]
    fn commands_have_short_forms() {
        assert!(is_called(b"step", 1, b"S"));
        assert!(is_called(b"step", 1, b"Step"));
        assert!(!is_called(b"step", 1, b"st"));
        assert!(!is_called(b"step", 0, b""));
        assert!(is_called(b"stack", 2, b"st"));
        assert!(!is_called(b"go", 5, b"go on"));
    }
}
