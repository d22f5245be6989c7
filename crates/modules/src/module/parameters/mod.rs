//! Parameters that modules add to the configuration.
//!
//! The value of a parameter belongs to its module: the server asks for it, and sets it, through functions of the
//! module. All of these run where the code of modules runs.
//!
//! ```text
//!   OnLoad: Register…Config ─▶ LoadConfigs: each gets its default, or what the file or LOADEX says
//!   CONFIG SET: value read ─▶ set functions, one after the other ─▶ apply functions, each once
//!                                └─ error ─▶ old values set again ◀─ error ─┘
//! ```
//!
//! 1. A module registers and loads parameters only within its load function.
//! 2. A value that equals the current one is not set, except by `LoadConfigs` if it is the default.
//! 3. Settings of the file or of LOADEX wait in a queue for their module. Those that no module has taken are an error.

mod kind;

pub use kind::{
    ApplyFunction, BoolFunctions, ChoiceFunctions, NumberFunctions, ParameterKind, Range, TextFunctions,
    UnsignedFunctions,
};

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use weft_os::atomic::{AtomicBool, AtomicUsize, Ordering};
use weft_os::sync::{Mutex, RwLock};

use super::Module;
use crate::api::OK;
use crate::invoke;
use crate::objects::context::{Caller, Context};
use crate::objects::string::ModuleString;

bitflags::bitflags! {
    /// The restrictions on reading and changing a parameter (`VALKEYMODULE_CONFIG_…`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ParameterFlags: u32 {
        /// It is set only when the module is loaded.
        const IMMUTABLE = 1;
        /// Logs do not show its value.
        const SENSITIVE = 1 << 1;
        /// CONFIG GET shows it only by its name.
        const HIDDEN = 1 << 4;
        /// It is changed only as `enable-protected-configs` permits.
        const PROTECTED = 1 << 5;
        /// It is not changed while data are loaded.
        const DENY_LOADING = 1 << 6;
        /// It is a number that may have a unit of memory.
        const MEMORY = 1 << 7;
        /// It is a set of words.
        const BITFLAGS = 1 << 8;
        /// It is an unsigned number.
        const UNSIGNED = 1 << 9;
    }
}

/// A name and a value.
pub type Setting = (Vec<u8>, Vec<u8>);

/// A parameter of a module.
pub struct Parameter {
    /// Its module.
    pub module: Arc<Module>,
    /// The name in the configuration: that of the module, a dot, and its own.
    pub full_name: String,
    /// Its own name.
    name: CString,
    /// The restrictions.
    pub flags: ParameterFlags,
    kind: ParameterKind,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
}

// SAFETY: the data are only passed back to the module, whose functions are called where its code runs.
unsafe impl Send for Parameter {}
// SAFETY: as above.
unsafe impl Sync for Parameter {}

/// What a module has done with its parameters while it was loaded.
#[derive(Default)]
pub struct ModuleParameters {
    /// `true` once `LoadConfigs` has set all of them.
    are_loaded: AtomicBool,
}

static PARAMETERS: RwLock<Vec<Arc<Parameter>>> = RwLock::new(Vec::new());
/// The number of parameters.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The settings that no module has taken yet.
static QUEUE: Mutex<Vec<Setting>> = Mutex::new(Vec::new());

/// Returns `true` if some module has parameters.
#[inline]
pub fn any_exist() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// Returns all parameters, in the order in which they were registered.
pub fn all() -> Vec<Arc<Parameter>> {
    PARAMETERS.read().clone()
}

/// Returns a parameter by its full name, in any case.
pub fn find(full_name: &[u8]) -> Option<Arc<Parameter>> {
    let parameters = PARAMETERS.read();
    let mut parameters = parameters.iter();
    parameters
        .find(|parameter| parameter.full_name.as_bytes().eq_ignore_ascii_case(full_name))
        .cloned()
}

/// Returns `true` if logs must not show the value of this parameter.
pub fn is_sensitive(full_name: &[u8]) -> bool {
    any_exist() && find(full_name).is_some_and(|parameter| parameter.flags.contains(ParameterFlags::SENSITIVE))
}

/// Replaces the settings that wait for their module, and returns those before.
pub fn replace_queue(settings: Vec<Setting>) -> Vec<Setting> {
    std::mem::replace(&mut *QUEUE.lock(), settings)
}

/// Returns `true` if settings wait for a module.
pub fn are_settings_queued() -> bool {
    !QUEUE.lock().is_empty()
}

/// Adds a setting to those that wait for their module. It replaces an earlier one of the same name.
pub fn queue_setting(settings: &mut Vec<Setting>, name: &[u8], value: &[u8]) {
    settings.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    settings.push((name.to_vec(), value.to_vec()));
}

/// Returns `true` if a module has registered parameters, and not loaded them.
pub fn are_missing(module: &Arc<Module>) -> bool {
    !module.parameters.are_loaded.load(Ordering::Relaxed)
        && PARAMETERS
            .read()
            .iter()
            .any(|parameter| Arc::ptr_eq(&parameter.module, module))
}

/// Registers a parameter of a module. Its name must be free ([`find`]).
pub fn register(
    module: &Arc<Module>,
    name: &CStr,
    flags: ParameterFlags,
    kind: ParameterKind,
    apply: Option<ApplyFunction>,
    data: *mut c_void,
) {
    let is_first = !any_of(module);
    let parameter = Parameter {
        module: module.clone(),
        full_name: full_name(module, name),
        name: name.to_owned(),
        flags,
        kind,
        apply,
        data,
    };
    PARAMETERS.write().push(Arc::new(parameter));
    COUNT.fetch_add(1, Ordering::AcqRel);
    if is_first {
        let owner = Arc::downgrade(module);
        module.add_cleanup(move || {
            if let Some(module) = owner.upgrade() {
                remove_all(&module);
            }
        });
    }
}

/// Returns the name of a parameter in the configuration.
pub fn full_name(module: &Module, name: &CStr) -> String {
    format!("{}.{}", module.name(), name.to_string_lossy())
}

fn any_of(module: &Arc<Module>) -> bool {
    PARAMETERS
        .read()
        .iter()
        .any(|parameter| Arc::ptr_eq(&parameter.module, module))
}

fn remove_all(module: &Arc<Module>) {
    let mut parameters = PARAMETERS.write();
    parameters.retain(|parameter| !Arc::ptr_eq(&parameter.module, module));
    COUNT.store(parameters.len(), Ordering::Release);
}

/// Sets all parameters of a module that is being loaded: to what the queue says, or to their defaults
/// (`LoadConfigs`). Returns `false`, after a line in the log, if one of them was refused.
pub fn load(module: &Arc<Module>) -> bool {
    for parameter in all() {
        if !Arc::ptr_eq(&parameter.module, module) {
            continue;
        }
        let name = &parameter.full_name;
        let queued = take_queued(name);
        let result = match &queued {
            Some(text) => parameter.set(text).map(drop),
            None => parameter.set_default(),
        };
        let Err(reason) = result else {
            continue;
        };
        let reason = String::from_utf8_lossy(&reason.unwrap_or_default()).into_owned();
        match queued {
            Some(_) => log::warn!("Issue during loading of configuration {name} : {reason}"),
            None => {
                let name = parameter.name.to_string_lossy();
                log::warn!("Issue attempting to set default value of configuration {name} : {reason}");
            }
        }
        QUEUE.lock().clear();
        return false;
    }
    module.parameters.are_loaded.store(true, Ordering::Relaxed);
    true
}

fn take_queued(full_name: &str) -> Option<Vec<u8>> {
    let mut queue = QUEUE.lock();
    let index = queue
        .iter()
        .position(|(name, _)| name.eq_ignore_ascii_case(full_name.as_bytes()))?;
    Some(queue.remove(index).1)
}

/// The reason why a module, or the form of a value, refuses it; `None` if the module gives none.
pub type Refusal = Option<Vec<u8>>;

impl Parameter {
    /// Returns its own name, without that of the module.
    pub fn short_name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Returns its value as CONFIG GET shows it. Calls the module.
    pub fn print(&self) -> Vec<u8> {
        self.call(|| self.kind.print(&self.name, self.data, self.flags))
            .unwrap_or_default()
    }

    /// Returns the value as the configuration file contains it, and `true` if it differs from the default. Calls the
    /// module. Returns `None` if the module has no string, or is gone.
    pub fn print_for_file(&self) -> Option<(Vec<u8>, bool)> {
        self.call(|| self.kind.print_for_file(&self.name, self.data, self.flags))
            .flatten()
    }

    /// Returns `true` if the configuration file contains the value in quotes.
    pub fn is_quoted_in_file(&self) -> bool {
        self.kind.is_text()
    }

    /// Reads a value and has the module set it, unless it is the current one. Returns `true` if it was set.
    ///
    /// # Errors
    /// The reason why the value is refused.
    pub fn set(&self, text: &[u8]) -> Result<bool, Refusal> {
        self.call(|| self.kind.set(&self.name, self.data, self.flags, text))
            .unwrap_or(Err(None))
    }

    fn set_default(&self) -> Result<(), Refusal> {
        self.call(|| self.kind.set_default(&self.name, self.data))
            .unwrap_or(Err(None))
    }

    /// Returns `true` if the parameter has an apply function.
    pub fn has_apply(&self) -> bool {
        self.apply.is_some()
    }

    /// Returns `true` if another parameter is applied by the same call.
    pub fn is_applied_with(&self, other: &Parameter) -> bool {
        let function = |parameter: &Parameter| parameter.apply.map(|apply| apply as usize);
        function(self) == function(other) && self.data == other.data
    }

    /// Calls the apply function, if there is one.
    ///
    /// # Errors
    /// The reason of the module.
    pub fn apply(&self) -> Result<(), Refusal> {
        let Some(apply) = self.apply else {
            return Ok(());
        };
        let applied = self.call(|| {
            let context = Context::new(self.module.clone(), Caller::none());
            context.reply_state.discard();
            let mut reason = null_mut();
            // SAFETY: the context lives until the function has returned; the data are the module's.
            let result = unsafe { apply(context.as_pointer(), self.data, &raw mut reason) };
            let reason = take_reason(reason);
            drop(context);
            if result == OK { Ok(()) } else { Err(reason) }
        });
        applied.unwrap_or(Err(None))
    }

    /// Calls `run`, which calls the module, with the session of the thread. Returns `None` if the module is gone.
    fn call<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        (!self.module.is_unloaded()).then(|| invoke::name_module(&self.module, run))
    }
}

/// The longest reason of a module that is passed on, in bytes.
const MAX_REASON_BYTES: usize = 255;

/// Takes the reason that a module has given, and frees its string. As a C string, it ends at the first zero byte.
fn take_reason(reason: *mut ModuleString) -> Refusal {
    if reason.is_null() {
        return None;
    }
    // SAFETY: the module has created the string and gives it away (rule 1).
    let mut text = unsafe { ModuleString::bytes_of(reason) }.to_vec();
    // SAFETY: as above.
    unsafe { ModuleString::release(reason) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end.min(MAX_REASON_BYTES));
    Some(text)
}

#[cfg(test)]
mod tests;
