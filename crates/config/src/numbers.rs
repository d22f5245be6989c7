//! Parses and prints numbers in the forms that only configuration values have: lenient, octal, fractions, and amounts
//! of memory with a unit.

/// Returns the part of a text that a C program sees: up to the first byte 0.
pub fn c_string(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses a number as leniently as C: blanks and a sign may precede it, an empty text is zero, and a number out of
/// range becomes the nearest valid one. Text after the number is refused.
pub fn parse_lenient(text: &[u8]) -> Option<i64> {
    let text = c_string(text);
    if text.is_empty() {
        return Some(0);
    }
    let magnitude = digits(text, 10)?;
    Some(magnitude.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

/// Parses an octal number in the same way, but refuses one out of range.
pub fn parse_octal(text: &[u8]) -> Option<i64> {
    let text = c_string(text);
    if text.is_empty() {
        return Some(0);
    }
    i64::try_from(digits(text, 8)?).ok()
}

fn digits(text: &[u8], radix: u32) -> Option<i128> {
    let blanks = text.iter().position(|&byte| !is_blank(byte))?;
    let (negative, digits) = match &text[blanks..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number: i128 = 0;
    for &byte in digits {
        let digit = char::from(byte).to_digit(radix)?;
        number = number
            .saturating_mul(i128::from(radix))
            .saturating_add(i128::from(digit));
    }
    Some(if negative { -number } else { number })
}

/// Returns `true` for the bytes accepted by C's `isspace`.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Prints an amount of memory with the largest unit that divides it, as in a rewritten file.
pub fn format_with_unit(amount: u64) -> String {
    for (shift, unit) in [(30, "gb"), (20, "mb"), (10, "kb")] {
        if amount != 0 && amount.trailing_zeros() >= shift {
            return format!("{}{unit}", amount >> shift);
        }
    }
    amount.to_string()
}

/// Parses a decimal fraction. Blanks, hexadecimal digits, NaN and numbers out of range are refused.
pub fn parse_fraction(text: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    let out_of_range = number.is_infinite() && text.iter().any(u8::is_ascii_digit);
    (!number.is_nan() && !out_of_range).then_some(number)
}
