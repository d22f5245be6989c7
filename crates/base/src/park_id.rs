//! Ids of parked connections.

use std::fmt;

/// The number under which a connection is parked, from 1 on. Every parking of a connection gets a number of its own, so
/// mail for an earlier one has no effect. Numbers ascend in the order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ParkId(u64);

impl ParkId {
    /// No connection is parked. Every number of a parked connection is greater.
    pub const NONE: ParkId = ParkId(0);

    /// Creates the id with this number, or [`ParkId::NONE`] for 0.
    pub const fn new(number: u64) -> ParkId {
        ParkId(number)
    }

    /// Returns the number; 0 if no connection is parked.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ParkId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
