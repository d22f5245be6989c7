//! Sequences of small elements, encoded as in Valkey's listpacks.
//!
//! A run is a sequence of consecutive elements and nothing else. A whole listpack, as stored in files, is a run between
//! a header and an end mark:
//!
//! ```text
//!            element 0             element 1                 whole:
//!   +--------+------+---------+--------+------+---------+     +-------------+------------+-----+------+
//!   | header | body | backlen | header | body | backlen |     | total bytes | elements   | run | 0xFF |
//!   +--------+------+---------+--------+------+---------+     | 4, little e.| 2 (65535 = |     |      |
//!                                                             +-------------+-- unknown)-+-----+------+
//!   first byte   element                              bytes of header and body
//!   0xxxxxxx     integer 0..=127                      1
//!   10xxxxxx     string of up to 63 bytes             1 + length
//!   110xxxxx     integer of 13 bits                   2
//!   1110xxxx     string of up to 4095 bytes           2 + length
//!   F0           string of up to 4 GiB                5 + length
//!   F1 F2 F3 F4  integer of 16, 24, 32, 64 bits       3, 4, 5, 9
//! ```
//!
//! The backlen is the length of header and body in groups of 7 bits, to be read backwards: its last byte holds the
//! lowest bits, and every byte except the first has its top bit set. So a run can be traversed from both ends.
//!
//! A string that is the decimal form of a 64-bit integer is stored as an integer. The functions in this module trust
//! that a run is valid; bytes from outside must pass [`validate`] first. On an invalid run they stop early or panic,
//! but memory safety does not depend on it.

use std::ops::Range;

/// The maximum number of bytes of the decimal form of an integer.
pub const DECIMAL_MAX_BYTES: usize = 20;

const LISTPACK_HEADER_BYTES: usize = 6;
const END: u8 = 0xFF;
const COUNT_UNKNOWN: usize = u16::MAX as usize;

/// An element in its stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A string that is the decimal form of this integer.
    Int(i64),
    /// Any other string.
    Bytes(&'a [u8]),
}

impl<'a> Element<'a> {
    /// Returns the form in which a string is stored.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Self {
        parse_integer(bytes).map_or(Self::Bytes(bytes), Self::Int)
    }

    /// The number of bytes that the element takes in a run.
    #[inline]
    pub fn run_bytes(self) -> usize {
        let unmarked = match self {
            Self::Int(number) => integer_bytes(number),
            Self::Bytes(bytes) => string_header_bytes(bytes.len()) + bytes.len(),
        };
        unmarked + backlen_bytes(unmarked)
    }

    /// Returns the element as a string. An integer is written into `scratch`.
    #[inline]
    pub fn text<'b>(self, scratch: &'b mut [u8; DECIMAL_MAX_BYTES]) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Self::Int(number) => format_decimal(number, scratch),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// The length in bytes of the element as a string.
    pub fn text_bytes(self) -> usize {
        self.text(&mut [0; DECIMAL_MAX_BYTES]).len()
    }

    /// Copies the element as a string.
    pub fn to_vec(self) -> Vec<u8> {
        self.text(&mut [0; DECIMAL_MAX_BYTES]).to_vec()
    }
}

/// The string that a search looks for. An element matches if it is equal as a string, regardless of its stored form.
#[derive(Clone, Copy, Debug)]
pub struct Needle<'a> {
    bytes: &'a [u8],
    number: Option<i64>,
}

impl<'a> Needle<'a> {
    /// Creates a search for this string.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            number: parse_integer(bytes),
        }
    }

    /// Returns `true` if the element matches.
    #[inline]
    pub fn matches(&self, element: Element<'_>) -> bool {
        match element {
            Element::Int(number) => self.number == Some(number),
            Element::Bytes(bytes) => self.bytes == bytes,
        }
    }
}

/// Returns the integer whose canonical decimal form the string is: no sign except `-`, no leading zeros, no white
/// space.
#[inline]
pub fn parse_integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [] => return None,
        [b'0'] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    // Nineteen digits fit in an unsigned 64-bit integer, and no signed one has more.
    if digits.len() > 19 || !matches!(digits.first(), Some(b'1'..=b'9')) {
        return None;
    }
    let mut magnitude = 0u64;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
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

/// Writes the decimal form of an integer to the end of `scratch` and returns it.
#[inline]
pub fn format_decimal(number: i64, scratch: &mut [u8; DECIMAL_MAX_BYTES]) -> &[u8] {
    let mut start = DECIMAL_MAX_BYTES;
    let mut rest = number.unsigned_abs();
    loop {
        start -= 1;
        scratch[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        start -= 1;
        scratch[start] = b'-';
    }
    &scratch[start..]
}

#[inline]
fn integer_bytes(number: i64) -> usize {
    match number {
        0..=127 => 1,
        -4096..=4095 => 2,
        -0x8000..=0x7FFF => 3,
        -0x80_0000..=0x7F_FFFF => 4,
        -0x8000_0000..=0x7FFF_FFFF => 5,
        _ => 9,
    }
}

#[inline]
fn string_header_bytes(length: usize) -> usize {
    match length {
        0..=63 => 1,
        64..=4095 => 2,
        _ => 5,
    }
}

/// The number of bytes of a backlen. The limits are Valkey's: each larger size begins one early.
#[inline]
fn backlen_bytes(unmarked: usize) -> usize {
    match unmarked {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

/// An encoded element: the bytes before its body and the bytes after it.
struct EncodedElement<'a> {
    header: [u8; 9],
    header_bytes: usize,
    body: &'a [u8],
    backlen: [u8; 5],
    backlen_bytes: usize,
}

impl<'a> EncodedElement<'a> {
    #[inline]
    fn new(element: Element<'a>) -> Self {
        let (header, header_bytes, body) = match element {
            Element::Int(number) => {
                let (header, header_bytes) = integer_header(number);
                (header, header_bytes, &[][..])
            }
            Element::Bytes(bytes) => {
                let (header, header_bytes) = string_header(bytes.len());
                (header, header_bytes, bytes)
            }
        };
        let (backlen, backlen_bytes) = backlen(header_bytes + body.len());
        Self {
            header,
            header_bytes,
            body,
            backlen,
            backlen_bytes,
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.header_bytes + self.body.len() + self.backlen_bytes
    }

    #[inline]
    fn append(&self, run: &mut Vec<u8>) {
        run.extend_from_slice(&self.header[..self.header_bytes]);
        run.extend_from_slice(self.body);
        run.extend_from_slice(&self.backlen[..self.backlen_bytes]);
    }

    fn write_element(&self, place: &mut [u8]) {
        let (header, rest) = place.split_at_mut(self.header_bytes);
        let (body, backlen) = rest.split_at_mut(self.body.len());
        header.copy_from_slice(&self.header[..self.header_bytes]);
        body.copy_from_slice(self.body);
        backlen.copy_from_slice(&self.backlen[..self.backlen_bytes]);
    }
}

#[inline]
fn integer_header(number: i64) -> ([u8; 9], usize) {
    let little = number.to_le_bytes();
    let mut header = [0; 9];
    let bytes = integer_bytes(number);
    match bytes {
        1 => header[0] = little[0],
        2 => {
            header[0] = 0xC0 | (little[1] & 0x1F);
            header[1] = little[0];
        }
        9 => {
            header[0] = 0xF4;
            header[1..].copy_from_slice(&little);
        }
        // 3, 4, 5 bytes: F1, F2, F3.
        _ => {
            header[0] = 0xEE + bytes as u8;
            header[1..bytes].copy_from_slice(&little[..bytes - 1]);
        }
    }
    (header, bytes)
}

#[inline]
fn string_header(length: usize) -> ([u8; 9], usize) {
    let mut header = [0; 9];
    let bytes = string_header_bytes(length);
    match bytes {
        1 => header[0] = 0x80 | length as u8,
        2 => {
            header[0] = 0xE0 | (length >> 8) as u8;
            header[1] = length as u8;
        }
        _ => {
            assert!(
                u32::try_from(length).is_ok(),
                "no listpack holds an element of {length} bytes"
            );
            header[0] = 0xF0;
            header[1..5].copy_from_slice(&(length as u32).to_le_bytes());
        }
    }
    (header, bytes)
}

#[inline]
fn backlen(unmarked: usize) -> ([u8; 5], usize) {
    let count = backlen_bytes(unmarked);
    let mut bytes = [0; 5];
    for (index, byte) in bytes[..count].iter_mut().enumerate() {
        let group = (unmarked >> (7 * (count - 1 - index))) as u8 & 0x7F;
        *byte = if index == 0 { group } else { group | 0x80 };
    }
    (bytes, count)
}

/// Appends a string. It is stored as an integer if it is the decimal form of one.
#[inline]
pub fn push(run: &mut Vec<u8>, bytes: &[u8]) {
    push_element(run, Element::of(bytes));
}

/// Appends an integer.
#[inline]
pub fn push_int(run: &mut Vec<u8>, number: i64) {
    push_element(run, Element::Int(number));
}

/// Appends an element in the given form.
#[inline]
pub fn push_element(run: &mut Vec<u8>, element: Element<'_>) {
    EncodedElement::new(element).append(run);
}

/// Inserts a string before the element at `offset`, or at the end of the run.
pub fn insert(run: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    splice(run, offset..offset, Element::of(bytes));
}

/// Replaces the element at `offset` by a string.
pub fn replace(run: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = ElementRun::new(run).end_of(offset);
    splice(run, offset..end, Element::of(bytes));
}

/// Removes up to `count` elements from the one at `offset` on. Returns the number of removed elements.
pub fn remove(run: &mut Vec<u8>, offset: usize, count: usize) -> usize {
    let mut end = offset;
    let mut removed = 0;
    while removed < count && end < run.len() {
        end = ElementRun::new(run).end_of(end);
        removed += 1;
    }
    run.drain(offset..end);
    removed
}

/// Replaces a range of whole elements by one element.
pub fn splice(run: &mut Vec<u8>, range: Range<usize>, element: Element<'_>) {
    let encoded = EncodedElement::new(element);
    let (old_length, new_end) = (run.len(), range.start + encoded.bytes());
    let length = old_length - range.len() + encoded.bytes();
    if length > old_length {
        run.resize(length, 0);
    }
    run.copy_within(range.end..old_length, new_end);
    run.truncate(length);
    encoded.write_element(&mut run[range.start..new_end]);
}

/// Overwrites the element at `offset` if the new element has the same encoded size. Returns `true` if it did.
pub fn overwrite(run: &mut [u8], offset: usize, element: Element<'_>) -> bool {
    let end = ElementRun::new(run).end_of(offset);
    let same = end - offset == element.run_bytes();
    if same {
        EncodedElement::new(element).write_element(&mut run[offset..end]);
    }
    same
}

/// Writes an element into a slice of exactly its encoded size ([`Element::run_bytes`]).
pub fn write_element(place: &mut [u8], element: Element<'_>) {
    EncodedElement::new(element).write_element(place);
}

/// Decodes the element at the start of `bytes`. Returns it and the length of its header and body, or `None` if it is
/// invalid or truncated.
#[inline]
fn decode(bytes: &[u8]) -> Option<(Element<'_>, usize)> {
    let string = |header: usize, length: usize| {
        let body = bytes.get(header..header.checked_add(length)?)?;
        Some((Element::Bytes(body), header + length))
    };
    let first = *bytes.first()?;
    match first {
        0x00..=0x7F => Some((Element::Int(i64::from(first)), 1)),
        0x80..=0xBF => string(1, usize::from(first & 0x3F)),
        0xC0..=0xDF => {
            let raw = u16::from_be_bytes([first & 0x1F, *bytes.get(1)?]);
            // The top bit of the thirteen is the sign.
            Some((Element::Int(i64::from((raw << 3) as i16 >> 3)), 2))
        }
        0xE0..=0xEF => string(2, usize::from(first & 0x0F) << 8 | usize::from(*bytes.get(1)?)),
        0xF0 => {
            let length: [u8; 4] = bytes.get(1..5)?.try_into().ok()?;
            string(5, u32::from_le_bytes(length) as usize)
        }
        0xF1..=0xF3 => {
            let length = usize::from(first - 0xEF);
            let mut little = [0; 4];
            little[4 - length..].copy_from_slice(bytes.get(1..=length)?);
            let number = i32::from_le_bytes(little) >> (8 * (4 - length));
            Some((Element::Int(i64::from(number)), 1 + length))
        }
        0xF4 => {
            let little: [u8; 8] = bytes.get(1..9)?.try_into().ok()?;
            Some((Element::Int(i64::from_le_bytes(little)), 9))
        }
        _ => None,
    }
}

/// Decodes the backlen at the end of `bytes`. Returns the length of header and body that it holds, and its own length.
#[inline]
fn decode_backlen(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut unmarked = 0usize;
    for (index, &byte) in bytes.iter().rev().take(5).enumerate() {
        unmarked |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((unmarked, index + 1));
        }
    }
    None
}

/// A sequence of consecutive elements.
#[derive(Clone, Copy, Debug)]
pub struct ElementRun<'a> {
    bytes: &'a [u8],
}

impl<'a> ElementRun<'a> {
    /// Creates a run from bytes that this module wrote or that passed [`validate`].
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The bytes of the run.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns `true` if there are no elements.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the element at an offset, or `None` at the end.
    #[inline]
    pub fn at(self, offset: usize) -> Option<Element<'a>> {
        Some(decode(self.bytes.get(offset..)?)?.0)
    }

    /// Returns the element at an offset and the offset after it, or `None` at the end.
    #[inline]
    pub fn step(self, offset: usize) -> Option<(Element<'a>, usize)> {
        let (element, unmarked) = decode(self.bytes.get(offset..)?)?;
        Some((element, offset + unmarked + backlen_bytes(unmarked)))
    }

    /// Returns the offset after the element at an offset.
    #[inline]
    pub fn end_of(self, offset: usize) -> usize {
        self.step(offset).map_or(self.bytes.len(), |(_, end)| end)
    }

    /// Returns the offset of the element that ends at an offset, or `None` at the start.
    #[inline]
    pub fn previous_offset(self, end: usize) -> Option<usize> {
        let (unmarked, own) = decode_backlen(self.bytes.get(..end)?)?;
        end.checked_sub(unmarked + own)
    }

    /// Iterates over all elements and their offsets, from either end.
    #[inline]
    pub fn iter(self) -> ElementRunIter<'a> {
        ElementRunIter {
            run: self,
            front: 0,
            back: self.bytes.len(),
        }
    }

    /// Iterates over the elements whose offsets are in `range`, which must begin and end at element boundaries.
    #[inline]
    pub fn range(self, range: Range<usize>) -> ElementRunIter<'a> {
        ElementRunIter {
            run: self,
            front: range.start,
            back: range.end,
        }
    }

    /// Counts the elements in a traversal of the run.
    pub fn count(self) -> usize {
        self.iter().count()
    }

    /// Returns the offset of element `index` of `count`, found from the closer end, or `None` if the index is out of
    /// range.
    #[inline]
    pub fn offset_of(self, index: usize, count: usize) -> Option<usize> {
        if index >= count {
            return None;
        }
        if index <= count / 2 {
            let mut offset = 0;
            for _ in 0..index {
                offset = self.step(offset)?.1;
            }
            Some(offset)
        } else {
            let mut offset = self.bytes.len();
            for _ in index..count {
                offset = self.previous_offset(offset)?;
            }
            Some(offset)
        }
    }

    /// Returns element `index` of `count` and its offset, or `None` if the index is out of range.
    #[inline]
    pub fn get(self, index: usize, count: usize) -> Option<(usize, Element<'a>)> {
        let offset = self.offset_of(index, count)?;
        Some((offset, self.at(offset)?))
    }

    /// Returns the offset of the first element that equals a string, among elements 0, `stride`, 2 x `stride` and so
    /// on.
    pub fn find(self, bytes: &[u8], stride: usize) -> Option<usize> {
        let needle = Needle::new(bytes);
        let mut offset = 0;
        while let Some((element, mut end)) = self.step(offset) {
            if needle.matches(element) {
                return Some(offset);
            }
            for _ in 1..stride {
                end = self.end_of(end);
            }
            offset = end;
        }
        None
    }
}

impl<'a> IntoIterator for ElementRun<'a> {
    type Item = (usize, Element<'a>);
    type IntoIter = ElementRunIter<'a>;

    fn into_iter(self) -> ElementRunIter<'a> {
        self.iter()
    }
}

/// An iterator over the elements of a run and their offsets, from either end.
#[derive(Clone, Debug)]
pub struct ElementRunIter<'a> {
    run: ElementRun<'a>,
    front: usize,
    back: usize,
}

impl<'a> Iterator for ElementRunIter<'a> {
    type Item = (usize, Element<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.front >= self.back {
            return None;
        }
        let offset = self.front;
        let (element, end) = self.run.step(offset)?;
        self.front = end;
        Some((offset, element))
    }
}

impl DoubleEndedIterator for ElementRunIter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front >= self.back {
            return None;
        }
        self.back = self.run.previous_offset(self.back)?;
        Some((self.back, self.run.at(self.back)?))
    }
}

impl std::iter::FusedIterator for ElementRunIter<'_> {}

/// Returns the run of a whole listpack and its number of elements, or `None` if any byte is invalid.
pub fn validate(whole: &[u8]) -> Option<(ElementRun<'_>, usize)> {
    let (header, rest) = whole.split_first_chunk::<LISTPACK_HEADER_BYTES>()?;
    let (&end, run) = rest.split_last()?;
    let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let declared = usize::from(u16::from_le_bytes([header[4], header[5]]));
    if total as usize != whole.len() || end != END {
        return None;
    }
    let count = validate_run(run)?;
    (declared == COUNT_UNKNOWN || declared == count).then_some((ElementRun::new(run), count))
}

/// Returns the number of elements, or `None` if the bytes are not a valid run.
pub fn validate_run(bytes: &[u8]) -> Option<usize> {
    let (mut offset, mut count) = (0, 0);
    while offset < bytes.len() {
        let (_, unmarked) = decode(&bytes[offset..])?;
        let own = backlen_bytes(unmarked);
        let end = offset.checked_add(unmarked)?.checked_add(own)?;
        let mark = decode_backlen(bytes.get(offset..end)?)?;
        if mark != (unmarked, own) {
            return None;
        }
        offset = end;
        count += 1;
    }
    Some(count)
}

/// Returns the run of a whole listpack that this module created or validated.
pub fn run_of_listpack(whole: &[u8]) -> ElementRun<'_> {
    let end = whole.len().saturating_sub(1);
    ElementRun::new(whole.get(LISTPACK_HEADER_BYTES..end).unwrap_or_default())
}

/// Appends the whole listpack that contains a run of `count` elements.
///
/// # Panics
///
/// Panics if the listpack would have 4 GiB or more. Collections change their encoding long before that.
pub fn write_listpack(out: &mut Vec<u8>, run: &[u8], count: usize) {
    let total = u32::try_from(listpack_bytes(run.len())).expect("a listpack is smaller than 4 GiB");
    out.extend_from_slice(&total.to_le_bytes());
    out.extend_from_slice(&(count.min(COUNT_UNKNOWN) as u16).to_le_bytes());
    out.extend_from_slice(run);
    out.push(END);
}

/// The size in bytes of the whole listpack that contains a run of `run` bytes.
pub const fn listpack_bytes(run: usize) -> usize {
    LISTPACK_HEADER_BYTES + run + 1
}

#[cfg(test)]
mod tests;
