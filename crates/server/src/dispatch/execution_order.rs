//! Records the order in which commands take effect. Only a simulation does so: its checker tries this order first.
//!
//! Each record is made under the leases of its command. So the records of two commands that access the same key are in
//! the order of their effects. Nothing depends on the records: the checker judges by the replies of the clients alone.

use weft_base::ClientId;

use crate::net::client::Client;
use crate::state::NextStep;

#[cfg(feature = "simulated")]
pub use recording::{Execution, ExecutionStage, executions, request_digest};

/// Records that a handler has returned with `next_step`. `words` are the command and its arguments.
#[inline]
pub(super) fn note_call<'a>(client: &Client, next_step: &NextStep, words: impl Iterator<Item = &'a [u8]>) {
    #[cfg(feature = "simulated")]
    recording::add_call(client, next_step, words);
    #[cfg(not(feature = "simulated"))]
    let _ = (client, next_step, words);
}

/// Records that a script has ended. `words` are the command that ran it and its arguments.
#[inline]
pub(super) fn note_script<'a>(client: &Client, words: impl Iterator<Item = &'a [u8]>) {
    note_call(client, &NextStep::Reply, words);
}

/// Records that a client which waited for keys was served.
#[inline]
pub(super) fn note_served(client: ClientId) {
    #[cfg(feature = "simulated")]
    recording::add(client, ExecutionStage::Served);
    #[cfg(not(feature = "simulated"))]
    let _ = client;
}

#[cfg(feature = "simulated")]
mod recording {
    //! The records of all servers of the process.

    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::sync::{Mutex, PoisonError};

    use weft_base::ClientId;
    use weft_os::scheduler;

    use crate::net::client::{Client, ClientFlags};
    use crate::state::NextStep;

    /// The number of records that are kept. A usual run makes some hundred. The memory for all of them is allocated at
    /// once, so that what the server counts does not grow with each command.
    const MAX_RECORDS: usize = 1 << 16;

    /// A lock of the standard library is no scheduling point: recording does not change the course of a run.
    static RECORDS: Mutex<Vec<Execution>> = Mutex::new(Vec::new());

    /// A record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Execution {
        /// The number of the client. Each server has its own numbers.
        pub client: u64,
        /// The step of the scheduler.
        pub step: u64,
        /// What has happened.
        pub stage: ExecutionStage,
    }

    /// What has happened to a command.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ExecutionStage {
        /// The command with this [`request_digest`] has run.
        Ran(u64),
        /// The command with this digest waits for keys.
        Waits(u64),
        /// The client's command that waited for keys was served.
        Served,
    }

    /// Returns a number that two requests share only if they have the same words, most likely.
    pub fn request_digest<'a>(words: impl Iterator<Item = &'a [u8]>) -> u64 {
        let mut hasher = DefaultHasher::new();
        for word in words {
            word.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Returns the first records of the process, in order.
    pub fn executions() -> Vec<Execution> {
        RECORDS.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add_call<'a>(client: &Client, next_step: &NextStep, words: impl Iterator<Item = &'a [u8]>) {
        // These have run before, elsewhere.
        if client.flags.intersects(ClientFlags::REPLAYING) {
            return;
        }
        match next_step {
            NextStep::Block(_) => add(client.id, ExecutionStage::Waits(request_digest(words))),
            other if other.is_unfinished() => {}
            _ => add(client.id, ExecutionStage::Ran(request_digest(words))),
        }
    }

    pub(super) fn add(client: ClientId, stage: ExecutionStage) {
        if !scheduler::is_simulated() {
            return;
        }
        let step = scheduler::figures().steps;
        let mut records = RECORDS.lock().unwrap_or_else(PoisonError::into_inner);
        if records.capacity() == 0 {
            records.reserve_exact(MAX_RECORDS);
        }
        if records.len() < MAX_RECORDS {
            records.push(Execution {
                client: client.get(),
                step,
                stage,
            });
        }
    }
}
