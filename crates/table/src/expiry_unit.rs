//! The unit of the expiry index: 256 ms, counted from 2020.

/// The bound of entries that do not expire.
pub(crate) const NEVER: u32 = u32::MAX;

const UNIT_SHIFT: u32 = 8;
/// 2020-01-01 in milliseconds since the Unix epoch.
pub(crate) const ORIGIN_MS: u64 = 1_577_836_800_000;

/// Returns the unit that contains a time. Times beyond the range are due early and then examined again.
pub(crate) fn unit_of(time_ms: u64) -> u32 {
    let units = time_ms.saturating_sub(ORIGIN_MS) >> UNIT_SHIFT;
    units.min(u64::from(NEVER - 1)) as u32
}

/// Returns the first millisecond of a unit; the first unit also contains all earlier times.
pub(crate) fn start_of_ms(unit: u32) -> u64 {
    match unit {
        0 => 0,
        unit => (u64::from(unit) << UNIT_SHIFT) + ORIGIN_MS,
    }
}
