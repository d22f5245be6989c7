//! The allocator's own figures; memory is never counted by hand.

use tikv_jemalloc_ctl::{Access, AsName, epoch, stats};

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
}

/// All figures at once.
pub fn figures() -> Option<Figures> {
    epoch::advance().ok()?;
    Some(Figures {
        allocated: stats::allocated::read().ok()? as u64,
        active: stats::active::read().ok()? as u64,
        resident: stats::resident::read().ok()? as u64,
    })
}

/// Gives pages that the allocator keeps for later back to the operating system.
///
/// # Errors
/// The allocator's reason.
pub fn purge() -> Result<(), String> {
    let arenas = tikv_jemalloc_ctl::arenas::narenas::read().map_err(|error| error.to_string())?;
    for arena in 0..arenas {
        for kind in ["dirty", "muzzy"] {
            let name = format!("arena.{arena}.{kind}_decay_ms\0");
            let name = name.as_bytes().name();
            // To keep pages for no time at all gives back those that are kept now. Arenas that nobody used yet refuse.
            let kept: Result<isize, _> = name.update(0);
            if let Ok(decay_ms) = kept {
                name.write(decay_ms).map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

/// The allocator's own report.
pub fn report() -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to a vector cannot fail.
    let _ = tikv_jemalloc_ctl::stats_print::stats_print(&mut text, Default::default());
    text
}
