//! The functions that modules call. A module asks for each of them by name, with the prefix of Valkey or of Redis.

pub mod blocked_clients;
pub mod call_argv;
pub mod calls;
pub mod clients;
pub mod clocks;
pub mod cluster_messages;
pub mod command_filters;
pub mod command_info;
pub mod concurrency;
pub mod context;
pub mod defragmentation;
pub mod dicts;
pub mod digest;
pub mod engines;
pub mod events;
pub mod events_and_time;
pub mod fork;
pub mod info;
pub mod io;
pub mod keys;
pub mod logging;
pub mod memory;
pub mod parameters;
pub mod rdb_files;
pub mod registry;
pub mod replies;
pub mod server_events;
pub mod shared;
#[cfg(feature = "simulated")]
pub mod simulation;
pub mod strings;
pub mod types;
pub mod users;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::LazyLock;

/// The result of a function that succeeded (`VALKEYMODULE_OK`).
pub const OK: c_int = 0;
/// The result of a function that failed (`VALKEYMODULE_ERR`).
pub const ERR: c_int = 1;

/// A function of the API, as an address whose type only the module knows.
#[derive(Clone, Copy)]
pub struct Function(pub *const c_void);

// SAFETY: the address of a function is the same on all threads.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The functions of one subject, by their names without a prefix.
pub type Functions = &'static [(&'static str, Function)];

/// Lists functions for the table: `functions![("Alloc", alloc), ...]`.
#[macro_export]
macro_rules! functions {
    ($(($name:literal, $function:expr)),* $(,)?) => {
        &[$(($name, $crate::api::Function($function as *const ::std::ffi::c_void))),*]
    };
}

/// The prefixes under which modules ask for functions.
const PREFIXES: [&str; 2] = ["ValkeyModule_", "RedisModule_"];
/// The prefix of the functions that this server adds. Other servers refuse them.
const EXTRA_PREFIX: &str = "WeftModule_";

/// All functions, by subject.
const SUBJECTS: &[Functions] = &[
    context::FUNCTIONS,
    blocked_clients::FUNCTIONS,
    events::FUNCTIONS,
    events_and_time::FUNCTIONS,
    registry::FUNCTIONS,
    users::FUNCTIONS,
    cluster_messages::FUNCTIONS,
    command_filters::FUNCTIONS,
    command_info::FUNCTIONS,
    memory::FUNCTIONS,
    strings::FUNCTIONS,
    replies::FUNCTIONS,
    dicts::FUNCTIONS,
    clients::FUNCTIONS,
    clocks::FUNCTIONS,
    server_events::FUNCTIONS,
    shared::FUNCTIONS,
    logging::FUNCTIONS,
    calls::FUNCTIONS,
    types::FUNCTIONS,
    info::FUNCTIONS,
    io::FUNCTIONS,
    digest::FUNCTIONS,
    defragmentation::FUNCTIONS,
    rdb_files::FUNCTIONS,
    parameters::FUNCTIONS,
    engines::FUNCTIONS,
    fork::FUNCTIONS,
    keys::KEY_FUNCTIONS,
    keys::STRING_FUNCTIONS,
    keys::LIST_FUNCTIONS,
    keys::SORTED_SET_FUNCTIONS,
    keys::HASH_FUNCTIONS,
    keys::STREAM_FUNCTIONS,
    keys::EXPIRY_FUNCTIONS,
    keys::SCAN_FUNCTIONS,
];

/// The functions that this server adds, by subject.
const EXTRA_SUBJECTS: &[Functions] = &[
    concurrency::FUNCTIONS,
    #[cfg(feature = "simulated")]
    simulation::FUNCTIONS,
];

static BY_NAME: LazyLock<HashMap<&'static str, Function>> = LazyLock::new(|| {
    SUBJECTS
        .iter()
        .flat_map(|functions| functions.iter().copied())
        .collect()
});

/// Returns a function by the name by which a module asks for it.
pub fn find(name: &str) -> Option<Function> {
    if let Some(short) = name.strip_prefix(EXTRA_PREFIX) {
        let mut extra = EXTRA_SUBJECTS.iter().flat_map(|functions| functions.iter());
        return extra.find_map(|(known, function)| (*known == short).then_some(*function));
    }
    let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    BY_NAME.get(short).copied()
}

/// The function behind the first word of a context: stores the function `name` at `target`, and returns [`OK`] if
/// there is one.
///
/// # Safety
/// `name` is a C string, and `target` a place for a pointer.
pub unsafe extern "C" fn function_by_name(name: *const c_char, target: *mut *const c_void) -> c_int {
    // SAFETY: the caller promises it.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_str().ok().and_then(find) {
        Some(function) => {
            // SAFETY: the caller promises it.
            unsafe { target.write(function.0) };
            OK
        }
        None => ERR,
    }
}

#[cfg(test)]
mod tests;
