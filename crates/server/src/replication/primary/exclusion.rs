//! Exclusive mode for the thread that serves replicas, which never waits for a script: while one runs, the thread
//! continues to send the stream, and tries again.

use std::time::Duration;

use crate::state::Server;
use weft_os::time::Instant;
use weft_scripting::Requester;

/// The interval between two attempts. An attempt that has failed keeps further scripts from starting for longer than
/// that ([`weft_scripting::RunRegistry::try_exclude_runs`]).
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The attempts to exclude scripts for one purpose.
pub(super) struct ExclusionAttempts {
    requester: Requester,
    /// The time of the next attempt, if the last one has failed.
    retry_at: Option<Instant>,
}

impl ExclusionAttempts {
    pub(super) fn new(server: &Server) -> ExclusionAttempts {
        ExclusionAttempts {
            requester: server.scripting.running.new_requester(),
            retry_at: None,
        }
    }

    /// Excludes scripts, without waiting for those that run. Returns `false` if there is one, if it is too early for
    /// the next attempt, or if scripts have been stopped because the process ends. The caller ends an exclusion with
    /// `RunRegistry::end_exclusion`. After a failure it calls this again in its next turns, or [`Self::give_up`].
    pub(super) fn try_exclude(&mut self, server: &Server) -> bool {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        let running = &server.scripting.running;
        let mut is_excluded = running.try_exclude_runs(self.requester);
        if is_excluded && running.is_shutting_down() {
            running.end_exclusion();
            is_excluded = false;
        }
        self.retry_at = (!is_excluded).then(|| Instant::now() + RETRY_INTERVAL);
        is_excluded
    }

    /// Ends the attempts: scripts may start again.
    pub(super) fn give_up(&mut self, server: &Server) {
        if self.retry_at.take().is_some() {
            server.scripting.running.withdraw(self.requester);
        }
    }

    /// Returns `true` if an attempt has failed, and the next one is to be made.
    pub(super) fn is_pending(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Returns the time until the next attempt, if there is to be one.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(Instant::now()))
    }
}
