//! Loads modules and unloads them.
//!
//! ```text
//!   dlopen ─▶ OnLoad ─▶ Init: functions, name ─▶ commands, types, … ─▶ listed
//!                └─ error ─▶ cleanups ─▶ dlclose: nothing is left
//!   unload: in use? ─▶ OnUnload ─▶ cleanups ─▶ dlclose ─▶ no longer listed
//! ```
//!
//! Files are opened with `RTLD_NOW | RTLD_LOCAL`. Valkey adds `RTLD_DEEPBIND`, with which a module would not use the
//! allocator of this program, and abort when it frees what the program has allocated.

use std::ffi::c_int;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use weft_os::atomic::Ordering;

use super::{Module, fork, listed, registered_commands};
use crate::api;
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::objects::string::ModuleString;
use crate::session::Session;

pub use super::listed::{find, generation, loaded};

/// The type of `OnLoad`.
type LoadFunction = unsafe extern "C" fn(*mut Context, *mut *mut ModuleString, c_int) -> c_int;
/// The type of `OnUnload`.
type UnloadFunction = unsafe extern "C" fn(*mut Context) -> c_int;

/// The symbols of a module, with the prefix of Valkey and that of Redis.
const LOAD_SYMBOLS: [&[u8]; 2] = [b"ValkeyModule_OnLoad\0", b"RedisModule_OnLoad\0"];
const UNLOAD_SYMBOLS: [&[u8]; 2] = [b"ValkeyModule_OnUnload\0", b"RedisModule_OnUnload\0"];

/// The reason why a module was not loaded. Its text is what Valkey writes to its log.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file may not be executed.
    #[error("Module {0} failed to load: It does not have execute permissions.")]
    NotExecutable(String),
    /// The file cannot be opened.
    #[error("Module {0} failed to load: {1}")]
    CannotOpen(String, String),
    /// The file is no module.
    #[error("Module {0} does not export ValkeyModule_OnLoad() or RedisModule_OnLoad() symbol. Module not loaded.")]
    NoLoadFunction(String),
    /// Its load function has failed.
    #[error("Module {0} initialization failed. Module not loaded.")]
    InitializationFailed(String),
    /// Its load function has failed before it had a name.
    #[error("Module {0} initialization failed. Module name is busy.")]
    NameIsBusy(String),
}

/// The reason why a module was not unloaded.
#[derive(Debug, PartialEq, Eq)]
pub enum UnloadError {
    /// The text for the client.
    Refused(&'static str),
    /// `OnUnload` has refused.
    Canceled,
}

/// Opens a library with these flags of `dlopen`.
fn open(path: &str) -> Result<Library, LoadError> {
    if let Ok(file) = std::fs::metadata(path)
        && file.permissions().mode() & 0o111 == 0
    {
        return Err(LoadError::NotExecutable(path.to_owned()));
    }
    // SAFETY: the initializers of a module run here, which the operator has asked for.
    let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| {
        let reason = match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        };
        LoadError::CannotOpen(path.to_owned(), reason)
    })
}

/// Returns the first of the symbols that the library has, and logs if it is that of Redis.
fn find_symbol<T: Copy>(library: &Library, symbols: [&[u8]; 2], label: &str) -> Option<T> {
    for (index, symbol) in symbols.into_iter().enumerate() {
        // SAFETY: the symbol is a function of this type in every module; the API has no means to check that.
        if let Ok(found) = unsafe { library.get::<T>(symbol) } {
            if index > 0 {
                log::info!("Legacy Redis Module {label} found");
            }
            return Some(*found);
        }
    }
    None
}

/// Loads a module: opens its file, and calls its load function with `args`. The module is listed only after that.
///
/// # Errors
/// The reason for the log. Nothing of the module is left then.
pub fn load(session: &mut dyn Session, path: &str, args: &[Vec<u8>]) -> Result<Arc<Module>, LoadError> {
    let library = open(path)?;
    let Some(on_load) = find_symbol::<LoadFunction>(&library, LOAD_SYMBOLS, path) else {
        return Err(LoadError::NoLoadFunction(path.to_owned()));
    };
    let module = Module::new(path.to_owned());
    *module.args.lock() = args.to_vec();
    *module.library.lock() = Some(library);
    let mut strings: Vec<*mut ModuleString> = args.iter().map(|arg| ModuleString::create(arg)).collect();
    let context = Context::new(module.clone(), Caller::none());
    let result = invoke::call_into(&module, session, || {
        // SAFETY: the context and the strings live until the function has returned.
        unsafe { on_load(context.as_pointer(), strings.as_mut_ptr(), strings.len() as c_int) }
    });
    for string in strings {
        // SAFETY: this function is a holder of each string.
        unsafe { ModuleString::release(string) };
    }
    if result == api::ERR {
        invoke::call_into(&module, session, || drop(context));
        let path = path.to_owned();
        let error = match module.has_name() {
            true => LoadError::InitializationFailed(path),
            false => LoadError::NameIsBusy(path),
        };
        discard(session, &module);
        return Err(error);
    }
    invoke::call_into(&module, session, || drop(context));
    if let Err(reason) = registered_commands::publish(&module) {
        log::warn!("{reason}");
        discard(session, &module);
        return Err(LoadError::InitializationFailed(path.to_owned()));
    }
    module.loading.store(false, Ordering::Relaxed);
    listed::add(module.clone());
    Ok(module)
}

/// Takes back everything that the module has registered, and closes its file.
fn discard(session: &mut dyn Session, module: &Arc<Module>) {
    fork::kill_child_of(module);
    invoke::call_into(module, session, || {
        loop {
            let cleanups = std::mem::take(&mut *module.cleanups.lock());
            if cleanups.is_empty() {
                break;
            }
            cleanups.into_iter().for_each(|cleanup| cleanup());
        }
    });
    module.unloaded.store(true, Ordering::Release);
    if let Some(library) = module.library.lock().take()
        && let Err(error) = library.close()
    {
        log::warn!("Error when trying to close the {} module: {error}", module.name());
    }
}

/// Unloads a module that has just been loaded and must not stay, whatever it has registered and whatever its
/// `OnUnload` returns.
pub fn undo_load(session: &mut dyn Session, module: &Arc<Module>) {
    let _ = call_on_unload(session, module);
    listed::remove(module);
    discard(session, module);
}

/// Calls `OnUnload`, if the module has it. Returns `false` if it refuses.
fn call_on_unload(session: &mut dyn Session, module: &Arc<Module>) -> bool {
    let on_unload = {
        let library = module.library.lock();
        let library = library.as_ref();
        library.and_then(|library| find_symbol::<UnloadFunction>(library, UNLOAD_SYMBOLS, &module.name()))
    };
    let Some(on_unload) = on_unload else {
        return true;
    };
    let context = Context::new(module.clone(), Caller::none());
    let result = invoke::call_into(module, session, || {
        // SAFETY: the context lives until the function has returned.
        unsafe { on_unload(context.as_pointer()) }
    });
    invoke::call_into(module, session, || drop(context));
    result != api::ERR
}

/// Returns the reason why a module cannot be unloaded now.
fn refusal(module: &Module) -> Option<&'static str> {
    let usage = &module.usage;
    let is_used = |count: &weft_os::atomic::AtomicUsize| count.load(Ordering::Acquire) > 0;
    if is_used(&usage.types) {
        Some("the module exports one or more module-side data types, can't unload")
    } else if is_used(&usage.users) {
        Some("the module exports APIs used by other modules. Please unload them first and try again")
    } else if is_used(&usage.blocked_clients) {
        Some("the module has blocked clients. Please wait for them to be unblocked and try again")
    } else if is_used(&usage.timers) {
        Some("the module holds timer that is not fired. Please stop the timer or wait until it fires.")
    } else {
        None
    }
}

/// Unloads a module, if nothing uses it and its `OnUnload` agrees. `is_referenced` returns `true` if rules of users
/// name its commands.
///
/// # Errors
/// The reason; then the module stays as it was.
pub fn unload(
    session: &mut dyn Session,
    name: &str,
    is_referenced: impl FnOnce(&Module) -> bool,
) -> Result<Arc<Module>, UnloadError> {
    let module = find(name).ok_or(UnloadError::Refused("no such module with that name"))?;
    if let Some(reason) = refusal(&module) {
        return Err(UnloadError::Refused(reason));
    }
    if is_referenced(&module) {
        return Err(UnloadError::Refused(
            "one or more ACL users reference commands from this module. Remove those ACL rules before unloading",
        ));
    }
    if !call_on_unload(session, &module) {
        log::warn!("Module {name} OnUnload failed. Unload canceled.");
        return Err(UnloadError::Canceled);
    }
    listed::remove(&module);
    discard(session, &module);
    Ok(module)
}
