//! What callbacks of a data type learn about the keys that they are called for (`ValkeyModuleKeyOptCtx`).

use super::string::ModuleString;

/// The keys of a call. Names are null, and numbers of databases -1, where there is no such key.
#[derive(Debug)]
pub struct KeyOptions {
    /// The name of the key, or of the source of a copy.
    pub from_key: *mut ModuleString,
    /// The name of the target of a copy.
    pub to_key: *mut ModuleString,
    /// The database of the key, or of the source of a copy.
    pub from_db: i32,
    /// The database of the target of a copy.
    pub to_db: i32,
}
