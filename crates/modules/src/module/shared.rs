//! Functions that modules offer to each other by name.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

use weft_os::atomic::Ordering;
use weft_os::sync::Mutex;

use super::Module;
use crate::api::Function;

/// A function that a module offers.
struct Shared {
    owner: Weak<Module>,
    function: Function,
}

/// The use of functions of one module by another one.
struct Use {
    owner: Weak<Module>,
    user: Weak<Module>,
}

static SHARED: Mutex<BTreeMap<Vec<u8>, Shared>> = Mutex::new(BTreeMap::new());
static USES: Mutex<Vec<Use>> = Mutex::new(Vec::new());

fn is_same(weak: &Weak<Module>, module: &Arc<Module>) -> bool {
    std::ptr::eq(weak.as_ptr(), Arc::as_ptr(module))
}

/// Offers a function. Returns `false` if the name is in use.
pub fn export(module: &Arc<Module>, name: &[u8], function: *const c_void) -> bool {
    let mut shared = SHARED.lock();
    if shared.contains_key(name) {
        return false;
    }
    let owner = Arc::downgrade(module);
    shared.insert(
        name.to_vec(),
        Shared {
            owner: owner.clone(),
            function: Function(function),
        },
    );
    drop(shared);
    let name = name.to_vec();
    module.add_cleanup(move || {
        SHARED.lock().remove(&name);
    });
    true
}

/// Returns the function of a name for a module, whose use of it keeps the module that offers it from being unloaded.
pub fn import(module: &Arc<Module>, name: &[u8]) -> Option<*const c_void> {
    let (owner, function) = {
        let shared = SHARED.lock();
        let found = shared.get(name)?;
        (found.owner.upgrade()?, found.function.0)
    };
    let mut uses = USES.lock();
    let is_known = uses
        .iter()
        .any(|used| is_same(&used.owner, &owner) && is_same(&used.user, module));
    if !is_known {
        uses.push(Use {
            owner: Arc::downgrade(&owner),
            user: Arc::downgrade(module),
        });
        owner.usage.users.fetch_add(1, Ordering::Relaxed);
        let (owner, user) = (Arc::downgrade(&owner), Arc::downgrade(module));
        module.add_cleanup(move || {
            USES.lock()
                .retain(|used| !(used.owner.ptr_eq(&owner) && used.user.ptr_eq(&user)));
            if let Some(owner) = owner.upgrade() {
                owner.usage.users.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
    Some(function)
}

/// Returns the names of the modules that use functions of `module`.
pub fn users_of(module: &Arc<Module>) -> Vec<Arc<str>> {
    let uses = USES.lock();
    let of_module = uses.iter().filter(|used| is_same(&used.owner, module));
    of_module.filter_map(|used| Some(used.user.upgrade()?.name())).collect()
}

/// Returns the names of the modules whose functions `module` uses.
pub fn used_by(module: &Arc<Module>) -> Vec<Arc<str>> {
    let uses = USES.lock();
    let by_module = uses.iter().filter(|used| is_same(&used.user, module));
    by_module
        .filter_map(|used| Some(used.owner.upgrade()?.name()))
        .collect()
}
