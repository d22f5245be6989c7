//! What data types of modules need of the server.

use std::sync::Arc;

use weft_values::foreign::ForeignValue;

use super::keys::SessionKey;

/// What any thread may ask of the server about values of modules.
pub trait TypesHost {
    /// Runs [`run_pending_calls`](super::pending_calls::run_pending_calls) soon, where modules may run.
    fn run_pending_calls_soon(&self);

    /// Calls `free` on the thread that frees large values.
    fn free_in_background(&self, free: Box<dyn FnOnce() + Send>);

    /// Returns the used memory as a part of its limit; 0 if there is no limit.
    fn used_memory_ratio(&self) -> f32;

    /// Returns `true` if strings in data files are compressed.
    fn compresses_strings(&self) -> bool;
}

/// The reason why data was not loaded from a file or saved to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdbFileError {
    /// The file does not exist.
    Missing,
    /// This server is a replica, whose data is that of its primary.
    NotPrimary,
    /// The file, or its contents, could not be read or written.
    Failed,
}

/// What a thread may do with values of modules, and with all data, while a function of a module runs.
pub trait TypesSession {
    /// Returns the value of a key, if it has a type of a module.
    fn module_value(&mut self, key: SessionKey<'_>) -> Option<Arc<dyn ForeignValue>>;

    /// Sets the value of a key, which is deleted first and has no expiry then.
    /// Returns `false` if the session may not change the key.
    fn set_module_value(&mut self, key: SessionKey<'_>, value: Arc<dyn ForeignValue>) -> bool;

    /// Returns `true` if modules may learn now of values that other threads have deleted: all other code of modules has
    /// to wait for this session.
    fn may_run_pending_calls(&self) -> bool;

    /// Replaces all data with the contents of a data file.
    ///
    /// # Errors
    /// If the file does not exist or is damaged; the data is lost then.
    fn load_rdb_file(&mut self, path: &[u8]) -> Result<(), RdbFileError>;

    /// Writes all data to a data file.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn save_rdb_file(&mut self, path: &[u8]) -> Result<(), RdbFileError>;
}
