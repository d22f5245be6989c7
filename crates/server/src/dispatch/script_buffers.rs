//! Memory that scripts use again, and what is held back of a script's commands.

use std::sync::Arc;

use weft_base::SlotIndex;
use weft_command_table::registry::Command;
use weft_reactor::Output;
use weft_scripting::ScriptRun;

use crate::commands::context::Binding;
use crate::keyspace::key_identity::PlannedKey;

/// The end of a script's command.
pub enum ScriptCallOutcome {
    /// It succeeded, after so many nanoseconds.
    Done(u64),
    /// It failed after so many nanoseconds. The bytes are the code of its error.
    Failed(u64, Vec<u8>),
    /// It did not run. The bytes are the code of its error.
    Rejected(Vec<u8>),
}

/// Memory that the runs of a thread use one after the other.
#[derive(Default)]
pub struct ScriptBuffers {
    /// The memory of the commands' replies.
    pub output: Output,
    /// The memory of the keys of a command.
    pub planned: Vec<PlannedKey>,
    /// The memory of the outcomes that are held back.
    pub pending_outcomes: Vec<(Option<&'static Command<Binding>>, ScriptCallOutcome)>,
    /// The memory of the sizes of replies that are held back.
    pub pending_slot_bytes: Vec<(SlotIndex, usize)>,
    /// The memory of the leases' indices.
    pub lease_indices: Vec<(SlotIndex, u32)>,
    /// The last run.
    pub ended_run: Option<Arc<ScriptRun>>,
}

/// The bytes of a reply's memory that are kept for the next run.
const MAX_KEPT_REPLY_BYTES: usize = 64 << 10;
/// The number of elements that are kept of any other memory.
const MAX_KEPT_ELEMENTS: usize = 1024;

impl ScriptBuffers {
    /// Frees what a large run has left.
    pub fn shrink(&mut self) {
        if self.output.bytes.capacity() > MAX_KEPT_REPLY_BYTES {
            self.output = Output::new();
        }
        self.output.clear();
        self.planned.clear();
        self.planned.shrink_to(MAX_KEPT_ELEMENTS);
        self.pending_outcomes.clear();
        self.pending_outcomes.shrink_to(MAX_KEPT_ELEMENTS);
        self.pending_slot_bytes.clear();
        self.pending_slot_bytes.shrink_to(MAX_KEPT_ELEMENTS);
    }
}
