//! The encoding of records, and of the holes between them.
//!
//! ```text
//!   members:   | key length | key |
//!   scores:    | key length | key | 8 bytes |
//!   fields:    | key length * 2 + e | value length | expiry, 8 bytes, if e = 1 | key | value |
//!   a hole:    | 0xFE |   or   | 0xFF | length of the whole hole | anything |
//! ```
//!
//! A length takes 1 byte below 240, 2 bytes below 2288, and otherwise 3, 5 or 9 bytes. No length begins with 0xFE or
//! 0xFF.
/// The components of the records of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordShape {
    /// A key only.
    Members,
    /// A key and a value of 8 bytes.
    Scores,
    /// A key, a value of any length and an optional expiry.
    Fields,
}

/// A record that is stored or is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key by which the record is found.
    pub key: &'a [u8],
    /// The value. It is empty in [`RecordShape::Members`] and has 8 bytes in [`RecordShape::Scores`].
    pub value: &'a [u8],
    /// The expiry in milliseconds since the Unix epoch; only in [`RecordShape::Fields`].
    pub expire_at_ms: Option<u64>,
}

impl<'a> Record<'a> {
    /// Creates a record of [`RecordShape::Members`].
    pub const fn member(key: &'a [u8]) -> Self {
        Self::field(key, &[])
    }

    /// Creates a record with a value and without an expiry.
    pub const fn field(key: &'a [u8], value: &'a [u8]) -> Self {
        Record {
            key,
            value,
            expire_at_ms: None,
        }
    }
}

const ONE_BYTE_END: usize = 240;
const TWO_BYTES_END: usize = ONE_BYTE_END + 8 * 256;
const IN_TWO_BYTES: u8 = 0xF8;
const IN_FOUR_BYTES: u8 = 0xF9;
const IN_EIGHT_BYTES: u8 = 0xFA;
const HOLE_OF_ONE: u8 = 0xFE;
const HOLE: u8 = 0xFF;

/// The size of an encoded expiry in bytes.
const EXPIRY_BYTES: usize = 8;
/// The size of a value in [`RecordShape::Scores`] in bytes.
const SCORE_BYTES: usize = 8;
/// The maximum size of a header in bytes: two lengths and an expiry.
const HEADER_MAX_BYTES: usize = 26;

/// The encoded bytes before the key of a record.
pub(super) struct RecordHeader {
    bytes: [u8; HEADER_MAX_BYTES],
    len: usize,
}

impl RecordHeader {
    /// Encodes the header of a record.
    #[inline]
    pub(super) fn of(shape: RecordShape, record: &Record<'_>) -> Self {
        let mut header = RecordHeader {
            bytes: [0; HEADER_MAX_BYTES],
            len: 0,
        };
        match shape {
            RecordShape::Members => {
                debug_assert!(record.value.is_empty(), "a member has no value");
                header.push_length(record.key.len());
            }
            RecordShape::Scores => {
                assert!(record.value.len() == SCORE_BYTES, "a score has eight bytes");
                header.push_length(record.key.len());
            }
            RecordShape::Fields => {
                header.push_length(record.key.len() << 1 | usize::from(record.expire_at_ms.is_some()));
                header.push_length(record.value.len());
                if let Some(expire_at_ms) = record.expire_at_ms {
                    header.push(&expire_at_ms.to_le_bytes());
                }
            }
        }
        header
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn push_length(&mut self, length: usize) {
        if length < ONE_BYTE_END {
            self.push(&[length as u8]);
        } else if length < TWO_BYTES_END {
            let rest = length - ONE_BYTE_END;
            self.push(&[(ONE_BYTE_END + (rest >> 8)) as u8, rest as u8]);
        } else if let Ok(length) = u16::try_from(length) {
            self.push(&[IN_TWO_BYTES]);
            self.push(&length.to_le_bytes());
        } else if let Ok(length) = u32::try_from(length) {
            self.push(&[IN_FOUR_BYTES]);
            self.push(&length.to_le_bytes());
        } else {
            self.push(&[IN_EIGHT_BYTES]);
            self.push(&(length as u64).to_le_bytes());
        }
    }

    /// The bytes of the header.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The encoded size of the whole record in bytes.
    #[inline]
    pub(super) fn total_bytes(&self, record: &Record<'_>) -> usize {
        self.len + record.key.len() + record.value.len()
    }

    /// Appends the record to `out`.
    #[inline]
    pub(super) fn append(&self, record: &Record<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes());
        out.extend_from_slice(record.key);
        out.extend_from_slice(record.value);
    }

    /// Writes the record to the start of `place`.
    pub(super) fn write(&self, record: &Record<'_>, place: &mut [u8]) {
        let key_at = self.len;
        let value_at = key_at + record.key.len();
        place[..key_at].copy_from_slice(self.bytes());
        place[key_at..value_at].copy_from_slice(record.key);
        place[value_at..value_at + record.value.len()].copy_from_slice(record.value);
    }
}

/// Decodes a length. Returns it and the number of bytes that it takes.
#[inline]
fn length_at(bytes: &[u8], at: usize) -> (usize, usize) {
    let first = usize::from(bytes[at]);
    if first < ONE_BYTE_END {
        return (first, 1);
    }
    long_length_at(bytes, at)
}

fn long_length_at(bytes: &[u8], at: usize) -> (usize, usize) {
    let rest = &bytes[at + 1..];
    let number = |count: usize| {
        let mut word = [0; 8];
        word[..count].copy_from_slice(&rest[..count]);
        (u64::from_le_bytes(word) as usize, 1 + count)
    };
    match bytes[at] {
        IN_TWO_BYTES => number(2),
        IN_FOUR_BYTES => number(4),
        IN_EIGHT_BYTES => number(8),
        first => {
            let high = usize::from(first) - ONE_BYTE_END;
            (ONE_BYTE_END + (high << 8 | usize::from(rest[0])), 2)
        }
    }
}

/// The positions of the parts of a record, in bytes from the start of its chunk.
#[derive(Clone, Copy)]
pub(super) struct RecordParts {
    pub(super) key_at: usize,
    pub(super) value_at: usize,
    pub(super) end: usize,
    pub(super) expire_at_ms: Option<u64>,
}

impl RecordParts {
    /// Decodes the positions of the parts of the record at `at`.
    #[inline]
    pub(super) fn of(shape: RecordShape, bytes: &[u8], at: usize) -> Self {
        let (number, taken) = length_at(bytes, at);
        let behind = at + taken;
        if shape != RecordShape::Fields {
            let value_at = behind + number;
            let end = value_at + if shape == RecordShape::Scores { SCORE_BYTES } else { 0 };
            return RecordParts {
                key_at: behind,
                value_at,
                end,
                expire_at_ms: None,
            };
        }
        let (value_length, taken) = length_at(bytes, behind);
        let mut key_at = behind + taken;
        let mut expire_at_ms = None;
        if number & 1 == 1 {
            let mut word = [0; EXPIRY_BYTES];
            word.copy_from_slice(&bytes[key_at..key_at + EXPIRY_BYTES]);
            expire_at_ms = Some(u64::from_le_bytes(word));
            key_at += EXPIRY_BYTES;
        }
        let value_at = key_at + (number >> 1);
        RecordParts {
            key_at,
            value_at,
            end: value_at + value_length,
            expire_at_ms,
        }
    }

    /// Returns the record with these parts.
    #[inline]
    pub(super) fn record<'a>(&self, bytes: &'a [u8]) -> Record<'a> {
        Record {
            key: &bytes[self.key_at..self.value_at],
            value: &bytes[self.value_at..self.end],
            expire_at_ms: self.expire_at_ms,
        }
    }
}

/// Turns the bytes of `place` into a hole.
pub(super) fn write_hole(place: &mut [u8]) {
    match place.len() {
        0 => {}
        1 => place[0] = HOLE_OF_ONE,
        length => {
            let mut header = RecordHeader {
                bytes: [0; HEADER_MAX_BYTES],
                len: 0,
            };
            header.push(&[HOLE]);
            header.push_length(length);
            place[..header.len].copy_from_slice(header.bytes());
        }
    }
}

/// Returns the length of the hole at `at`, if there is one.
#[inline]
fn hole_at(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes[at] {
        HOLE_OF_ONE => Some(1),
        HOLE => Some(length_at(bytes, at + 1).0),
        _ => None,
    }
}

/// Returns the offset of the first record at or after `at`.
#[inline]
pub(super) fn next_record(bytes: &[u8], mut at: usize) -> Option<usize> {
    while at < bytes.len() {
        match hole_at(bytes, at) {
            None => return Some(at),
            Some(length) => at += length,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    //! Tests of the encoding.

    use super::*;

    #[test]
    fn records_of_every_length_are_read_back() {
        for length in [0, 1, 119, 120, 239, 240, 241, 495, 2287, 2288, 65535, 65536, 70000] {
            let key = vec![b'k'; length];
            for (shape, value, expire_at_ms) in [
                (RecordShape::Members, &[][..], None),
                (RecordShape::Scores, &[7; 8][..], None),
                (RecordShape::Fields, &key[..], None),
                (RecordShape::Fields, &b"v"[..], Some(u64::MAX - 5)),
            ] {
                let record = Record {
                    key: &key,
                    value,
                    expire_at_ms,
                };
                let header = RecordHeader::of(shape, &record);
                let mut bytes = vec![0x77];
                header.append(&record, &mut bytes);
                assert_eq!(bytes.len() - 1, header.total_bytes(&record));
                let parts = RecordParts::of(shape, &bytes, 1);
                assert_eq!(parts.record(&bytes), record, "{shape:?} {length}");
                assert_eq!(parts.end, bytes.len());
                assert_eq!(next_record(&bytes, 1), Some(1));
            }
        }
    }

    #[test]
    fn holes_of_every_length_are_skipped() {
        for length in (1..300).chain([2287, 2288, 2289, 2300, 65535, 65536, 100_000]) {
            let mut bytes = vec![0xAA; length];
            write_hole(&mut bytes);
            assert_eq!(next_record(&bytes, 0), None, "{length}");
            bytes.push(0);
            assert_eq!(next_record(&bytes, 0), Some(length));
        }
    }
}
