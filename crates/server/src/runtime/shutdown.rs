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

use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;

/// The way in which the process ends: the options of SHUTDOWN, and of `shutdown-on-sigint` and `-sigterm`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// Decides if a dump is written first.
    pub save: Save,
    /// Do not wait: neither for clients to take their replies nor for replicas.
    pub now: bool,
    /// Go on even if the dump cannot be written.
    pub force: bool,
    /// Refuse if ending could lose data that other servers rely on.
    pub safe: bool,
    /// Hand over to a replica first.
    pub failover: bool,
    /// The client that asked, as CLIENT LIST describes it; `None` for a signal.
    pub requested_by: Option<String>,
}

/// Decides if a shutdown writes a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Save {
    /// If save points are configured.
    #[default]
    IfConfigured,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Shutdown {
    /// The shutdown that a value of `shutdown-on-sigint` or `shutdown-on-sigterm` describes.
    pub fn from_options(options: i64) -> Shutdown {
        let has = |bit: i64| options & bit != 0;
        Shutdown {
            save: match (has(1), has(2)) {
                (true, _) => Save::Always,
                (false, true) => Save::Never,
                (false, false) => Save::IfConfigured,
            },
            now: has(4),
            force: has(8),
            safe: has(16),
            failover: has(32),
            requested_by: None,
        }
    }
}

/// The place where a request waits.
#[derive(Debug, Default)]
pub struct ShutdownRequest {
    state: Mutex<State>,
    /// Until when replicas are waited for, ms since the epoch; 0 when they are not.
    pub waits_until_ms: AtomicU64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    Signalled(Shutdown),
    Prepared {
        called_off: bool,
    },
    Waiting(Shutdown),
    UnderWay,
}

impl ShutdownRequest {
    /// Somebody begins to prepare the end, unless that is under way; whether this is so.
    pub fn try_begin(&self) -> bool {
        let mut state = self.state.lock();
        let begins = matches!(*state, State::None | State::Signalled(_));
        if begins {
            *state = State::Prepared { called_off: false };
        }
        begins
    }

    /// A signal asks for the end, unless that is under way.
    pub fn note_signal(&self, shutdown: Shutdown) {
        let mut state = self.state.lock();
        if matches!(*state, State::None) {
            *state = State::Signalled(shutdown);
        }
    }

    /// Takes the request of a signal that was not aborted.
    pub fn take_signalled(&self) -> Option<Shutdown> {
        let mut state = self.state.lock();
        match std::mem::take(&mut *state) {
            State::Signalled(shutdown) => Some(shutdown),
            before => {
                *state = before;
                None
            }
        }
    }

    /// Returns `true` if no shutdown is requested.
    pub fn is_idle(&self) -> bool {
        matches!(*self.state.lock(), State::None)
    }

    /// Returns `true` if a shutdown is being prepared or about to happen.
    pub fn is_wanted(&self) -> bool {
        !matches!(*self.state.lock(), State::None | State::Signalled(_))
    }

    /// Returns `true` if the shutdown under preparation was aborted.
    pub fn is_aborted(&self) -> bool {
        matches!(*self.state.lock(), State::Prepared { called_off: true })
    }

    /// Ends the preparation without a shutdown.
    pub fn cancel_preparation(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Prepared { .. }) {
            *state = State::None;
        }
    }

    /// Completes the preparation. Returns `true` if this request counts, which the first one does.
    pub fn try_complete(&self, shutdown: Shutdown) -> bool {
        let mut state = self.state.lock();
        if !matches!(
            *state,
            State::None | State::Signalled(_) | State::Prepared { called_off: false }
        ) {
            return false;
        }
        *state = State::Waiting(shutdown);
        true
    }

    /// Takes the request up: it cannot be called off any more.
    pub fn commit(&self) -> Option<Shutdown> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::UnderWay) {
            State::Waiting(shutdown) => Some(shutdown),
            before => {
                *state = before;
                None
            }
        }
    }

    /// Calls off what is being prepared; whether there was something.
    pub fn abort(&self) -> bool {
        let mut state = self.state.lock();
        match &mut *state {
            State::Prepared { called_off } => !std::mem::replace(called_off, true),
            State::Signalled(_) => {
                *state = State::None;
                true
            }
            State::None | State::Waiting(_) | State::UnderWay => false,
        }
    }
}

#[cfg(test)]
mod tests;
