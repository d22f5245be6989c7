//! The work of background threads, and its outcome.

use std::sync::Arc;
use std::time::Duration;

use weft_base::{LogSequence, ThreadIndex};

use super::Server;
use crate::keyspace::Seat;

/// Work on a background thread.
pub struct BackgroundWork {
    /// Does the work.
    pub run: BackgroundRun,
    /// `true` if the work waits for another server. It has threads of its own, so that no other work waits with it.
    pub waits_for_server: bool,
    /// `true` if CLIENT KILL waits for the end of this part of the work once it has begun, because it may take effect.
    pub delays_kill: bool,
    /// Checks the client's permission again when the work begins. `None` in a transaction, whose EXEC has checked it,
    /// and for work that completes an effect.
    pub permission: Option<PermissionCheck>,
    /// `true` if the command has taken effect already, and the work completes it. It is done even if the client is
    /// killed meanwhile.
    pub completes_effect: bool,
}

impl BackgroundWork {
    /// Does the work on this thread, which waits while a pause holds it back. Returns the reply.
    pub fn run_to_end(self, server: &Arc<Server>, seat: &mut Seat) -> Vec<u8> {
        let mut run = self.run;
        loop {
            match run(server, seat) {
                BackgroundStep::Reply { bytes, .. } => return bytes,
                BackgroundStep::Continue(rest) | BackgroundStep::TakeEffect(rest) => run = rest,
                BackgroundStep::AwaitResumption(_, rest) => {
                    run = rest;
                    weft_os::thread::sleep(PAUSE_POLL_INTERVAL);
                }
            }
        }
    }
}

/// The interval between two attempts of a thread that waits for the end of a pause.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Work on a background thread, or a part of it.
pub type BackgroundRun = Box<dyn FnOnce(&Arc<Server>, &mut Seat) -> BackgroundStep + Send>;

/// The outcome of work on a background thread.
pub enum BackgroundStep {
    /// The work is done.
    Reply {
        /// The reply.
        bytes: Vec<u8>,
        /// The position in the propagation log of the first write that the work has made. None if it has written
        /// nothing, or if writes are not logged. The reply is withheld in the same cases as that to a write of a
        /// worker.
        first_write: LogSequence,
    },
    /// A part of the work is done. The rest comes after the other work in the queue, so that work which takes long does
    /// not keep a thread to itself. It is not done if the client is killed by then, unless it completes an effect.
    Continue(BackgroundRun),
    /// What the work has done so far has no effect. The rest takes effect, and is done at once, unless the client is
    /// killed by then.
    TakeEffect(BackgroundRun),
    /// A pause holds the work back. It continues once [`super::Pause::resumptions`] is not this number any more.
    AwaitResumption(u64, BackgroundRun),
}

impl BackgroundStep {
    /// Returns the outcome of work that has written nothing, with its reply.
    pub fn reply(bytes: Vec<u8>) -> Self {
        BackgroundStep::Reply {
            bytes,
            first_write: LogSequence::NONE,
        }
    }
}

/// Checks if a client may still run its command, for a thread with this index. Most commands depend only on the user.
pub type PermissionCheck = Box<dyn FnMut(&Arc<Server>, ThreadIndex) -> Result<(), PermissionLoss> + Send>;

/// The reason for which a command that has waited does not begin.
pub enum PermissionLoss {
    /// The user may not run the command any more, or the server refuses it now; this is the reply.
    Denied(Vec<u8>),
    /// The client was killed, or its user was deleted: it is about to be closed.
    ClientEnds,
}

/// A job for the background threads. It gets a thread seat of its own.
pub type BackgroundJob = Box<dyn FnOnce(&Arc<Server>, &mut Seat) + Send>;
