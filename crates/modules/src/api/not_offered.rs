//! The functions of the API that this server does not offer yet. They exist, because modules in Rust end when they do
//! not get a function, and each says to its caller that it has failed: a module that needs one of them does not load,
//! or does without.

use std::ffi::{c_int, c_void};

use super::{ERR, Functions};
use crate::errno;
use crate::functions;

/// The functions of this subject. A function in C may be called with more arguments than it takes, so one function
/// stands for many.
pub const FUNCTIONS: Functions = functions![
    ("SubscribeToServerEvent", fails),
    ("IsSubEventSupported", is_not_supported),
    ("RegisterCommandFilter", is_missing),
    ("UnregisterCommandFilter", fails),
    ("CommandFilterArgsCount", is_not_supported),
    ("CommandFilterArgGet", is_missing),
    ("CommandFilterArgInsert", fails),
    ("CommandFilterArgReplace", fails),
    ("CommandFilterArgDelete", fails),
    ("CommandFilterGetClientId", has_no_client),
    ("GetClientInfoById", fails),
    ("GetClientNameById", is_missing),
    ("SetClientNameById", fails),
    ("GetClientUserNameById", is_missing),
    ("RegisterClusterMessageReceiver", does_nothing),
    ("SendClusterMessage", fails),
    ("SetClusterFlags", does_nothing),
];

/// Fails with the error number `ENOTSUP`.
extern "C" fn fails() -> c_int {
    errno::set(libc::ENOTSUP);
    ERR
}

/// Returns null.
extern "C" fn is_missing() -> *const c_void {
    errno::set(libc::ENOTSUP);
    std::ptr::null()
}

/// Returns 0: there are none, or it is not supported.
extern "C" fn is_not_supported() -> c_int {
    0
}

/// Returns the id that no client has.
extern "C" fn has_no_client() -> u64 {
    0
}

/// Returns nothing. The subject that would need it could not be registered.
extern "C" fn does_nothing() {}
