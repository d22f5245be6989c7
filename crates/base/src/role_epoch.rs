//! Epochs of the replication role.

use std::fmt;

/// The number of times that this process has changed the primary that it follows, or has stopped following one. Work on
/// behalf of an older epoch has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct RoleEpoch(u64);

impl RoleEpoch {
    /// Creates the epoch with this number.
    pub const fn new(number: u64) -> RoleEpoch {
        RoleEpoch(number)
    }

    /// Returns the number of the epoch.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RoleEpoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
