//! Times as arguments: units, overflow, and conversion to milliseconds since the Unix epoch.

use weft_resp::number::parse_i64;

use crate::commands::error::CommandError;

/// The unit and the reference of an expiry argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryUnit {
    /// Seconds from now (`EX`).
    Seconds,
    /// Milliseconds from now (`PX`).
    Milliseconds,
    /// Seconds since the Unix epoch (`EXAT`).
    UnixSeconds,
    /// Milliseconds since the Unix epoch (`PXAT`).
    UnixMilliseconds,
}

impl ExpiryUnit {
    /// Returns the unit of an option of SET.
    pub fn from_option(option: &[u8]) -> Option<Self> {
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

    fn is_in_seconds(self) -> bool {
        matches!(self, ExpiryUnit::Seconds | ExpiryUnit::UnixSeconds)
    }

    fn is_relative(self) -> bool {
        matches!(self, ExpiryUnit::Seconds | ExpiryUnit::Milliseconds)
    }
}

/// Parses a positive amount and returns the time in milliseconds since the Unix epoch.
///
/// # Errors
/// If the amount is not an integer, not positive, or too large for a 64-bit time.
pub fn parse_positive_expiry_ms(
    amount: &[u8],
    unit: ExpiryUnit,
    now_ms: u64,
    command: &str,
) -> Result<u64, CommandError> {
    let amount = parse_i64(amount).ok_or(CommandError::NOT_AN_INTEGER)?;
    if amount <= 0 {
        return Err(invalid_expire_time_error(command));
    }
    to_unix_ms(amount, unit, now_ms, command).map(|at| at as u64)
}

/// Converts an amount to milliseconds since the Unix epoch; the result may be negative.
///
/// # Errors
/// If the amount is too large for a 64-bit time.
pub fn to_unix_ms(amount: i64, unit: ExpiryUnit, now_ms: u64, command: &str) -> Result<i64, CommandError> {
    let ms = if unit.is_in_seconds() {
        amount.checked_mul(1000)
    } else {
        Some(amount)
    };
    let base_ms = if unit.is_relative() { now_ms as i64 } else { 0 };
    ms.and_then(|ms| ms.checked_add(base_ms))
        .ok_or_else(|| invalid_expire_time_error(command))
}

/// Returns the error of an invalid time.
pub fn invalid_expire_time_error(command: &str) -> CommandError {
    CommandError::from_text(format!("ERR invalid expire time in '{command}' command"))
}
