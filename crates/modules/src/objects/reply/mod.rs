//! What a module replies: the bytes are in [`Context::reply`]; this is the rest.
//!
//! A collection whose length the module sets later is a position in the reply, at which the header is inserted then.
//! The lengths are set in the reverse order, so an insertion moves no position that is still needed.

use std::ffi::c_int;

use weft_resp::{Protocol, Reply};

use super::context::Context;
use crate::api::{ERR, OK};

mod state;

pub use state::{Collection, FinishedReply, ReplyError, ReplyState, take_spare_reply};

impl Context {
    /// Takes the reply so far. The context can collect another one afterwards.
    pub fn take_reply(&self) -> FinishedReply {
        let mut reply = FinishedReply::default();
        self.move_reply(&mut reply);
        reply
    }

    /// Does the same as [`Self::take_reply`] with a place for the reply.
    pub fn move_reply(&self, reply: &mut FinishedReply) {
        let open = std::mem::take(&mut *self.reply_state.open.borrow_mut());
        if !open.is_empty() {
            log::warn!(
                "API misuse detected in module {}: {} collections in its reply have a postponed length, which it has not \
                 set",
                self.module.name(),
                open.len()
            );
        }
        reply.bytes = self.reply.take();
        reply.errors = self.reply_state.errors.take();
    }

    /// Appends a value to the reply by `write`. Does nothing if nobody receives the reply.
    #[inline]
    pub fn write_reply(&self, write: impl FnOnce(&mut Reply<'_>)) {
        if !self.reply_state.is_discarded.get() {
            let protocol = self.caller.borrow().protocol;
            write(&mut Reply::new(&mut self.reply.borrow_mut(), protocol));
        }
    }

    /// Appends an error to the reply, and counts it.
    pub fn reply_with_error(&self, text: &[u8], is_custom: bool, is_counted: bool) {
        if !self.reply_state.is_discarded.get() {
            self.write_reply(|reply| reply.error_bytes(text));
            self.reply_state.add_error(ReplyError::new(text, is_custom, is_counted));
        }
    }

    /// Appends a reply that is encoded already. Returns [`ERR`] if it is in RESP3, and the caller uses RESP2.
    pub fn reply_with_proto(&self, proto: &[u8], is_resp3: bool) -> c_int {
        if is_resp3 && self.caller.borrow().protocol == Protocol::Resp2 && !self.reply_state.is_discarded.get() {
            return ERR;
        }
        if let Some(text) = proto.strip_prefix(b"-").and_then(|text| text.strip_suffix(b"\r\n"))
            && !self.reply_state.is_discarded.get()
        {
            self.reply_state.add_error(ReplyError::new(text, false, true));
        }
        self.write_reply(|reply| reply.raw(proto));
        OK
    }

    /// Begins a collection. `None` as its length postpones the length.
    pub fn begin_collection(&self, collection: Collection, len: Option<usize>) {
        self.write_reply(|reply| match (len, collection) {
            (None, _) => self.reply_state.open.borrow_mut().push(reply.begin_array()),
            (Some(len), Collection::Array) => reply.array(len),
            (Some(len), Collection::Map) => reply.map(len),
            (Some(len), Collection::Set) => reply.set(len),
            (Some(len), Collection::Attribute) => reply.attribute(len),
        });
    }

    /// Sets the length of the collection that was begun last of those without one.
    pub fn end_collection(&self, collection: Collection, len: usize) {
        if self.reply_state.is_discarded.get() {
            return;
        }
        let Some(deferred) = self.reply_state.open.borrow_mut().pop() else {
            log::warn!(
                "API misuse detected in module {}: it sets the length of a collection, but none in its reply has a \
                 postponed length",
                self.module.name()
            );
            return;
        };
        self.write_reply(|reply| match collection {
            Collection::Array => reply.end_array(deferred, len),
            Collection::Map => reply.end_map(deferred, len),
            Collection::Set => reply.end_set(deferred, len),
            Collection::Attribute => reply.end_attribute(deferred, len),
        });
    }
}

#[cfg(test)]
mod tests;
