//! Loaded modules, and what they have registered.
//!
//! Each subject keeps what it has registered for a module in a file of its own here, as a field of [`Module`];
//! unloading a module drops all of it.

pub mod authentication;
pub mod cluster_messages;
pub mod command;
pub mod command_filters;
pub mod engine_debugger;
pub mod engines;
pub mod fork;
pub mod home_commands;
pub mod info;
pub mod keyspace_events;
pub mod listed;
pub mod loading;
pub mod parameters;
pub mod post_jobs;
pub mod registered_commands;
pub mod server_events;
pub mod shared;
pub mod timers;
pub mod types;
pub mod watched_fds;

use std::ffi::CString;
use std::sync::Arc;

use libloading::os::unix::Library;
use weft_os::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use weft_os::sync::{Mutex, OnceLock};

/// Takes back what a module has registered, when it is unloaded or its load fails.
pub type Cleanup = Box<dyn FnOnce() + Send>;

/// A module, from the start of its load function until it is unloaded.
pub struct Module {
    /// Its name, once it has given one to `SetModuleAttribs`. Read by the report of a crash, so there is no lock.
    name: OnceLock<(Arc<str>, CString)>,
    /// The path of its file.
    pub path: String,
    /// Its version, as it has given it.
    pub version: AtomicI32,
    /// The version of the API for which it was built.
    pub api_version: AtomicI32,
    /// What it has declared with `SetModuleOptions`.
    pub options: AtomicI32,
    /// Its arguments, as MODULE LIST and CONFIG REWRITE show them.
    pub args: Mutex<Vec<Vec<u8>>>,
    /// `true` until its load function has returned.
    loading: AtomicBool,
    /// `true` once it was unloaded, or its load has failed: nothing calls it any more.
    unloaded: AtomicBool,
    /// What keeps it from being unloaded.
    pub usage: Usage,
    /// The function that adds its sections to INFO.
    pub info: OnceLock<info::InfoFunction>,
    /// What it has done with its parameters.
    pub parameters: parameters::ModuleParameters,
    /// Its commands.
    pub commands: registered_commands::RegisteredCommands,
    /// The number of its calls of commands that are under way.
    pub calls_under_way: AtomicUsize,
    /// The file. Closed when the module is unloaded.
    library: Mutex<Option<Library>>,
    /// What has to be undone when the module is unloaded, in the order of registration.
    cleanups: Mutex<Vec<Cleanup>>,
}

/// The options that a module declares with `SetModuleOptions`.
pub mod options {
    /// It checks for errors when it reads a file.
    pub const HANDLE_IO_ERRORS: i32 = 1;
    /// Closing a key does not count as a change of it.
    pub const NO_IMPLICIT_SIGNAL_MODIFIED: i32 = 1 << 1;
    /// It can serve clients while a replica loads the data of its primary.
    pub const HANDLE_REPL_ASYNC_LOAD: i32 = 1 << 2;
    /// Its callbacks for key events may cause further key events.
    pub const ALLOW_NESTED_KEYSPACE_NOTIFICATIONS: i32 = 1 << 3;
    /// Commands are propagated for it without a check that they exist.
    pub const SKIP_COMMAND_VALIDATION: i32 = 1 << 4;
    /// It can handle slots that migrate.
    pub const HANDLE_ATOMIC_SLOT_MIGRATION: i32 = 1 << 5;
    /// All options.
    pub const ALL: i32 = (1 << 6) - 1;
}

/// What keeps a module from being unloaded. Each count is changed by the subject that it names.
#[derive(Default)]
pub struct Usage {
    /// The data types that it has registered.
    pub types: AtomicUsize,
    /// The modules that use APIs which it shares, without those that are unloaded.
    pub users: AtomicUsize,
    /// Its clients that are blocked.
    pub blocked_clients: AtomicUsize,
    /// Its timers that have not fired.
    pub timers: AtomicUsize,
}

impl Module {
    /// Creates a module that has not given its name yet.
    pub fn new(path: String) -> Arc<Module> {
        Arc::new(Module {
            name: OnceLock::new(),
            path,
            version: AtomicI32::new(0),
            api_version: AtomicI32::new(0),
            options: AtomicI32::new(0),
            args: Mutex::default(),
            loading: AtomicBool::new(true),
            unloaded: AtomicBool::new(false),
            usage: Usage::default(),
            info: OnceLock::new(),
            parameters: parameters::ModuleParameters::default(),
            commands: registered_commands::RegisteredCommands::default(),
            calls_under_way: AtomicUsize::new(0),
            library: Mutex::default(),
            cleanups: Mutex::default(),
        })
    }

    /// Returns its name; empty before it has given one.
    pub fn name(&self) -> Arc<str> {
        self.name.get().map_or_else(|| Arc::from(""), |(name, _)| name.clone())
    }

    /// Returns `true` once it has given its name.
    pub fn has_name(&self) -> bool {
        self.name.get().is_some()
    }

    /// Returns its name without taking a lock or allocating.
    pub fn name_for_crash(&self) -> &str {
        self.name.get().map_or("", |(name, _)| name)
    }

    /// Returns its name as a C string, which lives as long as the module.
    pub fn c_name(&self) -> &std::ffi::CStr {
        self.name.get().map_or(c"", |(_, name)| name)
    }

    /// Sets its name. Later calls have no effect.
    pub fn set_name(&self, name: &str) {
        let _ = self.name.set((Arc::from(name), CString::new(name).unwrap_or_default()));
    }

    /// Adds what has to be undone when the module is unloaded. It runs where the module is unloaded, with a session.
    pub fn add_cleanup(&self, cleanup: impl FnOnce() + Send + 'static) {
        self.cleanups.lock().push(Box::new(cleanup));
    }

    /// Returns `true` until its load function has returned.
    pub fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Relaxed)
    }

    /// Returns `true` once it was unloaded, or its load has failed: its functions are not called any more.
    pub fn is_unloaded(&self) -> bool {
        self.unloaded.load(Ordering::Acquire)
    }

    /// Returns `true` if it checks for errors when it reads a file.
    pub fn handles_io_errors(&self) -> bool {
        self.has_option(options::HANDLE_IO_ERRORS)
    }

    /// Returns `true` if closing a key that it has opened for writing counts as a change of the key.
    pub fn signals_modified_keys(&self) -> bool {
        !self.has_option(options::NO_IMPLICIT_SIGNAL_MODIFIED)
    }

    /// Returns `true` if commands are propagated for it without a check that they exist.
    pub fn skips_command_validation(&self) -> bool {
        self.has_option(options::SKIP_COMMAND_VALIDATION)
    }

    /// Returns `true` if it has declared this option, one of [`options`].
    pub fn has_option(&self, option: i32) -> bool {
        self.options.load(Ordering::Relaxed) & option != 0
    }
}
