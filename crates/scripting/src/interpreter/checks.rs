//! Checks at intervals that a run may continue: a hook does so for Lua code, a meter for native code that takes long.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{HookTriggers, Lua, VmState};

use super::gate::stop_error;
use super::natives::current_position;
use super::{INSTRUCTIONS_PER_CHECK, InterpreterShared};
use crate::running::RunRegistry;

/// The number of values that native code visits between two checks of a run, some 100 µs.
const VALUES_PER_CHECK: u32 = 1000;
/// The bytes that native code writes between two checks of a run.
const BYTES_PER_CHECK: usize = 1 << 20;

impl InterpreterShared {
    /// Returns `true` if the current run, or the code of a library that is being loaded, is to stop.
    fn must_stop(&self, lua: &Lua) -> bool {
        if let Some(until) = self.load_until.get()
            && weft_os::time::Instant::now() > until
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
pub(super) fn position_of_stop(lua: &Lua) -> Option<(String, usize)> {
    let (source, line) = current_position(lua, 0);
    source.zip(line)
}

/// Installs the hook that checks the run at intervals.
pub(super) fn install_check_hook(
    lua: &Lua,
    shared: &Rc<InterpreterShared>,
    running: Arc<RunRegistry>,
) -> mlua::Result<()> {
    let _ = shared.running.set(running);
    let shared = shared.clone();
    let triggers = HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK);
    lua.set_global_hook(triggers, move |lua, _| match shared.must_stop(lua) {
        true => Err(stop_error()),
        false => Ok(VmState::Continue),
    })
}

/// Checks the current run while native code visits values, during which Lua calls no hook. A value that contains
/// another one many times is visited as if all its parts were different, so a few tables can take forever.
pub(crate) struct WorkMeter<'i> {
    lua: &'i Lua,
    shared: &'i InterpreterShared,
    /// The number of values until the next check.
    values_left: u32,
    /// The length of the output at which the next check is due.
    next_check_bytes: usize,
}

impl<'i> WorkMeter<'i> {
    /// Creates a meter for the run of an interpreter.
    pub(crate) fn new(lua: &'i Lua, shared: &'i InterpreterShared) -> Self {
        WorkMeter {
            lua,
            shared,
            values_left: VALUES_PER_CHECK,
            next_check_bytes: BYTES_PER_CHECK,
        }
    }

    /// Counts a value, and checks the run when it is time. `output_bytes` is the length of the output so far.
    ///
    /// # Errors
    /// The error that stops the script.
    #[inline]
    pub(crate) fn check(&mut self, output_bytes: usize) -> mlua::Result<()> {
        self.values_left -= 1;
        match self.values_left > 0 && output_bytes < self.next_check_bytes {
            true => Ok(()),
            false => self.check_run(output_bytes),
        }
    }

    #[cold]
    fn check_run(&mut self, output_bytes: usize) -> mlua::Result<()> {
        self.values_left = VALUES_PER_CHECK;
        self.next_check_bytes = output_bytes.saturating_add(BYTES_PER_CHECK);
        match self.shared.must_stop(self.lua) {
            true => Err(stop_error()),
            false => Ok(()),
        }
    }
}
