//! The positions of keys or channels that a module names when it is asked for them (`IsKeysPositionRequest`).

use std::cell::{Cell, RefCell};

/// The uses of channels that modules name (`VALKEYMODULE_CMD_CHANNEL_*`).
pub mod channel_flag {
    /// The channel is a pattern.
    pub const PATTERN: u32 = 1;
    /// A message is sent.
    pub const PUBLISH: u32 = 1 << 1;
    /// A subscription begins.
    pub const SUBSCRIBE: u32 = 1 << 2;
    /// A subscription ends.
    pub const UNSUBSCRIBE: u32 = 1 << 3;
    /// All flags.
    pub const ALL: u32 = (1 << 4) - 1;
}

/// What a module is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PositionKind {
    /// The positions of the keys.
    Keys,
    /// The positions of the channels.
    Channels,
}

/// A position that a module has named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The index of the argument.
    pub index: usize,
    /// The use of the key or channel, as flags of the API.
    pub flags: u32,
}

/// The request in a context. Most contexts have none: they run a command.
#[derive(Default)]
pub struct PositionRequest {
    kind: Cell<Option<PositionKind>>,
    found: RefCell<Vec<Position>>,
}

impl PositionRequest {
    /// Begins a request.
    pub fn request(&self, kind: PositionKind) {
        self.kind.set(Some(kind));
    }

    /// Returns `true` if the module is asked for these positions.
    pub fn is_for(&self, kind: PositionKind) -> bool {
        self.kind.get() == Some(kind)
    }

    /// Adds a position, if the module is asked for these. Index 0 is the name of the command, and nothing is before it.
    pub fn add(&self, kind: PositionKind, index: i32, flags: u32) {
        if self.is_for(kind) && index > 0 {
            self.found.borrow_mut().push(Position {
                index: index as usize,
                flags,
            });
        }
    }

    /// Returns the positions that the module has named.
    pub fn take(&self) -> Vec<Position> {
        self.found.take()
    }
}
