//! How strings are stored.

use weft_resp::number::parse_i64;
use weft_table::NewValue;
use weft_values::Value;

/// Longest decimal form of a 64-bit integer; nothing longer is stored as one.
const INTEGER_DIGITS: usize = 20;

/// How a string is stored: integers as such, everything else as bytes.
#[inline]
pub fn stored(bytes: &[u8]) -> NewValue<'_, Value> {
    if bytes.len() <= INTEGER_DIGITS
        && let Some(number) = parse_i64(bytes)
    {
        return NewValue::Int(number);
    }
    NewValue::Bytes(bytes)
}
