//! Glob patterns as KEYS, SCAN, PSUBSCRIBE and ACL rules use them.
//!
//! `*` stands for any bytes, `?` for one, `[abc]`, `[a-z]` and `[^a]` for one of a class or not of
//! it, and a backslash takes the special meaning from the byte after it. Patterns that make no
//! sense have the meaning that they have in Valkey: a class that is not closed ends with the
//! pattern, the ends of a range may be swapped, and bytes from 0x80 come *before* the others in a
//! range unless case is ignored. An empty string is matched by the empty pattern alone, not even by `*`.
//!
//! Matching takes time proportional to both lengths per star. A star tries to match the rest of the
//! pattern at every place of the string. Where one star fails at all places, so would it for
//! every longer match of an earlier star, which would only leave it fewer places to try; so then
//! the whole match has failed. Without this rule patterns such as `a*a*a*a*b` take exponential time.

/// Stars in a pattern are followed to this depth; then it matches nothing.
const STAR_MAX_DEPTH: u32 = 1000;

/// Whether `string` as a whole matches `pattern`. With `ignore_case` ASCII letters are equal to
/// their other case.
pub fn matches(pattern: &[u8], string: &[u8], ignore_case: bool) -> bool {
    Matcher {
        ignore_case,
        failed: false,
    }
    .matches(pattern, string, 0)
}

struct Matcher {
    ignore_case: bool,
    /// A star has failed at all places, so the match has failed.
    failed: bool,
}

impl Matcher {
    fn matches(&mut self, mut pattern: &[u8], mut string: &[u8], depth: u32) -> bool {
        if depth > STAR_MAX_DEPTH {
            return false;
        }
        while let ([special, rest @ ..], [byte, string_rest @ ..]) = (pattern, string) {
            let (matched, after) = match special {
                b'*' => return self.star(skip_stars(rest), string, depth),
                b'?' => (true, rest),
                b'[' => self.class(rest, *byte),
                b'\\' if !rest.is_empty() => (self.equal(rest[0], *byte), &rest[1..]),
                _ => (self.equal(*special, *byte), rest),
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

    /// Matches `string`, which is not empty, with a star and the pattern after it.
    fn star(&mut self, pattern: &[u8], string: &[u8], depth: u32) -> bool {
        if pattern.is_empty() {
            return true;
        }
        for start in 0..string.len() {
            if self.matches(pattern, &string[start..], depth + 1) {
                return true;
            }
            if self.failed {
                return false;
            }
        }
        self.failed = true;
        false
    }

    /// Whether `byte` is in the class whose pattern after `[` is given, and the pattern after the class.
    fn class<'p>(&self, pattern: &'p [u8], byte: u8) -> (bool, &'p [u8]) {
        let (negated, mut rest) = match pattern {
            [b'^', rest @ ..] => (true, rest),
            _ => (false, pattern),
        };
        let mut found = false;
        loop {
            rest = match rest {
                [] => break,
                // Case is not ignored for an escaped byte.
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
                    found |= self.equal(*single, byte);
                    after
                }
            };
        }
        (found != negated, rest)
    }

    /// The ends are put in order before they are ranked.
    fn in_range(&self, start: u8, end: u8, byte: u8) -> bool {
        let (low, high) = if start as i8 > end as i8 {
            (end, start)
        } else {
            (start, end)
        };
        (self.rank(low)..=self.rank(high)).contains(&self.rank(byte))
    }

    /// Where a byte stands in ranges. Bytes are signed, but to ignore their case makes them
    /// unsigned, save 0xff, which that takes for the end of a file.
    fn rank(&self, byte: u8) -> i16 {
        match byte {
            0xff => -1,
            _ if self.ignore_case => i16::from(byte.to_ascii_lowercase()),
            _ => i16::from(byte as i8),
        }
    }

    fn equal(&self, a: u8, b: u8) -> bool {
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
