//! The context of a defragmentation callback (`ValkeyModuleDefragCtx`).
//!
//! Weft's defragmentation moves what Weft has allocated. Callbacks of modules are accepted and never called, so no
//! context exists unless a module makes one up.

use super::string::ModuleString;

/// The context of a defragmentation callback.
pub struct DefragContext {
    /// The name of the key.
    pub key: *mut ModuleString,
    /// The database of the key.
    pub db: i32,
}
