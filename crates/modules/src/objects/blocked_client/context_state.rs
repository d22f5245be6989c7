//! What a context has to do with blocked clients.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;

use super::BlockedClient;
use crate::objects::string::ModuleString;

/// The kind of a callback, as far as it matters for blocked clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallbackKind {
    /// Another one.
    #[default]
    None,
    /// It makes the reply.
    Reply,
    /// It makes the reply after the time is over.
    Timeout,
    /// It frees the data after the client has gone.
    Disconnected,
    /// It gets a keyspace event, while the command of the client runs.
    KeyEvent,
}

/// A client that authenticates itself by a module.
#[derive(Clone, Debug)]
pub struct AuthenticationAttempt {
    /// The name of the user.
    pub user: Vec<u8>,
    /// The password.
    pub password: Vec<u8>,
    /// The number of the callback that was called last.
    pub callback: u64,
}

/// What a context has to do with blocked clients.
pub struct BlockedState {
    /// The callback for which this is the context.
    pub kind: Cell<CallbackKind>,
    /// The blocked client of the callback.
    pub client: RefCell<Option<Arc<BlockedClient>>>,
    /// The data of the module.
    pub data: Cell<*mut c_void>,
    /// The key that is ready.
    pub ready_key: Cell<*mut ModuleString>,
    /// The client that was blocked with this context.
    pub begun: RefCell<Option<Arc<BlockedClient>>>,
    /// The authentication that the module is asked for.
    pub attempt: RefCell<Option<AuthenticationAttempt>>,
    /// The blocked client that gets the replies of this thread-safe context.
    pub receiver: RefCell<Option<Arc<BlockedClient>>>,
}

impl Default for BlockedState {
    fn default() -> BlockedState {
        BlockedState {
            kind: Cell::default(),
            client: RefCell::default(),
            data: Cell::new(std::ptr::null_mut()),
            ready_key: Cell::new(std::ptr::null_mut()),
            begun: RefCell::default(),
            attempt: RefCell::default(),
            receiver: RefCell::default(),
        }
    }
}
