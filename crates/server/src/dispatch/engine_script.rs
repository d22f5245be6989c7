//! A script of a module's engine while it runs, and its debugger.

use std::sync::Arc;

use weft_modules::session::engines::{CommandHelp, ConsoleInput, EngineConsole};
use weft_scripting::{Debugger, DebuggerRequest, EngineCommandHelp, ScriptRun};

/// A script of an engine that runs.
pub struct EngineScript {
    /// The run, which clients may kill.
    pub run: Arc<ScriptRun>,
    /// `true` if it must not write.
    pub is_read_only: bool,
    /// `true` if it may run when memory is short.
    pub allows_oom: bool,
}

/// The debugger of a script of an engine.
pub struct EngineDebugger(pub Debugger);

impl EngineConsole for EngineDebugger {
    fn log(&mut self, line: &[u8], is_trimmed: bool) {
        match is_trimmed {
            true => self.0.log_trimmed(line.to_vec()),
            false => self.0.log_line(line),
        }
    }

    fn log_reply(&mut self, reply: &[u8]) {
        self.0.log_readable_reply(reply);
    }

    fn log_help(&mut self, engine: &str, commands: &[CommandHelp]) {
        let commands = commands.iter().map(|command| EngineCommandHelp {
            name: command.name.clone(),
            short_len: command.short_len,
            parameters: command.parameters.clone(),
            description: command.description.clone(),
        });
        self.0.log_engine_help(engine, &commands.collect::<Vec<_>>());
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn set_shown_bytes(&mut self, word: Option<&[u8]>) {
        self.0.set_shown_bytes(word);
    }

    fn next_input(&mut self) -> ConsoleInput {
        match self.0.next_request() {
            DebuggerRequest::Words(words) => ConsoleInput::Words(words),
            DebuggerRequest::Malformed => ConsoleInput::Invalid("protocol error"),
            DebuggerRequest::TooLong => ConsoleInput::Invalid("max client buffer reached"),
            DebuggerRequest::Disconnected => ConsoleInput::Disconnected,
        }
    }
}
