//! Functions of a module that receive a reply, one for each type.

use std::ffi::{c_char, c_double, c_int, c_longlong, c_void};

use crate::objects::call_reply::{CallReply, ReplyType};
use crate::objects::context::Context;

type OnValue = Option<unsafe extern "C" fn(*mut c_void)>;
type OnText = Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>;
type OnLength = Option<unsafe extern "C" fn(*mut c_void, usize)>;

/// The version of [`ReplyHandlers`].
pub const REPLY_HANDLERS_VERSION: u64 = 1;

/// The functions of a module for the types of replies (`ValkeyModuleReplyHandlersV1`).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ReplyHandlers {
    /// [`REPLY_HANDLERS_VERSION`].
    pub version: u64,
    null: OnValue,
    null_bulk_string: OnValue,
    null_array: OnValue,
    bulk_string: OnText,
    simple_string: OnText,
    verbatim_string: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize, *const c_char)>,
    error: OnText,
    integer: Option<unsafe extern "C" fn(*mut c_void, c_longlong)>,
    double: Option<unsafe extern "C" fn(*mut c_void, c_double)>,
    big_number: OnText,
    boolean: Option<unsafe extern "C" fn(*mut c_void, c_int)>,
    attribute_start: OnLength,
    attribute_end: OnValue,
    array_start: OnLength,
    array_end: OnValue,
    map_start: OnLength,
    map_end: OnValue,
    set_start: OnLength,
    set_end: OnValue,
    parsing_error: OnValue,
    on_blocked: Option<unsafe extern "C" fn(*mut c_void, *mut Context, *const c_void)>,
    on_reply: Option<unsafe extern "C" fn(*mut c_void, *mut Context, *const c_char, usize) -> c_int>,
}

/// The functions for one reply, and their data.
#[derive(Clone, Copy)]
pub struct ReplyReceiver {
    handlers: ReplyHandlers,
    data: *mut c_void,
}

// SAFETY: the server does no more with the data than to pass it back to the module, within a session.
unsafe impl Send for ReplyReceiver {}

impl ReplyReceiver {
    /// Creates the receiver of one reply.
    pub fn new(handlers: ReplyHandlers, data: *mut c_void) -> ReplyReceiver {
        ReplyReceiver { handlers, data }
    }

    /// Tells the module that the command is blocked, and gives it the handle by which it can abort the call.
    ///
    /// # Safety
    /// The handle is one that the module may pass back as long as the command is blocked.
    pub unsafe fn note_blocked(&self, context: &Context, handle: *const c_void) {
        if let Some(on_blocked) = self.handlers.on_blocked {
            // SAFETY: the function and its data are the module's; the caller promises the rest.
            unsafe { on_blocked(self.data, context.as_pointer(), handle) };
        }
    }

    /// Passes a reply to the module.
    pub fn receive(&self, context: &Context, bytes: Vec<u8>) {
        let reply = CallReply::new(bytes, true);
        if let Some(on_reply) = self.handlers.on_reply {
            let (start, length) = (reply.proto().as_ptr().cast(), reply.proto().len());
            // SAFETY: the function and its data are the module's; the context and the reply live until it returns.
            if unsafe { on_reply(self.data, context.as_pointer(), start, length) } == 0 {
                return;
            }
        }
        self.walk(&reply);
    }

    /// Passes a reply, and what is nested in it, to the functions for their types.
    fn walk(&self, reply: &CallReply) {
        let handlers = &self.handlers;
        if let Some(attribute) = reply.attribute() {
            self.length(handlers.attribute_start, attribute.length());
            for (name, value) in (0..).map_while(|index| attribute.attribute_element(index)) {
                self.walk(name);
                self.walk(value);
            }
            self.value(handlers.attribute_end);
        }
        match reply.reply_type() {
            ReplyType::Null if reply.value_proto().starts_with(b"$") => self.value(handlers.null_bulk_string),
            ReplyType::Null => self.value(handlers.null),
            ReplyType::NullArray => self.value(handlers.null_array),
            ReplyType::String => self.text(handlers.bulk_string, reply.text()),
            ReplyType::SimpleString => self.text(handlers.simple_string, reply.text()),
            ReplyType::Error => self.text(handlers.error, reply.text()),
            ReplyType::BigNumber => self.text(handlers.big_number, reply.big_number()),
            ReplyType::Array => {
                self.length(handlers.array_start, reply.length());
                (0..)
                    .map_while(|index| reply.array_element(index))
                    .for_each(|element| self.walk(element));
                self.value(handlers.array_end);
            }
            ReplyType::Set => {
                self.length(handlers.set_start, reply.length());
                (0..)
                    .map_while(|index| reply.set_element(index))
                    .for_each(|element| self.walk(element));
                self.value(handlers.set_end);
            }
            ReplyType::Map => {
                self.length(handlers.map_start, reply.length());
                for (key, value) in (0..).map_while(|index| reply.map_element(index)) {
                    self.walk(key);
                    self.walk(value);
                }
                self.value(handlers.map_end);
            }
            ReplyType::Integer | ReplyType::Double | ReplyType::Bool | ReplyType::VerbatimString => self.scalar(reply),
            ReplyType::Unknown | ReplyType::Attribute | ReplyType::Promise => self.value(handlers.parsing_error),
        }
    }

    /// Passes a number, a boolean or a verbatim string.
    fn scalar(&self, reply: &CallReply) {
        let handlers = &self.handlers;
        // SAFETY: the functions and their data are the module's.
        unsafe {
            if let (Some(function), Some(number)) = (handlers.integer, reply.integer()) {
                function(self.data, number);
            }
            if let (Some(function), Some(number)) = (handlers.double, reply.double()) {
                function(self.data, number);
            }
            if let (Some(function), Some(value)) = (handlers.boolean, reply.boolean()) {
                function(self.data, c_int::from(value));
            }
            if let (Some(function), Some((format, text))) = (handlers.verbatim_string, reply.verbatim()) {
                function(self.data, text.as_ptr().cast(), text.len(), format.as_ptr().cast());
            }
        }
    }

    fn value(&self, function: OnValue) {
        if let Some(function) = function {
            // SAFETY: the function and its data are the module's.
            unsafe { function(self.data) };
        }
    }

    fn length(&self, function: OnLength, length: usize) {
        if let Some(function) = function {
            // SAFETY: as above.
            unsafe { function(self.data, length) };
        }
    }

    fn text(&self, function: OnText, text: Option<&[u8]>) {
        if let (Some(function), Some(text)) = (function, text) {
            // SAFETY: as above; the text lives until the function returns.
            unsafe { function(self.data, text.as_ptr().cast(), text.len()) };
        }
    }
}
