//! The operations of waiting clients that a pause holds back.

use weft_base::clock::unix_ms;

use crate::clients_waiting::blocking::WaitQueueKind;
use crate::state::Server;

/// The operations of waiting clients that a pause holds back.
#[derive(Clone, Copy, Default)]
pub(super) struct PausedOperations {
    /// Those that only read.
    pub reads: bool,
    /// Those that write.
    pub writes: bool,
}

impl PausedOperations {
    /// Returns the operations that are held back now.
    pub(super) fn current(server: &Server) -> PausedOperations {
        let (pause, now_ms) = (&server.clients.pause, unix_ms());
        PausedOperations {
            reads: pause.is_paused(now_ms, false),
            writes: pause.are_writes_paused(now_ms),
        }
    }

    /// Returns `true` if the operations of a queue are held back.
    pub(super) fn includes(self, line: &WaitQueueKind) -> bool {
        match line {
            WaitQueueKind::Stream => self.reads,
            WaitQueueKind::List
            | WaitQueueKind::SortedSet
            | WaitQueueKind::StreamGroup(_)
            | WaitQueueKind::Module
            | WaitQueueKind::ModuleWithDeletion => self.writes,
        }
    }
}
