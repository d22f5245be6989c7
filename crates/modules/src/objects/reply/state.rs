//! The parts of a module's reply that are not bytes, and the reply of a call that has ended.

use std::cell::{Cell, RefCell};

use weft_resp::DeferredLength;

/// The number of bytes, with the minus sign, in which an error code ends.
const CODE_MAX_LEN: usize = 32;

/// An error in a reply, for the statistics of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyError {
    /// The code, such as `WRONGTYPE`.
    pub code: Box<[u8]>,
    /// `true` if the module has asked that its code is counted like those of scripts: as an overflow, once there are
    /// many codes.
    pub is_custom: bool,
    /// `false` if only the failure of the command is counted.
    pub is_counted: bool,
}

impl ReplyError {
    /// Creates an error from its text, without the minus sign. The code is the first word, or `ERR` if there is no
    /// second word.
    pub fn new(text: &[u8], is_custom: bool, is_counted: bool) -> ReplyError {
        let code = text
            .iter()
            .take(CODE_MAX_LEN - 1)
            .position(|byte| *byte == b' ')
            .map_or(b"ERR".as_slice(), |end| &text[..end]);
        ReplyError {
            code: Box::from(code),
            is_custom,
            is_counted,
        }
    }
}

/// A type of collection whose length can be set later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// An array.
    Array,
    /// A map; its length is the number of pairs.
    Map,
    /// A set.
    Set,
    /// Attributes of the reply after them, in pairs. RESP2 has none.
    Attribute,
}

/// The parts of a reply that are not bytes.
#[derive(Default)]
pub struct ReplyState {
    pub(super) open: RefCell<Vec<DeferredLength>>,
    pub(super) errors: RefCell<Vec<ReplyError>>,
    /// `true` if nobody receives the reply.
    pub(super) is_discarded: Cell<bool>,
}

impl ReplyState {
    /// Lets the context ignore what the module replies, because there is no client that would receive it.
    pub fn discard(&self) {
        self.is_discarded.set(true);
    }

    /// Adds an error to those that the server counts.
    pub fn add_error(&self, error: ReplyError) {
        self.errors.borrow_mut().push(error);
    }
}

/// The size in bytes up to which the memory of a reply is used again.
const MAX_SPARE_BYTES: usize = 16 << 10;

thread_local! {
    /// The memory of an earlier reply.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns an empty buffer for the reply of a command, with the memory of an earlier one if there is some.
pub fn take_spare_reply() -> Vec<u8> {
    SPARE.take()
}

/// The whole reply of a call into a module.
#[derive(Debug, Default)]
pub struct FinishedReply {
    /// The reply in the protocol of the caller.
    pub bytes: Vec<u8>,
    /// The errors in it.
    pub errors: Vec<ReplyError>,
}

impl FinishedReply {
    /// Keeps the memory of a reply that was copied, for a later one on this thread.
    pub fn recycle(self) {
        let mut bytes = self.bytes;
        if (1..=MAX_SPARE_BYTES).contains(&bytes.capacity()) {
            bytes.clear();
            SPARE.set(bytes);
        }
    }
}
