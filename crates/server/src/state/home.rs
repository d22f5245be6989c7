//! Jobs for the home worker, the thread on which the code of modules runs.
//!
//! Modules may assume that one main thread calls them. Here this is the worker with index 0, which is always active.
//! A thread that has to call a module otherwise (for a timer, an event, a file that is loaded) sends the home worker a
//! job. It runs between two batches, in exclusive mode, with a session of the module API.
//!
//! 1. A thread that waits for its job is not inside the gate and holds no lease: the home worker needs exclusive mode.
//! 2. The home worker itself does not wait for a job. It runs what it has to run in place.
//! 3. A thread in exclusive mode does not send a job and wait, but lends its own session
//!    (`dispatch/modules/lending.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_base::{ParkId, SlotIndex, ThreadIndex};
use weft_modules::session::Session;
use weft_os::sync::mpsc::{RecvTimeoutError, sync_channel};
use weft_os::time::Instant;

use super::{BlockedClientEvent, Message, Server, UnservedKeys};
use crate::keyspace::effects::ExpiredKey;
use crate::keyspace::ready_keys::ReadyKey;
use crate::keyspace::removed_keys::RemovedKey;

/// The worker on which the code of modules runs.
pub const HOME_WORKER: ThreadIndex = ThreadIndex::new(0);

/// The interval at which a thread that waits for its job checks if the home worker has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The home worker, in exclusive mode, as a job sees it.
pub trait HomeThread {
    /// Calls `run` with a session. What is done with it is one unit of the propagation log.
    fn with_session(&mut self, run: &mut dyn FnMut(&mut dyn Session));
    /// Serves the calls of modules that wait for these keys.
    fn serve_module_calls(&mut self, keys: VecDeque<ReadyKey>);
    /// Ends a blocked call of a module with this reply; `None` if its time is over.
    fn end_module_call(&mut self, park_id: ParkId, reply: Option<Vec<u8>>);
    /// Lets modules look at keys that were removed.
    fn deliver_removed_keys(&mut self, keys: Vec<RemovedKey>);
    /// Handles what has happened to a client that a module has blocked.
    fn handle_blocked_client(&mut self, event: BlockedClientEvent);
    /// Calls the functions of the timers of modules that are due.
    fn run_due_timers(&mut self);
    /// Deletes keys that readers have found expired, and lets modules have the events.
    fn delete_found_expired(&mut self, keys: Vec<ExpiredKey>);
    /// Deletes expired keys of the slots that are due, for as long as a slice of expiry lasts, and lets modules have
    /// the events.
    fn expire_due_keys(&mut self);
    /// Evicts keys while memory is above the limit, and lets modules have the events.
    fn evict_keys(&mut self);
    /// Deletes the keys of a slot that another node owns, each in a unit of its own, and lets modules have the events.
    /// Returns the number of deleted keys, and `true` unless the time ended before.
    fn delete_keys_of_slot(&mut self, slot: SlotIndex, until: Instant) -> (u64, bool);
    /// Serves the clients that wait for keys, and lets modules have the events.
    fn serve_waiters(&mut self, keys: UnservedKeys);
}

/// A job for the home worker.
pub type HomeJob = Box<dyn FnOnce(&mut dyn HomeThread) + Send>;

impl Server {
    /// Returns `true` if `thread` is the one on which the code of modules runs.
    #[inline]
    pub fn is_home(&self, thread: ThreadIndex) -> bool {
        thread == HOME_WORKER
    }

    /// Sends a job to the home worker. It does not run if the server ends before.
    pub fn run_at_home(&self, job: HomeJob) {
        self.worker(HOME_WORKER).send(Message::RunAtHome(job));
    }

    /// Calls `run` with a session on the home worker.
    pub fn run_session_at_home(&self, run: impl FnOnce(&mut dyn Session) + Send + 'static) {
        let mut run = Some(run);
        self.run_at_home(Box::new(move |home| {
            home.with_session(&mut |session| {
                if let Some(run) = run.take() {
                    run(session);
                }
            });
        }));
    }

    /// Runs a job on the home worker and waits for its result. Returns `None` if the server ends before.
    ///
    /// The caller is not the home worker, is not inside the gate, and holds no lease.
    pub fn run_at_home_and_wait<R: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&mut dyn HomeThread) -> R + Send + 'static,
    ) -> Option<R> {
        let (sender, result) = sync_channel(1);
        self.run_at_home(Box::new(move |home| {
            // The requester waits until the server ends.
            let _ = sender.send(job(home));
        }));
        loop {
            match result.recv_timeout(POLL_INTERVAL) {
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.worker(HOME_WORKER).has_ended() => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Calls `run` with a session on the home worker, and waits for its result. As [`Self::run_at_home_and_wait`].
    pub fn run_session_at_home_and_wait<R: Send + 'static>(
        self: &Arc<Self>,
        run: impl FnOnce(&mut dyn Session) -> R + Send + 'static,
    ) -> Option<R> {
        self.run_at_home_and_wait(move |home| {
            let (mut run, mut result) = (Some(run), None);
            home.with_session(&mut |session| result = run.take().map(|run| run(session)));
            result
        })
        .flatten()
    }
}
