//! The reasons for which all commands of clients run on the home worker, in exclusive mode, although they are not
//! commands of modules: the code of some module has a part in each command.
//!
//! Modules change the reasons in exclusive mode only, so they are the same for a whole passage of the gate. A thread
//! reads them once per passage.

use weft_os::atomic::{AtomicU32, Ordering};

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HomeReason {
    /// A module changes the words of commands.
    CommandFilters = 1,
    /// A module hears how commands end.
    CommandResults = 1 << 1,
    /// A module looks at keys before they are removed.
    RemovedKeys = 1 << 2,
}

static REASONS: AtomicU32 = AtomicU32::new(0);

/// Begins or ends a reason. The caller holds exclusive mode, or there are no clients yet.
pub fn set(reason: HomeReason, is_on: bool) {
    match is_on {
        true => REASONS.fetch_or(reason as u32, Ordering::AcqRel),
        false => REASONS.fetch_and(!(reason as u32), Ordering::AcqRel),
    };
}

/// Returns `true` if there is a reason.
#[inline]
pub fn are_required() -> bool {
    REASONS.load(Ordering::Relaxed) != 0
}

/// Returns `true` if there is this reason.
pub fn are_required_for(reason: HomeReason) -> bool {
    REASONS.load(Ordering::Relaxed) & reason as u32 != 0
}
