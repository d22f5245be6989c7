//! Lua 5.1 with its known holes closed, and states whose local variables a debugger can read.
//!
//! The interpreter is Lua 5.1.5 as the crate `lua-src` carries it, patched and compiled by `build/`; `build/patches.rs` lists
//! every change and its reason. `mlua` links against it.
//!
//! The only way to a function's local variables is Lua's library for debugging, which allows much that is unsound, so `mlua`
//! loads it only in `unsafe` code. Here it is loaded, the one function that only reads is taken out, and the rest is dropped.
//!
//! # The rule that `unsafe` leans on
//!
//! 1. **Lua's debugging library.** Of it only `getlocal` is kept, which changes nothing and is called by Rust alone; no code
//!    of a script ever sees the library, and none can load C modules.

use mlua::{Function, Lua, LuaOptions, LuaString, StdLib, Table, Value};

/// What looks at local variables of a state.
#[derive(Clone, Debug)]
pub struct Locals(Function);

/// A new state with these libraries, and what looks at its variables.
///
/// # Errors
/// When memory is short.
pub fn lua_with_locals(libraries: StdLib, options: LuaOptions) -> mlua::Result<(Lua, Locals)> {
    // SAFETY: rule 1. No library for modules is among them, and that for debugging is out of reach before any code runs.
    let lua = unsafe { Lua::unsafe_new_with((libraries & !StdLib::PACKAGE) | StdLib::DEBUG, options) };
    let globals = lua.globals();
    let debug: Table = globals.raw_get("debug")?;
    let locals = Locals(debug.raw_get("getlocal")?);
    debug.clear()?;
    globals.raw_remove("debug")?;
    Ok((lua, locals))
}

impl Locals {
    /// The variable number `index`, from 1, of the function at `level`, where 0 is the one that runs: its name and its
    /// value; `None` if it has no more.
    pub fn at(&self, level: usize, index: usize) -> Option<(Vec<u8>, Value)> {
        // To the function that looks, it is itself at level 0.
        let (name, value): (Option<LuaString>, Value) = self.0.call((level + 1, index)).ok()?;
        Some((name?.as_bytes().to_vec(), value))
    }
}

#[cfg(test)]
mod tests;
