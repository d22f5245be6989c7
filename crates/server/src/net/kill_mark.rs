//! The state that a client and its command on another thread share because of CLIENT KILL.
//!
//! After the reply to CLIENT KILL no command of the killed client takes effect. A command that holds the leases of all
//! that it changes may still take effect: other clients wait for these leases before they read it. A script may lease
//! more slots as it goes on. So:
//!
//! 1. A script does not go on after it has leased one more slot if the client was killed by then, unless what it has
//!    written lasts.
//! 2. From the moment on from which what it writes lasts, it cannot be stopped. Then the reply to CLIENT KILL waits for
//!    its end.
//! 3. A transaction with scripts cannot be stopped from its first command on.
//! 4. MIGRATE and CLUSTER SETSLOT wait for other servers, and the reply to CLIENT KILL does not wait for them. One that
//!    has begun takes effect later: the target has the keys, or the replicas have executed the change. The parts of a
//!    transaction that other threads do after its leases (MIGRATE, SAVE) are done in any case, even those that have not
//!    begun when the reply to CLIENT KILL or ACL DELUSER is sent: a transaction is atomic, and it has begun.
//! 5. The reply to CLIENT KILL does not wait for work that only reads, nor for the code of libraries (FUNCTION LOAD,
//!    FUNCTION RESTORE), which takes as long as a client wants. The libraries are not added once the client is killed.
//! 6. FLUSHALL has taken effect before its work on another thread, which frees the data and replaces the dump. That is
//!    done, and the reply to CLIENT KILL does not wait for it.

use weft_os::atomic::{AtomicU8, Ordering};

/// Set once the client is killed.
const KILLED: u8 = 1;
/// Set while a command runs that cannot be stopped any more.
const LASTING: u8 = 2;

/// The mark that a client shares with its commands on other threads.
#[derive(Debug, Default)]
pub struct KillMark(AtomicU8);

impl KillMark {
    /// Records that the client is killed.
    pub fn kill(&self) {
        self.0.fetch_or(KILLED, Ordering::AcqRel);
    }

    /// Returns `true` if the client was killed.
    pub fn is_killed(&self) -> bool {
        self.0.load(Ordering::Acquire) & KILLED != 0
    }

    /// Records that a command of the client cannot be stopped any more. Returns `false` if the client was killed: the
    /// command must stop.
    #[must_use]
    pub fn try_begin_lasting(&self) -> bool {
        let begun = self.0.compare_exchange(0, LASTING, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    /// Records the end of a command, and of all its effects.
    pub fn end_lasting(&self) {
        self.0.fetch_and(!LASTING, Ordering::AcqRel);
    }

    /// Returns `true` if a command runs that cannot be stopped. After [`Self::kill`] none begins.
    pub fn is_lasting(&self) -> bool {
        self.0.load(Ordering::Acquire) & LASTING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_a_killed_client_does_not_begin_to_last() {
        let mark = KillMark::default();
        assert!(mark.try_begin_lasting());
        mark.kill();
        assert!(mark.is_lasting(), "it goes on until its end");
        mark.end_lasting();
        assert!(!mark.is_lasting() && mark.is_killed());
        assert!(!mark.try_begin_lasting());
    }
}
