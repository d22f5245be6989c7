//! The list of the loaded modules.

use std::sync::Arc;

use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::RwLock;

use super::Module;

/// The number of times that the set of loaded modules has changed; 0 if there never was a module.
static GENERATION: AtomicU64 = AtomicU64::new(0);

static LOADED: RwLock<Vec<Arc<Module>>> = RwLock::new(Vec::new());

/// Returns the number of times that the set of loaded modules has changed; 0 if there never was a module.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Returns the loaded modules in the order in which they were loaded.
pub fn loaded() -> Vec<Arc<Module>> {
    LOADED.read().clone()
}

/// Returns a loaded module by its name.
pub fn find(name: &str) -> Option<Arc<Module>> {
    LOADED.read().iter().find(|module| &*module.name() == name).cloned()
}

/// Adds a module that was loaded.
pub fn add(module: Arc<Module>) {
    LOADED.write().push(module);
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Removes a module that is being unloaded.
pub fn remove(module: &Arc<Module>) {
    LOADED.write().retain(|other| !Arc::ptr_eq(other, module));
    GENERATION.fetch_add(1, Ordering::AcqRel);
}
