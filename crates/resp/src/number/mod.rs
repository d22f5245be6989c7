//! Numbers as text: strict parsers for the input of clients, and the formats used in replies.
//!
//! Each function accepts and prints exactly what Valkey 9.1 does, byte for byte, because clients and data files depend
//! on it. Unless stated otherwise, white space before or after a number is refused.

mod grisu;
mod long_double;

pub use long_double::LongDouble;

use grisu::shortest_digits;

/// The maximum length of the text that [`write_f64`] writes, in bytes.
pub(crate) const F64_TEXT_MAX_LEN: usize = 32;

/// Parses a decimal integer in its canonical form: no plus sign, no leading zero, no `-0`. A text that parses is
/// therefore equal to the text that its number prints as.
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
    // 19 digits fit in an unsigned 64-bit integer.
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

/// Parses an unsigned integer in the form that stream IDs allow.
///
/// A text that [`parse_i64`] accepts must not be negative. Any other text must be accepted as a whole by C's
/// `strtoull`, which allows leading white space, leading zeros and a sign (a minus sign wraps around). The text ends at
/// its first zero byte.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match parse_i64(text) {
        Some(number) => u64::try_from(number).ok(),
        None => parse_lenient_u64(text),
    }
}

fn parse_lenient_u64(text: &[u8]) -> Option<u64> {
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

/// Parses one or more decimal digits. Returns `None` for any other text and for a number above `u64::MAX`.
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

/// Parses a floating-point number such as a score: decimal, with an optional sign, fraction and exponent, or `inf` or
/// `infinity` in any case.
///
/// Returns `None` for NaN, for hexadecimal, for a finite number that overflows `f64`, and for a non-zero number that
/// underflows to zero.
#[inline]
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let number = parse_decimal_f64(text)?;
    if number == 0.0 || number.is_infinite() {
        return check_extreme_f64(text, number);
    }
    Some(number)
}

/// Parses the bound of a score range, without its `(`. Unlike [`parse_f64`], this function turns overflow into infinity
/// and underflow into zero, reads an empty text as zero, and ends the text at a zero byte.
pub fn parse_score_bound(text: &[u8]) -> Option<f64> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    if end == 0 {
        return Some(0.0);
    }
    parse_decimal_f64(&text[..end])
}

/// Parses the numbers that the standard library accepts, except NaN.
#[inline]
fn parse_decimal_f64(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Returns `number` if the zero or infinity was written as such, and `None` if it results from underflow or overflow.
#[cold]
fn check_extreme_f64(text: &[u8], number: f64) -> Option<f64> {
    if number.is_infinite() {
        let written = text.iter().any(|byte| matches!(byte, b'i' | b'I'));
        return written.then_some(number);
    }
    is_zero_mantissa(text).then_some(number)
}

/// Returns `true` if all digits before the exponent of a decimal number are zero.
fn is_zero_mantissa(text: &[u8]) -> bool {
    let mut mantissa = text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    !mantissa.any(|byte| matches!(byte, b'1'..=b'9'))
}

/// Parses an amount of memory in bytes: digits, then an optional unit in any case. The units are `b`, `k` (1000), `kb`
/// (1024), and `m`, `mb`, `g`, `gb` accordingly. As in Valkey, missing digits mean 0, a product above 64 bits wraps
/// around, and the text ends at a byte 0.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
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
    // The text consists of ASCII digits and at most one minus sign.
    std::str::from_utf8(target).unwrap_or_default()
}

/// Appends `number` to `out` in decimal.
#[inline]
pub fn append_i64(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends `number` to `out` as replies print it.
///
/// Special values are `inf`, `-inf`, `nan` and `-0`. Integers of a magnitude up to 2^62 are printed in full. Other
/// numbers are printed with the fewest digits that parse back to the same number (in rare cases one more, as in
/// Valkey), with an exponent such as `1e+20` or `1.5e-7` where that is shorter.
#[inline]
pub fn format_f64(number: f64, out: &mut Vec<u8>) {
    let mut buffer = [0; F64_TEXT_MAX_LEN];
    let len = write_f64(number, &mut buffer);
    out.extend_from_slice(&buffer[..len]);
}

/// Appends `number` to `out` as [`format_f64`] does, except that large integers also get an exponent where that is
/// shorter. The commands of an append-only file use this form for scores.
pub fn format_f64_shortest(number: f64, out: &mut Vec<u8>) {
    if number == 0.0 || !number.is_finite() {
        return format_f64(number, out);
    }
    let mut text = FixedText {
        buffer: &mut [0; F64_TEXT_MAX_LEN],
        len: 0,
    };
    if number < 0.0 {
        text.append(b"-");
    }
    append_digits(&shortest_digits(number.abs()), &mut text);
    out.extend_from_slice(&text.buffer[..text.len]);
}

/// Writes `number` at the start of `buffer` in the form of [`format_f64`]. Returns the length of the text in bytes.
pub(crate) fn write_f64(number: f64, buffer: &mut [u8; F64_TEXT_MAX_LEN]) -> usize {
    let mut text = FixedText { buffer, len: 0 };
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

/// Returns the integer equal to `number` if there is one of a magnitude up to 2^62.
fn exact_integer(number: f64) -> Option<i64> {
    const LIMIT: f64 = (1u64 << 62) as f64;
    if !(-LIMIT..=LIMIT).contains(&number) {
        return None;
    }
    let integer = number as i64;
    (integer as f64 == number).then_some(integer)
}

/// The decimal digits of a number: `digits` (without leading zeros) times ten to the power of `exponent`.
pub(crate) struct DecimalDigits {
    digits: [u8; 18],
    count: usize,
    exponent: i32,
}

/// Appends a number as an integer, as a fraction or with an exponent.
fn append_digits(decimal: &DecimalDigits, text: &mut FixedText) {
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

/// A text that is written into a fixed-size buffer.
struct FixedText<'a> {
    buffer: &'a mut [u8; F64_TEXT_MAX_LEN],
    len: usize,
}

impl FixedText<'_> {
    fn append(&mut self, bytes: &[u8]) {
        self.buffer[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn append_zeros(&mut self, count: i32) {
        (0..count).for_each(|_| self.append(b"0"));
    }
}

/// Appends `number` to `out`, rounded to `fraction_digits` digits after the point, as GEODIST prints distances. Ties
/// round to even. The product of `number` and `10^fraction_digits` must be below 2^63.
///
/// # Panics
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
