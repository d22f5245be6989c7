//! The 80-bit floating-point number of x86 (`long double` in C), in which INCRBYFLOAT adds.
//!
//! The sum and its 17 printed digits after the point are visible to clients and stored in data files, so 64-bit
//! arithmetic would give different results.

use rustc_apfloat::ieee::{Double, X87DoubleExtended};
use rustc_apfloat::{Float, FloatConvert, Round, Status};

use super::is_zero_mantissa;

/// Texts of this length in bytes or more are refused.
const TEXT_MAX_LEN: usize = 5 * 1024;
/// The magnitude that exponents are clamped to. With any mantissa of [`TEXT_MAX_LEN`] digits, the number is still out
/// of range then.
const EXPONENT_LIMIT: i64 = 50_000;
/// The number of digits printed after the point.
const FRACTION_DIGITS: u32 = 17;
/// The exponent of the lowest bit of a number whose biased exponent is 0.
const LOWEST_EXPONENT: i32 = -16383 - 63;

/// A floating-point number with 64 bits of precision and a 15-bit exponent.
#[derive(Clone, Copy, Debug)]
pub struct LongDouble(X87DoubleExtended);

impl LongDouble {
    /// Parses a text that C's `strtold` accepts as a whole: decimal, hexadecimal with an optional binary exponent
    /// (`0x1.8p3`), `inf` or `infinity` in any case.
    ///
    /// Returns `None` for NaN, for leading white space, for overflow, for underflow to zero, and for texts of 5 KiB or
    /// more.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_MAX_LEN {
            return None;
        }
        let (negative, magnitude) = match text {
            [b'-', magnitude @ ..] => (true, magnitude),
            [b'+', magnitude @ ..] => (false, magnitude),
            magnitude => (false, magnitude),
        };
        let number = match magnitude {
            [b'i' | b'I', ..] => parse_infinity(magnitude)?,
            [b'0', b'x' | b'X', hex @ ..] => parse_hexadecimal(hex)?,
            decimal => parse_decimal(decimal)?,
        };
        Some(Self(if negative { -number } else { number }))
    }

    /// Returns the number equal to `integer`.
    pub fn from_i64(integer: i64) -> Self {
        Self(X87DoubleExtended::from_i128(i128::from(integer)).value)
    }

    /// Returns the number equal to `number`.
    pub fn from_f64(number: f64) -> Self {
        Self(
            Double::from_bits(u128::from(number.to_bits()))
                .convert(&mut false)
                .value,
        )
    }

    /// Returns the nearest `f64`.
    pub fn to_f64(self) -> f64 {
        let double: Double = self.0.convert(&mut false).value;
        f64::from_bits(double.to_bits() as u64)
    }

    /// Returns the rounded sum.
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, other: Self) -> Self {
        Self((self.0 + other.0).value)
    }

    /// Returns the rounded product.
    pub fn multiply(self, other: Self) -> Self {
        Self((self.0 * other.0).value)
    }

    /// Returns `true` if this is NaN, such as the sum of both infinities.
    pub fn is_nan(self) -> bool {
        self.0.is_nan()
    }

    /// Returns `true` if this is positive or negative infinity.
    pub fn is_infinite(self) -> bool {
        self.0.is_infinite()
    }

    /// Returns `true` if the sign is negative.
    pub fn is_negative(self) -> bool {
        self.0.is_negative()
    }

    /// Returns the smallest integer that is not below this number, or `None` if it does not fit in an `i64`.
    pub fn ceil_to_i64(self) -> Option<i64> {
        let rounded = self.0.to_i128_r(64, Round::TowardPositive, &mut false);
        if rounded.status.contains(Status::INVALID_OP) {
            return None;
        }
        i64::try_from(rounded.value).ok()
    }

    /// Appends the number to `out` without an exponent, rounded to 17 digits after the point, without trailing zeros.
    /// Infinity is printed as `inf` or `-inf`, NaN as `nan`.
    pub fn append_human_readable(self, out: &mut Vec<u8>) {
        if self.is_nan() {
            return out.extend_from_slice(b"nan");
        }
        let start = out.len();
        if self.is_negative() {
            out.push(b'-');
        }
        if self.is_infinite() {
            return out.extend_from_slice(b"inf");
        }
        append_magnitude(self.0.to_bits(), out);
        if &out[start..] == b"-0" {
            out.remove(start);
        }
    }
}

fn parse_infinity(text: &[u8]) -> Option<X87DoubleExtended> {
    let written = text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity");
    written.then_some(X87DoubleExtended::INFINITY)
}

fn parse_decimal(text: &[u8]) -> Option<X87DoubleExtended> {
    let (mantissa, exponent) = split_exponent(text, b'e')?;
    if !is_mantissa(mantissa, u8::is_ascii_digit) {
        return None;
    }
    if is_zero_mantissa(mantissa) {
        return Some(X87DoubleExtended::ZERO);
    }
    parse_nonzero(format!("{}e{exponent}", std::str::from_utf8(mantissa).ok()?))
}

/// Parses the part of a hexadecimal number after `0x`.
fn parse_hexadecimal(text: &[u8]) -> Option<X87DoubleExtended> {
    let (mantissa, exponent) = split_exponent(text, b'p')?;
    if !is_mantissa(mantissa, u8::is_ascii_hexdigit) {
        return None;
    }
    if mantissa.iter().all(|byte| matches!(byte, b'0' | b'.')) {
        return Some(X87DoubleExtended::ZERO);
    }
    parse_nonzero(format!("0x{}p{exponent}", std::str::from_utf8(mantissa).ok()?))
}

/// Splits a number at its exponent mark, which is given in lower case. Without a mark the exponent is 0.
fn split_exponent(text: &[u8], mark: u8) -> Option<(&[u8], i64)> {
    let Some(at) = text.iter().position(|byte| byte.to_ascii_lowercase() == mark) else {
        return Some((text, 0));
    };
    let (negative, digits) = match &text[at + 1..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = digits.iter().fold(0, |magnitude: i64, byte| {
        (magnitude * 10 + i64::from(byte - b'0')).min(EXPONENT_LIMIT)
    });
    Some((&text[..at], if negative { -magnitude } else { magnitude }))
}

/// Returns `true` if `text` is one or more digits with at most one point among them.
fn is_mantissa(text: &[u8], is_digit: fn(&u8) -> bool) -> bool {
    let points = text.iter().filter(|&&byte| byte == b'.').count();
    points <= 1 && text.len() > points && text.iter().all(|byte| *byte == b'.' || is_digit(byte))
}

/// Converts a validated text whose number is not zero. Returns `None` if the number is out of range.
fn parse_nonzero(text: String) -> Option<X87DoubleExtended> {
    let number = X87DoubleExtended::from_str_r(&text, Round::NearestTiesToEven)
        .ok()?
        .value;
    (number.is_finite() && !number.is_zero()).then_some(number)
}

/// Appends the finite number with these bits, without its sign.
fn append_magnitude(bits: u128, out: &mut Vec<u8>) {
    let mantissa = bits as u64;
    let biased = (bits >> 64) as i32 & 0x7fff;
    let exponent = LOWEST_EXPONENT + biased.max(1);
    if exponent >= 0 {
        return append_shifted(mantissa, exponent as u32, out);
    }
    let (mut whole, mut fraction) = round_fraction(mantissa, exponent.unsigned_abs());
    if fraction == 10u64.pow(FRACTION_DIGITS) {
        whole += 1;
        fraction = 0;
    }
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    if fraction != 0 {
        append_fraction(fraction, out);
    }
}

/// Splits `mantissa / 2^bits` into its integer part and its fraction in units of the last printed digit. The fraction
/// is rounded to nearest, ties to even.
fn round_fraction(mantissa: u64, bits: u32) -> (u64, u64) {
    // Below 2^-125 * 2^64 the number rounds to zero at 17 digits.
    if bits > 125 {
        return (0, 0);
    }
    let whole = if bits < 64 { mantissa >> bits } else { 0 };
    let rest = if bits < 64 {
        mantissa & ((1 << bits) - 1)
    } else {
        mantissa
    };
    // The product has at most 64 + 57 bits.
    let product = u128::from(rest) * 10u128.pow(FRACTION_DIGITS);
    let quotient = (product >> bits) as u64;
    let remainder = product & ((1 << bits) - 1);
    let half = 1u128 << (bits - 1);
    let up = remainder > half || (remainder == half && quotient % 2 == 1);
    (whole, quotient + u64::from(up))
}

fn append_fraction(fraction: u64, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(fraction).as_bytes();
    out.push(b'.');
    out.resize(out.len() + FRACTION_DIGITS as usize - digits.len(), b'0');
    out.extend_from_slice(digits);
    while out.last() == Some(&b'0') {
        out.pop();
    }
}

/// Appends the integer `mantissa * 2^bits` in decimal.
fn append_shifted(mantissa: u64, bits: u32, out: &mut Vec<u8>) {
    /// The divisor that splits off nine decimal digits at a time.
    const CHUNK: u64 = 1_000_000_000;
    // 32-bit limbs, lowest first.
    let mut limbs = vec![0u32; (bits / 32) as usize];
    let shifted = u128::from(mantissa) << (bits % 32);
    limbs.extend([shifted as u32, (shifted >> 32) as u32, (shifted >> 64) as u32]);
    let mut chunks = Vec::new();
    while let Some(&highest) = limbs.last() {
        if highest == 0 {
            limbs.pop();
            continue;
        }
        let remainder = limbs.iter_mut().rev().fold(0u64, |remainder, limb| {
            let dividend = remainder << 32 | u64::from(*limb);
            *limb = (dividend / CHUNK) as u32;
            dividend % CHUNK
        });
        chunks.push(remainder);
    }
    let mut chunks = chunks.into_iter().rev();
    let first = chunks.next().unwrap_or(0);
    out.extend_from_slice(itoa::Buffer::new().format(first).as_bytes());
    for chunk in chunks {
        out.extend_from_slice(format!("{chunk:09}").as_bytes());
    }
}

#[cfg(test)]
mod tests;
