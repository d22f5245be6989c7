//! The session of tests. It has keys ([`super::keys::fake`]), no clients and no values of modules, and calls no
//! commands. A subject that adds functions to its part of [`Session`] adds them here, or in its own file.

use std::ffi::CStr;
use std::sync::Arc;

use weft_values::foreign::ForeignValue;

use super::Session;
use super::calls::{CallOutcome, CallRequest, CallSession, PropagationTarget};
use super::context::ContextSession;
use super::keys::SessionKey;
use super::types::{RdbFileError, TypesSession};
use crate::objects::arguments::CommandWords;
use crate::objects::context::Context;
use crate::objects::promise::Promise;

pub use super::keys::fake::FakeSession;

impl Session for FakeSession {}

impl CallSession for FakeSession {
    fn call(&mut self, _request: &CallRequest<'_>) -> CallOutcome {
        CallOutcome::Replied(b"+OK\r\n".to_vec())
    }

    fn has_user(&self, _context: &Context) -> bool {
        true
    }

    fn abort_call(&mut self, _promise: &Promise) -> bool {
        false
    }

    fn replicate(&mut self, _db: u32, _words: &CommandWords, _target: PropagationTarget) {}

    fn replicate_verbatim(&mut self, _context: &Context) {}
}

impl ContextSession for FakeSession {
    fn client_flags(&self, _client_id: u64) -> i32 {
        0
    }

    fn must_obey_client(&self, _client_id: u64) -> bool {
        false
    }

    fn give_way(&mut self, _serves_clients: bool, _busy_reply: Option<&CStr>) {}

    fn is_exclusive(&self) -> bool {
        true
    }

    fn open_gate_briefly(&mut self) -> bool {
        false
    }
}

impl TypesSession for FakeSession {
    fn module_value(&mut self, _key: SessionKey<'_>) -> Option<Arc<dyn ForeignValue>> {
        None
    }

    fn set_module_value(&mut self, _key: SessionKey<'_>, _value: Arc<dyn ForeignValue>) -> bool {
        false
    }

    fn may_run_pending_calls(&self) -> bool {
        true
    }

    fn load_rdb_file(&mut self, _path: &[u8]) -> Result<(), RdbFileError> {
        Err(RdbFileError::Missing)
    }

    fn save_rdb_file(&mut self, _path: &[u8]) -> Result<(), RdbFileError> {
        Err(RdbFileError::Failed)
    }
}
