//! Numbers as text: the strict parsers for what clients send, and the formats of what replies hold.
//!
//! Each function follows what Valkey 9.1 accepts and prints, to the byte, since clients and data
//! files depend on it. None of them accepts white space in front or behind.

mod grisu;
mod long_double;

pub use long_double::LongDouble;

use grisu::shortest_digits;

/// The longest text [`write_f64`] makes, in bytes.
pub(crate) const F64_TEXT_MAX_LEN: usize = 32;

/// Parses a decimal integer in the one form in which it would be printed: no plus sign, no leading
/// zero, no `-0`. So a text that parses is equal to the text of its number.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'0'] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if !matches!(digits.first(), Some(b'1'..=b'9')) || digits.len() > 19 {
        return None;
    }
    // 19 digits fit in 64 bits without a sign.
    let mut magnitude = 0u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative {
        0i64.checked_sub_unsigned(magnitude)
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// Parses an unsigned integer as stream IDs are parsed: what [`parse_i64`] accepts and is not
/// negative, or else whatever C's `strtoull` accepts whole, such as leading white space, a sign
/// (a minus sign wraps around) and leading zeros. The text ends at its first zero byte.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match parse_i64(text) {
        Some(number) => u64::try_from(number).ok(),
        None => parse_loose_u64(text),
    }
}

fn parse_loose_u64(text: &[u8]) -> Option<u64> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    let blanks = text
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r'))
        .count();
    let text = text[..end].get(blanks..)?;
    if let Some(number) = parse_i64(text)
        && blanks == 0
    {
        return u64::try_from(number).ok();
    }
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let magnitude = parse_digits(digits)?;
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// Parses one or more decimal digits; `None` for anything else or a number above `u64::MAX`.
fn parse_digits(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses a floating point number such as a score: decimal, with an optional sign, fraction and
/// exponent, or `inf` or `infinity` in any case. Refused are NaN, hexadecimal, a finite number too
/// large for an `f64`, and a number that is not zero but too small.
#[inline]
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let number = decimal_f64(text)?;
    if number == 0.0 || number.is_infinite() {
        return check_extreme_f64(text, number);
    }
    Some(number)
}

/// Parses the end of a score range, without its `(`. Unlike [`parse_f64`] this takes numbers that
/// are out of range as infinite or zero, an empty text as zero, and ends the text at a zero byte.
pub fn parse_score_bound(text: &[u8]) -> Option<f64> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    if end == 0 {
        return Some(0.0);
    }
    decimal_f64(&text[..end])
}

/// What the standard library parses, but for NaN.
#[inline]
fn decimal_f64(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Tells a zero or infinity that was written as such from one that stands for a number out of range.
#[cold]
fn check_extreme_f64(text: &[u8], number: f64) -> Option<f64> {
    if number.is_infinite() {
        let written = text.iter().any(|byte| matches!(byte, b'i' | b'I'));
        return written.then_some(number);
    }
    is_zero_mantissa(text).then_some(number)
}

/// Whether the digits of a decimal number before its exponent are all zero.
fn is_zero_mantissa(text: &[u8]) -> bool {
    let mut mantissa = text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    !mantissa.any(|byte| matches!(byte, b'1'..=b'9'))
}

/// Parses an amount of memory in bytes: digits and an optional unit in any case: `b`, `k` (1000),
/// `kb` (1024), and so on for `m` and `g`. No digits mean 0, and a product above 64 bits wraps
/// around, as in Valkey.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, unit) = text.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let amount = if digits.is_empty() { 0 } else { parse_digits(digits)? };
    Some(amount.wrapping_mul(factor))
}

/// Writes `number` in decimal at the start of `buffer` and returns the text.
#[inline]
pub fn format_i64(number: i64, buffer: &mut [u8; 20]) -> &str {
    let mut digits = itoa::Buffer::new();
    let text = digits.format(number);
    let target = &mut buffer[..text.len()];
    target.copy_from_slice(text.as_bytes());
    // The text is ASCII digits and at most a minus sign.
    std::str::from_utf8(target).unwrap_or_default()
}

/// Appends `number` in decimal.
#[inline]
pub fn append_i64(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `number` as replies print it: `inf`, `-inf`, `nan`, `-0`, integers below 2^62 in full,
/// other numbers with the fewest digits that read back as the same number (in rare cases one more,
/// as Valkey), with an exponent such as `1e+20` or `1.5e-7` where it is short.
#[inline]
pub fn format_f64(number: f64, out: &mut Vec<u8>) {
    let mut buffer = [0; F64_TEXT_MAX_LEN];
    let len = write_f64(number, &mut buffer);
    out.extend_from_slice(&buffer[..len]);
}

/// Appends `number` as [`format_f64`] does, but for large integers, which have an exponent where it is short. So
/// fingerprints of data show scores.
pub fn format_f64_shortest(number: f64, out: &mut Vec<u8>) {
    if number == 0.0 || !number.is_finite() {
        return format_f64(number, out);
    }
    let mut text = Text {
        buffer: &mut [0; F64_TEXT_MAX_LEN],
        len: 0,
    };
    if number < 0.0 {
        text.append(b"-");
    }
    append_digits(&shortest_digits(number.abs()), &mut text);
    out.extend_from_slice(&text.buffer[..text.len]);
}

/// Writes `number` at the start of `buffer` as [`format_f64`] does. Returns its length.
pub(crate) fn write_f64(number: f64, buffer: &mut [u8; F64_TEXT_MAX_LEN]) -> usize {
    let mut text = Text { buffer, len: 0 };
    if number.is_nan() {
        text.append(b"nan");
    } else if number.is_infinite() {
        text.append(if number < 0.0 { b"-inf" } else { b"inf" });
    } else if number == 0.0 {
        text.append(if number.is_sign_negative() { b"-0" } else { b"0" });
    } else if let Some(integer) = exact_integer(number) {
        text.append(itoa::Buffer::new().format(integer).as_bytes());
    } else {
        if number < 0.0 {
            text.append(b"-");
        }
        append_digits(&shortest_digits(number.abs()), &mut text);
    }
    text.len
}

/// The integer equal to `number`, if it is one of at most 2^62.
fn exact_integer(number: f64) -> Option<i64> {
    const LIMIT: f64 = (1u64 << 62) as f64;
    if !(-LIMIT..=LIMIT).contains(&number) {
        return None;
    }
    let integer = number as i64;
    (integer as f64 == number).then_some(integer)
}

/// Decimal digits of a number: `digits` (without leading zeros) times ten to the power of `exponent`.
pub(crate) struct Decimal {
    digits: [u8; 18],
    count: usize,
    exponent: i32,
}

/// Lays out a number as an integer, a fraction or with an exponent.
fn append_digits(decimal: &Decimal, text: &mut Text) {
    let digits = &decimal.digits[..decimal.count];
    let count = decimal.count as i32;
    let exponent = decimal.exponent;
    let scientific = exponent + count - 1;
    if exponent >= 0 && scientific < count + 7 {
        text.append(digits);
        text.append_zeros(exponent);
    } else if exponent < 0 && (exponent > -7 || scientific.abs() < 4) {
        let point = count + exponent;
        if point <= 0 {
            text.append(b"0.");
            text.append_zeros(-point);
            text.append(digits);
        } else {
            let (whole, fraction) = digits.split_at(point as usize);
            text.append(whole);
            text.append(b".");
            text.append(fraction);
        }
    } else {
        let (first, rest) = digits.split_at(1);
        text.append(first);
        if !rest.is_empty() {
            text.append(b".");
            text.append(rest);
        }
        text.append(if scientific < 0 { b"e-" } else { b"e+" });
        text.append(itoa::Buffer::new().format(scientific.unsigned_abs()).as_bytes());
    }
}

/// A text being written into a fixed buffer.
struct Text<'a> {
    buffer: &'a mut [u8; F64_TEXT_MAX_LEN],
    len: usize,
}

impl Text<'_> {
    fn append(&mut self, bytes: &[u8]) {
        self.buffer[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn append_zeros(&mut self, count: i32) {
        (0..count).for_each(|_| self.append(b"0"));
    }
}

/// Appends `number`, of which the product with `10^fraction_digits` must be below 2^63, rounded to
/// that many digits after the point, as distances are printed. Ties go to even.
///
/// Panics if `fraction_digits` is not in 1..=17.
pub fn format_fixed(number: f64, fraction_digits: u32, out: &mut Vec<u8>) {
    assert!((1..=17).contains(&fraction_digits), "1 to 17 digits after the point");
    let scale = 10u64.pow(fraction_digits);
    let scaled = (number * scale as f64).round_ties_even() as i64;
    if scaled < 0 {
        out.push(b'-');
    }
    let magnitude = scaled.unsigned_abs();
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(magnitude / scale).as_bytes());
    out.push(b'.');
    let fraction = digits.format(magnitude % scale).as_bytes();
    out.resize(out.len() + fraction_digits as usize - fraction.len(), b'0');
    out.extend_from_slice(fraction);
}

#[cfg(test)]
mod tests;
