//! Lua states: how they compile and run scripts, and how a script reaches its host.

mod compiling;
mod debugging;
mod gate;
mod loading;
mod natives;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function as LuaFunction, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use weft_resp::{ArgRange, Protocol, Reply};

use super::cache::{Digest, Script};
use super::libraries::{Library, LoadedFunction};
use super::profile::Habits;
use super::random::Random;
use super::running::{Run, Stop};
use super::shebang::{self, Flags};
use super::{Scripts, convert};
use crate::observability::log;
pub use debugging::{Session, begin_debugging};

/// The number of Lua instructions between two checks of a run, some 50 µs.
const INSTRUCTIONS_A_LOOK: u32 = 10_000;
/// The number of runs between two measurements of an interpreter's memory.
const RUNS_A_LOOK: u32 = 16;

/// The purpose of a Lua state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The state runs scripts of EVAL.
    Eval,
    /// The state runs functions.
    Function,
}

/// Executes commands for a script.
pub trait Host {
    /// Executes a command and returns its reply, an error text, or the request to stop the script.
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Answer<'_>;
    /// Sets the protocol of the replies to commands.
    fn set_protocol(&mut self, protocol: Protocol);
    /// Sets where the effects of commands are propagated: 1 for the append-only file, 2 for replicas, 3 for both, 0 for
    /// neither.
    fn set_replication(&mut self, parts: u8);
    /// Returns `true` if the client may call a command; `None` if there is no such command.
    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool>;
    /// The maximum bytes of the script's reply; a longer one is of no use to the client.
    fn most_reply_bytes(&self) -> usize {
        usize::MAX
    }
    /// Records that the arguments of a call form no command. `error` is the error that the script gets.
    fn note_malformed(&mut self, _error: &str) {}
}

/// The result of a command that a host executed.
pub enum Answer<'h> {
    /// The reply.
    Reply(&'h [u8]),
    /// The command was refused; the text begins with an error code.
    Refused(Vec<u8>),
    /// The script is to stop.
    Stop,
}

/// The result of a run.
pub enum Outcome {
    /// The run has ended and its reply is written.
    Done {
        /// The codes of the errors in the reply that are still to be counted.
        errors: Vec<Vec<u8>>,
        /// `true` if the script returned the errors itself; `false` if its code failed.
        invented: bool,
        /// `true` if the reply as a whole is an error.
        failed: bool,
    },
    /// The script was stopped.
    Stopped(Stop),
}

/// A compiled script or a function, ready to run.
#[derive(Clone)]
pub struct Program {
    /// The kind of state that the program belongs to.
    pub kind: Kind,
    callback: LuaFunction,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Script(Arc<Script>),
    Function(Arc<Library>, usize),
}

impl Program {
    /// Returns the name of the function, or the digest of the script.
    pub fn name(&self) -> &[u8] {
        match &self.source {
            Source::Script(script) => &script.digest,
            Source::Function(library, index) => &library.functions[*index].name,
        }
    }

    /// Returns the flags; `None` for a script without a shebang line.
    pub fn flags(&self) -> Option<Flags> {
        match &self.source {
            Source::Script(script) => script.flags,
            Source::Function(library, index) => Some(library.functions[*index].flags),
        }
    }

    /// Returns the prediction made from earlier runs.
    pub fn profile(&self) -> &Habits {
        match &self.source {
            Source::Script(script) => &script.profile,
            Source::Function(library, index) => &library.functions[*index].profile,
        }
    }

    /// Returns the cached script, or `None` for a function.
    pub fn script(&self) -> Option<&Script> {
        match &self.source {
            Source::Script(script) => Some(script),
            Source::Function(..) => None,
        }
    }
}

/// The data that callbacks of the state share with its owner.
struct Shared {
    random: Random,
    /// The current run, and `true` if it is listed in the register.
    run: RefCell<Option<(Arc<Run>, bool)>>,
    /// The script's log lines and their levels, held back until it is known that the run is not restarted.
    lines: RefCell<Vec<(i64, Vec<u8>)>>,
    /// The time at which loading a library is aborted.
    load_until: Cell<Option<std::time::Instant>>,
    /// The protocol of the replies to commands.
    protocol: Cell<Protocol>,
    /// The propagation targets of commands, as [`Host::set_replication`] takes them.
    replication: Cell<u8>,
}

impl Shared {
    fn new(random: Random) -> Self {
        Shared {
            random,
            run: RefCell::default(),
            lines: RefCell::default(),
            load_until: Cell::default(),
            protocol: Cell::default(),
            replication: Cell::new(3),
        }
    }

    /// Executes a command for the running script.
    fn call(&self, lua: &Lua, values: &MultiValue) -> mlua::Result<Value> {
        gate::call(lua, values, self.protocol.get(), self.replication.get())
    }
}

struct Interpreter {
    shared: Rc<Shared>,
    eval: LuaFunction,
    call: LuaFunction,
    load: LuaFunction,
    by_source: HashMap<Vec<u8>, Program, ahash::RandomState>,
    by_digest: HashMap<Digest, Program, ahash::RandomState>,
    /// The callbacks of each library, keyed by the library's address. The entry keeps the library alive, so the address
    /// stays unique.
    libraries: HashMap<usize, (Arc<Library>, Vec<LuaFunction>), ahash::RandomState>,
    /// The flush counter of the cache or the libraries when this state was created.
    flushes: u64,
    counted_bytes: u64,
    runs: u32,
    /// Must be dropped last: all other fields are handles into the state.
    lua: Lua,
}

thread_local! {
    static INTERPRETERS: RefCell<[Option<Interpreter>; 2]> = const { RefCell::new([None, None]) };
}

/// Returns those libraries of Lua from which the prelude is built.
fn libraries() -> StdLib {
    StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS
}

/// Calls `work` with this thread's interpreter of a kind. Creates a new one if everything was flushed since the old one
/// was created.
fn with_interpreter<R>(
    scripts: &Scripts,
    kind: Kind,
    work: impl FnOnce(&mut Interpreter) -> Result<R, Vec<u8>>,
) -> Result<R, Vec<u8>> {
    let flushes = match kind {
        Kind::Eval => scripts.cache.flushes(),
        Kind::Function => scripts.libraries.flushes(),
    };
    INTERPRETERS.with(|interpreters| {
        let Ok(mut interpreters) = interpreters.try_borrow_mut() else {
            // A script on this thread compiles another one (SCRIPT LOAD, FUNCTION LOAD). Only the source of that one is
            // kept.
            let mut made = Interpreter::new(kind, flushes, scripts).map_err(super::arguments::message)?;
            return work(&mut made);
        };
        let place = &mut interpreters[kind as usize];
        if let Some(old) = place.take_if(|interpreter| interpreter.flushes != flushes) {
            scripts.count_interpreter(kind, old.counted_bytes, 0);
        }
        if place.is_none() {
            let made = Interpreter::new(kind, flushes, scripts);
            *place = Some(made.map_err(super::arguments::message)?);
        }
        match place {
            Some(interpreter) => work(interpreter),
            None => unreachable!("it was made if there was none"),
        }
    })
}

/// Drops this thread's interpreter of a kind, so that its memory is free at once after a flush. An interpreter that
/// runs the script that flushed is dropped at its next use.
pub fn forget_interpreters(scripts: &Scripts, kind: Kind) {
    INTERPRETERS.with(|interpreters| {
        if let Ok(mut interpreters) = interpreters.try_borrow_mut()
            && let Some(old) = interpreters[kind as usize].take()
        {
            scripts.count_interpreter(kind, old.counted_bytes, 0);
        }
    });
}

/// Compiles a script unless it is compiled already. With a `source`, the script is also cached. Without one, `digest`
/// must be the digest of a cached script.
///
/// # Errors
/// The text of the error reply if the code does not compile; an empty text if no script has that digest.
pub fn prepare_script(scripts: &Scripts, source: Option<&[u8]>, digest: &[u8], keep: bool) -> Result<Program, Vec<u8>> {
    with_interpreter(scripts, Kind::Eval, |interpreter| {
        let program = match source {
            Some(source) => interpreter.of_source(scripts, source, keep)?,
            None => interpreter.of_digest(scripts, digest)?,
        };
        if let (true, Some(script)) = (keep, program.script()) {
            scripts.cache.keep(script);
        }
        Ok(program)
    })
}

/// Returns the function of that name; `None` if none is loaded.
///
/// # Errors
/// The text of the error reply if the library cannot be loaded in this interpreter, although it could in another one.
pub fn prepare_function(scripts: &Scripts, name: &[u8]) -> Result<Option<Program>, Vec<u8>> {
    let Some((library, index)) = scripts.libraries.current().function(name) else {
        return Ok(None);
    };
    with_interpreter(scripts, Kind::Function, |interpreter| {
        let callback = interpreter.callback(scripts, &library, index)?;
        Ok(Some(Program {
            kind: Kind::Function,
            callback,
            source: Source::Function(library.clone(), index),
        }))
    })
}

/// Runs the code of a library to find the functions that it registers. `limited` sets a time limit.
///
/// # Errors
/// The text of the error reply.
pub fn load_library(scripts: &Scripts, code: &[u8], limited: bool) -> Result<Arc<Library>, Vec<u8>> {
    let (name, code_at) = shebang::of_library(code)?;
    with_interpreter(scripts, Kind::Function, |interpreter| {
        let functions = interpreter.load(&code[code_at..], limited)?;
        let (functions, callbacks): (Vec<LoadedFunction>, Vec<LuaFunction>) = functions
            .into_iter()
            .map(|function| {
                let loaded = LoadedFunction {
                    name: function.name,
                    description: function.description,
                    flags: function.flags,
                    profile: Habits::of_new(code),
                };
                (loaded, function.callback)
            })
            .unzip();
        let library = Arc::new(Library {
            name,
            code: code.to_vec(),
            functions,
        });
        interpreter
            .libraries
            .insert(Arc::as_ptr(&library) as usize, (library.clone(), callbacks));
        Ok(library)
    })
}

/// Runs a program and appends its reply to `reply`. `run` holds the run, and `true` if it is already listed in the
/// register. `keys` and `arguments` are the script's KEYS and ARGV.
///
/// # Errors
/// The text of the error reply if the interpreter fails.
pub fn run(
    scripts: &Scripts,
    program: &Program,
    run: (&Arc<Run>, bool),
    (keys, arguments): (&[&[u8]], &[&[u8]]),
    host: &mut dyn Host,
    reply: &mut Reply<'_>,
) -> Result<Outcome, Vec<u8>> {
    INTERPRETERS.with_borrow_mut(|interpreters| {
        // Not a new interpreter, even if everything was flushed since: the program belongs to this one.
        let Some(interpreter) = &mut interpreters[program.kind as usize] else {
            unreachable!("a program is prepared on the thread that runs it");
        };
        let outcome = interpreter.run(program, run, (keys, arguments), host, reply);
        interpreter.count_bytes(scripts, program.kind);
        outcome.map_err(|error| [b"ERR ", &super::arguments::message(error)[..]].concat())
    })
}

impl Interpreter {
    fn new(kind: Kind, flushes: u64, scripts: &Scripts) -> mlua::Result<Self> {
        let lua = Lua::new_with(libraries(), LuaOptions::new().catch_rust_panics(false))?;
        let (interpreter, _) = Interpreter::of_state(lua, kind, flushes, scripts, |_, _| Ok(()))?;
        natives::watch(&interpreter.lua, &interpreter.shared, scripts.running.clone())?;
        Ok(interpreter)
    }

    /// Creates an interpreter for scripts with a debugger attached.
    fn debugged(scripts: &Scripts, session: &Session) -> mlua::Result<Self> {
        let (lua, locals) = weft_lua::lua_with_locals(libraries(), LuaOptions::new().catch_rust_panics(false))?;
        let add = |lua: &Lua, natives: &Table| debugging::add_natives(lua, natives, session);
        let (interpreter, program) = Interpreter::of_state(lua, Kind::Eval, scripts.cache.flushes(), scripts, add)?;
        debugging::watch(&interpreter.lua, &interpreter.shared, &program, (session, locals))?;
        Ok(interpreter)
    }

    /// Creates an interpreter from a new state. `add` adds further native functions for the prelude. Also returns the
    /// table that the prelude returns.
    fn of_state(
        lua: Lua,
        kind: Kind,
        flushes: u64,
        scripts: &Scripts,
        add: impl FnOnce(&Lua, &Table) -> mlua::Result<()>,
    ) -> mlua::Result<(Self, Table)> {
        let shared = Rc::new(Shared::new(Random::new(scripts.random.clone())));
        let natives = natives::natives(&lua, &shared)?;
        add(&lua, &natives)?;
        if scripts.is_insecure(kind) {
            natives.raw_set("insecure", true)?;
        }
        let kind_name = match kind {
            Kind::Eval => "eval",
            Kind::Function => "function",
        };
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=weft");
        let program: Table = prelude.call((kind_name, natives))?;
        lua.set_globals(program.raw_get("globals")?)?;
        // Memory that was only needed during creation does not count as the script's.
        lua.gc_collect()?;
        let interpreter = Interpreter {
            eval: program.raw_get("eval")?,
            call: program.raw_get("call")?,
            load: program.raw_get("load")?,
            by_source: HashMap::default(),
            by_digest: HashMap::default(),
            libraries: HashMap::default(),
            flushes,
            counted_bytes: 0,
            runs: 0,
            lua,
            shared,
        };
        Ok((interpreter, program))
    }

    /// Updates the recorded memory of the state, once every [`RUNS_A_LOOK`] runs.
    fn count_bytes(&mut self, scripts: &Scripts, kind: Kind) {
        self.runs = self.runs.wrapping_add(1);
        if self.runs % RUNS_A_LOOK == 1 {
            let bytes = self.lua.used_memory() as u64;
            scripts.count_interpreter(kind, self.counted_bytes, bytes);
            self.counted_bytes = bytes;
        }
    }

    fn run(
        &mut self,
        program: &Program,
        (run, listed): (&Arc<Run>, bool),
        (keys, arguments): (&[&[u8]], &[&[u8]]),
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> mlua::Result<Outcome> {
        *self.shared.run.borrow_mut() = Some((run.clone(), listed));
        let keys = texts(&self.lua, keys)?;
        let arguments = texts(&self.lua, arguments)?;
        self.shared.protocol.set(Protocol::Resp2);
        self.shared.replication.set(3);
        let most_reply_bytes = host.most_reply_bytes();
        let trampoline = match program.kind {
            Kind::Eval => &self.eval,
            Kind::Function => &self.call,
        };
        let ended = gate::with_host(host, || {
            trampoline.call::<(bool, Value)>((&program.callback, keys, arguments))
        });
        *self.shared.run.borrow_mut() = None;
        let stopped = run.stopped();
        let begins_anew = matches!(stopped, Some(Stop::Contended | Stop::Leave));
        self.tell_log(begins_anew);
        self.shared.random.end(begins_anew);
        if let Some(stop) = stopped.filter(|_| begins_anew) {
            return Ok(Outcome::Stopped(stop));
        }
        let failed_by = match (ended, stopped) {
            (Ok((true, value)), _) => {
                let begins = reply.len();
                let errors = convert::write_reply(&value, self.shared.protocol.get(), most_reply_bytes, reply)?;
                let failed = reply.out.get(begins) == Some(&b'-');
                return Ok(Outcome::Done {
                    errors,
                    invented: true,
                    failed,
                });
            }
            (Ok((false, Value::Table(error))), _) => error_of(&error),
            (_, Some(Stop::Killed)) => killed(program.kind, run),
            (_, Some(stop)) => return Ok(Outcome::Stopped(stop)),
            (Ok((false, other)), None) => {
                let text = match other {
                    Value::Error(error) => super::arguments::message(*error),
                    other => other.to_string().unwrap_or_default().into_bytes(),
                };
                (error_text(&text), false)
            }
            (Err(error), None) => (error_text(&super::arguments::message(error)), false),
        };
        let (text, is_counted) = failed_by;
        reply.error_bytes(&text);
        Ok(Outcome::Done {
            errors: if is_counted {
                Vec::new()
            } else {
                vec![convert::code_of(&text)]
            },
            invented: false,
            failed: true,
        })
    }

    /// Writes the script's log lines, or discards them if `forget` is set because the script is restarted.
    fn tell_log(&self, forget: bool) {
        for (level, text) in self.shared.lines.borrow_mut().drain(..) {
            if forget {
                continue;
            }
            let text = String::from_utf8_lossy(&text);
            match level {
                0 => log::debug!("{text}"),
                1 => log::verbose!("{text}"),
                2 => log::notice!("{text}"),
                _ => log::warning!("{text}"),
            }
        }
    }
}

fn error_text(text: &[u8]) -> Vec<u8> {
    [b"ERR ", text].concat()
}

/// Returns the text of the error that ended a script, and `true` if the error has been counted.
fn error_of(error: &Table) -> (Vec<u8>, bool) {
    let text_of = |value: Value| match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        _ => None,
    };
    // The metatable of a table that a script throws may raise an error on access.
    let field = |name: &str| error.get::<Value>(name).unwrap_or(Value::Nil);
    let mut text = text_of(field("err")).unwrap_or_else(|| b"ERR unknown error".to_vec());
    let (source, line) = (text_of(field("source")), text_of(field("line")));
    if let (Some(source), Some(line)) = (source, line) {
        text = [&text[..], b" script: on ", &source, b":", &line, b"."].concat();
    }
    let is_counted = matches!(field("ignore_error_stats_update"), Value::Boolean(true));
    (text, is_counted)
}

fn killed(kind: Kind, run: &Run) -> (Vec<u8>, bool) {
    let command = match kind {
        Kind::Eval => "SCRIPT KILL",
        Kind::Function => "FUNCTION KILL",
    };
    let mut text = format!("ERR Script killed by user with {command}.");
    if let Some((source, line)) = run.place() {
        text.push_str(&format!(" script: on {source}:{line}."));
    }
    (text.into_bytes(), false)
}

fn texts(lua: &Lua, words: &[&[u8]]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(words.len(), 0)?;
    for (index, word) in (1i64..).zip(words) {
        table.raw_set(index, lua.create_string(word)?)?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
