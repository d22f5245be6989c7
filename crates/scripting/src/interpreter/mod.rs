//! Lua states: how they compile and run scripts, and how a script reaches its host.

mod compiling;
mod debugging;
mod gate;
mod loading;
mod log_lines;
mod natives;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function as LuaFunction, Lua, LuaOptions, StdLib, Table, Value};
use weft_lua::calls::{ScriptEnd, ScriptStarter, StartableScript};
use weft_resp::{ArgRange, Protocol, Reply};

use super::cache::{Digest, Script};
use super::libraries::{Library, LoadedFunction};
use super::profile::ScriptProfile;
use super::random::Random;
use super::run_checks::{self, CurrentRun, RunChecks, WorkMeter};
use super::running::{ScriptRun, StopReason};
use super::shebang::{self, ScriptFlags};
use super::{Scripts, cjson, convert};
pub use debugging::{DebugSession, begin_debugging};
pub use gate::ScriptWords;
use gate::{CallRequest, HostGate, HostSettings};
use loading::LoadBound;
use log_lines::LogLines;
use weft_os::time::Instant;

/// The number of runs between two measurements of an interpreter's memory.
const RUNS_PER_MEASUREMENT: u32 = 16;

/// The purpose of a Lua state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptKind {
    /// The state runs scripts of EVAL.
    Eval,
    /// The state runs functions.
    Function,
}

/// Executes commands for a script.
pub trait Host {
    /// Executes a command and returns its reply, an error text, or the request to stop the script.
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> CallResult<'_>;
    /// Sets the protocol of the replies to commands. A host starts with RESP2.
    fn set_protocol(&mut self, protocol: Protocol);
    /// Sets where the effects of commands are propagated: 1 for the append-only file, 2 for replicas, 3 for both, 0 for
    /// neither. A host starts with both.
    fn set_replication(&mut self, parts: u8);
    /// Returns `true` if the client may call a command; `None` if there is no such command.
    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool>;
    /// The maximum bytes of the script's reply; a longer one is of no use to the client.
    fn reply_bytes_max(&self) -> usize {
        usize::MAX
    }
    /// Records that the arguments of a call form no command. `error` is the error that the script gets.
    fn note_malformed(&mut self, _error: &str) {}
}

/// The result of a command that a host executed.
pub enum CallResult<'h> {
    /// The reply.
    Reply(&'h [u8]),
    /// The command was refused; the text begins with an error code.
    Refused(Vec<u8>),
    /// The script is to stop.
    Stop,
}

/// The result of a run.
pub enum RunOutcome {
    /// The run has ended and its reply is written.
    Done {
        /// The codes of the errors in the reply that are still to be counted.
        errors: Vec<Vec<u8>>,
        /// `true` if the script returned the errors itself; `false` if its code failed.
        is_returned: bool,
        /// `true` if the reply as a whole is an error.
        is_error: bool,
        /// `true` if the script was killed.
        is_killed: bool,
    },
    /// The script was stopped.
    Stopped(StopReason),
}

/// The reason why a function cannot be called.
#[derive(Debug)]
pub enum FunctionError {
    /// Its library cannot be loaded in this interpreter, although it could in another one, or a client has killed the
    /// call meanwhile. The text of the error reply, without its code.
    Failed(Vec<u8>),
    /// The call was stopped while the library was loaded.
    Stopped(StopReason),
}

impl From<Vec<u8>> for FunctionError {
    fn from(text: Vec<u8>) -> Self {
        FunctionError::Failed(text)
    }
}

/// A compiled script or a function, ready to run on the thread that has prepared it.
pub struct Program {
    /// The kind of state that the program belongs to.
    pub kind: ScriptKind,
    callback: StartableScript,
    source: ProgramSource,
}

enum ProgramSource {
    Script(Arc<Script>),
    Function(Arc<Library>, usize),
}

impl Program {
    /// Returns the name of the function, or the digest of the script.
    pub fn name(&self) -> &[u8] {
        match &self.source {
            ProgramSource::Script(script) => &script.digest,
            ProgramSource::Function(library, index) => &library.functions[*index].name,
        }
    }

    /// Returns the code of the script, or that of the library of the function.
    pub fn code(&self) -> &[u8] {
        match &self.source {
            ProgramSource::Script(script) => &script.source,
            ProgramSource::Function(library, _) => &library.code,
        }
    }

    /// Returns the flags; `None` for a script without a shebang line.
    pub fn flags(&self) -> Option<ScriptFlags> {
        match &self.source {
            ProgramSource::Script(script) => script.flags,
            ProgramSource::Function(library, index) => Some(library.functions[*index].flags),
        }
    }

    /// Returns the prediction made from earlier runs.
    pub fn profile(&self) -> &ScriptProfile {
        match &self.source {
            ProgramSource::Script(script) => &script.profile,
            ProgramSource::Function(library, index) => &library.functions[*index].profile,
        }
    }

    /// Returns the cached script, or `None` for a function.
    pub fn script(&self) -> Option<&Script> {
        match &self.source {
            ProgramSource::Script(script) => Some(script),
            ProgramSource::Function(..) => None,
        }
    }
}

/// The data that callbacks of the state share with its owner.
struct InterpreterShared {
    random: Random,
    checks: Rc<RunChecks>,
    /// The options of the `cjson` library that scripts find.
    json: Rc<cjson::Options>,
    /// The log lines of the script.
    log_lines: LogLines,
    /// The protocol of the replies to commands.
    protocol: Cell<Protocol>,
    /// The propagation targets of commands, as [`Host::set_replication`] takes them.
    replication: Cell<u8>,
    /// The buffers for the requests of the next run.
    request: Cell<CallRequest>,
}

impl InterpreterShared {
    fn new(random: Random) -> Self {
        InterpreterShared {
            random,
            checks: Rc::default(),
            json: Rc::default(),
            log_lines: LogLines::default(),
            protocol: Cell::default(),
            replication: Cell::new(HostSettings::INITIAL.replication),
            request: Cell::default(),
        }
    }
}

/// A library that an interpreter has run.
struct CompiledLibrary {
    library: Arc<Library>,
    /// In the order of the library.
    functions: Vec<Rc<Program>>,
}

impl CompiledLibrary {
    fn new(library: Arc<Library>, callbacks: Vec<LuaFunction>, start: &ScriptStarter) -> Result<Self, Vec<u8>> {
        let program = |(index, callback)| {
            let program = Program {
                kind: ScriptKind::Function,
                callback: start.prepare(callback).map_err(super::arguments::message)?,
                source: ProgramSource::Function(library.clone(), index),
            };
            Ok(Rc::new(program))
        };
        let functions = callbacks.into_iter().enumerate().map(program);
        let functions = functions.collect::<Result<_, Vec<u8>>>()?;
        Ok(CompiledLibrary { library, functions })
    }
}

/// The function that was prepared last.
struct RecentFunction {
    /// The name by which it was called.
    name: Vec<u8>,
    /// The version of the libraries in which it was found.
    version: u64,
    program: Rc<Program>,
}

/// The end of a run whose script has ended.
enum RunEnd {
    /// The reply is written. The errors in it that are still to be counted have these codes.
    Replied(Vec<Vec<u8>>),
    /// The script threw this value.
    Failed(Value),
}

struct Interpreter {
    shared: Rc<InterpreterShared>,
    /// Starts a program of the state's kind.
    start: ScriptStarter,
    load: LuaFunction,
    /// Must be called after `load`, when no run is checked.
    end_load: LuaFunction,
    by_source: HashMap<Vec<u8>, Rc<Program>, ahash::RandomState>,
    by_digest: HashMap<Digest, Rc<Program>, ahash::RandomState>,
    /// The functions of each library, keyed by the library's address. The entry keeps the library alive, so the address
    /// stays unique.
    libraries: HashMap<usize, CompiledLibrary, ahash::RandomState>,
    /// The script that was prepared last by its digest. Scripts are often called many times in a row.
    recent_script: Option<Rc<Program>>,
    recent_function: Option<RecentFunction>,
    /// The flush counter of the cache or the libraries when this state was created, or was kept after a flush.
    flushes: u64,
    /// Set while a transaction runs whose libraries were prepared here. If one of its commands deletes all libraries,
    /// the state is kept: otherwise the code of those that it loads behind that would run again, within exclusive mode.
    outlives_flushes: bool,
    /// `true` if the state offers functions that can leave the sandbox, and so may hold what such code has changed.
    is_insecure: bool,
    counted_bytes: u64,
    runs: u32,
    /// Must be dropped last: all other fields are handles into the state.
    lua: Lua,
}

thread_local! {
    static INTERPRETERS: RefCell<[Option<Interpreter>; 2]> = const { RefCell::new([None, None]) };
}

/// Returns those libraries of Lua from which the prelude is built.
fn standard_libraries() -> StdLib {
    StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS
}

/// Calls `work` with this thread's interpreter of a kind. Creates a new one if everything was flushed since the old one
/// was created, unless that one was kept.
fn with_interpreter<R, E: From<Vec<u8>>>(
    scripts: &Scripts,
    kind: ScriptKind,
    work: impl FnOnce(&mut Interpreter) -> Result<R, E>,
) -> Result<R, E> {
    let flushes = scripts.flushes(kind);
    INTERPRETERS.with(|interpreters| {
        let Ok(mut interpreters) = interpreters.try_borrow_mut() else {
            // A script on this thread compiles another one (SCRIPT LOAD, FUNCTION LOAD). Only the source of that one is
            // kept.
            let mut made = Interpreter::new(kind, flushes, scripts).map_err(super::arguments::message)?;
            let result = work(&mut made);
            scripts.update_interpreter_bytes(kind, made.flushes, made.counted_bytes, 0);
            return result;
        };
        let place = &mut interpreters[kind as usize];
        let is_obsolete = |interpreter: &mut Interpreter| {
            interpreter.flushes != flushes && !interpreter.may_outlive_flush(scripts, kind)
        };
        drop(place.take_if(is_obsolete));
        if place.is_none() {
            let made = Interpreter::new(kind, flushes, scripts);
            *place = Some(made.map_err(super::arguments::message)?);
        }
        match place {
            Some(interpreter) => {
                interpreter.note_flushes(scripts, kind, flushes);
                work(interpreter)
            }
            None => unreachable!("it was made if there was none"),
        }
    })
}

/// Drops this thread's interpreter of a kind, so that its memory is free at once after a flush. An interpreter that
/// runs the script that flushed is dropped at its next use, and one with prepared libraries may be kept.
pub fn drop_interpreter(scripts: &Scripts, kind: ScriptKind) {
    INTERPRETERS.with(|interpreters| {
        if let Ok(mut interpreters) = interpreters.try_borrow_mut()
            && let Some(old) = interpreters[kind as usize].take_if(|interpreter| !interpreter.outlives_flushes)
        {
            scripts.update_interpreter_bytes(kind, old.flushes, old.counted_bytes, 0);
        }
    });
}

/// Drops this thread's interpreters that are obsolete since a flush. One that runs a script is dropped at its next use.
/// To be called between two commands: the use of prepared libraries has ended.
pub fn drop_flushed_interpreters(scripts: &Scripts) {
    INTERPRETERS.with(|interpreters| {
        let Ok(mut interpreters) = interpreters.try_borrow_mut() else {
            return;
        };
        for kind in [ScriptKind::Eval, ScriptKind::Function] {
            let flushes = scripts.flushes(kind);
            drop(interpreters[kind as usize].take_if(|interpreter| interpreter.flushes != flushes));
            if let Some(interpreter) = &mut interpreters[kind as usize]
                && std::mem::take(&mut interpreter.outlives_flushes)
            {
                interpreter.forget_unloaded_libraries(scripts);
            }
        }
    });
}

/// Compiles a script unless it is compiled already. With a `source`, the script is also cached. Without one, `digest`
/// must be the digest of a cached script.
///
/// # Errors
/// The text of the error reply if the code does not compile; an empty text if no script has that digest.
pub fn prepare_script(
    scripts: &Scripts,
    source: Option<&[u8]>,
    digest: &[u8],
    keep: bool,
) -> Result<Rc<Program>, Vec<u8>> {
    if source.is_none()
        && !keep
        && let Some(program) = recent_script(scripts, digest)
    {
        return Ok(program);
    }
    with_interpreter(scripts, ScriptKind::Eval, |interpreter| {
        let program = match source {
            Some(source) => interpreter.program_of_source(scripts, source, keep)?,
            None => interpreter.program_of_digest(scripts, digest)?,
        };
        if let (true, Some(script)) = (keep, program.script()) {
            scripts.cache.protect_from_eviction(script);
        }
        Ok(program)
    })
}

/// Returns the function of that name; `None` if none is loaded. If this interpreter has to load the library first, it
/// does so as a part of a run, which `begin` creates from the name of the function.
///
/// # Errors
/// The reason if the library cannot be loaded in this interpreter, or the run was stopped meanwhile.
pub fn prepare_function(
    scripts: &Scripts,
    name: &[u8],
    begin: impl FnOnce(&[u8]) -> CurrentRun,
) -> Result<Option<Rc<Program>>, FunctionError> {
    // Read before the libraries: they may change meanwhile.
    let version = scripts.libraries.version();
    if let Some(program) = recent_function(name, version) {
        return Ok(Some(program));
    }
    let Some((library, index)) = scripts.libraries.current().function(name) else {
        return Ok(None);
    };
    with_interpreter(scripts, ScriptKind::Function, |interpreter| {
        let program = interpreter.function(scripts, &library, index, begin)?;
        interpreter.recent_function = Some(RecentFunction {
            name: name.to_vec(),
            version,
            program: program.clone(),
        });
        Ok(Some(program))
    })
}

/// Runs the code of libraries that are about to be loaded, so that their functions can be called on this thread at
/// once, also if all libraries are deleted first. Each is a part of a run, which `begin` creates from the name of the
/// library. The use of the libraries ends with [`drop_flushed_interpreters`].
///
/// # Errors
/// The reason if a library cannot be loaded in this interpreter, or its run was stopped.
pub fn prepare_libraries(
    scripts: &Scripts,
    libraries: &[Arc<Library>],
    begin: impl FnMut(&[u8]) -> CurrentRun,
) -> Result<(), FunctionError> {
    let in_lua: Vec<Arc<Library>> = libraries
        .iter()
        .filter(|library| library.engine.is_none())
        .cloned()
        .collect();
    with_interpreter(scripts, ScriptKind::Function, |interpreter| {
        interpreter.prepare_libraries(scripts, &in_lua, begin)?;
        interpreter.outlives_flushes = true;
        Ok(())
    })
}

/// Returns the script that this thread has prepared last by its digest, if it is this one and still cached.
#[inline]
fn recent_script(scripts: &Scripts, digest: &[u8]) -> Option<Rc<Program>> {
    let flushes = scripts.cache.flushes();
    INTERPRETERS.with(|interpreters| {
        let interpreters = interpreters.try_borrow().ok()?;
        let interpreter = interpreters[ScriptKind::Eval as usize].as_ref()?;
        let recent = interpreter.recent_script.as_ref()?;
        let is_wanted = interpreter.flushes == flushes && compiling::is_alive(recent) && recent.name() == digest;
        is_wanted.then(|| recent.clone())
    })
}

/// Returns the function that this thread has prepared last, if it was called by that name in that version of the
/// libraries.
fn recent_function(name: &[u8], version: u64) -> Option<Rc<Program>> {
    INTERPRETERS.with(|interpreters| {
        let interpreters = interpreters.try_borrow().ok()?;
        let recent = interpreters[ScriptKind::Function as usize]
            .as_ref()?
            .recent_function
            .as_ref()?;
        (recent.version == version && recent.name == name).then(|| recent.program.clone())
    })
}

/// Runs the code of a library, for at most half a second, to find the functions that it registers.
///
/// # Errors
/// The text of the error reply.
pub fn load_library(scripts: &Scripts, code: &[u8]) -> Result<Arc<Library>, Vec<u8>> {
    load_library_within(scripts, code, LoadBound::TimeLimit)
}

/// Does the same for a library that another server, or another process, has loaded. There is no time limit. The code is
/// stopped when the process is about to end, or once `is_obsolete` returns `true`: this function returns `None` then.
///
/// # Errors
/// The text of the error reply.
pub fn repeat_library_load(
    scripts: &Scripts,
    code: &[u8],
    is_obsolete: impl Fn() -> bool + 'static,
) -> Option<Result<Arc<Library>, Vec<u8>>> {
    let running = scripts.running.clone();
    let is_over: Rc<dyn Fn() -> bool> = Rc::new(move || running.is_shutting_down() || is_obsolete());
    let loaded = load_library_within(scripts, code, LoadBound::Until(is_over.clone()));
    (!is_over()).then_some(loaded)
}

fn load_library_within(scripts: &Scripts, code: &[u8], bound: LoadBound) -> Result<Arc<Library>, Vec<u8>> {
    if let Some(engine) = scripts.engine_of_library(code) {
        let header = shebang::of_any_library(code)?;
        return scripts.load_engine_library(&*engine, header.name, code, header.code_at);
    }
    let (name, code_at) = shebang::of_library(code)?;
    with_interpreter(scripts, ScriptKind::Function, |interpreter| {
        let started = Instant::now();
        let functions = interpreter.load(&code[code_at..], bound)?;
        let load_time = started.elapsed();
        let (functions, callbacks): (Vec<LoadedFunction>, Vec<LuaFunction>) = functions
            .into_iter()
            .map(|function| {
                let loaded = LoadedFunction {
                    name: function.name,
                    description: function.description,
                    flags: function.flags,
                    profile: ScriptProfile::predict(code),
                    engine_code: None,
                };
                (loaded, function.callback)
            })
            .unzip();
        let library = Arc::new(Library::new(name, code.to_vec(), functions, load_time));
        let compiled = CompiledLibrary::new(library.clone(), callbacks, &interpreter.start)?;
        interpreter.forget_unloaded_libraries(scripts);
        interpreter.libraries.insert(Arc::as_ptr(&library) as usize, compiled);
        interpreter.measure_memory(scripts, ScriptKind::Function);
        Ok(library)
    })
}

/// Runs a program and appends its reply to `reply`.
///
/// # Panics
/// If another thread has prepared the program.
pub fn run(
    program: &Program,
    run: CurrentRun,
    words: ScriptWords<'_>,
    host: &mut dyn Host,
    reply: &mut Reply<'_>,
) -> RunOutcome {
    INTERPRETERS.with_borrow_mut(|interpreters| {
        // Not a new interpreter, even if everything was flushed since: the program belongs to this one.
        let Some(interpreter) = &mut interpreters[program.kind as usize] else {
            unreachable!("a program must be prepared on the thread that runs it");
        };
        interpreter.run(program, run, words, host, reply)
    })
}

/// Counts the memory of this thread's interpreter of a kind, after some of its runs. To be called after each.
pub fn count_memory(scripts: &Scripts, kind: ScriptKind) {
    INTERPRETERS.with_borrow_mut(|interpreters| {
        if let Some(interpreter) = &mut interpreters[kind as usize] {
            interpreter.update_memory(scripts, kind);
        }
    });
}

impl Interpreter {
    fn new(kind: ScriptKind, flushes: u64, scripts: &Scripts) -> mlua::Result<Self> {
        // With this option off, mlua would replace pcall and xpcall by ones that do not check the stack. The panic hook
        // ends the process before a script could catch a panic.
        let lua = Lua::new_with(standard_libraries(), LuaOptions::new().catch_rust_panics(true))?;
        let (interpreter, _) = Interpreter::from_state(lua, kind, flushes, scripts, |_, _| Ok(()))?;
        run_checks::install_check_hook(&interpreter.lua, &interpreter.shared.checks, scripts.running.clone())?;
        Ok(interpreter)
    }

    /// Creates an interpreter for scripts with a debugger attached.
    fn with_debugger(scripts: &Scripts, session: &DebugSession) -> mlua::Result<Self> {
        let (lua, locals) = weft_lua::new_state_with_locals(standard_libraries(), LuaOptions::new())?;
        let add = |lua: &Lua, natives: &Table| debugging::add_natives(lua, natives, session);
        let (interpreter, program) =
            Interpreter::from_state(lua, ScriptKind::Eval, scripts.cache.flushes(), scripts, add)?;
        debugging::install_debug_hook(&interpreter.lua, &interpreter.shared, &program, session, locals)?;
        Ok(interpreter)
    }

    /// Creates an interpreter from a new state. `add` adds further native functions for the prelude. Also returns the
    /// table that the prelude returns.
    fn from_state(
        lua: Lua,
        kind: ScriptKind,
        flushes: u64,
        scripts: &Scripts,
        add: impl FnOnce(&Lua, &Table) -> mlua::Result<()>,
    ) -> mlua::Result<(Self, Table)> {
        let shared = Rc::new(InterpreterShared::new(Random::new(scripts.random.clone())));
        let natives = natives::create_natives(&lua, &shared)?;
        add(&lua, &natives)?;
        if scripts.is_insecure(kind) {
            natives.raw_set("insecure", true)?;
        }
        let kind_name = match kind {
            ScriptKind::Eval => "eval",
            ScriptKind::Function => "function",
        };
        let prelude = lua.load(include_str!("prelude.lua")).set_name("=weft");
        let program: Table = prelude.call((kind_name, natives))?;
        lua.set_globals(program.raw_get("globals")?)?;
        let handler = program.raw_get("note_place")?;
        let start = match kind {
            // All tables that outlive a script are read-only, and only the insecure functions reach anything else that
            // does.
            ScriptKind::Eval => {
                let may_share_words = !scripts.is_insecure(kind);
                ScriptStarter::for_scripts(&lua, handler, program.raw_get("variables")?, may_share_words)?
            }
            ScriptKind::Function => ScriptStarter::for_functions(&lua, handler)?,
        };
        // Memory that was only needed during creation does not count as the script's.
        lua.gc_collect()?;
        let interpreter = Interpreter {
            start,
            load: program.raw_get("load")?,
            end_load: program.raw_get("end_load")?,
            by_source: HashMap::default(),
            by_digest: HashMap::default(),
            libraries: HashMap::default(),
            recent_script: None,
            recent_function: None,
            flushes,
            outlives_flushes: false,
            is_insecure: scripts.is_insecure(kind),
            counted_bytes: 0,
            runs: 0,
            lua,
            shared,
        };
        Ok((interpreter, program))
    }

    /// Returns `true` if the state stays in use although everything was flushed. Code in the sandbox leaves nothing in
    /// it that other code sees.
    fn may_outlive_flush(&self, scripts: &Scripts, kind: ScriptKind) -> bool {
        self.outlives_flushes && !self.is_insecure && !scripts.is_insecure(kind)
    }

    /// Counts the state among those that were created after `flushes` flushes.
    fn note_flushes(&mut self, scripts: &Scripts, kind: ScriptKind, flushes: u64) {
        if self.flushes != flushes {
            self.flushes = flushes;
            scripts.update_interpreter_bytes(kind, flushes, 0, self.counted_bytes);
        }
    }

    /// Updates the recorded memory of the state, once every [`RUNS_PER_MEASUREMENT`] runs.
    fn update_memory(&mut self, scripts: &Scripts, kind: ScriptKind) {
        self.runs = self.runs.wrapping_add(1);
        if self.runs % RUNS_PER_MEASUREMENT == 1 {
            self.measure_memory(scripts, kind);
        }
    }

    fn measure_memory(&mut self, scripts: &Scripts, kind: ScriptKind) {
        let bytes = self.lua.used_memory() as u64;
        scripts.update_interpreter_bytes(kind, self.flushes, self.counted_bytes, bytes);
        self.counted_bytes = bytes;
    }

    fn run(
        &mut self,
        program: &Program,
        current: CurrentRun,
        words: ScriptWords<'_>,
        host: &mut dyn Host,
        reply: &mut Reply<'_>,
    ) -> RunOutcome {
        *self.shared.checks.run.borrow_mut() = Some(current);
        self.shared.protocol.set(HostSettings::INITIAL.protocol);
        self.shared.replication.set(HostSettings::INITIAL.replication);
        self.shared.json.restore_defaults();
        let most_reply_bytes = host.reply_bytes_max();
        let begin = reply.len();
        let gate = HostGate::new(host, &self.shared, reply);
        let ended = gate.run(|| self.start.run(&program.callback, words.keys(), words.arguments()));
        // The run goes on until its result is written: a small value can make a reply that takes forever.
        let ended = ended.and_then(|end| self.write_end(end, most_reply_bytes, reply));
        let Some(CurrentRun { run, .. }) = self.shared.checks.run.take() else {
            unreachable!("a run is current until it ends");
        };
        let stopped = run.settle_stop_reason();
        let is_restarted = stopped.is_some_and(StopReason::is_restart);
        self.shared.log_lines.end_run(is_restarted);
        self.shared.random.end_script(is_restarted);
        if let Some(stop) = stopped.filter(|_| is_restarted) {
            reply.out.truncate(begin);
            return RunOutcome::Stopped(stop);
        }
        let mut is_killed = false;
        let failed_by = match (ended, stopped) {
            (Ok(RunEnd::Replied(errors)), _) => {
                return RunOutcome::Done {
                    errors,
                    is_returned: true,
                    is_error: reply.out.get(begin) == Some(&b'-'),
                    is_killed: false,
                };
            }
            (Ok(RunEnd::Failed(Value::Table(error))), _) => error_of(&error),
            (_, Some(stop @ (StopReason::Killed | StopReason::Overdue))) => {
                is_killed = true;
                (error_text(&killed_text(program.kind, stop, &run)), false)
            }
            (_, Some(stop)) => return RunOutcome::Stopped(stop),
            (Ok(RunEnd::Failed(other)), None) => {
                let text = match other {
                    Value::Error(error) => super::arguments::message(*error),
                    other => other.to_string().unwrap_or_default().into_bytes(),
                };
                (error_text(&text), false)
            }
            (Err(error), None) => (error_text(&super::arguments::message(error)), false),
        };
        let (text, is_counted) = failed_by;
        // The error is the whole reply.
        reply.out.truncate(begin);
        reply.error_bytes(&text);
        RunOutcome::Done {
            errors: if is_counted {
                Vec::new()
            } else {
                vec![convert::code_of(&text)]
            },
            is_returned: false,
            is_error: true,
            is_killed,
        }
    }

    /// Writes what a script returned as its reply, unless its host has written it.
    fn write_end(&self, end: ScriptEnd, most_reply_bytes: usize, reply: &mut Reply<'_>) -> mlua::Result<RunEnd> {
        match end {
            ScriptEnd::Replied => Ok(RunEnd::Replied(Vec::new())),
            ScriptEnd::Failed(value) => Ok(RunEnd::Failed(value)),
            ScriptEnd::Returned(value) => {
                let meter = WorkMeter::new(&self.lua, &self.shared.checks);
                let protocol = self.shared.protocol.get();
                convert::write_reply(&value, protocol, most_reply_bytes, meter, reply).map(RunEnd::Replied)
            }
        }
    }
}

fn error_text(text: &[u8]) -> Vec<u8> {
    [b"ERR ", text].concat()
}

/// Returns the text of the error that ended a script, and `true` if the error has been counted.
fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn error_of(error: &Table) -> (Vec<u8>, bool) {
    let text_of = |value: Value| match value {
        Value::String(text) => Some(until_zero(&text.as_bytes()).to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        _ => None,
    };
    // Without the metatable: a function there would run after the run has ended, when nothing could stop it.
    let field = |name: &str| error.raw_get::<Value>(name).unwrap_or(Value::Nil);
    let mut text = text_of(field("err")).unwrap_or_else(|| b"ERR unknown error".to_vec());
    let (source, line) = (text_of(field("source")), text_of(field("line")));
    if let (Some(source), Some(line)) = (source, line) {
        text = [&text[..], b" script: on ", &source, b":", &line, b"."].concat();
    }
    let is_counted = matches!(field("ignore_error_stats_update"), Value::Boolean(true));
    (text, is_counted)
}

/// Returns the text of the error of a killed run, without its code.
fn killed_text(kind: ScriptKind, stop: StopReason, run: &ScriptRun) -> Vec<u8> {
    let end = match (stop, kind) {
        (StopReason::Overdue, _) => "killed by the server: it was busy in a transaction that keeps its worker",
        (_, ScriptKind::Eval) => "killed by user with SCRIPT KILL",
        (_, ScriptKind::Function) => "killed by user with FUNCTION KILL",
    };
    let mut text = format!("Script {end}.");
    if let Some((source, line)) = run.stopped_at() {
        text.push_str(&format!(" script: on {source}:{line}."));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests;
