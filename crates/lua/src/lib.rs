//! Lua 5.1 with its known vulnerabilities fixed, and states whose local variables a debugger can read.
//!
//! The interpreter is Lua 5.1.5 as the crate `lua-src` ships it, patched and compiled by `build/`. `build/patches.rs`
//! lists every change and its reason. `mlua` links against it.
//!
//! A function's local variables are accessible only through Lua's debug library. That library allows many unsound
//! operations, so `mlua` loads it only in `unsafe` code. This crate loads it, extracts the one function that only
//! reads, and drops the rest.
//!
//! Scripts reach their host through a few functions in C (`native/calls.c`, [`calls`]). `mlua` would make a reference
//! of each argument and reply, which costs more than a GET.
//!
//! # Rules for `unsafe`
//!
//! 1. **Lua's debug library.** Only `getlocal` of it is kept. That function changes nothing and is called only from
//!    Rust. Script code never sees the library and cannot load C modules.
//! 2. **Pointers across the border to C.** A string that C passes is on Lua's stack until the Rust function returns.
//!    The words of a script are borrowed until it has ended. The host is borrowed by [`calls::with_host`] for as long
//!    as a script runs, and is taken out of its place while it is used or while C reads its reply: a finalizer that
//!    runs meanwhile finds no host.
//! 3. **Functions that push closures.** Each takes its upvalues from the stack and leaves one function. No function of
//!    Rust that C calls uses Lua or unwinds, so a long jump of Lua never skips a frame of Rust.
//! 4. **Addresses of Lua's objects.** Lua does not move objects. An address is passed to Lua only while a handle keeps
//!    its object from being collected, and only to the state of the object. A script is run outside of any call of Lua,
//!    so `mlua` takes the same state as the current one. The function that runs it throws nothing, so no long jump
//!    reaches Rust.

pub mod calls;

use mlua::{Function, Lua, LuaOptions, LuaString, StdLib, Table, Value};

/// A reader of the local variables of a Lua state.
#[derive(Clone, Debug)]
pub struct LocalVariables(Function);

/// Creates a state with these libraries, and a reader of its local variables.
///
/// # Errors
/// Fails if memory is exhausted.
pub fn new_state_with_locals(libraries: StdLib, options: LuaOptions) -> mlua::Result<(Lua, LocalVariables)> {
    // SAFETY: rule 1. The package library is excluded, and the debug library is out of reach before any code runs.
    let lua = unsafe { Lua::unsafe_new_with((libraries & !StdLib::PACKAGE) | StdLib::DEBUG, options) };
    let globals = lua.globals();
    let debug: Table = globals.raw_get("debug")?;
    let locals = LocalVariables(debug.raw_get("getlocal")?);
    debug.clear()?;
    globals.raw_remove("debug")?;
    Ok((lua, locals))
}

impl LocalVariables {
    /// Returns the name and value of local variable number `index` (from 1) of the function at `level`, where 0 is the
    /// running function; `None` if the function has fewer variables.
    pub fn get(&self, level: usize, index: usize) -> Option<(Vec<u8>, Value)> {
        // `getlocal` counts itself as level 0.
        let (name, value): (Option<LuaString>, Value) = self.0.call((level + 1, index)).ok()?;
        Some((name?.as_bytes().to_vec(), value))
    }
}

#[cfg(test)]
mod tests;
