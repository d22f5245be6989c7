//! The context of a call into a module (`ValkeyModuleCtx`).
//!
//! A context says for whom the module acts: the module itself, the client, its database and its protocol. It gives no
//! access to the data; that belongs to the thread ([`crate::session`]).

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;
use std::sync::Arc;

use weft_resp::Protocol;

use crate::api;
use crate::module::Module;
use crate::objects::arguments::CommandStrings;
use crate::objects::automatic::{AutomaticMemory, AutomaticObject};
use crate::objects::blocked_client::BlockedState;
use crate::objects::pool::Pool;
use crate::objects::positions::PositionRequest;
use crate::objects::reply::ReplyState;
use crate::objects::user::ContextUsers;

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

impl Caller {
    /// Returns the caller of code that no client has caused, in database 0.
    pub fn none() -> Caller {
        Caller {
            client_id: 0,
            db: 0,
            protocol: Protocol::Resp2,
        }
    }
}

/// A command of a module that runs.
#[derive(Clone, Copy, Debug)]
pub struct RunningCommand {
    /// The full name of the command, as the module has spelled it.
    pub full_name: &'static str,
    /// The same for the module.
    pub full_name_in_c: &'static CStr,
}

/// The module of a context. That of a command lives as long as the process, so that workers that run commands of a
/// module at the same time share no counter of its holders.
pub enum ContextModule {
    /// The module of a command.
    OfCommand(&'static Arc<Module>),
    /// Another module.
    Counted(Arc<Module>),
}

impl Deref for ContextModule {
    type Target = Arc<Module>;

    fn deref(&self) -> &Arc<Module> {
        match self {
            ContextModule::OfCommand(module) => module,
            ContextModule::Counted(module) => module,
        }
    }
}

/// The context of a call into a module. Modules see only its first word.
#[repr(C)]
pub struct Context {
    get_api: GetApi,
    /// The module.
    pub module: ContextModule,
    /// For whom it acts. `SelectDb` changes the database.
    pub caller: RefCell<Caller>,
    /// The reply so far, in the protocol of the caller.
    pub reply: RefCell<Vec<u8>>,
    /// The parts of the reply that are not bytes: open collections, errors to be counted.
    pub reply_state: ReplyState,
    /// What is freed with this context.
    pub automatic: AutomaticMemory,
    /// The memory that `PoolAlloc` has returned.
    pub pool: Pool,
    /// The command of the module that runs; `None` in callbacks.
    pub command: Cell<Option<RunningCommand>>,
    /// `true` if the context is that of a script, which a scripting engine runs.
    pub is_script: Cell<bool>,
    /// The words of that command.
    pub strings: CommandStrings,
    /// The positions that the module is asked for instead of running its command.
    pub positions: PositionRequest,
    /// The user that the module has chosen, and the one that it has given to the client.
    pub users: ContextUsers,
    /// The blocked client of a callback, or that of a thread-safe context.
    pub blocked: BlockedState,
}

impl Context {
    /// Creates the context of a call.
    pub fn new(module: Arc<Module>, caller: Caller) -> Context {
        Context::for_module(ContextModule::Counted(module), caller)
    }

    /// Creates the context in which a command of a module runs.
    #[inline]
    pub fn of_command(module: &'static Arc<Module>, caller: Caller) -> Context {
        Context::for_module(ContextModule::OfCommand(module), caller)
    }

    #[inline]
    fn for_module(module: ContextModule, caller: Caller) -> Context {
        Context {
            get_api: api::function_by_name,
            module,
            caller: RefCell::new(caller),
            reply: RefCell::new(Vec::new()),
            reply_state: ReplyState::default(),
            automatic: AutomaticMemory::default(),
            pool: Pool::default(),
            command: Cell::new(None),
            is_script: Cell::new(false),
            strings: CommandStrings::default(),
            positions: PositionRequest::default(),
            users: ContextUsers::default(),
            blocked: BlockedState::default(),
        }
    }

    /// Frees what belongs to this call, as the end of the context does.
    pub fn free_all(&self) {
        self.automatic.free_all();
        self.pool.free_all();
    }

    /// Gives an object to automatic memory, if the module has asked for it.
    pub fn own<T: AutomaticObject>(&self, pointer: *mut T) {
        self.automatic.own(pointer);
    }

    /// Takes an object from automatic memory. Returns `true` if it was there.
    pub fn disown<T: AutomaticObject>(&self, pointer: *mut T) -> bool {
        self.automatic.disown(pointer)
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

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(receiver) = self.blocked.receiver.take() {
            receiver.remove_context(self);
        }
        // Objects that are freed may use the context, so it is still whole.
        self.free_all();
    }
}
