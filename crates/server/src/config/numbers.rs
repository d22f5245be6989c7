//! Numbers as configuration values write them: plain, with memory units, octal.

/// Reads a whole decimal number in its only form: no sign but `-`, no leading zeros, no blanks.
pub fn plain(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Reads an amount of memory: digits and an optional unit. A product beyond 64 bits wraps around.
pub fn memory(text: &[u8]) -> Option<u64> {
    let digits = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let mut amount: u64 = 0;
    for digit in digits {
        amount = amount.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(amount.wrapping_mul(factor))
}

/// Reads a number in the forgiving way of C: blanks and a sign may come first, nothing at all is zero,
/// and a number out of range becomes the nearest one. Text behind the number is refused.
pub fn lenient(text: &[u8]) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let magnitude = digits(text, 10)?;
    Some(magnitude.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

/// Reads an octal number as forgivingly, but refuses one out of range.
pub fn octal(text: &[u8]) -> Option<i64> {
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

/// Whether C's `isspace` holds.
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Writes an amount of memory with the largest unit that divides it, as a rewritten file shows it.
pub fn with_unit(amount: u64) -> String {
    for (shift, unit) in [(30, "gb"), (20, "mb"), (10, "kb")] {
        if amount != 0 && amount.trailing_zeros() >= shift {
            return format!("{}{unit}", amount >> shift);
        }
    }
    amount.to_string()
}

/// Reads a decimal fraction; blanks, hexadecimal digits, "not a number" and numbers out of range are refused.
pub fn fraction(text: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    let out_of_range = number.is_infinite() && text.iter().any(u8::is_ascii_digit);
    (!number.is_nan() && !out_of_range).then_some(number)
}
