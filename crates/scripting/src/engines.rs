//! Engines for languages other than Lua. Modules bring them, and the code of modules runs on one thread only, so a
//! script of such an engine is compiled and run there. This crate keeps the scripts and libraries.

use std::any::Any;
use std::sync::Arc;

use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::RwLock;
use weft_os::time::Instant;

use crate::cache::{EngineCode, Script, digest_of};
use crate::libraries::{Library, LoadedFunction};
use crate::profile::ScriptProfile;
use crate::shebang::{self, ScriptFlags};
use crate::{ScriptKind, Scripts};

/// An engine.
pub trait ScriptingEngine: Send + Sync {
    /// Returns its name, as its module spells it.
    fn name(&self) -> Arc<str>;
    /// Compiles code, which follows the first line of a script or library.
    ///
    /// # Errors
    /// The text of the error reply, without its code.
    fn compile(&self, kind: ScriptKind, code: &[u8]) -> Result<Vec<EngineFunction>, Vec<u8>>;
}

/// A function that an engine has compiled, or the only one of a script.
pub struct EngineFunction {
    /// The name.
    pub name: Vec<u8>,
    /// The description.
    pub description: Option<Vec<u8>>,
    /// The flags.
    pub flags: ScriptFlags,
    /// The compiled code.
    pub code: Arc<dyn Any + Send + Sync>,
}

/// The engines of modules.
#[derive(Default)]
pub struct Engines {
    all: RwLock<Vec<Arc<dyn ScriptingEngine>>>,
    exist: AtomicBool,
}

/// Returns `true` if this library is not in Lua, so an engine of a module has to compile it.
pub fn is_for_engine_of_module(code: &[u8]) -> bool {
    shebang::of_any_library(code).is_ok_and(|header| !is_lua(&header.engine))
}

/// Returns `true` if this is the name of the engine that the server has itself.
pub fn is_lua(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"lua")
}

impl Engines {
    /// Returns `true` if there are engines of modules.
    #[inline]
    pub fn any_exist(&self) -> bool {
        self.exist.load(Ordering::Relaxed)
    }

    /// Returns an engine by its name, in any case.
    pub fn find(&self, name: &[u8]) -> Option<Arc<dyn ScriptingEngine>> {
        let all = self.all.read();
        all.iter()
            .find(|engine| engine.name().as_bytes().eq_ignore_ascii_case(name))
            .cloned()
    }

    /// Returns the names of all engines.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.all.read().iter().map(|engine| engine.name()).collect()
    }

    /// Adds an engine. Returns `false` if there is one of this name.
    pub fn add(&self, engine: Arc<dyn ScriptingEngine>) -> bool {
        let mut all = self.all.write();
        let name = engine.name();
        let is_taken = |other: &Arc<dyn ScriptingEngine>| other.name().eq_ignore_ascii_case(&name);
        if is_lua(name.as_bytes()) || all.iter().any(is_taken) {
            return false;
        }
        all.push(engine);
        self.exist.store(true, Ordering::Relaxed);
        true
    }

    fn remove(&self, name: &str) {
        let mut all = self.all.write();
        all.retain(|engine| !engine.name().eq_ignore_ascii_case(name));
        self.exist.store(!all.is_empty(), Ordering::Relaxed);
    }
}

impl Scripts {
    /// Removes an engine, with all its scripts and libraries.
    pub fn remove_engine(&self, name: &str) {
        self.engines.remove(name);
        self.cache.remove_engine(name);
        self.libraries.remove_engine(name);
    }

    /// Returns the engine of a module whose script this is, if it is one.
    pub fn engine_of_source(&self, source: &[u8]) -> Option<Arc<dyn ScriptingEngine>> {
        if !self.engines.any_exist() {
            return None;
        }
        let (engine, _) = shebang::of_any_script(source).ok()?;
        self.engines.find(&engine)
    }

    /// Returns the engine of a module whose library this is, if it is one.
    pub fn engine_of_library(&self, code: &[u8]) -> Option<Arc<dyn ScriptingEngine>> {
        if !self.engines.any_exist() {
            return None;
        }
        self.engines.find(&shebang::of_any_library(code).ok()?.engine)
    }

    /// Compiles a script of an engine of a module, unless it is cached. Where the engine runs. With `keep`, the script
    /// is not evicted.
    ///
    /// # Errors
    /// The text of the error reply, without its code.
    pub fn prepare_engine_script(
        &self,
        engine: &dyn ScriptingEngine,
        source: &[u8],
        keep: bool,
    ) -> Result<Arc<Script>, Vec<u8>> {
        let digest = digest_of(source);
        let script = match self.cache.find(&digest) {
            Some(script) => script,
            None => {
                let (_, header) = shebang::of_any_script(source)?;
                let mut functions = engine.compile(ScriptKind::Eval, &source[header.code_at..])?;
                let function = functions
                    .pop()
                    .filter(|_| functions.is_empty())
                    .ok_or(b"The engine has not compiled exactly one function".to_vec())?;
                let code = EngineCode {
                    engine: engine.name(),
                    code: function.code,
                };
                self.cache.add(digest, source, header.flags, !keep, Some(code))
            }
        };
        match keep {
            true => self.cache.protect_from_eviction(&script),
            false => self.cache.touch(&script),
        }
        Ok(script)
    }

    /// Compiles a library of an engine of a module. Where the engine runs.
    pub(crate) fn load_engine_library(
        &self,
        engine: &dyn ScriptingEngine,
        name: Vec<u8>,
        code: &[u8],
        code_at: usize,
    ) -> Result<Arc<Library>, Vec<u8>> {
        let started = Instant::now();
        let compiled = engine.compile(ScriptKind::Function, &code[code_at..])?;
        let mut functions: Vec<LoadedFunction> = Vec::with_capacity(compiled.len());
        for function in compiled {
            shebang::check_function_name(&function.name)?;
            if functions.iter().any(|known| known.name == function.name) {
                return Err(b"Function already exists in the library".to_vec());
            }
            functions.push(LoadedFunction {
                name: function.name,
                description: function.description,
                flags: function.flags,
                profile: ScriptProfile::predict(code),
                engine_code: Some(function.code),
            });
        }
        if functions.is_empty() {
            return Err(b"No functions registered".to_vec());
        }
        functions.sort_by(|one, other| one.name.cmp(&other.name));
        let mut library = Library::new(name, code.to_vec(), functions, started.elapsed());
        library.engine = Some(engine.name());
        Ok(Arc::new(library))
    }
}
