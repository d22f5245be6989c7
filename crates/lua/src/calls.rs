//! Scripts that call commands: the border between `native/calls.c` and the host of the running script.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::rc::Rc;
use std::slice;

use mlua::{Function, Lua, MultiValue, Table, Value};
use mlua_sys::lua_State;

/// Runs commands for a script.
///
/// Its methods are called while Lua runs. None of them may panic.
pub trait ScriptHost {
    /// Runs a command. If `is_result` is set, the script ends with this call and returns the value of the reply. The
    /// host may write the reply as that of the script then.
    fn call(&mut self, arguments: CallArguments<'_>, is_result: bool) -> CallEnd<'_>;

    /// Runs a command with any arguments.
    ///
    /// # Errors
    /// The error that the script gets.
    fn call_with_values(&mut self, lua: &Lua, values: &MultiValue) -> mlua::Result<Value>;

    /// Returns `true`, as a Lua value, if the script's user may run this command.
    ///
    /// # Errors
    /// The error that the script gets.
    fn may_call(&mut self, values: &MultiValue) -> mlua::Result<Value>;

    /// Returns the failure of the last call.
    fn take_failure(&mut self) -> mlua::Error;

    /// Writes the value that the script returned as its reply.
    fn write_result(&mut self, result: ScriptResult<'_>);
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd<'a> {
    /// The call has this reply in RESP, which is no error.
    Reply(&'a [u8]),
    /// The host has written the reply as the reply of the script.
    Written,
    /// The call has failed. The host keeps the failure until the function for failures asks for it.
    Failed,
}

/// An argument of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallArgument<'a> {
    /// A string.
    Text(&'a [u8]),
    /// A number.
    Number(f64),
}

/// A value that a script returned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScriptResult<'a> {
    /// A string.
    Text(&'a [u8]),
    /// A number.
    Number(f64),
    /// A boolean.
    Boolean(bool),
    /// The text of a table that stands for a simple string.
    Status(&'a [u8]),
    /// Nil.
    Nil,
}

/// The end of a script that was run by a [`ScriptStarter`].
#[derive(Debug)]
pub enum ScriptEnd {
    /// It returned a value that the host has written.
    Replied,
    /// It returned this value, which the host has not written.
    Returned(Value),
    /// It threw this value.
    Failed(Value),
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallArguments<'a>(&'a [RawArgument]);

impl<'a> CallArguments<'a> {
    /// Returns the arguments in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = CallArgument<'a>> {
        self.0.iter().map(|argument| match argument.text.bytes.is_null() {
            true => CallArgument::Number(argument.number),
            // SAFETY: rule 2. The string is an argument of the running C function, so Lua keeps it.
            false => CallArgument::Text(unsafe { argument.text.as_slice() }),
        })
    }
}

/// `struct weft_bytes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawBytes {
    bytes: *const c_char,
    length: usize,
}

impl RawBytes {
    fn new(bytes: &[u8]) -> Self {
        RawBytes {
            bytes: bytes.as_ptr().cast(),
            length: bytes.len(),
        }
    }

    /// # Safety
    /// The bytes must be there for `'a`.
    unsafe fn as_slice<'a>(self) -> &'a [u8] {
        // SAFETY: rule 2, as the caller says.
        unsafe { slice::from_raw_parts(self.bytes.cast(), self.length) }
    }
}

/// `struct weft_words`.
#[repr(C)]
#[derive(Debug)]
struct RawWords {
    words: *const RawBytes,
    keys: usize,
    arguments: usize,
}

/// `struct weft_argument`.
#[repr(C)]
#[derive(Debug)]
struct RawArgument {
    text: RawBytes,
    number: f64,
}

type HostPointer = *mut (dyn ScriptHost + 'static);

thread_local! {
    /// The host of the running script; `None` also while it is in use.
    static HOST: Cell<Option<HostPointer>> = const { Cell::new(None) };
    /// The host of a call whose reply is being converted.
    static CALLED_HOST: Cell<Option<HostPointer>> = const { Cell::new(None) };
}

/// Restores the hosts of a thread at the end of a script, also if it panics.
struct HostGuard {
    host: Option<HostPointer>,
    called: Option<HostPointer>,
}

impl Drop for HostGuard {
    fn drop(&mut self) {
        HOST.set(self.host);
        CALLED_HOST.set(self.called);
    }
}

/// Calls `script`, whose calls go to `host`.
pub fn with_host<T>(host: &mut dyn ScriptHost, script: impl FnOnce() -> T) -> T {
    let host: *mut (dyn ScriptHost + '_) = host;
    // SAFETY: rule 2. The guard removes the pointer before the borrow of `host` ends.
    let host: HostPointer = unsafe { mem::transmute(host) };
    let _guard = HostGuard {
        host: HOST.replace(Some(host)),
        called: CALLED_HOST.replace(None),
    };
    script()
}

/// Gives `work` the host of the running script. Returns `None` if no script runs, or if its host is in use: then a
/// finalizer runs during a call.
pub fn with_current_host<T>(work: impl FnOnce(&mut dyn ScriptHost) -> T) -> Option<T> {
    let host = HOST.take()?;
    // SAFETY: rule 2. The host is alive until its guard ends, and nothing else can reach it while `HOST` is empty.
    let result = work(unsafe { &mut *host });
    HOST.set(Some(host));
    Some(result)
}

// ---- functions for Lua ---------------------------------------------------------------------------------------------

unsafe extern "C" {
    fn weft_push_command_function(state: *mut lua_State);
    fn weft_push_eval_function(state: *mut lua_State);
    fn weft_push_function_function(state: *mut lua_State);
    fn weft_push_readonly_function(state: *mut lua_State);
    fn weft_run_script(
        state: *mut lua_State,
        handler: *const c_void,
        start: *const c_void,
        script: *const c_void,
        result: *const c_void,
        words: *const RawWords,
    ) -> c_int;
}

/// The functions to which a function that runs commands leaves what is rare.
#[derive(Debug)]
pub struct CommandFallbacks {
    /// Called without arguments if a command has failed. It throws or returns [`ScriptHost::take_failure`].
    pub on_failure: Function,
    /// Called instead if the arguments are not all strings and numbers, or if there are none.
    pub on_other_arguments: Function,
    /// Converts a reply, given as a string, that has more than integers, strings and arrays.
    pub convert_reply: Function,
}

/// Creates a function for scripts that runs the command whose words are its arguments, and returns the reply.
///
/// # Errors
/// Fails if memory is exhausted.
pub fn command_function(lua: &Lua, fallbacks: CommandFallbacks) -> mlua::Result<Function> {
    let upvalues = (
        fallbacks.on_failure,
        fallbacks.on_other_arguments,
        fallbacks.convert_reply,
    );
    // SAFETY: rule 3. It takes the three values and leaves one.
    unsafe { lua.exec_raw(upvalues, |state| weft_push_command_function(state)) }
}

/// Starts the scripts of a Lua state.
#[derive(Debug)]
pub struct ScriptStarter {
    state: *mut lua_State,
    handler: Pinned<Function>,
    start: Pinned<Function>,
    /// A table whose first element is what the last script returned or threw.
    result: Pinned<Table>,
    /// Tells the scripts of this starter from those of another one.
    identity: Rc<()>,
    /// Memory for the words of the next script.
    words: RefCell<Vec<RawBytes>>,
    /// Must be dropped last: the other fields belong to this state.
    _lua: Lua,
}

/// The number of words for which memory is kept.
const MAX_KEPT_WORDS: usize = 1024;

/// A function that a [`ScriptStarter`] can call.
#[derive(Debug)]
pub struct StartableScript {
    starter: Rc<()>,
    function: Pinned<Function>,
}

/// A handle, which keeps its object from being collected, and the object's address, which Lua never changes.
#[derive(Debug)]
struct Pinned<T> {
    address: *const c_void,
    handle: T,
}

impl Pinned<Function> {
    fn function(handle: Function) -> Self {
        Pinned {
            address: handle.to_pointer(),
            handle,
        }
    }
}

impl Pinned<Table> {
    fn table(handle: Table) -> Self {
        Pinned {
            address: handle.to_pointer(),
            handle,
        }
    }
}

impl ScriptStarter {
    /// Creates a starter that sets KEYS and ARGV in `globals`. `handler` gets what a script throws. With
    /// `may_share_words` a script may get the tables of an earlier one, with other elements. Scripts must not be able
    /// to keep a reference to a table then.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn for_scripts(lua: &Lua, handler: Function, globals: Table, may_share_words: bool) -> mlua::Result<Self> {
        // SAFETY: rule 3. It takes the two values and leaves one.
        let start = unsafe { lua.exec_raw((globals, may_share_words), |state| weft_push_eval_function(state)) }?;
        ScriptStarter::new(lua, handler, start)
    }

    /// Creates a starter that passes the keys and arguments as parameters to a function of a library. `handler` gets
    /// what the function throws. A function gets the tables of the one before if that one has kept nothing at all.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    pub fn for_functions(lua: &Lua, handler: Function) -> mlua::Result<Self> {
        // SAFETY: rule 3. It leaves one value.
        let start = unsafe { lua.exec_raw((), |state| weft_push_function_function(state)) }?;
        ScriptStarter::new(lua, handler, start)
    }

    fn new(lua: &Lua, handler: Function, start: Function) -> mlua::Result<Self> {
        let result = lua.create_table_with_capacity(1, 0)?;
        let mut state = ptr::null_mut();
        // SAFETY: rule 3. It leaves nothing.
        unsafe { lua.exec_raw::<()>((), |running| state = running) }?;
        Ok(ScriptStarter {
            state,
            handler: Pinned::function(handler),
            start: Pinned::function(start),
            result: Pinned::table(result),
            identity: Rc::new(()),
            words: RefCell::default(),
            _lua: lua.clone(),
        })
    }

    /// Prepares a function of the same Lua state, to be run as a script.
    ///
    /// # Errors
    /// Fails if memory is exhausted.
    ///
    /// # Panics
    /// If the function belongs to another Lua state.
    pub fn prepare(&self, function: Function) -> mlua::Result<StartableScript> {
        // `mlua` checks that both are of one state.
        self.result.handle.raw_set(1, &function)?;
        self.result.handle.raw_set(1, Value::Nil)?;
        Ok(StartableScript {
            starter: self.identity.clone(),
            function: Pinned::function(function),
        })
    }

    /// Runs a script with these keys and arguments. No script of the same state may be running.
    ///
    /// # Errors
    /// Fails if memory is exhausted before the script starts.
    ///
    /// # Panics
    /// If the script was prepared by another starter.
    pub fn run<'w>(
        &self,
        script: &StartableScript,
        keys: impl Iterator<Item = &'w [u8]>,
        arguments: impl Iterator<Item = &'w [u8]>,
    ) -> mlua::Result<ScriptEnd> {
        assert!(
            Rc::ptr_eq(&self.identity, &script.starter),
            "a script is run by the starter that has prepared it"
        );
        let mut words = self.words.take();
        words.extend(keys.map(RawBytes::new));
        let key_count = words.len();
        words.extend(arguments.map(RawBytes::new));
        let raw_words = RawWords {
            words: words.as_ptr(),
            keys: key_count,
            arguments: words.len() - key_count,
        };
        // SAFETY: rules 2 and 4.
        let end = unsafe {
            weft_run_script(
                self.state,
                self.handler.address,
                self.start.address,
                script.function.address,
                self.result.address,
                &raw const raw_words,
            )
        };
        words.clear();
        if words.capacity() <= MAX_KEPT_WORDS {
            *self.words.borrow_mut() = words;
        }
        let take_result = || {
            let value: Value = self.result.handle.raw_get(1)?;
            self.result.handle.raw_set(1, Value::Nil)?;
            Ok(value)
        };
        match end {
            RUN_FAILED => take_result().map(ScriptEnd::Failed),
            RUN_RETURNED => take_result().map(ScriptEnd::Returned),
            RUN_REPLIED => Ok(ScriptEnd::Replied),
            _ => Err(mlua::Error::MemoryError("not enough memory".to_owned())),
        }
    }
}

/// Creates a function that makes its first argument, a table, read-only if the second one is true, and otherwise no
/// longer read-only. It returns the table. Every change of a read-only table is an error, by raw access too.
///
/// # Errors
/// Fails if memory is exhausted.
pub fn readonly_function(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: rule 3. It leaves one value.
    unsafe { lua.exec_raw((), |state| weft_push_readonly_function(state)) }
}

// ---- functions for native/calls.c ----------------------------------------------------------------------------------

// The enumerations of native/calls.c.
const REPLY: c_int = 0;
const FAILURE: c_int = 1;
const WRITTEN: c_int = 2;
const RUN_FAILED: c_int = 0;
const RUN_RETURNED: c_int = 1;
const RUN_REPLIED: c_int = 2;

#[unsafe(no_mangle)]
extern "C" fn weft_host_call(
    arguments: *const RawArgument,
    count: usize,
    is_result: c_int,
    reply: *mut RawBytes,
) -> c_int {
    let Some(host) = HOST.take() else {
        return FAILURE;
    };
    // SAFETY: rule 2. The C function owns the array, whose strings are its arguments.
    let arguments = CallArguments(unsafe { slice::from_raw_parts(arguments, count) });
    // SAFETY: rule 2. The host is alive until its guard ends, and nothing else can reach it while `HOST` is empty.
    let host_in_use = unsafe { &mut *host };
    match host_in_use.call(arguments, is_result != 0) {
        CallEnd::Reply(bytes) => {
            // SAFETY: rule 2. The C function owns the place. The host keeps the reply, because nothing can reach the
            // host before `weft_host_end_call`.
            unsafe { reply.write(RawBytes::new(bytes)) };
            CALLED_HOST.set(Some(host));
            REPLY
        }
        CallEnd::Written => {
            HOST.set(Some(host));
            WRITTEN
        }
        CallEnd::Failed => {
            HOST.set(Some(host));
            FAILURE
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn weft_host_end_call() {
    HOST.set(CALLED_HOST.take());
}

#[unsafe(no_mangle)]
extern "C" fn weft_host_end_script() -> c_int {
    match CALLED_HOST.take() {
        Some(host) => {
            HOST.set(Some(host));
            1
        }
        None => 0,
    }
}

#[unsafe(no_mangle)]
extern "C" fn weft_host_write_result(kind: c_int, text: RawBytes, number: f64) {
    let text = match text.bytes.is_null() {
        true => &[],
        // SAFETY: rule 2. The string is on Lua's stack while the C function runs.
        false => unsafe { text.as_slice() },
    };
    let result = match kind {
        0 => ScriptResult::Text(text),
        1 => ScriptResult::Number(number),
        2 => ScriptResult::Boolean(number != 0.0),
        3 => ScriptResult::Status(text),
        _ => ScriptResult::Nil,
    };
    with_current_host(|host| host.write_result(result));
}

#[cfg(test)]
mod tests;
