//! Scripting engines that modules bring (`RegisterScriptingEngine`).
//!
//! The server keeps scripts and libraries, and an engine compiles and runs their code. All functions of an engine are
//! called where the code of modules runs.
//!
//! 1. Compiled code belongs to the engine. It is freed by a job at home once nothing of the server refers to it
//!    ([`CompiledCode`]), or when the engine is removed, which happens with all of it ([`Engine::free_all`]).
//! 2. The memory of an engine is known from the last time that its code was compiled, freed or called.
//! 3. Structures that the engine passes have versions. What a version lacks is not read.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use weft_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use weft_os::sync::{Mutex, RwLock};

use super::Module;
use super::engine_debugger::{self, DebuggerCommand};
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::objects::reply::FinishedReply;
use crate::objects::string::ModuleString;
use crate::session::{self, Session};

/// The newest version of the functions of an engine that is known here.
pub const METHODS_VERSION: u64 = 4;

/// The part of the server for which an engine is asked (`ValkeyModuleScriptingEngineSubsystemType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Subsystem {
    /// Scripts of EVAL.
    Eval = 0,
    /// Functions.
    Function = 1,
    /// Both.
    All = 2,
}

/// A function that an engine has compiled (`ValkeyModuleScriptingEngineCompiledFunction`).
#[repr(C)]
pub struct CompiledFunction {
    version: u64,
    name: *mut ModuleString,
    function: *mut c_void,
    description: *mut ModuleString,
    flags: u64,
}

/// The memory of an engine (`ValkeyModuleScriptingEngineMemoryInfo`).
#[repr(C)]
struct MemoryInfo {
    version: u64,
    used_memory: usize,
    engine_memory_overhead: usize,
}

/// What is left to do after an environment was replaced (`ValkeyModuleScriptingEngineCallableLazyEnvReset`).
#[repr(C)]
struct LazyReset {
    context: *mut c_void,
    callback: Option<unsafe extern "C" fn(*mut c_void)>,
}

type EngineData = *mut c_void;
type CompileFunctionV1 = unsafe extern "C" fn(
    *mut Context,
    EngineData,
    c_int,
    *const c_char,
    usize,
    *mut usize,
    *mut *mut ModuleString,
) -> *mut *mut CompiledFunction;
type CompileFunction = unsafe extern "C" fn(
    *mut Context,
    EngineData,
    c_int,
    *const c_char,
    usize,
    usize,
    *mut usize,
    *mut *mut ModuleString,
) -> *mut *mut CompiledFunction;
type FreeFunction = unsafe extern "C" fn(*mut Context, EngineData, c_int, *mut CompiledFunction);
type CallFunction = unsafe extern "C" fn(
    *mut Context,
    EngineData,
    *mut c_void,
    *mut CompiledFunction,
    c_int,
    *mut *mut ModuleString,
    usize,
    *mut *mut ModuleString,
    usize,
);
type ResetFunctionV2 = unsafe extern "C" fn(*mut Context, EngineData, c_int) -> *mut LazyReset;
type ResetFunction = unsafe extern "C" fn(*mut Context, EngineData, c_int, c_int) -> *mut LazyReset;
type MemoryFunction = unsafe extern "C" fn(*mut Context, EngineData, c_int) -> MemoryInfo;

/// The functions of an engine before version 4 (`ValkeyModuleScriptingEngineMethodsV3`). A function that has changed
/// from one version to the next is an address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Methods {
    /// The version of this structure.
    pub version: u64,
    compile: *const c_void,
    free: Option<FreeFunction>,
    call: Option<CallFunction>,
    function_memory: *const c_void,
    reset: *const c_void,
    memory: Option<MemoryFunction>,
}

/// The functions that version 4 adds behind [`Methods`]: those of a debugger.
#[repr(C)]
#[derive(Clone, Copy)]
struct DebuggerMethods {
    enable: Option<EnableFunction>,
    disable: Option<DisableFunction>,
    start: Option<StartFunction>,
    end: Option<DisableFunction>,
}

type EnableFunction =
    unsafe extern "C" fn(*mut Context, EngineData, c_int, *mut *const DebuggerCommand, *mut usize) -> c_int;
type DisableFunction = unsafe extern "C" fn(*mut Context, EngineData, c_int);
type StartFunction = unsafe extern "C" fn(*mut Context, EngineData, c_int, *mut ModuleString);

/// An engine.
pub struct Engine {
    /// Its name.
    pub name: Arc<str>,
    /// Its module.
    pub module: Arc<Module>,
    data: EngineData,
    methods: Methods,
    debugger: Option<DebuggerMethods>,
    /// Compiled code that is not freed yet, by its address.
    live: Mutex<HashMap<usize, Subsystem>>,
    /// The memory in bytes, as last reported.
    used_memory: AtomicUsize,
    overhead: AtomicUsize,
}

// SAFETY: the data and the functions are only used where the code of modules runs.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

static ENGINES: RwLock<Vec<Arc<Engine>>> = RwLock::new(Vec::new());
static EXIST: AtomicBool = AtomicBool::new(false);

/// Returns `true` if modules have registered engines.
#[inline]
pub fn any_exist() -> bool {
    EXIST.load(Ordering::Relaxed)
}

/// Returns all engines.
pub fn all() -> Vec<Arc<Engine>> {
    ENGINES.read().clone()
}

/// Returns an engine by its name, in any case.
pub fn find(name: &str) -> Option<Arc<Engine>> {
    let engines = ENGINES.read();
    engines
        .iter()
        .find(|engine| engine.name.eq_ignore_ascii_case(name))
        .cloned()
}

/// Registers an engine of a module. Returns `false`, after a line in the log, if it cannot be used.
///
/// # Safety
/// The methods are a structure of the version that it states, whose functions fit the data (rule 1 of this crate).
pub unsafe fn register(module: &Arc<Module>, name: &str, data: *mut c_void, address: *const Methods) -> bool {
    // SAFETY: the caller promises it. All versions have these fields.
    let methods = unsafe { address.read() };
    if methods.version > METHODS_VERSION {
        let version = methods.version;
        log::warn!(
            "The engine implementation version is greater than what this server supports. Server ABI Version: \
             {METHODS_VERSION}, Engine ABI version: {version}"
        );
        return false;
    }
    if methods.compile.is_null() || methods.free.is_none() || methods.call.is_none() {
        log::warn!("The scripting engine '{name}' lacks functions");
        return false;
    }
    // SAFETY: this version has these functions behind the others.
    let debugger = (methods.version >= 4).then(|| unsafe { address.add(1).cast::<DebuggerMethods>().read() });
    let engine = Arc::new(Engine {
        name: Arc::from(name),
        module: module.clone(),
        data,
        methods,
        debugger,
        live: Mutex::default(),
        used_memory: AtomicUsize::new(0),
        overhead: AtomicUsize::new(0),
    });
    let is_added = session::host().is_some_and(|host| host.add_engine(&engine));
    if !is_added {
        log::warn!("Scripting engine '{name}' is already registered in the server");
        return false;
    }
    engine.update_memory();
    ENGINES.write().push(engine.clone());
    EXIST.store(true, Ordering::Relaxed);
    // If its module does not unregister it.
    module.add_cleanup(move || remove(&engine));
    true
}

/// Removes an engine with everything that it has compiled. The thread has a session. Returns `false` if there is no
/// such engine.
pub fn unregister(name: &str) -> bool {
    find(name).is_some_and(|engine| {
        remove(&engine);
        true
    })
}

/// Removes an engine, unless that has happened.
fn remove(engine: &Arc<Engine>) {
    let mut engines = ENGINES.write();
    let count = engines.len();
    engines.retain(|other| !Arc::ptr_eq(other, engine));
    let is_removed = engines.len() < count;
    EXIST.store(!engines.is_empty(), Ordering::Relaxed);
    drop(engines);
    if is_removed {
        engine_debugger::forget_commands(engine);
        if let Some(host) = session::host() {
            host.remove_engine(engine);
        }
        engine.free_all();
    }
}

/// A function that was compiled, as the server keeps it.
pub struct Compiled {
    /// The name.
    pub name: Vec<u8>,
    /// The description.
    pub description: Option<Vec<u8>>,
    /// The flags (`VMSE_SCRIPT_FLAG_…`).
    pub flags: u64,
    /// The code.
    pub code: Arc<CompiledCode>,
}

/// Compiled code. It is freed at home after this is dropped.
pub struct CompiledCode {
    /// The engine.
    pub engine: Arc<Engine>,
    address: usize,
}

impl Drop for CompiledCode {
    fn drop(&mut self) {
        let (engine, address) = (self.engine.clone(), self.address);
        if let Some(host) = session::host()
            && engine.live.lock().contains_key(&address)
        {
            host.run_with_session_soon(Box::new(move |session| {
                session::with_session(session, || engine.free(address));
            }));
        }
    }
}

/// A call of compiled code.
pub struct EngineCall<'a> {
    /// The part of the server that calls.
    pub subsystem: Subsystem,
    /// The client for which it calls.
    pub caller: Caller,
    /// The keys.
    pub keys: Vec<&'a [u8]>,
    /// The other arguments.
    pub args: Vec<&'a [u8]>,
}

/// Strings for one call.
struct CallStrings(Vec<*mut ModuleString>);

impl CallStrings {
    fn new(words: &[&[u8]]) -> CallStrings {
        CallStrings(words.iter().map(|word| ModuleString::create(word)).collect())
    }
}

impl Drop for CallStrings {
    fn drop(&mut self) {
        for string in self.0.drain(..) {
            // SAFETY: this is a holder of each string. The engine may retain them.
            unsafe { ModuleString::release(string) };
        }
    }
}

impl Engine {
    /// Returns the version of its functions.
    pub fn version(&self) -> u64 {
        self.methods.version
    }

    /// Returns its used memory and its overhead in bytes, as last reported.
    pub fn memory(&self) -> (usize, usize) {
        (
            self.used_memory.load(Ordering::Relaxed),
            self.overhead.load(Ordering::Relaxed),
        )
    }

    /// Calls `run` with a context of the module that no client has, if the module is still there.
    fn with_context<R>(&self, run: impl FnOnce(*mut Context) -> R) -> Option<R> {
        if self.module.is_unloaded() {
            return None;
        }
        let context = Context::new(self.module.clone(), Caller::none());
        context.reply_state.discard();
        Some(invoke::name_module(&self.module, || {
            let result = run(context.as_pointer());
            drop(context);
            result
        }))
    }

    fn update_memory(&self) {
        let Some(memory) = self.methods.memory else {
            return;
        };
        // SAFETY: the function is the engine's, as are the data.
        let info = self.with_context(|context| unsafe { memory(context, self.data, Subsystem::All as c_int) });
        if let Some(info) = info {
            self.used_memory.store(info.used_memory, Ordering::Relaxed);
            self.overhead.store(info.engine_memory_overhead, Ordering::Relaxed);
        }
    }

    /// Compiles code. The thread has a session.
    ///
    /// # Errors
    /// The text of the engine.
    pub fn compile(self: &Arc<Self>, subsystem: Subsystem, code: &[u8]) -> Result<Vec<Compiled>, Vec<u8>> {
        let gone = || b"The scripting engine is gone".to_vec();
        // Engines may read the code as a C string.
        let terminated = [code, b"\0"].concat();
        let (mut count, mut reason) = (0, null_mut());
        let functions = self
            .with_context(|context| {
                let (subsystem, text) = (subsystem as c_int, terminated.as_ptr().cast());
                // SAFETY: the function is of the type that belongs to the version of the structure (rule 3). The code,
                // the count and the reason live until it has returned.
                unsafe {
                    match self.methods.version {
                        ..=1 => {
                            let compile: CompileFunctionV1 = std::mem::transmute(self.methods.compile);
                            compile(context, self.data, subsystem, text, 0, &raw mut count, &raw mut reason)
                        }
                        _ => {
                            let compile: CompileFunction = std::mem::transmute(self.methods.compile);
                            let length = code.len();
                            compile(
                                context,
                                self.data,
                                subsystem,
                                text,
                                length,
                                0,
                                &raw mut count,
                                &raw mut reason,
                            )
                        }
                    }
                }
            })
            .ok_or_else(gone)?;
        // SAFETY: null, or a string that the engine gives away.
        let text = unsafe { ModuleString::bytes_of(reason) }.to_vec();
        if !reason.is_null() {
            // SAFETY: as above.
            unsafe { ModuleString::release(reason) };
        }
        if functions.is_null() {
            return Err(if text.is_empty() {
                b"The script does not compile".to_vec()
            } else {
                text
            });
        }
        let compiled = (0..count).map(|index| {
            // SAFETY: the engine returns as many functions as it says.
            unsafe { self.adopt(*functions.add(index), subsystem) }
        });
        let compiled = compiled.collect();
        // SAFETY: the engine has allocated the list for the server to free.
        unsafe { libc::free(functions.cast()) };
        self.update_memory();
        Ok(compiled)
    }

    /// Takes over a compiled function.
    ///
    /// # Safety
    /// The pointer is that of a function that the engine has just compiled.
    unsafe fn adopt(self: &Arc<Self>, function: *mut CompiledFunction, subsystem: Subsystem) -> Compiled {
        // SAFETY: the caller promises it.
        let compiled = unsafe { &*function };
        let address = function as usize;
        self.live.lock().insert(address, subsystem);
        // SAFETY: the strings live as long as the function.
        let (name, description) = unsafe {
            (
                ModuleString::bytes_of(compiled.name).to_vec(),
                (!compiled.description.is_null()).then(|| ModuleString::bytes_of(compiled.description).to_vec()),
            )
        };
        Compiled {
            name,
            description,
            flags: compiled.flags,
            code: Arc::new(CompiledCode {
                engine: self.clone(),
                address,
            }),
        }
    }

    /// Calls compiled code in a session. Returns its reply.
    pub fn call(&self, session: &mut dyn Session, code: &CompiledCode, call: EngineCall<'_>) -> FinishedReply {
        let Some(function) = self.methods.call else {
            return FinishedReply::default();
        };
        if self.module.is_unloaded() || !self.live.lock().contains_key(&code.address) {
            let text = b"ERR The scripting engine is gone";
            let context = Context::new(self.module.clone(), call.caller);
            context.reply_with_error(text, false, true);
            return context.take_reply();
        }
        let (mut keys, mut args) = (CallStrings::new(&call.keys), CallStrings::new(&call.args));
        let context = Context::new(self.module.clone(), call.caller);
        context.is_script.set(true);
        invoke::call_into(&self.module, session, || {
            // SAFETY: the context and the strings live until the function has returned. The code is live (rule 1).
            unsafe {
                function(
                    context.as_pointer(),
                    self.data,
                    context.as_pointer().cast(),
                    code.address as *mut CompiledFunction,
                    call.subsystem as c_int,
                    keys.0.as_mut_ptr(),
                    keys.0.len(),
                    args.0.as_mut_ptr(),
                    args.0.len(),
                );
            }
            let reply = context.take_reply();
            drop(context);
            self.update_memory();
            reply
        })
    }

    /// Replaces the environment of scripts or functions by a new one. The thread has a session.
    pub fn reset(&self, subsystem: Subsystem, is_async: bool) {
        let is_async = c_int::from(is_async);
        let left = self.with_context(|context| {
            if self.methods.reset.is_null() {
                return null_mut();
            }
            // SAFETY: the function is of the type that belongs to the version of the structure (rule 3).
            unsafe {
                match (self.methods.version, subsystem) {
                    (..=2, Subsystem::Eval) => {
                        let reset: ResetFunctionV2 = std::mem::transmute(self.methods.reset);
                        reset(context, self.data, is_async)
                    }
                    (..=2, _) => null_mut(),
                    _ => {
                        let reset: ResetFunction = std::mem::transmute(self.methods.reset);
                        reset(context, self.data, subsystem as c_int, is_async)
                    }
                }
            }
        });
        if let Some(left) = left.filter(|left| !left.is_null()) {
            // SAFETY: the engine has allocated the structure for the server to call and to free.
            unsafe {
                if let Some(callback) = (*left).callback {
                    callback((*left).context);
                }
                libc::free(left.cast());
            }
        }
        self.update_memory();
    }

    /// Frees compiled code, unless that has happened. The thread has a session.
    fn free(&self, address: usize) {
        let Some(subsystem) = self.live.lock().remove(&address) else {
            return;
        };
        let Some(free) = self.methods.free else {
            return;
        };
        self.with_context(|context| {
            let function = address as *mut CompiledFunction;
            // SAFETY: the code was live (rule 1), and is not any more.
            unsafe { free(context, self.data, subsystem as c_int, function) };
        });
        self.update_memory();
    }

    /// Frees all compiled code. The thread has a session.
    fn free_all(&self) {
        let addresses: Vec<usize> = self.live.lock().keys().copied().collect();
        addresses.into_iter().for_each(|address| self.free(address));
    }
}

/// The result of enabling a debugger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DebuggerEnabled {
    /// It is enabled.
    Yes,
    /// The engine has none.
    NotSupported,
    /// The engine has failed.
    Failed,
}

impl Engine {
    /// Enables the debugger for scripts. The thread has a session.
    pub fn enable_debugger(self: &Arc<Self>) -> DebuggerEnabled {
        let version = self.methods.version;
        if version < 4 {
            let name = &self.name;
            log::warn!("Scripting engine '{name}' uses ABI version '{version}', which does not support debugger API");
        }
        let Some(DebuggerMethods {
            enable: Some(enable),
            disable: Some(_),
            start: Some(_),
            end: Some(_),
        }) = self.debugger
        else {
            return DebuggerEnabled::NotSupported;
        };
        let (mut commands, mut count) = (null(), 0);
        let result = self.with_context(|context| {
            let subsystem = Subsystem::Eval as c_int;
            // SAFETY: the function is the engine's; the list and its length are places for a pointer and a number.
            unsafe { enable(context, self.data, subsystem, &raw mut commands, &raw mut count) }
        });
        match result {
            Some(1) => {
                engine_debugger::set_commands(self, commands, count);
                DebuggerEnabled::Yes
            }
            Some(0) => DebuggerEnabled::NotSupported,
            _ => DebuggerEnabled::Failed,
        }
    }

    /// Disables the debugger. The thread has a session.
    pub fn disable_debugger(&self) {
        engine_debugger::forget_commands(self);
        if let Some(disable) = self.debugger.and_then(|debugger| debugger.disable) {
            // SAFETY: the function is the engine's.
            self.with_context(|context| unsafe { disable(context, self.data, Subsystem::Eval as c_int) });
        }
    }

    /// Begins to debug a script with this source. The thread has a session.
    pub fn start_debugging(&self, source: &[u8]) {
        if let Some(start) = self.debugger.and_then(|debugger| debugger.start) {
            let source = CallStrings::new(&[source]);
            // SAFETY: the function is the engine's; the string lives until it has returned.
            self.with_context(|context| unsafe { start(context, self.data, Subsystem::Eval as c_int, source.0[0]) });
        }
    }

    /// Ends debugging a script. The thread has a session.
    pub fn end_debugging(&self) {
        if let Some(end) = self.debugger.and_then(|debugger| debugger.end) {
            // SAFETY: the function is the engine's.
            self.with_context(|context| unsafe { end(context, self.data, Subsystem::Eval as c_int) });
        }
    }
}

const _: () = {
    assert!(size_of::<CompiledFunction>() == 40);
    assert!(size_of::<MemoryInfo>() == 24);
    assert!(size_of::<Methods>() == 56);
};
