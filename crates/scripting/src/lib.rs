//! Scripts and functions: the script cache, the loaded libraries, the interpreters, and the register of running
//! scripts.
//!
//! ```text
//!   shared by all threads (Scripts)             each thread's own (Interpreters)
//!   ───────────────────────────────             ────────────────────────────────
//!   cache: digest → Script (source, flags)      Lua state for scripts     digest, source → compiled
//!   libraries: name → Library (source, ...)     Lua state for functions   library → callbacks
//!   running: runs that other threads may query, and threads that wait until there is none
//!   token: the right to wait for a slot
//! ```
//!
//! 1. An interpreter belongs to one thread. Sources are shared between threads. Each thread compiles a source when it
//!    first needs it.
//! 2. The shared cache and the shared libraries are authoritative. A compiled script is used only as long as its
//!    `Script` is *alive*. A callback is used only as long as its `Library` is the loaded one.
//! 3. An interpreter knows nothing of keys or commands. It asks its [`Host`], which lives as long as one run.
//! 4. A script is stopped (killed, moved to another thread, restarted) by an error that it cannot catch: see the
//!    prelude.
//!
//! `dispatch/script/mod.rs` describes how a script gets its leases.
#![forbid(unsafe_code)]

mod arguments;
mod bit_library;
mod cache;
mod cjson;
mod cmsgpack;
mod convert;
mod debugger;
mod engines;
mod errors;
mod exclusion;
mod interpreter;
mod libraries;
mod number;
mod profile;
mod random;
mod run_checks;
mod running;
mod shebang;
mod struct_library;

use std::sync::Arc;

use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::Mutex;

/// The number of script threads, and so the maximum number of scripts that run outside the workers. A script that never
/// ends must leave threads for the remaining scripts.
pub const SCRIPT_THREADS: usize = 8;

/// The stack size, in bytes, of every thread that runs Lua. Lua nests at most 200 calls of C functions. The largest
/// stack user among them is `string.gsub` with a pattern of the maximum depth, some 50 KiB. Unused pages take no
/// memory.
pub const SCRIPT_STACK_BYTES: usize = 16 << 20;

pub use cache::{EngineCode, Script, ScriptCache};
pub use debugger::{Console, Debugger, DebuggerRequest, EngineCommandHelp};
pub use engines::{EngineFunction, Engines, ScriptingEngine, is_for_engine_of_module, is_lua};
pub use exclusion::Requester;
pub use interpreter::{
    CallResult, DebugSession, FunctionError, Host, Program, RunOutcome, ScriptKind, ScriptWords, begin_debugging,
    count_memory, drop_flushed_interpreters, drop_interpreter, load_library, prepare_function, prepare_libraries,
    prepare_script, repeat_library_load, run,
};
pub use libraries::{Libraries, Library, LoadedFunction, RestorePolicy};
pub use profile::{ScriptProfile, may_run_forever};
pub use run_checks::CurrentRun;
pub use running::{KillError, RunParameters, RunRegistry, ScriptRun, StopReason};
pub use shebang::ScriptFlags;

/// Returns `true` if a script, as far as is known, calls commands that query all workers.
pub fn may_query_workers(cache: &ScriptCache, source: &[u8]) -> bool {
    match cache.find(&cache::digest_of(source)) {
        Some(script) => script.profile.queries_workers(),
        None => profile::ScriptProfile::predict(source).queries_workers(),
    }
}

/// Parses the name of a library from its first line.
///
/// # Errors
/// The text of the error reply if the first line does not name a library, or an engine that does not exist.
pub fn library_name(scripts: &Scripts, code: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let header = shebang::of_any_library(code)?;
    match is_lua(&header.engine) || scripts.engines.find(&header.engine).is_some() {
        true => Ok(header.name),
        false => Err(shebang::no_such_engine(&header.engine)),
    }
}

/// Returns the flags in the first line of a script, or `None` if there are none.
pub fn flags_of_source(source: &[u8]) -> Option<ScriptFlags> {
    shebang::of_any_script(source).ok()?.1.flags
}

/// The memory of the interpreters of one kind that were created since the last flush.
#[derive(Default)]
struct InterpreterMemory {
    /// The flush counter of these interpreters.
    flushes: u64,
    bytes: u64,
}

/// The script state that all threads share.
#[derive(Default)]
pub struct Scripts {
    /// The cached scripts.
    pub cache: ScriptCache,
    /// The loaded libraries.
    pub libraries: Libraries,
    /// The engines of modules.
    pub engines: Engines,
    /// The runs that other threads may query.
    pub running: Arc<RunRegistry>,
    /// Set while a thread holds the right to wait for a slot while it holds other slots.
    token: AtomicBool,
    /// The source of unseeded random numbers.
    random: Arc<random::SharedSequence>,
    /// Set while scripts may call commands that are forbidden in scripts (DEBUG SET-DISABLE-DENY-SCRIPTS).
    permits_denied_commands: AtomicBool,
    /// The memory of the interpreters, for scripts and for functions.
    memory: [Mutex<InterpreterMemory>; 2],
    /// Set while new interpreters, for scripts and for functions, offer functions that can leave the sandbox.
    insecure: [AtomicBool; 2],
}

impl Scripts {
    /// Takes the token if it is free, and returns `true` if it did. The caller must return it with
    /// [`Scripts::release_token`].
    #[inline]
    pub fn try_take_token(&self) -> bool {
        !self.token.load(Ordering::Relaxed) && !self.token.swap(true, Ordering::Acquire)
    }

    /// Returns the token.
    pub fn release_token(&self) {
        debug_assert!(self.token.load(Ordering::Relaxed), "the token was not taken");
        self.token.store(false, Ordering::Release);
    }

    /// Returns `true` if scripts may call commands that are forbidden in scripts.
    pub fn permits_denied_commands(&self) -> bool {
        self.permits_denied_commands.load(Ordering::Relaxed)
    }

    /// Permits or forbids calls of commands that are forbidden in scripts. Tests use it to check how scripts see
    /// replies.
    pub fn permit_denied_commands(&self, on: bool) {
        self.permits_denied_commands.store(on, Ordering::Relaxed);
    }

    /// Enables or disables the functions that can leave the sandbox, for interpreters of `kind` that are created from
    /// now on.
    pub fn set_insecure_functions(&self, kind: ScriptKind, on: bool) {
        self.insecure[kind as usize].store(on, Ordering::Relaxed);
    }

    /// Does the same as [`Scripts::set_insecure_functions`] for scripts, and flushes the cache so that their
    /// interpreters are recreated. Interpreters for functions are recreated when all libraries are flushed.
    pub fn set_insecure_eval_functions(&self, on: bool) {
        self.set_insecure_functions(ScriptKind::Eval, on);
        self.cache.flush();
    }

    fn is_insecure(&self, kind: ScriptKind) -> bool {
        self.insecure[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns how often all scripts, or all libraries, were flushed. Interpreters from before a flush are obsolete.
    pub fn flushes(&self, kind: ScriptKind) -> u64 {
        match kind {
            ScriptKind::Eval => self.cache.flushes(),
            ScriptKind::Function => self.libraries.flushes(),
        }
    }

    /// Returns the bytes of memory that the interpreters of a kind use. Obsolete ones do not count: their threads drop
    /// them (see [`drop_flushed_interpreters`]).
    pub fn interpreter_bytes(&self, kind: ScriptKind) -> u64 {
        let flushes = self.flushes(kind);
        let memory = self.memory[kind as usize].lock();
        if memory.flushes == flushes { memory.bytes } else { 0 }
    }

    /// Records that the memory of an interpreter, which was created after `flushes` flushes, changed from `before` to
    /// `now` bytes.
    fn update_interpreter_bytes(&self, kind: ScriptKind, flushes: u64, before: u64, now: u64) {
        let mut memory = self.memory[kind as usize].lock();
        if flushes > memory.flushes {
            *memory = InterpreterMemory { flushes, bytes: 0 };
        }
        if flushes == memory.flushes {
            memory.bytes = (memory.bytes + now).saturating_sub(before);
        }
    }
}
