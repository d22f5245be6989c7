//! Requests for shutdown, and their abortion.
//!
//! ```text
//!   None ─ try_begin ─▶ Prepared: replicas catch up, a dump is written ─ try_complete ─▶ Waiting ─▶ UnderWay
//!    ▲                      │ aborted, or a step fails                                  coordinator
//!    └ cancel_preparation ◀─┘
//! ```
//!
//! A shutdown can be aborted while it is prepared, and not afterwards. A signal that arrives while periodic tasks are
//! stopped (DEBUG PAUSE-CRON) waits for them, and can be aborted as well.

use std::time::Duration;

use weft_os::atomic::AtomicU64;
use weft_os::sync::Mutex;

/// The options of a shutdown: those of SHUTDOWN, and of `shutdown-on-sigint` and `shutdown-on-sigterm`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownOptions {
    /// Decides if a dump is written first.
    pub save: SavePolicy,
    /// Do not wait, neither for clients to receive their replies nor for replicas.
    pub is_immediate: bool,
    /// Continue even if the dump cannot be written.
    pub is_forced: bool,
    /// Refuse if ending the process could lose data that other servers rely on.
    pub is_safe: bool,
    /// Hand over to a replica first.
    pub requests_failover: bool,
    /// The process ends with status 1, because this server cannot go on.
    pub is_failure: bool,
    /// Start the program again in the same process afterwards, once so much time has passed.
    pub restart_after: Option<Duration>,
    /// The client that requested it, as CLIENT LIST describes it; `None` for a signal.
    pub requested_by: Option<String>,
}

/// Decides if a shutdown writes a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SavePolicy {
    /// If save points are configured.
    #[default]
    IfConfigured,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl ShutdownOptions {
    /// Returns the options that a value of `shutdown-on-sigint` or `shutdown-on-sigterm` describes.
    pub fn from_options(options: i64) -> ShutdownOptions {
        let has = |bit: i64| options & bit != 0;
        ShutdownOptions {
            save: match (has(1), has(2)) {
                (true, _) => SavePolicy::Always,
                (false, true) => SavePolicy::Never,
                (false, false) => SavePolicy::IfConfigured,
            },
            is_immediate: has(4),
            is_forced: has(8),
            is_safe: has(16),
            requests_failover: has(32),
            is_failure: false,
            restart_after: None,
            requested_by: None,
        }
    }

    /// Returns the options of a shutdown that a signal requests while data is loaded. Nothing is saved then, and the
    /// configured options do not count, as in Valkey (`whileBlockedCron`).
    pub fn while_loading() -> ShutdownOptions {
        ShutdownOptions {
            save: SavePolicy::Never,
            ..ShutdownOptions::default()
        }
    }
}

/// The pending request for a shutdown.
#[derive(Debug, Default)]
pub struct ShutdownRequest {
    state: Mutex<ShutdownState>,
    /// The end of the wait for replicas, in milliseconds since the Unix epoch; 0 without such a wait.
    pub replica_deadline_ms: AtomicU64,
}

#[derive(Debug, Default)]
enum ShutdownState {
    #[default]
    None,
    Signalled(ShutdownOptions),
    Prepared {
        is_aborted: bool,
        /// `true` if a later request wants no dump (SHUTDOWN NOSAVE).
        forgoes_dump: bool,
    },
    Waiting(ShutdownOptions),
    Committed,
}

impl ShutdownRequest {
    /// Begins the preparation of a shutdown. Returns `false` if one is being prepared already.
    pub fn try_begin(&self) -> bool {
        let mut state = self.state.lock();
        let begins = matches!(*state, ShutdownState::None | ShutdownState::Signalled(_));
        if begins {
            *state = ShutdownState::Prepared {
                is_aborted: false,
                forgoes_dump: false,
            };
        }
        begins
    }

    /// Records that the shutdown under preparation writes no dump if that has not begun yet: a later request wants
    /// none.
    pub fn forgo_dump(&self) {
        if let ShutdownState::Prepared { forgoes_dump, .. } = &mut *self.state.lock() {
            *forgoes_dump = true;
        }
    }

    /// Returns `true` if the shutdown under preparation writes no dump, because a later request wants none.
    pub fn forgoes_dump(&self) -> bool {
        matches!(*self.state.lock(), ShutdownState::Prepared { forgoes_dump: true, .. })
    }

    /// Records a signal's request for shutdown, unless a shutdown is in progress.
    pub fn record_signal(&self, shutdown: ShutdownOptions) {
        let mut state = self.state.lock();
        if matches!(*state, ShutdownState::None) {
            *state = ShutdownState::Signalled(shutdown);
        }
    }

    /// Takes the request of a signal, if it was not aborted.
    pub fn take_signalled(&self) -> Option<ShutdownOptions> {
        let mut state = self.state.lock();
        match std::mem::take(&mut *state) {
            ShutdownState::Signalled(shutdown) => Some(shutdown),
            before => {
                *state = before;
                None
            }
        }
    }

    /// Returns `true` if no shutdown is requested.
    pub fn is_idle(&self) -> bool {
        matches!(*self.state.lock(), ShutdownState::None)
    }

    /// Returns `true` if a shutdown is being prepared or about to happen.
    pub fn is_in_progress(&self) -> bool {
        !matches!(*self.state.lock(), ShutdownState::None | ShutdownState::Signalled(_))
    }

    /// Returns `true` if the shutdown under preparation was aborted.
    pub fn is_aborted(&self) -> bool {
        matches!(*self.state.lock(), ShutdownState::Prepared { is_aborted: true, .. })
    }

    /// Ends the preparation without a shutdown.
    pub fn cancel_preparation(&self) {
        let mut state = self.state.lock();
        if matches!(*state, ShutdownState::Prepared { .. }) {
            *state = ShutdownState::None;
        }
    }

    /// Completes the preparation. Returns `true` if this request counts, which the first one does, and one because of a
    /// failure.
    pub fn try_complete(&self, shutdown: ShutdownOptions) -> bool {
        let mut state = self.state.lock();
        let counts = match *state {
            ShutdownState::None | ShutdownState::Signalled(_) | ShutdownState::Prepared { is_aborted: false, .. } => {
                true
            }
            ShutdownState::Prepared { is_aborted: true, .. } | ShutdownState::Waiting(_) => shutdown.is_failure,
            ShutdownState::Committed => false,
        };
        if !counts {
            return false;
        }
        *state = ShutdownState::Waiting(shutdown);
        true
    }

    /// Takes the completed request, which cannot be aborted any more.
    pub fn commit(&self) -> Option<ShutdownOptions> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, ShutdownState::Committed) {
            ShutdownState::Waiting(shutdown) => Some(shutdown),
            before => {
                *state = before;
                None
            }
        }
    }

    /// Aborts the shutdown that is being prepared. Returns `true` if there was one.
    pub fn abort(&self) -> bool {
        let mut state = self.state.lock();
        match &mut *state {
            ShutdownState::Prepared {
                is_aborted: called_off, ..
            } => !std::mem::replace(called_off, true),
            ShutdownState::Signalled(_) => {
                *state = ShutdownState::None;
                true
            }
            ShutdownState::None | ShutdownState::Waiting(_) | ShutdownState::Committed => false,
        }
    }
}

#[cfg(test)]
mod tests;
