//! The libraries of functions that are loaded.
//!
//! The whole set is one immutable value that is replaced when it changes, so that readers hold no lock while they work.
//! Names of functions are compared in any case, as in Valkey; those of libraries are not.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::profile::Habits;
use super::shebang::Flags;
use crate::observability::lock;

/// What a function takes beside its name, and a library beside its name and code, bytes.
const OVERHEAD_BYTES: usize = 200;

/// A function of a library.
#[derive(Debug)]
pub struct LoadedFunction {
    /// Its name.
    pub name: Vec<u8>,
    /// What it says about itself.
    pub description: Option<Vec<u8>>,
    /// Its flags.
    pub flags: Flags,
    /// What earlier runs tell.
    pub profile: Habits,
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Its name.
    pub name: Vec<u8>,
    /// Its code, with the first line.
    pub code: Vec<u8>,
    /// Its functions, in the order of their names.
    pub functions: Vec<LoadedFunction>,
}

/// What becomes of libraries that are there when others are restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They go.
    Flush,
    /// They stay, and nothing may have their names.
    Append,
    /// They go if another has their name.
    Replace,
}

/// A set of libraries.
#[derive(Clone, Default)]
pub struct Set {
    libraries: BTreeMap<Vec<u8>, Arc<Library>>,
    /// Where each function is: its library, and its place there.
    functions: HashMap<Vec<u8>, (Arc<Library>, usize), ahash::RandomState>,
}

impl Set {
    /// A function and its library.
    pub fn function(&self, name: &[u8]) -> Option<(Arc<Library>, usize)> {
        self.functions.get(&name.to_ascii_lowercase()).cloned()
    }

    /// The libraries, by name.
    pub fn libraries(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.libraries.values()
    }

    /// Functions in all.
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

    /// Adds a library whose name is free.
    ///
    /// # Errors
    /// The message if one of its functions has a name that is taken.
    fn add(&mut self, library: &Arc<Library>) -> Result<(), Vec<u8>> {
        for function in &library.functions {
            if self.functions.contains_key(&function.name.to_ascii_lowercase()) {
                return Err([b"Function ", &function.name[..], b" already exists"].concat());
            }
        }
        for (index, function) in library.functions.iter().enumerate() {
            self.functions
                .insert(function.name.to_ascii_lowercase(), (library.clone(), index));
        }
        self.libraries.insert(library.name.clone(), library.clone());
        Ok(())
    }
}

/// The libraries that are loaded.
#[derive(Default)]
pub struct Libraries {
    current: RwLock<Arc<Set>>,
    /// Held while the set is replaced.
    changing: Mutex<()>,
    flushes: AtomicU64,
}

impl Libraries {
    /// What is loaded now.
    pub fn current(&self) -> Arc<Set> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change<R>(&self, change: impl FnOnce(&mut Set) -> Result<R, Vec<u8>>) -> Result<R, Vec<u8>> {
        let _changing = lock(&self.changing);
        let mut next = (*self.current()).clone();
        let result = change(&mut next)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        Ok(result)
    }

    /// The message if a library of that name cannot be loaded, before anything is known about it.
    ///
    /// # Errors
    /// When the name is taken, unless that one is to be replaced.
    pub fn check_name(&self, name: &[u8], replace: bool) -> Result<(), Vec<u8>> {
        match self.current().libraries.contains_key(name) && !replace {
            true => Err([b"Library '", name, b"' already exists"].concat()),
            false => Ok(()),
        }
    }

    /// Adds a library.
    ///
    /// # Errors
    /// The message when a name is taken.
    pub fn add(&self, library: &Arc<Library>, replace: bool) -> Result<(), Vec<u8>> {
        self.change(|set| {
            if replace {
                set.remove(&library.name);
            } else if set.libraries.contains_key(&library.name) {
                return Err([b"Library '", &library.name[..], b"' already exists"].concat());
            }
            set.add(library)
        })
    }

    /// Adds libraries that belong together: all, or none.
    ///
    /// # Errors
    /// The message when a name is taken.
    pub fn restore(&self, libraries: &[Arc<Library>], policy: Policy) -> Result<(), Vec<u8>> {
        self.change(|set| {
            if policy == Policy::Flush {
                *set = Set::default();
            }
            for library in libraries {
                if policy == Policy::Replace {
                    set.remove(&library.name);
                } else if set.libraries.contains_key(&library.name) {
                    return Err([b"Library ", &library.name[..], b" already exists"].concat());
                }
            }
            libraries.iter().try_for_each(|library| set.add(library))
        })
    }

    /// Takes a library out; whether it was there.
    pub fn delete(&self, name: &[u8]) -> bool {
        self.change(|set| Ok(set.remove(name))).unwrap_or(false)
    }

    /// Takes all libraries out.
    pub fn flush(&self) {
        // It cannot fail.
        let _ = self.change(|set| {
            *set = Set::default();
            Ok(())
        });
        self.flushes.fetch_add(1, Ordering::Release);
    }

    /// How often all libraries were taken out.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// The code of each library.
    pub fn codes(&self) -> Vec<Vec<u8>> {
        self.current().libraries().map(|library| library.code.clone()).collect()
    }

    /// What they take, bytes.
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
