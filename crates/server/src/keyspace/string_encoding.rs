//! The stored forms of strings.

use weft_resp::number::parse_i64;
use weft_table::NewValue;
use weft_values::Value;

/// The length of the longest decimal form of a 64-bit integer. Nothing longer is stored as an integer.
const MAX_INTEGER_DIGITS: usize = 20;

/// Returns the stored form of a string: an integer if possible, otherwise bytes.
#[inline]
pub fn encode_string(bytes: &[u8]) -> NewValue<'_, Value> {
    if bytes.len() <= MAX_INTEGER_DIGITS
        && let Some(number) = parse_i64(bytes)
    {
        return NewValue::Int(number);
    }
    NewValue::Bytes(bytes)
}
