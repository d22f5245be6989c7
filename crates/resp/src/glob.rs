//! Glob-style patterns of KEYS, SCAN, PSUBSCRIBE and ACL rules.
//!
//! `*` matches any sequence of bytes and `?` any one byte. `[abc]` and `[a-z]` match one byte of a class, `[^a]` one
//! byte outside it. A backslash makes the byte after it literal.
//!
//! Malformed patterns behave as in Valkey: a class that is not closed extends to the end of the pattern, and the ends
//! of a range may be swapped. In ranges, bytes from 0x80 sort *before* the other bytes unless case is ignored. The
//! empty string matches only the empty pattern, not even `*`.
//!
//! Matching takes time proportional to the product of both lengths per star. A star tries to match the rest of the
//! pattern at every position of the string. If one star fails at all positions, it would also fail for every longer
//! match of an earlier star, because that leaves it fewer positions. So the whole match fails at that point. Without
//! this rule, patterns such as `a*a*a*a*b` take exponential time.
/// The maximum number of stars that are matched recursively. A pattern that needs more matches nothing.
const STAR_MAX_DEPTH: u32 = 1000;

/// Returns `true` if `pattern` matches all of `string`. With `ignore_case`, ASCII letters match regardless of case.
pub fn matches(pattern: &[u8], string: &[u8], ignore_case: bool) -> bool {
    Matcher {
        ignore_case,
        has_failed: false,
    }
    .matches(pattern, string, 0)
}

struct Matcher {
    ignore_case: bool,
    /// Set once a star has failed at all positions, which means that the whole match fails.
    has_failed: bool,
}

impl Matcher {
    fn matches(&mut self, mut pattern: &[u8], mut string: &[u8], depth: u32) -> bool {
        if depth > STAR_MAX_DEPTH {
            return false;
        }
        while let ([special, rest @ ..], [byte, string_rest @ ..]) = (pattern, string) {
            let (matched, after) = match special {
                b'*' => return self.match_star(skip_stars(rest), string, depth),
                b'?' => (true, rest),
                b'[' => self.match_class(rest, *byte),
                b'\\' if !rest.is_empty() => (self.bytes_equal(rest[0], *byte), &rest[1..]),
                _ => (self.bytes_equal(*special, *byte), rest),
            };
            if !matched {
                return false;
            }
            pattern = after;
            string = string_rest;
            if string.is_empty() {
                pattern = skip_stars(pattern);
            }
        }
        pattern.is_empty() && string.is_empty()
    }

    /// Matches a star followed by `pattern` against `string`, which must not be empty.
    fn match_star(&mut self, pattern: &[u8], string: &[u8], depth: u32) -> bool {
        if pattern.is_empty() {
            return true;
        }
        for start in 0..string.len() {
            if self.matches(pattern, &string[start..], depth + 1) {
                return true;
            }
            if self.has_failed {
                return false;
            }
        }
        self.has_failed = true;
        false
    }

    /// Matches `byte` against the class whose pattern after `[` is given. Returns the result and the pattern after the
    /// class.
    fn match_class<'p>(&self, pattern: &'p [u8], byte: u8) -> (bool, &'p [u8]) {
        let (negated, mut rest) = match pattern {
            [b'^', rest @ ..] => (true, rest),
            _ => (false, pattern),
        };
        let mut found = false;
        loop {
            rest = match rest {
                [] => break,
                // An escaped byte is compared case-sensitively even with `ignore_case`.
                [b'\\', escaped, after @ ..] => {
                    found |= *escaped == byte;
                    after
                }
                [b']', after @ ..] => {
                    rest = after;
                    break;
                }
                [start, b'-', end, after @ ..] => {
                    found |= self.in_range(*start, *end, byte);
                    after
                }
                [single, after @ ..] => {
                    found |= self.bytes_equal(*single, byte);
                    after
                }
            };
        }
        (found != negated, rest)
    }

    /// Returns `true` if `byte` is in the range. The ends are swapped if needed before `ignore_case` applies to them.
    fn in_range(&self, start: u8, end: u8, byte: u8) -> bool {
        let (low, high) = if start as i8 > end as i8 {
            (end, start)
        } else {
            (start, end)
        };
        (self.range_order(low)..=self.range_order(high)).contains(&self.range_order(byte))
    }

    /// The position of a byte in the order that ranges use. Bytes compare as signed. With `ignore_case` they compare as
    /// unsigned, because Valkey applies `tolower` to them, except 0xff, which `tolower` takes for `EOF` (-1).
    fn range_order(&self, byte: u8) -> i16 {
        match byte {
            0xff => -1,
            _ if self.ignore_case => i16::from(byte.to_ascii_lowercase()),
            _ => i16::from(byte as i8),
        }
    }

    fn bytes_equal(&self, a: u8, b: u8) -> bool {
        if self.ignore_case {
            a.eq_ignore_ascii_case(&b)
        } else {
            a == b
        }
    }
}

fn skip_stars(pattern: &[u8]) -> &[u8] {
    let stars = pattern.iter().take_while(|&&byte| byte == b'*').count();
    &pattern[stars..]
}

#[cfg(test)]
mod tests;
