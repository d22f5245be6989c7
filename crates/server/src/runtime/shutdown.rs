//! How the process is asked to end, and asked not to.
//!
//! ```text
//!   None ── begin ──▶ Prepared: replicas catch up, a dump is written ── put ──▶ Waiting ── the coordinator ──▶ UnderWay
//!    ▲                    │ called off, or something fails
//!    └──── give_up ◀──────┘
//! ```
//!
//! While it is prepared it can be called off. Then there is no way back. A signal that comes while nothing happens by itself
//! (DEBUG PAUSE-CRON) waits until then, and can be called off as well.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use crate::observability::lock;

/// How the process shall end: the options of SHUTDOWN, and of `shutdown-on-sigint` and `-sigterm`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether a dump is written first.
    pub save: Save,
    /// Do not wait: neither for clients to take their replies nor for replicas.
    pub now: bool,
    /// Go on even if the dump cannot be written.
    pub force: bool,
    /// Refuse where ending could lose what others rely on.
    pub safe: bool,
    /// Hand over to a replica first.
    pub failover: bool,
    /// The client that asked, as CLIENT LIST describes it; `None` for a signal.
    pub requested_by: Option<String>,
}

/// Whether a shutdown writes a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Save {
    /// If save points are configured.
    #[default]
    IfConfigured,
    /// In any case.
    Always,
    /// In no case.
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
        let mut state = lock(&self.state);
        let begins = matches!(*state, State::None | State::Signalled(_));
        if begins {
            *state = State::Prepared { called_off: false };
        }
        begins
    }

    /// A signal asks for the end, unless that is under way.
    pub fn note_signal(&self, shutdown: Shutdown) {
        let mut state = lock(&self.state);
        if matches!(*state, State::None) {
            *state = State::Signalled(shutdown);
        }
    }

    /// What a signal has asked for and nobody has called off.
    pub fn take_signalled(&self) -> Option<Shutdown> {
        let mut state = lock(&self.state);
        match std::mem::take(&mut *state) {
            State::Signalled(shutdown) => Some(shutdown),
            before => {
                *state = before;
                None
            }
        }
    }

    /// Whether nobody asks for the end.
    pub fn is_idle(&self) -> bool {
        matches!(*lock(&self.state), State::None)
    }

    /// Whether the end is prepared, or comes.
    pub fn is_wanted(&self) -> bool {
        !matches!(*lock(&self.state), State::None | State::Signalled(_))
    }

    /// Whether what is prepared was called off.
    pub fn is_aborted(&self) -> bool {
        matches!(*lock(&self.state), State::Prepared { called_off: true })
    }

    /// What was prepared does not come.
    pub fn cancel_preparation(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Prepared { .. }) {
            *state = State::None;
        }
    }

    /// Everything is prepared, or nothing has to be; whether this request counts: the first one does.
    pub fn try_complete(&self, shutdown: Shutdown) -> bool {
        let mut state = lock(&self.state);
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
        let mut state = lock(&self.state);
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
        let mut state = lock(&self.state);
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
