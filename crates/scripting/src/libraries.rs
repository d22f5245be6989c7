//! The loaded function libraries.
//!
//! The whole set is one immutable value that is replaced when it changes, so readers hold no lock while they work.
//! Function names are compared case-insensitively, as in Valkey. Library names are compared exactly.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::profile::ScriptProfile;
use super::shebang::ScriptFlags;

use weft_os::atomic::{AtomicU64, Ordering};
use weft_os::sync::RwLock;

/// The estimated bytes that a function takes in addition to its name, and a library in addition to its name and code.
const OVERHEAD_BYTES: usize = 200;

/// A function of a library.
pub struct LoadedFunction {
    /// The name.
    pub name: Vec<u8>,
    /// The description that the library registered.
    pub description: Option<Vec<u8>>,
    /// The flags.
    pub flags: ScriptFlags,
    /// The prediction made from earlier runs.
    pub profile: ScriptProfile,
    /// The code that the engine of a module has compiled; `None` for Lua.
    pub engine_code: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for LoadedFunction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LoadedFunction")
            .field("name", &self.name)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// The name.
    pub name: Vec<u8>,
    /// The code, including the shebang line.
    pub code: Vec<u8>,
    /// The functions, sorted by name.
    pub functions: Vec<LoadedFunction>,
    /// The name of the engine of a module; `None` for Lua.
    pub engine: Option<Arc<str>>,
    /// The shortest time in which a thread has compiled and run the code, in microseconds.
    load_us: AtomicU64,
}

impl Library {
    /// Creates a library whose code a thread has compiled and run in `load_time`.
    pub fn new(name: Vec<u8>, code: Vec<u8>, functions: Vec<LoadedFunction>, load_time: Duration) -> Self {
        Library {
            name,
            code,
            functions,
            engine: None,
            load_us: AtomicU64::new(load_time.as_micros() as u64),
        }
    }

    /// Returns the shortest time in which a thread has compiled and run the code.
    pub fn load_time(&self) -> Duration {
        Duration::from_micros(self.load_us.load(Ordering::Relaxed))
    }

    /// Records the time in which a thread has compiled and run the code. The shortest time counts, since the thread may
    /// not have had a core all the time.
    pub fn note_load_time(&self, time: Duration) {
        self.load_us.fetch_min(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// The treatment of loaded libraries when other libraries are restored (FUNCTION RESTORE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePolicy {
    /// All loaded libraries are deleted.
    Flush,
    /// Loaded libraries stay; a restored library with the name of a loaded one is refused.
    Append,
    /// A loaded library is replaced by a restored one with the same name.
    Replace,
}

/// A set of libraries.
#[derive(Clone, Default)]
pub struct LibrarySet {
    libraries: BTreeMap<Vec<u8>, Arc<Library>>,
    /// The library of each function, and the function's index there, keyed by the name in lower case.
    functions: HashMap<Vec<u8>, (Arc<Library>, usize), ahash::RandomState>,
}

impl LibrarySet {
    /// Returns a function's library, and the function's index there.
    pub fn function(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        self.functions.get(&name.to_ascii_lowercase()).cloned()
    }

    /// Returns the libraries, sorted by name.
    pub fn libraries(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.libraries.values()
    }

    /// Returns the number of functions in all libraries.
    pub fn function_count(&self) -> usize {
        self.functions.len()
    }

    fn remove(&mut self, name: &[u8]) -> bool {
        let Some(library) = self.libraries.remove(name) else {
            return false;
        };
        for function in &library.functions {
            self.functions.remove(&function.name.to_ascii_lowercase());
        }
        true
    }

    /// Checks that the functions of a library have names that are free, or belong to a library of the same name.
    ///
    /// # Errors
    /// The error message if the name of one of its functions is taken.
    fn check_functions(&self, library: &Library) -> Result<(), Vec<u8>> {
        for function in &library.functions {
            let owner = self.functions.get(&function.name.to_ascii_lowercase());
            if owner.is_some_and(|(owner, _)| owner.name != library.name) {
                return Err([b"Function ", &function.name[..], b" already exists"].concat());
            }
        }
        Ok(())
    }

    /// Adds a library, after [`check_functions`](Self::check_functions). One of the same name is removed.
    fn add(&mut self, library: &Arc<Library>) {
        self.remove(&library.name);
        for (index, function) in library.functions.iter().enumerate() {
            self.functions
                .insert(function.name.to_ascii_lowercase(), (library.clone(), index));
        }
        self.libraries.insert(library.name.clone(), library.clone());
    }
}

/// The loaded libraries.
#[derive(Default)]
pub struct Libraries {
    /// A change copies the set only if a thread is reading it.
    current: RwLock<Arc<LibrarySet>>,
    flushes: AtomicU64,
    /// The number of changes of the set so far.
    version: AtomicU64,
}

impl Libraries {
    /// Returns the current set of libraries.
    pub fn current(&self) -> Arc<LibrarySet> {
        self.current.read().clone()
    }

    /// Returns the number of changes of the set so far. It changes before the lock of the set is released, so what a
    /// thread finds in the set after reading the version is at least as new as that version.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn note_change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Checks that a library of that name can be loaded, before its code is run.
    pub fn check_name(&self, name: &[u8], replace: bool) -> Result<(), Vec<u8>> {
        match self.current().libraries.contains_key(name) && !replace {
            true => Err([b"Library '", name, b"' already exists"].concat()),
            false => Ok(()),
        }
    }

    /// Adds a library.
    ///
    /// # Errors
    /// The error message if the name of the library or of a function is taken.
    pub fn add(&self, library: &Arc<Library>, replace: bool) -> Result<(), Vec<u8>> {
        let mut current = self.current.write();
        if !replace && current.libraries.contains_key(&library.name) {
            return Err([b"Library '", &library.name[..], b"' already exists"].concat());
        }
        current.check_functions(library)?;
        Arc::make_mut(&mut current).add(library);
        self.note_change();
        Ok(())
    }

    /// Adds a group of libraries: either all of them or none.
    ///
    /// # Errors
    /// The error message if the name of a library or of a function is taken.
    pub fn restore(&self, libraries: &[Arc<Library>], policy: RestorePolicy) -> Result<(), Vec<u8>> {
        let mut current = self.current.write();
        let mut next = match policy {
            RestorePolicy::Flush => LibrarySet::default(),
            RestorePolicy::Append | RestorePolicy::Replace => (**current).clone(),
        };
        let already_exists = |library: &Library| Err([b"Library ", &library.name[..], b" already exists"].concat());
        for library in libraries {
            if policy == RestorePolicy::Replace {
                next.remove(&library.name);
            } else if next.libraries.contains_key(&library.name) {
                return already_exists(library);
            }
        }
        for library in libraries {
            if next.libraries.contains_key(&library.name) {
                return already_exists(library);
            }
            next.check_functions(library)?;
            next.add(library);
        }
        *current = Arc::new(next);
        self.note_change();
        Ok(())
    }

    /// Deletes a library. Returns `true` if it was loaded.
    pub fn delete(&self, name: &[u8]) -> bool {
        let mut current = self.current.write();
        let is_deleted = current.libraries.contains_key(name) && Arc::make_mut(&mut current).remove(name);
        self.note_change();
        is_deleted
    }

    /// Deletes the libraries of an engine.
    pub(crate) fn remove_engine(&self, engine: &str) {
        let mut current = self.current.write();
        let is_its = |library: &&Arc<Library>| library.engine.as_deref() == Some(engine);
        let names: Vec<Vec<u8>> = current
            .libraries()
            .filter(is_its)
            .map(|library| library.name.clone())
            .collect();
        let set = Arc::make_mut(&mut current);
        for name in names {
            set.remove(&name);
        }
        self.note_change();
    }

    /// Deletes all libraries.
    pub fn flush(&self) {
        let mut current = self.current.write();
        *current = Arc::default();
        self.note_change();
        self.flushes.fetch_add(1, Ordering::Release);
    }

    /// Returns how often all libraries were deleted.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Returns the code of each library.
    pub fn codes(&self) -> Vec<Vec<u8>> {
        self.current().libraries().map(|library| library.code.clone()).collect()
    }

    /// Returns the bytes of memory that the libraries take.
    pub fn bytes(&self) -> u64 {
        let of_function =
            |function: &LoadedFunction| function.name.len() + function.description.as_ref().map_or(0, Vec::len);
        let set = self.current();
        let bytes: usize = set
            .libraries()
            .map(|library| {
                let functions: usize = library.functions.iter().map(of_function).sum();
                library.name.len() + library.code.len() + functions + OVERHEAD_BYTES * (1 + library.functions.len())
            })
            .sum();
        bytes as u64
    }
}

#[cfg(test)]
mod tests;
