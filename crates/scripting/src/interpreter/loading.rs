//! Loads libraries: each interpreter runs a library's code once, which registers its functions.
//!
//! FUNCTION LOAD runs the code with a time limit that is far too long for a worker. For the libraries of data files and
//! of a primary's stream there is none: their code has run before, maybe on a faster machine. It is stopped when its
//! result is of no use any more. Another thread runs the code when it calls one of the functions for the first time.
//! Then the code is part of a run, as the code of the function is: on a worker it is stopped after a short time, and a
//! script thread calls the function instead. There the run is listed and can be killed. How long the code took is known
//! from the first thread, so a worker usually does not begin with code that is too long.
//!
//! A transaction may call functions of libraries that it loads itself. If their code is too long for a worker, a thread
//! runs it before the transaction begins, and then runs the transaction ([`Interpreter::prepare_libraries`]).

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function as LuaFunction, Table, Value};

use super::{CompiledLibrary, FunctionError, Interpreter, Program, ScriptKind, killed_text};
use crate::libraries::Library;
use crate::run_checks::CurrentRun;
use crate::running::StopReason;
use crate::shebang::{self, ScriptFlags};
use crate::{Scripts, arguments};
use weft_os::time::Instant;

/// The time limit for the code of a library while FUNCTION LOAD runs it.
const LOAD_LIMIT: Duration = Duration::from_millis(500);

/// What stops the code of a library before its end.
pub(super) enum LoadBound {
    /// [`LOAD_LIMIT`].
    TimeLimit,
    /// This function, once it returns `true`.
    Until(Rc<dyn Fn() -> bool>),
    /// The run that the code is part of.
    Run(CurrentRun),
}

/// A function as it was registered.
pub(super) struct RegisteredFunction {
    /// The name.
    pub(super) name: Vec<u8>,
    pub(super) description: Option<Vec<u8>>,
    pub(super) flags: ScriptFlags,
    pub(super) callback: LuaFunction,
}

impl Interpreter {
    pub(super) fn function(
        &mut self,
        scripts: &Scripts,
        library: &Arc<Library>,
        index: usize,
        begin: impl FnOnce(&[u8]) -> CurrentRun,
    ) -> Result<Rc<Program>, FunctionError> {
        let address = Arc::as_ptr(library) as usize;
        if !self.libraries.contains_key(&address) {
            self.forget_unloaded_libraries(scripts);
            self.compile_library(scripts, library, begin(&library.functions[index].name))?;
        }
        let compiled = self.libraries.get(&address);
        let function = compiled.and_then(|compiled| compiled.functions.get(index));
        function
            .cloned()
            .ok_or_else(|| FunctionError::Failed(b"Function not found".to_vec()))
    }

    /// Runs the code of libraries that are about to be loaded, each as a part of a run, which `begin` creates from the
    /// name of the library.
    pub(super) fn prepare_libraries(
        &mut self,
        scripts: &Scripts,
        libraries: &[Arc<Library>],
        mut begin: impl FnMut(&[u8]) -> CurrentRun,
    ) -> Result<(), FunctionError> {
        // Before the first one: it would be forgotten when the next one comes.
        self.forget_unloaded_libraries(scripts);
        for library in libraries {
            if !self.libraries.contains_key(&(Arc::as_ptr(library) as usize)) {
                self.compile_library(scripts, library, begin(&library.name))?;
            }
        }
        Ok(())
    }

    /// Runs the code of a library as a part of a run, and keeps its functions.
    fn compile_library(
        &mut self,
        scripts: &Scripts,
        library: &Arc<Library>,
        current: CurrentRun,
    ) -> Result<(), FunctionError> {
        let functions = self.load_in_run(scripts, library, current)?;
        // In the order of the library, whatever order the functions were registered in this time.
        let callbacks: Vec<LuaFunction> = library
            .functions
            .iter()
            .filter_map(|known| functions.iter().find(|function| function.name == known.name))
            .map(|function| function.callback.clone())
            .collect();
        if callbacks.len() != library.functions.len() {
            let text = b"The library registers different functions each time it is loaded";
            return Err(FunctionError::Failed(text.to_vec()));
        }
        let compiled = CompiledLibrary::new(library.clone(), callbacks, &self.start)?;
        self.libraries.insert(Arc::as_ptr(library) as usize, compiled);
        self.measure_memory(scripts, ScriptKind::Function);
        Ok(())
    }

    /// Runs the code of a library as a part of a run that calls one of its functions. The run is listed meanwhile if
    /// that is to be so from its start.
    fn load_in_run(
        &mut self,
        scripts: &Scripts,
        library: &Library,
        current: CurrentRun,
    ) -> Result<Vec<RegisteredFunction>, FunctionError> {
        let (run, is_listed) = (current.run.clone(), current.is_listed);
        if run.is_too_long(library.load_time()) {
            return Err(FunctionError::Stopped(StopReason::TooLong));
        }
        let code_at = shebang::of_library(&library.code)?.1;
        if is_listed {
            scripts.running.list(&run);
        }
        let functions = self.load(&library.code[code_at..], LoadBound::Run(current));
        let load_time = run.elapsed();
        scripts.running.end_run(&run, is_listed);
        match run.stop_reason() {
            None => {}
            Some(stop @ (StopReason::Killed | StopReason::Overdue)) => {
                return Err(FunctionError::Failed(killed_text(ScriptKind::Function, stop, &run)));
            }
            Some(stop) => return Err(FunctionError::Stopped(stop)),
        }
        let functions = functions?;
        library.note_load_time(load_time);
        Ok(functions)
    }

    /// Drops the compiled libraries that are no longer loaded, if there must be some: at most as many of them stay as
    /// there are loaded libraries.
    pub(super) fn forget_unloaded_libraries(&mut self, scripts: &Scripts) {
        self.recent_function = None;
        let current = scripts.libraries.current();
        if self.libraries.len() > current.libraries().len() {
            let address = |library: &Arc<Library>| Arc::as_ptr(library) as usize;
            let loaded: HashSet<usize> = current.libraries().map(address).collect();
            self.libraries
                .retain(|_, compiled| loaded.contains(&address(&compiled.library)));
        }
    }

    /// Runs the code of a library. Returns the functions that it registers, sorted by name.
    pub(super) fn load(&mut self, code: &[u8], bound: LoadBound) -> Result<Vec<RegisteredFunction>, Vec<u8>> {
        let library = self.compile(code, "@user_function", "Error compiling function: ")?;
        let functions: RefCell<Vec<RegisteredFunction>> = RefCell::default();
        let refused: RefCell<Option<Vec<u8>>> = RefCell::default();
        let checks = &self.shared.checks;
        match bound {
            LoadBound::TimeLimit => {
                let until = Instant::now() + LOAD_LIMIT;
                *checks.is_load_over.borrow_mut() = Some(Rc::new(move || Instant::now() > until));
            }
            LoadBound::Until(is_over) => *checks.is_load_over.borrow_mut() = Some(is_over),
            LoadBound::Run(current) => *checks.run.borrow_mut() = Some(current),
        }
        let loaded = self.lua.scope(|scope| {
            let register = scope.create_function(|lua, registered: RegisterArguments| {
                let (name, callback, description, flags) = registered;
                let mut functions = functions.borrow_mut();
                match function_of(&functions, name, callback, description, &flags) {
                    Ok(function) => functions.push(function),
                    Err(RegistrationError::Raised(text)) => return lua.create_string(text).map(Some),
                    Err(RegistrationError::Deferred(text)) => {
                        refused.borrow_mut().get_or_insert(text);
                    }
                }
                Ok(None)
            })?;
            self.load.call::<(bool, Value)>((library, register))
        });
        *checks.is_load_over.borrow_mut() = None;
        let run = checks.run.take().map(|current| current.run);
        let stopped = run.and_then(|run| run.stop_reason());
        let is_restarted = stopped.is_some_and(StopReason::is_restart);
        self.shared.log_lines.end_run(is_restarted);
        self.end_load.call::<()>(()).map_err(arguments::message)?;
        let failed = |text: &[u8]| [b"Error registering functions: ", text].concat();
        match loaded {
            Ok((true, _)) => {}
            Ok((false, Value::String(text))) => return Err(failed(&text.as_bytes())),
            Ok((false, Value::Error(_))) | Err(mlua::Error::CallbackError { .. }) => {
                return Err(failed(b"ERR FUNCTION LOAD timeout"));
            }
            Ok((false, _)) => return Err(failed(b"ERR unknown error")),
            Err(error) => return Err(failed(&arguments::message(error))),
        }
        if let Some(text) = refused.into_inner() {
            return Err(text);
        }
        let mut functions = functions.into_inner();
        if functions.is_empty() {
            return Err(b"No functions registered".to_vec());
        }
        functions.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(functions)
    }
}

type RegisterArguments = (mlua::LuaString, LuaFunction, Option<mlua::LuaString>, Table);

/// The reason why a function is not registered.
enum RegistrationError {
    /// An error that is returned to the library's code.
    Raised(&'static str),
    /// An error that is reported once the code has run.
    Deferred(Vec<u8>),
}

fn function_of(
    known: &[RegisteredFunction],
    name: mlua::LuaString,
    callback: LuaFunction,
    description: Option<mlua::LuaString>,
    flags: &Table,
) -> Result<RegisteredFunction, RegistrationError> {
    let name = name.as_bytes().to_vec();
    let mut all = ScriptFlags::default();
    for flag in flags.sequence_values::<mlua::LuaString>() {
        let flag = flag
            .ok()
            .and_then(|flag| ScriptFlags::named_ignoring_case(&flag.as_bytes()))
            .ok_or(RegistrationError::Raised("unknown flag given"))?;
        all = all.union(flag);
    }
    shebang::check_function_name(&name).map_err(RegistrationError::Deferred)?;
    if known.iter().any(|function| function.name == name) {
        return Err(RegistrationError::Deferred(
            b"Function already exists in the library".to_vec(),
        ));
    }
    Ok(RegisteredFunction {
        name,
        description: description.map(|text| text.as_bytes().to_vec()),
        flags: all,
        callback,
    })
}
