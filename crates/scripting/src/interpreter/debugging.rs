//! The debugger's operations in a Lua state: it stops the script between two lines, reads its variables and runs code
//! for the user.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::{HookTriggers, Lua, LuaString, MultiValue, Table, Value, VmState};
use weft_lua::LocalVariables;

use super::gate;
use super::{Interpreter, InterpreterShared, ScriptKind};
use crate::debugger::{Debugger, DebuggerCommand, append_value};
use crate::run_checks::stop_error;
use crate::running::StopReason;
use crate::{Scripts, errors};

/// A debugger session, shared by all callbacks that report to it.
pub type DebugSession = Rc<RefCell<Debugger>>;

/// The number of Lua instructions between two checks for the end of the session.
const INSTRUCTIONS_PER_CHECK: u32 = 100_000;
/// The chunk name of code that the user runs.
const EVAL_NAME: &str = "@ldb_eval";
/// The chunk name of the prelude, whose functions are hidden from users.
const PRELUDE: &str = "weft";

/// Makes scripts on this thread run in a debugger session from now on.
///
/// # Errors
/// The text of the error reply if no state can be created.
pub fn begin_debugging(scripts: &Scripts, session: &DebugSession) -> Result<(), Vec<u8>> {
    let made = Interpreter::with_debugger(scripts, session).map_err(crate::arguments::message)?;
    super::INTERPRETERS.with_borrow_mut(|interpreters| {
        let place = &mut interpreters[ScriptKind::Eval as usize];
        if let Some(old) = place.replace(made) {
            scripts.update_interpreter_bytes(ScriptKind::Eval, old.flushes, old.counted_bytes, 0);
        }
    });
    Ok(())
}

/// Adds the native functions with which scripts report to their debugger.
pub(super) fn add_natives(lua: &Lua, natives: &Table, session: &DebugSession) -> mlua::Result<()> {
    let stopping = session.clone();
    let breakpoint = lua.create_function(move |_, ()| {
        stopping.borrow_mut().stop_at_next_line();
        Ok(true)
    })?;
    natives.raw_set("breakpoint", breakpoint)?;
    let telling = session.clone();
    let debug = lua.create_function(move |_, values: MultiValue| {
        let mut debugger = telling.borrow_mut();
        let mut line = format!("<debug> line {}: ", debugger.line()).into_bytes();
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                line.extend_from_slice(b", ");
            }
            append_value(value, &mut line);
        }
        debugger.log_line(line);
        Ok(())
    })?;
    natives.raw_set("debug", debug)?;
    let noting = session.clone();
    let note_error = lua.create_function(move |_, text: LuaString| {
        let text = text.as_bytes();
        let dash: &[u8] = if text.starts_with(b"-") { b"" } else { b"-" };
        noting.borrow_mut().log_error(&[dash, &text].concat());
        Ok(())
    })?;
    natives.raw_set("note_error", note_error)
}

/// The debugger's access to the state while the script is stopped.
struct Inspector {
    session: DebugSession,
    shared: Rc<InterpreterShared>,
    locals: LocalVariables,
    /// Runs a function. Returns `true` and its result, or `false` and its error.
    attempt: mlua::Function,
    /// Set while code of the user runs, which is not stopped.
    is_evaluating: Cell<bool>,
}

/// Installs the hook that stops the script at the user's breakpoints.
pub(super) fn install_debug_hook(
    lua: &Lua,
    shared: &Rc<InterpreterShared>,
    program: &Table,
    session: &DebugSession,
    locals: LocalVariables,
) -> mlua::Result<()> {
    let inspector = Inspector {
        session: session.clone(),
        shared: shared.clone(),
        locals,
        attempt: program.raw_get("attempt")?,
        is_evaluating: Cell::new(false),
    };
    let triggers = HookTriggers::new()
        .every_line()
        .every_nth_instruction(INSTRUCTIONS_PER_CHECK);
    lua.set_global_hook(triggers, move |lua, frame| {
        let is_line = matches!(frame.event(), mlua::debug::DebugEvent::Line);
        if !is_line && inspector.is_session_over() {
            return Err(inspector.end_script());
        }
        if !is_line || inspector.is_evaluating.get() {
            return Ok(VmState::Continue);
        }
        let source = frame.source();
        let name = source.short_src.as_deref().unwrap_or_default();
        if name != PRELUDE {
            let line = frame.current_line().map_or(-1, |line| line as i64);
            inspector.session.borrow_mut().set_line(line);
            if name.contains("user_script") {
                inspector.handle_line(lua)?;
            }
        }
        Ok(VmState::Continue)
    })
}

impl Inspector {
    /// Handles the event that the script is about to run a line of its own.
    fn handle_line(&self, lua: &Lua) -> mlua::Result<()> {
        let Some(reason) = self.session.borrow_mut().take_stop_reason() else {
            return Ok(());
        };
        self.session.borrow_mut().report_stop(reason);
        loop {
            let order = self.session.borrow_mut().next_command();
            match order {
                DebuggerCommand::Step | DebuggerCommand::Continue => return Ok(()),
                DebuggerCommand::Disconnected if self.is_session_over() => return Err(self.end_script()),
                DebuggerCommand::Disconnected => return Ok(()),
                DebuggerCommand::Abort => return Err(errors::reply(b"ERR script aborted for user request", false)),
                DebuggerCommand::Fail(text) => return Err(errors::reply(text.as_bytes(), false)),
                DebuggerCommand::Print(name) => self.print(lua, name.as_deref()),
                DebuggerCommand::Trace => self.trace(lua),
                DebuggerCommand::Eval(code) => self.evaluate(lua, &code)?,
                DebuggerCommand::Call(words) => self.call(lua, &words)?,
            }
            self.session.borrow_mut().flush();
        }
    }

    /// Returns `true` if the script is to end.
    fn is_session_over(&self) -> bool {
        let current = self.shared.checks.run.borrow();
        let has_written = current.as_ref().is_some_and(|current| current.run.has_written());
        self.session.borrow_mut().is_over(has_written)
    }

    /// Returns the error that ends the script and that it cannot catch.
    fn end_script(&self) -> mlua::Error {
        if let Some(current) = self.shared.checks.run.borrow().as_ref() {
            current.run.stop(StopReason::Shutdown);
        }
        stop_error()
    }

    /// Returns the error that ends the script if its run was stopped.
    fn check_stopped(&self) -> mlua::Result<()> {
        let current = self.shared.checks.run.borrow();
        match current
            .as_ref()
            .is_some_and(|current| current.run.stop_reason().is_some())
        {
            true => Err(stop_error()),
            false => Ok(()),
        }
    }

    fn say_value(&self, before: &[u8], value: &Value) {
        let mut line = before.to_vec();
        append_value(value, &mut line);
        self.session.borrow_mut().log_trimmed(line);
    }

    // ---- looking ---------------------------------------------------------------------------------------------------
    /// Returns the stack levels of the script's own functions, with their names and current lines.
    fn own_levels(lua: &Lua) -> Vec<(usize, Option<String>, i64)> {
        let mut levels = Vec::new();
        for level in 0.. {
            let found = lua.inspect_stack(level, |frame| {
                let source = frame.source();
                let is_own = source
                    .short_src
                    .as_deref()
                    .is_some_and(|name| name.contains("user_script"));
                let name = frame.names().name.map(|name| name.into_owned());
                is_own.then(|| (level, name, frame.current_line().map_or(-1, |line| line as i64)))
            });
            match found {
                None => break,
                Some(found) => levels.extend(found),
            }
        }
        levels
    }

    fn variables(&self, level: usize) -> impl Iterator<Item = (Vec<u8>, Value)> + '_ {
        (1..).map_while(move |index| self.locals.get(level, index))
    }

    fn print(&self, lua: &Lua, name: Option<&[u8]>) {
        match name {
            Some(name) => self.print_one(lua, name.split(|byte| *byte == 0).next().unwrap_or_default()),
            None => self.print_all(),
        }
    }

    fn print_one(&self, lua: &Lua, name: &[u8]) {
        let mut levels = Self::own_levels(lua).into_iter();
        // The first variable of that name in the innermost function that has one.
        let found = levels.find_map(|(level, ..)| self.variables(level).find(|(known, _)| known == name));
        let value = match (found, name) {
            (Some((_, value)), _) => value,
            (None, b"KEYS" | b"ARGV") => match lua.globals().get::<Value>(&*String::from_utf8_lossy(name)) {
                Ok(value) => value,
                Err(_) => Value::Nil,
            },
            (None, _) => return self.session.borrow_mut().log_line("No such variable."),
        };
        self.say_value(b"<value> ", &value);
    }

    fn print_all(&self) {
        let mut any = false;
        for (name, value) in self.variables(0) {
            if !name.starts_with(b"(*temporary)") {
                any = true;
                self.say_value(&[b"<value> ", &name[..], b" = "].concat(), &value);
            }
        }
        if !any {
            self.session
                .borrow_mut()
                .log_line("No local variables in the current context.");
        }
    }

    fn trace(&self, lua: &Lua) {
        let mut debugger = self.session.borrow_mut();
        for (level, name, line) in Self::own_levels(lua) {
            let how = if level == 0 { "In" } else { "From" };
            debugger.log_line(format!("{how} {}:", name.as_deref().unwrap_or("top level")));
            debugger.log_source_line(line);
        }
    }

    // ---- running ---------------------------------------------------------------------------------------------------
    /// Runs code of the user, as an expression if it is one. The code runs in its own coroutine, because it could not
    /// be interrupted inside a hook.
    fn evaluate(&self, lua: &Lua, code: &[u8]) -> mlua::Result<()> {
        let until_zero = code.split(|byte| *byte == 0).next().unwrap_or_default();
        let compile = |code: &[u8]| {
            let chunk = lua.load(code).set_name(EVAL_NAME);
            chunk.set_mode(mlua::chunk::ChunkMode::Text).into_function()
        };
        let compiled = compile(&[b"return ", until_zero].concat()).or_else(|_| compile(code));
        let function = match compiled {
            Ok(function) => function,
            Err(mlua::Error::SyntaxError { message, .. }) => {
                self.session
                    .borrow_mut()
                    .log_line(format!("Error compiling code: {message}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.is_evaluating.set(true);
        let ended = lua
            .create_thread(self.attempt.clone())
            .and_then(|thread| thread.resume::<(Value, Value)>(function));
        self.is_evaluating.set(false);
        self.check_stopped()?;
        match ended {
            Ok((Value::Boolean(false), error)) => {
                let text = match lua.coerce_string(error) {
                    Ok(Some(text)) => text.as_bytes().to_vec(),
                    Ok(None) | Err(_) => b"(null)".to_vec(),
                };
                self.session.borrow_mut().log_line([b"<error> ", &text[..]].concat());
            }
            Ok((_, value)) => self.say_value(b"<retval> ", &value),
            Err(error) => self.session.borrow_mut().log_line(format!("<error> {error}")),
        }
        Ok(())
    }

    /// Executes a command; the session logs it with its reply.
    fn call(&self, lua: &Lua, words: &[Vec<u8>]) -> mlua::Result<()> {
        let words: mlua::Result<MultiValue> = words
            .iter()
            .map(|word| lua.create_string(word).map(Value::String))
            .collect();
        let words = words?;
        let stepped = self.session.borrow_mut().set_stepping(true);
        // The result has been logged.
        let _ = gate::call(lua, &words);
        self.session.borrow_mut().set_stepping(stepped);
        self.check_stopped()
    }
}
