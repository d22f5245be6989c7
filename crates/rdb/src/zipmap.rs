//! Zipmaps: the encoding of small hashes in Redis before 2.6. They are only read, never written.
//!
//! ```text
//! fields (1)  { length field  length unused (1) value unused-bytes } ...  FF
//!
//! length:  1 byte below 254, or FE and 4 bytes, little-endian
//! ```
//!
//! Valkey refuses a length below 254 in the long form (CVE-2026-25243), and so does this module.
//! The number of fields is FE if it does not fit. A zipmap is checked completely before any of its data is used.

const END: u8 = 0xff;
const LONG_LENGTH: u8 = 0xfe;

/// A zipmap that has been validated. It has at least one field.
#[derive(Clone, Copy, Debug)]
pub struct Zipmap<'a> {
    pairs: &'a [u8],
    count: usize,
}

impl<'a> Zipmap<'a> {
    /// Validates every byte of a zipmap; `None` if it is invalid or has no fields.
    pub fn validate(bytes: &'a [u8]) -> Option<Self> {
        let (counted, rest) = bytes.split_first()?;
        let (end, pairs) = rest.split_last()?;
        let (mut rest, mut count) = (pairs, 0);
        while !rest.is_empty() {
            (_, rest) = parse_pair(rest)?;
            count += 1;
        }
        let right = *counted == LONG_LENGTH || usize::from(*counted) == count;
        (*end == END && count > 0 && right).then_some(Zipmap { pairs, count })
    }

    /// The number of fields. Duplicate fields are counted separately.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the fields with their values.
    pub fn iter(&self) -> ZipmapPairs<'a> {
        ZipmapPairs {
            rest: self.pairs,
            count: self.count,
        }
    }
}

impl<'a> IntoIterator for Zipmap<'a> {
    type Item = (&'a [u8], &'a [u8]);
    type IntoIter = ZipmapPairs<'a>;

    fn into_iter(self) -> ZipmapPairs<'a> {
        self.iter()
    }
}

/// An iterator over the fields of a zipmap with their values.
#[derive(Clone, Debug)]
pub struct ZipmapPairs<'a> {
    rest: &'a [u8],
    count: usize,
}

impl<'a> Iterator for ZipmapPairs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (found, rest) = parse_pair(self.rest)?;
        self.rest = rest;
        self.count -= 1;
        Some(found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for ZipmapPairs<'_> {}

/// A field with its value, and the bytes that follow them.
type Pair<'a> = ((&'a [u8], &'a [u8]), &'a [u8]);

/// Parses the field and the value at the start of `bytes`; `None` if they are incomplete.
fn parse_pair(bytes: &[u8]) -> Option<Pair<'_>> {
    let (field_length, rest) = parse_length(bytes)?;
    let (field, rest) = rest.split_at_checked(field_length)?;
    let (value_length, rest) = parse_length(rest)?;
    let (unused, rest) = rest.split_first()?;
    let (value, rest) = rest.split_at_checked(value_length)?;
    let (_, rest) = rest.split_at_checked(usize::from(*unused))?;
    Some(((field, value), rest))
}

fn parse_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [END, ..] | [] => None,
        [LONG_LENGTH, rest @ ..] => {
            let (length, rest) = rest.split_first_chunk()?;
            let length = u32::from_le_bytes(*length) as usize;
            (length >= usize::from(LONG_LENGTH)).then_some((length, rest))
        }
        [length, rest @ ..] => Some((usize::from(*length), rest)),
    }
}

#[cfg(test)]
mod tests;
