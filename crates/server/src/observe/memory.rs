//! The allocator's own figures; memory is never counted by hand.

use tikv_jemalloc_ctl::{epoch, stats};

/// Bytes that the program asked for, by the allocator's count.
pub fn allocated() -> Option<u64> {
    epoch::advance().ok()?;
    stats::allocated::read().ok().map(|bytes| bytes as u64)
}

/// Figures of the allocator, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Asked for by the program.
    pub allocated: u64,
    /// In pages that hold such bytes.
    pub active: u64,
    /// Mapped and in memory.
    pub resident: u64,
    /// Kept back from the operating system.
    pub retained: u64,
}

/// All figures at once.
pub fn figures() -> Option<Figures> {
    epoch::advance().ok()?;
    Some(Figures {
        allocated: stats::allocated::read().ok()? as u64,
        active: stats::active::read().ok()? as u64,
        resident: stats::resident::read().ok()? as u64,
        retained: stats::retained::read().ok()? as u64,
    })
}
