//! The filters by which modules change the words of commands before these are looked up.
//!
//! A filter sees each command once: when a client sends it, and when a module or a script calls it. While there are
//! filters, the commands of all clients run on the home worker ([`super::home_commands`]).

use std::cell::RefCell;
use std::sync::Arc;

use weft_os::atomic::Ordering;
use weft_os::sync::Mutex;
use weft_resp::Args;

use super::Module;
use super::home_commands::{self, HomeReason};
use crate::invoke;
use crate::objects::arguments::CommandWords;
use crate::objects::string::ModuleString;
use crate::session::{Session, with_session};

/// A function that may change a command (`ValkeyModuleCommandFilterFunc`).
pub type FilterFunction = unsafe extern "C" fn(*mut FilteredCommand);

/// The filter does not see commands that are called while its module calls a command (`VALKEYMODULE_CMDFILTER_NOSELF`).
const NO_SELF: i32 = 1;

/// A filter (`ValkeyModuleCommandFilter`).
pub struct CommandFilter {
    module: Arc<Module>,
    function: FilterFunction,
    flags: i32,
}

static FILTERS: Mutex<Vec<Arc<CommandFilter>>> = Mutex::new(Vec::new());

fn update(filters: &[Arc<CommandFilter>]) {
    home_commands::set(HomeReason::CommandFilters, !filters.is_empty());
}

/// Registers a filter. Returns its pointer, which stays valid until the filter is removed.
pub fn register(module: &Arc<Module>, function: FilterFunction, flags: i32) -> *const CommandFilter {
    let filter = Arc::new(CommandFilter {
        module: module.clone(),
        function,
        flags,
    });
    let pointer = Arc::as_ptr(&filter);
    let mut filters = FILTERS.lock();
    let is_first = !filters.iter().any(|known| Arc::ptr_eq(&known.module, module));
    filters.push(filter);
    update(&filters);
    drop(filters);
    if is_first {
        let owner = module.clone();
        module.add_cleanup(move || {
            let mut filters = FILTERS.lock();
            filters.retain(|filter| !Arc::ptr_eq(&filter.module, &owner));
            update(&filters);
        });
    }
    pointer
}

/// Removes a filter of a module. Returns `false` if the module has no such filter.
pub fn unregister(module: &Arc<Module>, filter: *const CommandFilter) -> bool {
    let mut filters = FILTERS.lock();
    let before = filters.len();
    filters.retain(|known| !(std::ptr::eq(Arc::as_ptr(known), filter) && Arc::ptr_eq(&known.module, module)));
    update(&filters);
    filters.len() < before
}

/// Returns the number of filters of a module.
pub fn count_of(module: &Module) -> usize {
    let filters = FILTERS.lock();
    filters
        .iter()
        .filter(|filter| std::ptr::eq(Arc::as_ptr(&filter.module), module))
        .count()
}

/// A command while filters see it (`ValkeyModuleCommandFilterCtx`).
pub struct FilteredCommand {
    /// The id of its client.
    pub client_id: u64,
    /// Its words, of which this is a holder.
    words: RefCell<Vec<*mut ModuleString>>,
}

impl FilteredCommand {
    fn new(client_id: u64, args: Args<'_>) -> FilteredCommand {
        FilteredCommand {
            client_id,
            words: RefCell::new(args.iter().map(ModuleString::create).collect()),
        }
    }

    /// Returns the number of words.
    pub fn count(&self) -> usize {
        self.words.borrow().len()
    }

    /// Returns a word; `None` if there are fewer.
    pub fn word(&self, position: usize) -> Option<*mut ModuleString> {
        self.words.borrow().get(position).copied()
    }

    /// Inserts a word, of which this becomes a holder in place of the module. Returns `false`, and changes nothing, if
    /// there is no such position.
    pub fn insert(&self, position: usize, word: *mut ModuleString) -> bool {
        let mut words = self.words.borrow_mut();
        let is_inside = position <= words.len();
        if is_inside {
            words.insert(position, word);
        }
        is_inside
    }

    /// Replaces a word, as [`Self::insert`] inserts one.
    pub fn replace(&self, position: usize, word: *mut ModuleString) -> bool {
        let former = match self.words.borrow_mut().get_mut(position) {
            Some(place) => std::mem::replace(place, word),
            None => return false,
        };
        // SAFETY: this was a holder of the word.
        unsafe { ModuleString::release(former) };
        true
    }

    /// Deletes a word. Returns `false` if there is none at this position.
    pub fn delete(&self, position: usize) -> bool {
        let mut words = self.words.borrow_mut();
        if position >= words.len() {
            return false;
        }
        let former = words.remove(position);
        // SAFETY: this was a holder of the word.
        unsafe { ModuleString::release(former) };
        true
    }

    /// Returns the words, if they are not those of `args`, or `None`. A command has a first word at least, and at most
    /// 4 GiB: otherwise it stays as it was.
    fn changed_words(&self, args: Args<'_>) -> Option<CommandWords> {
        let words = self.words.borrow();
        // SAFETY: this is a holder of each word, and no module appends to one meanwhile.
        let bytes = |word: &*mut ModuleString| unsafe { ModuleString::bytes_of(*word) };
        let is_same = words.len() == args.len() && words.iter().map(bytes).eq(args.iter());
        if is_same || words.is_empty() {
            return None;
        }
        let mut changed = CommandWords::default();
        words.iter().all(|word| changed.push(bytes(word))).then_some(changed)
    }
}

impl Drop for FilteredCommand {
    fn drop(&mut self) {
        for word in self.words.get_mut().drain(..) {
            // SAFETY: this is a holder of each word.
            unsafe { ModuleString::release(word) };
        }
    }
}

/// Lets the filters see a command. Returns its words if they have changed them.
pub fn apply(session: &mut dyn Session, client_id: u64, args: Args<'_>) -> Option<CommandWords> {
    let filters = FILTERS.lock().clone();
    let mut command = FilteredCommand::new(client_id, args);
    for filter in filters {
        let module = &filter.module;
        let is_calling = module.calls_under_way.load(Ordering::Relaxed) > 0;
        if module.is_unloaded() || (filter.flags & NO_SELF != 0 && is_calling) {
            continue;
        }
        with_session(session, || {
            invoke::name_module(module, || {
                // SAFETY: the command lives until the function has returned.
                unsafe { (filter.function)(&raw mut command) };
            });
        });
    }
    command.changed_words(args)
}

#[cfg(test)]
mod tests;
