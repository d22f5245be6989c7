//! Replies to the commands that a module has called (`ValkeyModuleCallReply`).
//!
//! A reply keeps the bytes in which the command has replied, and parses them when the module first asks for more than
//! these bytes. A nested reply belongs to the outermost one, the root: it points into the root's bytes, is freed with
//! the root, and freeing it earlier has no effect.

mod parsing;

use std::cell::{Cell, OnceCell};

use crate::objects::automatic::AutomaticObject;
use crate::objects::context::Context;
use crate::objects::promise::Promise;
use std::sync::Arc;

/// A range of the bytes of a root.
#[derive(Clone, Copy)]
struct Slice {
    start: *const u8,
    length: usize,
}

impl Slice {
    fn new(bytes: &[u8]) -> Slice {
        Slice {
            start: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// Returns the bytes. They live as long as the root of the reply in which the slice is.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the root owns the bytes, never changes them, and owns the reply that holds this slice.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// What a reply holds.
enum Value {
    Unknown,
    SimpleString(Slice),
    String(Slice),
    Error(Slice),
    Integer(i64),
    Array(Box<[CallReply]>),
    Null,
    NullArray,
    /// The keys and values in turn.
    Map(Box<[CallReply]>),
    Set(Box<[CallReply]>),
    Bool(bool),
    Double(f64),
    BigNumber(Slice),
    /// The format is in the first three bytes of the first slice.
    Verbatim(Slice, Slice),
    /// The keys and values in turn.
    Attribute(Box<[CallReply]>),
    /// The command is blocked.
    Promise(Arc<Promise>),
}

/// The types of replies (`VALKEYMODULE_REPLY_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ReplyType {
    /// Not a reply.
    Unknown = -1,
    /// A bulk string, or a simple string unless the module has asked for exact types.
    String = 0,
    /// An error.
    Error = 1,
    /// An integer.
    Integer = 2,
    /// An array.
    Array = 3,
    /// Null, or a null array unless the module has asked for exact types.
    Null = 4,
    /// A map.
    Map = 5,
    /// A set.
    Set = 6,
    /// A boolean.
    Bool = 7,
    /// A floating-point number.
    Double = 8,
    /// A big number.
    BigNumber = 9,
    /// A verbatim string.
    VerbatimString = 10,
    /// Attributes of another reply.
    Attribute = 11,
    /// The command is blocked; the reply follows.
    Promise = 12,
    /// A simple string, if the module has asked for exact types.
    SimpleString = 13,
    /// A null array, if the module has asked for exact types.
    NullArray = 14,
}

/// A reply after it was parsed.
struct Parsed {
    value: Value,
    attribute: Option<Box<CallReply>>,
    /// `true` if the reply, or one that is nested in it, has a type that RESP2 does not know.
    is_resp3: bool,
    /// Its bytes, with those of its attributes.
    proto: Slice,
}

/// A reply to a command that a module has called.
pub struct CallReply {
    /// The bytes of a root, and a zero byte that does not count: modules print replies as C strings. No slice outlives
    /// them, and they stay where they are.
    bytes: Vec<u8>,
    is_root: bool,
    /// `true` if simple strings and null arrays keep their types.
    is_exact: bool,
    parsed: OnceCell<Parsed>,
    /// The context of the call, if its automatic memory owns the reply; otherwise null.
    owner: Cell<*const Context>,
}

impl CallReply {
    /// Creates the reply of a command from its bytes. `is_exact` keeps the types of simple strings and null arrays.
    pub fn new(mut bytes: Vec<u8>, is_exact: bool) -> CallReply {
        bytes.reserve_exact(1);
        bytes.push(0);
        CallReply {
            bytes,
            is_root: true,
            is_exact,
            parsed: OnceCell::new(),
            owner: Cell::new(std::ptr::null()),
        }
    }

    /// Creates the reply of a command that is blocked.
    pub fn of_promise(promise: Arc<Promise>) -> CallReply {
        let reply = CallReply::new(Vec::new(), false);
        let parsed = Parsed {
            value: Value::Promise(promise),
            attribute: None,
            is_resp3: false,
            proto: Slice::new(&[]),
        };
        let _ = reply.parsed.set(parsed);
        reply
    }

    /// Creates a nested reply.
    fn nested(parsed: Parsed) -> CallReply {
        CallReply {
            bytes: Vec::new(),
            is_root: false,
            is_exact: false,
            parsed: OnceCell::from(parsed),
            owner: Cell::new(std::ptr::null()),
        }
    }

    /// Moves the reply to the heap, and gives it to the context if that has automatic memory. Returns its pointer.
    pub fn into_pointer(self, context: Option<&Context>) -> *mut CallReply {
        let pointer = Box::into_raw(Box::new(self));
        if let Some(context) = context.filter(|context| context.automatic.is_enabled()) {
            // SAFETY: the reply was just created.
            unsafe { &*pointer }.owner.set(context);
            context.automatic.own(pointer);
        }
        pointer
    }

    /// Frees a reply. Does nothing for a nested one.
    ///
    /// # Safety
    /// The pointer is that of a reply (rule 1). If it is a root, neither it nor what is nested in it is used after this
    /// call.
    pub unsafe fn free_by_module(pointer: *mut CallReply) {
        // SAFETY: the caller promises it.
        let reply = unsafe { &*pointer };
        if !reply.is_root {
            return;
        }
        // SAFETY: the context lives, since it frees its replies when it ends.
        if let Some(context) = unsafe { reply.owner.get().as_ref() } {
            context.automatic.disown(pointer);
        }
        // SAFETY: the root is a box, and the caller gives it up.
        drop(unsafe { Box::from_raw(pointer) });
    }

    fn parsed(&self) -> &Parsed {
        self.parsed
            .get_or_init(|| parsing::parse(self.root_bytes(), self.is_exact))
    }

    /// Returns the bytes of a root without the zero byte behind them.
    fn root_bytes(&self) -> &[u8] {
        self.bytes.strip_suffix(&[0]).unwrap_or_default()
    }

    /// Returns the type.
    pub fn reply_type(&self) -> ReplyType {
        match self.parsed().value {
            Value::Unknown => ReplyType::Unknown,
            Value::SimpleString(_) => ReplyType::SimpleString,
            Value::String(_) => ReplyType::String,
            Value::Error(_) => ReplyType::Error,
            Value::Integer(_) => ReplyType::Integer,
            Value::Array(_) => ReplyType::Array,
            Value::Null => ReplyType::Null,
            Value::NullArray => ReplyType::NullArray,
            Value::Map(_) => ReplyType::Map,
            Value::Set(_) => ReplyType::Set,
            Value::Bool(_) => ReplyType::Bool,
            Value::Double(_) => ReplyType::Double,
            Value::BigNumber(_) => ReplyType::BigNumber,
            Value::Verbatim(..) => ReplyType::VerbatimString,
            Value::Attribute(_) => ReplyType::Attribute,
            Value::Promise(_) => ReplyType::Promise,
        }
    }

    /// Returns the bytes in which the command has replied. For a nested reply these are its part of them.
    pub fn proto(&self) -> &[u8] {
        match self.parsed.get() {
            Some(parsed) => parsed.proto.bytes(),
            None => self.root_bytes(),
        }
    }

    /// Returns the bytes in which the command has replied, without attributes.
    pub fn value_proto(&self) -> &[u8] {
        let proto = self.proto();
        match self.attribute() {
            Some(attribute) => &proto[attribute.proto().len().min(proto.len())..],
            None => proto,
        }
    }

    /// Returns the context of the call, if its automatic memory owns the reply.
    ///
    /// # Safety
    /// The reply is used no longer than its owner lives (rule 1).
    pub unsafe fn owner(&self) -> Option<&Context> {
        // SAFETY: the caller promises it.
        unsafe { self.owner.get().as_ref() }
    }

    /// Returns `true` if the reply is known to have a type that RESP2 does not know. As in Valkey, nothing is known
    /// before the module has looked at the reply.
    pub fn is_known_as_resp3(&self) -> bool {
        self.parsed.get().is_some_and(|parsed| parsed.is_resp3)
    }

    /// Returns the length of a string or error in bytes, or the number of elements or pairs; 0 for other types.
    pub fn length(&self) -> usize {
        match &self.parsed().value {
            Value::String(text) | Value::Error(text) => text.length,
            Value::Array(elements) | Value::Set(elements) => elements.len(),
            Value::Map(elements) | Value::Attribute(elements) => elements.len() / 2,
            _ => 0,
        }
    }

    /// Returns the text of a string or an error.
    pub fn text(&self) -> Option<&[u8]> {
        match &self.parsed().value {
            Value::String(text) | Value::SimpleString(text) | Value::Error(text) => Some(text.bytes()),
            _ => None,
        }
    }

    /// Returns the number of an integer reply.
    pub fn integer(&self) -> Option<i64> {
        match self.parsed().value {
            Value::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the number of a floating-point reply.
    pub fn double(&self) -> Option<f64> {
        match self.parsed().value {
            Value::Double(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the value of a boolean reply.
    pub fn boolean(&self) -> Option<bool> {
        match self.parsed().value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the digits of a big number.
    pub fn big_number(&self) -> Option<&[u8]> {
        match &self.parsed().value {
            Value::BigNumber(digits) => Some(digits.bytes()),
            _ => None,
        }
    }

    /// Returns the format of a verbatim string, followed by a colon and the text, and the text.
    pub fn verbatim(&self) -> Option<(&[u8], &[u8])> {
        match &self.parsed().value {
            Value::Verbatim(format, text) => Some((format.bytes(), text.bytes())),
            _ => None,
        }
    }

    /// Returns an element of an array.
    pub fn array_element(&self, index: usize) -> Option<&CallReply> {
        match &self.parsed().value {
            Value::Array(elements) => elements.get(index),
            _ => None,
        }
    }

    /// Returns an element of a set.
    pub fn set_element(&self, index: usize) -> Option<&CallReply> {
        match &self.parsed().value {
            Value::Set(elements) => elements.get(index),
            _ => None,
        }
    }

    /// Returns a key of a map and its value.
    pub fn map_element(&self, index: usize) -> Option<(&CallReply, &CallReply)> {
        match &self.parsed().value {
            Value::Map(elements) => pair(elements, index),
            _ => None,
        }
    }

    /// Returns the name of an attribute and its value.
    pub fn attribute_element(&self, index: usize) -> Option<(&CallReply, &CallReply)> {
        match &self.parsed().value {
            Value::Attribute(elements) => pair(elements, index),
            _ => None,
        }
    }

    /// Returns the attributes of this reply.
    pub fn attribute(&self) -> Option<&CallReply> {
        self.parsed().attribute.as_deref()
    }

    /// Returns the promise, if the command is blocked.
    pub fn promise(&self) -> Option<&Arc<Promise>> {
        match &self.parsed().value {
            Value::Promise(promise) => Some(promise),
            _ => None,
        }
    }
}

/// Returns the pair at `index` of keys and values in turn.
fn pair(elements: &[CallReply], index: usize) -> Option<(&CallReply, &CallReply)> {
    match elements.get(index.checked_mul(2)?..)? {
        [key, value, ..] => Some((key, value)),
        _ => None,
    }
}

impl AutomaticObject for CallReply {
    unsafe fn free(pointer: *mut CallReply) {
        // SAFETY: the caller promises that the reply is a root that nobody uses. The context has given it up already.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

#[cfg(test)]
mod tests;
