//! Formats and parses numbers as C does, for the libraries that rely on it.
/// Appends a number in the format `%.{digits}g` of C.
pub fn format_general(number: f64, digits: usize, out: &mut Vec<u8>) {
    if number.is_nan() {
        return out.extend_from_slice(if number.is_sign_negative() { b"-nan" } else { b"nan" });
    }
    if number.is_infinite() {
        return out.extend_from_slice(if number < 0.0 { b"-inf" } else { b"inf" });
    }
    let digits = digits.max(1);
    let scientific = format!("{number:.*e}", digits - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        out.extend_from_slice(without_trailing_zeros(mantissa).as_bytes());
        let sign = if exponent < 0 { '-' } else { '+' };
        out.extend_from_slice(format!("e{sign}{:02}", exponent.abs()).as_bytes());
    } else {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        let fixed = format!("{number:.decimals$}");
        out.extend_from_slice(without_trailing_zeros(&fixed).as_bytes());
    }
}

fn without_trailing_zeros(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

/// Parses the number at the start of a text as `strtod` does. Returns the number and its length in bytes.
pub fn parse_prefix(text: &[u8]) -> Option<(f64, usize)> {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let negative = text.first() == Some(&b'-');
    let rest = &text[sign..];
    let begins = |word: &[u8]| {
        rest.get(..word.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(word))
    };
    let (number, len) = if begins(b"infinity") {
        (f64::INFINITY, 8)
    } else if begins(b"inf") {
        (f64::INFINITY, 3)
    } else if begins(b"nan") {
        (f64::NAN, 3)
    } else if begins(b"0x")
        && rest
            .get(2)
            .is_some_and(|byte| byte.is_ascii_hexdigit() || *byte == b'.')
    {
        hexadecimal(rest)
    } else {
        decimal(rest)?
    };
    Some((if negative { -number } else { number }, sign + len))
}

fn count_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn decimal(text: &[u8]) -> Option<(f64, usize)> {
    let whole = count_digits(text);
    let mut len = whole;
    let mut digits = whole;
    if text.get(len) == Some(&b'.') {
        let fraction = count_digits(&text[len + 1..]);
        digits += fraction;
        if digits > 0 {
            len += 1 + fraction;
        }
    }
    if digits == 0 {
        return None;
    }
    if matches!(text.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        let exponent = count_digits(&text[len + 1 + sign..]);
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    let number = std::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    Some((number, len))
}

/// Parses `0x`, digits, an optional fraction and an optional binary exponent.
fn hexadecimal(text: &[u8]) -> (f64, usize) {
    let mut number = 0.0;
    let mut scale = 0i32;
    let mut len = 2;
    let mut in_fraction = false;
    while let Some(byte) = text.get(len) {
        match char::from(*byte).to_digit(16) {
            Some(digit) => {
                number = number * 16.0 + f64::from(digit);
                scale -= if in_fraction { 4 } else { 0 };
            }
            None if *byte == b'.' && !in_fraction => in_fraction = true,
            None => break,
        }
        len += 1;
    }
    if matches!(text.get(len), Some(b'p' | b'P')) {
        let sign = usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        let digits = count_digits(&text[len + 1 + sign..]);
        let exponent = std::str::from_utf8(&text[len + 1..len + 1 + sign + digits]).ok();
        if let Some(exponent) = exponent.and_then(|text| text.parse::<i32>().ok()) {
            scale = scale.saturating_add(exponent);
            len += 1 + sign + digits;
        }
    }
    (number * 2f64.powi(scale), len)
}

#[cfg(test)]
mod tests;
