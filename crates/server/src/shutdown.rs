//! How the process is asked to end, and asked not to.
//!
//! A request waits here until the coordinator takes it up, which is its next turn. From then on there is
//! no way back: without files to write and replicas to wait for, nothing can fail or take long.

use std::sync::Mutex;

use crate::observe::lock;

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
pub struct ShutdownRequest(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    Waiting(Shutdown),
    UnderWay,
}

impl ShutdownRequest {
    /// Puts a request, unless there is one already; whether it counts.
    pub fn put(&self, shutdown: Shutdown) -> bool {
        let mut state = lock(&self.0);
        if !matches!(*state, State::None) {
            return false;
        }
        *state = State::Waiting(shutdown);
        true
    }

    /// Takes the request up: it cannot be called off any more.
    pub fn take_up(&self) -> Option<Shutdown> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::UnderWay) {
            State::Waiting(shutdown) => Some(shutdown),
            before => {
                *state = before;
                None
            }
        }
    }

    /// Calls off a request that was not taken up yet; whether there was one.
    pub fn call_off(&self) -> bool {
        let mut state = lock(&self.0);
        let waiting = matches!(*state, State::Waiting(_));
        if waiting {
            *state = State::None;
        }
        waiting
    }
}

#[cfg(test)]
mod tests;
