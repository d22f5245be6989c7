//! The patterns of BY and GET: they turn an element into the name of a key, and perhaps of a field.
//!
//! ```text
//! #                   the element itself
//! weight_*            the string at the key with the element in place of the star
//! user_*->age         the field `age` of the hash at that key
//! weight              nothing: without a star there is no key
//! ```
//!
//! Only the first star counts, and the first arrow after it that is followed by a field name. Both are searched up to
//! the first zero byte, as in Valkey.

/// Returns the bytes up to the first zero byte.
pub fn c_string_prefix(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The source of a value for BY or GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortPattern<'a> {
    /// The element itself.
    Element,
    /// No value.
    Nothing,
    /// The value of another key.
    Key(SortKeyPattern<'a>),
}

/// A pattern with a star.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKeyPattern<'a> {
    prefix: &'a [u8],
    suffix: &'a [u8],
    /// The field, if the key is a hash.
    pub field: Option<&'a [u8]>,
}

impl<'a> SortPattern<'a> {
    /// Parses a pattern; every pattern is valid.
    pub fn parse(pattern: &'a [u8]) -> Self {
        let text = c_string_prefix(pattern);
        if text == b"#" {
            return SortPattern::Element;
        }
        let Some(star) = text.iter().position(|byte| *byte == b'*') else {
            return SortPattern::Nothing;
        };
        let (prefix, rest) = (&pattern[..star], &pattern[star + 1..]);
        let arrow = text[star + 1..].windows(2).position(|two| two == b"->");
        let (suffix, field) = match arrow {
            Some(arrow) if text.len() > star + 1 + arrow + 2 => (&rest[..arrow], Some(&rest[arrow + 2..])),
            _ => (rest, None),
        };
        SortPattern::Key(SortKeyPattern { prefix, suffix, field })
    }

    /// Returns `true` if the pattern requires reading a key.
    pub fn has_key(&self) -> bool {
        matches!(self, SortPattern::Key(_))
    }
}

impl SortKeyPattern<'_> {
    /// Writes the name of the key for an element.
    pub fn write_key_name(&self, element: &[u8], name: &mut Vec<u8>) {
        name.clear();
        name.extend_from_slice(self.prefix);
        name.extend_from_slice(element);
        name.extend_from_slice(self.suffix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pattern, the key that it yields for `X`, and the field.
    type Case = (&'static [u8], &'static [u8], Option<&'static [u8]>);

    #[test]
    fn patterns_name_keys_and_fields() {
        let cases: &[Case] = &[
            (b"*", b"X", None),
            (b"w_*", b"w_X", None),
            (b"w_*_v", b"w_X_v", None),
            (b"*_*", b"X_*", None),
            (b"o_*->f", b"o_X", Some(b"f")),
            (b"o_*_p->f->g", b"o_X_p", Some(b"f->g")),
            (b"o->p_*", b"o->p_X", None),
            (b"o_*->", b"o_X->", None),
            (b"*->*", b"X", Some(b"*")),
            (b"o_*->f\0g", b"o_X", Some(b"f\0g")),
            (b"o_*\0->f", b"o_X\0->f", None),
            (b"o_*->\0f", b"o_X->\0f", None),
        ];
        for (pattern, expected, field) in cases {
            let SortPattern::Key(key) = SortPattern::parse(pattern) else {
                panic!("{pattern:?} names no key");
            };
            let mut name = b"before".to_vec();
            key.write_key_name(b"X", &mut name);
            assert_eq!(name, *expected, "{pattern:?}");
            assert_eq!(key.field, *field, "{pattern:?}");
        }
    }

    #[test]
    fn patterns_without_a_key() {
        for (pattern, expected) in [
            (&b"#"[..], SortPattern::Element),
            (b"#\0*", SortPattern::Element),
            (b"##", SortPattern::Nothing),
            (b"", SortPattern::Nothing),
            (b"nosort", SortPattern::Nothing),
            (b"a\0*", SortPattern::Nothing),
        ] {
            assert_eq!(SortPattern::parse(pattern), expected, "{pattern:?}");
        }
    }
}
