//! The context of a call into a module (`ValkeyModuleCtx`).
//!
//! A context says for whom the module acts: the module itself, the client, its database and its protocol. It gives no
//! access to the data; that belongs to the thread ([`crate::session`]).

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use weft_resp::Protocol;

use crate::api;
use crate::module::Module;

/// The type of `GetApi`.
type GetApi = unsafe extern "C" fn(*const c_char, *mut *const c_void) -> c_int;

/// For whom a module acts.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The id of the client; 0 if there is none.
    pub client_id: u64,
    /// The database.
    pub db: u32,
    /// The protocol of the replies.
    pub protocol: Protocol,
}

/// The context of a call into a module. Modules see only its first word.
#[repr(C)]
pub struct Context {
    get_api: GetApi,
    /// The module.
    pub module: Arc<Module>,
    /// For whom it acts. `SelectDb` changes the database.
    pub caller: RefCell<Caller>,
    /// The reply so far, in the protocol of the caller.
    pub reply: RefCell<Vec<u8>>,
    /// `true` once the module has asked for automatic memory.
    pub is_automatic: Cell<bool>,
}

impl Context {
    /// Creates the context of a call.
    pub fn new(module: Arc<Module>, caller: Caller) -> Context {
        Context {
            get_api: api::get_api,
            module,
            caller: RefCell::new(caller),
            reply: RefCell::new(Vec::new()),
            is_automatic: Cell::new(false),
        }
    }

    /// Returns the pointer that the module gets.
    pub fn as_pointer(&self) -> *mut Context {
        std::ptr::from_ref(self).cast_mut()
    }

    /// Returns the context behind a module's pointer; `None` for null.
    ///
    /// # Safety
    /// The pointer is null, or that of a context that lives as long as `'a` (rule 1).
    pub unsafe fn from_pointer<'a>(pointer: *mut Context) -> Option<&'a Context> {
        // SAFETY: the caller promises it.
        unsafe { pointer.as_ref() }
    }
}
