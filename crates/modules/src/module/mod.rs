//! Loaded modules, and what they have registered.
//!
//! Each subject keeps what it has registered for a module in a file of its own here, as a field of [`Module`]; unloading
//! a module drops all of it.

pub mod command;

use std::sync::Arc;

use parking_lot::Mutex;

/// A module, from the start of its load function until it is unloaded.
pub struct Module {
    /// Its name, once it has given one to `Init`.
    name: Mutex<Option<Arc<str>>>,
    /// The path of its file.
    pub path: String,
}

impl Module {
    /// Creates a module that has not given its name yet.
    pub fn new(path: String) -> Arc<Module> {
        Arc::new(Module {
            name: Mutex::new(None),
            path,
        })
    }

    /// Returns its name; empty before it has given one.
    pub fn name(&self) -> Arc<str> {
        self.name.lock().clone().unwrap_or_else(|| Arc::from(""))
    }

    /// Sets its name.
    pub fn set_name(&self, name: &str) {
        *self.name.lock() = Some(Arc::from(name));
    }
}
