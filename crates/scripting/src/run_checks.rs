//! Checks at intervals that a run may continue: a hook does so for Lua code, a meter for native code that takes long.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mlua::{HookTriggers, Lua, VmState};

use super::running::{RunRegistry, ScriptRun};

/// The number of Lua instructions between two checks of a run, some 50 µs.
const INSTRUCTIONS_PER_CHECK: u32 = 10_000;
/// The number of values that native code visits between two checks of a run, some 100 µs.
const VALUES_PER_CHECK: u32 = 1000;
/// The bytes that native code writes between two checks of a run.
const BYTES_PER_CHECK: usize = 1 << 20;

/// The run that an interpreter executes.
#[derive(Clone)]
pub struct CurrentRun {
    /// The run.
    pub run: Arc<ScriptRun>,
    /// `true` if it is already listed in the register.
    pub is_listed: bool,
}

/// What an interpreter needs to check the run that it executes.
#[derive(Default)]
pub struct RunChecks {
    /// The register that checks the runs; empty while a debugger is attached, which checks them itself.
    running: OnceCell<Arc<RunRegistry>>,
    /// The run that is executed.
    pub run: RefCell<Option<CurrentRun>>,
    /// Returns `true` once loading a library is to be aborted.
    pub is_load_over: RefCell<Option<Rc<dyn Fn() -> bool>>>,
    /// The number of values that native code may visit until the next check. It goes on from call to call: a loop over
    /// short calls executes few Lua instructions.
    values_left: Cell<u32>,
    /// The bytes that native code may write until the next check.
    bytes_left: Cell<usize>,
}

impl RunChecks {
    /// Checks the current run.
    ///
    /// # Errors
    /// The error that stops the script, if it is to stop.
    pub fn check(&self, lua: &Lua) -> mlua::Result<()> {
        match self.must_stop(lua) {
            true => Err(stop_error()),
            false => Ok(()),
        }
    }

    /// Returns `true` if the current run, or the code of a library that is being loaded, is to stop.
    fn must_stop(&self, lua: &Lua) -> bool {
        if let Some(is_over) = &*self.is_load_over.borrow()
            && is_over()
        {
            return true;
        }
        let current = self.run.borrow();
        let Some(current) = current.as_ref() else {
            return false;
        };
        match self.running.get() {
            Some(running) => running.check_run(&current.run, current.is_listed, || position_of_stop(lua)),
            None => current.run.stop_reason().is_some(),
        }
    }
}

/// Returns the source and line at which the script is stopped.
pub fn position_of_stop(lua: &Lua) -> Option<(String, usize)> {
    let (source, line) = current_position(lua, 0);
    source.zip(line)
}

/// Installs the hook that checks the run at intervals.
pub fn install_check_hook(lua: &Lua, checks: &Rc<RunChecks>, running: Arc<RunRegistry>) -> mlua::Result<()> {
    let _ = checks.running.set(running);
    let checks = checks.clone();
    let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK);
    lua.set_global_hook(triggers, move |lua, _| checks.check(lua).map(|()| VmState::Continue))
}

/// Checks the current run while native code visits values, during which Lua calls no hook. A value that contains
/// another one many times is visited as if all its parts were different, so a few tables can take forever.
pub struct WorkMeter<'i> {
    lua: &'i Lua,
    checks: &'i RunChecks,
    /// The length of the output at the last call.
    output_bytes: usize,
}

impl<'i> WorkMeter<'i> {
    /// Creates a meter for the run of an interpreter.
    pub fn new(lua: &'i Lua, checks: &'i RunChecks) -> Self {
        WorkMeter {
            lua,
            checks,
            output_bytes: 0,
        }
    }

    /// Counts a value, and checks the run when it is time. `output_bytes` is the length of the output so far.
    ///
    /// # Errors
    /// The error that stops the script.
    #[inline]
    pub fn check(&mut self, output_bytes: usize) -> mlua::Result<()> {
        let written = output_bytes.saturating_sub(std::mem::replace(&mut self.output_bytes, output_bytes));
        let RunChecks {
            values_left,
            bytes_left,
            ..
        } = self.checks;
        if values_left.get() == 0 || bytes_left.get() < written {
            return self.check_run();
        }
        values_left.set(values_left.get() - 1);
        bytes_left.set(bytes_left.get() - written);
        Ok(())
    }

    #[cold]
    fn check_run(&mut self) -> mlua::Result<()> {
        self.checks.values_left.set(VALUES_PER_CHECK);
        self.checks.bytes_left.set(BYTES_PER_CHECK);
        self.checks.check(self.lua)
    }
}

/// Returns the error that ends a script; no script can catch it.
pub fn stop_error() -> mlua::Error {
    mlua::Error::RuntimeError("stopped".to_owned())
}

/// Returns the source and line that the script is executing; frames of the prelude and of native functions are skipped.
/// So are the innermost `skipped` ones.
pub fn current_position(lua: &Lua, skipped: usize) -> (Option<String>, Option<usize>) {
    for level in skipped.. {
        let found = lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let own = source.what == "C" || source.what == "tail" || source.source.as_deref() == Some("=weft");
            (!own).then(|| (source.source.map(|text| text.into_owned()), frame.current_line()))
        });
        match found {
            None => break,
            Some(Some(position)) => return position,
            Some(None) => {}
        }
    }
    (None, None)
}
