//! The promise of a reply to a command that a module has called, and that is blocked.

use std::ffi::c_void;
use std::sync::Arc;

use weft_os::sync::Mutex;
use weft_resp::Protocol;

use crate::module::Module;
use crate::objects::call_reply::CallReply;
use crate::objects::context::{Caller, Context};
use crate::objects::reply_receiver::ReplyReceiver;

/// The function that a module sets for the time when the command replies.
pub type OnUnblocked = unsafe extern "C" fn(*mut Context, *mut CallReply, *mut c_void);

/// What a module does with the reply.
enum Handler {
    /// Nothing.
    None,
    /// A function gets it, and this data.
    Function(OnUnblocked, *mut c_void),
    /// The functions for the types of replies get it.
    Receiver(ReplyReceiver),
}

// SAFETY: the server does no more with the data than to pass it back to the module, within a session.
unsafe impl Send for Handler {}

/// The promise of a reply. The server holds it until the command has replied, and the reply object of the call until
/// the module frees that.
pub struct Promise {
    /// The number by which the server finds the blocked command.
    pub call: u64,
    /// The database in which the command was called.
    pub db: u32,
    module: Arc<Module>,
    /// `None` once the command has replied, or was aborted.
    handler: Mutex<Option<Handler>>,
}

impl Promise {
    /// Creates the promise of a command that was just blocked.
    pub fn new(module: Arc<Module>, call: u64, db: u32) -> Arc<Promise> {
        Arc::new(Promise {
            call,
            db,
            module,
            handler: Mutex::new(Some(Handler::None)),
        })
    }

    /// Returns the module that has called the command.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Sets the function to call with the reply. Has no effect once the command has replied.
    pub fn set_handler(&self, function: Option<OnUnblocked>, data: *mut c_void) {
        self.replace_handler(function.map_or(Handler::None, |function| Handler::Function(function, data)));
    }

    /// Sets the functions that get the reply. Has no effect once the command has replied.
    pub fn set_receiver(&self, receiver: ReplyReceiver) {
        self.replace_handler(Handler::Receiver(receiver));
    }

    fn replace_handler(&self, new: Handler) {
        if let Some(handler) = self.handler.lock().as_mut() {
            *handler = new;
        }
    }

    /// Returns `true` until the command has replied or was aborted.
    pub fn is_pending(&self) -> bool {
        self.handler.lock().is_some()
    }

    /// Ends the promise without a reply. Returns the data of the module's function; `None` if it has ended before.
    pub fn end(&self) -> Option<*mut c_void> {
        self.handler.lock().take().map(|handler| match handler {
            Handler::Function(_, data) => data,
            Handler::None | Handler::Receiver(_) => std::ptr::null_mut(),
        })
    }

    /// Ends the promise with the reply of the command, and passes this to the module. The thread has a session.
    pub fn fulfil(&self, reply: Vec<u8>) {
        let Some(handler) = self.handler.lock().take() else {
            return;
        };
        let caller = Caller {
            client_id: 0,
            db: self.db,
            protocol: Protocol::Resp2,
        };
        match handler {
            Handler::None => {}
            Handler::Receiver(receiver) => receiver.receive(&Context::new(self.module.clone(), caller), reply),
            Handler::Function(function, data) => {
                let context = Context::new(self.module.clone(), caller);
                let reply = CallReply::new(reply, false).into_pointer(None);
                // SAFETY: the module has given the function and its data; the context lives until it returns. The
                // module owns the reply.
                unsafe { function(context.as_pointer(), reply, data) };
            }
        }
    }
}
