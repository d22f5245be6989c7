//! Ziplists: the encoding of small lists, hashes and sorted sets in Redis before 7.0. They are only read, never
//! written.
//!
//! ```text
//! bytes (4)  offset of the last entry (4)  entries (2)  entry ...  FF        all little-endian
//!
//! entry:  length of the previous entry, 1 byte below 254, or FE and 4 bytes, little-endian
//!         00LLLLLL                     string of that many bytes
//!         01LLLLLL LLLLLLLL            the same, big-endian
//!         10...... LLLLLLLL x 4        the same, big-endian
//!         C0, D0, E0, F0, FE           integer of 2, 4, 8, 3 or 1 bytes, little-endian
//!         F1 to FD                     integer from 0 to 12
//! ```
//!
//! The number of entries is FFFF if it does not fit. A ziplist is checked completely before any of its data is used, so
//! iterating over it cannot fail.

const HEADER_BYTES: usize = 10;
const END: u8 = 0xff;
const UNCOUNTED: usize = 0xffff;
const LONG_PREVIOUS_LENGTH: u8 = 0xfe;

/// One element of a ziplist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZiplistElement<'a> {
    /// The number whose canonical decimal form is the element.
    Int(i64),
    /// The bytes of the element.
    Bytes(&'a [u8]),
}

/// A ziplist that has been validated.
#[derive(Clone, Copy, Debug)]
pub struct Ziplist<'a> {
    entries: &'a [u8],
    count: usize,
}

impl<'a> Ziplist<'a> {
    /// Validates every byte of a ziplist; `None` if it is invalid. It may be empty.
    pub fn validate(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [b0, b1, b2, b3, t0, t1, t2, t3, c0, c1] = *header;
        let length = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        let tail = u32::from_le_bytes([t0, t1, t2, t3]) as usize;
        let counted = usize::from(u16::from_le_bytes([c0, c1]));
        let (end, entries) = rest.split_last()?;
        if *end != END || length != bytes.len() || tail > length - 1 {
            return None;
        }
        let (mut at, mut before, mut count) = (0, 0, 0);
        while at < entries.len() {
            let entry = ZiplistEntry::read(&entries[at..])?;
            if entry.previous_length != before || (at + entry.length == entries.len() && tail != HEADER_BYTES + at) {
                return None;
            }
            before = entry.length;
            at += entry.length;
            count += 1;
        }
        (counted == count || counted == UNCOUNTED).then_some(Ziplist { entries, count })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the elements in order.
    pub fn iter(&self) -> ZiplistElements<'a> {
        ZiplistElements {
            rest: self.entries,
            count: self.count,
        }
    }
}

impl<'a> IntoIterator for Ziplist<'a> {
    type Item = ZiplistElement<'a>;
    type IntoIter = ZiplistElements<'a>;

    fn into_iter(self) -> ZiplistElements<'a> {
        self.iter()
    }
}

/// An iterator over the elements of a ziplist.
#[derive(Clone, Debug)]
pub struct ZiplistElements<'a> {
    rest: &'a [u8],
    count: usize,
}

impl<'a> Iterator for ZiplistElements<'a> {
    type Item = ZiplistElement<'a>;

    fn next(&mut self) -> Option<ZiplistElement<'a>> {
        let entry = ZiplistEntry::read(self.rest)?;
        self.rest = self.rest.get(entry.length..)?;
        self.count -= 1;
        Some(entry.element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for ZiplistElements<'_> {}

struct ZiplistEntry<'a> {
    /// The length of the previous entry, as stored in this one.
    previous_length: usize,
    /// The length of this entry in bytes.
    length: usize,
    element: ZiplistElement<'a>,
}

impl<'a> ZiplistEntry<'a> {
    /// Parses the entry at the start of `bytes`; `None` if there is no complete entry.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (before, rest) = match bytes {
            [LONG_PREVIOUS_LENGTH, rest @ ..] => {
                let (before, rest) = rest.split_first_chunk()?;
                (u32::from_le_bytes(*before) as usize, rest)
            }
            [END, ..] | [] => return None,
            [before, rest @ ..] => (usize::from(*before), rest),
        };
        let (element, rest) = parse_element(rest)?;
        Some(ZiplistEntry {
            previous_length: before,
            length: bytes.len() - rest.len(),
            element,
        })
    }
}

/// Parses the element at the start of `bytes`. Returns it with the bytes that follow it.
fn parse_element(bytes: &[u8]) -> Option<(ZiplistElement<'_>, &[u8])> {
    let (mark, rest) = bytes.split_first()?;
    let short = usize::from(mark & 0x3f);
    match mark {
        0x00..=0x3f => parse_string(rest, short),
        0x40..=0x7f => {
            let (low, rest) = rest.split_first()?;
            parse_string(rest, short << 8 | usize::from(*low))
        }
        0x80..=0xbf => {
            let (length, rest) = rest.split_first_chunk()?;
            parse_string(rest, u32::from_be_bytes(*length) as usize)
        }
        0xc0 => parse_integer::<2>(rest),
        0xd0 => parse_integer::<4>(rest),
        0xe0 => parse_integer::<8>(rest),
        0xf0 => parse_integer::<3>(rest),
        0xfe => parse_integer::<1>(rest),
        0xf1..=0xfd => Some((ZiplistElement::Int(i64::from(mark - 0xf1)), rest)),
        _ => None,
    }
}

fn parse_string(bytes: &[u8], length: usize) -> Option<(ZiplistElement<'_>, &[u8])> {
    let (string, rest) = bytes.split_at_checked(length)?;
    Some((ZiplistElement::Bytes(string), rest))
}

fn parse_integer<const N: usize>(bytes: &[u8]) -> Option<(ZiplistElement<'_>, &[u8])> {
    let (digits, rest) = bytes.split_first_chunk::<N>()?;
    let mut wide = [0; 8];
    wide[8 - N..].copy_from_slice(digits);
    // The shift extends the sign.
    let number = i64::from_le_bytes(wide) >> (8 * (8 - N));
    Some((ZiplistElement::Int(number), rest))
}

#[cfg(test)]
mod tests;
