//! Times that clients give: units, overflow, and what they mean in milliseconds since the epoch.

use weft_resp::number::parse_i64;

use super::error::CommandError;

/// How an amount of time is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryUnit {
    /// Seconds from now (`EX`).
    Seconds,
    /// Milliseconds from now (`PX`).
    Milliseconds,
    /// Seconds since the epoch (`EXAT`).
    UnixSeconds,
    /// Milliseconds since the epoch (`PXAT`).
    UnixMilliseconds,
}

impl ExpiryUnit {
    /// The unit that an option of SET names.
    pub fn of_option(option: &[u8]) -> Option<Self> {
        let units = [
            ("EX", ExpiryUnit::Seconds),
            ("PX", ExpiryUnit::Milliseconds),
            ("EXAT", ExpiryUnit::UnixSeconds),
            ("PXAT", ExpiryUnit::UnixMilliseconds),
        ];
        units
            .into_iter()
            .find(|(name, _)| option.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, unit)| unit)
    }

    fn in_seconds(self) -> bool {
        matches!(self, ExpiryUnit::Seconds | ExpiryUnit::UnixSeconds)
    }

    fn relative(self) -> bool {
        matches!(self, ExpiryUnit::Seconds | ExpiryUnit::Milliseconds)
    }
}

/// The time that a positive amount means, in ms since the epoch.
///
/// # Errors
/// When the amount is no integer, not positive, or too large for a 64-bit time.
pub fn absolute_ms(amount: &[u8], unit: ExpiryUnit, now_ms: u64, command: &str) -> Result<u64, CommandError> {
    let amount = parse_i64(amount).ok_or(CommandError::NOT_AN_INTEGER)?;
    let invalid = || CommandError::text(format!("ERR invalid expire time in '{command}' command"));
    if amount <= 0 {
        return Err(invalid());
    }
    let ms = if unit.in_seconds() {
        amount.checked_mul(1000).ok_or_else(invalid)?
    } else {
        amount
    };
    let at = if unit.relative() {
        ms.checked_add(now_ms as i64).ok_or_else(invalid)?
    } else {
        ms
    };
    Ok(at as u64)
}
