//! Compiles scripts, and keeps the compiled ones of an interpreter.

use std::rc::Rc;
use std::sync::Arc;

use mlua::Function as LuaFunction;

use super::{Interpreter, Program, ProgramSource, ScriptKind};
use crate::cache::{Digest, Script, digest_of};
use crate::{Scripts, shebang};

/// The maximum number of compiled scripts that an interpreter keeps. Lua has room for some 8000 values that are
/// referenced from outside.
const COMPILED_MAX: usize = 4096;
/// The number of compiled scripts in excess of the cached ones at which dead scripts are dropped.
const DEAD_SCRIPTS: usize = 64;

impl Interpreter {
    pub(super) fn compile(&self, code: &[u8], name: &str, what: &str) -> Result<LuaFunction, Vec<u8>> {
        let failed = |text: &[u8]| [what.as_bytes(), text].concat();
        let chunk = self.lua.load(code).set_name(name);
        chunk.into_function().map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => failed(message.as_bytes()),
            other => failed(&crate::arguments::message(other)),
        })
    }

    pub(super) fn program_of_source(
        &mut self,
        scripts: &Scripts,
        source: &[u8],
        keep: bool,
    ) -> Result<Rc<Program>, Vec<u8>> {
        if let Some(program) = self.by_source.get(source).filter(|program| is_alive(program)) {
            return Ok(program.clone());
        }
        let digest = digest_of(source);
        let header = shebang::of_script(source)?;
        let what = "Error compiling script (new function): ";
        let callback = self.compile(&source[header.code_at..], "@user_script", what)?;
        let script = scripts.cache.add(digest, source, header.flags, !keep, None);
        self.remember(scripts, script, callback)
    }

    pub(super) fn program_of_digest(&mut self, scripts: &Scripts, digest: &[u8]) -> Result<Rc<Program>, Vec<u8>> {
        let Ok(mut lower) = Digest::try_from(digest) else {
            return Err(Vec::new());
        };
        lower.make_ascii_lowercase();
        if let Some(program) = self.by_digest.get(&lower).filter(|program| is_alive(program)) {
            self.recent_script = Some(program.clone());
            return Ok(program.clone());
        }
        let script = scripts.cache.find(&lower).ok_or(Vec::new())?;
        let header = shebang::of_script(&script.source)?;
        let callback = self.compile(&script.source[header.code_at..], "@user_script", "")?;
        self.remember(scripts, script, callback)
    }

    fn remember(
        &mut self,
        scripts: &Scripts,
        script: Arc<Script>,
        callback: LuaFunction,
    ) -> Result<Rc<Program>, Vec<u8>> {
        if self.by_digest.len() > scripts.cache.script_count() + DEAD_SCRIPTS {
            self.recent_script = None;
            self.by_digest.retain(|_, program| is_alive(program));
            self.by_source.retain(|_, program| is_alive(program));
        }
        if self.by_digest.len() >= COMPILED_MAX {
            // A script that is needed again is compiled again: the sources are in the shared cache.
            self.by_digest.clear();
            self.by_source.clear();
        }
        let program = Rc::new(Program {
            kind: ScriptKind::Eval,
            callback: self.start.prepare(callback).map_err(crate::arguments::message)?,
            source: ProgramSource::Script(script.clone()),
        });
        self.by_digest.insert(script.digest, program.clone());
        self.by_source.insert(script.source.clone(), program.clone());
        self.measure_memory(scripts, ScriptKind::Eval);
        Ok(program)
    }
}

/// Returns `true` if the program is a script that is still in the cache.
#[inline]
pub(super) fn is_alive(program: &Program) -> bool {
    program.script().is_some_and(Script::is_alive)
}
