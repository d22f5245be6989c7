//! Lua states: what they compile, how a script is run in one, and how it reaches its host.

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

/// Instructions between two looks at a run: some 50 µs.
const INSTRUCTIONS_A_LOOK: u32 = 10_000;
/// Runs between two looks at an interpreter's memory.
const RUNS_A_LOOK: u32 = 16;

/// What a Lua state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Scripts of EVAL.
    Eval,
    /// Functions.
    Function,
}

/// What runs commands for a script.
pub trait Host {
    /// Runs a command: its reply, or the text of an error, or neither if the script is to stop.
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Answer<'_>;
    /// Chooses the protocol of replies to commands.
    fn set_protocol(&mut self, protocol: Protocol);
    /// Chooses for whom commands are logged: 1 for the append-only file, 2 for replicas, both, or neither.
    fn set_replication(&mut self, parts: u8);
    /// Whether the client may call a command; `None` if there is no such command.
    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool>;
    /// The most bytes that the script's reply may have; a longer one is of no use to the client.
    fn most_reply_bytes(&self) -> usize {
        usize::MAX
    }
    /// What the script wanted to call is no command at all, as this error tells it.
    fn note_malformed(&mut self, _error: &str) {}
}

/// A host's answer.
pub enum Answer<'h> {
    /// The reply.
    Reply(&'h [u8]),
    /// The command was refused; the text has a code.
    Refused(Vec<u8>),
    /// The script is to stop.
    Stop,
}

/// How a run ended.
pub enum Outcome {
    /// The reply is written; these are the codes of errors in it that are still to be counted. `failed` tells whether it
    /// is an error.
    Done {
        /// Codes to count.
        errors: Vec<Vec<u8>>,
        /// Whether the script has made them up, and not an error of its code.
        invented: bool,
        /// Whether it is an error as a whole.
        failed: bool,
    },
    /// The script was stopped.
    Stopped(Stop),
}

/// Something that can be run: a compiled script, or a function.
#[derive(Clone)]
pub struct Program {
    /// What it is for.
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
    /// The function's name, or the script's digest.
    pub fn name(&self) -> &[u8] {
        match &self.source {
            Source::Script(script) => &script.digest,
            Source::Function(library, index) => &library.functions[*index].name,
        }
    }

    /// Its flags; `None` for a script without a first line that has some.
    pub fn flags(&self) -> Option<Flags> {
        match &self.source {
            Source::Script(script) => script.flags,
            Source::Function(library, index) => Some(library.functions[*index].flags),
        }
    }

    /// What earlier runs tell.
    pub fn profile(&self) -> &Habits {
        match &self.source {
            Source::Script(script) => &script.profile,
            Source::Function(library, index) => &library.functions[*index].profile,
        }
    }

    /// The cached script, if it is one.
    pub fn script(&self) -> Option<&Script> {
        match &self.source {
            Source::Script(script) => Some(script),
            Source::Function(..) => None,
        }
    }
}

/// What callbacks of the state share with its owner.
struct Shared {
    random: Random,
    /// The run under way, and whether it is listed.
    run: RefCell<Option<(Arc<Run>, bool)>>,
    /// Lines for the log, in case the run begins anew.
    lines: RefCell<Vec<(i64, Vec<u8>)>>,
    /// When loading a library takes too long.
    load_until: Cell<Option<std::time::Instant>>,
    /// The protocol of replies to commands.
    protocol: Cell<Protocol>,
    /// For whom commands are logged.
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

    /// Runs a command for the script under way.
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
    /// The callbacks of a library, by its address: as long as one is kept, so is the library.
    libraries: HashMap<usize, (Arc<Library>, Vec<LuaFunction>), ahash::RandomState>,
    /// How often everything had been dropped when this state was made.
    flushes: u64,
    counted_bytes: u64,
    runs: u32,
    /// The last one to be dropped: all others are handles to what is in it.
    lua: Lua,
}

thread_local! {
    static INTERPRETERS: RefCell<[Option<Interpreter>; 2]> = const { RefCell::new([None, None]) };
}

/// What of Lua's own libraries the prelude is made of.
fn libraries() -> StdLib {
    StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS
}

/// Works with this thread's interpreter of a kind; a new one if everything was dropped since it was made.
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
            // A script on this thread compiles another one (SCRIPT LOAD, FUNCTION LOAD), of which only the source is kept.
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

/// Drops this thread's interpreter of a kind: everything was flushed, and its memory shall be free at once. One that runs a
/// script, which has flushed, is dropped when it is used the next time.
pub fn forget_interpreters(scripts: &Scripts, kind: Kind) {
    INTERPRETERS.with(|interpreters| {
        if let Ok(mut interpreters) = interpreters.try_borrow_mut()
            && let Some(old) = interpreters[kind as usize].take()
        {
            scripts.count_interpreter(kind, old.counted_bytes, 0);
        }
    });
}

/// Compiles a script unless that was done; with `source` it is cached, too. Without a source its digest must be cached.
///
/// # Errors
/// The text of the error reply: the code does not compile, or (empty) no script has that digest.
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

/// The function of that name; `None` if none is loaded.
///
/// # Errors
/// The text of the error reply: its library cannot be loaded here, though it could be elsewhere.
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

/// Loads the code of a library, to see what is in it. `limited` is whether that may not take long.
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

/// Runs a program. `listed` is whether others know of the run already; `keys` and `arguments` are the script's, and the
/// reply is appended to `reply`.
///
/// # Errors
/// The text of the error reply when the interpreter cannot work at all.
pub fn run(
    scripts: &Scripts,
    program: &Program,
    run: (&Arc<Run>, bool),
    (keys, arguments): (&[&[u8]], &[&[u8]]),
    host: &mut dyn Host,
    reply: &mut Reply<'_>,
) -> Result<Outcome, Vec<u8>> {
    INTERPRETERS.with_borrow_mut(|interpreters| {
        // Not a new one, even if everything was dropped since: the program is this one's.
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

    /// One for scripts into which a debugger looks.
    fn debugged(scripts: &Scripts, session: &Session) -> mlua::Result<Self> {
        let (lua, locals) = weft_lua::lua_with_locals(libraries(), LuaOptions::new().catch_rust_panics(false))?;
        let add = |lua: &Lua, natives: &Table| debugging::add_natives(lua, natives, session);
        let (interpreter, program) = Interpreter::of_state(lua, Kind::Eval, scripts.cache.flushes(), scripts, add)?;
        debugging::watch(&interpreter.lua, &interpreter.shared, &program, (session, locals))?;
        Ok(interpreter)
    }

    /// Makes an interpreter of a new state; `add` gives the prelude further natives. Returns what the prelude is, too.
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
        // What was only needed to make it does not count as a script's.
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

    /// Tells how much memory the state takes, now and then.
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

    /// Writes what the script told the log, unless it begins anew.
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

/// The error that a script was ended with, and whether it has been counted.
fn error_of(error: &Table) -> (Vec<u8>, bool) {
    let text_of = |value: Value| match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        _ => None,
    };
    // The metatable of a table that a script throws may refuse to be asked.
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
