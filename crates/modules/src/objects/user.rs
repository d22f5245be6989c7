//! Users that modules hold (`ValkeyModuleUser`), and clients that modules have authenticated.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::{Arc, Weak};

use weft_acl::AclAccount;
use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::Mutex;

use crate::invoke;
use crate::module::{Module, listed};
use crate::session::{self, Session};

/// A user that a module holds: one that it has created, or one of the server.
pub struct ModuleUser {
    /// The user.
    pub account: Arc<AclAccount>,
    /// `true` if the module has created it. It ends with this object.
    pub is_own: bool,
}

/// The function that a module gets called when a client that it has authenticated gets another user
/// (`ValkeyModuleUserChangedFunc`).
pub type UserChangedFunction = unsafe extern "C" fn(u64, *mut c_void);

/// A user as which a module has authenticated a client, and what the module wants to know of its end.
pub type AuthenticatedUser = (Arc<AclAccount>, Option<Arc<Authentication>>);

/// The users of a context.
#[derive(Default)]
pub struct ContextUsers {
    /// The user for whom `Call` runs commands, if the module has chosen one.
    pub chosen: RefCell<Option<Arc<AclAccount>>>,
    /// The user as which the module has authenticated the client of the context, if the client is none of the session:
    /// it waits for an authentication. Whoever has created the context logs the client in.
    pub authenticated: RefCell<Option<AuthenticatedUser>>,
    /// `true` once the module has authenticated the client of the context.
    pub has_authenticated: Cell<bool>,
}

/// The function to call when a client loses the user that a module has given it, as a pointer that only the module
/// uses.
struct Callback {
    function: UserChangedFunction,
    data: *mut c_void,
}

// SAFETY: the pointer is passed back to the module, on a thread on which the module may run.
unsafe impl Send for Callback {}

/// A client that a module has authenticated with a callback. It is a part of the client's login, and is dropped when
/// the client logs in as another user, or disconnects. The callback is called once.
pub struct Authentication {
    module: Arc<Module>,
    client_id: u64,
    callback: Mutex<Option<Callback>>,
}

/// The authentications that may not have ended.
static AUTHENTICATIONS: Mutex<Vec<Weak<Authentication>>> = Mutex::new(Vec::new());
/// `true` if there may be some.
static HAS_AUTHENTICATIONS: AtomicBool = AtomicBool::new(false);

impl Authentication {
    /// Begins an authentication.
    pub fn begin(
        module: Arc<Module>,
        client_id: u64,
        function: UserChangedFunction,
        data: *mut c_void,
    ) -> Arc<Authentication> {
        let begun = Arc::new(Authentication {
            module,
            client_id,
            callback: Mutex::new(Some(Callback { function, data })),
        });
        let mut all = AUTHENTICATIONS.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&begun));
        HAS_AUTHENTICATIONS.store(true, Ordering::Release);
        begun
    }

    /// Ends the authentication: calls the callback, unless it was called. The thread has a session.
    pub fn end(&self) {
        let callback = self.callback.lock().take();
        if let Some(callback) = callback {
            call(&self.module, self.client_id, callback);
        }
    }
}

/// Calls the callback. The thread has a session.
fn call(module: &Arc<Module>, client_id: u64, callback: Callback) {
    invoke::name_module(module, || {
        // SAFETY: the module has given the function as one of this type, and is loaded: unloading it ends its
        // authentications first.
        unsafe { (callback.function)(client_id, callback.data) };
    });
}

impl Drop for Authentication {
    /// The login ends on any thread and under leases, so the callback runs later.
    fn drop(&mut self) {
        let (module, client_id) = (self.module.clone(), self.client_id);
        let Some(callback) = self.callback.lock().take() else {
            return;
        };
        if let Some(host) = session::host() {
            let job = move |session: &mut dyn Session| {
                let loaded = listed::find(&module.name());
                if loaded.is_some_and(|loaded| Arc::ptr_eq(&loaded, &module)) {
                    session::with_session(session, || call(&module, client_id, callback));
                }
            };
            host.run_with_session_soon(Box::new(job));
        }
    }
}

/// Ends the authentications of a module that is unloaded: calls the callbacks and returns the clients, which lose their
/// users. The thread has a session.
pub fn end_authentications(module: &Arc<Module>) -> Vec<u64> {
    if !HAS_AUTHENTICATIONS.load(Ordering::Acquire) {
        return Vec::new();
    }
    let all: Vec<Arc<Authentication>> = AUTHENTICATIONS.lock().iter().filter_map(Weak::upgrade).collect();
    let of_module = all.iter().filter(|other| Arc::ptr_eq(&other.module, module));
    let of_module = of_module.filter(|other| other.callback.lock().is_some());
    of_module
        .map(|other| {
            other.end();
            other.client_id
        })
        .collect()
}
