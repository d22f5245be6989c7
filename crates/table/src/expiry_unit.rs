//! The unit of the expiry index: 256 ms, counted from 2020.

/// The bound of what does not expire.
pub(crate) const NEVER: u32 = u32::MAX;

const UNIT_SHIFT: u32 = 8;
/// 2020-01-01 in ms since the Unix epoch.
pub(crate) const ORIGIN_MS: u64 = 1_577_836_800_000;

/// The unit in which a time lies; times too far ahead are due early and looked at again.
pub(crate) fn unit_of(time_ms: u64) -> u32 {
    let units = time_ms.saturating_sub(ORIGIN_MS) >> UNIT_SHIFT;
    units.min(u64::from(NEVER - 1)) as u32
}

/// The first ms of a unit; the first unit also holds all earlier times.
pub(crate) fn start_of_ms(unit: u32) -> u64 {
    match unit {
        0 => 0,
        unit => (u64::from(unit) << UNIT_SHIFT) + ORIGIN_MS,
    }
}
