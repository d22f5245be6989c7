//! Scripts and functions: what is cached and loaded, the interpreters that run them, and who is running.
//!
//! ```text
//!   shared by all threads (Scripts)             each thread's own (Interpreters)
//!   ───────────────────────────────             ────────────────────────────────
//!   cache: digest → Script (source, flags)      Lua state for scripts     digest, source → compiled
//!   libraries: name → Library (source, ...)     Lua state for functions   library → callbacks
//!   running: runs that others may ask about
//!   token: the right to wait for a slot
//! ```
//!
//! 1. An interpreter belongs to its thread. Sources are shared; what they compile to is made where it is first needed.
//! 2. What is cached here is the truth. A compiled script is used only as long as its `Script` is *alive*, a callback
//!    only as long as its `Library` is the one that is loaded.
//! 3. An interpreter knows nothing of keys or commands. It asks its [`Host`], which lives as long as one run.
//! 4. A script is stopped (killed, sent elsewhere, begun anew) by an error that it cannot catch: see the prelude.
//!
//! How a script gets its leases is told in `dispatch/script/mod.rs`.

mod arguments;
mod bit_library;
mod cache;
mod cjson;
mod cmsgpack;
mod convert;
mod debugger;
mod errors;
mod interpreter;
mod libraries;
mod number;
mod profile;
mod random;
mod running;
mod shebang;
mod struct_library;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Threads for scripts, of which as many may run outside the workers: one that runs for ever must leave a place for others.
pub const THREADS: usize = 8;

/// Bytes of stack for every thread that runs Lua. Lua nests at most 200 calls of C functions; the most that one of them needs is
/// `string.gsub` with a pattern of the greatest depth, some 50 KiB. Pages that are not used take no memory.
pub const STACK_BYTES: usize = 16 << 20;

pub use cache::Cache;
pub use debugger::{Console, Debugger};
pub use interpreter::{
    Answer, Host, Kind, Outcome, Program, Session, begin_debugging, forget_interpreters, load_library,
    prepare_function, prepare_script, run,
};
pub use libraries::{Libraries, Library, LoadedFunction, Policy};
pub use running::{Beginning, CannotKill, Run, Running, Stop};
pub use shebang::Flags;

/// Whether a script, as far as is known, calls commands that ask all workers.
pub fn may_ask(cache: &Cache, source: &[u8]) -> bool {
    match cache.find(&cache::digest_of(source)) {
        Some(script) => script.profile.asks(),
        None => profile::Habits::of_new(source).asks(),
    }
}

/// The name of a library, which its first line tells.
///
/// # Errors
/// The text of the error reply, when there is no such line.
pub fn library_name(code: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    shebang::of_library(code).map(|(name, _)| name)
}

/// The flags of a script, if its first line has some.
pub fn flags_of_source(source: &[u8]) -> Option<Flags> {
    shebang::of_script(source).ok()?.flags
}

/// Everything about scripts that threads share.
#[derive(Default)]
pub struct Scripts {
    /// Cached scripts.
    pub cache: Cache,
    /// Loaded libraries.
    pub libraries: Libraries,
    /// Runs that others may ask about.
    pub running: Arc<Running>,
    /// The right to wait for a slot while holding others.
    token: AtomicBool,
    /// Where unseeded random numbers come from.
    random: Arc<random::Sequence>,
    /// Whether scripts may call what is not for scripts (DEBUG SET-DISABLE-DENY-SCRIPTS).
    permits_all: AtomicBool,
    /// Bytes of the interpreters for scripts and for functions.
    memory: [AtomicU64; 2],
    /// Whether new interpreters for scripts and for functions offer what can leave the sandbox.
    insecure: [AtomicBool; 2],
}

impl Scripts {
    /// Takes the token if nobody has it. Who takes it gives it back.
    #[inline]
    pub fn try_take_token(&self) -> bool {
        !self.token.load(Ordering::Relaxed) && !self.token.swap(true, Ordering::Acquire)
    }

    /// Gives the token back.
    pub fn give_token_back(&self) {
        let taken = self.token.swap(false, Ordering::Release);
        debug_assert!(taken, "nobody had the token");
    }

    /// Whether scripts may call what is not for scripts.
    pub fn permits_all(&self) -> bool {
        self.permits_all.load(Ordering::Relaxed)
    }

    /// Lets scripts call what is not for scripts, for tests of how they see replies.
    pub fn permit_all(&self, on: bool) {
        self.permits_all.store(on, Ordering::Relaxed);
    }

    /// Whether interpreters of a kind offer what can leave the sandbox, if they are made from now on.
    pub fn offer_insecure(&self, kind: Kind, on: bool) {
        self.insecure[kind as usize].store(on, Ordering::Relaxed);
    }

    /// The same for scripts, whose interpreters are made anew; those for functions are when everything is flushed.
    pub fn change_insecure(&self, on: bool) {
        self.offer_insecure(Kind::Eval, on);
        self.cache.flush();
    }

    fn is_insecure(&self, kind: Kind) -> bool {
        self.insecure[kind as usize].load(Ordering::Relaxed)
    }

    /// Bytes that the interpreters of a kind take.
    pub fn interpreter_bytes(&self, kind: Kind) -> u64 {
        self.memory[kind as usize].load(Ordering::Relaxed)
    }

    /// Counts what an interpreter takes now that took `before`.
    fn count_interpreter(&self, kind: Kind, before: u64, now: u64) {
        let memory = &self.memory[kind as usize];
        if now >= before {
            memory.fetch_add(now - before, Ordering::Relaxed);
        } else {
            memory.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}
