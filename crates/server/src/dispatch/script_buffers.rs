//! Memory that scripts use again, and what is held back of a script's commands.

use std::sync::Arc;
use std::time::Duration;

use weft_acl::Login;
use weft_base::SlotIndex;
use weft_command_table::registry::Command;
use weft_os::time::Instant;
use weft_reactor::Output;
use weft_scripting::ScriptRun;

use crate::commands::context::Binding;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::Client;

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
    /// The client of the last script.
    pub client: Option<Box<Client>>,
    /// A login above all users, for the calls of modules.
    pub superuser: Option<Login>,
    /// The memory of the commands' replies.
    pub output: Output,
    /// The memory of the keys of a command.
    pub planned: Vec<PlannedKey>,
    /// The memory of the outcomes that are held back.
    pub pending_outcomes: Vec<(Option<&'static Command<Binding>>, ScriptCallOutcome)>,
    /// The memory of the sizes of replies that are held back.
    pub pending_slot_bytes: Vec<(SlotIndex, usize)>,
    /// The last run.
    pub ended_run: Option<Arc<ScriptRun>>,
    /// The clock for the starts of runs.
    pub clock: TickClock,
}

/// A monotonic clock that mostly reads the processor's counter only. The system's clock takes several times as long as
/// that.
#[derive(Clone, Copy, Default)]
pub struct TickClock {
    /// The last reading of the system's clock, and the timer's ticks at that time.
    read_at: Option<(Instant, u64)>,
}

/// The time after which a [`TickClock`] reads the system's clock again, in nanoseconds.
const SYSTEM_CLOCK_INTERVAL_NS: u64 = 1_000_000;

impl TickClock {
    /// Returns the time, which is `ticks` on `timer`.
    pub fn at(&mut self, timer: &quanta::Clock, ticks: u64) -> Instant {
        // The timer of a simulation stands still.
        if !cfg!(feature = "simulated")
            && let Some((time, read_ticks)) = self.read_at
        {
            let since = timer.delta_as_nanos(read_ticks, ticks);
            if since < SYSTEM_CLOCK_INTERVAL_NS {
                return time + Duration::from_nanos(since);
            }
        }
        let now = Instant::now();
        self.read_at = Some((now, ticks));
        now
    }
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
